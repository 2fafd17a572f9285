"""The supervisor: the entry process, which starts the server and cleans up after it.

Small and of the standard library only, so that hardly anything can go wrong in it. On Linux it is
the subreaper of everything below. When the server ends, in whatever way, the supervisor kills all
that is left and ends too. When the supervisor is killed, the server notices the closed pipe and
stops; should the server be killed at the same moment, the process reapers notice that, and kill
what is below them.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from ivy_kernel.local_sandbox.process_reaper import become_subreaper, kill_descendants


def write_runtime_file(path: Path, content: dict[str, Any]) -> None:
    """Write the runtime file with mode 0600, whole or not at all."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(content, file)
    partial.replace(path)


def remove_runtime_file(path: Path, pid: int) -> None:
    """Remove the runtime file and its socket, unless another server has written it meanwhile."""
    with contextlib.suppress(OSError, ValueError):
        content = json.loads(path.read_text())
        if content.get("pid") == pid:
            path.unlink()
            bound = Path(content["socket"])
            bound.unlink()
            if bound.parent != path.parent:  # a directory that was made for it
                bound.parent.rmdir()


SWEEP_SIGNAL = signal.SIGUSR1
"""The signal with which the server asks the supervisor to kill orphans."""

_PACKAGE_PARENT = Path(__file__).resolve().parents[2]


def supervise(arguments: Sequence[str], runtime_file: Path | None) -> int:
    """Start the server with these arguments, wait for its end, clean up; returns its exit code."""
    become_subreaper()
    read_end, write_end = os.pipe()
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "ivy_kernel.local_sandbox",
            *arguments,
            f"--supervisor-pid={os.getpid()}",
            f"--supervisor-descriptor={read_end}",
        ],
        # "-m" puts the working directory first on the import path: it must be ours.
        cwd=_PACKAGE_PARENT,
        stdin=subprocess.DEVNULL,
        pass_fds=[read_end],
        # Ctrl-C in a terminal reaches the supervisor alone, which forwards it once.
        start_new_session=True,
    )
    os.close(read_end)

    def forward(_number: int, _frame: FrameType | None) -> None:
        # The server may be gone, but it has not been waited for: the number is still its own.
        os.kill(server.pid, signal.SIGTERM)

    def sweep(_number: int, _frame: FrameType | None) -> None:
        # A process reaper was killed, and its children came to us. All else below us is
        # the server's.
        kill_descendants(os.getpid(), reaping=False, spare=server.pid)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, forward)
    signal.signal(SWEEP_SIGNAL, sweep)
    exit_code = _wait(server.pid)
    server.returncode = exit_code  # Popen did not see the end, and must not wait for it
    # From here on a signal would go to a process that is gone, or stop the cleaning up.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, SWEEP_SIGNAL):
        signal.signal(number, signal.SIG_IGN)
    kill_descendants(os.getpid())
    if runtime_file is not None:
        remove_runtime_file(runtime_file, os.getpid())
    os.close(write_end)
    # A negative code is a signal, for which a shell says 128 + signal.
    return exit_code if exit_code >= 0 else 128 - exit_code


def _wait(server_pid: int) -> int:
    """Reap every child that ends, until it is the server."""
    while True:
        pid, status = os.wait()
        if pid == server_pid:
            return os.waitstatus_to_exitcode(status)
