"""The message log on the sandbox's disk, where it outlives the agent and a hibernation."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import BinaryIO

SEGMENT_BYTES = 16 << 20
DISK_LIMIT_BYTES = 1 << 30
"""Of all that agents have said for a notebook; the oldest files go first."""

INDEX_LIMIT_BYTES = 4 << 20
FLUSH_SECONDS = 1.0
ALIVE_SECONDS = 5.0
"""While a cell runs, the newest file's time says so often that its agent lives."""
NOTEBOOK_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def output_directory(working_directory: str, notebook: str) -> Path | None:
    """Return where a notebook's outputs are kept; ``None`` for a name that is none of ours."""
    if not NOTEBOOK_NAME.fullmatch(notebook) or notebook.startswith("."):
        return None
    return Path(working_directory or ".", ".ivy", notebook, "outputs")


class DiskLog:
    """The whole log in files, for a client that comes when memory has forgotten, or the agent.

    Written in the background of the system: flushed at each cell's end and each second. Where the
    disk is full or may not be written, the log goes on in memory alone.

    Parameters
    ----------
    directory
        Where the files are; made if need be.
    nonce
        The agent's own, which its files carry in their names.
    start
        The log's offset at which the files begin.
    """

    def __init__(self, directory: Path, nonce: str, start: int) -> None:
        self.is_failed = False
        self._directory = directory
        self._nonce = nonce
        self._starts: list[int] = []
        self._end = start
        self._segment: BinaryIO | None = None
        self._index: BinaryIO | None = None
        self._is_unflushed = False
        self._flushed_at = 0.0
        self._told_alive_at = 0.0
        try:
            # The notebook's own directory is private too; others' permissions are left alone.
            directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.mkdir(mode=0o700, exist_ok=True)
            index = directory / "cells.jsonl"
            if index.exists() and index.stat().st_size > INDEX_LIMIT_BYTES:
                rows = index.read_bytes()[-INDEX_LIMIT_BYTES // 2 :]
                index.write_bytes(rows[rows.index(b"\n") + 1 :])
            self._index = _open_private(index)
        except (OSError, ValueError):
            self._fail()

    def append(self, line: bytes) -> None:
        """Add a record of the log."""
        if self.is_failed:
            return
        try:
            if self._segment is None or self._end - self._starts[-1] >= SEGMENT_BYTES:
                self._begin_segment()
            if self._segment is not None:
                self._segment.write(line)
            self._end += len(line)
            self._is_unflushed = True
        except OSError:
            self._fail()

    def index(self, line: bytes) -> None:
        """Add a line about a cell, and see to it that what came before it is in the files."""
        if self.is_failed or self._index is None:
            return
        try:
            self._flush()
            self._index.write(line)
            self._index.flush()
        except OSError:
            self._fail()

    def is_flush_due(self, now: float) -> bool:
        """Whether the last second is over."""
        return now - self._flushed_at >= FLUSH_SECONDS

    def flush_due(self, now: float, *, is_busy: bool) -> None:
        """Hand to the system what was written in the last second. Called with the clock."""
        try:
            if self._is_unflushed and self.is_flush_due(now):
                self._flushed_at = now
                self._flush()
            if is_busy and self._segment is not None and now - self._told_alive_at > ALIVE_SECONDS:
                self._told_alive_at = now
                os.utime(self._segment.fileno())
        except OSError:
            self._fail()

    def read(self, offset: int, limit_bytes: int) -> tuple[int, bytes]:
        """Return at most ``limit_bytes`` of one file, and the offset where they begin."""
        try:
            self._flush()
            following = [start for start in self._starts if start > offset]
            start = max((start for start in self._starts if start <= offset), default=None)
            if start is None:
                start = offset = min(following, default=self._end)
            with self._path(start).open("rb") as segment:
                segment.seek(offset - start)
                return offset, segment.read(limit_bytes)
        except OSError:
            return offset, b""

    def close(self) -> None:
        """Write what is not written yet. Called at the agent's end."""
        for file in (self._segment, self._index):
            try:
                if file is not None:
                    file.close()
            except OSError:
                continue  # there is nothing more that could be done
        self._segment = self._index = None
        self.is_failed = True

    def _flush(self) -> None:
        if self._segment is not None and self._is_unflushed:
            self._is_unflushed = False
            self._segment.flush()

    def _begin_segment(self) -> None:
        if self._segment is not None:
            self._segment.close()
        self._segment = _open_private(self._path(self._end))
        self._starts.append(self._end)
        found = sorted(self._directory.glob("log-*"), key=lambda path: path.stat().st_mtime)
        total = SEGMENT_BYTES + sum(path.stat().st_size for path in found)
        for path in found:
            if total <= DISK_LIMIT_BYTES or path == self._path(self._end):
                break
            total -= path.stat().st_size
            path.unlink()
            self._starts = [start for start in self._starts if self._path(start) != path]

    def _path(self, start: int) -> Path:
        return self._directory / f"log-{self._nonce}-{start:016d}"

    def _fail(self) -> None:
        self.close()


def _open_private(path: Path) -> BinaryIO:
    descriptor = os.open(str(path), os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
    return os.fdopen(descriptor, "ab", 1 << 18)
