"""When to ask for the status of one sandbox next, from all that has happened so far. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable

from ivy_kernel.status.model import SandboxStatus
from ivy_kernel.status.pace import Pace


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
