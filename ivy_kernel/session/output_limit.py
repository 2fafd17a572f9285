"""Shows head and tail of a text that is too long, and keeps all of it in a file."""

from __future__ import annotations

import dataclasses
import os
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ivy_kernel.models import Message

SPILL_LIMIT_BYTES = 1_000_000_000
"""A cell that prints for ever must not fill the disk: a longer text is not kept."""
OLD_SPILL_SECONDS = 7 * 24 * 3600.0
"""Kept texts older than this are removed when the next one is kept."""

PIECE_BYTES = 16_000
"""Pieces of the tail are gathered up to this size: a message of its own costs hundreds of bytes."""

PIECE_PARTS = 200
"""So many texts of a piece are joined: a text of its own costs dozens of bytes."""

TAIL_PIECES = 2_000
"""Most pieces of the tail, which a cell that writes to two streams by turns cannot gather."""


@dataclass(slots=True)
class _Piece:
    """Some consecutive text of one stream."""

    message: Message
    parts: list[str]
    size_bytes: int

    def takes(self, message: Message) -> bool:
        return (
            self.size_bytes < PIECE_BYTES
            and self.message.content.get("name") == message.content.get("name")
            and self.message.parent_header == message.parent_header
        )

    def add(self, text: str, size_bytes: int) -> None:
        self.parts.append(text)
        self.size_bytes += size_bytes
        if len(self.parts) > PIECE_PARTS:
            self.parts = ["".join(self.parts)]

    def cut_front(self, cut_bytes: int) -> None:
        """Drop at least so many bytes; what is left of a character goes too."""
        raw = "".join(self.parts).encode("utf-8", "replace")[cut_bytes:]
        text = raw.decode("utf-8", "ignore")
        self.parts, self.size_bytes = [text], _size(text)


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
        self._tail: deque[_Piece] = deque()
        self._tail_held_bytes = 0
        self._cut_bytes = 0
        self._written_bytes = 0
        self._file: IO[str] | None = None
        self._path: Path | None = None

    def take(self, message: Message) -> list[Message]:
        """What of this message is shown now."""
        text = str(message.content.get("text", ""))
        if self._unlimited or not text:
            return [message]
        size = _size(text)
        if self._file is None and self._shown_bytes + size <= self._head_bytes:
            self._head.append(text)
            self._shown_bytes += size
            return [message]
        shown: list[Message] = []
        first = ""
        if self._file is None:
            self._spill()
            room = max(0, self._head_bytes - self._shown_bytes)
            first = text.encode("utf-8", "replace")[:room].decode("utf-8", "ignore")
            if first:
                shown.append(_with_text(message, first))
                self._shown_bytes += _size(first)
        self._write(text)
        self._keep(message, text[len(first) :], size - _size(first))
        return shown

    def _keep(self, message: Message, text: str, size: int) -> None:
        if self._tail and self._tail[-1].takes(message):
            self._tail[-1].add(text, size)
        else:
            self._tail.append(_Piece(message, [text], size))
        self._tail_held_bytes += size
        # Not at every message, since cutting costs time.
        if self._tail_held_bytes > 2 * self._tail_bytes or len(self._tail) > TAIL_PIECES:
            self._trim()

    def _trim(self) -> None:
        while self._tail_held_bytes > self._tail_bytes or len(self._tail) > TAIL_PIECES:
            surplus = self._tail_held_bytes - self._tail_bytes
            piece = self._tail[0]
            before = piece.size_bytes
            if 0 < surplus < before:
                piece.cut_front(surplus)
            else:
                self._tail.popleft()
                piece.size_bytes = 0
            self._cut_bytes += before - piece.size_bytes
            self._tail_held_bytes -= before - piece.size_bytes

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
            self._file = os.fdopen(descriptor, "w", encoding="utf-8", errors="replace")
        for text in self._head:
            self._write(text)
        self._head = []

    def _write(self, text: str) -> None:
        if self._file is None:
            return
        self._written_bytes += _size(text)
        if self._written_bytes > SPILL_LIMIT_BYTES:
            self._discard()
        if self._path is None:
            return
        try:
            self._file.write(text)
        except OSError:
            self._discard()

    def _discard(self) -> None:
        """Remove the file: part of a text that is called whole would be a lie, and takes room."""
        path, self._path = self._path, None
        if path is not None:
            with suppress(OSError):
                path.unlink()

    def _close(self) -> None:
        if self._file is not None:
            try:
                self._file.close()
            except OSError:  # the last of the text could not be written
                self._discard()

    def forget(self) -> None:
        """All shown so far is cleared from the front end, so the text begins anew."""
        self._close()
        self._discard()
        self._reset()

    def finish(self) -> list[Message]:
        """The end of the cell: the count of what is not shown, and the tail."""
        self._close()
        self._trim()
        if not self._cut_bytes:
            self._discard()
        path, cut = self._path, self._cut_bytes
        tail = [_with_text(piece.message, "".join(piece.parts)) for piece in self._tail]
        self._reset()
        if not cut:
            return tail
        where = f"the whole text is in {path}" if path else "the whole text could not be kept"
        note = (
            f"\n[… {cut:,} bytes of output are not shown here; {where}. "
            f"The setting output_limit_bytes changes how much is shown. …]\n"
        )
        return [Message("stream", {"name": "stderr", "text": note}), *tail]


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _with_text(message: Message, text: str) -> Message:
    return dataclasses.replace(message, content={**message.content, "text": text})


def _remove_old(directory: Path) -> None:
    for path in directory.glob("output-*.txt"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > OLD_SPILL_SECONDS:
                path.unlink()
