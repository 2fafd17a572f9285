"""Shows head and tail of a text that is too long, and keeps all of it in a file."""

from __future__ import annotations

import dataclasses
import os
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import IO

from ivy_kernel.models import Message

OLD_SPILL_SECONDS = 7 * 24 * 3600.0
"""Kept texts older than this are removed when the next one is kept."""


class OutputBound:
    """Decides what of a cell's stream text is shown.

    Parameters
    ----------
    limit_bytes
        Text shown per cell, in UTF-8 bytes, half of it head and half tail; 0 for no limit.
    directory
        Where the whole text of a cell is kept when it is longer than that.
    """

    def __init__(self, limit_bytes: int, directory: Path) -> None:
        self._head_bytes = limit_bytes // 2
        self._tail_bytes = limit_bytes - limit_bytes // 2
        self._unlimited = limit_bytes == 0
        self._directory = directory
        self._reset()

    def _reset(self) -> None:
        self._head: list[str] = []
        self._shown_bytes = 0
        self._tail: deque[Message] = deque()
        self._tail_held_bytes = 0
        self._cut_bytes = 0
        self._file: IO[str] | None = None
        self._path: Path | None = None

    def take(self, message: Message) -> list[Message]:
        """What of this message is shown now."""
        if self._unlimited:
            return [message]
        text = str(message.content.get("text", ""))
        size = len(text.encode("utf-8", "replace"))
        if self._file is None and self._shown_bytes + size <= self._head_bytes:
            self._head.append(text)
            self._shown_bytes += size
            return [message]
        shown: list[Message] = []
        if self._file is None:
            self._spill()
            room = max(0, self._head_bytes - self._shown_bytes)
            first = text.encode("utf-8", "replace")[:room].decode("utf-8", "ignore")
            if first:
                shown.append(_with_text(message, first))
                self._shown_bytes += len(first.encode("utf-8", "replace"))
            self._write(text)
            message = _with_text(message, text[len(first) :])
        else:
            self._write(text)
        self._keep(message)
        return shown

    def _keep(self, message: Message) -> None:
        self._tail.append(message)
        self._tail_held_bytes += _size(message)
        while self._tail and self._tail_held_bytes > self._tail_bytes:
            first = self._tail.popleft()
            size = _size(first)
            surplus = self._tail_held_bytes - self._tail_bytes
            self._tail_held_bytes -= size
            if size <= surplus:
                self._cut_bytes += size
                continue
            raw = str(first.content["text"]).encode("utf-8", "replace")
            rest = _with_text(first, raw[surplus:].decode("utf-8", "ignore"))
            self._cut_bytes += size - _size(rest)
            self._tail_held_bytes += _size(rest)
            self._tail.appendleft(rest)
            break

    def _spill(self) -> None:
        with suppress(OSError):
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _remove_old(self._directory)
            name = f"output-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(4).hex()}.txt"
            self._path = self._directory / name
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            self._file = os.fdopen(descriptor, "w", encoding="utf-8", errors="replace")
        if self._file is None:  # no file: head and tail are shown all the same
            self._path = None
            descriptor = os.open(os.devnull, os.O_WRONLY)
            self._file = os.fdopen(descriptor, "w", encoding="utf-8")
        for text in self._head:
            self._write(text)
        self._head = []

    def _write(self, text: str) -> None:
        if self._file is None:
            return
        try:
            self._file.write(text)
        except OSError:
            self._path = None

    def forget(self) -> None:
        """All shown so far is cleared from the front end."""
        if self._file is None:
            self._reset()

    def finish(self) -> list[Message]:
        """The end of the cell: the count of what is not shown, and the tail."""
        file, path, cut, tail = self._file, self._path, self._cut_bytes, list(self._tail)
        if file is not None:
            with suppress(OSError):
                file.close()
        self._reset()
        if not cut:
            if path is not None:
                with suppress(OSError):
                    path.unlink()
            return tail
        where = f"the whole text is in {path}" if path else "the whole text could not be kept"
        note = (
            f"\n[… {cut:,} bytes of output are not shown here; {where}. "
            f"The setting output_limit_bytes changes how much is shown. …]\n"
        )
        return [Message("stream", {"name": "stderr", "text": note}), *tail]


def _size(message: Message) -> int:
    return len(str(message.content.get("text", "")).encode("utf-8", "replace"))


def _with_text(message: Message, text: str) -> Message:
    return dataclasses.replace(message, content={**message.content, "text": text})


def _remove_old(directory: Path) -> None:
    for path in directory.glob("output-*.txt"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > OLD_SPILL_SECONDS:
                path.unlink()
