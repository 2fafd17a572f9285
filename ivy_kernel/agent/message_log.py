"""The kernel's messages as a stream of bytes by offset, and the long polls that wait for more."""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from .wire import SLICE_LIMIT_BYTES, to_json

BLOCK_BYTES = 1 << 16


class MessageLog:
    """A byte stream that drops what was acknowledged and never renumbers the rest.

    Offsets count from the agent's start, so a reader that lost an answer names the offset it has
    and reads on; how the stream was cut into answers does not matter.

    Parameters
    ----------
    limit_bytes
        How much may be retained before output is dropped.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.base = 0
        self.end = 0
        self._blocks: deque[bytearray] = deque()

    @property
    def retained_bytes(self) -> int:
        """The number of bytes kept: unacknowledged ones, and what shares a block with them."""
        return self.end - self.base

    def has_room(self, size_bytes: int, *, times: int = 1) -> bool:
        """Whether a message of this size fits below ``times`` the limit."""
        return self.retained_bytes + size_bytes <= self.limit_bytes * times

    def append(self, line: bytes) -> None:
        """Add one record, which ends in a newline."""
        if not self._blocks or len(self._blocks[-1]) >= BLOCK_BYTES:
            self._blocks.append(bytearray())
        self._blocks[-1] += line
        self.end += len(line)

    def trim(self, offset: int) -> None:
        """Drop what lies before an offset; whole blocks at a time, or everything."""
        if offset >= self.end:
            self._blocks.clear()
            self.base = self.end
            return
        while self._blocks and self.base + len(self._blocks[0]) <= offset:
            self.base += len(self._blocks.popleft())

    def read(self, offset: int, limit_bytes: int) -> bytes:
        """Return at most ``limit_bytes`` from ``offset`` on, which must not be trimmed yet."""
        parts = []
        position = self.base
        wanted = limit_bytes
        for block in self._blocks:
            skip = max(0, offset - position)
            if skip < len(block) and wanted > 0:
                part = bytes(memoryview(block)[skip : skip + wanted])
                parts.append(part)
                wanted -= len(part)
            position += len(block)
            if wanted <= 0:
                break
        return b"".join(parts)


DROPPABLE_TYPES = ("stream", "display_data", "update_display_data")
"""Dropped first when the log is not fetched: output without which the protocol still works."""


class MessageRecorder:
    """Writes records to the log; above its limit drops output, counts it, and records the loss.

    A record is ``{"c": channel, "h": header, "p": parent, "m": metadata, "d": content}``, with
    ``"b"`` for buffers in base64. Our own events are on the channel ``agent``.

    Parameters
    ----------
    log
        Where the records go.
    """

    def __init__(self, log: MessageLog) -> None:
        self._log = log
        self._dropped_messages = 0
        self._dropped_bytes = 0

    def record(
        self, channel: str, msg_type: str, parts: Sequence[bytes], buffers: Sequence[Any]
    ) -> None:
        """Record one message: header, parent header, metadata, content as JSON bytes."""
        # The parts are copied as they are: writing them anew would only cost time.
        line = b'{"c":"%s","h":%s,"p":%s,"m":%s,"d":%s' % (channel.encode(), *parts)
        if buffers:
            texts = [base64.b64encode(bytes(buffer)).decode() for buffer in buffers]
            line += b',"b":' + to_json(texts)
        # A line break in JSON is white space (within strings it is escaped), and one ends a record.
        line = line.replace(b"\n", b" ") + b"}\n"
        if not self._may_keep(channel, msg_type, len(line)):
            self._dropped_messages += 1
            self._dropped_bytes += len(line)
            return
        # Told as soon as something fits again, before it: the event stands where the gap is.
        if self._dropped_messages:
            messages, size_bytes = self._dropped_messages, self._dropped_bytes
            self._dropped_messages = self._dropped_bytes = 0
            self.record_event("dropped", messages=messages, bytes=size_bytes)
        self._log.append(line)

    def record_event(self, name: str, **details: Any) -> None:
        """Record an event of the agent's own."""
        details["event"] = name
        self._log.append(b'{"c":"agent","d":%s}\n' % to_json(details))

    def _may_keep(self, channel: str, msg_type: str, size_bytes: int) -> bool:
        if self._log.has_room(size_bytes):
            return True
        if msg_type in DROPPABLE_TYPES:
            return False
        # Without these a cell would never end: replies, input requests, "idle", errors.
        if channel != "iopub" or msg_type in ("status", "error"):
            return True
        return self._log.has_room(size_bytes, times=2)


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
        packed), ``room`` (the most of the log that it may hold, in bytes), ``keep`` (how many polls
        may be parked, this one included) and ``idle`` (stay parked although nothing is running).
    now
        The monotonic clock.
    """

    __slots__ = (
        *("arrived", "connection", "deadline", "since", "must_rewind", "keep"),
        *("batching_delay", "room_bytes", "is_idle", "limit_chars", "may_be_plain"),
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
        self.room_bytes = int(options.get("room", SLICE_LIMIT_BYTES))
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
        self._unseen_since: float | None = None
        self._notified_end = 0
        self.cursor = 0

    def __len__(self) -> int:
        return len(self._parked)

    @property
    def unread_bytes(self) -> int:
        """How much of the log no answer has held yet."""
        return self._log.end - max(self.cursor, self._log.base)

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
            # What came while no poll was parked has been collected for as long as it has waited.
            began = self._unseen_since if self._unseen_since is not None else now
            self._due = max(now, began + poll.batching_delay)
        while len(self._parked) > poll.keep:
            self._serve(now)

    def notify(self, now: float, *, at_once: bool = False, least_delay: float = 0.0) -> None:
        """Note that the log's end is worth an answer, at once or after the batching delay."""
        self._notified_end = self._log.end
        if not self._parked and not at_once:
            if self._unseen_since is None:
                self._unseen_since = now
            return  # how long it may be collected is said by the poll that comes next
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
        wanted = min(SLICE_LIMIT_BYTES, poll.limit_chars * 8, max(1, poll.room_bytes))
        self.cursor = offset + self._answer(poll, offset, self._log.read(offset, wanted))
        if self.cursor >= self._notified_end:
            self._due = self._unseen_since = None
