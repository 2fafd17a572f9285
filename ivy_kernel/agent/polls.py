"""Parked requests: when each is answered, and with which slice of the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .message_log import MessageLog
from .wire import SLICE_LIMIT_BYTES


class Poll:
    """One parked request.

    Parameters
    ----------
    connection
        Where its answer goes; opaque here.
    wish
        The request's ``poll`` object: ``since`` (the offset up to which the client has everything),
        ``rewind`` (read from there again), ``wait``, ``grace`` (seconds), ``limit`` (characters of
        the frame), ``plain`` (whether the frame need not be packed), ``keep`` (how many polls may
        be parked, this one included) and ``idle`` (stay parked although nothing is running).
    now
        The monotonic clock.
    """

    __slots__ = (
        *("arrived", "connection", "deadline"),
        *("grace", "idle", "limit_chars", "may_be_plain"),
    )

    def __init__(self, connection: Any, wish: dict[str, Any], now: float) -> None:
        self.connection = connection
        self.arrived = now
        self.deadline = now + float(wish.get("wait", 0))
        self.grace = float(wish.get("grace", 0.02))
        self.limit_chars = int(wish.get("limit", 1 << 20))
        self.may_be_plain = bool(wish.get("plain"))
        self.idle = bool(wish.get("idle"))


class Polls:
    """The polls of one client, oldest first, each answered with the next slice of the log.

    Two or three may be parked at once, so that the next slice need not wait for a round trip:
    ``cursor`` is where the next answer begins. When an answer was lost the client rewinds it.

    Parameters
    ----------
    log
        The log that is read.
    answer
        Called with a poll, an offset and what is there to read; how many bytes of that the answer
        took, which is none when the connection is dead.
    """

    def __init__(self, log: MessageLog, answer: Callable[[Poll, int, bytes], int]) -> None:
        self._log = log
        self._answer = answer
        self._parked: list[Poll] = []
        self._due: float | None = None
        self._spoken = 0
        self.cursor = 0

    def __len__(self) -> int:
        return len(self._parked)

    def park(self, poll: Poll, wish: dict[str, Any], now: float) -> None:
        """Add a poll; the oldest beyond the number that its client keeps are answered."""
        since = min(int(wish.get("since", -1)), self._log.end)
        if since < 0:
            since = self._log.base
        self._log.trim(since)
        self.cursor = max(since, self._log.base) if wish.get("rewind") else max(since, self.cursor)
        self._parked.append(poll)
        if self.cursor < self._spoken and self._due is None:
            self._due = now + poll.grace
        while len(self._parked) > max(1, int(wish.get("keep", 1))):
            self._serve(now)

    def speak(self, now: float, *, at_once: bool = False, least_grace: float = 0.0) -> None:
        """There is something worth showing at the end of the log."""
        self._spoken = self._log.end
        grace = self._parked[0].grace if self._parked else 0.0
        due = now if at_once else now + max(grace, least_grace)
        self._due = due if self._due is None else min(self._due, due)

    def drop(self, connection: Any) -> None:
        """Forget the poll of a connection that has closed."""
        self._parked = [poll for poll in self._parked if poll.connection is not connection]

    def release(self, now: float) -> None:
        """Answer every parked poll now, with what there is."""
        while self._parked:
            self._serve(now)

    def next_time(self, *, running: bool) -> float | None:
        """When :meth:`run` has something to do next, on the monotonic clock."""
        if not self._parked:
            return None
        times = [min(poll.deadline for poll in self._parked)]
        if self._due is not None:
            times.append(self._due)
        if not running and not all(poll.idle for poll in self._parked):
            times.append(0.0)
        return min(times)

    def run(self, now: float, *, running: bool) -> None:
        """Answer the polls that are due."""
        while self._parked and self._is_due(now):
            self._serve(now)
        for poll in list(self._parked):
            if poll.deadline <= now or not (running or poll.idle):
                self._parked.remove(poll)
                self._parked.insert(0, poll)
                self._serve(now)

    def _is_due(self, now: float) -> bool:
        if self.cursor >= self._log.end:
            return False
        backlog = self._log.end - self.cursor
        return (self._due is not None and self._due <= now) or (
            backlog > self._parked[0].limit_chars
        )

    def _serve(self, now: float) -> None:
        poll = self._parked.pop(0)
        offset = max(self.cursor, self._log.base)
        wanted = min(SLICE_LIMIT_BYTES, poll.limit_chars * 8)
        self.cursor = offset + self._answer(poll, offset, self._log.read(offset, wanted))
        if self.cursor >= self._spoken:
            self._due = None
