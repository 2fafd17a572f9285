"""The monitor: what it tells whom."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest
from fake_time import EPOCH, FakeApi, FakeTime

from ivy_kernel.errors import NotSentError
from ivy_kernel.status.model import StatusReading
from ivy_kernel.status.monitor import Monitor


async def test_a_watcher_that_comes_back_late_is_told_something_fresh(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """After a pause the old reading is given at once, and a new one is asked for at once."""
    monitor.watch(lambda reading: None).close()
    with monitor.watch(lambda reading: None):
        await time.advance(1)
    await time.advance(500)
    api.state = "hibernated"
    states = []
    monitor.watch(lambda reading: states.append(reading.status and reading.status.state))
    await time.settle()
    assert states == ["active", "hibernated"]
    assert len(api.asked_at) == 2


async def test_a_newcomer_is_told_why_there_is_no_status(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """While the API cannot be reached, a panel that opens hears so at once."""
    api.error = NotSentError("No network.")
    monitor.watch(lambda reading: None)
    await time.settle()
    errors: list[Exception | None] = []
    monitor.watch(lambda reading: errors.append(reading.error))
    await time.settle()
    assert errors == [api.error]


async def test_a_newcomer_is_not_told_the_same_twice(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """News in the moment of coming is told once."""
    await monitor.refresh()
    readings: list[StatusReading] = []
    monitor.watch(readings.append)
    await asyncio.sleep(0)
    readings.clear()
    monitor.watch(readings.append)
    api.state = "hibernating"
    monitor.accept(api.status())
    await asyncio.sleep(0)
    assert [reading.status and reading.status.state for reading in readings] == ["hibernating"] * 2


async def test_watchers_are_told_only_what_is_new(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """The same answer again is no news; a change is told once; the newest reading is kept."""
    api.fields = {"expires_at": EPOCH + timedelta(seconds=9000)}
    readings: list[StatusReading] = []
    monitor.watch(readings.append)
    await time.advance(150)
    assert len(readings) == 1
    assert monitor.reading.status is not None
    assert monitor.reading.status.received_monotonic == time.now
    api.fields = {"expires_at": EPOCH + timedelta(seconds=9100)}
    await time.advance(150)
    assert len(readings) == 2


async def test_an_eta_that_falls_as_expected_is_no_news(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """Watchers count down by themselves; only a new estimate is told."""
    api.state = "provisioning"
    start = time.now
    readings: list[StatusReading] = []

    def estimate(seconds: float) -> None:
        api.fields = {"eta_seconds": round(start + seconds - time.now)}

    api.before_answer = lambda: estimate(40)
    monitor.watch(readings.append)
    await time.advance(12)
    assert len(readings) == 1
    api.before_answer = lambda: estimate(70)
    await time.advance(12)
    assert len(readings) == 2


async def test_a_server_clock_that_steps_is_news(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """When the same deadline is suddenly nearer, whoever counts down must know."""
    api.fields = {"expires_at": EPOCH + timedelta(seconds=time.now + 5000)}
    readings: list[StatusReading] = []
    monitor.watch(readings.append)
    await time.advance(20)
    api.server_clock_ahead_seconds = 600
    await time.advance(20)
    assert len(readings) == 2
    left_ms = readings[1].to_json(time.now)["expires_in_ms"]
    assert left_ms == (5000 - 600 - 40) * 1000


async def test_an_expiry_between_two_answers_is_told(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """An active sandbox that has reached its expiry is told as expired soon after."""
    api.fields = {"expires_at": EPOCH + timedelta(seconds=time.now + 100)}
    states: list[str] = []
    monitor.watch(lambda reading: states.append(reading.to_json(time.now)["state"]))
    await time.advance(104)
    assert states == ["active", "expired"]


async def test_a_callback_that_raises_does_not_stop_the_others(
    monitor: Monitor, api: FakeApi, time: FakeTime, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, the others hear, and polling goes on."""

    def broken(reading: StatusReading) -> None:
        raise ValueError("a bug in a panel")

    readings: list[StatusReading] = []
    monitor.watch(broken)
    monitor.watch(readings.append)
    with caplog.at_level(logging.ERROR):
        await time.advance(16)
    assert len(readings) == 1
    assert len(api.asked_at) == 2
    assert "a bug in a panel" in caplog.text


async def test_a_watch_closed_by_another_callback_is_not_told(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """Closed means closed, in the middle of a round of news too."""
    told: list[str] = []

    def close_the_second(reading: StatusReading) -> None:
        told.append("first")
        second.close()

    first = monitor.watch(close_the_second)
    second = monitor.watch(lambda reading: told.append("second"))
    await time.advance(1)
    assert told == ["first"]
    first.close()
