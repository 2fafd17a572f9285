"""One large file's way to the sandbox or back: in chunks, verified, and resumable.

An upload fills a hidden part file beside the final name, a download one beside the local target.
What such a part holds is compared with the source range by range, by SHA-256, so that a transfer
goes on from there whatever cut it, and needs no journal that could be wrong.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import zip_longest
from typing import Protocol

from ivy_kernel.errors import (
    ChangedFileError,
    ChecksumError,
    FileExistsInSandboxError,
    IvyError,
    NoSuchFileError,
    SandboxFileError,
)
from ivy_kernel.routes.file_programs import TooLargeError
from ivy_kernel.routes.files import FileEntry, Parts, Piece, Version
from ivy_kernel.session.transfer import Calls, ChunkSize, Gaps, Meter, Span, move

SMALLEST_RANGE_BYTES = 256 << 10
MOST_RANGES = 4096
"""A hash for each makes 128 KiB, however long the file is."""

HASHED_BYTES = 128 << 20
"""How much one call hashes: a second's work."""

GATHERED_BYTES = 64 << 20
"""How much lies in the sandbox in pieces before one call brings them into the part file."""

ROUNDS = 3
"""How often what turned out damaged is sent again before that is an error."""


def range_bytes(size_bytes: int) -> int:
    """Return the length of the ranges that a file of this size is compared by."""
    step = SMALLEST_RANGE_BYTES
    while step * MOST_RANGES < size_bytes:
        step *= 2
    return step


def read_exactly(file: int, start: int, end: int) -> bytes:
    """Return these bytes of a local file.

    Raises
    ------
    ChangedFileError
        When it has become shorter.
    """
    data = os.pread(file, end - start, start)
    while len(data) < end - start:
        more = os.pread(file, end - start - len(data), start + len(data))
        if not more:
            raise ChangedFileError("The local file became shorter while it was read.")
        data += more
    return data


def write_all(file: int, data: bytes, offset_bytes: int) -> None:
    """Write bytes into a local file.

    Raises
    ------
    SandboxFileError
        When the disk is full.
    """
    view = memoryview(data)
    try:
        while view:
            written = os.pwrite(file, view, offset_bytes)
            offset_bytes += written
            view = view[written:]
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise SandboxFileError(
                "The disk of this machine is full; make room, then go on with the same command."
            ) from error
        raise SandboxFileError(f"The local file cannot be written: {error.strerror}.") from error


def digests(file: int, end_bytes: int, step_bytes: int) -> tuple[list[bytes], str]:
    """Return the SHA-256 of each range of a local file up to ``end_bytes``, and of all of it."""
    whole, ranges = hashlib.sha256(), []
    for start in range(0, end_bytes, step_bytes):
        one = hashlib.sha256()
        for at in range(start, min(start + step_bytes, end_bytes), 1 << 20):
            data = read_exactly(file, at, min(at + (1 << 20), start + step_bytes, end_bytes))
            one.update(data)
            whole.update(data)
        ranges.append(one.digest())
    return ranges, whole.hexdigest()


