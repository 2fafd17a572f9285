"""The monitor asked for a reading of now."""

from __future__ import annotations

import asyncio

from fake_time import FakeApi, FakeTime

from ivy_kernel.errors import NotSentError
from ivy_kernel.status.monitor import Monitor


async def test_a_refresh_needs_no_watcher(monitor: Monitor, api: FakeApi, time: FakeTime) -> None:
    """Who needs to know now gets an answer that was asked for after the call, and no poller."""
    reading = await monitor.refresh()
    assert reading.status is not None
    assert reading.stale_reason(time.now) is None
    await time.advance(500)
    assert len(api.asked_at) == 1


async def test_refreshes_at_the_same_time_share_a_request(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """Ten callers, one request."""
    waiting = [asyncio.ensure_future(monitor.refresh()) for _ in range(10)]
    await time.settle()
    readings = [future.result() for future in waiting]
    assert len(api.asked_at) == 1
    assert len({id(reading) for reading in readings}) == 1


async def test_a_refresh_during_a_request_waits_for_the_next(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """An answer that may be from before the call is not enough."""
    api.takes_seconds = 2
    first = asyncio.ensure_future(monitor.refresh())
    await time.advance(1)
    second = asyncio.ensure_future(monitor.refresh())
    await time.advance(1.5)
    assert first.done()
    assert not second.done()
    await time.advance(3)
    assert second.result().status is not None
    assert api.times() == [0, 3]


async def test_a_refresh_takes_a_young_reading_when_it_may(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """A good answer of two seconds ago will do for who allows five; after an error it will not."""
    await monitor.refresh()
    again = asyncio.ensure_future(monitor.refresh())
    await time.advance(2)
    assert again.done()
    assert len(api.asked_at) == 2
    await monitor.refresh(max_age_seconds=5)
    assert len(api.asked_at) == 2
    api.error = NotSentError("The network is down.")
    assert (await monitor.refresh()).error is api.error
    await time.advance(2)
    api.error = None
    assert (await monitor.refresh(max_age_seconds=60)).error is None
    assert len(api.asked_at) == 4


async def test_a_caller_that_gives_up_a_refresh_leaves_nothing(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """A cancelled refresh neither asks later nor disturbs the next."""
    await monitor.refresh()
    waiting = asyncio.ensure_future(monitor.refresh())
    await time.settle()
    waiting.cancel()
    await time.advance(100)
    assert len(api.asked_at) == 1
    assert (await monitor.refresh()).status is not None


async def test_a_refresh_may_come_from_another_loop(monitor: Monitor, api: FakeApi) -> None:
    """Another thread with its own loop gets the answer that this loop fetched."""
    reading = await asyncio.to_thread(lambda: asyncio.run(monitor.refresh()))
    assert reading.status is not None
    assert len(api.asked_at) == 1
