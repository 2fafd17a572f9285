"""stdout and stderr: of Python by replacing ``sys.stdout``, of child processes by pipes."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import select
import struct
import sys
import termios
import threading
import time
from collections.abc import Iterable

from .agent_socket import AgentSocket

FLUSH_SECONDS = 0.03
FLUSH_CHARS = 1 << 18
SETTLE_SECONDS = 0.5
"""A child process that goes on printing must not keep its cell from ending."""


class TextStream(io.TextIOBase):
    """A ``sys.stdout`` whose text becomes ``stream`` messages, a few dozen a second at most."""

    def __init__(self, name: str, descriptor: int, agent: AgentSocket) -> None:
        self.name = name
        self._descriptor = descriptor
        self._agent = agent
        self._parts: list[str] = []
        self._size_chars = 0
        self._lock = threading.RLock()

    encoding = "utf-8"
    errors = "replace"

    def write(self, text: str) -> int:
        """Buffer some text; it is sent soon."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        with self._lock:
            self._parts.append(text)
            self._size_chars += len(text)
            if self._size_chars > FLUSH_CHARS:
                self.flush()
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:  # type: ignore[override]  # text, not bytes
        """Buffer several pieces of text."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Send what has been written."""
        with self._lock:
            text = "".join(self._parts)
            self._parts.clear()
            self._size_chars = 0
            if text:
                self._agent.publish("stream", {"name": self.name, "text": text})

    def isatty(self) -> bool:
        """Return false: nothing here understands a terminal's control codes."""
        return False

    def writable(self) -> bool:
        """Return true."""
        return True

    def fileno(self) -> int:
        """Return the descriptor for child processes; its text arrives by the pipe."""
        return self._descriptor


class PipeReader:
    """Sends what C code and child processes write to a descriptor as ``stream`` messages."""

    def __init__(self, name: str, descriptor: int, agent: AgentSocket) -> None:
        self._name = name
        self._agent = agent
        self._lock = threading.Lock()
        self._reader, writer = os.pipe()
        os.dup2(writer, descriptor)
        os.close(writer)
        threading.Thread(target=self._read, daemon=True).start()

    def settle(self) -> None:
        """Wait until what has been written so far is sent, so that it precedes the reply."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline:
            # With the lock: an empty pipe means nothing while its text is being sent.
            with self._lock:
                waiting = fcntl.ioctl(self._reader, termios.FIONREAD, b"\0\0\0\0")
                if struct.unpack("i", waiting)[0] == 0:
                    return
            time.sleep(0.001)

    def _read(self) -> None:
        while True:
            # Waits without the lock, and reads with it: see settle().
            select.select([self._reader], [], [])
            with self._lock:
                data = os.read(self._reader, 1 << 16)
                if not data:
                    return
                text = data.decode("utf-8", "replace")
                self._agent.publish("stream", {"name": self._name, "text": text})


class Capture:
    """Both streams, captured for the life of the process."""

    def __init__(self, agent: AgentSocket) -> None:
        self._pipes = [PipeReader("stdout", 1, agent), PipeReader("stderr", 2, agent)]
        self._streams = [TextStream("stdout", 1, agent), TextStream("stderr", 2, agent)]
        sys.stdout, sys.stderr = self._streams
        threading.Thread(target=self._flush_often, daemon=True).start()

    def flush(self) -> None:
        """Send everything that has been written up to now."""
        for stream in self._streams:
            stream.flush()
        for pipe in self._pipes:
            pipe.settle()

    def _flush_often(self) -> None:
        while True:
            time.sleep(FLUSH_SECONDS)
            for stream in self._streams:
                with contextlib.suppress(OSError):
                    stream.flush()
