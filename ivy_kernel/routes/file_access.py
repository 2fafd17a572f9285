"""Access to a sandbox's files by small Python programs: one tool call for each operation."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any

from ivy_kernel.errors import (
    AnswerError,
    BadRequestError,
    IvyError,
    RouteError,
    SandboxFileError,
    TransferInterruptedError,
)
from ivy_kernel.models import Json
from ivy_kernel.routes.agent.frames import AgentResponse
from ivy_kernel.routes.file_programs import program, run
from ivy_kernel.routes.file_tools import ToolFiles
from ivy_kernel.routes.files import (
    PART_NAME,
    STALE_SECONDS,
    FileAccess,
    FileEntry,
    Kind,
    Listing,
    Parcel,
    Parts,
    Piece,
    UploadState,
    Version,
    failure,
    glob_expression,
)
from ivy_kernel.routes.tools import PYTHON_TOOL, SandboxTools

SMALLEST_SWIFT_BYTES = 256 << 10
"""Below this the start of a Python costs less than to find out what is quicker."""

_KINDS: dict[str, Kind] = {"f": "file", "d": "directory", "l": "link"}


class ProgramFiles:
    """Access by small Python programs; see `ivy_kernel.routes.file_programs`.

    Parameters
    ----------
    tools
        The sandbox's tools.
    tool
        The one that runs them.
    """

    writes_anywhere = True

    def __init__(self, tools: SandboxTools, tool: str = PYTHON_TOOL) -> None:
        self._tools = tools
        self._tool = tool
        self._root = ""
        self._tool_files = ToolFiles(tools)
        self._reader_is_right: bool | None = None
        self._writer_is_right: bool | None = None

    @property
    def method(self) -> str:
        """Which way it is, in words for the user."""
        return f"Python in the sandbox ({self._tool})"

    async def root(self) -> str:
        """See `FileAccess.root`."""
        try:
            value = await self._value("probe", {})
        except (AnswerError, RouteError) as error:
            raise RouteError(f"{self._tool} runs no Python there: {error}") from error
        root = value.get("root") if isinstance(value, dict) else None
        if not isinstance(root, str) or not root.startswith("/"):
            raise RouteError(f"{self._tool} does not tell its working directory.")
        if self._tool != PYTHON_TOOL:  # a notebook may go elsewhere meanwhile
            self._root = root
        return root

    async def entries(self, parts: Parts, *, recursive: bool, limit: int) -> Listing:
        """See `FileAccess.entries`."""
        arguments = {"parts": parts, "recursive": recursive, "limit": limit, "match": ""}
        return _listing(await self._value("entries", arguments))

    async def matching(self, pattern: str, limit: int) -> Listing:
        """See `FileAccess.matching`."""
        top: list[str] = []
        for name in pattern.split("/")[:-1]:
            if re.search(r"[*?\[]", name):
                break
            top.append(name)
        deep = "/" in pattern[len("/".join(top)) + 1 :] or "**" in pattern
        match = glob_expression(pattern)
        arguments = {"parts": tuple(top), "recursive": deep, "limit": limit, "match": match}
        return _listing(await self._value("entries", arguments))

    async def entry(self, parts: Parts) -> FileEntry:
        """See `FileAccess.entry`."""
        return _entry(await self._value("entry", {"parts": parts}))

    async def read(self, parts: Parts, offset_bytes: int, limit_bytes: int) -> Piece:
        """See `FileAccess.read`."""
        arguments = {"parts": parts, "offset": offset_bytes, "limit": limit_bytes}
        version, data = await self._versioned("read", arguments)
        return Piece(data, version)

    async def read_unverified(self, parts: Parts, offset_bytes: int, limit_bytes: int) -> bytes:
        """See `FileAccess.read_unverified`.

        ``sandbox_read`` starts no Python and is several times as quick, where it reads byte by
        byte: that is found out once, by reading the first piece both ways.
        """
        where = (parts, offset_bytes, limit_bytes)
        if self._reader_is_right is False or limit_bytes < SMALLEST_SWIFT_BYTES:
            return (await self.read(*where)).data
        try:
            data = await self._tool_files.read_unverified(*where)
        except (BadRequestError, SandboxFileError, AnswerError):
            self._reader_is_right = False
        else:
            if self._reader_is_right:
                return data
        right = (await self.read(*where)).data
        if self._reader_is_right is None:
            self._reader_is_right = data == right
        return right

    async def fetch(
        self, files: Sequence[Parts], limit_bytes: int
    ) -> list[Piece | IvyError | None]:
        """See `FileAccess.fetch`."""
        arguments = {"files": list(files), "limit": limit_bytes}
        value, data = value_of(await self._run("fetch", arguments))
        found: list[Piece | IvyError | None] = []
        at = 0
        for head in value["files"]:
            if isinstance(head, dict):
                found.append(failure(head))
                continue
            size, whole, stamp = int(head[0]), int(head[1]), str(head[2])
            piece = Piece(data[at : at + size], Version(whole, stamp))
            at += size
            # A file that has grown meanwhile does not fit: it travels alone.
            found.append(piece if len(piece.data) == whole else None)
        return found

    async def store(self, parcels: Sequence[Parcel], *, overwrite: bool) -> list[str | IvyError]:
        """See `FileAccess.store`."""
        data = b"".join(parcel.data for parcel in parcels)
        arguments = {
            "files": [(parcel.parts, len(parcel.data), parcel.mode) for parcel in parcels],
            "part": f".ivy-{secrets.token_hex(16)}.part",
            "overwrite": overwrite,
        }
        value = await self._value("store", arguments, data=data)
        return [failure(end) if isinstance(end, dict) else str(end) for end in value["files"]]

    async def begin(self, parts: Parts, part_name: str, *, create: bool) -> UploadState:
        """See `FileAccess.begin`."""
        arguments = {
            "parts": parts,
            "part": part_name,
            "create": create,
            "stale": PART_NAME.pattern,
            "seconds": STALE_SECONDS,
        }
        value = await self._value("begin", arguments)
        final = None if value["final"] is None else _entry(value["final"])
        return UploadState(final, int(value["part"]), int(value["free"]))

    async def write(self, parts: Parts, part_name: str, offset_bytes: int, data: bytes) -> None:
        """See `FileAccess.write`."""
        arguments = {"parts": parts, "part": part_name, "offset": offset_bytes}
        size, call = len(data), program("write", arguments, data=data, root=self._root)
        del data  # several calls are in flight: each keeps its code alone
        response = await run(self._tools, self._tool, call)
        value_of(response)
        if response.header.get("n") != size:
            raise AnswerError("The sandbox's answer to a write cannot be read.")

    async def write_unverified(
        self, parts: Parts, part_name: str, offset_bytes: int, data: bytes
    ) -> bool:
        """See `FileAccess.write_unverified`.

        ``sandbox_write`` starts no Python either. It writes a new file for each piece: appending
        could not be repeated. Whether it does what it is told is found out by hashing the first.
        """
        if self._writer_is_right is not False and len(data) >= SMALLEST_SWIFT_BYTES:
            piece = (*parts[:-1], f"{part_name}-{offset_bytes}")
            is_proof = self._writer_is_right is None
            try:
                await self._tool_files.write_file(piece, data)
                if is_proof:
                    found, version = await self.hashes(piece, 0, len(data), len(data))
                    is_equal = version.size_bytes == len(data)
                    is_right = is_equal and found == [sha256(data).digest()]
                    self._writer_is_right = is_right and self._writer_is_right in (None, True)
            except (BadRequestError, SandboxFileError, AnswerError):
                self._writer_is_right = False
            if self._writer_is_right:
                return True
            with suppress(SandboxFileError):
                await self.remove(piece, recursive=False)
        await self.write(parts, part_name, offset_bytes, data)
        return False

    async def gather(self, parts: Parts, part_name: str, offsets_bytes: Sequence[int]) -> None:
        """See `FileAccess.gather`."""
        arguments = {"parts": parts, "part": part_name, "at": list(offsets_bytes)}
        value_of(await self._run("gather", arguments))

    async def hashes(
        self, parts: Parts, start_bytes: int, end_bytes: int, step_bytes: int
    ) -> tuple[list[bytes], Version]:
        """See `FileAccess.hashes`."""
        arguments = {"parts": parts, "start": start_bytes, "end": end_bytes, "step": step_bytes}
        version, data = await self._versioned("hashes", arguments)
        return [data[at : at + 32] for at in range(0, len(data), 32)], version

    async def finish(
        self, parts: Parts, part_name: str, size_bytes: int, *, overwrite: bool, mode: int
    ) -> FileEntry:
        """See `FileAccess.finish`."""
        arguments = {
            "parts": parts,
            "part": part_name,
            "size": size_bytes,
            "overwrite": overwrite,
            "mode": mode,
        }
        return _entry(await self._value("finish", arguments))

    async def remove(self, parts: Parts, *, recursive: bool) -> int:
        """See `FileAccess.remove`."""
        value = await self._value("remove", {"parts": parts, "recursive": recursive})
        return int(value["n"])

    async def rename(self, parts: Parts, new_parts: Parts, *, overwrite: bool) -> FileEntry:
        """See `FileAccess.rename`."""
        arguments = {"parts": parts, "new": new_parts, "overwrite": overwrite}
        return _entry(await self._value("rename", arguments))

    async def copy(self, parts: Parts, new_parts: Parts) -> FileEntry:
        """See `FileAccess.copy`."""
        part = f".ivy-{secrets.token_hex(16)}.part"
        arguments = {"parts": parts, "new": new_parts, "part": part}
        return _entry(await self._value("copy", arguments))

    async def make_directory(self, parts: Parts) -> FileEntry:
        """See `FileAccess.make_directory`."""
        return _entry(await self._value("make", {"parts": parts}))

    async def _run(self, name: str, arguments: Json, *, data: bytes | None = None) -> AgentResponse:
        call = program(name, arguments, data=data, root=self._root)
        return await run(self._tools, self._tool, call)

    async def _value(self, name: str, arguments: Json, *, data: bytes | None = None) -> Any:
        return value_of(await self._run(name, arguments, data=data))[0]

    async def _versioned(self, name: str, arguments: Json) -> tuple[Version, bytes]:
        response = await self._run(name, arguments)
        _, data = value_of(response)
        size, stamp = response.header.get("size"), response.header.get("stamp")
        if not isinstance(size, int) or not isinstance(stamp, str):
            raise AnswerError("The sandbox's answer about a file cannot be read.")
        return Version(size, stamp), data


def _entry(row: Any) -> FileEntry:
    path, kind, size, modified, is_writable = row
    return FileEntry(
        str(path), _KINDS.get(kind, "other"), int(size), float(modified), bool(is_writable)
    )


def _listing(value: Any) -> Listing:
    rows, more = value
    entries = sorted((_entry(row) for row in rows), key=lambda entry: entry.path)
    return Listing(tuple(entries), bool(more))


def value_of(response: AgentResponse) -> tuple[Any, bytes]:
    """Return the JSON value that a program said, and the bytes after it.

    Raises
    ------
    AnswerError
        When there is none.
    SandboxFileError, RefusedPathError
        When it is a failure.
    """
    size = response.header.get("json")
    if not isinstance(size, int):
        return None, response.body
    try:  # msgspec would refuse names that are no UTF-8
        value = json.loads(response.body[:size])
    except (ValueError, RecursionError):
        raise AnswerError("The sandbox's answer about its files cannot be read.") from None
    if isinstance(value, dict) and "fail" in value:
        raise failure(value)
    return value, response.body[size:]


async def choose(
    tools: SandboxTools, tool: str, probe: Callable[[FileAccess], Awaitable[str]]
) -> tuple[FileAccess, str]:
    """Return the first way to the files that works, and the root's path.

    Parameters
    ----------
    tools, tool
        The sandbox's tools, and the one that runs Python.
    probe
        Asks a way for its root, through faults that may pass.

    Raises
    ------
    SandboxFileError
        When none works.
    """
    refused: list[str] = []
    ways: tuple[FileAccess, ...] = (ProgramFiles(tools, tool), ToolFiles(tools))
    for access in ways:
        try:
            return access, await probe(access)
        except (RouteError, TransferInterruptedError) as error:
            refused.append(str(error).rstrip("."))
    raise SandboxFileError(f"There is no way to the sandbox's files: {'; '.join(refused)}.")
