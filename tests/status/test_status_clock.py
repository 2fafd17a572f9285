"""The clock that counts sleep, the middle of a request, and the HTTP headers that speak of time."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone

import pytest

from ivy_kernel.status.clock import (
    RequestTiming,
    choose_clock,
    monotonic_seconds,
    parse_http_date,
    parse_retry_after,
)

DATE = datetime(2026, 11, 29, 12, 0, 0, tzinfo=timezone.utc)
DATE_HEADER = "Sun, 29 Nov 2026 12:00:00 GMT"


def test_the_clock_never_goes_back() -> None:
    """Readings in a row do not fall."""
    readings = [monotonic_seconds() for _ in range(1000)]
    assert readings == sorted(readings)


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="a clock of Linux")
def test_linux_counts_the_time_asleep() -> None:
    """On Linux it is the clock that goes on during suspend."""
    difference = choose_clock("linux")() - time.clock_gettime(time.CLOCK_BOOTTIME)
    assert abs(difference) < 1


def test_macos_counts_the_time_asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """On macOS it is the system's CLOCK_MONOTONIC, which time.monotonic is not."""
    asked: list[int] = []

    def read(which: int) -> float:
        asked.append(which)
        return 5.0

    monkeypatch.setattr(time, "CLOCK_MONOTONIC", 6, raising=False)
    monkeypatch.setattr(time, "clock_gettime", read)
    assert choose_clock("darwin")() == 5.0
    assert set(asked) == {6}


def test_a_platform_without_such_a_clock_has_the_plain_one() -> None:
    """Elsewhere Python's monotonic clock is what there is."""
    assert choose_clock("win32") is time.monotonic


def test_a_clock_that_the_system_refuses_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that forbids the clock does not break the import."""

    def refuse(which: int) -> float:
        raise OSError(which)

    monkeypatch.setattr(time, "CLOCK_BOOTTIME", 7, raising=False)
    monkeypatch.setattr(time, "clock_gettime", refuse)
    assert choose_clock("linux") is time.monotonic


def test_a_request_timing_knows_its_middle_and_how_sure_it_is() -> None:
    """The server looked at its clock in the middle, give or take half the request."""
    timing = RequestTiming(10.0, 14.0)
    assert (timing.middle_monotonic, timing.uncertainty_seconds) == (12.0, 2.0)
    assert timing.server_time is None


@pytest.mark.parametrize(
    "date",
    [
        DATE,
        DATE.replace(tzinfo=None),
        DATE.astimezone(timezone(timedelta(hours=5, minutes=30))),
    ],
)
def test_a_server_date_is_taken_half_a_second_later_in_utc(date: datetime) -> None:
    """The header is cut to whole seconds; the middle of that second is the best guess."""
    server_time = RequestTiming(0.0, 0.0, date).server_time
    assert server_time == DATE + timedelta(seconds=0.5)
    assert server_time.tzinfo is timezone.utc


def test_a_server_date_at_the_end_of_the_calendar_is_none() -> None:
    """A date that cannot be reckoned with does not raise."""
    assert RequestTiming(0.0, 0.0, datetime.max).server_time is None


@pytest.mark.parametrize(
    "value",
    [
        DATE_HEADER,
        "Sunday, 29-Nov-26 12:00:00 GMT",
        "Sun Nov 29 12:00:00 2026",
        "Sun, 29 Nov 2026 12:00:00 -0000",
        "Sun, 29 Nov 2026 14:00:00 +0200",
    ],
)
def test_http_dates_are_read_in_every_form(value: str) -> None:
    """The three forms of RFC 9110, and a zone that is not GMT."""
    assert parse_http_date(value) == DATE


@pytest.mark.parametrize(
    "value", [None, "", " ", "soon", "12", "Sun, 99 Nov 2026 12:00:00 GMT", "\x00", "Sun," * 9]
)
def test_a_date_that_cannot_be_read_is_none(value: str | None) -> None:
    """Nothing raises."""
    assert parse_http_date(value) is None


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0),
        ("120", 120),
        (" 7 ", 7),
        ("1.5", 1.5),
        ("Sun, 29 Nov 2026 12:02:00 GMT", 120),
        ("Sun, 29 Nov 2026 11:00:00 GMT", 0),
    ],
)
def test_retry_after_is_read_as_seconds_and_as_a_date(value: str, seconds: float) -> None:
    """Both documented forms become seconds; a date in the past is no wait."""
    assert parse_retry_after(value, DATE) == seconds
    assert parse_retry_after(value, DATE.replace(tzinfo=None)) == seconds


@pytest.mark.parametrize("value", [None, "", "soon", "-5", "1e9", "nan", "inf", "٣"])
def test_a_retry_after_that_cannot_be_read_is_none(value: str | None) -> None:
    """Neither seconds nor a date: as if it were not there."""
    assert parse_retry_after(value, DATE) is None


def test_a_retry_after_date_needs_the_servers_clock() -> None:
    """Without the Date header the date form says nothing, for this machine's clock may be off."""
    assert parse_retry_after(DATE_HEADER, None) is None
