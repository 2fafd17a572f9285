"""Private JSON files: replaced atomically, and read only if no other user had access to them."""

from __future__ import annotations

import json
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any


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
