"""One vocabulary for the state of a sandbox, whichever API it was read from.

States
------
============  ==================================================================================
none          there is no sandbox
provisioning  a new one is being started
active        it is there and runs cells
hibernating   it is being put to sleep; its variables are about to be gone
hibernated    it sleeps: files kept, processes gone
restoring     it is being woken from a snapshot
archived      its session was put away
failed        it could not be started, or broke
expired       its runtime has ended
unknown       the API used a word that we do not know (``raw_state``), or none at all
============  ==================================================================================

`dialects` maps the words of the two APIs to states. Neither API has a word for "expired": an active
sandbox becomes expired when its deadline passes on the server's clock, between two answers too,
which is why ``effective_state`` takes the present moment.

Clocks
------
An answer describes the moment ``described_monotonic`` on this machine's monotonic clock (the middle
of the request), at which the server's clock said ``server_time``. So the server's present time is
``server_time + (now - described_monotonic)``, and a deadline on the server's clock is a duration
from now. The wall clock of this machine takes no part, so it may be wrong, or be set, by any
amount. Where the server's time is unknown, so is every duration that would need it: ``None``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from datetime import datetime, timedelta, timezone
from typing import Any, Literal

from ivy_kernel.errors import IvyError

State = Literal[
    "none",
    "provisioning",
    "active",
    "hibernating",
    "hibernated",
    "restoring",
    "archived",
    "failed",
    "expired",
    "unknown",
]
Dialect = Literal["ivy", "recoup", "ivy+recoup"]
"""The API that a status was read from; or both, joined by `dialects.join`."""
Deadline = Literal["hibernation", "expiry"]

STARTING_STATES: frozenset[State] = frozenset({"provisioning", "restoring"})
"""States that become active by themselves."""

CHANGING_STATES: frozenset[State] = STARTING_STATES | {"hibernating"}
"""States that change by themselves within seconds or minutes."""

END_STATES: frozenset[State] = frozenset({"none", "hibernated", "archived", "failed", "expired"})
"""States that only an action ends."""

_LABELS: dict[State, str] = {
    "none": "Not started",
    "provisioning": "Starting",
    "active": "Active",
    "hibernating": "Hibernating",
    "hibernated": "Hibernated",
    "restoring": "Resuming",
    "archived": "Archived",
    "failed": "Failed",
    "expired": "Expired",
    "unknown": "Unknown",
}
_HINTS: dict[State, str] = {
    "none": "The first cell that needs the sandbox starts it.",
    "hibernating": "Running processes are being stopped; files are kept.",
    "failed": "It could not start; the next cell tries again.",
}
_ENDED: dict[State, str] = {
    "hibernated": "It sleeps, and its variables are gone",
    "archived": "It was put away, and its variables are gone",
    "expired": "Its running time is over, and its variables are gone",
}

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND = timedelta(milliseconds=1)
# ETAs are estimates in whole seconds; deadlines only move by the uncertainty of the request.
_ETA_TOLERANCE_SECONDS = 2.0
_DEADLINE_TOLERANCE_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxStatus:
    """The status of a sandbox in one answer of an API.

    Parameters
    ----------
    state
        The state at the moment that the answer describes; see ``effective_state``.
    dialect
        The API that the answer came from.
    received_monotonic
        When the answer was there, on ``clock.monotonic_seconds``.
    described_monotonic
        The moment that the answer describes, on the same clock: the middle of the request.
    server_time
        The server's clock at that moment; ``None`` when the answer carried none.
    raw_state
        The API's own word for the state; ``None`` when it gave none.
    phase
        Where the launch is: ``compute``, ``mount``, ``ready``, ``failed`` or a word that we do not
        know; ``None`` when the API did not say.
    eta_seconds
        Estimated seconds from the described moment until it is ready; ``None`` when unknown.
    created_at, last_activity_at
        On the server's clock; ``None`` when unknown.
    hibernate_at
        After this moment on the server's clock it may be hibernated; ``None`` when that does not
        apply or is unknown.
    expires_at
        The end of its runtime, on the server's clock; ``None`` likewise.
    resumable
        A snapshot exists, so that a new sandbox starts with the old files; ``None`` when the API
        does not say.
    error
        Why it failed, in the API's words; ``None`` when it did not fail or gave no reason.
    sandbox_id
        The platform's own id of the sandbox, where an answer names it.
    creation_clock_ahead_seconds
        How far the clock of ``created_at`` is ahead of the one of ``server_time``: two APIs have
        two clocks.
    unknown
        A sentence for each thing that could not be found out: what, why, and what helps.
    retry_seconds
        What is unknown is worth another request after so long; ``None`` when nothing is.
    """

    state: State
    dialect: Dialect
    received_monotonic: float
    described_monotonic: float
    server_time: datetime | None = None
    raw_state: str | None = None
    phase: str | None = None
    eta_seconds: float | None = None
    created_at: datetime | None = None
    last_activity_at: datetime | None = None
    hibernate_at: datetime | None = None
    expires_at: datetime | None = None
    resumable: bool | None = None
    error: str | None = None
    sandbox_id: str | None = None
    creation_clock_ahead_seconds: float = 0.0
    unknown: tuple[str, ...] = ()
    retry_seconds: float | None = None

    @property
    def uncertainty_seconds(self) -> float:
        """The error bound of every duration, either way: half the time of the request.

        Large after a request during which the machine slept.
        """
        return max(0.0, self.received_monotonic - self.described_monotonic)

    def age_seconds(self, now_monotonic: float) -> float:
        """Return the seconds since the answer was received."""
        return max(0.0, now_monotonic - self.received_monotonic)

    def effective_state(self, now_monotonic: float) -> State:
        """Return the state now: an active sandbox whose expiry has passed is expired."""
        if self.state == "active" and self.remaining_seconds("expiry", now_monotonic) == 0:
            return "expired"
        return self.state

    def until_seconds(self, deadline: Deadline, now_monotonic: float) -> float | None:
        """Return the seconds until a deadline, negative when it has passed.

        Returns
        -------
        float | None
            ``None`` when there is no such deadline, or the server's clock is unknown.
        """
        moment = self.hibernate_at if deadline == "hibernation" else self.expires_at
        since = self._since_seconds(moment, now_monotonic)
        return None if since is None else -since

    def remaining_seconds(self, deadline: Deadline, now_monotonic: float) -> float | None:
        """Return the seconds until a deadline, 0 when it has passed; for display.

        Returns
        -------
        float | None
            ``None`` when there is no such deadline, or the server's clock is unknown.
        """
        until = self.until_seconds(deadline, now_monotonic)
        return None if until is None else max(0.0, until)

    def eta_remaining_seconds(self, now_monotonic: float) -> float | None:
        """Return the estimated seconds until it is ready, 0 when the estimate has passed.

        Returns
        -------
        float | None
            ``None`` when there is no estimate, or nothing is starting.
        """
        if self.eta_seconds is None or self.state not in STARTING_STATES:
            return None
        return max(0.0, self.eta_seconds - self._elapsed_seconds(now_monotonic))

    def uptime_seconds(self, now_monotonic: float) -> float | None:
        """Return the seconds since creation; ``None`` unless it is up and both are known."""
        # A hibernating sandbox is still up; of any other, the creation is that of its last run.
        if self.effective_state(now_monotonic) not in ("active", "hibernating"):
            return None
        since = self._since_seconds(self.created_at, now_monotonic)
        return None if since is None else max(0.0, since + self.creation_clock_ahead_seconds)

    def idle_seconds(self, now_monotonic: float) -> float | None:
        """Return the seconds since the last activity; ``None`` when a moment is unknown."""
        return _not_negative(self._since_seconds(self.last_activity_at, now_monotonic))

    def label(self, now_monotonic: float) -> str:
        """Return the word for the state now, the same wherever it is shown."""
        state = self.effective_state(now_monotonic)
        is_odd = state == "unknown" and self.raw_state is not None
        return f"{_LABELS[state]} ({self.raw_state})" if is_odd else _LABELS[state]

    def hint(self, now_monotonic: float) -> str:
        """Return what the state means for the user and what comes next; empty when it is plain."""
        state = self.effective_state(now_monotonic)
        if state in _ENDED:
            resumes = self.resumes(now_monotonic)
            then = "resumes it, with its files" if resumes else "starts a new one"
            return f"{_ENDED[state]}; the next cell {then}."
        if state == "unknown":
            if self.raw_state is None:
                return "Its state could not be read."
            return "The platform gave a state that this version does not know."
        return _HINTS.get(state, "")

    def resumes(self, now_monotonic: float) -> bool:
        """Whether creating the sandbox brings its files back."""
        state = self.effective_state(now_monotonic)
        if state == "hibernated":  # files are what hibernation keeps
            return self.resumable is not False
        return state in ("archived", "expired") and self.resumable is True

    def keeps_awake(self, now_monotonic: float) -> bool:
        """Whether a cell puts off the end that is nearest: a hibernation, and no expiry before."""
        if self.effective_state(now_monotonic) != "active":
            return False
        hibernation = self.remaining_seconds("hibernation", now_monotonic)
        expiry = self.remaining_seconds("expiry", now_monotonic)
        return hibernation is not None and (expiry is None or hibernation < expiry)

    def says_the_same_as(self, other: SandboxStatus, now_monotonic: float) -> bool:
        """Whether this is no news to a viewer who counts down from the other status."""
        if any(getattr(self, name) != getattr(other, name) for name in _LASTING_FIELDS):
            return False
        if self.effective_state(now_monotonic) != other.effective_state(now_monotonic):
            return False
        pairs = [
            (
                self.eta_remaining_seconds(now_monotonic),
                other.eta_remaining_seconds(now_monotonic),
                _ETA_TOLERANCE_SECONDS,
            )
        ]
        deadlines: tuple[Deadline, ...] = ("hibernation", "expiry")
        pairs += [
            (
                self.remaining_seconds(deadline, now_monotonic),
                other.remaining_seconds(deadline, now_monotonic),
                _DEADLINE_TOLERANCE_SECONDS,
            )
            for deadline in deadlines
        ]
        return all(_close(one, two, tolerance) for one, two, tolerance in pairs)

    def to_json(
        self,
        now_monotonic: float,
        *,
        stale: bool = False,
        stale_reason: str | None = None,
    ) -> dict[str, Any]:
        """Return the canonical JSON of the status, for every part that shows it.

        All durations are whole milliseconds from ``now_monotonic``; what does not apply in the
        state is ``None``.

        Parameters
        ----------
        now_monotonic
            The present moment on ``clock.monotonic_seconds``.
        stale
            A newer answer should be there but is not.
        stale_reason
            Why, as one sentence.
        """
        now = now_monotonic
        state = self.effective_state(now)
        # Only a sandbox that is up can hibernate; in an end state, deadlines are of its last run.
        hibernates_in = expires_in = None
        if state in ("active", "unknown"):
            hibernates_in = self.remaining_seconds("hibernation", now)
        if state == "expired":
            expires_in = 0.0
        elif state not in END_STATES:
            expires_in = self.remaining_seconds("expiry", now)
        return {
            "state": state,
            "label": self.label(now),
            "hint": self.hint(now),
            "raw_state": self.raw_state,
            "phase": self.phase,
            "eta_ms": _milliseconds(self.eta_remaining_seconds(now)),
            "uptime_ms": _milliseconds(self.uptime_seconds(now)),
            "created_ms": _epoch_milliseconds(self.created_at),
            "last_activity_ms": _epoch_milliseconds(self.last_activity_at),
            "idle_ms": _milliseconds(self.idle_seconds(now)),
            "hibernates_in_ms": _milliseconds(hibernates_in),
            "expires_in_ms": _milliseconds(expires_in),
            "resumable": self.resumable,
            "resumes": self.resumes(now),
            "keeps_awake": self.keeps_awake(now),
            "unknown": list(self.unknown),
            "error": self.error,
            "dialect": self.dialect,
            "age_ms": _milliseconds(self.age_seconds(now)),
            "stale": stale,
            "stale_reason": stale_reason,
        }

    def _elapsed_seconds(self, now_monotonic: float) -> float:
        # A "now" from before the answer would be a caller's mistake; it must not add time.
        return max(0.0, now_monotonic - self.described_monotonic)

    def _since_seconds(self, moment: datetime | None, now_monotonic: float) -> float | None:
        if moment is None or self.server_time is None:
            return None
        return (self.server_time - moment).total_seconds() + self._elapsed_seconds(now_monotonic)


# These differ from answer to answer although nothing has happened, or are not shown.
_PASSING_FIELDS = {
    "received_monotonic",
    "described_monotonic",
    "server_time",
    "eta_seconds",
    "sandbox_id",
    "creation_clock_ahead_seconds",
    "retry_seconds",
}
_LASTING_FIELDS = tuple(f.name for f in fields(SandboxStatus) if f.name not in _PASSING_FIELDS)


def _not_negative(seconds: float | None) -> float | None:
    return None if seconds is None else max(0.0, seconds)


def _close(one: float | None, two: float | None, tolerance: float) -> bool:
    if one is None or two is None:
        return one is two
    return abs(one - two) <= tolerance


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _epoch_milliseconds(moment: datetime | None) -> int | None:
    return None if moment is None else (moment - _EPOCH) // _MILLISECOND


# The newest status with its later error ----------------------------------------------------------
_REASON_LIMIT_CHARACTERS = 2_000
_NEVER_READ = "The status of the sandbox has not been read yet."


@dataclass(frozen=True, slots=True)
class StatusReading:
    """The last good status, and the error that came after it, if any.

    Parameters
    ----------
    status
        The last good status; ``None`` before the first.
    error
        Why the latest attempt gave no status; ``None`` when it gave one.
    stale_after_seconds
        A status older than this is stale even without an error: it was not polled since, or an
        answer is overdue.
    dialect
        The API that is polled; for the time before the first status.
    """

    status: SandboxStatus | None = None
    error: Exception | None = None
    stale_after_seconds: float = math.inf
    dialect: Dialect = "ivy"

    def good_age_seconds(self, now_monotonic: float) -> float:
        """Return the age of the status; infinite when there is none, or an error came later."""
        if self.status is None or self.error is not None:
            return math.inf
        return self.status.age_seconds(now_monotonic)

    def stale_reason(self, now_monotonic: float) -> str | None:
        """Return a sentence that says why the status is stale; ``None`` when it is not."""
        if self.error is not None:
            return describe_error(self.error)
        if self.status is None:
            return _NEVER_READ
        age_seconds = self.status.age_seconds(now_monotonic)
        if age_seconds > self.stale_after_seconds:
            return f"The status is {_duration(age_seconds)} old; no newer answer has come since."
        return None

    def to_json(self, now_monotonic: float) -> dict[str, Any]:
        """Return the canonical status JSON; before the first status its state is ``unknown``."""
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

    def says_the_same_as(self, other: StatusReading, now_monotonic: float) -> bool:
        """Whether this is no news to a viewer who was shown the other reading."""
        mine, theirs = self.error, other.error
        if (mine and describe_error(mine)) != (theirs and describe_error(theirs)):
            return False
        if self.status is None or other.status is None:
            return self.status is other.status  # equal only if neither has one
        return self.status.says_the_same_as(other.status, now_monotonic)


def describe_error(error: Exception) -> str:
    """Return one line for the user about an error.

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
