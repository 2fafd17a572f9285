"""The kernel's messages as an append-only stream of bytes, addressed by absolute offset."""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Sequence
from typing import Any

from .wire import to_json

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
