"""Lets a cell of IPython wait for work in the sandbox: outputs, questions and Ctrl-C included."""

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
from typing import Any, Generic, TypeVar

from ivy_kernel.magics.output import NativeOutput
from ivy_kernel.models import Message

Result = TypeVar("Result")

CELL_MAGIC = "get_ipython().run_cell_magic('ivy'"
LINE_MAGIC = "get_ipython().run_line_magic('ivy'"


@dataclass(frozen=True, slots=True)
class Question:
    """Something that the user is asked.

    Parameters
    ----------
    prompt
        What is shown.
    is_secret
        Whether the answer must not be seen.
    answer
        Takes what was typed, or what kept the user from typing.
    """

    prompt: str
    is_secret: bool
    answer: Callable[[str | BaseException], None]


Post = Callable[[Message | Question], None]
"""Hands something over to the waiting cell; may be called from any thread."""


async def ask(prompt: str, post: Post, *, is_secret: bool = False) -> str:
    """Ask the user, on behalf of work on the loop thread.

    Raises
    ------
    CancelledError
        The user interrupted the question. (A task that raised `KeyboardInterrupt` would end the
        event loop.)
    Exception
        Nobody can be asked here.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[str | BaseException] = loop.create_future()

    def settle(value: str | BaseException) -> None:
        if not future.done():
            future.set_result(value)

    def answer(value: str | BaseException) -> None:
        loop.call_soon_threadsafe(settle, value)

    post(Question(prompt, is_secret, answer))
    value = await future
    if isinstance(value, KeyboardInterrupt):
        raise asyncio.CancelledError
    if isinstance(value, BaseException):
        raise value
    return value


def wait_in_cell(
    shell: Any,
    work: Callable[[Post], Coroutine[Any, Any, Result]],
    *,
    stop: Callable[[], Coroutine[Any, Any, None]],
    thread: LoopThread,
    is_remote: bool,
) -> tuple[Result, NativeOutput]:
    """Run work on the loop thread, and show in this cell what it posts.

    Parameters
    ----------
    shell
        IPython's shell.
    work
        The work.
    stop
        Asks the work to stop, when the user interrupts.
    thread
        Where it runs.
    is_remote
        Whether what it shows comes from the sandbox.
    """
    output = NativeOutput(shell, is_alone=_is_alone(shell), is_remote=is_remote)

    def show(item: Message | Question) -> None:
        if isinstance(item, Question):
            output.end()
            with call.ctrl_c_raises():
                try:
                    reply = getpass.getpass if item.is_secret else input
                    item.answer(reply(item.prompt))
                except KeyboardInterrupt as exc:
                    item.answer(exc)
                    call.interrupt()
                except Exception as exc:  # nobody can be asked here
                    item.answer(exc)
        else:
            output.show(item)

    call: BlockingCall[Message | Question, Result] = BlockingCall(
        work, show=show, interrupt=stop, thread=thread
    )
    try:
        return call.run(), output
    finally:
        output.end()


def _is_alone(shell: Any) -> bool:
    """Whether the magic is all that the present cell holds."""
    inputs = shell.user_ns.get("In") or [""]
    code = str(inputs[-1]).strip()
    return code.startswith(CELL_MAGIC) or (code.startswith(LINE_MAGIC) and "\n" not in code)


Item = TypeVar("Item")

SLICE_SECONDS = 0.1
"""Where signals do not end a wait, it is looked for them this often."""

GIVEN_UP = (
    "Interrupted twice: nobody waits for it any more. Whether it has stopped in the sandbox is not "
    "known."
)


class LoopThread:
    """An event loop that runs in a daemon thread until `stop`."""

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


_shared: list[LoopThread] = []
_shared_lock = threading.Lock()


def loop_thread() -> LoopThread:
    """The process's own loop thread, started when it is first asked for."""
    with _shared_lock:
        if not _shared or not _shared[0].alive:
            _shared[:] = [LoopThread()]
        return _shared[0]


class _End:
    """Comes after the last item."""


class BlockingCall(Generic[Item, Result]):
    """Waits in the calling thread for work on the loop thread, and shows what it posts.

    The first Ctrl-C asks the work to stop and goes on waiting, so that what it still has to say is
    shown; the second gives up.

    Parameters
    ----------
    work
        Makes the coroutine; its argument takes items, from any thread.
    show
        Shows one item, in the calling thread.
    interrupt
        Asks the work to stop; runs on the loop thread.
    thread
        Where the work runs.
    """

    def __init__(
        self,
        work: Callable[[Callable[[Item], None]], Coroutine[Any, Any, Result]],
        *,
        show: Callable[[Item], None],
        interrupt: Callable[[], Coroutine[Any, Any, None]],
        thread: LoopThread,
    ) -> None:
        self._work = work
        self._show = show
        self._interrupt = interrupt
        self._thread = thread
        self._items: queue.SimpleQueue[Item | _End] = queue.SimpleQueue()
        self._future: Future[Result] | None = None
        self._interrupts = 0
        self._was_asked = False
        self._handler_before: Any = None

    def run(self) -> Result:
        """The work's result.

        Raises
        ------
        KeyboardInterrupt
            After a second Ctrl-C.
        """
        with self._ctrl_c_noted():
            future = self._thread.submit(self._work(self._items.put))
            future.add_done_callback(lambda _: self._items.put(_End()))
            try:
                self._future = future
                self._take_up_interrupts()
                while not isinstance(item := self._next(), _End):
                    self._show(item)
            except BaseException:  # given up, or what it says cannot be shown
                if not future.done():
                    self._request_stop()
                    future.cancel()
                raise
        return future.result()

    def _next(self) -> Item | _End:
        while True:
            try:
                return self._items.get(timeout=SLICE_SECONDS)
            except queue.Empty:
                continue

    def _take_up_interrupts(self) -> None:
        if self._interrupts > 1:
            raise KeyboardInterrupt(GIVEN_UP)
        if self._interrupts and not self._was_asked:
            self._request_stop()

    def _request_stop(self) -> None:
        self._was_asked = True
        stopping = self._thread.submit(self._interrupt())
        stopping.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._interrupts += 1
        if self._future is not None:  # else `run` takes it up, once what it raises stops the work
            self._take_up_interrupts()

    @contextmanager
    def _ctrl_c_noted(self) -> Iterator[None]:
        """Take SIGINT for the time of the wait, where signals can be taken: in the main thread.

        An exception raised by the usual handler might hit while an output is being shown, and half
        of it would be lost.
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
        """For ``show`` while it asks the user something: Ctrl-C must end the question."""
        if self._handler_before is None:
            yield
            return
        signal.signal(signal.SIGINT, self._handler_before)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, self._on_signal)

    def interrupt(self) -> None:
        """Ask the work to stop, as a Ctrl-C does."""
        self._interrupts += 1
        self._request_stop()
