"""What is told about a status that may be old, and about errors."""

from __future__ import annotations

import pytest

from ivy_kernel.errors import IvyError, NotSentError, RateLimitedError
from ivy_kernel.status.clock import RequestTiming
from ivy_kernel.status.dialects import parse_ivy_status
from ivy_kernel.status.model import StatusReading, describe_error
from ivy_kernel.status.schedule import PollIntervals

STATUS = parse_ivy_status({"status": "active"}, RequestTiming(0.0, 0.0))


@pytest.mark.parametrize(
    ("age_seconds", "words"),
    [
        (11, "11 seconds"),
        (60, "1 minute"),
        (150, "2 minutes"),
        (3600, "1 hour"),
        (36_000, "10 hours"),
    ],
)
def test_the_age_of_a_stale_status_is_told_in_words(age_seconds: float, words: str) -> None:
    """One rounded number with its unit, in the singular where it is one."""
    reason = StatusReading(STATUS, stale_after_seconds=10).stale_reason(age_seconds)
    assert reason == f"The status is {words} old; no newer answer has come since."


def test_a_young_status_is_not_stale() -> None:
    """Up to the limit the status is the present one."""
    reading = StatusReading(STATUS, stale_after_seconds=10)
    assert reading.stale_reason(10) is None
    assert reading.to_json(10)["stale"] is False


def test_an_error_goes_before_the_age() -> None:
    """Why there is no newer answer says more than how old the last one is."""
    reading = StatusReading(STATUS, NotSentError("No network."), stale_after_seconds=10)
    assert reading.stale_reason(500) == "No network."


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (NotSentError("Two\n  lines."), "Two lines."),
        (IvyError(""), "The status of the sandbox could not be read (IvyError)."),
        (KeyError("ivy_secret"), "The status of the sandbox could not be read (KeyError)."),
    ],
)
def test_an_error_is_one_line(error: Exception, line: str) -> None:
    """Ours in their own words, others by their type alone."""
    assert describe_error(error) == line


def test_a_very_long_error_is_cut() -> None:
    """An error that quotes a page does not fill the panel."""
    assert len(describe_error(NotSentError("x" * 10_000))) == 2_000


@pytest.mark.parametrize("failures", [10, 1_000, 10**9])
@pytest.mark.parametrize(("luck", "delay"), [(0.0, 30), (0.5, 45), (1.0, 60)])
def test_many_failures_never_exceed_the_cap(failures: int, luck: float, delay: float) -> None:
    """However long an outage lasts, the wait is between half of the cap and the cap, by chance."""
    assert PollIntervals().after_error(NotSentError("x"), failures, lambda: luck) == delay


def test_no_error_is_asked_for_sooner_than_the_least_gap() -> None:
    """A backoff that begins low does not undercut the gap between two requests."""
    intervals = PollIntervals(least_gap_seconds=5, first_backoff_seconds=0.1)
    assert intervals.after_error(NotSentError("x"), 1, lambda: 0.0) == 5


@pytest.mark.parametrize("luck", [0.0, 0.5, 1.0])
def test_the_wait_is_never_shorter_than_retry_after(luck: float) -> None:
    """Jitter is only ever added to what the server asked for."""
    error = RateLimitedError("x", status_code=429, retry_after_seconds=40)
    assert 40 <= PollIntervals().after_error(error, 1, lambda: luck) <= 44
