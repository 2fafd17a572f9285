"""Decides what failed calls mean: which are repeated, when, and when the agent counts as gone.

The platform, its gateways and the sandbox all fail in passing, and a wrong verdict ends a cell that
is running well. So one failure that may pass decides nothing; the thresholds say how many in a row
do.
"""

from __future__ import annotations

import asyncio
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
from ivy_kernel.models import Resources
from ivy_kernel.routes.agent.frames import ENOENT, InboxFullError, NoAgentError
from ivy_kernel.routes.base import RouteListener
from ivy_kernel.routes.events import CallRefused, Unreachable
from ivy_kernel.status.schedule import Backoff

BACKOFF = Backoff(
    first_seconds=0.05,
    longest_seconds=3.0,
    growth=1.6,
    jitter=(0.75, 1.25),
    longest_asked_seconds=120.0,
)
LEAST_API_PAUSE_SECONDS = 0.2
"""After an error status: a platform that answers "no" is asked less eagerly than a lost line."""

MAX_CONSECUTIVE_REFUSALS = 3
"""The same 4xx so often in a row is final; fewer may come from one replica that is wrong."""

MAX_CONSECUTIVE_BAD_GATEWAYS = 8
"""502 so often in a row is final: it is documented as such, but gateways send it in passing too."""

# Documented to be decided before the platform runs anything. 500, 502 and 504 are not among them: a
# gateway may send those after the code has run.
_REFUSED_UNREAD = (
    BadRequestError,
    CredentialsError,
    ForbiddenError,
    NotFoundError,
    NotReadyError,
    RateLimitedError,
)

_NOT_SENT = (NotSentError, SettingError, UsageError)
"""Raised before a call is made. The settings are read for every call, and their file may be
half-written at that moment."""


def provably_not_run(error: BaseException) -> bool:
    """Whether a call that failed with this error has certainly handed nothing to the agent.

    Only then may what it carried be withdrawn and called "not run"; the outcome of everything else
    is unknown until the agent acknowledges it.
    """
    return isinstance(error, (*_REFUSED_UNREAD, *_NOT_SENT, NoAgentError))


def may_mean_the_end(error: BaseException) -> bool:
    """Whether a call that failed with this error may have found no sandbox any more."""
    refused = (CredentialsError, NotFoundError, NotReadyError, NotSentError, SandboxBrokenError)
    return isinstance(error, refused)


def is_final(error: BaseException, times: int) -> bool:
    """Whether an error that has come ``times`` in a row will not go away by itself."""
    if isinstance(error, SandboxBrokenError):
        return times >= MAX_CONSECUTIVE_BAD_GATEWAYS
    if isinstance(error, ApiError) and 400 <= error.status_code < 500:
        return not isinstance(error, RateLimitedError) and times >= MAX_CONSECUTIVE_REFUSALS
    return False


@dataclass
class FailureStreak:
    """Counts the failures of a call in a row, and gives the pauses between its tries."""

    failures: int = 0
    same_failures: int = 0
    _last_type: type[BaseException] | None = None

    def succeeded(self) -> None:
        """Begin anew: a call has got through."""
        self.failures = self.same_failures = 0
        self._last_type = None

    def failed(self, error: BaseException) -> float:
        """Count a failure; return the seconds to pause before the next call."""
        self.failures += 1
        self.same_failures = self.same_failures + 1 if type(error) is self._last_type else 1
        self._last_type = type(error)
        asked = BACKOFF.asked_seconds(error)
        if asked is not None:  # what the server asks for counts alone, also when it is shorter
            return max(BACKOFF.first_seconds, asked)
        least = LEAST_API_PAUSE_SECONDS if isinstance(error, ApiError) else 0.0
        unit = random.random()  # noqa: S311 - spreads clients, guards nothing
        return BACKOFF.pause_seconds(self.failures, unit, least_seconds=least)


UNREACHABLE_AFTER_SECONDS = 5.0
"""Calls that have failed for longer are reported to the user."""

MAX_CONSECUTIVE_ABSENCES = 3
"""An agent that is not found by so many calls in a row has ended."""

ABSENCE_SECONDS = 2.0
"""Where even the socket is missing they must last so long: an agent that lives makes it again."""

# Both must be reached. A start gives up sooner (MAX_UNREADABLE_STARTS): it has no cell to lose.
MAX_UNREADABLE_POLLS = 6
UNREADABLE_SECONDS = 30.0

REFUSED_SECONDS = 20.0
"""Refusals are final only after this time while a request may be running: a key may be changed
just then, or a replica may be wrong, and the cell works on all the same."""


class UnknownAgentError(Exception):
    """Another agent answered than the one that we know; nothing was handed over."""


class TakenOverError(SandboxError):
    """A newer client has taken over the agent."""


class ConnectionListener(Protocol):
    """Hears how the calls to one agent fare: `Health`, `AgentCalls` and `Poller` report to it."""

    def on_failed_call(self, error: Exception) -> None:
        """Called after each failed call: what it carried may be known not to have arrived."""

    def on_reachable(self, error: Exception | None) -> None:
        """Called with an error when calls have failed for some seconds, else with ``None``."""

    def on_connection_lost(self, reason: Exception) -> None:
        """Called once, when there will be no more polls, for the reason given."""


