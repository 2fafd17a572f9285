"""Finding and killing the descendants of a process, with the standard library where it can.

On Linux ``/proc`` says who is whose child. Together with ``PR_SET_CHILD_SUBREAPER`` (daemons
become children of the nearest subreaper above them) that finds every process that was started
below one of ours. On macOS psutil and process groups find what they can.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Make orphans below this process its children (Linux; elsewhere nothing happens)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _children_by_parent() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names are enough, and it is five times as fast
        if not entry.isdigit():
            continue
        try:
            stat = Path(f"/proc/{entry}/stat").read_text(errors="replace")
        except OSError:
            continue  # it ended meanwhile
        state, parent = stat.rpartition(")")[2].split()[:2]
        if state != "Z":
            children.setdefault(int(parent), []).append(int(entry))
    return children


def descendants_of(pid: int) -> list[int]:
    """The living processes below ``pid``, parents before children."""
    if sys.platform == "linux":
        children = _children_by_parent()
        found: list[int] = []
        todo = [pid]
        while todo:
            below = children.get(todo.pop(), [])
            found += below
            todo += below
        return found
    else:  # noqa: RET505 - the type checker knows that a platform has one of the two only
        import psutil

        try:
            return [child.pid for child in psutil.Process(pid).children(recursive=True)]
        except psutil.Error:
            return []


def reap() -> None:
    """Take the exit status of children that ended, so that no zombies stay."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def kill_descendants(pid: int, deadline_seconds: float = 5.0, *, reaping: bool = True) -> bool:
    """Kill every process below ``pid``, those too that are started meanwhile.

    Returns
    -------
    bool
        Whether none is left.
    """
    until = time.monotonic() + deadline_seconds
    while True:
        found = descendants_of(pid)
        if not found:
            return True
        for one in found:
            with suppress(OSError):
                os.kill(one, signal.SIGKILL)
        if reaping:
            reap()
        if time.monotonic() > until:
            return False
        time.sleep(0.002)
