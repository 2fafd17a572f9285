"""ipykernel's base class, made fit for a kernel that mostly waits for the sandbox.

It answers requests that need no sandbox while a cell runs, serves requests of every channel on one
loop, and takes an interrupt as a message instead of letting a signal end the process. It is the
same on ipykernel 6.29 and 7, which hand on the messages of the shell channel in different ways.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

import zmq
from ipykernel.kernelbase import Kernel

from ivy_kernel.models import sendable

if TYPE_CHECKING:
    from ivy_kernel.models import Json, Message, Outcome
    from ivy_kernel.session.output_journal import OutputJournal

Result = TypeVar("Result")

_SHELL_REQUEST: ContextVar[tuple[Any, Json]] = ContextVar("shell_request")
"""Client and message of the request that the current task handles. ipykernel 6 keeps one for the
whole process, and 7 in private members."""

SHELL_NUMBER: ContextVar[int | None] = ContextVar("shell_number", default=None)
"""The number of the message that is handled, of those that the shell channel has brought; ``None``
where they are not counted."""

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


FULL_MESSAGES = 100
"""While so many published messages wait for a client that reads, no more are published."""

WAITING_MESSAGES = 30_000
"""So many may wait for a client that reads nothing, such as one that asks for its reply first."""

SOCKET_MESSAGES = 100
SOCKET_BYTES = 1 << 16
ZMQ_SOCKET_MESSAGES = 1_000
"""What may wait in the socket: little, because what is there cannot be counted; ZMQ's own number
is for the sockets that do not publish."""

RETRY_SECONDS = 0.005
LATE_SECONDS = 20.0
"""A client that has read nothing for so long is not waited for any more: it may be stopped, or
wait for its reply. Not shorter: a slow client takes from its system's buffer for many seconds
before that takes more from us."""

SETTLED_MESSAGES = 1_000
"""A burst of fewer messages is read in time by any client."""

LONGEST_SETTLE_SECONDS = 60.0
SHORT_SETTLE_SECONDS = 3.0
READ_A_SECOND = 2_000
"""What lies between our socket and a client cannot be seen. nbclient reads on for 4 s after the
reply and drops the rest (https://github.com/nteract/papermill/issues/426), so that the reply of a
cell with many messages waits: by the speed of a client that has held us up, or else by this one."""


class PatientSender:
    """Sends what is published so that nothing is lost to a client that reads slowly.

    ZMQ drops what is published while 1,000 messages wait for a client. Here they wait in a queue,
    whose length holds up those who publish.

    Parameters
    ----------
    thread
        ipykernel's iopub thread, whose sending is replaced.
    """

    def __init__(self, thread: Any) -> None:
        self._thread = thread
        self._send: Callable[..., None] = thread._really_send
        self._waiting: deque[tuple[Any, dict[str, Any]]] = deque()
        self._moved_at = 0.0
        # The present burst, and the part of it in which the client held us up: that is its speed.
        self._burst_from = 0.0
        self._burst_messages = 0
        self._held_from: float | None = None
        self._held_messages = 0
        thread.socket.setsockopt(zmq.XPUB_NODROP, 1)
        thread._really_send = self._really_send

    @property
    def is_full(self) -> bool:
        """Whether a client that reads has many messages before it."""
        is_read = time.monotonic() - self._moved_at < LATE_SECONDS
        return is_read and len(self._waiting) > FULL_MESSAGES

    def take_settle_seconds(self) -> float:
        """Return how long a slow client needs for what has left us; the next burst begins now."""
        now = time.monotonic()
        messages = self._burst_messages
        held_from, held_messages = self._held_from, self._held_messages
        self._burst_messages, self._held_from = 0, None
        if messages < SETTLED_MESSAGES or now - self._moved_at > LATE_SECONDS:
            return 0.0
        if held_from is None or not held_messages:
            return min(SHORT_SETTLE_SECONDS, messages / READ_A_SECOND)
        # The system's buffers empty in leaps, the last of which the client has not read yet.
        read_a_second = 0.7 * held_messages / max(now - held_from, 0.1)
        unread = messages - read_a_second * (now - self._burst_from)
        return min(LONGEST_SETTLE_SECONDS, max(0.0, unread) / read_a_second)

    def _really_send(self, message: Any, **options: Any) -> None:
        """Called in the iopub thread for each message, and in any other once that has ended."""
        if not self._thread.thread.is_alive():
            self._send(message, **options)
            return
        self._waiting.append((message, options))
        if len(self._waiting) == 1:
            self._send_waiting()
        elif len(self._waiting) > WAITING_MESSAGES:
            # To whoever takes it: the others must not wait for a client that is stuck.
            self._thread.socket.setsockopt(zmq.XPUB_NODROP, 0)
            first, its_options = self._waiting.popleft()
            self._send(first, **its_options)
            self._thread.socket.setsockopt(zmq.XPUB_NODROP, 1)

    def _send_waiting(self) -> None:
        while self._waiting:
            now = time.monotonic()
            message, options = self._waiting[0]
            try:
                self._send(message, **{**options, "flags": zmq.NOBLOCK})
            except zmq.Again:
                if self._held_from is None:
                    self._held_from, self._held_messages = now, 0
                self._thread.io_loop.call_later(RETRY_SECONDS, self._send_waiting)
                return
            if not self._burst_messages:
                self._burst_from = now
            self._waiting.popleft()
            self._moved_at = now
            self._burst_messages += 1
            self._held_messages += 1


class ShownCells:
    """Has a journal keep what is shown of the user's cells, for a page that comes back.

    Only for notebooks of a Jupyter server, which takes it from there.

    Parameters
    ----------
    connection_file
        The kernel's connection file.

    Attributes
    ----------
    path
        The notebook, as its server named it to this process; empty for none.
    """

    def __init__(self, connection_file: str) -> None:
        self.path = os.environ.get("JPY_SESSION_NAME", "")
        self.newest: dict[str, str] = {}  # the newest run of each cell, of this process
        self._connection_file = connection_file
        self._runs: set[str] = set()
        self._journal: OutputJournal | None = None

    @property
    def journal(self) -> OutputJournal:
        """The journal, opened when it is first needed."""
        if self._journal is None:
            from ivy_kernel.session.kernel_registry import kernel_id_of
            from ivy_kernel.session.output_journal import OutputJournal

            self._journal = OutputJournal(kernel_id_of(self._connection_file), self.path)
        return self._journal

    def begin(self, code: str, cell_id: str, parent: Json, number: int) -> None:
        """Note that a cell of the user's begins."""
        # What a `%%local` cell shows goes past us, and an empty cell must not replace it.
        if self.path and cell_id and code.split(maxsplit=1)[:1] != ["%%local"]:
            run = self.newest[cell_id] = str(parent["header"].get("msg_id"))
            sha256 = hashlib.sha256(code.encode("utf-8", "surrogatepass")).hexdigest()
            self._runs.add(run)
            self.journal.begin(run, cell_id, sha256, number)

    def show(self, message: Message, parent: Json | None) -> None:
        """Keep a message that is shown; those of an earlier process's cells come another way."""
        run = str(parent["header"].get("msg_id")) if parent is not None else ""
        if self._journal is not None and run in self._runs:
            self._journal.message(run, message.msg_type, message.content, message.metadata)

    def end(self, parent: Json, outcome: Outcome, number: int) -> None:
        """Note that a cell has ended."""
        run = str(parent["header"].get("msg_id"))
        if self._journal is not None and run in self._runs:
            self._journal.end(run, outcome.fate, number, outcome.metadata)


@functools.cache
def shown_cells(connection_file: str) -> ShownCells:
    """Return the one of a kernel of this process, which its cells and its session share."""
    return ShownCells(connection_file)


class BaseKernel(Kernel):
    """A kernel without cells: it receives and sends messages.

    Attributes
    ----------
    main_loop
        The loop that cells run on; ``None`` before it runs.
    cell_parent
        The request of the cell that is running; ``None`` while none is.
    aborts_queue
        Whether an error reply that is about to be sent aborts the cells behind it.
    sender
        What sends the messages that are published; ``None`` outside of our application.
    shown
        Keeps what is shown of cells.
    received
        The number of messages that have come on the shell channel.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.main_loop: asyncio.AbstractEventLoop | None = None
        self.cell_parent: Json | None = None
        self.aborts_queue = True
        self._cell_request: tuple[Any, Json] = (b"", {})  # the last one, for threads
        self._control_request: tuple[Any, Json] = (b"", {})
        self._beside: set[asyncio.Task[None]] = set()
        self.sender: PatientSender | None = None
        self.received = 0  # written by the shell channel's thread alone
        self._taken = 0  # of these, messages that the main loop has begun to handle
        self.shown = shown_cells(getattr(self.parent, "connection_file", ""))

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
        thread = getattr(self, "shell_channel_thread", None)  # ipykernel 6 has none
        manager: Any = getattr(thread, "manager", None)
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

    async def shell_channel_thread_main(self, msg: Any) -> None:
        """Called by ipykernel 7 on the shell channel's thread, before `shell_main` on the main."""
        self.received += 1
        await super().shell_channel_thread_main(msg)

    async def shell_main(self, subshell_id: str | None, msg: Any) -> None:
        """Called by ipykernel 7 for each message on the shell channel.

        Both count the same messages in the same order. While a cell runs, requests that need no
        sandbox are answered beside it. Messages of widgets always are, because the sandbox takes
        its time for them, and cells may come meanwhile.
        """
        # One part alone is a message of ipykernel to itself.
        if getattr(self, "shell_channel_thread", None) is not None and len(msg) > 1:
            self._taken += 1
            SHELL_NUMBER.set(self._taken)
        if self._is_handled_beside(self._message_type(msg)):
            await self._handle_beside(self.dispatch_shell(msg, subshell_id=subshell_id))
        else:
            await super().shell_main(subshell_id, msg)

    def schedule_dispatch(self, dispatch: Any, *args: Any) -> None:
        """Called by ipykernel 6 for each message on the shell channel, as 7 calls `shell_main`."""
        is_message = dispatch == self.dispatch_shell
        if is_message and self._is_handled_beside(self._message_type(args[0])):
            task = asyncio.ensure_future(self._handle_beside(dispatch(*args)))
            self._beside.add(task)
            task.add_done_callback(self._beside.discard)
        else:
            super().schedule_dispatch(dispatch, *args)  # type: ignore[misc]  # 7 has none

    def _abort_queues(self, *arguments: Any) -> None:
        """Called by ipykernel behind each error reply whose request has ``stop_on_error``.

        Requests that wait behind the failed cell do not run then.
        """
        if not self.aborts_queue:
            return
        super()._abort_queues(*arguments)
        if hasattr(Kernel, "schedule_dispatch") and not self.stop_on_error_timeout:
            # ipykernel 6 would stop aborting one round of the loop later, and abort a cell that
            # was sent after the failed one's end.
            super().schedule_dispatch(self._stop_aborting)  # type: ignore[misc]  # 7 has none

    async def _stop_aborting(self) -> None:
        self._aborting = False

    async def _handle_beside(self, handling: Coroutine[Any, Any, None]) -> None:
        try:  # a task has a context of its own, so cells keep their parent
            await asyncio.create_task(handling)
        finally:
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

    def set_parent(self, ident: Any, parent: Json, channel: str = "shell") -> None:
        """Called by ipykernel with the client and the message of each request."""
        super().set_parent(ident, parent, channel)
        if channel == "control":
            self._control_request = (ident, parent)
            return
        _SHELL_REQUEST.set((ident, parent))
        if parent["header"]["msg_type"] == "execute_request":
            self._cell_request = (ident, parent)

    def get_parent(self, channel: str | None = None) -> Json:
        """Return the message of the request that is handled here, by task, or on a channel."""
        return self._request(channel)[1]

    def parent_ident_here(self) -> Any:
        """Identity of the client whose request `get_parent` returns, on this thread's channel."""
        return self._request(None)[0]

    def _request(self, channel: str | None) -> tuple[Any, Json]:
        if channel is None:
            is_control = threading.current_thread() is self.control_thread
            channel = "control" if is_control else "shell"
        if channel == "control":
            return self._control_request
        return _SHELL_REQUEST.get(self._cell_request)

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
        self.shown.show(message, parent)

    @property
    def is_full(self) -> bool:
        """Whether the front end takes no more messages for now, because many wait for it."""
        return self.sender is not None and self.sender.is_full

    async def settle(self) -> None:
        """Return when a front end that reads slowly should have read what was published."""
        seconds = self.sender.take_settle_seconds() if self.sender is not None else 0.0
        if seconds and "JPY_SESSION_NAME" not in os.environ:  # a Jupyter server reads at once
            await asyncio.sleep(seconds)

    async def on_main_loop(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Await work that belongs to the main loop, from whichever loop this is called on.

        Requests on the control channel, and subshells, have threads and loops of their own.
        """
        if self.main_loop is None or asyncio.get_running_loop() is self.main_loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.main_loop))
