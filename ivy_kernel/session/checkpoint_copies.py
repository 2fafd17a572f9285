"""Copies of a notebook's checkpoints on this machine: opaque bytes that are never unpickled here.

A copy is a directory of the user's alone below ``<jupyter_data_dir>/ivy/checkpoints/<notebook>/``,
laid out as the sandbox has it: ``objects/<sha256>`` and one ``index-<sequence>.json``. It counts as
there once its index is, which is written last. What is in it is checked before it is sent back.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from jupyter_core.paths import jupyter_data_dir

from ivy_kernel.errors import IvyError, SandboxFileError, TamperedCheckpointError
from ivy_kernel.models import Json
from ivy_kernel.session.files import FileEntry, SandboxFiles
from ivy_kernel.session.notebook_record import ChatRecord, Life
from ivy_kernel.status.clock import monotonic_seconds
from ivy_kernel.status.model import Deadline

if TYPE_CHECKING:
    from ivy_kernel.routes.base import LiveKernel
    from ivy_kernel.session.lifecycle import Lifecycle

INDEX_NAME = re.compile(r"index-\d{8,}\.json")
OBJECT_NAME = re.compile(r"[0-9a-f]{64}")
INDEX_LIMIT_BYTES = 64_000_000
PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Copied:
    """What a look at the sandbox's newest checkpoint has brought here.

    Parameters
    ----------
    objects, size_bytes
        How many objects were fetched, and how large they are.
    left_out
        Names of variables that are not in the copy, because it would be larger than allowed.
    is_whole
        Whether all of the checkpoint but what is left out is here.
    """

    objects: int = 0
    size_bytes: int = 0
    left_out: tuple[str, ...] = field(default=())
    is_whole: bool = True


class CheckpointCopies:
    """The copy of one notebook's checkpoint in one chat.

    Parameters
    ----------
    chat
        What is kept of the notebook and the chat; it has the key.
    limit_bytes
        How large the copy may be; 0 for no copy at all.
    """

    def __init__(self, chat: ChatRecord, *, limit_bytes: int) -> None:
        self._chat = chat
        self.limit_bytes = limit_bytes
        name = hashlib.sha256("\n".join(chat.chat).encode()).hexdigest()[:16]
        top = Path(jupyter_data_dir()) / "ivy" / "checkpoints"
        self.directory = top / chat.record.notebook_id / name

    # -- bringing one here

    async def fetch(self, files: SandboxFiles, remote: str, summary: Json) -> Copied:
        """Bring a checkpoint here: its index, and those of its objects that are not here yet.

        Parameters
        ----------
        files
            The sandbox's files.
        remote
            The directory of checkpoints there.
        summary
            The checkpoint, as the sandbox tells of it.

        Raises
        ------
        IvyError
            It did not arrive; an earlier copy is as it was.
        """
        name = str(summary.get("file", ""))
        if not INDEX_NAME.fullmatch(name):
            return Copied(is_whole=False)
        raw = await files.read(f"{remote}/{name}", limit_bytes=INDEX_LIMIT_BYTES)
        body = read_index(raw, self._chat.key)
        sizes = {
            str(sha256): int(size)
            for sha256, size in summary.get("objects") or ()
            if OBJECT_NAME.fullmatch(str(sha256))
        }
        kept, left_out = self._chosen(sizes)
        self._make_directories()
        missing = {one: size for one, size in kept.items() if not self._has(one, size)}
        if missing:
            await self._get(files, f"{remote}/objects", missing)
        whole = [one for one in missing if await asyncio.to_thread(self._is_whole, one)]
        if len(whole) < len(missing):
            return Copied(len(whole), is_whole=False)
        await asyncio.to_thread(self._write_index, name, raw)
        await asyncio.to_thread(self._prune, name, kept)
        return Copied(len(missing), sum(missing.values()), names_of(body, left_out))

    def _chosen(self, sizes: Mapping[str, int]) -> tuple[dict[str, int], set[str]]:
        """Return the objects that fit, the small ones first, and the others."""
        kept: dict[str, int] = {}
        total = 0
        for one, size in sorted(sizes.items(), key=lambda each: (each[1], each[0])):
            if total + size > self.limit_bytes:
                break
            kept[one], total = size, total + size
        return kept, set(sizes) - set(kept)

    async def _get(self, files: SandboxFiles, remote: str, missing: Mapping[str, int]) -> None:
        top = (await files.stat(remote)).path
        entries = [
            FileEntry(f"{top}/{one}", "file", size, None) for one, size in sorted(missing.items())
        ]
        await files.get(remote, self.directory / "objects", overwrite=True, only=entries)

    def _make_directories(self) -> None:
        for path in (self.directory.parent.parent, self.directory.parent, self.directory):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.directory / "objects").mkdir(mode=0o700, exist_ok=True)

    def _has(self, sha256: str, size: int) -> bool:
        with suppress(OSError):
            return (self.directory / "objects" / sha256).stat().st_size == size
        return False

    def _is_whole(self, sha256: str) -> bool:
        """Whether an object that was brought is what its name says; another one is removed."""
        path = self.directory / "objects" / sha256
        try:
            path.chmod(0o600)
            if digest_of(path) == sha256:
                return True
            path.unlink()
        except OSError:
            pass
        return False

    def _write_index(self, name: str, raw: bytes) -> None:
        partial = self.directory / f".{name}.{secrets.token_hex(6)}"
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(raw)
        partial.replace(self.directory / name)

    def _prune(self, name: str, kept: Mapping[str, int]) -> None:
        """Remove what no longer belongs to the newest checkpoint."""
        for path in self.directory.iterdir():
            if INDEX_NAME.fullmatch(path.name) and path.name != name:
                path.unlink(missing_ok=True)
        for path in (self.directory / "objects").iterdir():
            if path.name not in kept:
                path.unlink(missing_ok=True)

    # -- putting it back

    @property
    def is_there(self) -> bool:
        """Whether there is a copy."""
        return self._index() is not None

    def _index(self) -> Path | None:
        with suppress(OSError):
            found = [one for one in self.directory.iterdir() if INDEX_NAME.fullmatch(one.name)]
            return max(found, key=lambda one: one.name, default=None)
        return None

    async def put_back(self, files: SandboxFiles, remote: str) -> list[str]:
        """Send the copy to the sandbox; return the names of variables that it does not hold whole.

        Parameters
        ----------
        files
            The sandbox's files; large objects go in pieces.
        remote
            The directory of checkpoints there.

        Raises
        ------
        TamperedCheckpointError
            Its index is not the one that was written. Nothing was sent.
        IvyError
            It did not arrive.
        """
        index = self._index()
        if index is None:
            raise SandboxFileError("There is no copy of a checkpoint on this machine.")
        body = read_index(await asyncio.to_thread(index.read_bytes), self._chat.key)
        objects = {one.name for one in (self.directory / "objects").iterdir()}
        found = sorted(one for one in objects if OBJECT_NAME.fullmatch(one))
        whole, changed = [], set()
        for one in found:
            path = self.directory / "objects" / one
            if await asyncio.to_thread(digest_of, path) == one:
                whole.append(f"objects/{one}")
            else:
                changed.add(one)
        if whole:
            await files.put(self.directory, remote, overwrite=True, only=whole)
        await files.put(self.directory, remote, overwrite=True, only=[index.name])
        return list(names_of(body, changed))

    def remove(self) -> None:
        """Remove the copy."""
        with suppress(OSError):
            for path in self.directory.iterdir():
                if INDEX_NAME.fullmatch(path.name):
                    path.unlink()
            for path in (self.directory / "objects").iterdir():
                path.unlink()


def read_index(raw: bytes, key: bytes) -> Json:
    """Return what an index says, if it was signed with the notebook's key.

    Raises
    ------
    TamperedCheckpointError
        When it was not.
    """
    try:
        wrapped: Json = json.loads(raw)
        text, signature = wrapped["body"], wrapped["signature"]
        expected = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        if hmac.compare_digest(expected, signature):
            body = json.loads(text)
            if isinstance(body, dict):
                return body
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise TamperedCheckpointError(
        "The checkpoint is not as it was written (its index has not the notebook's signature), so "
        "it is not used; run the cells again."
    )


def names_of(body: Json, objects: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the variables that need one of some objects, as an index says."""
    wanted = set(objects)
    if not wanted:
        return ()
    found: set[str] = set()
    for group in _groups(body):
        texts = set(_texts(group))
        if texts & wanted:
            names = group["names"]
            found.update(name for name in map(str, names) if name.isidentifier())
    return tuple(sorted(found))


