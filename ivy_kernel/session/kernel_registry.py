"""What the user's processes on one machine tell each other of sandboxes, by private files.

A kernel registers which sandbox it uses, and the user's Jupyter server reads it. The entry is
removed when its process ends in order; an entry of a process that ended otherwise is ignored, and
removed by the next reader.

Whoever learns something new of a sandbox's status writes it down, and whoever shows that status
reads it (`StatusFile`): kernel, Jupyter server and command line show the same within a second.

The files are in Jupyter's runtime directory. They name the sandbox and hold no key.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import platform
import secrets
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Literal, get_args

import msgspec
import psutil
from jupyter_core.paths import jupyter_runtime_dir

from ivy_kernel.session import private_file
from ivy_kernel.status.clock import monotonic_seconds
from ivy_kernel.status.model import SandboxStatus
from ivy_kernel.status.polling import News

Kind = Literal["kernel", "magic"]
"""An Ivy Sandbox kernel, or the cell magic in any other Python kernel."""

ENTRY_LIMIT_BYTES = 100_000
UNSETTLED_SECONDS = 0.1
"""A directory that changed so recently may change again within its clock's tick: same mtime."""

_numbers = count(1)


@dataclass(frozen=True, slots=True)
class KernelEntry:
    """One kernel and the sandbox that it uses.

    Parameters
    ----------
    kernel_id
        The kernel, as its Jupyter server calls it.
    process_id
        The kernel's process.
    kind
        Whether the whole kernel runs there, or the cells with the magic.
    api_url
        Base URL of the sandbox's API; ``local`` for the embedded local sandbox.
    chat_id
        The chat that the sandbox belongs to.
    campaign_id
        The chat's campaign; empty when unknown.
    """

    kernel_id: str
    process_id: int
    kind: Kind
    api_url: str
    chat_id: str
    campaign_id: str = ""


def registry_directory() -> Path:
    """Return the directory of the entries."""
    # The name stays: a Jupyter server and its kernels may run different versions of this package.
    return Path(jupyter_runtime_dir()) / "ivy-uses"


def kernel_id_of(connection_file: str) -> str:
    """Return the id that a Jupyter server gave the kernel with this connection file."""
    return Path(connection_file).stem.removeprefix("kernel-")


class KernelRegistration:
    """The entry of one kernel of this process, from `register` to `unregister`.

    Parameters
    ----------
    kernel_id, kind
        As in `KernelEntry`.
    """

    def __init__(self, kernel_id: str, kind: Kind = "kernel") -> None:
        self._kernel_id = kernel_id
        self._kind = kind
        self._path: Path | None = None
        self._written: KernelEntry | None = None

    def register(self, *, api_url: str, chat_id: str, campaign_id: str = "") -> None:
        """Write which sandbox is used from now on; never raises.

        Without its entry a kernel is only missing in the panel.
        """
        process_id = os.getpid()
        entry = KernelEntry(self._kernel_id, process_id, self._kind, api_url, chat_id, campaign_id)
        if entry == self._written:
            return
        with suppress(OSError):
            directory = registry_directory()
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            # In a directory that others can write to, they could replace the entry.
            if not private_file.is_private(directory.lstat(), writable_only=True):
                return
            if (
                self._path is None
                or self._written is None
                or self._written.process_id != process_id
            ):
                RegistryReader().current()  # removes the entries of dead processes
                self._path = directory / f"{process_id}-{next(_numbers)}.json"
                atexit.register(self.unregister)
            private_file.write_json(self._path, asdict(entry))
            self._written = entry

    def unregister(self) -> None:
        """Remove the entry. Harmless when repeated; never raises."""
        written, self._written = self._written, None
        # A process forked from ours runs this at its exit too, and must leave our entry alone.
        if written is not None and self._path is not None and written.process_id == os.getpid():
            atexit.unregister(self.unregister)
            with suppress(OSError):
                self._path.unlink()


