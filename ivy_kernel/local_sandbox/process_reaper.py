"""The parent of all processes of one chat, itself a process.

It starts what the server asks for, and is the subreaper of it all, so that daemons too stay below
it. When the server closes the connection, or is gone in whatever way, it kills everything below
it and ends. Run as ``python -m ivy_kernel.local_sandbox.process_reaper FD``.

The server sends one byte with three file descriptors: stdout and stderr of the new process, and a
file that holds the order as JSON (``id``, ``argv``, ``cwd``, ``env``, ``kill_descendants``). The
keeper answers in JSON lines: ``{"id", "pid"}``, or ``{"id", "errno", "error"}`` when the process
could not be started, and ``{"id", "exit_code"}`` when it has ended. Its first line has the id 0.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from typing import Any

from ivy_kernel.local_sandbox.descendants import become_subreaper, kill_descendants, kill_marked
from ivy_kernel.local_sandbox.environment import MARKER

DESCRIPTORS_PER_ORDER = 3
READY_ID = 0


class Keeper:
    """Starts and reaps the processes of one chat."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._order_ids: dict[int, int] = {}

    def serve(self) -> None:
        """Work until the server closes the connection; then kill everything."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        os.set_blocking(wake_read, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        poll.register(wake_read, select.POLLIN)
        self._say({"id": READY_ID})
        try:
            while True:
                for descriptor, _ in poll.poll():
                    if descriptor == wake_read:
                        os.read(wake_read, 4096)
                    elif not self._take_order():
                        return
                self._report_ended()
        finally:
            kill_descendants(os.getpid())
            if sys.platform != "linux":
                # Without subreapers daemons got away, but they still carry our mark.
                kill_marked(MARKER, os.environ[MARKER])

    def _take_order(self) -> bool:
        try:
            byte, descriptors, _, _ = socket.recv_fds(self._connection, 1, DESCRIPTORS_PER_ORDER)
        except OSError:
            return False
        if not byte:
            return False
        stdout, stderr, order_file = descriptors
        try:
            with os.fdopen(order_file, "rb") as file:
                order = json.load(file)
            self._start(order, stdout, stderr)
        finally:
            os.close(stdout)
            os.close(stderr)
        return True

    def _start(self, order: dict[str, Any], stdout: int, stderr: int) -> None:
        try:
            if order["kill_descendants"]:
                pid = self._start_reaped(order, stdout, stderr)
            else:
                pid = _start(order, stdout, stderr).pid
        except OSError as error:
            self._say({"id": order["id"], "errno": error.errno, "error": str(error)})
            return
        self._order_ids[pid] = order["id"]
        self._say({"id": order["id"], "pid": pid})

    def _start_reaped(self, order: dict[str, Any], stdout: int, stderr: int) -> int:
        """Start it below a fork of the keeper, which kills what it leaves behind."""
        pid = os.fork()
        if pid:
            return pid
        exit_code = 127
        try:
            # The server must see the end of the keeper even while this fork lives.
            self._connection.close()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            become_subreaper()
            process = _start(order, stdout, stderr)
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
            if pid in self._order_ids:
                exit_code = os.waitstatus_to_exitcode(status)
                self._say({"id": self._order_ids.pop(pid), "exit_code": exit_code})

    def _say(self, words: dict[str, Any]) -> None:
        # When the server is gone, the next read says so, and ends us.
        with contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(words).encode() + b"\n")


def _start(order: dict[str, Any], stdout: int, stderr: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        order["argv"],
        cwd=order["cwd"],
        env=order["env"],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )
    # We reap by waitpid(-1); Popen must neither wait nor complain that it is still running.
    process.returncode = 0
    return process


def main() -> None:
    """Serve the connection whose descriptor is the only argument."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    become_subreaper()
    Keeper(connection).serve()


if __name__ == "__main__":
    main()
