"""The requests of the monitor: one at a time, none for ever."""

from __future__ import annotations

import asyncio
import gc

from fake_time import FakeApi, FakeTime

from ivy_kernel.errors import NoAnswerError, NotSentError
from ivy_kernel.status.monitor import Monitor


async def test_only_one_request_is_under_way(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """A slow API is not asked again before it has answered, whatever is wanted meanwhile."""
    api.takes_seconds = 20
    api.state = "provisioning"
    for _ in range(5):
        monitor.watch(lambda reading: None)
    for _ in range(50):
        monitor.refresh_soon()
        await time.advance(1)
    assert api.most_in_flight == 1
    assert api.times() == [0, 21, 42]


async def test_a_request_that_hangs_is_given_up(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """After its limit the request is cancelled, the reading says so, and it is asked again."""
    monitor.watch(lambda reading: None)
    await time.advance(1)
    api.takes_seconds = 10_000
    await time.advance(15 + 30)
    assert isinstance(monitor.reading.error, NoAnswerError)
    assert "within 30 seconds" in (monitor.reading.stale_reason(time.now) or "")
    assert api.in_flight == 0
    api.takes_seconds = 0
    await time.advance(5)
    assert monitor.reading.error is None


async def test_a_request_that_cannot_be_cancelled_is_not_joined_by_another(
    time: FakeTime,
) -> None:
    """Even against a request that swallows its cancellation there is only one at a time.

    What it raises in the end disturbs nobody.
    """
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: complaints.append(context)
    )
    under_way = 0

    async def stubborn() -> object:
        nonlocal under_way
        under_way += 1
        assert under_way == 1
        while released.is_set() is False:
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue
        under_way -= 1
        raise NotSentError("late")

    released = asyncio.Event()
    monitor = Monitor(stubborn, clock=time.clock, sleep=time.sleep)  # type: ignore[arg-type]  # never answers
    monitor.watch(lambda reading: None)
    await time.advance(300)
    assert under_way == 1
    assert isinstance(monitor.reading.error, NoAnswerError)
    released.set()
    await time.advance(100)  # the next request takes the place of the stubborn one
    gc.collect()
    assert complaints == []
    await monitor.aclose()


async def test_a_request_cancelled_from_elsewhere_does_not_end_the_polling(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """A client that is replaced in the middle of a request costs one answer, no more."""

    def cut_off() -> None:
        raise asyncio.CancelledError

    api.before_answer = cut_off
    monitor.watch(lambda reading: None)
    await time.settle()
    assert isinstance(monitor.reading.error, NoAnswerError)
    api.before_answer = lambda: None
    await time.advance(5)
    assert monitor.reading.error is None
