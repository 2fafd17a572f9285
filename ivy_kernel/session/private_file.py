"""Private files: JSON, replaced atomically and read with care; texts too long to be shown."""

from __future__ import annotations

import json
import os
import secrets
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any


def write_json(path: Path, value: object, *, indent: int | None = None) -> None:
    """Write a file with mode 0600, whole or not at all.

    Parameters
    ----------
    path
        The file; its directory must exist.
    value
        Anything that ``json.dump`` takes.
    indent
        Spaces per level; ``None`` for one line.

    Raises
    ------
    OSError
        It could not be written; an earlier file is unchanged.
    """
    # Beside the file, since a rename is atomic only within one file system; the name is random,
    # because several processes may write at once, and O_EXCL follows no link that waits there.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=indent)
        partial.replace(path)
    except OSError:
        with suppress(OSError):
            partial.unlink()
        raise


def read_json(path: Path, *, limit_bytes: int | None = None) -> Any:
    """Read a file that no other user could have read or written.

    Parameters
    ----------
    path
        The file.
    limit_bytes
        A larger file is not read; ``None`` for no limit.

    Raises
    ------
    OSError
        It is not there, no regular file (a link counts as none), not private, or too large.
    ValueError
        It holds no JSON.
    """
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or not is_private(status):
        raise PermissionError(path)
    if limit_bytes is not None and status.st_size > limit_bytes:
        raise OSError(path)
    return json.loads(path.read_text("utf-8"))


def is_private(status: os.stat_result, *, writable_only: bool = False) -> bool:
    """Whether it is ours, and others can neither change nor (unless allowed) read it."""
    others = 0o022 if writable_only else 0o077
    return status.st_uid == os.getuid() and not status.st_mode & others


# Texts that are too long to be shown -------------------------------------------------------------
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
