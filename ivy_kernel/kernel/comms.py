"""Comms of this process and of the sandbox, and the front end's way to both.

Source: message spec, "Custom messages".
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import comm
from comm.base_comm import BaseComm, CommManager

from ivy_kernel.errors import IvyError, NoSandboxError
from ivy_kernel.models import Json, Message, Sink
from ivy_kernel.routes.base import LiveKernel
from ivy_kernel.routes.events import AgentLost, AgentOpened, Event, KernelDied, KernelReady
from ivy_kernel.session.session import Session

WIDGETS_CONTROL = "jupyter.widget.control"
"""Target by which a front end asks for the state of all widgets at once."""


# Comms of this process, as %%local and the status widget open them ------------------------------
class LocalComms:
    """Sends and receives for the comms that are opened in this process.

    Make it before anything imports ipywidgets, which keeps the functions that it finds then.

    Parameters
    ----------
    publish
        Takes the messages for the front end.
    """

    def __init__(self, publish: Sink) -> None:
        self._publish = publish
        self._request: Json | None = None  # header of the one that is being handled
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
            # The sandbox would answer for its own widgets alone. Without an answer, the front end
            # asks which comms there are, and then each of them.
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
        """Hand a message on; as a reply, with its request as parent, while one is handled."""
        if self._request is not None:
            message = dataclasses.replace(message, parent_header=self._request)
        self._publish(message)

    def info(self, target_name: str | None) -> Json:
        """Return the open comms, by id (message spec, "Comm info")."""
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


# Comms of the sandbox --------------------------------------------------------------------------
class RemoteComms:
    """The open comms of one session's kernel, known from the messages that pass here.

    The sandbox is asked first (message spec, "Comm info"). This is for when it does not answer in
    time: a page that is told "no comms" forgets its widgets for good.

    Parameters
    ----------
    of_other_chats
        Returns the comms of the other chats that the notebook has used.

    Attributes
    ----------
    is_complete
        Whether all of them are known: not so after attaching to a kernel that was living already,
        until it has listed its comms itself.
    """

    def __init__(self, of_other_chats: Callable[[], Iterable[RemoteComms]] = tuple) -> None:
        self._of_other_chats = of_other_chats
        self._targets: dict[str, str] = {}
        self._generation = 0  # of the kernel; 0 while unknown
        self.is_complete = False

    def on_message(self, message: Message) -> None:
        """Take a message of the sandbox; those that open or close no comm change nothing."""
        if message.msg_type.startswith("comm_"):
            self._take(message.msg_type, message.content)

    def on_request(self, request: Json) -> None:
        """Take a comm message of the front end, on its way to the sandbox."""
        self._take(request["header"]["msg_type"], request["content"])

    def _take(self, msg_type: str, content: Json) -> None:
        comm_id = str(content.get("comm_id", ""))
        if msg_type == "comm_open":
            self._targets[comm_id] = str(content.get("target_name", ""))
        elif msg_type == "comm_close":
            self._targets.pop(comm_id, None)

    def may_have(self, comm_id: str) -> bool:
        """Whether a comm is open in this kernel, as far as is known."""
        if comm_id in self._targets or self.is_complete:
            return comm_id in self._targets
        return not any(comm_id in other._targets for other in self._of_other_chats())

    def on_list(self, comms: Json) -> None:
        """Take the kernel's own list of its comms, which has those opened before our time."""
        # Once complete, ours is better: a comm may have opened while the list was on its way.
        if not self.is_complete:
            self._targets = {
                comm_id: str(one.get("target_name", "")) for comm_id, one in comms.items()
            }
            self.is_complete = True

    def on_event(self, event: Event) -> None:
        """Take an event of the agent route: comms end with the kernel that has them."""
        if isinstance(event, AgentOpened):
            self._generation = 0
            if not event.is_found:
                self._targets.clear()
            self.is_complete = not event.is_found
        elif isinstance(event, KernelReady):
            if self._generation not in (0, event.generation):
                self._begin_anew()
            self._generation = event.generation
        elif isinstance(event, AgentLost | KernelDied):
            self._begin_anew()

    def _begin_anew(self) -> None:
        self._targets.clear()
        self.is_complete = True

    def info(self, target_name: str | None) -> Json:
        """The open comms, by id, as a kernel lists them.

        Parameters
        ----------
        target_name
            Only those of one target; empty for all.
        """
        return {
            comm_id: {"target_name": target}
            for comm_id, target in self._targets.items()
            if target_name in (None, "", target)
        }


