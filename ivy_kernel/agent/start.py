"""The start program: finds a living agent, else unpacks and starts one.

It stands alone, because it runs before there is anything to import from. Agents are started under
a lock in the private directory, so that two starts at once end up with one agent. It carries no
cell: whether what it starts outlives this call, and whether its directory is there for the next
one, is only known after a second call.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LONGEST_PATH_CHARS = 80
"""Unix socket addresses are limited to 104 or 108 bytes, file names in the directory included."""

START_SECONDS = 20.0
"""For an agent that was launched to accept a connection."""

ANSWER_SECONDS = 20.0
"""For each step of a conversation with the agent: connect, send, receive."""

PACKAGE_NAME = "ivy_agent"
"""The agent's package in its archive; another ``ivy_kernel`` may be installed in the sandbox."""

WITHOUT_WORKING_DIRECTORY = """import sys as _ivy_y, posix as _ivy_x
try:
    _ivy_c = _ivy_x.stat('.')[1:3]
except OSError:
    _ivy_c = None
for _ivy_e in _ivy_y.path[:]:
    try:
        if not _ivy_e or _ivy_x.stat(_ivy_e)[1:3] == _ivy_c:
            _ivy_y.path.remove(_ivy_e)
    except Exception:
        pass
"""
"""Takes the working directory, whatever it is called there, from ``sys.path``: a file of the user's
such as ``random.py`` would be imported in place of what we mean. Flat code that imports only what
is built in, for whatever is run as ``-c`` or by a tool."""

BOOT = f"""{WITHOUT_WORKING_DIRECTORY}del _ivy_y.argv[0]
_ivy_y.path.insert(0, _ivy_y.argv[0])
from {PACKAGE_NAME}.__main__ import main
main(_ivy_y.argv[1:])
"""
"""Runs the archive that is the first argument. Python's own way of running an archive imports
modules before anything of ours could correct the path."""


def is_directory(path: str) -> bool:
    """Whether it is a directory; one that may not be looked at is none for us."""
    try:
        return Path(path).is_dir()
    except OSError:  # a directory above it may not be searched
        return False


def current_directory() -> str:
    """Return this call's working directory; empty when it has been removed."""
    try:
        return str(Path.cwd())
    except OSError:
        return ""


def candidate_bases(wanted: list[str], excluded: list[str]) -> list[str]:
    """Return the directories in which to try to make the private one, best first."""
    standard = [
        os.environ.get("XDG_RUNTIME_DIR", ""),
        "/tmp",  # noqa: S108 - the directory made in it is private and checked for its owner
        os.environ.get("HOME", ""),
        current_directory(),
        "/dev/shm",  # noqa: S108 - as above
    ]
    bases = []
    for base in wanted or standard:
        if base and base not in bases and base not in excluded and is_directory(base):
            bases.append(base)
    return bases


def is_private(directory: str) -> bool:
    """Whether it is a real directory of this user that no other user can enter."""
    # lstat, because another user may have put a link there, in /tmp above all.
    state = os.lstat(directory)
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.getuid() and not state.st_mode & 0o077


def ask(directory: str, request: bytes) -> str:
    """Send one request to the agent that serves a directory; return its framed answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        stream.settimeout(ANSWER_SECONDS)
        stream.connect(directory + "/s")
        stream.sendall(b"%d\n%s" % (len(request), request))
        parts = []
        while True:
            data = stream.recv(1 << 20)
            if not data:
                break
            parts.append(data)
    if not parts:
        raise ConnectionResetError("the agent closed the connection")
    return b"".join(parts).decode("ascii")


def find(directories: list[str], request: bytes) -> tuple[str, str] | None:
    """Return the directory and the answer of an agent that lives, or ``None``."""
    for directory in directories:
        try:
            if is_private(directory):
                return directory, ask(directory, request)
        except OSError:
            continue
    return None


def prepare(directory: str) -> None:
    """Make the private directory and check that sockets can be made in it."""
    Path(directory).mkdir(0o700, exist_ok=True)
    if not is_private(directory):
        raise PermissionError("not a private directory of this user")
    # Some file systems of containers and shared homes have no sockets.
    probe = Path(directory, "probe")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        stream.bind(str(probe))
    probe.unlink()


def lock_start(directory: str) -> int:
    """Make the private directory and take its start lock; return the descriptor that holds it.

    The directory may be removed while this waits for the lock: then it is made again.
    """
    path = Path(directory, "start.lock")
    while True:
        prepare(directory)
        lock = os.open(str(path), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        # The lock counts only if its file is still the one that others find by its name.
        try:
            if os.path.samestat(os.fstat(lock), path.stat()):
                return lock
        except FileNotFoundError:
            pass
        os.close(lock)


def launch(directory: str, parameters: dict[str, Any], code: bytes) -> None:
    """Write the agent's archive to its directory and start it, detached from this call."""
    archive = directory + "/agent.zip"
    # Replaced at once: a built-in shell of an earlier agent may just be reading the old one.
    unfinished = Path(f"{archive}.{os.getpid()}")
    unfinished.write_bytes(code)
    unfinished.replace(archive)
    options = dict(parameters["options"])
    options.setdefault("working_directory", current_directory())
    # As isolated as this interpreter, whose runner will have had its reason.
    flags = (["-I"] if sys.flags.isolated else []) + (["-S"] if sys.flags.no_site else [])
    subprocess.Popen(
        [
            *(sys.executable or "python3", *flags),
            *("-c", BOOT, archive, "serve", directory, json.dumps(options)),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=dict(os.environ, **parameters.get("environment", {})),
        # Neither pipes nor the process group: runners wait for the first and kill the second.
        close_fds=True,
        start_new_session=True,
    ).wait()  # for the parent of the daemon's fork alone


def start(directory: str, parameters: dict[str, Any], code: bytes) -> tuple[str, str]:
    """Start an agent in a directory, unless one is there by now; return how, and its answer."""
    request = parameters["request"].encode("ascii")
    lock = lock_start(directory)
    try:
        try:
            return "found", ask(directory, request)
        except OSError:
            launch(directory, parameters, code)
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return "started", ask(directory, request)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
    finally:
        os.close(lock)


def run(parameters: dict[str, Any], code: bytes) -> str:
    """Return what the call prints: where the agent is and its answer, or why there is none."""
    request = parameters["request"].encode("ascii")
    bases = candidate_bases(parameters.get("directories", []), parameters.get("excluded", []))
    name = f".ivy-{os.getuid()}-{parameters['key']}"
    places = {str(Path(base, name)): base for base in bases}
    reasons = [path + ": path too long" for path in places if len(path) > LONGEST_PATH_CHARS]
    directories = [path for path in places if len(path) <= LONGEST_PATH_CHARS]
    found = find(directories, request)
    if found is not None:
        place = {"directory": found[0], "base": places[found[0]], "how": "found"}
        return "@" + json.dumps(place) + "\n" + found[1]
    for directory in directories:
        try:
            how, answer = start(directory, parameters, code)
        except OSError as error:
            reasons.append(f"{directory}: {error}")
            continue
        place = {"directory": directory, "base": places[directory], "how": how}
        return "@" + json.dumps(place) + "\n" + answer
    return "!0 " + ("; ".join(reasons) or "no directory to work in").replace("\n", " ")


def main(parameters: dict[str, Any], code: bytes) -> None:
    """Print the outcome between this call's marks; ``code`` is the archive with this module."""
    mark = parameters["call_id"]
    text = run(parameters, code)
    print(f"\nIVY-BEGIN-{mark}\n{text}\nIVY-END-{mark}", flush=True)  # noqa: T201 - it is the answer
