"""How long output is collected in the sandbox before a poll is answered with it. Pure."""

from __future__ import annotations

SHORTEST_SECONDS = 0.005
"""What a kernel says at once comes within this. The agent itself waits longer near a cell's end."""

LONGEST_SECONDS = 0.25
DELAY_GROWTH = 1.6
DENSE_SECONDS = 0.04
BURST_ANSWERS = 60.0
ANSWERS_A_SECOND = 4.0


class Grace:
    """Short for output that comes now and then, longer for output that does not stop.

    Each answer costs a call of a tool: a process in the sandbox, and a part of some rate limit.
    Sparse output is shown at once. Dense output, of which more has come before the last could be
    shown, is collected ever longer; so is sparse output when it goes on and on.
    """

    def __init__(self) -> None:
        self._seconds = SHORTEST_SECONDS
        self._answered_at = float("-inf")
        self._allowance = BURST_ANSWERS

    def submitted(self) -> None:
        """A new cell is under way, about which nothing is known."""
        self._seconds = SHORTEST_SECONDS

    def answered(self, now: float) -> None:
        """An answer has brought output of a cell that goes on."""
        gap_seconds = now - self._answered_at
        self._answered_at = now
        refilled = self._allowance + gap_seconds * ANSWERS_A_SECOND
        self._allowance = max(0.0, min(BURST_ANSWERS, refilled) - 1.0)
        if gap_seconds < DENSE_SECONDS + self._seconds:
            self._seconds = min(LONGEST_SECONDS, self._seconds * DELAY_GROWTH)
        else:
            self._seconds = max(SHORTEST_SECONDS, self._seconds / DELAY_GROWTH)

    @property
    def seconds(self) -> float:
        """How long after the first output the next poll is to be answered."""
        return self._seconds if self._allowance >= 1.0 else LONGEST_SECONDS