# The front end's way to both --------------------------------------------------------------------
INFO_SECONDS = 5.0
"""Time limit for the sandbox to list its comms where they are known here too."""
INFO_UNSURE_SECONDS = 25.0
"""Time limit where they are not: a page that gets no list loses its widgets."""


class CommsOwner(Protocol):
    """The runner of cells, as far as comms depend on it."""

    @property
    def busy(self) -> bool:
        """Whether a cell is under way."""

    @property
    def session(self) -> Session | None:
        """The session whose sandbox has the remote comms; ``None`` while there is none."""

    @property
    def remote_comms(self) -> RemoteComms:
        """The comms of that session's kernel; another object for another session."""

    @property
    def live(self) -> LiveKernel | None:
        """The kernel behind that session's open route, where it has one."""

    async def flush(self) -> None:
        """Return when all that the sandbox has said so far is shown."""


class Comms:
    """Routes a front end's comm messages to the process that has the comm, and lists all comms.

    Parameters
    ----------
    local
        The comms of this process.
    owner
        Knows the sandbox that has the others.
    """

    def __init__(self, local: LocalComms, owner: CommsOwner) -> None:
        self._local = local
        self._owner = owner

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
        comm_id = str(request["content"].get("comm_id", ""))
        is_new = request["header"]["msg_type"] == "comm_open"
        if self._owner.live is not None and not (is_new or self._owner.remote_comms.is_complete):
            await self._remote_info({}, None)
        live = self._owner.live
        # A widget of a chat that was attached before is none of this kernel's.
        if live is None or not (is_new or self._owner.remote_comms.may_have(comm_id)):
            return
        self._owner.remote_comms.on_request(request)
        buffers = tuple(bytes(buffer) for buffer in request.get("buffers", ()))
        await live.send_comm(
            request["header"], request["content"], request.get("metadata", {}), buffers
        )
        # Front ends drop a widget's callbacks at "idle", so its replies must be out before that.
        await self._owner.flush()

    @property
    def must_ask(self) -> bool:
        """Whether only the sandbox knows all its comms, so that it must be idle to tell."""
        return self._owner.live is not None and not self._owner.remote_comms.is_complete

    async def info(self, content: Json) -> Json:
        """Return the open comms, by id (message spec, "Comm info").

        Parameters
        ----------
        content
            Content of the request.
        """
        target_name = content.get("target_name")
        remote = await self._remote_info(content, target_name)
        return {**remote, **self._local.info(target_name)}

    async def _remote_info(self, content: Json, target_name: str | None) -> Json:
        session, comms = self._owner.session, self._owner.remote_comms
        if session is None or session.live is None:
            return {}
        answer = None
        try:
            if not self._owner.busy:
                asking = session.ask("comm_info_request", content)
                seconds = INFO_SECONDS if comms.is_complete else INFO_UNSURE_SECONDS
                answer = await asyncio.wait_for(asking, seconds)
        except NoSandboxError:
            return {}  # a page that is told of widgets asks for their state, which would wake it
        except (asyncio.TimeoutError, IvyError):
            pass  # it is slow, or out of reach for the moment
        if answer is None:
            return comms.info(target_name)
        found: Json = answer.get("comms", {})
        if not target_name:  # a list of one target would not be all of them
            comms.on_list(found)
        return found
