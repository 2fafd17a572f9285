"""The monitor: how often it asks, what it tells whom, and how it ends."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from datetime import timedelta

import pytest
from fake_time import EPOCH, FakeApi, FakeTime

from ivy_kernel.errors import CredentialsError, NoAnswerError, NotSentError
from ivy_kernel.monitor import Monitor, close_monitors, monitor_for
from ivy_kernel.status import Pace, Reading, State


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
    told: list[list[Reading]] = []
    for _ in range(50):
        readings: list[Reading] = []
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
    readings: list[Reading] = []
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
    readings: list[Reading] = []
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
    readings: list[Reading] = []

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
    readings: list[Reading] = []
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


async def test_a_poke_asks_at_once(monitor: Monitor, api: FakeApi, time: FakeTime) -> None:
    """After our own create the next answer is not an interval away."""
    api.state = "none"
    states = []
    monitor.watch(lambda reading: states.append(reading.status and reading.status.state))
    await time.advance(10)
    api.state = "provisioning"
    monitor.poke()
    await time.settle()
    assert states == ["none", "provisioning"]
    assert api.times() == [0, 10]


async def test_after_a_poke_an_answer_from_before_is_soon_replaced(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """An API that says "none" for a moment after our create is asked again in a moment."""
    api.state = "none"
    monitor.watch(lambda reading: None)
    await time.advance(20)
    monitor.poke()
    await time.advance(4)
    assert api.times() == [0, 20, 21.5, 23]
    asked = len(api.asked_at)
    await time.advance(60)
    assert len(api.asked_at) - asked <= 6


async def test_a_poke_during_a_request_causes_another(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """A request that was under way may have been answered before, so it counts for nothing."""
    api.takes_seconds = 2
    monitor.watch(lambda reading: None)
    await time.advance(1)
    monitor.poke()
    await time.advance(2.5)
    assert api.times() == [0, 3]
    assert api.most_in_flight == 1


async def test_many_pokes_cause_no_burst(monitor: Monitor, api: FakeApi, time: FakeTime) -> None:
    """Fifty failing cells a second ask once a second."""
    monitor.watch(lambda reading: None)
    for _ in range(500):
        monitor.poke()
        await time.advance(0.02)
    assert len(api.asked_at) <= 11


async def test_a_poke_without_watchers_is_kept_for_the_next(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """It asks nothing now, but the next watcher does not get the old answer for long."""
    with monitor.watch(lambda reading: None):
        await time.advance(2)
    monitor.poke()
    await time.advance(2)
    assert len(api.asked_at) == 1
    monitor.watch(lambda reading: None)
    await time.settle()
    assert len(api.asked_at) == 2


async def test_only_one_request_is_under_way(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """A slow API is not asked again before it has answered, whatever is wanted meanwhile."""
    api.takes_seconds = 20
    api.state = "provisioning"
    for _ in range(5):
        monitor.watch(lambda reading: None)
    for _ in range(50):
        monitor.poke()
        await time.advance(1)
    assert api.most_in_flight == 1
    assert api.times() == [0, 21, 42]


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


async def test_an_accepted_status_is_told_and_sets_the_pace(
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


async def test_a_callback_that_raises_does_not_stop_the_others(
    monitor: Monitor, api: FakeApi, time: FakeTime, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, the others hear, and polling goes on."""

    def broken(reading: Reading) -> None:
        raise ValueError("a bug in a panel")

    readings: list[Reading] = []
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

    def close_the_second(reading: Reading) -> None:
        told.append("first")
        second.close()

    first = monitor.watch(close_the_second)
    second = monitor.watch(lambda reading: told.append("second"))
    await time.advance(1)
    assert told == ["first"]
    first.close()


