"""Numbered submissions that the agent has not acknowledged yet."""

from __future__ import annotations

from dataclasses import dataclass

from ivy_kernel.models import Json


@dataclass
class Submission:
    """One thing for the agent to do, exactly once.

    Parameters
    ----------
    number
        Its place in the order of submissions.
    body
        What travels.
    is_sent
        Whether any call has carried it yet.
    is_exposed
        Whether a call that carried it, and has ended, may have been applied.
    carriers
        How many calls carry it at this moment.
    """

    number: int
    body: Json
    is_sent: bool = False
    is_exposed: bool = False
    carriers: int = 0

    @property
    def has_not_run(self) -> bool:
        """Whether it provably never reached the agent."""
        return not self.is_exposed and not self.carriers


class Outbox:
    """What every call carries: all that is unacknowledged, in order."""

    def __init__(self) -> None:
        self.last_number = 0
        self._waiting: dict[int, Submission] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def has_unsent(self) -> bool:
        """Whether there is something that no call has carried."""
        return any(not submission.is_sent for submission in self._waiting.values())

    def add(self, body: Json) -> Submission:
        """Number a submission and keep it until it is acknowledged."""
        self.last_number += 1
        submission = Submission(self.last_number, body)
        self._waiting[self.last_number] = submission
        return submission

    def take(self) -> list[Submission]:
        """Everything unacknowledged, for the next call."""
        carried = list(self._waiting.values())
        for submission in carried:
            submission.is_sent = True
            submission.carriers += 1
        return carried

    @staticmethod
    def put_down(carried: list[Submission], *, provably_not_applied: bool) -> None:
        """The call that carried these has ended."""
        for submission in carried:
            submission.carriers -= 1
            submission.is_exposed = submission.is_exposed or not provably_not_applied

    def withdraw(self, submission: Submission) -> bool:
        """Take a submission back; false when it may have been applied already.

        Its number still travels, as nothing to do, because the agent waits for every number.
        """
        if not submission.has_not_run:
            return False
        submission.body = {"do": "nothing"}
        return True

    def acknowledge(self, number: int) -> None:
        """The agent has applied everything up to this number."""
        for waiting in [n for n in self._waiting if n <= number]:
            self._waiting.pop(waiting).is_exposed = True
