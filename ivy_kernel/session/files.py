"""The files of one sandbox, and their transfer from and to this machine.

Nothing here starts or wakes a sandbox. What comes from one is never trusted with a place on this
machine: every name is checked, and walked to below the chosen directory without following a link.
"""

from __future__ import annotations

import asyncio
import math
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from ivy_kernel.errors import (
    IvyError,
    NoSandboxError,
    NoSuchFileError,
    SandboxFileError,
    UsageError,
)
from ivy_kernel.models import Json
from ivy_kernel.routes.file_access import ProgramFiles, choose
from ivy_kernel.routes.file_programs import TooLargeError
from ivy_kernel.routes.file_tools import export
from ivy_kernel.routes.files import (
    FileAccess,
    FileEntry,
    Listing,
    ManifestEntry,
    Parcel,
    Parts,
    failure,
    file_parts,
    manifest_entry,
    parts_of,
)
from ivy_kernel.routes.tools import PYTHON_TOOL, SandboxTools
from ivy_kernel.session.large_files import PiecewiseUpload, download, opened, pieces, upload
from ivy_kernel.session.lifecycle import Lifecycle
from ivy_kernel.session.local_files import (
    LocalDirectory,
    LocalFile,
    LocalTarget,
    local_file,
    local_name,
    open_source,
    packed,
    store_here,
    tree,
    wanted,
)
from ivy_kernel.session.transfer import (
    BATCH_BYTES,
    PATIENCE_SECONDS,
    Batch,
    Calls,
    Meter,
    Progress,
    TransferResult,
    move_many,
)
from ivy_kernel.status.clock import monotonic_seconds

__all__ = ["FileEntry", "Listing", "ManifestEntry", "SandboxFiles"]

Result = TypeVar("Result")

SEEN_SECONDS = 10.0
"""A sandbox that has answered within this is not looked at again."""

PROBE_SECONDS = 15.0
"""How long a way may fail before the next one is tried."""

TREE_LIMIT = 100_000
"""Most files of a directory that is transferred."""


