"""The process reaper of a chat, and finding and killing the descendants of a process.

The process reaper is a process of its own, the parent of all processes of one chat. It starts
what the server asks for, and is the subreaper of it all, so that daemons too stay below it. When
the server closes the connection, or is gone in whatever way, it kills everything below it and
ends. Run as ``python -m ivy_kernel.local_sandbox.process_reaper FD``. It imports nothing but the
standard library (on Linux), so that it starts quickly.

The server sends one byte with three file descriptors: stdout and stderr of the new process, and a
file that holds the request as JSON (``id``, ``argv``, ``cwd``, ``env``, ``kill_descendants``). The
reaper answers in JSON lines: ``{"id", "pid"}``, or ``{"id", "errno", "error"}`` when the process
could not be started, and ``{"id", "exit_code"}`` when it has ended. Its first line has the id 0.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

SANDBOX_ID_VARIABLE = "IVY_SANDBOX_ID"
"""The marker: an environment variable that tells which sandbox a process belongs to."""
READY_ID = 0

_DESCRIPTORS_PER_REQUEST = 3


class ProcessReaper:
    """Starts and reaps the processes of one chat."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._request_ids: dict[int, int] = {}

    def serve(self) -> None:
        """Serve requests until the server closes the connection; then kill everything."""
        # SIGCHLD makes the pipe readable: one poll waits for requests and for ended children.
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        os.set_blocking(wake_read, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        poll.register(wake_read, select.POLLIN)
        self._send({"id": READY_ID})
        try:
            while True:
                for descriptor, _ in poll.poll():
                    if descriptor == wake_read:
                        os.read(wake_read, 4096)
                    elif not self._accept_request():
                        return
                self._report_ended()
        finally:
            kill_descendants(os.getpid())
            if sys.platform != "linux":
                # Without a subreaper daemons are no descendants, but they still carry the marker.
                kill_marked(SANDBOX_ID_VARIABLE, os.environ[SANDBOX_ID_VARIABLE])

    def _accept_request(self) -> bool:
        try:
            byte, descriptors, _, _ = socket.recv_fds(self._connection, 1, _DESCRIPTORS_PER_REQUEST)
        except OSError:
            return False
        if not byte:
            return False
        stdout, stderr, request_file = descriptors
        try:
            with os.fdopen(request_file, "rb") as file:
                request = json.load(file)
            self._start(request, stdout, stderr)
        finally:
            os.close(stdout)
            os.close(stderr)
        return True

    def _start(self, request: dict[str, Any], stdout: int, stderr: int) -> None:
        try:
            if request["kill_descendants"]:
                pid = self._start_reaped(request, stdout, stderr)
            else:
                pid = _start(request, stdout, stderr).pid
        except OSError as error:
            self._send({"id": request["id"], "errno": error.errno, "error": str(error)})
            return
        self._request_ids[pid] = request["id"]
        self._send({"id": request["id"], "pid": pid})

    def _start_reaped(self, request: dict[str, Any], stdout: int, stderr: int) -> int:
        """Start it below a fork of the reaper, which kills what the process leaves behind."""
        pid = os.fork()
        if pid:
            return pid
        exit_code = 127
        try:
            # The server must see the end of the reaper even while this fork lives.
            self._connection.close()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            become_subreaper()
            process = _start(request, stdout, stderr)
            exit_code = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
            kill_descendants(os.getpid())
        except OSError as error:
            os.write(stderr, f"{error}\n".encode())
        finally:
            # Negative codes are signals; a shell would say 128 + signal.
            os._exit(exit_code if exit_code >= 0 else 128 - exit_code)

    def _report_ended(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._request_ids:
                exit_code = os.waitstatus_to_exitcode(status)
                self._send({"id": self._request_ids.pop(pid), "exit_code": exit_code})

    def _send(self, message: dict[str, Any]) -> None:
        # When the server is gone, the next read fails too and ends the loop.
        with contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(message).encode() + b"\n")


def _start(request: dict[str, Any], stdout: int, stderr: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        request["argv"],
        cwd=request["cwd"],
        env=request["env"],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )
    # We reap by waitpid(-1); Popen must neither wait nor complain that it is still running.
    process.returncode = 0
    return process


# -- descendants of a process -----------------------------------------------------------------
#
# On Linux /proc says who is whose child. Together with PR_SET_CHILD_SUBREAPER (daemons become
# children of the nearest subreaper above them) that finds every process that was started below one
# of ours. On macOS psutil and process groups find what they can.

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
            continue  # the process ended meanwhile
        # After the name, which stands in parentheses and may hold spaces and parentheses itself.
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
    """Collect the exit status of children that ended, so that no zombies stay."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def kill_descendants(
    pid: int, deadline_seconds: float = 5.0, *, reaping: bool = True, spare: int = 0
) -> bool:
    """Kill every process below ``pid``, including those that are started meanwhile.

    Parameters
    ----------
    pid
        The top of the tree; it is not killed itself.
    deadline_seconds
        Give up after so long.
    reaping
        Collect the exit status of every child that ends: for a process that waits for no
        particular one.
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
    import psutil  # not needed by supervisor and reaper on Linux, which shall start quickly

    return [pid for pid in psutil.pids() if pid and session_of(pid) in sessions]


def kill_marked(variable: str, value: str) -> None:
    """Kill the processes with this variable in their environment, and those in their sessions."""
    import psutil

    # Again, for a process may start another between its listing and its end.
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


def main() -> None:
    """Serve the connection whose descriptor is the only argument."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    become_subreaper()
    ProcessReaper(connection).serve()


if __name__ == "__main__":
    main()
