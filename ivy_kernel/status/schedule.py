"""When to ask for the status of one sandbox next, from all that has happened so far. Pure."""

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

REFUSALS = (CredentialsError, ForbiddenError, NotFoundError, BadRequestError, SettingError)
"""Errors that asking again does not cure: somebody must change a setting first."""

_DEADLINES: tuple[Deadline, ...] = ("hibernation", "expiry")
_MOST_DOUBLINGS = 30  # keeps the power a small number; the cap is reached long before


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The times between two requests for the status of one sandbox, in seconds.

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
        In states that only somebody's action ends.
    alert_seconds
        For so long after something of our own that may have changed the sandbox it is asked for as
        if it were changing: the first answers may still be from before.
    least_gap_seconds
        Between the end of a request and the next, whatever asks for it.
    refused_seconds
        After an error that only a changed setting cures.
    first_backoff_seconds, longest_backoff_seconds
        After the first of a row of other errors, and after many; doubled in between. Of each a
        random half is taken off, so that many clients do not come back together.
    limited_backoff_seconds
        The least after 429 without ``Retry-After``.
    longest_retry_after_seconds
        A ``Retry-After`` beyond this counts as this.
    uncertain_seconds
        An answer whose clock may be wrong by more than this is asked for again at once: the
        machine slept, or the network stood still, in the middle of the request.
    """

    changing_seconds: float = 1.5
    active_seconds: float = 15.0
    near_deadline_seconds: float = 3.0
    before_deadline_seconds: float = 15.0
    after_deadline_seconds: float = 30.0
    settled_seconds: float = 60.0
    alert_seconds: float = 10.0
    least_gap_seconds: float = 1.0
    refused_seconds: float = 60.0
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
        """Seconds to wait after a good answer."""
        if status.uncertainty_seconds > self.uncertain_seconds:
            return self.least_gap_seconds
        if status.state in CHANGING_STATES:
            return self.changing_seconds
        if status.state in END_STATES:
            return self.settled_seconds
        delay = self.active_seconds
        if status.effective_state(now_monotonic) in END_STATES:
            delay = self.settled_seconds
        for deadline in _DEADLINES:
            until = status.until_seconds(deadline, now_monotonic)
            if until is not None and until > -self.after_deadline_seconds:
                near = until - self.before_deadline_seconds
                delay = min(delay, max(near, self.near_deadline_seconds))
        return delay

    def after_error(self, error: Exception, failures: int, random: Callable[[], float]) -> float:
        """Seconds to wait after an error.

        Parameters
        ----------
        error
            What the latest attempt raised.
        failures
            How many attempts have failed in a row, this one included.
        random
            Gives numbers from 0 to 1.
        """
        if isinstance(error, REFUSALS):
            delay = self.refused_seconds
        else:
            doublings = min(max(failures, 1) - 1, _MOST_DOUBLINGS)
            delay = min(self.longest_backoff_seconds, self.first_backoff_seconds * 2.0**doublings)
            delay *= 0.5 + 0.5 * random()
        hold = self.hold_seconds(error)
        if hold is not None:
            # Only ever later than asked: the tenth on top spreads those who were told the same.
            delay = max(delay, hold * (1 + 0.1 * random()))
        elif isinstance(error, RateLimitedError):
            delay = max(delay, self.limited_backoff_seconds)
        return max(delay, self.least_gap_seconds)

    def hold_seconds(self, error: Exception) -> float | None:
        """For how long the server asked not to be asked at all; ``None`` if it did not."""
        asked = error.retry_after_seconds if isinstance(error, ApiError) else None
        if asked is None or not asked > 0:  # "not >" also turns a NaN away
            return None
        return min(asked, self.longest_retry_after_seconds)


class Schedule:
    """The moment of the next request. It is told what happens and when; it asks nothing itself.

    Parameters
    ----------
    pace
        The times between requests.
    random
        Gives numbers from 0 to 1, for the jitter after errors.
    """

    def __init__(self, pace: Pace, random: Callable[[], float]) -> None:
        self._pace = pace
        self._random = random
        self._failures = 0
        self._is_urgent = False
        self._alert_until = -math.inf
        self._ended = -math.inf
        self._planned = -math.inf
        self._held_until = -math.inf

    def due(self, *, is_awaited: bool) -> float:
        """The moment of the next request, on the clock that all moments here are of.

        Parameters
        ----------
        is_awaited
            Whether somebody waits for the answer, so that it shall come as soon as it may.
        """
        due = self._ended + self._pace.least_gap_seconds
        if not (self._is_urgent or is_awaited):
            due = max(due, self._planned)
        return max(due, self._held_until)

    def is_held_off(self, now: float) -> bool:
        """Whether the server has asked not to be asked now."""
        return self._held_until > now

    def hurry(self) -> None:
        """What is known may be from before: let the next request come as soon as it may."""
        self._is_urgent = True

    def attend(self, now: float) -> None:
        """Something of our own may have changed the sandbox: let it be asked for often a while."""
        self._alert_until = now + self._pace.alert_seconds

    def hold_off(self, seconds: float, now: float) -> None:
        """The server asked not to be asked for so long; nothing cuts that short."""
        if seconds > 0:  # not so for a NaN
            seconds = min(seconds, self._pace.longest_retry_after_seconds)
            self._held_until = max(self._held_until, now + seconds)

    def began(self) -> None:
        """A request goes out: it answers all that was in a hurry until now."""
        self._is_urgent = False

    def ended(self, now: float) -> None:
        """The request has ended, with whatever result."""
        self._ended = now

    def answered(self, status: SandboxStatus, now: float) -> float:
        """Plan the next request after a good answer, and return the seconds until then."""
        delay = self._pace.after_answer(status, now)
        if now < self._alert_until:
            delay = min(delay, self._pace.changing_seconds)
        self._failures = 0
        self._planned = now + delay
        return delay

    def failed(self, error: Exception, now: float) -> None:
        """Plan the next request after one that gave no status."""
        self._failures += 1
        self._planned = now + self._pace.after_error(error, self._failures, self._random)
        self.hold_off(self._pace.hold_seconds(error) or 0.0, now)
