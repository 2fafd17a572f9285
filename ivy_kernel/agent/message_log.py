"""The kernel's messages as a stream of bytes by offset, and the long polls that wait for more."""

from __future__ import annotations

import base64
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .wire import SLICE_LIMIT_BYTES, to_json

if TYPE_CHECKING:
    from .retained_log import DiskLog

BLOCK_BYTES = 1 << 16

KEPT_BYTES = 64 << 20
"""What was acknowledged is kept in memory while the whole log is not longer than this."""


class MessageLog:
    """A byte stream that drops what was acknowledged and never renumbers the rest.

    Offsets count from the agent's start, so a reader that lost an answer names the offset it has
    and reads on; how the stream was cut into answers does not matter.

    Parameters
    ----------
    limit_bytes
        How much may be unacknowledged before output is dropped.
    kept_bytes
        The size up to which the log keeps what was acknowledged too.

    Attributes
    ----------
    base, end
        Where the unacknowledged part begins (or the block that it shares), and where the log ends.
    store
        Takes every record too, for longer than memory has room for; ``None``: there is none.
    """

    def __init__(self, limit_bytes: int, kept_bytes: int = 0) -> None:
        self.limit_bytes = limit_bytes
        self.base = 0
        self.end = 0
        self.store: DiskLog | None = None
        self._kept_bytes = kept_bytes
        self._kept_base = 0
        self._kept: deque[bytearray] = deque()
        self._blocks: deque[bytearray] = deque()

    @property
    def retained_bytes(self) -> int:
        """The number of unacknowledged bytes, and of what shares a block with them."""
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
        if self.store is not None:
            self.store.append(line)
        self._shed()

    def trim(self, offset: int) -> None:
        """Note what was acknowledged, before an offset: whole blocks at a time, or everything."""
        while self._blocks and self.base + len(self._blocks[0]) <= offset:
            self.base += len(self._blocks[0])
            self._kept.append(self._blocks.popleft())
        self._shed()

    def _shed(self) -> None:
        """Drop the oldest of what was acknowledged while there is too much."""
        while self._kept and self.end - self._kept_base > self._kept_bytes:
            self._kept_base += len(self._kept.popleft())

    def read(self, offset: int, limit_bytes: int) -> bytes:
        """Return at most ``limit_bytes`` of the unacknowledged part, from ``offset`` on."""
        return _slice(self._blocks, self.base, offset, limit_bytes)

    def read_kept(self, offset: int, limit_bytes: int) -> tuple[int, bytes]:
        """Return at most ``limit_bytes`` of all that is kept, and the offset where they begin.

        That is a later one than was asked for where so much is not kept any more.
        """
        if offset < self._kept_base and self.store is not None:
            start, data = self.store.read(offset, limit_bytes)
            if data and start < self._kept_base:
                return start, data
        offset = min(max(offset, self._kept_base), self.end)
        return offset, _slice((*self._kept, *self._blocks), self._kept_base, offset, limit_bytes)


def _slice(blocks: Iterable[bytearray], position: int, offset: int, wanted: int) -> bytes:
    """Return at most ``wanted`` bytes from ``offset`` on; the blocks begin at ``position``."""
    parts = []
    for block in blocks:
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


# -- the cells in it

CELLS_KEPT = 2000
CELLS_TOLD = 200
"""So many of the newest cells are told of at once, which one answer can hold."""


class CellIndex:
    """Where in the log each cell of a notebook is: what was said of it can be read again.

    Parameters
    ----------
    log
        The log.
    nonce
        The agent's own.
    """

    def __init__(self, log: MessageLog, nonce: str) -> None:
        self._log = log
        self._nonce = nonce
        self._cells: dict[str, dict[str, Any]] = {}
        self._grown: set[str] = set()

    def newest(self) -> list[dict[str, Any]]:
        """Return what is known of the newest cells, in the order in which they were submitted."""
        return list(self._cells.values())[-CELLS_TOLD:]

    def began(self, message_id: str, metadata: Any) -> None:
        """Note a cell that was submitted, if it is one of a notebook."""
        facts = metadata.get("ivy") if isinstance(metadata, dict) else None
        if not isinstance(facts, dict):
            return
        self._cells[message_id] = {
            "id": message_id,
            "log": self._nonce,
            "at": round(time.time(), 3),
            **{name: facts.get(name) for name in ("cell", "number", "code")},
            "start": self._log.end,
            "end": None,
            "fate": "",
        }
        while len(self._cells) > CELLS_KEPT:
            del self._cells[next(iter(self._cells))]
        self._write(message_id)

    def replied(self, message_id: str, content: bytes) -> None:
        """Note how a cell has ended, by its reply."""
        if message_id in self._cells:
            reply = json.loads(content.decode("utf-8"))
            self._cells[message_id]["fate"] = str(reply.get("status", ""))

    def ended(self, message_id: str, fate: str = "") -> None:
        """Note that a cell is over: by reply and "idle", or with another fate than those tell."""
        cell = self._cells.get(message_id)
        if cell is not None and cell["end"] is None:
            cell["fate"] = fate or cell["fate"]
            cell["end"] = self._log.end
            self._write(message_id)

    def heard(self, message_id: str) -> None:
        """Note a message of a cell, which may have left something running."""
        cell = self._cells.get(message_id)
        if cell is not None and cell["end"] is not None:
            cell["end"] = self._log.end
            self._grown.add(message_id)

    def flush_due(self, now: float, *, is_busy: bool = False) -> None:
        """Write what is due. Called with the clock."""
        store = self._log.store
        if store is None:
            return
        if self._grown and store.is_flush_due(now):
            grown, self._grown = self._grown, set()
            for message_id in grown.intersection(self._cells):
                self._write(message_id)
        store.flush_due(now, is_busy=is_busy)

    def _write(self, message_id: str) -> None:
        if self._log.store is not None:
            self._log.store.index(to_json(self._cells[message_id]) + b"\n")


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