async def test_readings_can_be_iterated_until_the_end(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """The iterator gives what a watcher is told, and ends with the monitor."""

    async def follow() -> list[str]:
        return [reading.to_json(time.now)["state"] async for reading in monitor.readings()]

    following = asyncio.ensure_future(follow())
    await time.advance(1)
    api.state = "hibernated"
    await time.advance(20)
    await monitor.aclose()
    assert await asyncio.wait_for(following, 5) == ["active", "hibernated"]


async def test_leaving_the_iteration_ends_the_polling(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """A broken-off loop is no watcher any more."""
    stream = monitor.readings()
    waiting = asyncio.ensure_future(anext(stream))
    await time.advance(1)
    assert waiting.done()
    await stream.aclose()
    await time.advance(200)
    assert len(api.asked_at) == 1


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


async def test_a_closed_monitor_is_silent_and_frees_who_waits(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """Closing cancels the request, releases refreshes with what is known, refuses newcomers."""
    api.takes_seconds = 5
    told: list[Reading] = []
    monitor.watch(told.append)
    first = asyncio.ensure_future(monitor.refresh())
    await time.advance(1)
    second = asyncio.ensure_future(monitor.refresh())
    await time.settle()
    await monitor.aclose()
    await monitor.aclose()
    for waiting in (first, second):
        assert (await asyncio.wait_for(waiting, 5)).status is None
    await time.advance(100)
    assert (api.in_flight, len(api.asked_at), told) == (0, 1, [])
    with pytest.raises(RuntimeError, match="closed"):
        monitor.watch(told.append)
    with pytest.raises(RuntimeError, match="closed"):
        await monitor.refresh()
    monitor.poke()
    monitor.accept(api.status())
    assert told == []


async def test_the_plain_methods_may_be_called_from_another_thread(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """A magic that blocks its own thread can watch, poke and close; callbacks run on the loop."""
    threads: set[int] = set()

    def in_thread() -> None:
        watch = monitor.watch(lambda reading: threads.add(threading.get_ident()))
        monitor.poke()
        watches.append(watch)

    watches: list[object] = []
    await asyncio.to_thread(in_thread)
    await time.settle()
    assert len(api.asked_at) == 1
    assert threads == {threading.get_ident()}
    await asyncio.to_thread(watches[0].close)  # type: ignore[attr-defined]  # a Watch
    await time.advance(100)
    assert len(api.asked_at) == 1


async def test_a_refresh_may_come_from_another_loop(monitor: Monitor, api: FakeApi) -> None:
    """Another thread with its own loop gets the answer that this loop fetched."""
    reading = await asyncio.to_thread(lambda: asyncio.run(monitor.refresh()))
    assert reading.status is not None
    assert len(api.asked_at) == 1


async def test_all_in_a_process_share_one_monitor_for_a_sandbox(
    api: FakeApi, time: FakeTime
) -> None:
    """The same key gives the same monitor until it is closed; another key gives another."""

    def make() -> Monitor:
        return Monitor(api.fetch, clock=time.clock, sleep=time.sleep)

    one = monitor_for(("https://example.org", "chat-1"), make)
    assert monitor_for(("https://example.org", "chat-1"), make) is one
    other = monitor_for(("https://example.org", "chat-2"), make)
    assert other is not one
    await one.aclose()
    again = monitor_for(("https://example.org", "chat-1"), make)
    assert again is not one
    await close_monitors()
    assert (again.closed, other.closed) == (True, True)


def test_a_monitor_of_a_loop_that_has_ended_is_replaced() -> None:
    """A process that runs one loop after another gets a living monitor each time."""

    async def get() -> Monitor:
        async def fetch() -> object:
            raise CredentialsError("The key is not accepted.", status_code=401)

        return monitor_for("a sandbox", lambda: Monitor(fetch))  # type: ignore[arg-type]  # never answers

    async def get_and_close() -> Monitor:
        monitor = await get()
        await close_monitors()
        return monitor

    first = asyncio.run(get())
    assert first.closed
    first.poke()
    second = asyncio.run(get_and_close())
    assert second is not first


async def test_in_real_time_fifty_watchers_share_the_requests(api: FakeApi) -> None:
    """With the real clock and the real sleep: one request an interval, and all hear the news."""
    pace = Pace(changing_seconds=0.02, least_gap_seconds=0.01)
    monitor = Monitor(api.fetch, pace=pace)
    api.state = "provisioning"
    told: list[str] = []
    ready = asyncio.Event()

    def tell(reading: Reading) -> None:
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
