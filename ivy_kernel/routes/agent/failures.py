"""Which failed calls are made again, and after how long."""

from __future__ import annotations

import random
from dataclasses import dataclass

from ivy_kernel.errors import (
    ApiError,
    BadRequestError,
    CredentialsError,
    ForbiddenError,
    NotFoundError,
    NotReadyError,
    NotSentError,
    RateLimitedError,
    SandboxBrokenError,
    SettingError,
    UsageError,
)
from ivy_kernel.routes.agent.frames import NoAgentError

FIRST_PAUSE_SECONDS = 0.05
GROWTH = 1.6
LONGEST_PAUSE_SECONDS = 3.0
LONGEST_ASKED_PAUSE_SECONDS = 120.0
REFUSALS_BELIEVED = 3
"""How often in a row 400, 401, 403 or 404 must come: one replica may be wrong."""

BROKEN_BELIEVED = 8
"""How often in a row 502 must come: documented as final, but gateways say it in passing too."""

_REFUSED_UNREAD = (
    BadRequestError,
    CredentialsError,
    ForbiddenError,
    NotFoundError,
    NotReadyError,
    RateLimitedError,
)

_NOT_SENT = (NotSentError, SettingError, UsageError)
"""The settings are read for every call, and a file may be half-written at that moment."""


def provably_not_run(error: BaseException) -> bool:
    """Whether the call that failed so has certainly handed nothing to the agent."""
    return isinstance(error, (*_REFUSED_UNREAD, *_NOT_SENT, NoAgentError))


def is_final(error: BaseException, times: int) -> bool:
    """Whether an error that has come so often in a row will not go away by itself."""
    if isinstance(error, SandboxBrokenError):
        return times >= BROKEN_BELIEVED
    if isinstance(error, ApiError) and 400 <= error.status_code < 500:
        return not isinstance(error, RateLimitedError) and times >= REFUSALS_BELIEVED
    return False


@dataclass
class Backoff:
    """Pauses between failed calls: growing, jittered, and never shorter than asked for."""

    failures: int = 0
    same_failures: int = 0
    _last_type: type[BaseException] | None = None

    def succeeded(self) -> None:
        """A call has got through."""
        self.failures = self.same_failures = 0
        self._last_type = None

    def failed(self, error: BaseException) -> float:
        """Seconds to pause before the next call."""
        self.failures += 1
        self.same_failures = self.same_failures + 1 if type(error) is self._last_type else 1
        self._last_type = type(error)
        asked = error.retry_after_seconds if isinstance(error, ApiError) else None
        if asked is not None:
            return max(FIRST_PAUSE_SECONDS, min(asked, LONGEST_ASKED_PAUSE_SECONDS))
        pause = FIRST_PAUSE_SECONDS * GROWTH ** min(self.failures - 1, 20)
        if isinstance(error, ApiError):
            pause = max(pause, 0.2)
        jitter = random.uniform(0.75, 1.25)  # noqa: S311 - spreads clients, guards nothing
        return min(pause, LONGEST_PAUSE_SECONDS) * jitter
