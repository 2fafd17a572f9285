"""When a call may be sent again, and how long to wait before.

An idempotent call may always be sent again. A call that runs something may be sent again only when
it provably ran nothing: it was never sent, or the platform refused it unread (429).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from ivy_kernel.api.connection import Answer, UntrustedServerError
from ivy_kernel.errors import (
    ApiError,
    CreationFailedError,
    IvyError,
    NetworkError,
    NotReadyError,
    NotSentError,
    RateLimitedError,
)
from ivy_kernel.status.clock import monotonic_seconds

FIRST_WAIT_SECONDS = 0.25
LONGEST_WAIT_SECONDS = 5.0


def may_repeat(error: IvyError, *, idempotent: bool) -> bool:
    """Whether a call that ended in this error may be sent again, and might then succeed."""
    if isinstance(error, UntrustedServerError):
        return False
    if isinstance(error, NotSentError | RateLimitedError):
        return True
    if not idempotent:
        return False
    if isinstance(error, ApiError):
        return error.status_code >= 500
    return isinstance(error, NetworkError)


def wait_seconds(attempt: int, error: IvyError, random_unit: float) -> float:
    """How long to wait before attempt number ``attempt`` (the first repetition is 1).

    Exponential with full upper-half jitter; never less than the platform asked for.

    Parameters
    ----------
    attempt
        Number of the repetition, from 1.
    error
        What the last attempt ended in; its ``retry_after_seconds`` is honoured.
    random_unit
        A random number in [0, 1).
    """
    backoff = min(FIRST_WAIT_SECONDS * 2.0 ** (attempt - 1), LONGEST_WAIT_SECONDS)
    jittered = backoff * (0.5 + 0.5 * random_unit)
    asked = error.retry_after_seconds if isinstance(error, ApiError) else None
    return jittered if asked is None else max(jittered, asked + jittered * 0.1)


async def with_retries(
    call: Callable[[], Awaitable[Answer]],
    *,
    idempotent: bool,
    deadline_seconds: float,
    also: type[CreationFailedError | NotReadyError] | None = None,
) -> Answer:
    """Call until it succeeds, may not be repeated, or the deadline would be passed.

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
            pause = wait_seconds(attempt, error, random.random())  # noqa: S311 - jitter only
            if not repeatable or monotonic_seconds() - start + pause > deadline_seconds:
                raise
        await asyncio.sleep(pause)
