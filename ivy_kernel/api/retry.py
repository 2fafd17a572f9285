"""Retries: which failed calls are sent again, and after which pause.

An idempotent call may always be sent again. A call that runs something may be sent again only when
it provably ran nothing: it was never sent, or the platform refused it unread (429).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from ivy_kernel.api.connection import ApiResponse, UntrustedServerError
from ivy_kernel.errors import (
    ApiError,
    CreationFailedError,
    IvyError,
    NetworkError,
    NotReadyError,
    NotSentError,
    RateLimitedError,
)
from ivy_kernel.status import monotonic_seconds
from ivy_kernel.status.backoff import Backoff

BACKOFF = Backoff(first_seconds=0.25, longest_seconds=5.0)
_SPREAD = 0.1
"""Share of the backoff that is added to ``Retry-After``: the server told many clients the same."""


def may_repeat(error: IvyError, *, idempotent: bool) -> bool:
    """Returns whether a call that ended in this error may be sent again and might then succeed."""
    if isinstance(error, UntrustedServerError):
        return False  # provably not sent, but the certificate will be the same next time
    if isinstance(error, NotSentError | RateLimitedError):
        return True
    if not idempotent:
        return False
    if isinstance(error, ApiError):
        return error.status_code >= 500
    return isinstance(error, NetworkError)


def pause_seconds(attempt: int, error: IvyError, random_unit: float) -> float:
    """Returns how long to pause before attempt number ``attempt`` (the first repetition is 1).

    Never less than the platform asked for.

    Parameters
    ----------
    attempt
        Number of the repetition, from 1.
    error
        What the last attempt ended in; its ``retry_after_seconds`` is honoured.
    random_unit
        A random number in [0, 1).
    """
    pause = BACKOFF.pause_seconds(attempt, random_unit)
    asked = BACKOFF.asked_seconds(error)
    return pause if asked is None else max(pause, asked + pause * _SPREAD)


async def with_retries(
    call: Callable[[], Awaitable[ApiResponse]],
    *,
    idempotent: bool,
    deadline_seconds: float,
    also: type[CreationFailedError | NotReadyError] | None = None,
) -> ApiResponse:
    """Calls until it succeeds, may not be repeated, or the deadline would be passed.

    Parameters
    ----------
    call
        Sends the request once.
    idempotent
        Whether it may be sent again after an unknown outcome.
    deadline_seconds
        No repetition starts later than this after the first call; 0 for no repetition.
    also
        One more kind of error after which this call is safe to repeat.

    Raises
    ------
    IvyError
        The last attempt's error.
    """
    start = monotonic_seconds()
    attempt = 0
    while True:
        try:
            return await call()
        except IvyError as error:
            attempt += 1
            repeatable = may_repeat(error, idempotent=idempotent) or (
                also is not None and isinstance(error, also)
            )
            # A repetition that would begin after the deadline is not waited for at all.
            pause = pause_seconds(attempt, error, random.random())  # noqa: S311 - jitter only
            if not repeatable or monotonic_seconds() - start + pause > deadline_seconds:
                raise
        await asyncio.sleep(pause)
