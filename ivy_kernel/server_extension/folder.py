"""A sandbox's folder in the drive: what is known of its files, and what is on its way there."""

from __future__ import annotations

import asyncio
import builtins
import hashlib
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any, Literal, Protocol

from ivy_kernel.errors import IvyError, UsageError
from ivy_kernel.models import Json
from ivy_kernel.routes.files import FileEntry, Listing
from ivy_kernel.session.files import ManifestEntry, SandboxFiles
from ivy_kernel.session.large_files import PiecewiseUpload
from ivy_kernel.session.transfer import TransferState
from ivy_kernel.status.clock import monotonic_seconds

LISTING_LIMIT = 20_000
"""So many entries of one directory are listed."""
LISTING_SECONDS = 3.0
"""A listing is given again for so long: several views of one page ask at once."""
IN_USE_SECONDS = 60.0
"""JupyterLab asks for the listing of an open directory every 10 s for ever. After so long without
another sign of use it gets the last one: a question to the sandbox would keep it awake."""
MANIFEST_SECONDS = 30.0
MANIFEST_WAIT_SECONDS = 1.0
"""A listing waits so long for the manifest; else the next one shows what it says."""
PIECE_BYTES = 4_000_000
"""JupyterLab's chunks of 1 MB are joined into pieces of this size."""
PIECES_IN_FLIGHT = 3
"""So many pieces are on their way while the next one is received."""
UPLOAD_IDLE_SECONDS = 600.0
"""An upload whose next chunk does not come for so long is abandoned."""
SHOWN_SECONDS = 60.0
"""A transfer that has ended is listed for so long."""
_REMEMBERED = 200


class FolderOwner(Protocol):
    """The sandbox of a folder."""

    activity: str
    """Changes whenever a kernel that is attached to it has been active."""
    is_busy: bool
    """Whether such a kernel runs a cell."""

    def files(self) -> SandboxFiles:
        """Called for each request: its files; raises `NoSandboxError` unless it is active."""


class Listed:
    """The listing of a directory, and when it was made."""

    def __init__(self, directory: FileEntry, listing: Listing) -> None:
        self.directory = directory
        self.entries = listing.entries
        self.is_truncated = listing.is_truncated
        self.models: tuple[object, list[Json], int] | None = None
        """What `DriveContents` has made of it, by which facts, and how many entries it left out."""
        self._monotonic = monotonic_seconds()

    @property
    def age_seconds(self) -> float:
        """How old it is."""
        return monotonic_seconds() - self._monotonic


