"""The files of a sandbox as data: entries, listings, and the paths that name them.

A path is relative to the *root*, the directory in which the sandbox's tools start, and uses ``/``.
Names that are no UTF-8 carry their odd bytes as lone surrogates, as Python's own file functions do.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ivy_kernel.errors import AnswerError, IvyError, RefusedPathError, RouteError
from ivy_kernel.models import Json
from ivy_kernel.routes.agent.frames import AgentResponse
from ivy_kernel.routes.file_programs import failure, run, value_of
from ivy_kernel.routes.tools import PYTHON_TOOL, SandboxTools

Kind = Literal["file", "directory", "link", "other"]
Parts = tuple[str, ...]
"""The names that lead from the root to a file; empty for the root itself."""

NAME_LIMIT_BYTES = 255
"""The longest name that common file systems take."""

PART_NAME = re.compile(r"\.ivy-[0-9a-f]{32}\.part")
"""Name of the hidden file that a transfer fills, beside the final name."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file or directory in the sandbox.

    Parameters
    ----------
    path
        Relative to the root; empty for the root.
    kind
        ``other`` is a pipe, a socket or a device: nothing of it is ever read.
    size_bytes
        Its size; 0 for what is no file.
    modified_seconds
        Unix time of its last change; ``None`` when it is not known.
    is_writable
        Whether its content may be changed.
    """

    path: str
    kind: Kind
    size_bytes: int
    modified_seconds: float | None
    is_writable: bool = True

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Listing:
    """What is in a directory, or matches a pattern; sorted by path.

    Parameters
    ----------
    entries
        The entries.
    is_truncated
        Whether there are more.
    """

    entries: tuple[FileEntry, ...]
    is_truncated: bool = False


@dataclass(frozen=True, slots=True)
class Version:
    """What tells one content of a file from a later one, without reading it.

    Parameters
    ----------
    size_bytes
        Its size.
    stamp
        Time of change and inode, or whatever the platform tells; empty when it tells nothing.
    """

    size_bytes: int
    stamp: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a file's content, and the version that it was read from."""

    data: bytes
    version: Version


@dataclass(frozen=True, slots=True)
class Parcel:
    """One of several small files that travel in one call.

    Parameters
    ----------
    parts
        Where it goes.
    data
        Its whole content.
    mode
        Its permissions where it is new.
    """

    parts: Parts
    data: bytes
    mode: int = 0o644


@dataclass(frozen=True, slots=True)
class UploadState:
    """What an upload finds in the sandbox.

    Parameters
    ----------
    final
        What has the final name; ``None`` when it is free.
    part_bytes
        The length of the part file of an earlier try; 0 for none.
    free_bytes
        Room on the disk; ``None`` when it is not known.
    """

    final: FileEntry | None
    part_bytes: int
    free_bytes: int | None


class FileAccess(Protocol):
    """One way to the files of a sandbox: each method is one call, and may be repeated.

    All raise `IvyError`, and `TooLargeError` where a smaller call may succeed. A link on the way is
    refused with `RefusedPathError`.
    """

    @property
    def method(self) -> str:
        """Which way it is, in words for the user."""

    @property
    def writes_anywhere(self) -> bool:
        """Whether a part file can be written at any place and hashed in the sandbox."""

    async def root(self) -> str:
        """Find out whether this way works; return the root's own path, empty if unknown.

        Raises
        ------
        RouteError
            When this way does not work in this sandbox.
        """

    async def entries(self, parts: Parts, *, recursive: bool, limit: int) -> Listing:
        """List a directory; of a file, the file alone."""

    async def matching(self, pattern: str, limit: int) -> Listing:
        """List what matches a pattern with ``*``, ``?``, ``[]`` and ``**``."""

    async def entry(self, parts: Parts) -> FileEntry:
        """Return one entry, without following a link."""

    async def read(self, parts: Parts, offset_bytes: int, limit_bytes: int) -> Piece:
        """Read a piece of a regular file; shorter than asked for only at its end."""

    async def fetch(
        self, files: Sequence[Parts], limit_bytes: int
    ) -> list[Piece | IvyError | None]:
        """Read whole small files in order, as many as fit; at least the first one."""

    async def store(self, parcels: Sequence[Parcel], *, overwrite: bool) -> list[str | IvyError]:
        """Write small files, each whole or not at all: ``written``, ``equal`` or what hinders."""

    async def begin(self, parts: Parts, part_name: str, *, create: bool) -> UploadState:
        """See what an upload finds, make its directory, and its part file if ``create``."""

    async def write(self, parts: Parts, part_name: str, offset_bytes: int, data: bytes) -> None:
        """Write a piece into the part file beside ``parts``, checked on arrival."""

    async def hashes(
        self, parts: Parts, start_bytes: int, end_bytes: int, step_bytes: int
    ) -> tuple[list[bytes], Version]:
        """Return the SHA-256 of each range of a file, and the version that was read."""

    async def finish(
        self, parts: Parts, part_name: str, size_bytes: int, *, overwrite: bool, mode: int
    ) -> FileEntry:
        """Give a whole part file its final name, never over another file unless ``overwrite``."""

    async def remove(self, parts: Parts, *, recursive: bool) -> int:
        """Remove a file or directory; return how many files that were."""

    async def rename(self, parts: Parts, new_parts: Parts, *, overwrite: bool) -> FileEntry:
        """Give a file or directory another place."""

    async def copy(self, parts: Parts, new_parts: Parts) -> FileEntry:
        """Copy a file to a free name."""

    async def make_directory(self, parts: Parts) -> FileEntry:
        """Make a directory and those above it; one that is there is fine."""


