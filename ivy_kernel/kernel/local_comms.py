"""Comms of this process (message spec, "Custom messages"): of the status widget and ``%%local``.

All other comms are of the kernel in the sandbox. They are told apart by their ids.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import comm
from comm.base_comm import BaseComm, CommManager

from ivy_kernel.models import Json, Message, Sink

WIDGETS_CONTROL = "jupyter.widget.control"
"""By this target a front end asks for the state of all widgets at once."""


class LocalComms:
    """Sends and receives for the comms that are opened here.

    Made before anything imports ipywidgets, which keeps the functions that it finds then.

    Parameters
    ----------
    publish
        Takes what goes to the front end.
    """

    def __init__(self, publish: Sink) -> None:
        self._publish = publish
        self._request: Json | None = None
        self._manager = CommManager()
        comm.create_comm = lambda *args, **options: _LocalComm(self._send, *args, **options)
        comm.get_comm_manager = lambda: self._manager

    def take(self, request: Json) -> bool:
        """Handle a message from the front end, if it is for a comm of this process."""
        msg_type, content = request["header"]["msg_type"], request["content"]
        comm_id = content.get("comm_id")
        if msg_type == "comm_open":
            if content.get("target_name") != WIDGETS_CONTROL or not self._manager.comms:
                return False
            # The answer would be of the sandbox's widgets alone. Without one, the front end asks
            # which comms there are, and then each of them.
            self._publish(Message("comm_close", {"comm_id": comm_id, "data": {}}))
            return True
        if comm_id not in self._manager.comms:
            return False
        self._request = request["header"]
        try:
            getattr(self._manager, msg_type)(None, "", request)
        finally:
            self._request = None
        return True

    def _send(self, message: Message) -> None:
        """Hand a message on, as an answer if it is one: front ends tell that by its parent."""
        if self._request is not None:
            message = dataclasses.replace(message, parent_header=self._request)
        self._publish(message)

    def info(self, target_name: str | None) -> Json:
        """The open comms, by id (message spec, "Comm info")."""
        return {
            comm_id: {"target_name": one.target_name}
            for comm_id, one in list(self._manager.comms.items())
            if target_name in (None, "", one.target_name)
        }


class _LocalComm(BaseComm):
    def __init__(self, publish: Sink, *args: Any, **options: Any) -> None:
        self._publish = publish  # opening sends, so this comes first
        super().__init__(*args, **options)

    def publish_msg(
        self,
        msg_type: str,
        data: Any = None,
        metadata: Any = None,
        buffers: Any = None,
        **keys: Any,
    ) -> None:
        """Called by the base class for all that it sends."""
        content = {"data": data or {}, "comm_id": self.comm_id, **keys}
        raw = tuple(bytes(buffer) for buffer in buffers or ())
        self._publish(Message(msg_type, content, metadata=metadata or {}, buffers=raw))
