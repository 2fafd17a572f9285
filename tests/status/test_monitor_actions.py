"""The monitor after an action of our own: ``refresh_soon``, or a status from elsewhere."""

from __future__ import annotations

from fake_time import FakeApi, FakeTime

from ivy_kernel.status.monitor import Monitor


async def test_refresh_soon_asks_at_once(monitor: Monitor, api: FakeApi, time: FakeTime) -> None:
    """After our own create the next answer is not an interval away."""
    api.state = "none"
    states = []
    monitor.watch(lambda reading: states.append(reading.status and reading.status.state))
    await time.advance(10)
    api.state = "provisioning"
    monitor.refresh_soon()
    await time.settle()
    assert states == ["none", "provisioning"]
    assert api.times() == [0, 10]


async def test_after_refresh_soon_an_answer_from_before_is_soon_replaced(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """An API that says "none" for a moment after our create is asked again in a moment."""
    api.state = "none"
    monitor.watch(lambda reading: None)
    await time.advance(20)
    monitor.refresh_soon()
    await time.advance(4)
    assert api.times() == [0, 20, 21.5, 23]
    asked = len(api.asked_at)
    await time.advance(60)
    assert len(api.asked_at) - asked <= 6


async def test_refresh_soon_during_a_request_causes_another(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """A request that was under way may have been answered before, so it counts for nothing."""
    api.takes_seconds = 2
    monitor.watch(lambda reading: None)
    await time.advance(1)
    monitor.refresh_soon()
    await time.advance(2.5)
    assert api.times() == [0, 3]
    assert api.most_in_flight == 1


async def test_many_calls_of_refresh_soon_cause_no_burst(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """Fifty failing cells a second ask once a second."""
    monitor.watch(lambda reading: None)
    for _ in range(500):
        monitor.refresh_soon()
        await time.advance(0.02)
    assert len(api.asked_at) <= 11


async def test_refresh_soon_without_watchers_is_kept_for_the_next(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """It asks nothing now, but the next watcher does not get the old answer for long."""
    with monitor.watch(lambda reading: None):
        await time.advance(2)
    monitor.refresh_soon()
    await time.advance(2)
    assert len(api.asked_at) == 1
    monitor.watch(lambda reading: None)
    await time.settle()
    assert len(api.asked_at) == 2


async def test_an_accepted_status_is_told_and_sets_the_interval(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """The answer to our own create is news at once, and polling quickens."""
    api.state = "none"
    states = []
    monitor.watch(lambda reading: states.append(reading.status and reading.status.state))
    await time.advance(10)
    api.state = "provisioning"
    monitor.accept(api.status())
    assert states == ["none", "provisioning"]
    await time.advance(4)
    assert api.times() == [0, 11.5, 13]


async def test_an_answer_from_before_an_accepted_status_does_not_replace_it(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """A status request that was under way during our create cannot take the sandbox back."""
    api.state = "none"
    old = api.status()
    await time.advance(1)
    api.state = "provisioning"
    monitor.accept(api.status())
    monitor.accept(old)
    assert monitor.reading.status is not None
    assert monitor.reading.status.state == "provisioning"
