"""When the next request is due: poll intervals of a monitor, backoff of what fails. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

from ivy_kernel.errors import (
    ApiError,
    BadRequestError,
    CredentialsError,
    ForbiddenError,
    NotFoundError,
    RateLimitedError,
    SettingError,
)
from ivy_kernel.status.model import CHANGING_STATES, END_STATES, Deadline, SandboxStatus

PERMANENT_ERRORS = (CredentialsError, ForbiddenError, NotFoundError, BadRequestError, SettingError)
"""Errors that a retry does not cure: a setting must be changed first."""

_DEADLINES: tuple[Deadline, ...] = ("hibernation", "expiry")


@dataclass(frozen=True, slots=True, kw_only=True)
class PollIntervals:
    """The times between two status requests for one sandbox, in seconds.

    Parameters
    ----------
    changing_seconds
        While it is provisioning, restoring or hibernating.
    active_seconds
        While it is active, or in a state that we do not know.
    near_deadline_seconds
        While it is active and a deadline is near, so that the change is seen when it happens.
    before_deadline_seconds, after_deadline_seconds
        How long before and after it a deadline is near.
    settled_seconds
        In states that only an action ends.
    after_change_seconds
        For so long after an action of our own that may have changed the sandbox, the interval is
        ``changing_seconds``: the first answers may still be from before the action.
    least_gap_seconds
        Between the end of a request and the start of the next, in any case.
    permanent_error_seconds
        After an error that only a changed setting cures.
    first_backoff_seconds, longest_backoff_seconds
        Exponential backoff after other errors in a row: the first wait, and the cap. Up to half of
        each wait is taken off at random, so that many clients do not come back together.
    limited_backoff_seconds
        The least after 429 without ``Retry-After``.
    longest_retry_after_seconds
        A ``Retry-After`` beyond this counts as this.
    uncertain_seconds
        After an answer whose clock may be wrong by more than this the next request follows at once:
        the machine slept, or the network stood still, in the middle of the request.
    """

    changing_seconds: float = 1.5
    active_seconds: float = 15.0
    near_deadline_seconds: float = 3.0
    before_deadline_seconds: float = 15.0
    after_deadline_seconds: float = 30.0
    settled_seconds: float = 60.0
    after_change_seconds: float = 10.0
    least_gap_seconds: float = 1.0
    permanent_error_seconds: float = 60.0
    first_backoff_seconds: float = 2.0
    longest_backoff_seconds: float = 60.0
    limited_backoff_seconds: float = 5.0
    longest_retry_after_seconds: float = 900.0
    uncertain_seconds: float = 5.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value < math.inf:
                raise ValueError(f"{field.name} must be a positive number, not {value!r}")

    def after_answer(self, status: SandboxStatus, now_monotonic: float) -> float:
        """Return the seconds to wait after a good answer."""
        delay = self._after_whole_answer(status, now_monotonic)
        if status.retry_seconds is None:
            return delay
        return max(min(delay, status.retry_seconds), self.least_gap_seconds)

    def _after_whole_answer(self, status: SandboxStatus, now_monotonic: float) -> float:
        if status.uncertainty_seconds > self.uncertain_seconds:
            return self.least_gap_seconds
        if status.state in CHANGING_STATES:
            return self.changing_seconds
        if status.state in END_STATES:
            return self.settled_seconds
        delay = self.active_seconds
        # An active sandbox may have expired by the clock already; the deadline rule below still
        # polls often for a while, until the server says so too.
        if status.effective_state(now_monotonic) in END_STATES:
            delay = self.settled_seconds
        for deadline in _DEADLINES:
            until = status.until_seconds(deadline, now_monotonic)
            if until is not None and until > -self.after_deadline_seconds:
                near = until - self.before_deadline_seconds
                delay = min(delay, max(near, self.near_deadline_seconds))
        return delay

    def after_error(self, error: Exception, failures: int, random: Callable[[], float]) -> float:
        """Return the seconds to wait after an error.

        Parameters
        ----------
        error
            The exception of the latest attempt.
        failures
            How many attempts have failed in a row, this one included.
        random
            Gives numbers from 0 to 1.
        """
        if isinstance(error, PERMANENT_ERRORS):
            delay = self.permanent_error_seconds
        else:
            delay = self._backoff.pause_seconds(failures, random())
        hold = self.retry_after_seconds(error)
        if hold is not None:
            # Only ever later than asked; up to a tenth on top spreads clients that were told the
            # same.
            delay = max(delay, hold * (1 + 0.1 * random()))
        elif isinstance(error, RateLimitedError):
            delay = max(delay, self.limited_backoff_seconds)
        return max(delay, self.least_gap_seconds)

    def retry_after_seconds(self, error: Exception) -> float | None:
        """Return the capped ``Retry-After`` of an error; ``None`` if it carries none."""
        asked = self._backoff.asked_seconds(error)
        if asked is None or not asked > 0:  # "not >" also rejects a NaN
            return None
        return asked

    @property
    def _backoff(self) -> Backoff:
        return Backoff(
            first_seconds=self.first_backoff_seconds,
            longest_seconds=self.longest_backoff_seconds,
            longest_asked_seconds=self.longest_retry_after_seconds,
        )


class StatusSchedule:
    """Computes the moment of the next request from what has happened so far; sends nothing.

    Parameters
    ----------
    intervals
        The times between requests.
    random
        Gives numbers from 0 to 1, for the jitter after errors.
    """

    def __init__(self, intervals: PollIntervals, random: Callable[[], float]) -> None:
        self._intervals = intervals
        self._random = random
        self._failures = 0
        self._is_urgent = False
        self._often_until = -math.inf
        self._ended = -math.inf
        self._planned = -math.inf
        self._held_until = -math.inf

    def due(self, *, is_awaited: bool) -> float:
        """Return the moment of the next request, on the same clock as all moments passed in.

        Parameters
        ----------
        is_awaited
            Whether a caller awaits the answer: then it is due as soon as the gap allows.
        """
        # Awaited and urgent requests skip the interval, never the gap and never Retry-After.
        due = self._ended + self._intervals.least_gap_seconds
        if not (self._is_urgent or is_awaited):
            due = max(due, self._planned)
        return max(due, self._held_until)

    def is_held_off(self, now: float) -> bool:
        """Whether a ``Retry-After`` of the server forbids requests now."""
        return self._held_until > now

    def poll_soon(self) -> None:
        """Make the next request due as soon as the gap allows."""
        self._is_urgent = True

    def poll_often(self, now: float) -> None:
        """Shorten the interval for a while, after an action that may have changed the sandbox."""
        self._often_until = now + self._intervals.after_change_seconds

    def hold_off(self, seconds: float, now: float) -> None:
        """Forbid requests for so long, as ``Retry-After`` asked; nothing cuts that short."""
        if seconds > 0:  # false for a NaN too
            seconds = min(seconds, self._intervals.longest_retry_after_seconds)
            self._held_until = max(self._held_until, now + seconds)

    def began(self) -> None:
        """Note that a request is being sent: it answers all that was urgent until now."""
        self._is_urgent = False

    def ended(self, now: float) -> None:
        """Note the end of the request, with whatever result: the gap counts from here."""
        self._ended = now

    def answered(self, status: SandboxStatus, now: float, *, is_polled: bool = False) -> float:
        """Plan the next request after a good answer, and return the seconds until then.

        Parameters
        ----------
        status, now
            The answer, and the present moment.
        is_polled
            Whether it was asked for by another poller, which goes on while the sandbox changes.
        """
        delay = self._intervals.after_answer(status, now)
        # Errors are not sped up: a server in trouble gets its backoff whatever we have just done.
        if now < self._often_until:
            delay = min(delay, self._intervals.changing_seconds)
        if is_polled and status.state in CHANGING_STATES:
            # Its next answer comes first, and then ours is not needed.
            delay += self._intervals.least_gap_seconds
        self._failures = 0
        self._planned = now + delay
        return delay

    def failed(self, error: Exception, now: float) -> None:
        """Plan the next request after one that failed."""
        self._failures += 1
        self._planned = now + self._intervals.after_error(error, self._failures, self._random)
        self.hold_off(self._intervals.retry_after_seconds(error) or 0.0, now)


# Backoff ------------------------------------------------------------------------------------------
# Every retry of this package takes its pauses from here; whether a call may be tried again at all
# is decided where the call is known.

# Keeps the power a small number in a long outage; the cap is reached long before.
_MAX_GROWTHS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Growing, jittered pauses, and how far a server's ``Retry-After`` is honoured.

    Parameters
    ----------
    first_seconds
        The pause after the first failure, before the jitter.
    longest_seconds
        Cap of the growth, before the jitter.
    growth
        The factor from one pause to the next.
    jitter
        Lowest and highest factor of the random part: clients that failed at the same moment shall
        not come back together.
    longest_asked_seconds
        A ``Retry-After`` beyond this counts as this.
    """

    first_seconds: float
    longest_seconds: float
    growth: float = 2.0
    jitter: tuple[float, float] = (0.5, 1.0)
    longest_asked_seconds: float = math.inf

    def pause_seconds(
        self, failures: int, random_unit: float, *, least_seconds: float = 0.0
    ) -> float:
        """Return the pause after so many failures in a row, without what a server asked for.

        Parameters
        ----------
        failures
            From 1.
        random_unit
            A random number from 0 to 1.
        least_seconds
            A pause that would be shorter is this long, before the jitter.
        """
        growths = min(max(failures, 1) - 1, _MAX_GROWTHS)
        pause = max(self.first_seconds * self.growth**growths, least_seconds)
        low, high = self.jitter
        return min(pause, self.longest_seconds) * (low + (high - low) * random_unit)

    def asked_seconds(self, error: BaseException) -> float | None:
        """Return the pause that the server asked for; ``None`` when it asked for none."""
        asked = error.retry_after_seconds if isinstance(error, ApiError) else None
        return None if asked is None else min(asked, self.longest_asked_seconds)
