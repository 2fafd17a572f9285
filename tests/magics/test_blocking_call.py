"""Waiting for the loop thread: results, errors, Ctrl-C, and what is shown meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ivy_kernel.magics.waiting import BlockingCall, LoopThread, loop_thread

Post = Callable[[Any], None]


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    """A loop thread of this test's own."""
    started = LoopThread()
    yield started
    started.stop()
    assert not started.alive


async def never() -> None:
    """For work that is not interrupted."""
    raise AssertionError("nobody interrupted")


def call(
    work: Callable[[Post], Any],
    thread: LoopThread,
    *,
    show: Post = lambda item: None,
    stop: Callable[[], Any] = never,
) -> BlockingCall[Any, Any]:
    """A call with only what matters given."""
    return BlockingCall(SimpleNamespace(run=work, stop=stop), show=show, thread=thread)


def test_items_are_shown_in_order_in_the_calling_thread(thread: LoopThread) -> None:
    """Work runs elsewhere, what it posts is shown here, and its result comes back."""
    shown: list[tuple[int, int]] = []

    async def work(post: Post) -> str:
        for number in range(100):
            post(number)
            await asyncio.sleep(0)
        return threading.current_thread().name

    name = call(work, thread, show=lambda item: shown.append((item, threading.get_ident()))).run()

    assert name == "ivy-loop"
    assert shown == [(number, threading.get_ident()) for number in range(100)]


def test_an_error_of_the_work_is_raised(thread: LoopThread) -> None:
    """The caller gets the very exception."""

    async def work(post: Post) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        call(work, thread).run()


def test_the_first_ctrl_c_asks_to_stop_and_the_rest_is_shown(thread: LoopThread) -> None:
    """The work ends as it sees fit, and nothing that it still says is lost."""
    stopped = asyncio.Event()
    shown: list[str] = []

    async def work(post: Post) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        await stopped.wait()
        post("last words")
        return "ended"

    async def stop() -> None:
        stopped.set()

    before = signal.getsignal(signal.SIGINT)
    assert call(work, thread, show=shown.append, stop=stop).run() == "ended"
    assert shown == ["last words"]
    assert signal.getsignal(signal.SIGINT) is before


def test_the_second_ctrl_c_gives_up_and_cancels_the_work(thread: LoopThread) -> None:
    """Work that does not stop is waited for no longer."""
    cancelled = threading.Event()
    asked = asyncio.Event()

    async def work(post: Post) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asked.wait()
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    async def deaf() -> None:
        asked.set()

    with pytest.raises(KeyboardInterrupt, match="not known"):
        call(work, thread, stop=deaf).run()
    assert cancelled.wait(5)


class EagerThread:
    """A loop thread whose caller is interrupted, twice, before it knows of the work it has given.

    Parameters
    ----------
    thread
        Does the work.
    """

    def __init__(self, thread: LoopThread) -> None:
        self._thread = thread
        self.interrupts = 2

    def submit(self, work: Any) -> Any:
        """Begin the work, and interrupt before its future is returned."""
        future = self._thread.submit(work)
        while self.interrupts:
            self.interrupts -= 1
            os.kill(os.getpid(), signal.SIGINT)
        return future


def test_work_that_has_only_begun_is_cancelled_too(thread: LoopThread) -> None:
    """However soon the two Ctrl-C come, they do not leave the work going on behind the prompt."""
    began, cancelled = threading.Event(), threading.Event()

    async def work(post: Post) -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    with pytest.raises(KeyboardInterrupt, match="not known"):
        call(work, EagerThread(thread)).run()  # type: ignore[arg-type]
    assert cancelled.wait(10) or not began.is_set()


def test_what_cannot_be_shown_stops_the_work(thread: LoopThread) -> None:
    """An exception while showing is raised, and the work is asked to stop."""
    asked = threading.Event()

    async def work(post: Post) -> None:
        post(1)
        await asyncio.sleep(60)

    async def stop() -> None:
        asked.set()

    def broken(item: object) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        call(work, thread, show=broken, stop=stop).run()
    assert asked.wait(5)


def test_it_can_wait_in_any_thread(thread: LoopThread) -> None:
    """Where signals cannot be taken, it waits all the same."""
    results: list[int] = []

    async def work(post: Post) -> int:
        return 5

    other = threading.Thread(target=lambda: results.append(call(work, thread).run()))
    other.start()
    other.join(10)

    assert results == [5]


async def test_it_can_wait_while_a_loop_runs_here(thread: LoopThread) -> None:
    """A caller inside a running event loop does not enter that loop again."""

    async def work(post: Post) -> int:
        await asyncio.sleep(0.01)
        return 6

    assert call(work, thread).run() == 6


def test_a_question_is_ended_by_ctrl_c(thread: LoopThread) -> None:
    """While something is asked, Ctrl-C raises as usual; afterwards it is noted again."""
    seen: list[str] = []

    async def work(post: Post) -> str:
        post("question")
        await asyncio.sleep(0.2)
        return "done"

    def show(item: str) -> None:
        with one.ctrl_c_raises():
            try:
                os.kill(os.getpid(), signal.SIGINT)
                threading.Event().wait(5)
            except KeyboardInterrupt:
                seen.append("raised")

    one = call(work, thread, show=show)
    assert one.run() == "done"
    assert seen == ["raised"]


def test_the_shared_thread_is_made_anew_after_its_end() -> None:
    """One thread for all callers, replaced when it has ended."""
    first = loop_thread()
    assert loop_thread() is first
    first.stop()
    second = loop_thread()
    try:
        assert second is not first
        assert second.alive
    finally:
        second.stop()
