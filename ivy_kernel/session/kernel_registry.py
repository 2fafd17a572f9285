"""The registry of kernels that use a sandbox: each registers, the user's Jupyter server reads.

An entry is a private file in Jupyter's runtime directory. It names the sandbox and holds no key. It
is removed when its process ends in order; an entry of a process that ended otherwise is ignored,
and removed by the next reader.
"""

from __future__ import annotations

import atexit
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Literal, get_args

import psutil
from jupyter_core.paths import jupyter_runtime_dir

from ivy_kernel.session import private_file

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