class Health:
    """Decides from the ends of polls whether the agent can be reached, or is gone.

    Parameters
    ----------
    listener
        Told when the agent becomes unreachable, and reachable again.
    give_up_seconds
        How long calls may fail before the connection is over.

    Attributes
    ----------
    resources
        What the sandbox used when it last told.
    """

    def __init__(self, listener: ConnectionListener, *, give_up_seconds: float) -> None:
        self.retry_at = 0.0
        self.resources = Resources()
        self._listener = listener
        self._give_up_seconds = give_up_seconds
        self._streak = FailureStreak()
        self._failing_since: float | None = None
        self._is_unreachable = False

    def succeeded(self) -> None:
        """Note that a poll has been answered."""
        self._streak.succeeded()
        self.retry_at = 0.0
        self._failing_since = None
        if self._is_unreachable:
            self._is_unreachable = False
            self._listener.on_reachable(None)

    @property
    def is_failing(self) -> bool:
        """Whether more than the last poll has failed."""
        return self._streak.failures > 1

    def failed(self, error: Exception, now: float, *, may_be_running: bool) -> Exception | None:
        """Note a failed poll; return why the connection is lost, if the failure means that.

        Parameters
        ----------
        error, now
            The failure, and the monotonic clock.
        may_be_running
            Whether a request of ours may be running in the sandbox: more patience is due then.
        """
        self.retry_at = now + self._streak.failed(error)
        if self._failing_since is None:
            self._failing_since = now
        failed_seconds = now - self._failing_since
        verdict = self._verdict(error, failed_seconds, may_be_running=may_be_running)
        is_news = verdict is None and not self._is_unreachable
        if is_news and failed_seconds > UNREACHABLE_AFTER_SECONDS:
            self._is_unreachable = True
            self._listener.on_reachable(error)
        return verdict

    def _verdict(
        self, error: Exception, failed_seconds: float, *, may_be_running: bool
    ) -> Exception | None:
        times = self._streak.same_failures
        if isinstance(error, TakenOverError | InboxFullError):
            return error
        if is_final(error, times) and (failed_seconds > REFUSED_SECONDS or not may_be_running):
            return error
        # Certain at once: an agent has answered, and it is another one.
        if isinstance(error, UnknownAgentError):
            return SandboxLostError(
                "The variables are gone, because the sandbox, or the agent in it, was started anew."
            )
        if (
            isinstance(error, NoAgentError)
            and times >= MAX_CONSECUTIVE_ABSENCES
            and (error.errno != ENOENT or failed_seconds >= ABSENCE_SECONDS)
        ):
            return SandboxLostError(
                "The variables are gone, because the sandbox's agent has ended "
                f"(perhaps the sandbox was recycled, or its memory ran out: {error})."
                f"{self.resources.last_words}"
            )
        if isinstance(error, AnswerError) and times >= MAX_UNREADABLE_POLLS:
            return error if failed_seconds > UNREADABLE_SECONDS else None
        if failed_seconds > self._give_up_seconds:
            return error if isinstance(error, IvyError) else AnswerError(str(error))
        return None


# -- the end of the sandbox

LOOK_AGAIN_SECONDS = 2.0
"""After a look at the sandbox, which a refused call has caused, the next one may follow."""


RECENT_SECONDS = 10.0


class SandboxConnection(Protocol):
    """The connection to what is in the sandbox, as its end needs it."""

    async def end_with_sandbox(self) -> None:
        """Close because the sandbox is gone, and end the running cell."""


class EndOfSandbox:
    """Looks whether the sandbox has ended, for a cell whose calls are refused or fail.

    Parameters
    ----------
    listener
        Looks at the sandbox; told of an event that no look has explained.
    connection
        Ended with the sandbox.

    Attributes
    ----------
    error
        Says that it has ended; ``None`` while that is not known.
    """

    def __init__(self, listener: RouteListener, connection: SandboxConnection) -> None:
        self.error: SandboxLostError | None = None
        self._listener = listener
        self._connection = connection
        self._looking: asyncio.Future[None] | None = None
        self._may_look_at = float("-inf")
        self._untold: Unreachable | None = None

    def look(self, event: CallRefused | Unreachable) -> None:
        """Look soon, but not after each refused call."""
        now = asyncio.get_running_loop().time()
        if isinstance(event, Unreachable):
            if self._looking is None and now < self._may_look_at + RECENT_SECONDS:
                self._listener.on_event(event)  # as the last look has told no more than that
                return
            self._untold = event  # told after the look, if that does not tell more
        elif now < self._may_look_at:
            return
        if self._looking is None:
            self._looking = asyncio.ensure_future(self._look())

    def take_untold(self) -> Unreachable | None:
        """Return, once, the event that waits for a look to end."""
        untold, self._untold = self._untold, None
        return untold

    async def _look(self) -> None:
        try:
            self.error = await self._listener.sandbox_end()
            untold = self.take_untold()
            if self.error is not None:
                await self._connection.end_with_sandbox()
            elif untold is not None:
                self._listener.on_event(untold)
        finally:
            self._looking = None
            self._may_look_at = asyncio.get_running_loop().time() + LOOK_AGAIN_SECONDS
