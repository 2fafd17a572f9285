"""The monitor when the API does not answer, refuses us, or asks for patience."""

from __future__ import annotations

import asyncio
import json

import pytest
from fake_time import FakeApi, FakeTime
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ivy_kernel.errors import (
    AnswerError,
    BadRequestError,
    CredentialsError,
    ForbiddenError,
    IvyError,
    MissingSettingError,
    NoAnswerError,
    NotFoundError,
    NotReadyError,
    NotSentError,
    RateLimitedError,
)
from ivy_kernel.status.model import StatusReading
from ivy_kernel.status.monitor import Monitor
from ivy_kernel.status.schedule import PollIntervals


def refused(message: str = "IVY_API_KEY is not accepted; set another.") -> CredentialsError:
    """A 401."""
    return CredentialsError(message, status_code=401)


async def test_the_last_good_status_is_kept_and_called_stale(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """During an outage the old status stays, with the error's sentence as the reason."""
    readings: list[StatusReading] = []
    monitor.watch(readings.append)
    await time.advance(1)
    api.error = NotSentError("The platform at https://x cannot be reached;\n check the network.")
    await time.advance(60)
    assert len(readings) == 2
    shown = readings[1].to_json(time.now)
    assert (shown["state"], shown["stale"]) == ("active", True)
    assert shown["stale_reason"] == (
        "The platform at https://x cannot be reached; check the network."
    )
    assert shown["age_ms"] == 61_000
    api.error = None
    await time.advance(60)
    assert len(readings) == 3
    fresh = readings[2].to_json(time.now)
    assert (fresh["stale"], fresh["stale_reason"]) == (False, None)


async def test_an_error_before_the_first_status_is_told(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """Without any status the state is unknown, and the reason is there."""
    assert monitor.reading.to_json(time.now)["stale_reason"] == (
        "The status of the sandbox has not been read yet."
    )
    api.error = MissingSettingError("IVY_CHAT_ID is not set.", setting="chat_id")
    readings: list[StatusReading] = []
    monitor.watch(readings.append)
    await time.advance(1)
    shown = readings[0].to_json(time.now)
    assert (shown["state"], shown["stale"], shown["age_ms"]) == ("unknown", True, None)
    assert shown["stale_reason"] == "IVY_CHAT_ID is not set."
    assert set(shown) == set(api.status().to_json(time.now))
    json.dumps(shown)


async def test_an_old_reading_that_nobody_renewed_is_stale(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """Who looks long after the last watcher has gone is told how old the status is."""
    await monitor.refresh()
    assert monitor.reading.stale_reason(time.now + 30) is None
    assert monitor.reading.stale_reason(time.now + 180) == (
        "The status is 3 minutes old; no newer answer has come since."
    )


async def test_an_error_that_is_not_ours_is_told_without_its_text(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """A bug below does not end the polling, and its text, which may quote a key, is not shown."""
    api.error = ValueError("Authorization: Bearer ivy_secret")
    monitor.watch(lambda reading: None)
    await time.advance(1)
    # The frames of the request hold what it was sent with; they must not be kept for hours.
    assert monitor.reading.error is api.error
    assert api.error.__traceback__ is None
    reason = monitor.reading.stale_reason(time.now)
    assert reason == "The status of the sandbox could not be read (ValueError)."
    api.error = None
    await time.advance(10)
    assert monitor.reading.stale_reason(time.now) is None


async def test_errors_in_a_row_are_asked_for_less_and_less(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """The wait doubles up to its cap, and starts anew after a good answer."""
    api.error = NoAnswerError("No answer.")
    monitor.watch(lambda reading: None)
    await time.advance(250)
    assert api.times() == [0, 2, 6, 14, 30, 62, 122, 182, 242]
    api.error = None
    await time.advance(60)
    api.error = AnswerError("No JSON.")
    asked = len(api.asked_at)
    await time.advance(21)
    assert len(api.asked_at) - asked >= 3


@pytest.mark.parametrize(
    "error",
    [
        refused(),
        ForbiddenError("Not yours.", status_code=403),
        NotFoundError("No such session.", status_code=404),
        BadRequestError("No session id.", status_code=400),
        MissingSettingError("No key.", setting="api_key"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_refusal_is_asked_for_slowly(
    monitor: Monitor, api: FakeApi, time: FakeTime, error: IvyError
) -> None:
    """What only a changed setting cures is not asked for again and again."""
    monitor.watch(lambda reading: None)
    await time.advance(1)
    api.error = error
    await time.advance(15 + 180)
    assert api.times() == [0, 15, 75, 135, 195]


async def test_a_changed_key_is_tried_within_seconds(api: FakeApi, time: FakeTime) -> None:
    """After a 401 a corrected key recovers by itself, without restart and without an action."""
    key = ["wrong"]
    monitor = Monitor(
        api.fetch,
        key_fingerprint=lambda: hash(key[0]),
        clock=time.clock,
        sleep=time.sleep,
    )
    api.error = refused()
    reasons: list[str | None] = []
    monitor.watch(lambda reading: reasons.append(reading.stale_reason(time.now)))
    await time.advance(20)
    assert len(api.asked_at) == 1
    key[0], api.error = "right", None
    await time.advance(5.1)
    assert reasons == ["IVY_API_KEY is not accepted; set another.", None]
    await monitor.aclose()


async def test_a_key_changed_during_a_refused_request_is_tried_too(
    api: FakeApi, time: FakeTime
) -> None:
    """The 401 was for the key that was sent, not for the one that is set when it arrives."""
    key = ["wrong"]
    monitor = Monitor(
        api.fetch, key_fingerprint=lambda: hash(key[0]), clock=time.clock, sleep=time.sleep
    )
    api.error, api.takes_seconds = refused(), 2
    monitor.watch(lambda reading: None)
    await time.advance(1)
    key[0] = "right"
    await time.advance(7)
    assert len(api.asked_at) == 2
    await monitor.aclose()


async def test_a_key_that_cannot_be_read_does_not_end_the_polling(
    api: FakeApi, time: FakeTime, caplog: pytest.LogCaptureFixture
) -> None:
    """A broken key file counts as unchanged; what it said is not logged."""

    def unreadable() -> object:
        raise OSError("ivy_secret")

    monitor = Monitor(api.fetch, key_fingerprint=unreadable, clock=time.clock, sleep=time.sleep)
    api.error = refused()
    monitor.watch(lambda reading: None)
    await time.advance(130)
    assert len(api.asked_at) == 3
    assert "ivy_secret" not in caplog.text
    await monitor.aclose()


async def test_refresh_soon_tries_a_new_key_at_once(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """Setting a key and pressing refresh does not wait for the slow interval."""
    api.error = refused()
    monitor.watch(lambda reading: None)
    await time.advance(5)
    api.error = None
    monitor.refresh_soon()
    await time.settle()
    assert monitor.reading.error is None


@pytest.mark.parametrize("kind", [RateLimitedError, NotReadyError])
async def test_retry_after_is_honoured_and_cannot_be_broken(
    monitor: Monitor, api: FakeApi, time: FakeTime, kind: type[RateLimitedError]
) -> None:
    """Nothing makes it ask before the server allows it: no refresh, soon or now, no watcher."""
    api.error = kind("Too many requests.", status_code=429, retry_after_seconds=100)
    monitor.watch(lambda reading: None)
    await time.settle()
    api.error = None
    for _ in range(99):
        monitor.refresh_soon()
        monitor.watch(lambda reading: None)
        reading = await asyncio.wait_for(monitor.refresh(), 5)
        assert isinstance(reading.error, kind)
        await time.advance(1)
    assert api.times() == [0]
    await time.advance(1)
    assert api.times() == [0, 100]


async def test_without_refresh_soon_retry_after_is_spread(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """Clients that were told the same come back up to a tenth later, never sooner."""
    api.error = RateLimitedError("Slow.", status_code=429, retry_after_seconds=100)
    monitor.watch(lambda reading: None)
    await time.advance(109)
    assert api.times() == [0]
    await time.advance(2)
    assert api.times() == [0, 110]


async def test_a_rate_limit_without_retry_after_waits_longer_than_an_error(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """429 alone is still a request for patience."""
    api.error = RateLimitedError("Slow.", status_code=429)
    monitor.watch(lambda reading: None)
    await time.advance(12)
    assert api.times() == [0, 5, 10]


async def test_an_absurd_retry_after_is_capped(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """A server that asks for a week is asked again after a quarter of an hour."""
    api.error = RateLimitedError("Slow.", status_code=429, retry_after_seconds=7 * 86400.0)
    monitor.watch(lambda reading: None)
    await time.advance(1000)
    assert api.times() == [0, 990]


@pytest.mark.parametrize("seconds", [0.0, -5.0, float("nan")])
async def test_a_senseless_retry_after_does_not_make_it_quicker(
    monitor: Monitor, api: FakeApi, time: FakeTime, seconds: float
) -> None:
    """Zero, negative and not a number leave the usual wait."""
    api.error = RateLimitedError("Slow.", status_code=429, retry_after_seconds=seconds)
    monitor.watch(lambda reading: None)
    await time.advance(12)
    assert api.times() == [0, 5, 10]


async def test_a_retry_after_of_another_request_holds_the_monitor_off(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """When a cell was told to wait, the status waits too: one budget."""
    monitor.watch(lambda reading: None)
    await time.advance(0.5)
    waiting = asyncio.ensure_future(monitor.refresh())
    await time.settle()
    monitor.hold_off(50)
    reading = await asyncio.wait_for(waiting, 5)
    assert reading.status is not None
    monitor.refresh_soon()
    await time.advance(49)
    assert api.times() == [0]
    await time.advance(2)
    assert api.times() == [0, 50.5]


async def test_a_refresh_behind_a_request_that_is_told_to_wait_is_released(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """Nobody hangs for the minutes that a server asked for."""
    api.takes_seconds = 1
    api.error = RateLimitedError("Slow.", status_code=429, retry_after_seconds=600)
    monitor.watch(lambda reading: None)
    await time.advance(0.5)
    waiting = asyncio.ensure_future(monitor.refresh())
    await time.advance(1)
    assert waiting.done()
    assert isinstance(waiting.result().error, RateLimitedError)


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_an_interval_without_a_wait_is_refused(value: float) -> None:
    """An interval that would ask without end, or never, cannot be made."""
    with pytest.raises(ValueError, match="least_gap_seconds must be a positive number"):
        PollIntervals(least_gap_seconds=value)


answers = st.sampled_from(
    [
        "active",
        "provisioning",
        "hibernated",
        "none",
        NoAnswerError("No answer."),
        AnswerError("No JSON."),
        refused(),
        RateLimitedError("Slow.", status_code=429),
        RateLimitedError("Slow.", status_code=429, retry_after_seconds=7),
        RateLimitedError("Slow.", status_code=429, retry_after_seconds=0),
        ValueError("a bug"),
    ]
)
acts = st.sampled_from(["wait", "refresh_soon", "watch", "unwatch", "refresh", "suspend", "accept"])


@settings(
    deadline=None,
    database=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    steps=st.lists(
        st.tuples(answers, acts, st.sampled_from([0.0, 0.3, 1.0, 4.0, 20.0])), max_size=25
    ),
    takes_seconds=st.sampled_from([0.0, 0.2, 3.0, 40.0]),
)
def test_no_sequence_of_events_causes_a_burst(
    steps: list[tuple[object, str, float]], takes_seconds: float
) -> None:
    """Whatever is answered and done: one request at a time, a second apart, none while held off."""

    async def run() -> None:
        time = FakeTime()
        api = FakeApi(time)
        api.takes_seconds = takes_seconds
        monitor = Monitor(api.fetch, clock=time.clock, sleep=time.sleep)
        held_until = 0.0

        def note_hold() -> None:
            nonlocal held_until
            assert api.asked_at[-1] >= held_until
            if isinstance(api.error, RateLimitedError) and api.error.retry_after_seconds:
                held_until = time.now + api.error.retry_after_seconds

        api.before_answer = note_hold
        watches = [monitor.watch(lambda reading: None)]
        refreshes = []
        for answer, act, seconds in steps:
            api.error = answer if isinstance(answer, Exception) else None
            api.state = answer if isinstance(answer, str) else api.state  # type: ignore[assignment]  # a State
            if act == "refresh_soon":
                monitor.refresh_soon()
            elif act == "watch":
                watches.append(monitor.watch(lambda reading: None))
            elif act == "unwatch" and watches:
                watches.pop().close()
            elif act == "refresh":
                refreshes.append(asyncio.ensure_future(monitor.refresh()))
            elif act == "accept":
                monitor.accept(api.status())
            elif act == "suspend":
                await time.suspend(100)
            await time.advance(seconds)
        await time.advance(200)
        assert all(refresh.done() for refresh in refreshes)
        assert api.most_in_flight <= 1
        gaps = [b - a for a, b in zip(api.asked_at, api.asked_at[1:], strict=False)]
        assert all(gap >= 1 - 1e-9 for gap in gaps)
        if watches:
            assert time.now - api.asked_at[-1] <= 110
        await monitor.aclose()

    asyncio.run(run())
