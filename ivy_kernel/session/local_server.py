"""The embedded local sandbox: find the one that runs for this user, or start it.

The server is a program of its own (``python -m ivy_kernel.local_sandbox``). It is found through a
private file in Jupyter's runtime directory, so kernel, magics, panel and command line share one.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from jupyter_core.paths import jupyter_data_dir, jupyter_runtime_dir

from ivy_kernel.errors import NotSentError
from ivy_kernel.settings.urls import check_url

SERVER_MODULE = "ivy_kernel.local_sandbox"
START_TIMEOUT_SECONDS = 60.0
POLL_SECONDS = 0.05

_NOT_PASSED_ON = ("IVY_", "RECOUP_", "JPY_")
"""Keys, and what ties a process to the Jupyter server that started us, stay here."""

_started: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True, slots=True, repr=False)
class Embedded:
    """A local sandbox server that runs.

    Parameters
    ----------
    url
        Base URL of its API.
    token
        The key that it accepts.
    process_id
        Its process.
    """

    url: str
    token: str
    process_id: int

    def __repr__(self) -> str:
        return f"Embedded({self.url!r}, process_id={self.process_id})"


def runtime_file() -> Path:
    """The private file that tells where the server listens."""
    return Path(jupyter_runtime_dir()) / "ivy-local-sandbox.json"


def data_directory() -> Path:
    """Where the local sandboxes keep their files."""
    return Path(jupyter_data_dir()) / "ivy" / "local-sandboxes"


def find() -> Embedded | None:
    """The server that runs for this user, if any."""
    for process in _started:
        process.poll()  # reaps one that ended, so that its id is not taken for a living one
    path = runtime_file()
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
            return None
        if status.st_mode & 0o077:
            return None  # others could have read or planted the token
        facts = json.loads(path.read_text("utf-8"))
        found = Embedded(check_url(str(facts["url"])), str(facts["token"]), int(facts["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if _is_server(found.process_id) else None


def _is_server(process_id: int) -> bool:
    """Whether a process lives and is a server: the id of one that was killed may be used again."""
    try:
        process = psutil.Process(process_id)
        alive = process.status() != psutil.STATUS_ZOMBIE
        return alive and SERVER_MODULE in process.cmdline()
    except (psutil.Error, ValueError, OverflowError):  # gone, not ours to look at, or no id
        return False


def server_command(*, idle_exit_seconds: float) -> list[str]:
    """The arguments for Python that run the server so that `find` finds it."""
    return [
        *("-m", SERVER_MODULE),
        *("--runtime-file", str(runtime_file())),
        *("--root", str(data_directory())),
        *("--idle-exit-seconds", f"{idle_exit_seconds:.0f}"),
    ]


def server_environment() -> dict[str, str]:
    """The environment of the server: ours without keys."""
    return {k: v for k, v in os.environ.items() if not k.startswith(_NOT_PASSED_ON)}


async def find_or_start(*, idle_exit_seconds: float) -> Embedded:
    """The server that runs for this user; started now if there is none.

    Parameters
    ----------
    idle_exit_seconds
        A server started now ends after so many seconds without a request.

    Raises
    ------
    NotSentError
        When it does not start; names its log.
    """
    found = find()
    if found is not None:
        return found
    path = runtime_file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    with (path.parent / "ivy-local-sandbox.lock").open("w") as lock:
        await _acquire(lock.fileno(), deadline)
        found = find()
        if found is not None:
            return found
        return await _start(path, idle_exit_seconds, deadline)


async def _acquire(descriptor: int, deadline: float) -> None:
    """Take the lock that keeps two starters apart; freed when its file is closed."""
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if time.monotonic() > deadline:
            raise NotSentError(
                "Another program is starting the local sandbox and is not getting done; try again."
            )
        await asyncio.sleep(POLL_SECONDS)


async def _start(path: Path, idle_exit_seconds: float, deadline: float) -> Embedded:
    log_path = path.with_suffix(".log")
    descriptor = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        process = subprocess.Popen(  # noqa: ASYNC220 - takes milliseconds, and outlives the loop
            [sys.executable, *server_command(idle_exit_seconds=idle_exit_seconds)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=descriptor,
            env=server_environment(),
            cwd=path.parent,  # Python looks for modules there first, so not in the user's folder
            start_new_session=True,
        )
    finally:
        os.close(descriptor)
    _started.append(process)
    try:
        while time.monotonic() < deadline:
            found = find()
            if found is not None:
                return found
            if process.poll() is not None:
                break
            await asyncio.sleep(POLL_SECONDS)
    except asyncio.CancelledError:
        process.terminate()  # else the next start, which may come at once, would make a second one
        raise
    process.terminate()
    raise NotSentError(f"The local sandbox did not start; its log is {log_path}.")


def stop() -> bool:
    """End the server that runs for this user; whether there was one."""
    found = find()
    if found is None:
        return False
    with suppress(ProcessLookupError):
        os.kill(found.process_id, signal.SIGTERM)
    return True
