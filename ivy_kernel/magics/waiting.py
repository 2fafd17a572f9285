"""Lets a cell of IPython wait for work in the sandbox: outputs, input and Ctrl-C included."""

from __future__ import annotations

import asyncio
import getpass
import os
import queue
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar

from ivy_kernel.magics.output import NativeOutput
from ivy_kernel.models import Message

Item = TypeVar("Item")
Result = TypeVar("Result")
ItemOut = TypeVar("ItemOut", covariant=True)
ResultOut = TypeVar("ResultOut", covariant=True)

CELL_MAGIC = "get_ipython().run_cell_magic('ivy'"
LINE_MAGIC = "get_ipython().run_line_magic('ivy'"

SLICE_SECONDS = 0.1
"""Polling interval on platforms where a signal does not interrupt a wait."""

GIVEN_UP = (
    "Interrupted twice: nobody waits for it any more. Whether it has stopped in the sandbox is not "
    "known."
)


def wait_in_cell(
    shell: Any,
    work: CellWork[Message | InputRequest, Result],
    *,
    thread: LoopThread,
    is_remote: bool,
) -> tuple[Result, NativeOutput]:
    """Run work on the loop thread, and show what it posts as outputs of the present cell.

    Parameters
    ----------
    shell
        IPython's shell.
    work
        The work.
    thread
        The thread it runs in.
    is_remote
        Whether its messages come from the sandbox.
    """
    output = NativeOutput(shell, is_alone=_is_alone(shell), is_remote=is_remote)

    def show(item: Message | InputRequest) -> None:
        if isinstance(item, InputRequest):
            output.end()  # or the prompt would stand in a line of progress
            with call.ctrl_c_raises():
                try:
                    read = getpass.getpass if item.is_secret else input
                    item.reply(read(item.prompt))
                except KeyboardInterrupt as exc:
                    item.reply(exc)
                    call.interrupt()
                except Exception as exc:  # no front end, or one that takes no input
                    item.reply(exc)
        else:
            output.show(item)

    call: BlockingCall[Message | InputRequest, Result] = BlockingCall(
        work, show=show, thread=thread
    )
    try:
        return call.run(), output
    finally:
        output.end()


def _is_alone(shell: Any) -> bool:
    """Whether the magic is all that the present cell holds."""
    # IPython keeps a cell's code as transformed, where a magic is a call.
    inputs = shell.user_ns.get("In") or [""]
    code = str(inputs[-1]).strip()
    return code.startswith(CELL_MAGIC) or (code.startswith(LINE_MAGIC) and "\n" not in code)


# Input by the user, asked for on the loop thread -------------------------------------------------
@dataclass(frozen=True, slots=True)
class InputRequest:
    """A request for a line of text from the user.

    Parameters
    ----------
    prompt
        The text before the input.
    is_secret
        Whether the input must not be seen.
    reply
        Takes the text that was typed, or the exception that prevented it.
    """

    prompt: str
    is_secret: bool
    reply: Callable[[str | BaseException], None]


Post = Callable[[Message | InputRequest], None]
"""Hands an item over to the waiting cell; may be called from any thread."""


