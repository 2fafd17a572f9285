"""ipykernel's base class, made fit for a kernel that mostly waits for the sandbox.

It answers requests that need no sandbox while a cell runs, serves requests of every channel on one
loop, and takes an interrupt as a message instead of letting a signal end the process.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import zmq
from ipykernel.kernelbase import Kernel

from ivy_kernel.models import sendable

if TYPE_CHECKING:
    from ivy_kernel.models import Json, Message

Result = TypeVar("Result")

COMM_MESSAGES = ("comm_open", "comm_msg", "comm_close")
ANSWERED_BESIDE_A_CELL = frozenset(
    {
        "comm_info_request",
        "complete_request",
        "history_request",
        "inspect_request",
        "is_complete_request",
        "kernel_info_request",
    }
)


WAITING_MESSAGES = 30_000
"""So many messages may wait for a client that reads slowly, or that asks for its reply first."""

ZMQ_WAITING_MESSAGES = 1_000
"""ZMQ's own number, which other sockets keep."""

STUCK_SECONDS = 5.0
"""A client that has read nothing for so long is not waited for."""

IMPATIENT_SECONDS = 60.0
"""For so long no client is waited for, when one is stuck."""

UNSENT_MESSAGES = 1_000
"""So many messages may wait in this process for a front end that reads slowly."""


class PatientSender:
    """Sends what is published so that nothing is lost to a client that reads slowly.

    ZMQ drops what is published while 1,000 messages wait for a client. This one waits instead; only
    a client that reads nothing at all for a while, such as a stopped process, loses messages.

    Parameters
    ----------
    thread
        ipykernel's iopub thread, whose sending is replaced.
    """

    def __init__(self, thread: Any) -> None:
        self._send: Callable[..., None] = thread._really_send
        self._socket = thread.socket
        self._patient_from = 0.0
        self._set_patient(is_patient=True)
        self._socket.setsockopt(zmq.SNDTIMEO, int(STUCK_SECONDS * 1000))
        thread._really_send = self._really_send

    def _set_patient(self, *, is_patient: bool) -> None:
        self._is_patient = is_patient
        self._socket.setsockopt(zmq.XPUB_NODROP, int(is_patient))

    def _really_send(self, *arguments: Any, **options: Any) -> None:
        """Called in the iopub thread for each message."""
        if not self._is_patient and time.monotonic() > self._patient_from:
            self._set_patient(is_patient=True)
        try:
            self._send(*arguments, **options)
        except zmq.Again:
            # Not sent to any client yet. The others must not wait for the one that is stuck.
            self._patient_from = time.monotonic() + IMPATIENT_SECONDS
            self._set_patient(is_patient=False)
            self._send(*arguments, **options)


class BaseKernel(Kernel):
    """A kernel without cells: it receives and sends messages.

    Attributes
    ----------
    main_loop
        The loop that cells run on; ``None`` before it runs.
    cell_parent
        The request of the cell that is running; ``None`` while none is.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.main_loop: asyncio.AbstractEventLoop | None = None
        self.cell_parent: Json | None = None

    def start(self) -> None:
        """Called by the application once the sockets are open."""
        super().start()
        self._send_replies_through_the_stream()
        self.io_loop.add_callback(self._started)

    def _send_replies_through_the_stream(self) -> None:
        """Do in ipykernel 7.3 what later ones do.

        It sends replies on the socket itself, past the stream that reads from it. The stream may
        then overlook a request that arrives meanwhile, until another client connects
        (https://github.com/ipython/ipykernel/issues/1554).
        """
        manager: Any = getattr(self.shell_channel_thread, "manager", None)
        if hasattr(manager, "_shell_socket"):
            manager._shell_socket = self.shell_stream

    async def _started(self) -> None:
        self.main_loop = asyncio.get_running_loop()
        # The default handler would raise KeyboardInterrupt in the loop itself, and end the process.
        self.main_loop.add_signal_handler(
            signal.SIGINT, lambda: asyncio.ensure_future(self.interrupt_cell())
        )

    async def interrupt_cell(self) -> None:
        """Called on the main loop for SIGINT."""
        raise NotImplementedError

    def must_wait(self, msg_type: str) -> bool:
        """Whether a request can only be answered after the running cell.

        Called on the main loop, for types of `ANSWERED_BESIDE_A_CELL`.
        """
        raise NotImplementedError

    def pre_handler_hook(self) -> None:
        """The base class would let SIGINT kill an asynchronous kernel; `_started` handles it."""

    def post_handler_hook(self) -> None:
        """See `pre_handler_hook`."""

    async def shell_main(self, subshell_id: str | None, msg: Any) -> None:
        """Called by ipykernel for each message on the shell channel.

        While a cell runs, requests that need no sandbox are answered beside it. Messages of widgets
        always are, because the sandbox takes its time for them, and cells may come meanwhile.
        """
        if not self._is_handled_beside(self._message_type(msg)):
            await super().shell_main(subshell_id, msg)
            return
        try:  # a task has a context of its own, so cells keep their parent
            await asyncio.create_task(self.dispatch_shell(msg, subshell_id=subshell_id))
        finally:
            # It has changed the parent that threads without a context fall back on. The right one
            # is that of the cell that runs now, which need not be the one that ran before.
            self.set_parent(self._shell_ident(), self.get_parent("shell"), channel="shell")
            if self.cell_parent is not None:  # front ends show the last status they got
                self._publish_status("busy", "shell", parent=self.cell_parent)

    def _is_handled_beside(self, msg_type: str) -> bool:
        if msg_type in COMM_MESSAGES:
            return True
        is_answered = msg_type in ANSWERED_BESIDE_A_CELL and not self.must_wait(msg_type)
        return self.cell_parent is not None and is_answered

    @property
    def wire(self) -> Any:
        """jupyter_client's session, which signs and sends messages."""
        return self.session

    def _message_type(self, msg: Any) -> str:
        try:
            _, frames = self.wire.feed_identities(msg, copy=False)
            header = self.wire.deserialize(frames, content=False, copy=False)["header"]
        except Exception:  # the base class reports what is wrong with it
            return ""
        return str(header.get("msg_type", ""))

    def _shell_ident(self) -> Any:
        return self._get_shell_context_var(self._shell_parent_ident)

    def parent_ident_here(self) -> Any:
        """Identity of the client whose request `get_parent` returns, on this thread's channel."""
        if threading.current_thread() is self.control_thread:
            return self._control_parent_ident
        return self._shell_ident()

    def publish(self, message: Message) -> None:
        """Send one message to all front ends, as of the running cell if it names no parent."""
        parent = self.cell_parent
        if message.parent_header is not None:
            parent = {"header": message.parent_header}
        options = {
            "parent": parent,
            "ident": self._topic(message.msg_type),
            "metadata": message.metadata,
            "buffers": list(message.buffers) or None,
        }
        try:
            self.wire.send(self.iopub_socket, message.msg_type, message.content, **options)
        except Exception:  # jupyter_client raises several kinds for text that is not Unicode
            content = sendable(message.content)
            self.wire.send(self.iopub_socket, message.msg_type, content, **options)

    def is_full(self) -> bool:
        """Whether many published messages have not been sent yet, because a reader is slow."""
        thread = getattr(self.iopub_socket, "io_thread", None)
        return len(getattr(thread, "_events", ())) > UNSENT_MESSAGES

    async def on_main_loop(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Await work that belongs to the main loop, from whichever loop this is called on.

        Requests on the control channel, and subshells, have threads and loops of their own.
        """
        if self.main_loop is None or asyncio.get_running_loop() is self.main_loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.main_loop))
