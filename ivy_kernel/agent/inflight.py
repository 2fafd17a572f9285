"""Numbered submissions on their way to the kernel, and the requests that it is working on."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

# -- submissions, by sequence number

HELD_SUBMISSIONS_LIMIT = 4096
TOKENS_KEPT = 64


class TakenOverError(Exception):
    """The request comes from a client that a newer one has replaced."""


class SubmissionSequence:
    """Gives out client numbers, and lets numbered submissions through once and in order.

    HTTP calls overtake each other, get lost and are sent again. A client therefore numbers what it
    submits 1, 2, 3, … and sends all that is unacknowledged with every call; each sequence number
    is applied exactly once, and only when all smaller ones have been applied.
    """

    def __init__(self) -> None:
        self.client_number = 0
        self.applied = 0
        self._tokens: dict[str, int] = {}
        self._held: dict[int, Any] = {}

    @property
    def is_holding(self) -> bool:
        """Whether a submission waits for an earlier one that has not arrived."""
        return bool(self._held)

    def attach(self, token: str) -> int:
        """Return the number of the client with this token; a new token takes over.

        Raises TakenOverError for a token that was known and has been replaced.
        """
        # The token makes attaching repeatable: a start call that failed is made again, and a
        # second call confirms that the agent outlives the first, both with the same token.
        if token not in self._tokens:
            self.client_number += 1
            self._tokens[token] = self.client_number
            self.applied = 0
            self._held.clear()
            while len(self._tokens) > TOKENS_KEPT:
                del self._tokens[next(iter(self._tokens))]
        number = self._tokens[token]
        self.check(number)
        return number

    def check(self, client_number: int) -> None:
        """Raise TakenOverError unless this is the latest client."""
        if client_number != self.client_number:
            raise TakenOverError

    def take(self, numbered: Iterable[Any]) -> Iterator[Any]:
        """Yield the submissions that are next in order, out of ``[number, submission]`` pairs."""
        for number, submission in numbered:
            # One beyond the limit is not lost: it stays unacknowledged and is sent again.
            if number > self.applied and len(self._held) < HELD_SUBMISSIONS_LIMIT:
                self._held[number] = submission
        while self.applied + 1 in self._held:
            self.applied += 1
            yield self._held.pop(self.applied)


# -- requests in flight, by message id

ARMING_SECONDS = 0.05
"""A kernel that has just said "busy" may not listen for SIGINT yet, and would lose it."""

LONGEST_ARMING_SECONDS = 5.0
"""A cell that ignores SIGINT for longer than this after it began does so on purpose."""

SHORT_CELL_SECONDS = 0.05
"""Most cells end within this; their first output can wait for their end."""

REPLY_GRACE_SECONDS = 3.0
"""After "idle" a reply may still come for so long."""

INTERRUPTED_GRACE_SECONDS = 1.0
"""The same after an interrupt, which costs the reply when it hits the kernel's own code."""

ANSWERS_KEPT = 64

PROBE_SECONDS = 2.0
"""After so long without an end the kernel is asked something, to see whether it is done."""


class InFlightRequest:
    """One request that the kernel was given, or will be given as soon as it is ready."""

    __slots__ = ("idle_at", "is_in_order", "is_signalled", "needs_idle", "needs_reply")

    def __init__(self, *, needs_reply: bool, is_in_order: bool = True) -> None:
        self.is_in_order = is_in_order
        self.needs_reply = needs_reply
        self.needs_idle = True
        self.is_signalled = False
        self.idle_at: float | None = None

    def is_overdue(self, now: float) -> bool:
        """Whether the kernel is idle after it and will not reply any more."""
        grace = INTERRUPTED_GRACE_SECONDS if self.is_signalled else REPLY_GRACE_SECONDS
        return self.idle_at is not None and now - self.idle_at > grace


