"""Exponential backoff: the pauses between the tries of a call that keeps failing. Pure.

Every retry of this package takes its numbers from here; whether a call may be tried again at all is
decided where the call is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ivy_kernel.errors import ApiError

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
