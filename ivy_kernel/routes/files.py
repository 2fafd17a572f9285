"""The files of a sandbox as data: entries, listings, and the paths that name them.

A path is relative to the *root*, the directory in which the sandbox's tools start, and uses ``/``.
Names that are no UTF-8 carry their odd bytes as lone surrogates, as Python's own file functions do.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Literal, Protocol

from ivy_kernel.errors import (
    ChecksumError,
    FileExistsInSandboxError,
    IvyError,
    NoSuchFileError,
    RefusedPathError,
    SandboxFileError,
)
from ivy_kernel.models import Json

Kind = Literal["file", "directory", "link", "other"]
Parts = tuple[str, ...]
"""The names that lead from the root to a file; empty for the root itself."""

NAME_LIMIT_BYTES = 255
"""The longest name that common file systems take."""

PART_NAME = re.compile(r"\.ivy-[0-9a-f]{32}\.part(-\d+)?")
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

    async def read_unverified(self, parts: Parts, offset_bytes: int, limit_bytes: int) -> bytes:
        """Read a piece by the quickest means; the caller compares the whole with `hashes`."""

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

    async def write_unverified(
        self, parts: Parts, part_name: str, offset_bytes: int, data: bytes
    ) -> bool:
        """Write a piece by the quickest means; the caller compares the whole with `hashes`.

        Returns whether it is a file of its own, which `gather` brings into the part file.
        """

    async def gather(self, parts: Parts, part_name: str, offsets_bytes: Sequence[int]) -> None:
        """Bring pieces that are files of their own into the part file, and remove them."""

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


STALE_SECONDS = 7 * 24 * 3600
"""Part files that nothing has touched for so long are removed."""


def failure(value: Json) -> IvyError:
    """Return the error for what a program says has failed."""
    kind, name, number = value.get("fail"), str(value.get("name", "")), value.get("errno")
    shown = repr(name) if name else "the file"
    if kind == "link":
        return RefusedPathError(
            f"{shown} is a symbolic link, which is not followed; name the file that it leads to."
        )
    if kind == "kind":
        return SandboxFileError(f"{shown} in the sandbox is no regular file, so it is left alone.")
    if kind == "inside":
        return RefusedPathError(f"The directory {shown} cannot be moved into itself.")
    if kind == "damaged":
        return ChecksumError("What arrived in the sandbox is not what was sent.")
    sentence = _SENTENCES.get(number if isinstance(number, int) else 0)
    if sentence is None:
        said = str(value.get("said", "no reason was given"))
        return SandboxFileError(f"{shown} in the sandbox cannot be used: {said}.")
    return sentence[0](sentence[1].format(name=shown))


_SENTENCES: dict[int, tuple[Callable[[str], IvyError], str]] = {
    # Linux's numbers, which are those of the sandbox.
    errno.ENOENT: (NoSuchFileError, "There is no {name} in the sandbox."),
    errno.EEXIST: (
        FileExistsInSandboxError,
        "{name} exists in the sandbox already; --force replaces it.",
    ),
    errno.ENOTDIR: (SandboxFileError, "A directory on the way to {name} is a file."),
    errno.EISDIR: (SandboxFileError, "{name} in the sandbox is a directory."),
    39: (SandboxFileError, "The directory {name} is not empty; -r removes it with its files."),
    36: (RefusedPathError, "The name {name} is too long for the sandbox's file system."),
    errno.ENOSPC: (
        SandboxFileError,
        "The sandbox's disk is full; remove files there, then go on with the same command.",
    ),
    122: (
        SandboxFileError,
        "The sandbox's disk quota is used up; remove files there, then run the same command.",
    ),
    errno.EROFS: (SandboxFileError, "{name} is in a read-only area of the sandbox."),
    errno.EACCES: (SandboxFileError, "{name} in the sandbox may not be used so: no permission."),
    errno.EPERM: (SandboxFileError, "{name} in the sandbox may not be used so: no permission."),
}


# -- the platform's own list


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """A file that the platform has registered for the chat.

    Parameters
    ----------
    path, name
        Where it is, and how it is called.
    kind
        How it came there, in the platform's own words: ``upload``, ``export``, …
    size_bytes, created
        ``None`` where the platform does not say.
    raw
        All that it says.
    """

    path: str
    name: str
    kind: str
    size_bytes: int | None
    created: datetime | None
    raw: Json


def manifest_entry(raw: Json) -> ManifestEntry:
    """Read one entry of the manifest, whose fields the platform does not document."""
    path = next((raw[key] for key in ("path", "filePath", "key", "name") if key in raw), "")
    kind = next((raw[key] for key in ("kind", "source", "origin", "type") if key in raw), "")
    size = next((raw[key] for key in ("size", "sizeBytes", "bytes") if key in raw), None)
    moment = next((raw[key] for key in ("createdAt", "created_at", "created") if key in raw), None)
    return ManifestEntry(
        path=str(path),
        name=str(raw.get("name") or str(path).rpartition("/")[2]),
        kind=str(kind),
        size_bytes=size if isinstance(size, int) and not isinstance(size, bool) else None,
        created=moment_of(moment),
        raw=raw,
    )


def moment_of(value: object) -> datetime | None:
    """Read a time in any plausible form: ISO, seconds, milliseconds; ``None`` if it is none."""
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value.replace("Z", "+00:00"))
            return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
        if isinstance(value, int | float):
            return datetime.fromtimestamp(value / (1000 if value > 1e11 else 1), timezone.utc)
    except (ValueError, OverflowError, OSError):
        pass
    return None
