"""Reading what a process writes, without ever keeping it from writing."""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import sys
import termios
from contextlib import suppress

_CHUNK_BYTES = 1 << 20
# More than the default of 64 KiB; a user has 64 MiB for all pipes.
_PIPE_BYTES = 256 << 10
_F_SETPIPE_SZ = 1031


class PipeReader:
    """Collects what comes out of one pipe, up to a limit; what is beyond is dropped and counted.

    It reads on after the call has ended, so that a daemon that holds the pipe is neither blocked
    nor killed by its next line.

    Parameters
    ----------
    limit_bytes
        How much is kept; 0 keeps nothing.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._kept = bytearray()
        self._read_bytes = 0
        self._done_at: int | None = None
        self._frozen = False
        self._waiting: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        if sys.platform == "linux":
            with suppress(OSError):
                # Fewer switches between writer and reader.
                fcntl.fcntl(self.write_end, _F_SETPIPE_SZ, _PIPE_BYTES)
        self._loop.add_reader(self._read_end, self._on_readable)

    @property
    def closed(self) -> bool:
        """Whether nobody can write any more."""
        return self._read_end < 0

    def _on_readable(self) -> None:
        try:
            chunk = os.read(self._read_end, _CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self.close()
            return
        self._read_bytes += len(chunk)
        if not self._frozen:
            room = self._limit_bytes - len(self._kept)
            self._kept += chunk[: max(0, room)]
        self._wake()

    def _wake(self) -> None:
        reached = self._done_at is not None and self._read_bytes >= self._done_at
        if self._waiting and not self._waiting.done() and (reached or self.closed):
            self._waiting.set_result(None)

    async def drained(self) -> bytes:
        """All that had been written when the process ended; call it then.

        Whatever a daemon writes later is read and dropped.
        """
        if not self.closed:
            buffer = fcntl.ioctl(self._read_end, termios.FIONREAD, b"\0\0\0\0")
            self._done_at = self._read_bytes + struct.unpack("i", buffer)[0]
            if self._read_bytes < self._done_at:
                self._waiting = self._loop.create_future()
                await self._waiting
        self._frozen = True
        kept = bytes(self._kept)
        dropped = max(0, self._read_bytes - len(kept))
        self._kept = bytearray()
        if dropped and self._limit_bytes:
            kept += f"\n... [output limit reached: {dropped} bytes more were dropped]\n".encode()
        return kept

    def close_write_end(self) -> None:
        """Close our copy of the writing end, when the process has its own."""
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def close(self) -> None:
        """Stop reading."""
        self.close_write_end()
        if self._read_end >= 0:
            self._loop.remove_reader(self._read_end)
            os.close(self._read_end)
            self._read_end = -1
        self._wake()
