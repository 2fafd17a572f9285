"""The one backoff: growth, cap, jitter, and what a server asks for."""

from __future__ import annotations

import pytest

from ivy_kernel.errors import NoAnswerError, RateLimitedError
from ivy_kernel.status.schedule import Backoff

BACKOFF = Backoff(first_seconds=0.1, longest_seconds=4.0, longest_asked_seconds=60.0)


def limited(retry_after_seconds: float | None) -> RateLimitedError:
    """A 429 with this ``Retry-After``."""
    return RateLimitedError("x", status_code=429, retry_after_seconds=retry_after_seconds)


def test_pauses_grow_to_the_cap() -> None:
    """Doubled after each failure; no number of failures leads beyond the cap."""
    pauses = [BACKOFF.pause_seconds(failures, 1.0) for failures in range(1, 9)]
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 4.0, 4.0])
    assert BACKOFF.pause_seconds(10**9, 1.0) == 4.0


def test_the_jitter_takes_off_up_to_its_lowest_factor() -> None:
    """By default the upper half; a caller may choose a range round the pause itself."""
    assert BACKOFF.pause_seconds(1, 0.0) == pytest.approx(0.05)
    around = Backoff(first_seconds=1.0, longest_seconds=1.0, jitter=(0.75, 1.25))
    assert [around.pause_seconds(5, unit) for unit in (0.0, 0.5, 1.0)] == [0.75, 1.0, 1.25]


def test_a_least_pause_does_not_lift_the_cap() -> None:
    """It counts only where the growth is still below it."""
    assert BACKOFF.pause_seconds(1, 1.0, least_seconds=0.3) == 0.3
    assert BACKOFF.pause_seconds(5, 1.0, least_seconds=0.3) == pytest.approx(1.6)
    assert BACKOFF.pause_seconds(1, 1.0, least_seconds=99.0) == 4.0


def test_what_a_server_asks_for_is_honoured_up_to_a_limit() -> None:
    """An error without ``Retry-After``, or without an answer at all, asks for nothing."""
    assert BACKOFF.asked_seconds(limited(7.0)) == 7.0
    assert BACKOFF.asked_seconds(limited(9e9)) == 60.0
    assert BACKOFF.asked_seconds(limited(None)) is None
    assert BACKOFF.asked_seconds(NoAnswerError("x")) is None
