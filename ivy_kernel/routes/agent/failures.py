"""Which failed calls are made again, and after how long."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol

from ivy_kernel.errors import (
    AnswerError,
    ApiError,
    BadRequestError,
    CredentialsError,
    ForbiddenError,
    IvyError,
    NotFoundError,
    NotReadyError,
    NotSentError,
    RateLimitedError,
    SandboxBrokenError,
    SandboxError,
    SandboxLostError,
    SettingError,
    UsageError,
)
from ivy_kernel.routes.agent.frames import InboxFullError, NoAgentError

FIRST_PAUSE_SECONDS = 0.05
GROWTH = 1.6
LONGEST_PAUSE_SECONDS = 3.0
LONGEST_ASKED_PAUSE_SECONDS = 120.0
MAX_CONSECUTIVE_REFUSALS = 3
"""How often in a row 400, 401, 403 or 404 must come: one replica may be wrong."""

MAX_CONSECUTIVE_BROKEN = 8
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
        return times >= MAX_CONSECUTIVE_BROKEN
    if isinstance(error, ApiError) and 400 <= error.status_code < 500:
        return not isinstance(error, RateLimitedError) and times >= MAX_CONSECUTIVE_REFUSALS
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


UNREACHABLE_AFTER_SECONDS = 5.0
MAX_CONSECUTIVE_ABSENCES = 3
MAX_UNREADABLE_POLLS = 6
UNREADABLE_SECONDS = 30.0
REFUSED_SECONDS = 20.0
"""How long refusals must last while something runs: a key may be changed just then, or a replica
may be wrong, and the cell works on all the same."""


class UnknownAgentError(Exception):
    """Another agent answered than the one we know; nothing was handed over."""


class TakenOverError(SandboxError):
    """A newer client speaks to the agent now."""


class InFlight(Protocol):
    """What `Health` must know of the requests in flight."""

    @property
    def is_at_work(self) -> bool:
        """Whether anything of ours may be running in the sandbox."""
        ...


class HealthOwner(Protocol):
    """What is told when the agent cannot be reached, and when it can be again."""

    def on_reachable(self, error: Exception | None) -> None:
        """Called with an error when calls have failed for some seconds, else with ``None``."""
        ...


class Health:
    """Decides whether the agent can be reached, by how the polls end.

    Parameters
    ----------
    requests
        The requests in flight: while one may be running, more patience is due.
    owner
        Told when the agent becomes unreachable, and reachable again.
    give_up_seconds
        How long calls may fail before the connection is over.
    """

    def __init__(self, requests: InFlight, owner: HealthOwner, *, give_up_seconds: float) -> None:
        self.not_before = 0.0
        self._requests = requests
        self._owner = owner
        self._give_up_seconds = give_up_seconds
        self._backoff = Backoff()
        self._failing_since: float | None = None
        self._is_unreachable = False

    def succeeded(self) -> None:
        """A call has been answered."""
        self._backoff.succeeded()
        self.not_before = 0.0
        self._failing_since = None
        if self._is_unreachable:
            self._is_unreachable = False
            self._owner.on_reachable(None)

    def failed(self, error: Exception, now: float) -> Exception | None:
        """A call has failed; why the conversation is over, if this means that."""
        self.not_before = now + self._backoff.failed(error)
        if self._failing_since is None:
            self._failing_since = now
        failed_seconds = now - self._failing_since
        verdict = self._verdict(error, failed_seconds)
        is_news = verdict is None and not self._is_unreachable
        if is_news and failed_seconds > UNREACHABLE_AFTER_SECONDS:
            self._is_unreachable = True
            self._owner.on_reachable(error)
        return verdict

    def _verdict(self, error: Exception, failed_seconds: float) -> Exception | None:
        times = self._backoff.same_failures
        if isinstance(error, TakenOverError | InboxFullError):
            return error
        if is_final(error, times) and (
            failed_seconds > REFUSED_SECONDS or not self._requests.is_at_work
        ):
            return error
        if isinstance(error, UnknownAgentError):
            return SandboxLostError("The variables are gone, because the sandbox was started anew.")
        if isinstance(error, NoAgentError) and times >= MAX_CONSECUTIVE_ABSENCES:
            return SandboxLostError(
                "The variables are gone, because the sandbox's agent has ended "
                f"(the sandbox was recycled, or its memory ran out: {error})."
            )
        if isinstance(error, AnswerError) and times >= MAX_UNREADABLE_POLLS:
            return error if failed_seconds > UNREADABLE_SECONDS else None
        if failed_seconds > self._give_up_seconds:
            return error if isinstance(error, IvyError) else AnswerError(str(error))
        return None