async def remote_digests(
    calls: Calls, parts: Parts, end_bytes: int, step_bytes: int
) -> tuple[list[bytes], Version | None]:
    """Return the SHA-256 of each range of a file in the sandbox, and its version.

    Raises
    ------
    ChangedFileError
        When it changed meanwhile.
    """
    found: dict[int, list[bytes]] = {}
    versions: set[Version] = set()

    async def one(start: int, end: int) -> None:
        hashes, version = await calls.access.hashes(parts, start, end, step_bytes)
        found[start] = hashes
        versions.add(version)
        if len(versions) > 1 or len(hashes) < -(-(end - start) // step_bytes):
            raise changed(parts)

    most = max(HASHED_BYTES, step_bytes)
    sizes = ChunkSize(most, step_bytes, most)
    await move(calls, Gaps([(0, end_bytes)]), sizes, one)
    return [each for start in sorted(found) for each in found[start]], next(iter(versions), None)


def differing(ours: list[bytes], theirs: list[bytes], size_bytes: int, step: int) -> Iterator[Span]:
    """Yield the ranges that are not equal."""
    for number, (one, other) in enumerate(zip_longest(ours, theirs)):
        if one != other:
            yield number * step, min((number + 1) * step, size_bytes)


def changed(parts: Parts) -> ChangedFileError:
    """Return the error for a file of the sandbox that is not what it was."""
    return ChangedFileError(
        f"{'/'.join(parts)!r} changed in the sandbox while it was read; run the same command again."
    )


def part_name(parts: Parts, size_bytes: int, ranges: Iterable[bytes] = ()) -> str:
    """Return the name of the part file of this content under this name."""
    identity = hashlib.sha256(f"{size_bytes} {len(parts)} ".encode())
    identity.update("/".join(parts).encode("utf-8", "surrogateescape"))
    for each in ranges:
        identity.update(each)
    return f".ivy-{identity.hexdigest()[:32]}.part"


# -- one large file


async def upload(
    calls: Calls, file: int, parts: Parts, *, overwrite: bool, mode: int, meter: Meter
) -> None:
    """Bring one local file, open as ``file``, into the sandbox.

    Raises
    ------
    FileExistsInSandboxError
        When another one has its name, and ``overwrite`` does not say to replace it.
    IvyError
        See the module; what has arrived stays in the part file.
    """
    access, before = calls.access, os.fstat(file)
    size, path = before.st_size, "/".join(parts)
    step = range_bytes(size)
    ours, whole = await asyncio.to_thread(digests, file, size, step)
    part = part_name(parts, size, ours)
    state = await calls.made(lambda: access.begin(parts, part, create=False))
    if state.final is not None and await _is_there(calls, state.final, parts, ours, size, step):
        meter.file_done(path, whole, skipped_bytes=size)
        return
    if state.final is not None and not overwrite:
        raise exists(path)
    if state.free_bytes is not None and state.free_bytes < size - state.part_bytes:
        raise SandboxFileError(
            f"The sandbox's disk has room for {state.free_bytes} bytes, and {path!r} needs {size}; "
            f"remove files there, then run the same command again."
        )
    state = await calls.made(lambda: access.begin(parts, part, create=True))
    beside = (*parts[:-1], part)
    spans: list[Span] = [(0, size)]
    if state.part_bytes:
        theirs, _ = await remote_digests(calls, beside, min(state.part_bytes, size), step)
        spans = list(differing(ours, theirs, size, step))
    gaps = Gaps(spans)
    meter.resumed(size - gaps.total_bytes)

    apart: list[int] = []  # pieces that are files of their own there
    apart_bytes = 0

    async def gather() -> None:
        nonlocal apart_bytes
        offsets, apart[:], apart_bytes = apart[:], [], 0
        if offsets:
            await calls.made(lambda: access.gather(parts, part, offsets))

    async def one(start: int, end: int) -> None:
        # Named nowhere here, so that it is not kept while its call is in flight; and read on this
        # thread, for what other threads allocate is not given back.
        nonlocal apart_bytes
        if await write(parts, part, start, read_exactly(file, start, end)):
            apart.append(start)
            apart_bytes += end - start
        meter.moved(end - start)
        if apart_bytes >= GATHERED_BYTES:
            await gather()

    write: Callable[[Parts, str, int, bytes], Awaitable[bool | None]] = access.write_unverified
    for _ in range(ROUNDS):
        await move(calls, gaps, calls.up, one)
        await gather()
        write = access.write  # what is damaged is sent again in the way that is checked at once
        now = os.fstat(file)
        if (now.st_size, now.st_mtime_ns) != (size, before.st_mtime_ns):
            raise ChangedFileError(
                f"The local file for {path!r} changed while it was sent; send it again."
            )
        theirs, _ = await remote_digests(calls, beside, size, step)
        gaps = Gaps(differing(ours, theirs, size, step))
        if not gaps.total_bytes:
            break
        meter.done_bytes -= gaps.total_bytes
    else:
        raise ChecksumError(
            f"{path!r} does not arrive as it was sent, after {ROUNDS} rounds; nothing was left "
            f"under its name."
        )
    await _finish(calls, parts, part, ours, step, size, overwrite=overwrite, mode=mode)
    meter.file_done(path, whole)


async def _is_there(
    calls: Calls, final: FileEntry, parts: Parts, ours: list[bytes], size: int, step: int
) -> bool:
    """Whether the file that has the final name is equal to ours."""
    if final.kind != "file" or final.size_bytes != size:
        return False
    theirs, _ = await remote_digests(calls, parts, size, step)
    return theirs == ours


async def _finish(
    calls: Calls,
    parts: Parts,
    part: str,
    ours: list[bytes],
    step: int,
    size: int,
    *,
    overwrite: bool,
    mode: int,
) -> None:
    tries = 0

    async def one() -> None:
        nonlocal tries
        tries += 1
        try:
            await calls.access.finish(parts, part, size, overwrite=overwrite, mode=mode)
        except (NoSuchFileError, FileExistsInSandboxError):
            if tries == 1:
                raise
            # The try before had an unknown outcome: it may have given the name.
            final = await calls.access.entry(parts)
            if not await _is_there(calls, final, parts, ours, size, step):
                raise

    await calls.made(one)


def exists(path: str) -> FileExistsInSandboxError:
    """Return the error for a name that is taken."""
    return FileExistsInSandboxError(f"{path!r} exists and differs; --force replaces it.")


class Target(Protocol):
    """A place for a file on this machine, in a directory that is held open."""

    def existing(self) -> int | None:
        """Open the file that has the name; ``None`` when it is free."""

    def open_part(self, name: str) -> int:
        """Open the part file, made where it is missing."""

    def finish(self, part: str, *, overwrite: bool) -> None:
        """Give the part file the final name, never over another file unless ``overwrite``."""


async def download(
    calls: Calls, entry: FileEntry, parts: Parts, target: Target, *, overwrite: bool, meter: Meter
) -> None:
    """Bring one file of the sandbox to this machine.

    Raises
    ------
    FileExistsInSandboxError
        When another one has its name, and ``overwrite`` does not say to replace it.
    IvyError
        See the module; what has arrived stays in the part file.
    """
    access, size, step = calls.access, entry.size_bytes, range_bytes(entry.size_bytes)
    theirs: list[bytes] = []
    version: Version | None = None
    if access.writes_anywhere:  # else nothing there can hash, and all is read anew
        theirs, version = await remote_digests(calls, parts, size, step)
        if version is not None and version.size_bytes != size:
            raise changed(parts)
    old = target.existing()
    if old is not None:
        with opened(old):
            is_equal = bool(theirs) and os.fstat(old).st_size == size
            if is_equal:
                ours, whole = await asyncio.to_thread(digests, old, size, step)
                if ours == theirs:
                    meter.file_done(entry.path, whole, skipped_bytes=size)
                    return
        if not overwrite:
            raise exists(entry.path)
    part = part_name(parts, size)
    file = target.open_part(part)
    with opened(file):
        had = min(os.fstat(file).st_size, size)
        gaps = Gaps([(0, size)])
        if had and theirs:
            ours, _ = await asyncio.to_thread(digests, file, had, step)
            gaps = Gaps(differing(theirs, ours, size, step))
        meter.resumed(size - gaps.total_bytes)

        async def one(start: int, end: int) -> None:
            data = await access.read_unverified(parts, start, end - start)
            if len(data) != end - start:
                raise changed(parts)
            await asyncio.to_thread(write_all, file, data, start)
            meter.moved(end - start)

        for _ in range(ROUNDS):
            await move(calls, gaps, calls.down, one)
            os.ftruncate(file, size)
            ours, whole = await asyncio.to_thread(digests, file, size, step)
            gaps = Gaps(differing(theirs, ours, size, step) if theirs else ())
            if not gaps.total_bytes:
                break
            now = await remote_digests(calls, parts, size, step)
            if now != (theirs, version):
                raise changed(parts)
            meter.done_bytes -= gaps.total_bytes
        else:
            raise ChecksumError(
                f"{entry.path!r} does not arrive as it is in the sandbox, after {ROUNDS} rounds."
            )
        await asyncio.to_thread(os.fsync, file)
        target.finish(part, overwrite=overwrite)
    meter.file_done(entry.path, whole)


@contextmanager
def opened(file: int) -> Iterator[None]:
    """Close a file in the end."""
    try:
        yield
    finally:
        os.close(file)


class PiecewiseUpload:
    """An upload whose bytes arrive in pieces, in any order; made by `SandboxFiles.open_upload`.

    Parameters
    ----------
    calls
        The calls of the sandbox.
    parts
        Where the file goes.
    """

    def __init__(self, calls: Calls, parts: Parts) -> None:
        self._calls = calls
        self._parts = parts
        self._part = f".ivy-{secrets.token_hex(16)}.part"
        self._pieces: dict[int, tuple[int, bytes]] = {}

    async def begin(self, size_bytes: int | None) -> None:
        """Make the part file."""
        access = self._calls.access
        state = await self._calls.made(lambda: access.begin(self._parts, self._part, create=True))
        if None not in (state.free_bytes, size_bytes) and state.free_bytes < size_bytes:  # type: ignore[operator]  # neither is None
            await self.abandon()
            raise SandboxFileError(
                f"The sandbox's disk has room for {state.free_bytes} bytes, not for {size_bytes}; "
                f"remove files there first."
            )

    async def write_at(self, offset_bytes: int, data: bytes) -> None:
        """Write a piece; pieces may come in any order, and again."""

        async def one(start: int, end: int) -> None:
            piece = data[start - offset_bytes : end - offset_bytes]
            await self._calls.access.write(self._parts, self._part, start, piece)
            self._pieces[start] = (end, hashlib.sha256(piece).digest())

        gaps = Gaps([(offset_bytes, offset_bytes + len(data))])
        await move(self._calls, gaps, self._calls.up, one)

    async def finish(self, *, overwrite: bool = False) -> FileEntry:
        """Check what has arrived, and give it its name.

        Raises
        ------
        ChecksumError
            When a piece is missing, or is not what was written.
        """
        at, beside, access = 0, (*self._parts[:-1], self._part), self._calls.access
        for start, (end, digest) in sorted(self._pieces.items()):
            if start > at:
                break
            at = max(at, end)

            async def same(start: int = start, end: int = end, digest: bytes = digest) -> bool:
                return (await access.hashes(beside, start, end, end - start))[0] == [digest]

            if not await self._calls.made(same):
                at = -1
                break
        if at != max((end for end, _ in self._pieces.values()), default=0):
            await self.abandon()
            raise ChecksumError(f"Not all of {'/'.join(self._parts)!r} has arrived; send it again.")
        return await self._calls.made(
            lambda: access.finish(self._parts, self._part, at, overwrite=overwrite, mode=0o644)
        )

    async def abandon(self) -> None:
        """Remove what has arrived."""
        beside = (*self._parts[:-1], self._part)
        with suppress(IvyError):
            await self._calls.access.remove(beside, recursive=False)


# -- reading in order


async def pieces(
    calls: Calls, parts: Parts, offset_bytes: int = 0, limit_bytes: int | None = None
) -> AsyncIterator[bytes]:
    """Read a file in the sandbox from an offset on, in order, several pieces in flight.

    Raises
    ------
    ChangedFileError
        When it changes meanwhile.
    """
    ahead = calls.down.current_bytes
    is_short = limit_bytes is not None and limit_bytes <= ahead
    first_bytes = limit_bytes if limit_bytes is not None and is_short else ahead
    first = await _span(calls, parts, offset_bytes, offset_bytes + first_bytes)
    yield first.data
    at = offset_bytes + len(first.data)
    end = first.version.size_bytes
    if limit_bytes is not None:
        end = min(end, offset_bytes + limit_bytes)
    waiting: deque[asyncio.Future[Piece]] = deque()
    try:
        while at < end or waiting:
            while at < end and len(waiting) < calls.width:
                stop = min(end, at + calls.down.current_bytes)
                waiting.append(asyncio.ensure_future(_span(calls, parts, at, stop)))
                at = stop
            piece = await waiting[0]
            waiting.popleft()
            if piece.version != first.version or not piece.data:
                raise changed(parts)
            yield piece.data
    finally:
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _span(calls: Calls, parts: Parts, start: int, end: int) -> Piece:
    """One piece of a file, in as many calls as it takes."""
    try:
        piece = await calls.made(lambda: calls.access.read(parts, start, end - start))
    except TooLargeError as error:
        if not calls.down.refused(end - start):
            raise SandboxFileError(f"{'/'.join(parts)!r} cannot be read: {error}") from error
        middle = (start + end) // 2
        one = await _span(calls, parts, start, middle)
        two = await _span(calls, parts, middle, end)
        if one.version != two.version:
            raise changed(parts) from error
        return Piece(one.data + two.data, one.version)
    calls.down.succeeded(end - start)
    return piece