class InFlightRequests:
    """Requests by message id, from submission until both their reply and "idle" have come."""

    def __init__(self) -> None:
        self._requests: dict[str, InFlightRequest] = {}
        self._current = ""
        self._busy_since = 0.0
        self._armed: set[str] = set()
        self._signal_at: float | None = None
        self._answers: dict[str, str] = {}
        self._probed: tuple[str, ...] = ()
        self._probe_at: float | None = None

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def current(self) -> str:
        """The message id of the cell or callback that the kernel runs, or an empty string."""
        return self._current

    @property
    def is_ending(self) -> bool:
        """Whether what runs was interrupted, or will be in a moment."""
        request = self._requests.get(self._current)
        return self._signal_at is not None or (request is not None and request.is_signalled)

    def has_just_begun(self, now: float) -> bool:
        """Whether the kernel has begun only now to run what it runs."""
        return self._current != "" and now - self._busy_since < SHORT_CELL_SECONDS

    @property
    def ids(self) -> list[str]:
        """The message ids of all requests in flight."""
        return list(self._requests)

    def add(self, message_id: str, msg_type: str, now: float, *, channel: str = "shell") -> None:
        """Add a request that goes to the kernel."""
        # Comm messages have no reply in the protocol: "idle" alone ends them.
        is_comm = msg_type in ("comm_open", "comm_msg", "comm_close")
        self._requests[message_id] = InFlightRequest(
            needs_reply=not is_comm, is_in_order=channel == "shell"
        )
        if self._probe_at is None:
            self._probe_at = now + PROBE_SECONDS

    def busy(self, message_id: str, now: float) -> None:
        """Note that the kernel has begun to run a cell or a callback."""
        self._current = message_id
        self._busy_since = now
        if message_id in self._armed:
            self._signal_at = now + ARMING_SECONDS

    def idle(self, message_id: str, now: float) -> bool:
        """Note that the kernel is idle after a request; return whether that ends it."""
        if message_id == self._current:
            self._current = ""
            # A signal that is still due was meant for this cell and must not hit the next one.
            self._signal_at = None
        self._armed.discard(message_id)
        request = self._requests.get(message_id)
        if request is None:
            return False
        request.needs_idle = False
        request.idle_at = now
        return self._ended(message_id, request)

    def replied(self, message_id: str) -> bool:
        """Note that the kernel has replied to a request; return whether that ends it."""
        request = self._requests.get(message_id)
        if request is None:
            return False
        request.needs_reply = False
        return self._ended(message_id, request)

    def heard(self, message_id: str, now: float) -> None:
        """Note output of a request; while that comes, its end may still be on the way behind it."""
        request = self._requests.get(message_id)
        if request is not None and request.needs_idle and request.idle_at is not None:
            request.idle_at = now

    def take_unanswered(self, now: float) -> list[str]:
        """Remove the requests whose reply is overdue, and return their ids."""
        overdue = [i for i, request in self._requests.items() if request.is_overdue(now)]
        for message_id in overdue:
            del self._requests[message_id]
        return overdue

    @property
    def probe_at(self) -> float | None:
        """The time at which to ask the kernel whether it is done, on the monotonic clock."""
        return None if self._probed else self._probe_at

    def take_probe(self, now: float, waiting: Container[str]) -> bool:
        """Return whether to ask the kernel something now: it takes requests in order.

        It is then done with all that it was given before it answers, said it so or not. One
        question is on its way at a time; it waits behind a cell that runs.

        Parameters
        ----------
        now
            The monotonic clock.
        waiting
            The requests that the kernel has not been given yet.
        """
        if self.probe_at is None or now < self.probe_at:
            return False
        in_order = [i for i, request in self._requests.items() if request.is_in_order]
        self._probed = tuple(i for i in in_order if i not in waiting)
        self._probe_at = now + PROBE_SECONDS if self._requests else None
        return bool(self._probed)

    def probe_answered(self, now: float, *, is_running: bool) -> None:
        """Note that the kernel has answered; what it was asked after is over, unless it says so.

        Its reply and "idle" may still be on their way, hence they are given up only later.

        Parameters
        ----------
        now
            The monotonic clock.
        is_running
            Whether the kernel runs a cell all the same: some cells take requests while they wait.
        """
        probed, self._probed = self._probed, ()
        self._probe_at = now + PROBE_SECONDS if self._requests else None
        if is_running:
            return
        for message_id in probed:
            request = self._requests.get(message_id)
            if request is not None and request.idle_at is None:
                request.idle_at = now
            if message_id == self._current:
                self._current = ""
                self._signal_at = None

    def lose(self, waiting: Container[str]) -> list[str]:
        """Remove what a kernel that has ended was given, all but ``waiting``; return the ids."""
        lost = [message_id for message_id in self._requests if message_id not in waiting]
        for message_id in lost:
            del self._requests[message_id]
        self._armed.intersection_update(self._requests)
        self._current = ""
        self._signal_at = None
        self._probed = ()
        return lost

    def interrupt(self, interrupt_request: dict[str, Any], now: float) -> str:
        """Aim an interrupt at one request: ``sent``, ``armed`` (it is queued) or ``finished``.

        A repeated interrupt, known by its id, gets the same answer and sends nothing again.
        """
        interrupt_id = str(interrupt_request.get("id", ""))
        target = str(interrupt_request.get("target", ""))
        if interrupt_id in self._answers:
            return self._answers[interrupt_id]
        if target and target == self._current:
            self._signal_at = max(now, self._busy_since + ARMING_SECONDS)
            answer = "sent"
        elif target in self._requests:
            # Queued; or, without effect, a request of another type, or one that lacks its reply.
            self._armed.add(target)
            answer = "armed"
        else:
            answer = "finished"
        self._answers[interrupt_id] = answer
        while len(self._answers) > ANSWERS_KEPT:
            del self._answers[next(iter(self._answers))]
        return answer

    @property
    def signal_at(self) -> float | None:
        """The time at which to signal the kernel, on the monotonic clock."""
        return self._signal_at

    def take_signal(self, now: float, *, is_ignored: Callable[[], bool] = bool) -> bool:
        """Return whether to signal the kernel now; true once for each signal.

        Put off while the kernel, which has only begun, still ignores the signal.
        """
        if self._signal_at is None or now < self._signal_at:
            return False
        if now - self._busy_since < LONGEST_ARMING_SECONDS and self._current and is_ignored():
            self._signal_at = now + ARMING_SECONDS
            return False
        self._signal_at = None
        if self._current in self._requests:
            self._requests[self._current].is_signalled = True
        return bool(self._current)

    def _ended(self, message_id: str, request: InFlightRequest) -> bool:
        if request.needs_reply or request.needs_idle:
            return False
        del self._requests[message_id]
        return True
