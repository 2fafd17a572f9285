"""The kernel's messages as an append-only stream of bytes, addressed by absolute offset."""

from __future__ import annotations

from collections import deque

BLOCK_BYTES = 1 << 16


class MessageLog:
    """A byte stream that forgets what was acknowledged and never renumbers what is left.

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
        """How many bytes nobody has acknowledged yet."""
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
        """Forget what lies before an offset; whole blocks at a time, or everything."""
        if offset >= self.end:
            self._blocks.clear()
            self.base = self.end
            return
        while self._blocks and self.base + len(self._blocks[0]) <= offset:
            self.base += len(self._blocks.popleft())

    def read(self, offset: int, limit_bytes: int) -> bytes:
        """At most ``limit_bytes`` from ``offset`` on; the offset must not be trimmed yet."""
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
