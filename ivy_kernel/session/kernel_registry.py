"""What the user's processes on one machine tell each other of sandboxes, by private files.

A kernel registers which sandbox it uses, and the user's Jupyter server reads it. The entry is
removed when its process ends in order; an entry of a process that ended otherwise is ignored, and
removed by the next reader.

Whoever learns something new of a sandbox's status writes it down, and whoever shows that status
reads it (`StatusFile`): kernel, Jupyter server and command line show the same within a second.

Likewise a kernel writes down what its sandbox's agent says of memory, processors and disk, and the
panel shows it (`ResourcesFile`): nobody has to ask the sandbox for it.

A kernel finds what an earlier one of its notebook has left, when their Jupyter server has ended
(`NotebookClaim`).

The files are in Jupyter's runtime directory. They name the sandbox and hold no key.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import json
import os
import platform
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import ClassVar, Literal, get_args

import msgspec
import psutil
from jupyter_core.paths import jupyter_data_dir, jupyter_runtime_dir

from ivy_kernel.models import Json, Resources
from ivy_kernel.session import private_file
from ivy_kernel.session.journal_reader import JournalReader, journal_file
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
        self._path = _file_of(api_url, chat_id, "ivy-status")
        self._recoup_session_id = recoup_session_id
        self._writer = secrets.token_hex(8)
        self._stamp = _stamp(self._path)

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
        _write_beside(self._path, content)

    def news(self) -> News | None:
        """Return what another process has told since the last look; ``None`` when nothing."""
        stamp = _stamp(self._path)
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


def _file_of(api_url: str, chat_id: str, directory: str) -> Path:
    """Return the file of one sandbox; its name tells neither chat nor address."""
    name = json.dumps([api_url, chat_id]).encode("utf-8", "surrogatepass")
    digest = hashlib.sha256(name).hexdigest()[:20]
    return Path(jupyter_runtime_dir()) / directory / f"{digest}.json"


def _write_beside(path: Path, content: Json) -> None:
    """Write a file that others read; never raises, for they do without it."""
    with suppress(OSError, ValueError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if private_file.is_private(path.parent.lstat(), writable_only=True):
            private_file.write_json(path, content)


def _stamp(path: Path) -> tuple[int, int] | None:
    """Return what changes with each new content; ``None`` without a file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino


# What a sandbox uses ------------------------------------------------------------------------------
LEAST_INTERVAL_SECONDS = 0.5
"""A sandbox that tells more often than its agent does is not written down each time."""

LONGEST_AGE_SECONDS = 3600.0
"""What is older says nothing of the present."""


class ResourcesFile:
    """The file in which a kernel tells this user's other processes what its sandbox uses.

    Parameters
    ----------
    api_url, chat_id
        Of the sandbox, as in `KernelEntry`.
    """

    def __init__(self, api_url: str, chat_id: str) -> None:
        self._path = _file_of(api_url, chat_id, "ivy-resources")
        self._written = float("-inf")
        self._seen: tuple[int, int] | None = None
        self._read: tuple[tuple[int, int] | None, Resources, float] = (None, Resources(), 0.0)

    def write(self, resources: Resources) -> None:
        """Write down what the agent has just told. Called in a thread; never raises."""
        now = monotonic_seconds()
        if now - self._written < LEAST_INTERVAL_SECONDS:
            return
        self._written = now
        content = {
            "machine": _machine(),
            "told_monotonic": now,
            "resources": msgspec.to_builtins(resources),
        }
        _write_beside(self._path, content)

    @property
    def has_news(self) -> bool:
        """Whether it was written since this was last asked."""
        before, self._seen = self._seen, _stamp(self._path)
        return self._seen != before

    def read(self, status: SandboxStatus | None, now: float) -> tuple[Resources, float] | None:
        """Return what the sandbox uses, and how many seconds ago that was so.

        Parameters
        ----------
        status
            The sandbox's status: of one that is not up, or was started since, nothing is known.
        now
            The clock of `monotonic_seconds`.
        """
        if status is None or status.effective_state(now) != "active":
            return None
        stamp = _stamp(self._path)
        if stamp is None:
            return None
        if stamp != self._read[0]:
            self._read = (stamp, *self._content())
        _, resources, told = self._read
        age_seconds = now - told
        uptime_seconds = status.uptime_seconds(now)
        is_of_another = uptime_seconds is not None and age_seconds > uptime_seconds
        # Of a clock that this process does not have, or older than the sandbox.
        if age_seconds < -1 or age_seconds > LONGEST_AGE_SECONDS or is_of_another:
            return None
        return (resources, max(0.0, age_seconds)) if resources != Resources() else None

    def _content(self) -> tuple[Resources, float]:
        try:
            found = private_file.read_json(self._path, limit_bytes=STATUS_LIMIT_BYTES)
            if found["machine"] == _machine():
                told = msgspec.convert(found["told_monotonic"], float)
                return msgspec.convert(found["resources"], Resources), told
        except (OSError, ValueError, KeyError, TypeError):
            pass  # written by another version of this package, or by somebody else
        return Resources(), 0.0


