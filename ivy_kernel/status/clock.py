"""A monotonic clock that counts sleep, the times in HTTP headers, and the timing of a request.

Countdowns must go on while a laptop sleeps. Python's ``time.monotonic()`` stands still during
sleep on Linux and macOS, so a system clock that counts it is used: ``CLOCK_BOOTTIME`` on Linux,
``CLOCK_MONOTONIC`` on macOS (which, unlike its namesake on Linux, goes on in sleep). Elsewhere
``time.monotonic()`` is used; on Windows it counts sleep. Nothing in this package reads the wall
clock of this machine, which may be wrong by hours, be set while we run, or jump.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from functools import partial

# The headers that carry times: Date and Retry-After (RFC 9110) ------------------------------------
# Bounded, so that no header makes a float of a million digits.
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


def parse_http_date(value: str | None) -> datetime | None:
    """Parse an HTTP date, in UTC.

    Parameters
    ----------
    value
        For example ``Sun, 06 Nov 1994 08:49:37 GMT``; ``None`` for a header that is not there.

    Returns
    -------
    datetime | None
        ``None`` for anything that cannot be read.
    """
    if not value:
        return None
    try:
        date = parsedate_to_datetime(value)
        if date.tzinfo is None:  # "-0000", or the old form without a zone: HTTP means UTC
            date = date.replace(tzinfo=timezone.utc)
        return date.astimezone(timezone.utc)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def parse_retry_after(value: str | None, server_date: datetime | None) -> float | None:
    """Return the seconds that ``Retry-After`` asks us to wait.

    Parameters
    ----------
    value
        Seconds, or an HTTP date; ``None`` for a header that is not there.
    server_date
        The ``Date`` header of the same answer. The date form is measured against it and never
        against this machine's wall clock, so it cannot be used without.

    Returns
    -------
    float | None
        Never negative; ``None`` when there is nothing that can be used.
    """
    if not value:
        return None
    text = value.strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    date = parse_http_date(text)
    if date is None or server_date is None:
        return None
    if server_date.tzinfo is None:
        server_date = server_date.replace(tzinfo=timezone.utc)
    return max(0.0, (date - server_date).total_seconds())


# The clock ---------------------------------------------------------------------------------------
_CLOCKS_THAT_COUNT_SLEEP = {"linux": "CLOCK_BOOTTIME", "darwin": "CLOCK_MONOTONIC"}


def choose_clock(platform: str) -> Callable[[], float]:
    """Return the monotonic clock of a platform that goes on while the machine sleeps.

    Parameters
    ----------
    platform
        As in ``sys.platform``.
    """
    clock_id = getattr(time, _CLOCKS_THAT_COUNT_SLEEP.get(platform, ""), None)
    if clock_id is None:
        return time.monotonic
    read = partial(time.clock_gettime, clock_id)
    try:
        read()
    except OSError:  # a kernel, or a filter around it, that refuses this clock
        return time.monotonic
    return read


monotonic_seconds: Callable[[], float] = choose_clock(sys.platform)
"""Seconds from an arbitrary start; never goes back, counts the time that the machine sleeps."""


# The timing of one request -----------------------------------------------------------------------
_HALF_A_SECOND = timedelta(milliseconds=500)


@dataclass(frozen=True, slots=True)
class RequestTiming:
    """The times at which one request was sent and answered, on both clocks.

    Parameters
    ----------
    sent_monotonic
        ``monotonic_seconds()`` just before the request was sent.
    received_monotonic
        ``monotonic_seconds()`` when the whole answer was there.
    server_date
        The ``Date`` header of the answer; ``None`` when there was none that could be read. A
        date without a time zone is taken as UTC.
    """

    sent_monotonic: float
    received_monotonic: float
    server_date: datetime | None = None

    @property
    def middle_monotonic(self) -> float:
        """The middle of the request: the best guess of when the server read its clock.

        The guess is wrong by half the time that the request took, at most.
        """
        return (self.sent_monotonic + self.received_monotonic) / 2

    @property
    def uncertainty_seconds(self) -> float:
        """The error bound of ``middle_monotonic``, either way."""
        return abs(self.received_monotonic - self.sent_monotonic) / 2

    @property
    def server_time(self) -> datetime | None:
        """The server's clock by the ``Date`` header, in UTC.

        The header is cut to whole seconds, so the truth is up to a second later: half a second
        is added, which makes the error at most half a second either way.
        """
        if self.server_date is None:
            return None
        date = self.server_date
        if date.tzinfo is None:
            date = date.replace(tzinfo=timezone.utc)
        try:
            return date.astimezone(timezone.utc) + _HALF_A_SECOND
        except OverflowError:  # a date at the very end of the calendar
            return None