async def ask_user(prompt: str, post: Post, *, is_secret: bool = False) -> str:
    """Ask the user, on behalf of work on the loop thread.

    Raises
    ------
    CancelledError
        The user interrupted the input. (A task that raised `KeyboardInterrupt` would end the
        event loop.)
    Exception
        There is no way to ask the user here.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[str | BaseException] = loop.create_future()

    def settle(value: str | BaseException) -> None:
        if not future.done():  # the asking task may have been cancelled
            future.set_result(value)

    def reply(value: str | BaseException) -> None:
        loop.call_soon_threadsafe(settle, value)

    post(InputRequest(prompt, is_secret, reply))
    value = await future
    if isinstance(value, KeyboardInterrupt):
        raise asyncio.CancelledError
    if isinstance(value, BaseException):
        raise value
    return value


# Waiting in the calling thread -------------------------------------------------------------------
class CellWork(Protocol[ItemOut, ResultOut]):
    """Work on the loop thread that a cell waits for."""

    async def run(self, post: Callable[[ItemOut], None]) -> ResultOut:
        """Do the work; ``post`` takes the items to show, from any thread."""

    async def stop(self) -> None:
        """Called for a Ctrl-C: asks `run` to end, which may take a while."""


class _End:
    """Sentinel after the last item."""


class BlockingCall(Generic[Item, Result]):
    """Waits in the calling thread for work on the loop thread, and shows what it posts.

    The first Ctrl-C asks the work to stop and goes on waiting, so that its last items are shown;
    the second gives up.

    Parameters
    ----------
    work
        The work.
    show
        Shows one item, in the calling thread.
    thread
        The thread that the work runs in.
    """

    def __init__(
        self,
        work: CellWork[Item, Result],
        *,
        show: Callable[[Item], None],
        thread: LoopThread,
    ) -> None:
        self._work = work
        self._show = show
        self._thread = thread
        self._items: queue.SimpleQueue[Item | _End] = queue.SimpleQueue()
        self._future: Future[Result] | None = None
        self._interrupts = 0
        self._stop_requested = False
        self._handler_before: Any = None

    def run(self) -> Result:
        """Run the work, and return its result.

        Raises
        ------
        KeyboardInterrupt
            After a second Ctrl-C.
        """
        with self._ctrl_c_counted():
            future = self._thread.submit(self._work.run(self._items.put))
            future.add_done_callback(lambda _: self._items.put(_End()))
            try:
                self._future = future
                self._act_on_interrupts()  # those that came before there was a future to stop
                while not isinstance(item := self._next(), _End):
                    self._show(item)
            except BaseException:  # given up, or an item could not be shown
                if not future.done():
                    self._request_stop()
                    future.cancel()
                raise
        return future.result()

    def _next(self) -> Item | _End:
        while True:  # in slices, so that a signal's handler runs where it does not end the wait
            try:
                return self._items.get(timeout=SLICE_SECONDS)
            except queue.Empty:
                continue

    def _act_on_interrupts(self) -> None:
        if self._interrupts > 1:
            raise KeyboardInterrupt(GIVEN_UP)
        if self._interrupts and not self._stop_requested:
            self._request_stop()

    def _request_stop(self) -> None:
        self._stop_requested = True
        stopping = self._thread.submit(self._work.stop())
        # Its error is fetched so that it is not logged: the work's own end says what happened.
        stopping.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._interrupts += 1
        if self._future is not None:  # else `run` acts on it, where an exception stops the work
            self._act_on_interrupts()

    @contextmanager
    def _ctrl_c_counted(self) -> Iterator[None]:
        """Handle SIGINT during the wait, where that is possible: in the main thread.

        The usual handler might raise its exception while an output is being shown, and half of it
        would be lost.
        """
        before = signal.getsignal(signal.SIGINT)
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or before in (None, signal.SIG_IGN):
            yield
            return
        self._handler_before = before
        signal.signal(signal.SIGINT, self._on_signal)
        try:
            yield
        finally:
            self._handler_before = None
            signal.signal(signal.SIGINT, before)

    @contextmanager
    def ctrl_c_raises(self) -> Iterator[None]:
        """Let Ctrl-C raise again; for ``show`` while it waits for the user's input."""
        if self._handler_before is None:
            yield
            return
        signal.signal(signal.SIGINT, self._handler_before)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, self._on_signal)

    def interrupt(self) -> None:
        """Ask the work to stop, as a Ctrl-C does; for ``show``, which has caught one itself."""
        self._interrupts += 1
        self._request_stop()


# The thread of the event loop --------------------------------------------------------------------
class LoopThread:
    """An event loop that runs in a daemon thread until `stop`.

    IPython's own loop runs the cell that waits, so the sandbox needs another one.
    """

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._process_id = os.getpid()
        self._thread = threading.Thread(target=self._run, name="ivy-loop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    @property
    def alive(self) -> bool:
        """Whether work can be given to it; a forked process has no such thread."""
        return self._process_id == os.getpid() and self._thread.is_alive()

    def submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Run a coroutine there, and return at once. May be called from any thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def stop(self, wait_seconds: float = 2.0) -> None:
        """Cancel all that runs, and end the thread."""
        if not self.alive:
            return
        ending = self.submit(_cancel_all())
        ending.add_done_callback(lambda _: self.loop.call_soon_threadsafe(self.loop.stop))
        self._thread.join(wait_seconds)
        if not self._thread.is_alive():
            self.loop.close()


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=1.0)


_shared: list[LoopThread] = []  # empty, or the one
_shared_lock = threading.Lock()


def loop_thread() -> LoopThread:
    """Return the process's own loop thread; starts it at first, and again after a fork."""
    with _shared_lock:
        if not _shared or not _shared[0].alive:
            _shared[:] = [LoopThread()]
        return _shared[0]