def _machine() -> str:
    """Return a text that all processes on this machine share until it starts anew."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except (OSError, ValueError):
        return f"{platform.node()} {round(psutil.boot_time() / 60)}"


# A notebook's kernels, one after the other -------------------------------------------------------
class NotebookClaim:
    """One kernel's claim on what an earlier kernel of its notebook has left in sandboxes.

    A kernel of a Jupyter server holds the lock of its notebook's path for as long as its process
    lives. The file beside the lock names the kernel before, whose agent is claimed only if the
    notebook is the same: a new one may have the old one's name, and a renamed one another. It is
    the same if its file has a cell that ran in that kernel.

    Parameters
    ----------
    connection_file
        This kernel's connection file.
    own_key
        Its own name in sandboxes.
    has_agents
        Whether the kernel of a name has left agents.
    """

    held: ClassVar[dict[Path, int]] = {}  # descriptors, until this process ends

    def __init__(
        self, connection_file: str, own_key: str, has_agents: Callable[[str], bool]
    ) -> None:
        self._has_agents = has_agents
        self._kernel = {"kernel_id": kernel_id_of(connection_file), "session_key": own_key}
        self._notebook = os.environ.get("JPY_SESSION_NAME", "")
        self._directory = Path(jupyter_data_dir()) / "ivy" / "claims"

    def take(self) -> str:
        """Return the name that this kernel has in sandboxes."""
        own_key = self._kernel["session_key"]
        own = self._file_of(self._notebook)
        try:
            if not self._lock(own):
                return own_key  # another kernel of that path lives
            self._kernel["session_key"] = self._key_in(own) or self._key_of_renamed(own) or own_key
            private_file.write_json(own, {"path": self._notebook, **self._kernel})
        except OSError:
            return own_key  # nothing can be kept there
        return self._kernel["session_key"]

    def _file_of(self, notebook: str) -> Path:
        which = hashlib.sha256(f"{platform.node()}\n{notebook}".encode()).hexdigest()[:20]
        return self._directory / f"{which}.json"

    def _lock(self, path: Path) -> bool:
        if path in self.held:
            return False
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            # Of this process alone: a `%%local` cell may leave children that outlive it.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self.held[path] = descriptor
        return True

    def _key_of_renamed(self, own: Path) -> str:
        """Return the name of the kernel of a notebook whose file is gone, if this is its new one.

        The claim has been taken over then.
        """
        for path in self._directory.glob("*.json"):
            with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
                notebook = str(private_file.read_json(path)["path"])
                if path == own or Path(notebook).exists() or not self._key_in(path):
                    continue
                if self._lock(path):
                    key = self._key_in(path)
                    path.unlink()
                    return key
        return ""

    def _key_in(self, path: Path) -> str:
        """Return the name of the kernel before; empty if there is nothing of it to be claimed."""
        try:
            before = private_file.read_json(path)
            key, kernel_id = str(before["session_key"]), str(before["kernel_id"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return ""
        if not re.fullmatch(r"[0-9a-f]{20}", key) or not self._has_agents(key):
            return ""
        if kernel_id == self._kernel["kernel_id"]:
            return key  # this kernel, restarted
        return key if self._has_cell_of(kernel_id) else ""

    def _has_cell_of(self, kernel_id: str) -> bool:
        ran, _ = JournalReader(journal_file(kernel_id)).cells()
        known = {*ran, *(str(cell["code"]) for cell in ran.values())}
        return not known.isdisjoint(cells_in(Path(self._notebook)))


def cells_in(notebook: Path) -> Iterator[str]:
    """Yield what tells a notebook's cells from others': their ids, and the hashes of their code."""
    with suppress(OSError, ValueError, AttributeError, TypeError, RecursionError):
        for cell in json.loads(notebook.read_text("utf-8")).get("cells", ()):
            source = cell.get("source", "")
            code = source if isinstance(source, str) else "".join(source)
            yield str(cell.get("id", ""))
            if code.strip():
                yield hashlib.sha256(code.encode("utf-8", "surrogatepass")).hexdigest()
