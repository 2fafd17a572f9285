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
from collections.abc import Iterable
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


def descendants_of(pid: int, spare: int = 0) -> list[int]:
    """The living processes below ``pid``, parents before children.

    ``spare`` is left out, with all that is below it.
    """
    if sys.platform == "linux":
        children = _children_by_parent()
        found: list[int] = []
        todo = [pid]
        while todo:
            below = [child for child in children.get(todo.pop(), []) if child != spare]
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


def kill_descendants(
    pid: int, deadline_seconds: float = 5.0, *, reaping: bool = True, spare: int = 0
) -> bool:
    """Kill every process below ``pid``, those too that are started meanwhile.

    Parameters
    ----------
    pid
        Where to begin; it is not killed itself.
    deadline_seconds
        When to give up.
    reaping
        Take the exit status of whatever ends: for a process that waits for no particular child.
    spare
        A child that is left alone, with all that is below it; 0 for none.

    Returns
    -------
    bool
        Whether none is left.
    """
    until = time.monotonic() + deadline_seconds
    while True:
        found = descendants_of(pid, spare)
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


def send_signal(number: signal.Signals, pids: Iterable[int]) -> None:
    """Send a signal to each process that is still there."""
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, number)


def session_of(pid: int) -> int:
    """The session of a process; 0 when it is gone."""
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def members_of(sessions: set[int]) -> list[int]:
    """The processes that are in one of these sessions."""
    import psutil  # not needed by the entry process, which shall start quickly

    return [pid for pid in psutil.pids() if pid and session_of(pid) in sessions]


def kill_marked(variable: str, value: str) -> None:
    """Kill the processes with this variable in their environment, and those in their sessions."""
    import psutil

    for _ in range(3):
        marked = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.pid != os.getpid() and process.environ().get(variable) == value:
                    marked.append(process.pid)
        if not marked:
            return
        sessions = {session_of(pid) for pid in marked} - {0, session_of(os.getpid())}
        send_signal(signal.SIGKILL, {*marked, *members_of(sessions)})
