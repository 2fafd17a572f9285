"""The monitor: how often it asks."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from fake_time import EPOCH, FakeApi, FakeTime

from ivy_kernel.status.model import State, StatusReading
from ivy_kernel.status.monitor import Monitor
from ivy_kernel.status.schedule import PollIntervals


@pytest.mark.parametrize(
    ("state", "interval"),
    [
        ("provisioning", 1.5),
        ("restoring", 1.5),
        ("hibernating", 1.5),
        ("active", 15),
        ("unknown", 15),
        ("none", 60),
        ("hibernated", 60),
        ("archived", 60),
        ("failed", 60),
        ("expired", 60),
    ],
)
async def test_each_state_is_asked_for_at_its_own_interval(
    monitor: Monitor, api: FakeApi, time: FakeTime, state: State, interval: float
) -> None:
    """Often while something changes, seldom when nothing will."""
    api.state = state
    monitor.watch(lambda reading: None)
    await time.advance(4 * interval)
    assert api.times() == [0, interval, 2 * interval, 3 * interval, 4 * interval]


async def test_fifty_watchers_cause_one_request_an_interval(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """However many watch, and whenever they come, the API is asked as for one."""
    told: list[list[StatusReading]] = []
    for _ in range(50):
        readings: list[StatusReading] = []
        told.append(readings)
        monitor.watch(readings.append)
        await time.advance(0.5)
    await time.advance(35)
    assert api.times() == [0, 15, 30, 45, 60]
    assert [len(readings) for readings in told] == [1] * 50


async def test_watchers_that_come_and_go_cause_no_burst(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """Opening and closing a panel a hundred times asks no more than leaving it open."""
    for _ in range(100):
        with monitor.watch(lambda reading: None):
            await time.advance(0.1)
    assert api.times() == [0]


async def test_nobody_watching_means_nothing_is_asked(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """Before the first watcher and after the last, the API has peace."""
    await time.advance(100)
    assert api.asked_at == []
    watch = monitor.watch(lambda reading: None)
    await time.advance(20)
    watch.close()
    watch.close()
    asked = len(api.asked_at)
    await time.advance(1000)
    assert (asked, len(api.asked_at)) == (2, 2)


@pytest.mark.parametrize(("field", "interval_after"), [("expires_at", 60), ("hibernate_at", 15)])
async def test_a_deadline_that_is_near_is_watched_closely(
    monitor: Monitor, api: FakeApi, time: FakeTime, field: str, interval_after: float
) -> None:
    """From shortly before a deadline until it has settled, more often; then by the state."""
    api.fields = {field: EPOCH + timedelta(seconds=time.now + 40)}
    monitor.watch(lambda reading: None)
    await time.advance(75)
    assert api.times() == [0, 15, *range(25, 71, 3)]
    asked = len(api.asked_at)
    await time.advance(120)
    assert len(api.asked_at) - asked == 120 // interval_after


async def test_a_suspended_machine_asks_again_on_waking(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """A lid that was shut for an hour: the state is asked for within seconds, not an interval."""
    api.state = "none"
    monitor.watch(lambda reading: None)
    await time.advance(2)
    await time.suspend(20)
    await time.advance(5)
    assert len(api.asked_at) == 2


async def test_an_answer_that_was_slept_through_is_asked_for_again(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """A request during which the machine slept tells the server's clock badly: ask once more."""
    api.takes_seconds = 1
    monitor.watch(lambda reading: None)
    await time.advance(0.5)
    await time.suspend(3600)
    await time.advance(3)
    assert len(api.asked_at) == 2
    assert monitor.reading.status is not None
    assert monitor.reading.status.uncertainty_seconds == 0.5


async def test_in_real_time_fifty_watchers_share_the_requests(api: FakeApi) -> None:
    """With the real clock and the real sleep: one request an interval, and all hear the news."""
    intervals = PollIntervals(changing_seconds=0.02, least_gap_seconds=0.01)
    monitor = Monitor(api.fetch, intervals=intervals)
    api.state = "provisioning"
    told: list[str] = []
    ready = asyncio.Event()

    def tell(reading: StatusReading) -> None:
        told.append(reading.status.state if reading.status else "")
        if told[-1] == "active":
            ready.set()

    def become_active_at_the_fifth() -> None:
        if len(api.asked_at) == 5:
            api.state = "active"

    api.before_answer = become_active_at_the_fifth
    for _ in range(50):
        monitor.watch(tell)
    await asyncio.wait_for(ready.wait(), 20)
    assert told == ["provisioning"] * 50 + ["active"] * 50
    assert len(api.asked_at) == 5
    await monitor.aclose()
