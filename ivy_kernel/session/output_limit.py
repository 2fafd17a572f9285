"""The limit of a shown text: its head and its tail, and the whole of it in a private file."""

from __future__ import annotations

import dataclasses
import os
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from jupyter_core.paths import jupyter_data_dir

from ivy_kernel.models import Json, Message

PIECE_BYTES = 16_000
"""Texts of the tail are joined to pieces of this size: each message costs hundreds of bytes."""

PIECE_PARTS = 200
"""So many texts of a piece become one string: each string costs dozens of bytes."""

TAIL_PIECES = 2_000
"""Most pieces of the tail; a cell that writes to two streams by turns makes one for each write."""


@dataclass(slots=True)
class _Piece:
    """Consecutive text of one stream, as it waits in the tail."""

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
        """Drop at least so many bytes, and the rest of a character that is cut through."""
        raw = "".join(self.parts).encode("utf-8", "replace")[cut_bytes:]
        text = raw.decode("utf-8", "ignore")
        self.parts, self.size_bytes = [text], size_of(text)


class OutputLimit:
    """Shows head and tail of a cell's text when it is too long, and keeps all of it in a file.

    Parameters
    ----------
    limit_bytes
        Text shown per cell, in UTF-8 bytes, half of it head and half tail; 0 for no limit.
    directory
        Directory for the whole text of a cell that is longer than that; ``None`` for the standard
        one.
    """

    def __init__(self, limit_bytes: int, directory: Path | None = None) -> None:
        self._limit_bytes = limit_bytes
        self._head_bytes = limit_bytes // 2
        self._tail_bytes = limit_bytes - limit_bytes // 2
        self._unlimited = limit_bytes == 0
        self._directory = directory or Path(jupyter_data_dir()) / "ivy" / "outputs"
        self._reset()

    def _reset(self) -> None:
        self._head: list[str] = []
        self._shown_bytes = 0
        self._tail: deque[_Piece] = deque()
        self._tail_held_bytes = 0
        self._cut_bytes = 0
        self._parent_header: Json | None = None
        self._kept: KeptText | None = None

    def take(self, message: Message) -> list[Message]:
        """Return the part of this message that is shown now: all, some, or nothing of it."""
        text = str(message.content.get("text", ""))
        if self._unlimited or not text:
            return [message]
        size = size_of(text)
        self._parent_header = message.parent_header
        if self._kept is None and self._shown_bytes + size <= self._head_bytes:
            self._head.append(text)
            self._shown_bytes += size
            return [message]
        shown: list[Message] = []
        first = ""
        kept = self._kept
        if kept is None:  # the text that does not fit any more: its beginning still may
            kept = self._kept = KeptText(self._directory)
            for head in self._head:
                kept.write(head, size_of(head))
            self._head = []
            room = max(0, self._head_bytes - self._shown_bytes)
            first = text.encode("utf-8", "replace")[:room].decode("utf-8", "ignore")
            if first:
                shown.append(_with_text(message, first))
                self._shown_bytes += size_of(first)
        kept.write(text, size)
        self._keep(message, text[len(first) :], size - size_of(first))
        return shown

    def _keep(self, message: Message, text: str, size: int) -> None:
        if self._tail and self._tail[-1].takes(message):
            self._tail[-1].add(text, size)
        else:
            self._tail.append(_Piece(message, [text], size))
        self._tail_held_bytes += size
        # Twice the limit, so that not every message is cut, which costs time.
        if self._tail_held_bytes > 2 * self._tail_bytes or len(self._tail) > TAIL_PIECES:
            self._trim()

    def _trim(self) -> None:
        while self._tail_held_bytes > self._tail_bytes or len(self._tail) > TAIL_PIECES:
            surplus = self._tail_held_bytes - self._tail_bytes
            piece = self._tail[0]
            before = piece.size_bytes
            if 0 < surplus < before:
                piece.cut_front(surplus)
            else:  # all of it is surplus, or there are too many pieces
                self._tail.popleft()
                piece.size_bytes = 0
            self._cut_bytes += before - piece.size_bytes
            self._tail_held_bytes -= before - piece.size_bytes

    def anew(self) -> OutputLimit:
        """Return the same limit for another text."""
        return OutputLimit(self._limit_bytes, self._directory)

    @property
    def path(self) -> Path | None:
        """The file of the whole text; ``None`` while all of it is shown, or if it is not kept."""
        return self._kept.path if self._kept is not None else None

    @property
    def is_holding(self) -> bool:
        """Whether text is held back that :meth:`finish` shows, or counts."""
        return self._kept is not None

    def forget(self) -> None:
        """Begin the text anew, because the front end has cleared all that was shown."""
        if self._kept is not None:
            self._kept.close()
            self._kept.discard()
        self._reset()

    def finish(self) -> list[Message]:
        """Return the end of the text: the count of what is not shown, and the tail."""
        self._trim()
        path, cut, parent_header = None, self._cut_bytes, self._parent_header
        if self._kept is not None:
            self._kept.close()
            if not cut:
                self._kept.discard()
            path = self._kept.path
        tail = [_with_text(piece.message, "".join(piece.parts)) for piece in self._tail]
        self._reset()
        if not cut:
            return tail
        where = f"the whole text is in {path}" if path else "the whole text could not be kept"
        note = (
            f"\n[… {cut:,} bytes of output are not shown here; {where}. "
            f"The setting output_limit_bytes changes how much is shown. …]\n"
        )
        return [note_of(note, parent_header), *tail]


def size_of(text: str) -> int:
    """Return the length of a text in UTF-8 bytes."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _with_text(message: Message, text: str) -> Message:
    return dataclasses.replace(message, content={**message.content, "text": text})


def note_of(text: str, parent_header: Json | None = None) -> Message:
    """Return a note of ours, as text among a cell's output; ``None``: of the running cell."""
    return Message("stream", {"name": "stderr", "text": text}, parent_header=parent_header)


# The file of a whole text ------------------------------------------------------------------------
KEPT_LIMIT_BYTES = 1_000_000_000
"""A longer text is not kept: a cell that prints for ever must not fill the disk."""

OLD_SECONDS = 7 * 24 * 3600.0
"""Kept texts older than this are removed when the next one is kept."""


class KeptText:
    """A text that is being written to a private file; a file that is not whole is removed.

    Parameters
    ----------
    directory
        The directory of the file.
    """

    def __init__(self, directory: Path) -> None:
        self._file: IO[str] | None = None
        self._written_bytes = 0
        self.path: Path | None = None
        with suppress(OSError):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _remove_old(directory)
            name = f"output-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(4).hex()}.txt"
            descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            self._file = os.fdopen(descriptor, "w", encoding="utf-8", errors="replace")
            self.path = directory / name

    def write(self, text: str, size_bytes: int) -> None:
        """Add a piece of the text."""
        if self._file is None or self.path is None:
            return
        self._written_bytes += size_bytes
        if self._written_bytes > KEPT_LIMIT_BYTES:
            self.discard()
            return
        try:
            self._file.write(text)
        except OSError:
            self.discard()

    def discard(self) -> None:
        """Remove the file: an incomplete text must not be called whole, and it takes room."""
        path, self.path = self.path, None
        if path is not None:
            with suppress(OSError):
                path.unlink()

    def close(self) -> None:
        """End the text; `path` is ``None`` afterwards if it is not whole."""
        if self._file is not None:
            try:
                self._file.close()
            except OSError:  # the last of the text could not be written
                self.discard()


def _remove_old(directory: Path) -> None:
    for path in directory.glob("output-*.txt"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > OLD_SECONDS:
                path.unlink()