class RegistryReader:
    """Reads the entries of all living processes; reads files only when the directory changed."""

    def __init__(self) -> None:
        self._stamp: int | None = None
        self._entries: dict[Path, KernelEntry] = {}

    def current(self) -> tuple[KernelEntry, ...]:
        """Return the present entries, in a stable order."""
        directory = registry_directory()
        try:
            status = directory.lstat()
        except OSError:
            self._stamp, self._entries = None, {}
            return ()
        if not private_file.is_private(status, writable_only=True):
            return ()
        if status.st_mtime_ns != self._stamp:
            self._entries = {path: entry for path in _names(directory) if (entry := _read(path))}
            settled = time.time() - status.st_mtime > UNSETTLED_SECONDS
            self._stamp = status.st_mtime_ns if settled else None
        # Each time, since a process that is killed changes nothing in the directory.
        for path, entry in list(self._entries.items()):
            if not psutil.pid_exists(entry.process_id):
                del self._entries[path]
                with suppress(OSError):
                    path.unlink()
        return tuple(self._entries.values())


def _names(directory: Path) -> list[Path]:
    try:
        return sorted(directory.glob("[0-9]*.json"))
    except OSError:
        return []


def _read(path: Path) -> KernelEntry | None:
    """Read one entry; ``None`` when the file is not an entry of ours."""
    try:
        entry = KernelEntry(**private_file.read_json(path, limit_bytes=ENTRY_LIMIT_BYTES))
    except (OSError, ValueError, TypeError):
        return None
    texts = (entry.kernel_id, entry.api_url, entry.chat_id, entry.campaign_id)
    is_sound = (
        all(isinstance(text, str) for text in texts)
        and type(entry.process_id) is int  # not isinstance: True is an int too
        and entry.process_id > 0
        and entry.kind in get_args(Kind)
    )
    return entry if is_sound else None


# The newest status of a sandbox -------------------------------------------------------------------
STATUS_LIMIT_BYTES = 100_000


class StatusFile:
    """The file in which this user's processes tell each other of one sandbox's status.

    It holds the whole status: a machine has one monotonic clock for all processes, so that its
    countdowns hold elsewhere too. Of a file that another machine wrote, which may share the
    directory, only that there is news is taken.

    Parameters
    ----------
    api_url, chat_id
        Of the sandbox, as in `KernelEntry`.
    recoup_session_id
        The Recoup session that the status was joined with; empty for none of the settings.
    """

    def __init__(self, api_url: str, chat_id: str, recoup_session_id: str = "") -> None:
        name = json.dumps([api_url, chat_id]).encode("utf-8", "surrogatepass")
        digest = hashlib.sha256(name).hexdigest()[:20]
        self._path = Path(jupyter_runtime_dir()) / "ivy-status" / f"{digest}.json"
        self._recoup_session_id = recoup_session_id
        self._writer = secrets.token_hex(8)
        self._stamp = self._stat()

    def write(self, status: SandboxStatus | None, *, is_own_action: bool) -> None:
        """Tell the others; never raises, for they would find out by themselves, only later.

        Parameters
        ----------
        status
            The status; ``None`` when only that it has changed is known.
        is_own_action
            Whether we have changed something, of which more may follow.
        """
        content = {
            "machine": _machine(),
            "writer": self._writer,
            "recoup_session_id": self._recoup_session_id,
            "is_action": is_own_action,
            "status": msgspec.to_builtins(status),
        }
        with suppress(OSError, ValueError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if private_file.is_private(self._path.parent.lstat(), writable_only=True):
                private_file.write_json(self._path, content)

    def news(self) -> News | None:
        """Return what another process has told since the last look; ``None`` when nothing."""
        stamp = self._stat()
        if stamp is None or stamp == self._stamp:
            return None
        self._stamp = stamp
        try:
            found = private_file.read_json(self._path, limit_bytes=STATUS_LIMIT_BYTES)
            if found["writer"] == self._writer:
                return None
            is_ours = (found["machine"], found["recoup_session_id"]) == (
                _machine(),
                self._recoup_session_id,
            )
            is_action = found["is_action"] is True
            status = msgspec.convert(found["status"], SandboxStatus | None) if is_ours else None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        # A clock that this process does not have (a container with a time of its own, say).
        if status is not None and status.received_monotonic > monotonic_seconds() + 1:
            status = None
        return News(status, is_action)

    def _stat(self) -> tuple[int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino


def _machine() -> str:
    """Return a text that all processes on this machine share until it starts anew."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except (OSError, ValueError):
        return f"{platform.node()} {round(psutil.boot_time() / 60)}"