class Folder:
    """A sandbox's folder in the drive: its files, and what is remembered of them.

    Parameters
    ----------
    owner
        The sandbox.
    """

    def __init__(self, owner: FolderOwner) -> None:
        self._owner = owner
        self._listed: dict[str, Listed] = {}
        self._asking: dict[str, asyncio.Task[Listed]] = {}
        self._used_monotonic = monotonic_seconds()
        self._activity = ""
        self.known_facts: dict[str, Json] = {}
        """What the manifest says: path → facts; another object whenever it was read anew."""
        self._facts_task: asyncio.Task[None] | None = None
        self._facts_monotonic = float("-inf")
        self._hashes: dict[tuple[object, ...], str] = {}

    def used(self) -> SandboxFiles:
        """Note a sign of use, and return the files.

        Raises
        ------
        NoSandboxError
            When the sandbox is not active.
        """
        files = self._owner.files()
        self._used_monotonic = monotonic_seconds()
        return files

    def changed(self) -> SandboxFiles:
        """Note that files are about to change, or have, and return them."""
        files = self.used()
        self._listed.clear()
        self._asking.clear()  # their answers may be from before
        return files

    def _is_in_use(self) -> bool:
        if self._owner.is_busy or self._owner.activity != self._activity:
            self._activity = self._owner.activity
            self._used_monotonic = monotonic_seconds()
        return monotonic_seconds() - self._used_monotonic < IN_USE_SECONDS

    def knows(self, path: str) -> bool:
        """Whether a listing of this directory is remembered."""
        return path in self._listed

    async def list(self, path: str, *, fresh: bool = False) -> Listed:
        """Return the listing of a directory, a remembered one where that will do."""
        files = self._owner.files()  # first: a sandbox that is not active lists nothing
        known = self._listed.get(path)
        if known is None or fresh:
            self.used()
        elif known.age_seconds < LISTING_SECONDS or not self._is_in_use():
            return known
        task = self._asking.get(path)
        if task is None:
            task = self._asking[path] = asyncio.ensure_future(self._ask(files, path, known))
            task.add_done_callback(lambda done: self._asked(path, done))
        return await asyncio.shield(task)

    def _asked(self, path: str, task: asyncio.Task[Listed]) -> None:
        has_failed = task.cancelled() or task.exception() is not None
        if self._asking.get(path) is task:  # else something has changed meanwhile
            del self._asking[path]
            if has_failed:
                self._listed.pop(path, None)  # it may be gone
            else:
                self._listed[path] = task.result()

    async def _ask(self, files: SandboxFiles, path: str, known: Listed | None) -> Listed:
        if len(self._listed) > _REMEMBERED:
            self._listed.clear()
        directory = await files.stat(path) if known is None else known.directory
        listing, _ = await asyncio.gather(
            files.list(path, limit=LISTING_LIMIT), self._await_facts()
        )
        # The listing of a file is the file itself.
        if directory.kind != "directory" or (path and listing.entries[:1] == (directory,)):
            raise UsageError(f"{path} is not a directory.")
        return Listed(directory, listing)

    async def hash(self, entry: FileEntry, data: bytes | None = None) -> str:
        """Return the SHA-256 of a file, of which the content may be known."""
        key = (entry.path, entry.size_bytes, entry.modified_seconds)
        if data is None and key in self._hashes:
            return self._hashes[key]
        digest = hashlib.sha256(data or b"")
        if data is None:
            async for part in self.used().stream(entry.path):
                digest.update(part)
        if len(self._hashes) > _REMEMBERED:
            self._hashes.clear()
        self._hashes[key] = digest.hexdigest()
        return self._hashes[key]

    def facts(self, path: str) -> Json | None:
        """Return what the manifest says of a file."""
        return self.known_facts.get(path)

    async def manifest(self) -> builtins.list[Json]:
        """Ask the platform for the manifest, and remember it."""
        facts = [_fact(entry) for entry in await self._owner.files().manifest()]
        self.known_facts = {fact["path"]: fact for fact in facts}
        return facts

    async def _await_facts(self) -> None:
        if monotonic_seconds() - self._facts_monotonic > MANIFEST_SECONDS:
            self._facts_monotonic = monotonic_seconds()
            self._facts_task = asyncio.ensure_future(self._read_facts())
        if self._facts_task is not None:
            await asyncio.wait([self._facts_task], timeout=MANIFEST_WAIT_SECONDS)

    async def _read_facts(self) -> None:
        with suppress(IvyError):  # a platform without a manifest has files all the same
            await self.manifest()

    async def aclose(self) -> None:
        """End the questions under way."""
        tasks = [*self._asking.values(), *([self._facts_task] if self._facts_task else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _fact(entry: ManifestEntry) -> Json:
    origin = entry.raw.get("origin") or entry.raw.get("source")
    return {
        "path": entry.path,
        "name": entry.name,
        "kind": entry.kind,
        "origin": origin if isinstance(origin, str) else None,
        "size_bytes": entry.size_bytes,
        "created": None if entry.created is None else entry.created.isoformat(),
    }


class Upload:
    """A file that arrives in chunks; it has its name only after the last one.

    Parameters
    ----------
    folder
        The folder that it goes to.
    remote
        The upload in the sandbox.
    """

    def __init__(self, folder: Folder, remote: PiecewiseUpload) -> None:
        self._folder = folder
        self._remote = remote
        self._next_chunk = 1
        self._expiry: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None
        self._held = bytearray()
        self._sending: deque[asyncio.Task[None]] = deque()
        self.size_bytes = 0

    async def take(self, chunk: object, data: bytes) -> None:
        """Append the chunk that comes now.

        Raises
        ------
        UsageError
            When another one is due.
        """
        if self._expiry is not None:
            self._expiry.cancel()
        if chunk not in (self._next_chunk, -1):
            raise UsageError(
                f"Chunk {chunk!r} of the upload came where {self._next_chunk} or -1 is due; "
                "upload the file again."
            )
        self._next_chunk += 1
        self._held += data
        self.size_bytes += len(data)
        if len(self._held) >= PIECE_BYTES:
            await self._pass_on()

    async def _pass_on(self) -> None:
        """Send what is held, as soon as fewer than `PIECES_IN_FLIGHT` are on their way."""
        while len(self._sending) >= PIECES_IN_FLIGHT:
            await self._sending.popleft()
        piece, self._held = bytes(self._held), bytearray()
        offset_bytes = self.size_bytes - len(piece)
        self._sending.append(asyncio.ensure_future(self._remote.write_at(offset_bytes, piece)))

    async def finish(self) -> FileEntry:
        """Give it its name, in the place of what has it: the page has asked before it began."""
        await self._pass_on()
        while self._sending:
            await self._sending.popleft()
        return await self._remote.finish(overwrite=True)

    def expire_later(self, forget: Callable[[], object]) -> None:
        """Abandon it, and have it forgotten, unless the next chunk comes in time."""

        def expire() -> None:
            forget()
            self._ending = asyncio.ensure_future(self.abandon())

        self._expiry = asyncio.get_running_loop().call_later(UPLOAD_IDLE_SECONDS, expire)

    async def abandon(self) -> None:
        """Remove what has arrived."""
        if self._expiry is not None:
            self._expiry.cancel()
        for sending in self._sending:
            sending.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        with suppress(IvyError):
            self._folder.used()  # raises if the sandbox is not active: it is not woken for that
            await self._remote.abandon()


async def copy_across(source: SandboxFiles, path: str, target: SandboxFiles, to: str) -> FileEntry:
    """Copy a file from one sandbox to another, in constant memory."""
    size_bytes = (await source.stat(path)).size_bytes
    upload = await target.open_upload(to, size_bytes)
    try:
        offset_bytes = 0
        async for data in source.stream(path):
            await upload.write_at(offset_bytes, data)
            offset_bytes += len(data)
        return await upload.finish(overwrite=False)
    except BaseException:
        await upload.abandon()
        raise


class Transfer:
    """One transfer, as the front end shows it.

    Parameters
    ----------
    transfer_id
        Its id.
    name
        What is sent.
    to
        Where it goes, as a path of the drive.
    """

    def __init__(self, transfer_id: str, name: str, to: str) -> None:
        self.transfer_id = transfer_id
        self._name = name
        self._to = to
        self._progress: TransferState | None = None
        self.state: Literal["running", "done", "failed", "cancelled"] = "running"
        self.error: str | None = None

    def on_progress(self, state: TransferState) -> None:
        """Called by the transfer, a few times a second at most."""
        self._progress = state

    def to_json(self) -> Json:
        """Return it as the front end receives it."""
        known = self._progress
        return {
            "id": self.transfer_id,
            "name": self._name,
            "to": self._to,
            "direction": "up",
            "state": self.state,
            "done_bytes": 0 if known is None else known.done_bytes,
            "total_bytes": None if known is None else known.total_bytes,
            "files_done": 0 if known is None else known.files_done,
            "files_total": None if known is None else known.files_total,
            "seconds_left": None if known is None else known.seconds_left,
            "bytes_per_second": 0 if known is None else known.bytes_per_second,
            "error": self.error,
        }


class Transfers:
    """The transfers under way, and those that have ended a moment ago."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._all: dict[str, Transfer] = {}
        self._tasks: dict[str, asyncio.Task[Any]] = {}

    def to_json(self) -> Json:
        """Return all of them."""
        return {"transfers": [transfer.to_json() for transfer in self._all.values()]}

    async def run(
        self, name: str, to: str, make: Callable[[Transfer], Coroutine[Any, Any, Any]]
    ) -> Any:
        """Run a transfer to its end, also if the caller is gone before.

        Parameters
        ----------
        name, to
            What is sent, and where to.
        make
            Makes the coroutine that does it.

        Raises
        ------
        UsageError
            When it was cancelled.
        IvyError
            When it failed.
        """
        transfer = Transfer(str(next(self._ids)), name, to)
        self._all[transfer.transfer_id] = transfer
        task = asyncio.ensure_future(make(transfer))
        self._tasks[transfer.transfer_id] = task
        task.add_done_callback(lambda done: self._ended(transfer, done))
        await asyncio.wait([task])
        if task.cancelled():
            raise UsageError(f"Sending {name} was cancelled; to send it again goes on from there.")
        return task.result()

    def _ended(self, transfer: Transfer, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(transfer.transfer_id, None)
        transfer.state = "cancelled" if task.cancelled() else "done"
        if not task.cancelled() and (error := task.exception()) is not None:
            transfer.state = "failed"
            # The text of other errors is not shown: it may quote addresses and headers.
            known = isinstance(error, IvyError)
            transfer.error = " ".join(str(error).split()) if known else "It met with a fault."
        loop = asyncio.get_running_loop()
        loop.call_later(SHOWN_SECONDS, self._all.pop, transfer.transfer_id, None)

    def cancel(self, transfer_id: str) -> bool:
        """Cancel one; whether there was one under way."""
        task = self._tasks.get(transfer_id)
        return task is not None and task.cancel()

    async def aclose(self) -> None:
        """Cancel all."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


# Models of Jupyter's contents API ---------------------------------------------------------------
_EPOCH = "1970-01-01T00:00:00Z"


def base_model(path: str, kind: str, *, is_writable: bool) -> Json:
    """Return the model of a file or directory, without content and times."""
    return {
        "name": path.rpartition("/")[2],
        "path": path,
        "type": kind,
        "writable": is_writable,
        "created": _EPOCH,
        "last_modified": _EPOCH,
        "size": None,
        "mimetype": None,
        "content": None,
        "format": None,
        "hash": None,
        "hash_algorithm": None,
    }


def dated(model: Json) -> Json:
    """Return a model whose time is one that a header can carry."""
    moment = datetime.fromisoformat(model["last_modified"].replace("Z", "+00:00"))
    return {**model, "last_modified": moment}


def is_text(name: str) -> bool:
    """Whether a name can be part of an address: names on disk may be any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def iso_time(seconds: float | None) -> str:
    """Return a Unix time as Jupyter writes it."""
    try:
        moment = datetime.fromtimestamp(seconds or 0.0, timezone.utc)
    except (OverflowError, ValueError, OSError):  # files can carry times of any size
        return _EPOCH
    return moment.isoformat().replace("+00:00", "Z")
