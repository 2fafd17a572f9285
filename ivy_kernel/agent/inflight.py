"""The requests that the kernel is working on, and the interrupts aimed at them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


HELD_LIMIT = 4096
TOKENS_KEPT = 64


class TakenOverError(Exception):
    """The request comes from a client that a newer one has replaced."""


class Ledger:
    """Hands out client sessions and puts their numbered submissions in order.

    HTTP calls overtake each other, get lost and are sent again. A client therefore numbers what it
    submits 1, 2, 3, … and sends everything that is not acknowledged with every call; the ledger
    lets each number through exactly once, and only when all smaller ones have gone through.
    """

    def __init__(self) -> None:
        self.session = 0
        self.applied = 0
        self._tokens: dict[str, int] = {}
        self._held: dict[int, Any] = {}

    @property
    def is_holding(self) -> bool:
        """Whether a submission waits for an earlier one that has not arrived."""
        return bool(self._held)

    def attach(self, token: str) -> int:
        """The session of the client with this token; a token not seen before takes over."""
        if token not in self._tokens:
            self.session += 1
            self._tokens[token] = self.session
            self.applied = 0
            self._held.clear()
            while len(self._tokens) > TOKENS_KEPT:
                del self._tokens[next(iter(self._tokens))]
        session = self._tokens[token]
        self.check(session)
        return session

    def check(self, session: int) -> None:
        """Raise TakenOverError unless this is the session that may speak."""
        if session != self.session:
            raise TakenOverError

    def take(self, numbered: Iterable[Any]) -> Iterator[Any]:
        """The submissions whose turn has come, out of ``[number, submission]`` pairs."""
        for number, submission in numbered:
            if number > self.applied and len(self._held) < HELD_LIMIT:
                self._held[number] = submission
        while self.applied + 1 in self._held:
            self.applied += 1
            yield self._held.pop(self.applied)


ARMING_SECONDS = 0.05
"""A kernel that has just said "busy" may not listen for SIGINT yet, and would lose it."""

LONGEST_ARMING_SECONDS = 5.0
"""A cell that ignores SIGINT for longer than this after it began does so on purpose."""

YOUNG_SECONDS = 0.05
"""Most cells end within this; what they say first can wait for their end."""

REPLY_GRACE_SECONDS = 3.0
"""How long after "idle" a reply may still come."""

INTERRUPTED_GRACE_SECONDS = 1.0
"""The same after an interrupt, which costs the reply when it hits the kernel's own code."""

ANSWERS_KEPT = 64


class Flight:
    """One request on its way through the kernel."""

    __slots__ = ("idle_at", "is_signalled", "needs_idle", "needs_reply")

    def __init__(self, *, needs_reply: bool) -> None:
        self.needs_reply = needs_reply
        self.needs_idle = True
        self.is_signalled = False
        self.idle_at: float | None = None

    def is_late(self, now: float) -> bool:
        """Whether the kernel is done with it and will not reply any more."""
        grace = INTERRUPTED_GRACE_SECONDS if self.is_signalled else REPLY_GRACE_SECONDS
        return self.idle_at is not None and now - self.idle_at > grace


class Flights:
    """Requests by message id, from submission until both their reply and "idle" have come."""

    def __init__(self) -> None:
        self._flights: dict[str, Flight] = {}
        self._current = ""
        self._busy_since = 0.0
        self._armed: set[str] = set()
        self._signal_at: float | None = None
        self._answers: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def current(self) -> str:
        """The message id of what the kernel runs, a cell or a callback, or an empty string."""
        return self._current

    def has_just_begun(self, now: float) -> bool:
        """Whether the kernel has begun only now to run what it runs."""
        return self._current != "" and now - self._busy_since < YOUNG_SECONDS

    @property
    def ids(self) -> list[str]:
        """The message ids of all that is under way."""
        return list(self._flights)

    def start(self, message_id: str, msg_type: str) -> None:
        """A request goes to the kernel."""
        is_comm = msg_type in ("comm_open", "comm_msg", "comm_close")
        self._flights[message_id] = Flight(needs_reply=not is_comm)

    def busy(self, message_id: str, now: float) -> None:
        """The kernel has begun to run a cell or a callback."""
        self._current = message_id
        self._busy_since = now
        if message_id in self._armed:
            self._signal_at = now + ARMING_SECONDS

    def idle(self, message_id: str, now: float) -> bool:
        """The kernel is done with a request; whether that ends it."""
        if message_id == self._current:
            self._current = ""
            self._signal_at = None
        self._armed.discard(message_id)
        flight = self._flights.get(message_id)
        if flight is None:
            return False
        flight.needs_idle = False
        flight.idle_at = now
        return self._ended(message_id, flight)

    def replied(self, message_id: str) -> bool:
        """The kernel has replied to a request; whether that ends it."""
        flight = self._flights.get(message_id)
        if flight is None:
            return False
        flight.needs_reply = False
        return self._ended(message_id, flight)

    def unanswered(self, now: float) -> list[str]:
        """Requests that the kernel is done with and did not reply to; they are forgotten."""
        late = [message_id for message_id, flight in self._flights.items() if flight.is_late(now)]
        for message_id in late:
            del self._flights[message_id]
        return late

    def lose(self, waiting: Container[str]) -> list[str]:
        """The kernel is gone: forget all but what it was never given; the ids of what is lost."""
        lost = [message_id for message_id in self._flights if message_id not in waiting]
        for message_id in lost:
            del self._flights[message_id]
        self._armed.intersection_update(self._flights)
        self._current = ""
        self._signal_at = None
        return lost

    def interrupt(self, wish: dict[str, Any], now: float) -> str:
        """Aim an interrupt at one request: ``sent``, ``armed`` (it is queued) or ``finished``.

        A repeated wish, known by its id, gets the same answer and sends nothing again.
        """
        wish_id, target = str(wish.get("id", "")), str(wish.get("target", ""))
        if wish_id in self._answers:
            return self._answers[wish_id]
        if target and target == self._current:
            self._signal_at = max(now, self._busy_since + ARMING_SECONDS)
            answer = "sent"
        elif target in self._flights:
            self._armed.add(target)
            answer = "armed"
        else:
            answer = "finished"
        self._answers[wish_id] = answer
        while len(self._answers) > ANSWERS_KEPT:
            del self._answers[next(iter(self._answers))]
        return answer

    @property
    def signal_at(self) -> float | None:
        """When the kernel is to be signalled, on the monotonic clock."""
        return self._signal_at

    def take_signal(self, now: float, *, is_ignored: Callable[[], bool] = bool) -> bool:
        """Whether to signal the kernel now; asked once, answered once.

        Put off while the kernel, which has only begun, still ignores the signal.
        """
        if self._signal_at is None or now < self._signal_at:
            return False
        if now - self._busy_since < LONGEST_ARMING_SECONDS and self._current and is_ignored():
            self._signal_at = now + ARMING_SECONDS
            return False
        self._signal_at = None
        if self._current in self._flights:
            self._flights[self._current].is_signalled = True
        return bool(self._current)

    def _ended(self, message_id: str, flight: Flight) -> bool:
        if flight.needs_reply or flight.needs_idle:
            return False
        del self._flights[message_id]
        return True
