"""The schedule alone, without any loop: the moment of the next request after whatever happened."""

from __future__ import annotations

import math

import pytest
from fake_time import FakeApi

from ivy_kernel.errors import CredentialsError, NoAnswerError, RateLimitedError
from ivy_kernel.status.schedule import PollIntervals, StatusSchedule

NOW = 1000.0
INTERVALS = PollIntervals()


@pytest.fixture
def schedule() -> StatusSchedule:
    """A schedule with the normal intervals and no luck in its jitter."""
    return StatusSchedule(INTERVALS, lambda: 1.0)


def answer(schedule: StatusSchedule, api: FakeApi, now: float) -> float:
    """A request that is answered at once; the seconds until the next."""
    api.time.now = now
    schedule.began()
    delay = schedule.answered(api.status(), now)
    schedule.ended(now)
    return delay


def fail(schedule: StatusSchedule, error: Exception, now: float) -> float:
    """A request that fails at once; the seconds until the next."""
    schedule.began()
    schedule.failed(error, now)
    schedule.ended(now)
    return schedule.due(is_awaited=False) - now


def limited(retry_after_seconds: float | None) -> RateLimitedError:
    """A 429."""
    return RateLimitedError("Slow.", status_code=429, retry_after_seconds=retry_after_seconds)


def test_the_first_request_is_due_at_once(schedule: StatusSchedule) -> None:
    """Nothing has been asked, so nothing has to be waited for."""
    assert schedule.due(is_awaited=False) == -math.inf


def test_after_an_answer_it_is_the_states_interval(schedule: StatusSchedule, api: FakeApi) -> None:
    """What the intervals say of the state is the wait, and is told to the caller."""
    assert answer(schedule, api, NOW) == INTERVALS.active_seconds
    assert schedule.due(is_awaited=False) == NOW + INTERVALS.active_seconds


def test_who_waits_or_hurries_has_only_the_least_gap_to_wait(
    schedule: StatusSchedule, api: FakeApi
) -> None:
    """Both skip the interval, neither the gap; the request that goes out then ends the hurry."""
    answer(schedule, api, NOW)
    assert schedule.due(is_awaited=True) == NOW + INTERVALS.least_gap_seconds
    schedule.poll_soon()
    assert schedule.due(is_awaited=False) == NOW + INTERVALS.least_gap_seconds
    answer(schedule, api, NOW + 1)
    assert schedule.due(is_awaited=False) == NOW + 1 + INTERVALS.active_seconds


def test_poll_soon_during_a_request_outlives_it(schedule: StatusSchedule, api: FakeApi) -> None:
    """The answer that is under way may be from before."""
    schedule.began()
    schedule.poll_soon()
    schedule.answered(api.status(), NOW)
    schedule.ended(NOW)
    assert schedule.due(is_awaited=False) == NOW + INTERVALS.least_gap_seconds


def test_the_gap_is_counted_from_the_end_of_a_request(schedule: StatusSchedule) -> None:
    """A slow request is not followed by another at once."""
    schedule.began()
    schedule.ended(NOW + 20)
    assert schedule.due(is_awaited=True) == NOW + 20 + INTERVALS.least_gap_seconds


def test_poll_often_quickens_answers_for_a_while(schedule: StatusSchedule, api: FakeApi) -> None:
    """After something of our own it is asked for as if it were changing, then as usual."""
    schedule.poll_often(NOW)
    assert (
        answer(schedule, api, NOW + INTERVALS.after_change_seconds - 0.1)
        == INTERVALS.changing_seconds
    )
    assert answer(schedule, api, NOW + INTERVALS.after_change_seconds) == INTERVALS.active_seconds


def test_poll_often_does_not_quicken_errors(schedule: StatusSchedule) -> None:
    """A server in trouble is not asked more often because we have just done something."""
    schedule.poll_often(NOW)
    assert (
        fail(schedule, CredentialsError("No.", status_code=401), NOW)
        == INTERVALS.permanent_error_seconds
    )


def test_errors_in_a_row_double_the_wait_until_an_answer(
    schedule: StatusSchedule, api: FakeApi
) -> None:
    """Two, four, eight seconds; a good answer begins anew."""
    error = NoAnswerError("No answer.")
    assert [fail(schedule, error, NOW) for _ in range(3)] == [2, 4, 8]
    answer(schedule, api, NOW)
    assert fail(schedule, error, NOW) == 2


def test_nothing_cuts_a_retry_after_short(schedule: StatusSchedule, api: FakeApi) -> None:
    """Neither hurry nor waiting callers, and not an answer that comes by another way."""
    fail(schedule, limited(100), NOW)
    schedule.poll_soon()
    schedule.poll_often(NOW)
    schedule.answered(api.status(), NOW)
    assert schedule.due(is_awaited=True) == NOW + 100
    assert schedule.is_held_off(NOW + 99.9)
    assert not schedule.is_held_off(NOW + 100)


def test_a_shorter_hold_does_not_end_a_longer_one(schedule: StatusSchedule) -> None:
    """The latest moment that the server has named counts."""
    schedule.hold_off(100, NOW)
    schedule.hold_off(5, NOW)
    fail(schedule, limited(7), NOW)
    assert schedule.due(is_awaited=True) == NOW + 100


def test_an_absurd_hold_is_capped(schedule: StatusSchedule) -> None:
    """A week counts as a quarter of an hour, whichever request was told it."""
    schedule.hold_off(7 * 86400.0, NOW)
    assert schedule.due(is_awaited=True) == NOW + INTERVALS.longest_retry_after_seconds


@pytest.mark.parametrize("seconds", [0.0, -5.0, math.nan])
def test_a_senseless_hold_is_none(schedule: StatusSchedule, seconds: float) -> None:
    """Zero, negative and not a number hold nothing off."""
    schedule.hold_off(seconds, NOW)
    assert not schedule.is_held_off(NOW)
    assert schedule.due(is_awaited=False) == -math.inf


def test_a_rate_limit_without_a_time_is_no_hold(schedule: StatusSchedule) -> None:
    """It only makes the wait longer: who waits for an answer may still ask."""
    assert fail(schedule, limited(None), NOW) == INTERVALS.limited_backoff_seconds
    assert not schedule.is_held_off(NOW)
    assert schedule.due(is_awaited=True) == NOW + INTERVALS.least_gap_seconds
