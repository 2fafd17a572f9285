"""Who uses which sandbox: each user leaves a note, and the user's Jupyter server reads the notes.

A note is a private file in Jupyter's runtime directory. It holds what tells one sandbox from
others, never a key. It is removed when its process ends in order; a note of a process that ended
otherwise is ignored, and removed by whoever finds it.
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import stat
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal, get_args

import psutil
from jupyter_core.paths import jupyter_runtime_dir

Kind = Literal["kernel", "magic"]
"""An Ivy Sandbox kernel, or the cell magic in any other Python kernel."""

NOTE_LIMIT_BYTES = 100_000
UNSETTLED_SECONDS = 0.1
"""A directory changed so recently may change again without a newer time of change."""

_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Use:
    """One kernel's use of one sandbox.

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
        The chat whose sandbox it is.
    campaign_id
        The chat's campaign; empty when unknown.
    """

    kernel_id: str
    process_id: int
    kind: Kind
    api_url: str
    chat_id: str
    campaign_id: str = ""


def notes_directory() -> Path:
    """Where the notes are."""
    return Path(jupyter_runtime_dir()) / "ivy-uses"


def kernel_id_of(connection_file: str) -> str:
    """The id that a Jupyter server gave the kernel with this connection file."""
    return Path(connection_file).stem.removeprefix("kernel-")


class UseNote:
    """The note of one user of a sandbox in this process.

    Parameters
    ----------
    kernel_id, kind
        As in `Use`.
    """

    def __init__(self, kernel_id: str, kind: Kind = "kernel") -> None:
        self._kernel_id = kernel_id
        self._kind = kind
        self._path: Path | None = None
        self._written: Use | None = None

    def write(self, *, api_url: str, chat_id: str, campaign_id: str = "") -> None:
        """Tell which sandbox is used from now on; never raises.

        A note that cannot be written costs no more than that the panel does not show this use.
        """
        process_id = os.getpid()
        use = Use(self._kernel_id, process_id, self._kind, api_url, chat_id, campaign_id)
        if use == self._written:
            return
        with suppress(OSError):
            directory = notes_directory()
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_private(directory.lstat(), writable_only=True):
                return
            if (
                self._path is None
                or self._written is None
                or self._written.process_id != process_id
            ):
                UseReader().current()  # removes what dead processes have left
                self._path = directory / f"{process_id}-{next(_numbers)}.json"
                atexit.register(self.remove)
            _write(self._path, asdict(use))
            self._written = use

    def remove(self) -> None:
        """Tell that no sandbox is used any more. Harmless when repeated; never raises."""
        written, self._written = self._written, None
        # A process forked from ours ends too, and must leave our note alone.
        if written is not None and self._path is not None and written.process_id == os.getpid():
            atexit.unregister(self.remove)
            with suppress(OSError):
                self._path.unlink()


class UseReader:
    """Reads the notes of all living processes; the files only when something has changed."""

    def __init__(self) -> None:
        self._stamp: int | None = None
        self._notes: dict[Path, Use] = {}

    def current(self) -> tuple[Use, ...]:
        """The uses of the moment, in an order that stays."""
        directory = notes_directory()
        try:
            status = directory.lstat()
        except OSError:
            self._stamp, self._notes = None, {}
            return ()
        if not _is_private(status, writable_only=True):
            return ()
        if status.st_mtime_ns != self._stamp:
            self._notes = {path: use for path in _names(directory) if (use := _read(path))}
            settled = time.time() - status.st_mtime > UNSETTLED_SECONDS
            self._stamp = status.st_mtime_ns if settled else None
        for path, use in list(self._notes.items()):
            if not psutil.pid_exists(use.process_id):
                del self._notes[path]
                with suppress(OSError):
                    path.unlink()
        return tuple(self._notes.values())


def _names(directory: Path) -> list[Path]:
    try:
        return sorted(directory.glob("[0-9]*.json"))
    except OSError:
        return []


def _is_private(status: os.stat_result, *, writable_only: bool = False) -> bool:
    """Whether it is ours, and others can neither change nor (unless allowed) read it."""
    others = 0o022 if writable_only else 0o077
    return status.st_uid == os.getuid() and not status.st_mode & others


def _read(path: Path) -> Use | None:
    """The use that a note tells of; ``None`` when it is not a note of ours."""
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or not _is_private(status):
            return None
        if status.st_size > NOTE_LIMIT_BYTES:
            return None
        value: Any = json.loads(path.read_text("utf-8"))
        use = Use(**value)
    except (OSError, ValueError, TypeError):
        return None
    texts = (use.kernel_id, use.api_url, use.chat_id, use.campaign_id)
    is_sound = (
        all(isinstance(text, str) for text in texts)
        and type(use.process_id) is int
        and use.process_id > 0
        and use.kind in get_args(Kind)
    )
    return use if is_sound else None


def _write(path: Path, value: dict[str, Any]) -> None:
    """Write it with mode 0600, whole or not at all."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(value, file)
        partial.replace(path)
    except OSError:
        with suppress(OSError):
            partial.unlink()
        raise