def _groups(value: Any) -> Iterable[Json]:
    """Find the parts of an index that have names."""
    if isinstance(value, dict):
        if isinstance(value.get("names"), list | dict):
            yield value
        for one in value.values():
            yield from _groups(one)
    elif isinstance(value, list):
        for one in value:
            yield from _groups(one)


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, empty where it cannot be read."""
    found = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                found.update(piece)
    except OSError:
        return ""
    return found.hexdigest()


# Keeping one up to date ---------------------------------------------------------------------------
LOOK_PAUSE_SECONDS = 30.0
"""Between two looks at the newest checkpoint, however many cells run."""
NEAR_SECONDS = 120.0
NEAR_PAUSE_SECONDS = 0.2
"""When the sandbox may end within the first, each cell's checkpoint is written and brought at once.
"""
ASK_SECONDS = 60.0
HURRY_SECONDS = 3600.0


class CopyHost(Protocol):
    """The session, as the keeper of copies uses it."""

    lifecycle: Lifecycle

    @property
    def live(self) -> LiveKernel | None:
        """The kernel behind the open route, where it has one."""

    @property
    def busy(self) -> bool:
        """Whether a cell is under way."""

    def files(self) -> SandboxFiles:
        """Return the sandbox's files."""


class CopyOwner(Protocol):
    """The notebook's recovery, as the keeper of copies uses it."""

    pause_seconds: float
    summary: Json

    @property
    def chat(self) -> ChatRecord:
        """What is kept of the notebook in this chat on this machine."""

    @property
    def life(self) -> Life:
        """The life of the variables that are there, or were last."""

    @property
    def checkpoints_directory(self) -> str:
        """The directory of checkpoints in the sandbox; empty before it is known."""


