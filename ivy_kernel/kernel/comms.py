"""The front end's way to the comms of the sandbox and of this process.

Source: message spec, "Custom messages".
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

import comm
from comm.base_comm import BaseComm, CommManager

from ivy_kernel.errors import IvyError, NoSandboxError
from ivy_kernel.kernel.current_session import CurrentSession
from ivy_kernel.models import Json, Message, Sink
from ivy_kernel.routes.base import LiveKernel

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


INFO_SECONDS = 5.0
"""How long the sandbox may take to list its comms where they are known here too."""
INFO_UNSURE_SECONDS = 25.0
"""The same where they are not: a cell would not be quicker there, and widgets would be lost."""


class Comms:
    """Hands a front end's comm messages to where the comm is, and knows which there are.

    Parameters
    ----------
    local
        The comms of this process.
    current
        The session, whose sandbox has the others.
    is_busy
        Whether a cell is under way.
    flush
        Returns when all that the sandbox has said so far is shown.
    """

    def __init__(
        self,
        local: LocalComms,
        current: CurrentSession,
        *,
        is_busy: Callable[[], bool],
        flush: Callable[[], Awaitable[None]],
    ) -> None:
        self._local = local
        self._current = current
        self._is_busy = is_busy
        self._flush = flush

    def take_here(self, request: Json) -> bool:
        """Handle a message, if it is for a comm of this process."""
        return self._local.take(request)

    async def send(self, request: Json) -> None:
        """Hand a message over; returns when the sandbox's kernel is done with it.

        Raises
        ------
        IvyError
            When it did not reach the sandbox.
        """
        agent = self._live
        if agent is None:
            return
        self._current.comms.sent(request)
        buffers = tuple(bytes(buffer) for buffer in request.get("buffers", ()))
        await agent.send_comm(
            request["header"], request["content"], request.get("metadata", {}), buffers
        )
        await self._flush()

    @property
    def _live(self) -> LiveKernel | None:
        session = self._current.session
        return session.live if session is not None else None

    @property
    def must_ask(self) -> bool:
        """Whether only the sandbox knows all its comms, so that it must be idle to tell."""
        return self._live is not None and not self._current.comms.is_complete

    async def info(self, content: Json) -> Json:
        """The open comms, by id (message spec, "Comm info").

        Parameters
        ----------
        content
            Of the request.
        """
        target_name = content.get("target_name")
        there = await self._info_there(content, target_name)
        return {**there, **self._local.info(target_name)}

    async def _info_there(self, content: Json, target_name: str | None) -> Json:
        session, comms = self._current.session, self._current.comms
        if session is None or session.live is None:
            return {}
        answer = None
        try:
            if not self._is_busy():
                question = session.ask("comm_info_request", content)
                seconds = INFO_SECONDS if comms.is_complete else INFO_UNSURE_SECONDS
                answer = await asyncio.wait_for(question, seconds)
        except NoSandboxError:
            return {}  # a page that is told of widgets asks for their state, which would wake it
        except (asyncio.TimeoutError, IvyError):
            pass  # it is slow, or out of reach for the moment
        if answer is None:
            return comms.info(target_name)
        found: Json = answer.get("comms", {})
        if not target_name:
            comms.listed(found)
        return found