class SandboxFiles:
    """The files of one sandbox.

    Parameters
    ----------
    lifecycle
        The sandbox.
    tools
        Its tools.
    tool
        The one that runs Python.
    owns_lifecycle
        Whether `aclose` closes the lifecycle too.
    patience_seconds
        How long a transfer may make no progress.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        tools: SandboxTools,
        *,
        tool: str = PYTHON_TOOL,
        owns_lifecycle: bool = False,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self.lifecycle = lifecycle
        self._tools = tools
        self._tool = tool
        self._owns_lifecycle = owns_lifecycle
        self._patience_seconds = patience_seconds
        self._calls: Calls | None = None
        self._root = ""
        self._choosing = asyncio.Lock()
        self._seen_at = -math.inf

    @property
    def method(self) -> str:
        """Which way is used, in words for the user; empty before the first call."""
        return self._calls.access.method if self._calls is not None else ""

    async def aclose(self) -> None:
        """Let go of the sandbox."""
        if self._owns_lifecycle:
            await self.lifecycle.aclose()

    # -- looking, and changing

    async def list(
        self, path: str = "", *, recursive: bool = False, limit: int = 10_000
    ) -> Listing:
        """List a directory; of a file, the file alone."""
        return await self._made(
            lambda access: access.entries(self._parts(path), recursive=recursive, limit=limit)
        )

    async def glob(self, pattern: str, *, limit: int = 10_000) -> Listing:
        """List what matches a pattern with ``*``, ``?``, ``[]`` and ``**``."""
        return await self._made(
            lambda access: access.matching("/".join(self._parts(pattern)), limit)
        )

    async def stat(self, path: str) -> FileEntry:
        """Return one entry, without following a link.

        Raises
        ------
        NoSuchFileError
            When there is none.
        """
        return await self._made(lambda access: access.entry(self._parts(path)))

    async def remove(self, path: str, *, recursive: bool = False) -> int:
        """Remove a file or directory; return how many files that were."""
        parts = self._file_parts(path)

        async def done(_: FileAccess) -> int:
            return 1

        return await self._made_once(lambda to: to.remove(parts, recursive=recursive), done)

    async def rename(self, path: str, new_path: str, *, overwrite: bool = False) -> FileEntry:
        """Give a file or directory another place."""
        old, new = self._file_parts(path), self._file_parts(new_path)
        return await self._made_once(
            lambda to: to.rename(old, new, overwrite=overwrite), lambda to: to.entry(new)
        )

    async def copy(self, path: str, new_path: str) -> FileEntry:
        """Copy a file to a free name."""
        return await self._made(
            lambda access: access.copy(self._file_parts(path), self._file_parts(new_path))
        )

    async def make_directory(self, path: str) -> FileEntry:
        """Make a directory and those above it; one that is there is fine."""
        return await self._made(lambda access: access.make_directory(self._parts(path)))

    # -- content

    async def read(
        self, path: str, *, offset_bytes: int = 0, limit_bytes: int | None = None
    ) -> bytes:
        """Read a file, or a piece of it.

        Raises
        ------
        ChangedFileError
            When it changed while it was read.
        """
        calls = await self._ready()
        found = pieces(calls, self._file_parts(path), offset_bytes, limit_bytes)
        return b"".join([piece async for piece in found])

    async def stream(self, path: str) -> AsyncIterator[bytes]:
        """Read a file in pieces, in order, several in flight; raises as `read`."""
        calls = await self._ready()
        async for piece in pieces(calls, self._file_parts(path)):
            self._seen_at = monotonic_seconds()
            yield piece

    async def write(self, path: str, data: bytes, *, overwrite: bool = False) -> FileEntry:
        """Write a file, whole or not at all; makes missing directories."""
        calls = await self._ready()
        parts = self._file_parts(path)
        if len(data) <= calls.up.current_bytes:
            parcel = Parcel(parts, data)
            with suppress(TooLargeError):
                (end,) = await calls.made(lambda: calls.access.store([parcel], overwrite=overwrite))
                if isinstance(end, IvyError):
                    raise end
                return await self.stat(path)
        handle = await self.open_upload(path, len(data))
        try:
            await handle.write_at(0, data)
            return await handle.finish(overwrite=overwrite)
        except BaseException:
            await handle.abandon()
            raise

    async def open_upload(self, path: str, size_bytes: int | None) -> PiecewiseUpload:
        """Begin an upload whose bytes arrive in pieces."""
        calls = await self._ready()
        handle = PiecewiseUpload(calls, self._file_parts(path))
        await handle.begin(size_bytes)
        return handle

    async def export(self, path: str, name: str | None = None) -> Json:
        """Register a file as a result of the chat. Source: the tool ``sandbox_export``."""
        await self._ready()
        return await export(self._tools, self._file_parts(path), name)

    async def manifest(self) -> tuple[ManifestEntry, ...]:
        """List the chat's registered files. Source: ``GET /v1/sandbox/{chatId}/manifest``."""
        client = await self.lifecycle.client()
        return tuple(map(manifest_entry, await client.manifest(self.lifecycle.chat_id)))

    # -- transfers

    async def get(
        self,
        remote: str,
        local: Path,
        *,
        overwrite: bool = False,
        recursive: bool = False,
        progress: Progress | None = None,
        only: Sequence[FileEntry] | None = None,
    ) -> TransferResult:
        """Bring a file or directory to this machine.

        Parameters
        ----------
        remote
            What to get.
        local
            Its place here. A file goes into it where it is a directory; a directory's files go
            right into it, so that the same command goes on after a cut, but below ``.`` and ``..``.
        overwrite
            Whether files that differ are replaced.
        recursive
            Whether a directory is brought, with all below it.
        progress, only
            Watches; files below the directory ``remote``, as listed, that alone are to be brought.

        Raises
        ------
        IvyError
            What has arrived is kept beside its place, and the same command goes on from there.
        """
        calls = await self._ready()
        parts = self._parts(remote)
        meter = Meter("down", calls.access.method, progress)
        if only is not None:
            with LocalDirectory(local) as place:
                await self._get_all(calls, only, parts, place, overwrite, meter)
            return meter.result()
        entry = await calls.made(lambda: calls.access.entry(parts))
        is_below = local.name in ("", "..") or (entry.kind != "directory" and local.is_dir())
        into = local / local_name(entry.name) if is_below and entry.name else local
        meter.name = entry.path
        if entry.kind == "directory":
            if not recursive:
                raise UsageError(f"{remote!r} is a directory; -r gets it with its files.")
            listing = await calls.made(
                lambda: calls.access.entries(parts, recursive=True, limit=TREE_LIMIT)
            )
            if listing.is_truncated:
                raise UsageError(
                    f"{remote!r} has more than {TREE_LIMIT} files; get its directories one by one."
                )
            with LocalDirectory(into) as place:
                await self._get_all(calls, listing.entries, parts, place, overwrite, meter)
        elif entry.kind == "file":
            with LocalDirectory(into.parent) as place:
                name = into.name
                await self._get_all(calls, (entry,), parts[:-1], place, overwrite, meter, name)
        else:
            raise failure({"fail": "link" if entry.kind == "link" else "kind", "name": remote})
        return meter.result()

    async def _get_all(
        self,
        calls: Calls,
        entries: Sequence[FileEntry],
        top: Parts,
        place: LocalDirectory,
        overwrite: bool,
        meter: Meter,
        name: str = "",
    ) -> None:
        """Get the files among the entries below ``top``; ``name`` is that of a single one here."""
        found = wanted(entries, top, meter.left_out)
        place.refuse_twins(entry.path for entry in entries)
        for entry in entries:
            if entry.kind == "directory":
                place.make(tuple(entry.path.split("/"))[len(top) :])
        meter.files_total = len(found)
        meter.total_bytes = sum(entry.size_bytes for entry in found.values())

        def target(parts: Parts) -> LocalTarget:
            below = parts[len(top) :]
            return place.target(below[:-1], name or below[-1])

        async def large(parts: Parts) -> None:
            meter.name = found[parts].path
            with target(parts) as here:
                await download(calls, found[parts], parts, here, overwrite=overwrite, meter=meter)

        async def small(batch: Batch) -> Batch:
            pieces = await calls.made(lambda: calls.access.fetch(batch, BATCH_BYTES))
            for parts, piece in zip(batch, pieces, strict=False):
                if isinstance(piece, IvyError):
                    raise piece
                if piece is None:
                    await large(parts)
                    continue
                got = Parcel(parts, piece.data)
                with target(parts) as here:
                    end = await asyncio.to_thread(store_here, here, got, overwrite=overwrite)
                meter.stored(got, end)
            return batch[len(pieces) :]

        with meter.explained():
            await move_many(calls, found, small, large)

    async def put(
        self,
        local: Path,
        remote: str,
        *,
        overwrite: bool = False,
        recursive: bool = False,
        progress: Progress | None = None,
        only: Collection[str] | None = None,
    ) -> TransferResult:
        """Bring a file or directory into the sandbox; parameters and errors as `get`.

        A file goes into ``remote`` where that is a directory, a directory's files right into it;
        with an empty ``remote``, or a slash at its end, both go below it by their own name.
        ``only`` are paths of regular files below ``local``: only they go, right into ``remote``.
        """
        calls = await self._ready()
        meter = Meter("up", calls.access.method, progress)
        if not local.exists():
            raise UsageError(f"There is no {str(local)!r} on this machine.")
        size, mode = local.stat().st_size, stat.S_IMODE(local.stat().st_mode)
        files: dict[Parts, LocalFile] = {(): LocalFile((), size, mode)}
        empty: Batch = []
        if only is not None:
            files = {each.names: each for each in (local_file(local, path) for path in only)}
        elif local.is_dir():
            if not recursive:
                raise UsageError(f"{str(local)!r} is a directory; -r puts it with its files.")
            found, empty = await asyncio.to_thread(tree, local, meter.left_out)
            files = {each.names: each for each in found}
        top = self._parts(remote)
        if only is None:
            top = await self._destination(calls, remote, local.resolve().name, is_file=() in files)
        meter.files_total = len(files)
        meter.total_bytes = sum(each.size_bytes for each in files.values())
        meter.name = local.name
        for names in empty:
            await calls.made(partial(calls.access.make_directory, (*top, *names)))

        async def large(names: Parts) -> None:
            file = open_source(local, names)
            meter.name = "/".join((*top, *names))
            with opened(file):
                await upload(
                    calls,
                    file,
                    (*top, *names),
                    overwrite=overwrite,
                    mode=files[names].mode,
                    meter=meter,
                )

        async def small(batch: Batch) -> Batch:
            sent = [(names, (*top, *names), files[names].mode) for names in batch]
            parcels = await asyncio.to_thread(packed, local, sent)
            ends = await calls.made(lambda: calls.access.store(parcels, overwrite=overwrite))
            for parcel, end in zip(parcels, ends, strict=True):
                meter.stored(parcel, end)
            return []

        with meter.explained():
            await move_many(calls, files, small, large)
        return meter.result()

    async def _destination(self, calls: Calls, remote: str, name: str, *, is_file: bool) -> Parts:
        """Where something named so goes."""
        parts = self._parts(remote)
        if not parts or remote.endswith("/"):
            return self._file_parts("/".join((*parts, name)))
        if not is_file:
            return parts
        try:
            entry = await calls.made(lambda: calls.access.entry(parts))
        except NoSuchFileError:
            return parts
        return (*parts, name) if entry.kind == "directory" else parts

    # -- the way there

    async def _made(self, work: Callable[[FileAccess], Awaitable[Result]]) -> Result:
        calls = await self._ready()
        try:
            result = await calls.made(lambda: work(calls.access))
        except TooLargeError as error:
            raise SandboxFileError(f"The sandbox's answer did not arrive whole: {error}") from error
        self._seen_at = monotonic_seconds()
        return result

    async def _made_once(
        self,
        work: Callable[[FileAccess], Awaitable[Result]],
        done: Callable[[FileAccess], Awaitable[Result]],
    ) -> Result:
        """What takes a file away: missing at a second try, the first one has done it."""
        tries = 0

        async def one(access: FileAccess) -> Result:
            nonlocal tries
            tries += 1
            try:
                return await work(access)
            except NoSuchFileError:
                if tries == 1:
                    raise
                return await done(access)

        return await self._made(one)

    async def _ready(self) -> Calls:
        """Return the calls, once the sandbox is seen to be active and the way is chosen.

        Raises
        ------
        NoSandboxError
            When it is not active; it is not woken.
        """
        async with self._choosing:
            if monotonic_seconds() - self._seen_at > SEEN_SECONDS:
                status = await self.lifecycle.look()
                if status.state not in ("active", "unknown"):
                    raise NoSandboxError(
                        f"{self.lifecycle.name} is not active ({status.state}); its files can be "
                        f"reached after %ivy create."
                    )
                self._seen_at = monotonic_seconds()
            if self._calls is None:
                self._calls = await self._chosen()
            return self._calls

    async def _chosen(self) -> Calls:
        """The first way that works; found once for a sandbox."""
        key = (self.lifecycle.key, self._tool)
        access: FileAccess = ProgramFiles(self._tools, self._tool)
        known = _WAYS.get(key)
        if known is None or known[0] != access.method:
            access, root = await choose(
                self._tools,
                self._tool,
                lambda to: Calls(to, patience_seconds=PROBE_SECONDS).made(to.root),
            )
            known = _WAYS[key] = (access.method, root)
        self._root = known[1]
        return Calls(access, patience_seconds=self._patience_seconds)

    def _parts(self, path: str) -> Parts:
        return parts_of(path, self._root)

    def _file_parts(self, path: str) -> Parts:
        return file_parts(path, self._root)


_WAYS: dict[tuple[tuple[str, str, str], str], tuple[str, str]] = {}
"""Sandbox, and tool that runs Python → the way that was found to work, and the root."""
