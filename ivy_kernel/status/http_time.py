"""The two HTTP headers that speak of time: ``Date`` and ``Retry-After`` (RFC 9110)."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime

_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


def parse_http_date(value: str | None) -> datetime | None:
    """The moment that an HTTP date names, in UTC.

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
    """For how many seconds ``Retry-After`` asks us to wait.

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
