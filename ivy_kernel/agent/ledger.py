"""Which client may speak, and which of its submissions have been applied: once, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

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
