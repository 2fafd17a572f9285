"""The private directory: whose it is, how it ends, and what killed agents have left beside it."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import time
from pathlib import Path

OF_THIS_MACHINE = ("/tmp", "/dev/shm")  # noqa: S108 - looked for what is ours, nothing is made there
LEFTOVER_SECONDS = 60.0
"""A directory without an agent is left alone for so long: one may be about to start in it."""


def lock_directory(directory: str, patience_seconds: float = 0.0) -> int | None:
    """Take the directory's lock for as long as the descriptor is open; ``None`` if it is taken.

    An agent that is ending holds it a little longer than it can be spoken to.
    """
    until = time.monotonic() + patience_seconds
    while True:
        lock = _lock(f"{directory}/lock")
        if lock is not None or time.monotonic() >= until:
            return lock
        time.sleep(0.02)


def remove_directory(directory: str) -> None:
    """Remove what is ours, unless somebody is just starting the next agent there."""
    Path(directory, "s").unlink(missing_ok=True)
    starts = _lock(f"{directory}/start.lock")
    if starts is not None:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(starts)


def remove_leftovers(directory: str) -> None:
    """Remove the directories of this user's agents that were killed, beside ours.

    Only where no other machine sees the same directories: their locks may not be seen here.
    """
    ours = Path(directory)
    if str(ours.parent) not in (*OF_THIS_MACHINE, os.environ.get("XDG_RUNTIME_DIR")):
        return
    try:
        for path in ours.parent.glob(f".ivy-{os.getuid()}-*"):
            if path != ours and _is_left(path):
                _remove_if_dead(str(path))
    except OSError:
        return  # something has gone meanwhile, or is not for us to remove


def _is_left(path: Path) -> bool:
    state = path.lstat()
    is_ours = stat.S_ISDIR(state.st_mode) and state.st_uid == os.getuid()
    is_old = time.time() - state.st_mtime > LEFTOVER_SECONDS
    return is_ours and is_old and Path(path, "lock").exists()


def _remove_if_dead(directory: str) -> None:
    starts = _lock(f"{directory}/start.lock")
    if starts is None:
        return
    try:
        life = lock_directory(directory)
        if life is not None:
            shutil.rmtree(directory, ignore_errors=True)
            os.close(life)
    finally:
        os.close(starts)


def _lock(path: str) -> int | None:
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return None
        raise
    return descriptor