class CopyKeeper:
    """Brings the newest checkpoint here after cells, in the background.

    Nothing is asked of the sandbox while no cell has run since the last time.

    Parameters
    ----------
    recovery
        What it works for.
    host
        The session.
    limit_bytes
        As in `CheckpointCopies`.

    Attributes
    ----------
    last
        What the last look has brought; ``None`` before it.
    """

    def __init__(self, recovery: CopyOwner, host: CopyHost, *, limit_bytes: int) -> None:
        self._recovery = recovery
        self._host = host
        self._copies = CheckpointCopies(recovery.chat, limit_bytes=limit_bytes)
        self._task: asyncio.Future[None] | None = None
        self._hurry: asyncio.Future[None] | None = None
        self._is_wanted = False
        self.last: Copied | None = None

    def look(self) -> None:
        """Bring the newest checkpoint here; once more if that is under way for an earlier one."""
        self._is_wanted = True
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._look_until_done())

    async def _look_until_done(self) -> None:
        while self._is_wanted:
            self._is_wanted = False
            await self._look()

    def hurry(self) -> None:
        """Have a checkpoint written as soon as the cell under way lets go, and bring it here."""
        if self._hurry is None or self._hurry.done():
            self._hurry = asyncio.ensure_future(self._write())

    async def _write(self) -> None:
        with suppress(IvyError):
            if self._host.live is not None:
                wanted = {"do": "checkpoint", "now": True}
                await self._host.live.work(wanted, timeout_seconds=HURRY_SECONDS)
        self.look()

    async def _look(self) -> None:
        kernel, pause = self._host.live, LOOK_PAUSE_SECONDS
        if kernel is None or self._host.busy:  # its answer would wait behind the cell
            return  # after the cell it is looked again
        with suppress(IvyError):  # the next cell's look tries again
            if await self._is_end_near():
                pause = NEAR_PAUSE_SECONDS
                await kernel.work({"do": "checkpoint", "now": True}, timeout_seconds=ASK_SECONDS)
            await self.bring(kernel)
        self._recovery.pause_seconds = pause

    async def bring(self, kernel: LiveKernel) -> Copied | None:
        """Bring the newest checkpoint here; return what that was, ``None`` for nothing."""
        summary = await kernel.work({"do": "index", "at": None}, timeout_seconds=ASK_SECONDS)
        directory, life = self._recovery.checkpoints_directory, self._recovery.life
        sequence = int(summary.get("sequence", 0))
        if not directory or sequence <= life.floor or not self._copies.limit_bytes:
            return None
        self._recovery.summary = summary
        kept = self._recovery.chat.copy
        if (kept.get("life"), kept.get("sequence")) == (life.id, sequence):
            return None
        files = self._host.files()
        try:
            self.last = await self._copies.fetch(files, directory, summary)
        finally:
            await files.aclose()
        if self.last.is_whole:
            facts = {name: summary.get(name) for name in ("sequence", "number", "at")}
            copy = {**facts, "life": life.id, "left_out": list(self.last.left_out)}
            await asyncio.to_thread(self._recovery.chat.keep, copy=copy, summary=summary)
        return self.last

    async def _is_end_near(self) -> bool:
        status = await self._host.lifecycle.status(retry=False)
        now = monotonic_seconds()
        deadlines: tuple[Deadline, ...] = ("hibernation", "expiry")
        left = [status.remaining_seconds(deadline, now) for deadline in deadlines]
        return any(seconds is not None and seconds <= NEAR_SECONDS for seconds in left)

    async def put_back(self, directory: str) -> list[str]:
        """Send the copy to the sandbox; see `CheckpointCopies.put_back`."""
        files = self._host.files()
        try:
            return await self._copies.put_back(files, directory)
        finally:
            await files.aclose()

    def close(self) -> None:
        """Called when the session is closed."""
        for task in (self._task, self._hurry):
            if task is not None:
                task.cancel()
