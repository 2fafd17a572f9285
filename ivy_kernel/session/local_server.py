"""Finds, starts and stops the local sandbox server, of which there is one for each user.

The server is a program of its own (``python -m ivy_kernel.local_sandbox``). It is found through a
private file in Jupyter's runtime directory, so kernel, magics, panel and command line share one.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from jupyter_core.paths import jupyter_data_dir, jupyter_runtime_dir

from ivy_kernel.errors import NotSentError
from ivy_kernel.session import private_file
from ivy_kernel.settings.urls import check_url

SERVER_MODULE = "ivy_kernel.local_sandbox"
START_TIMEOUT_SECONDS = 60.0
POLL_SECONDS = 0.05
ROOT_IN_USE_EXIT_CODE = 3
"""The server's exit code when another one works in its directory."""

_NOT_PASSED_ON = ("IVY_", "RECOUP_", "JPY_")
"""Variables with these prefixes stay here: keys, and the ties to the Jupyter server above us."""

# Kept so that they can be reaped: the server may end long before this process does.
_started: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True, slots=True, repr=False)
class LocalServer:
    """A running local sandbox server.

    Parameters
    ----------
    url
        Base URL of its API.
    token
        The key that it accepts; not part of the repr.
    process_id
        The id of its process.
    socket_path
        The unix socket at which it serves the API too. What is secret is sent there alone: the
        operating system tells whose server it is, while any program may get the port of a server
        that has ended.
    """

    url: str
    token: str
    process_id: int
    socket_path: str

    def __repr__(self) -> str:
        return f"LocalServer({self.url!r}, process_id={self.process_id})"


def runtime_file() -> Path:
    """Return the path of the private file that names the server's URL, token and process."""
    return Path(jupyter_runtime_dir()) / "ivy-local-sandbox.json"


def data_directory() -> Path:
    """Return the directory of the local sandboxes' files."""
    return Path(jupyter_data_dir()) / "ivy" / "local-sandboxes"


def find() -> LocalServer | None:
    """Return the server that runs for this user, if any."""
    for process in _started:
        process.poll()  # reaps one that ended, so that its id is not taken for a living one
    try:
        # Only a private file counts: others could have read the token, or planted a server.
        facts = private_file.read_json(runtime_file())
        found = LocalServer(
            check_url(str(facts["url"])),
            str(facts["token"]),
            int(facts["pid"]),
            str(facts["socket"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if _is_server(found.process_id) else None


def listens(found: LocalServer) -> bool:
    """Whether a server accepts connections at its socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(found.socket_path)
        except OSError:
            return False
    return True


def _is_server(process_id: int) -> bool:
    """Whether a process lives and is a server: the id of a killed one may be in use again."""
    try:
        process = psutil.Process(process_id)
        alive = process.status() != psutil.STATUS_ZOMBIE
        return alive and SERVER_MODULE in process.cmdline()
    except (psutil.Error, ValueError, OverflowError):  # gone, not ours to look at, or no id
        return False


def server_command(*, idle_exit_seconds: float) -> list[str]:
    """Return the arguments for Python that run the server so that `find` finds it."""
    return [
        *("-m", SERVER_MODULE),
        *("--runtime-file", str(runtime_file())),
        *("--root", str(data_directory())),
        *("--idle-exit-seconds", f"{idle_exit_seconds:.0f}"),
    ]


def server_environment() -> dict[str, str]:
    """Return the environment of the server: ours without keys."""
    return {k: v for k, v in os.environ.items() if not k.startswith(_NOT_PASSED_ON)}


async def find_or_start(*, idle_exit_seconds: float) -> LocalServer:
    """Return the server that runs for this user; start it if there is none.

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
        found = find()  # another process may have started it while we waited for the lock
        if found is not None:
            return found
        return await _start(path, idle_exit_seconds, deadline)


async def _acquire(descriptor: int, deadline: float) -> None:
    """Take the lock that allows one start at a time; freed when its file is closed."""
    # Polled: a flock that blocks would hold up the event loop, and could not be cancelled.
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if time.monotonic() > deadline:
            raise NotSentError(
                "Another program is starting the local sandbox and is not getting done; try again."
            )
        await asyncio.sleep(POLL_SECONDS)


async def _start(path: Path, idle_exit_seconds: float, deadline: float) -> LocalServer:
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
            start_new_session=True,  # Ctrl-C in the terminal is for us, and it outlives us
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
        process.terminate()  # else a start that follows at once would make a second one
        raise
    process.terminate()
    if process.poll() == ROOT_IN_USE_EXIT_CODE:
        raise NotSentError(
            f"The local sandbox did not start: a server that was started by hand, or by an earlier "
            f"version of Ivy Kernel, uses {data_directory()}; end it, then try again."
        )
    raise NotSentError(f"The local sandbox did not start; its log is {log_path}.")


def stop() -> bool:
    """End the server that runs for this user; return whether there was one."""
    found = find()
    if found is None:
        return False
    with suppress(ProcessLookupError):
        os.kill(found.process_id, signal.SIGTERM)
    return True
