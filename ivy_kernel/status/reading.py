"""What is known about a sandbox now: the last good status, and whether it can still be trusted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ivy_kernel.errors import IvyError
from ivy_kernel.status.model import Dialect, SandboxStatus

_REASON_LIMIT_CHARACTERS = 500
_NEVER_READ = "The status of the sandbox has not been read yet."


@dataclass(frozen=True, slots=True)
class Reading:
    """The last good status, and what has happened since.

    Parameters
    ----------
    status
        The last good status; ``None`` before the first.
    error
        Why the latest attempt gave no status; ``None`` when it gave one.
    stale_after_seconds
        A status older than this is stale even without an error: nobody has asked since, or an
        answer is overdue.
    dialect
        The API that is asked; for the time before the first status.
    """

    status: SandboxStatus | None = None
    error: Exception | None = None
    stale_after_seconds: float = math.inf
    dialect: Dialect = "ivy"

    def good_age_seconds(self, now_monotonic: float) -> float:
        """The age of the status; infinite when there is none, or a later attempt has failed."""
        if self.status is None or self.error is not None:
            return math.inf
        return self.status.age_seconds(now_monotonic)

    def stale_reason(self, now_monotonic: float) -> str | None:
        """Why the status cannot be taken as the present one, as a sentence; ``None`` if it can."""
        if self.error is not None:
            return describe_error(self.error)
        if self.status is None:
            return _NEVER_READ
        age_seconds = self.status.age_seconds(now_monotonic)
        if age_seconds > self.stale_after_seconds:
            return f"The status is {_duration(age_seconds)} old; no newer answer has come since."
        return None

    def to_json(self, now_monotonic: float) -> dict[str, Any]:
        """The canonical status JSON; before the first status its state is ``unknown``."""
        reason = self.stale_reason(now_monotonic)
        status = self.status or SandboxStatus(
            state="unknown",
            dialect=self.dialect,
            received_monotonic=now_monotonic,
            described_monotonic=now_monotonic,
        )
        shown = status.to_json(now_monotonic, stale=reason is not None, stale_reason=reason)
        if self.status is None:
            shown["age_ms"] = None
        return shown

    def says_the_same_as(self, other: Reading, now_monotonic: float) -> bool:
        """Whether somebody who was told the other reading would see nothing new in this one."""
        mine, theirs = self.error, other.error
        if (mine and describe_error(mine)) != (theirs and describe_error(theirs)):
            return False
        if self.status is None or other.status is None:
            return self.status is other.status
        return self.status.says_the_same_as(other.status, now_monotonic)


def describe_error(error: Exception) -> str:
    """One line for the user about an error.

    Our own errors are written for users. The text of any other is not shown: it may quote
    addresses or headers.
    """
    if isinstance(error, IvyError):
        line = " ".join(str(error).split())
        if line:
            return line[:_REASON_LIMIT_CHARACTERS]
    return f"The status of the sandbox could not be read ({type(error).__name__})."


def _duration(seconds: float) -> str:
    for unit_seconds, unit in ((3600, "hour"), (60, "minute"), (1, "second")):
        count = round(seconds / unit_seconds)
        if count >= 1 and seconds >= unit_seconds:
            return f"{count} {unit}{'' if count == 1 else 's'}"
    return "less than a second"
