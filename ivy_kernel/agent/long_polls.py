"""Long polls that are parked: when each is answered, and with which slice of the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .message_log import MessageLog
from .wire import SLICE_LIMIT_BYTES


class LongPoll:
    """One request that is parked until there is something to tell.

    Parameters
    ----------
    connection
        Where its answer goes; opaque here.
    options
        The request's ``poll`` object: ``since`` (the offset up to which the client has everything),
        ``rewind`` (read from there again), ``wait``, ``grace`` (the batching delay; both in
        seconds), ``limit`` (characters of the frame), ``plain`` (whether the frame need not be
        packed), ``keep`` (how many polls may be parked, this one included) and ``idle`` (stay
        parked although nothing is running).
    now
        The monotonic clock.
    """

    __slots__ = (
        *("arrived", "connection", "deadline", "since", "must_rewind", "keep"),
        *("batching_delay", "is_idle", "limit_chars", "may_be_plain"),
    )

    def __init__(self, connection: Any, options: dict[str, Any], now: float) -> None:
        self.connection = connection
        self.arrived = now
        self.deadline = now + float(options.get("wait", 0))
        self.since = int(options.get("since", -1))
        self.must_rewind = bool(options.get("rewind"))
        self.keep = max(1, int(options.get("keep", 1)))
        self.batching_delay = float(options.get("grace", 0.02))
        self.limit_chars = int(options.get("limit", 1 << 20))
        self.may_be_plain = bool(options.get("plain"))
        self.is_idle = bool(options.get("idle"))


class LongPolls:
    """The parked polls of one client, oldest first, each answered with the next slice of the log.

    Two or three may be parked at once, so that the next slice need not wait for a round trip:
    ``cursor`` is where the next answer begins. When an answer was lost the client rewinds it.

    Parameters
    ----------
    log
        The log that is read.
    answer
        Called with a poll, an offset and what is there to read; returns how many bytes of that the
        answer took, 0 when the connection is dead.
    """

    def __init__(self, log: MessageLog, answer: Callable[[LongPoll, int, bytes], int]) -> None:
        self._log = log
        self._answer = answer
        self._parked: list[LongPoll] = []
        self._due: float | None = None
        self._notified_end = 0
        self.cursor = 0

    def __len__(self) -> int:
        return len(self._parked)

    def park(self, poll: LongPoll, now: float) -> None:
        """Add a poll; it supersedes the oldest beyond the number to keep, which are answered."""
        since = min(poll.since, self._log.end)
        if since < 0:
            since = self._log.base
        # What the client has is acknowledged by that, and need not be kept for a rewind.
        self._log.trim(since)
        # Calls overtake each other: without a rewind an older "since" must not set it back.
        self.cursor = max(since, self._log.base) if poll.must_rewind else max(since, self.cursor)
        self._parked.append(poll)
        if self.cursor < self._notified_end and self._due is None:
            self._due = now + poll.batching_delay
        while len(self._parked) > poll.keep:
            self._serve(now)

    def notify(self, now: float, *, at_once: bool = False, least_delay: float = 0.0) -> None:
        """Note that the log's end is worth an answer, at once or after the batching delay."""
        self._notified_end = self._log.end
        delay = self._parked[0].batching_delay if self._parked else 0.0
        due = now if at_once else now + max(delay, least_delay)
        # The first output sets the time; what follows does not put it off.
        self._due = due if self._due is None else min(self._due, due)

    def drop(self, connection: Any) -> None:
        """Remove the poll of a connection that has closed."""
        self._parked = [poll for poll in self._parked if poll.connection is not connection]

    def answer_all(self, now: float) -> None:
        """Answer every parked poll now, with what there is."""
        while self._parked:
            self._serve(now)

    def next_time(self, *, running: bool) -> float | None:
        """Return when :meth:`run` has something to do next, on the monotonic clock."""
        if not self._parked:
            return None
        times = [min(poll.deadline for poll in self._parked)]
        if self._due is not None:
            times.append(self._due)
        if not running and not all(poll.is_idle for poll in self._parked):
            times.append(0.0)
        return min(times)

    def run(self, now: float, *, running: bool) -> None:
        """Answer the polls that are due."""
        while self._parked and self._is_due(now):
            self._serve(now)
        for poll in list(self._parked):
            if poll.deadline <= now or not (running or poll.is_idle):
                # Slices are given out from the front, and this poll is the one to be answered.
                self._parked.remove(poll)
                self._parked.insert(0, poll)
                self._serve(now)

    def _is_due(self, now: float) -> bool:
        if self.cursor >= self._log.end:
            return False
        # More than one answer can hold has nothing to gain from waiting.
        backlog = self._log.end - self.cursor
        return (self._due is not None and self._due <= now) or (
            backlog > self._parked[0].limit_chars
        )

    def _serve(self, now: float) -> None:
        poll = self._parked.pop(0)
        offset = max(self.cursor, self._log.base)
        # Packed, eight bytes of the log may well become one character; more is rarely taken.
        wanted = min(SLICE_LIMIT_BYTES, poll.limit_chars * 8)
        self.cursor = offset + self._answer(poll, offset, self._log.read(offset, wanted))
        if self.cursor >= self._notified_end:
            self._due = None