def parts_of(path: str, root: str = "") -> Parts:
    """Return the names that lead from the root to ``path``.

    Parameters
    ----------
    path
        As the user gave it.
    root
        The root's own path, below which an absolute path must lie; empty when it is not known.

    Raises
    ------
    RefusedPathError
        When it leads out of the root, or no file can have it.
    """
    shown = repr(path)
    if "\0" in path:
        raise RefusedPathError(f"The path {shown} has a zero byte in it; no file can have it.")
    try:
        path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise RefusedPathError(f"The path {shown} is no text that a file can have.") from None
    if path.startswith("/"):
        inside = path.rstrip("/") + "/"
        if not root or not inside.startswith(root.rstrip("/") + "/"):
            where = f" {root!r}" if root else ""
            raise RefusedPathError(
                f"The path {shown} is outside of the sandbox's working directory{where}; give it "
                f"relative to that, without a leading slash."
            )
        path = inside[len(root.rstrip("/")) :]
    names: list[str] = []
    for name in path.split("/"):
        if name == "..":
            if not names:
                raise RefusedPathError(
                    f"The path {shown} leads out of the sandbox's working directory; leave out "
                    f"the '..'."
                )
            names.pop()
        elif name not in ("", "."):
            if len(name.encode("utf-8", "surrogateescape")) > NAME_LIMIT_BYTES:
                raise RefusedPathError(
                    f"The name {name[:40] + '…'!r} is longer than {NAME_LIMIT_BYTES} bytes; "
                    f"shorten it."
                )
            names.append(name)
    return tuple(names)


def file_parts(path: str, root: str = "") -> Parts:
    """Return the names that lead to a file, which the root is not.

    Raises
    ------
    RefusedPathError
        As `parts_of`, and for the root.
    """
    parts = parts_of(path, root)
    if not parts:
        raise RefusedPathError(f"The path {path!r} is the working directory itself; name a file.")
    return parts


def glob_expression(pattern: str) -> str:
    """Return the regular expression for a pattern with ``*``, ``?``, ``[]`` and ``**``."""
    return r"(?s:" + _TOKEN.sub(_translated, pattern) + r")\Z"


_TOKEN = re.compile(r"\*\*/|\*\*|\*|\?|\[(!?)(\]?[^]]*)\]|.", re.DOTALL)
_EXPRESSIONS = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def _translated(token: re.Match[str]) -> str:
    if token[2]:
        inside = re.sub(r"([\\\[&~|^])", r"\\\1", token[2])
        return f"(?!/)[{'^' if token[1] else ''}{inside}]"
    return _EXPRESSIONS.get(token[0]) or re.escape(token[0])


_KINDS: dict[str, Kind] = {"f": "file", "d": "directory", "l": "link"}

STALE_SECONDS = 7 * 24 * 3600
"""Part files that nothing has touched for so long are removed."""


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
        response = await self._run("write", arguments, data=data)
        value_of(response)
        if response.header.get("n") != len(data):
            raise AnswerError("The sandbox's answer to a write cannot be read.")

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
        return await run(self._tools, self._tool, name, arguments, data=data, root=self._root)

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
