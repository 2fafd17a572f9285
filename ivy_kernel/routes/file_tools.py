"""Access to a sandbox's files by the platform's own file tools, where no Python runs."""

from __future__ import annotations

import json
import re
import secrets
import shlex
from base64 import b64decode
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any

import msgspec

from ivy_kernel.api.operations import Base64
from ivy_kernel.errors import (
    AnswerError,
    BadRequestError,
    ChecksumError,
    IvyError,
    NoSuchFileError,
    RouteError,
    SandboxFileError,
    UnexpectedStatusError,
)
from ivy_kernel.models import Json
from ivy_kernel.routes.file_programs import TooLargeError
from ivy_kernel.routes.files import (
    FileEntry,
    Kind,
    Listing,
    Parcel,
    Parts,
    Piece,
    UploadState,
    Version,
    failure,
    moment_of,
)
from ivy_kernel.routes.tools import SandboxTools, strings_in

_READ_BACK_BYTES = 1 << 20
_DIRECT_BYTES = 1 << 20
TOOL_SECONDS = 60.0
_NO_SHELL = "This sandbox runs neither Python nor a shell for us, so {what}."


class ToolFiles:
    """Access by ``sandbox_files``, ``_glob``, ``_read`` and ``_write``, where no Python runs.

    Nothing of these tools is documented but their names: answers are read tolerantly, and what was
    written is read back. Names are given and files removed by ``sandbox_exec``, where that works.

    Parameters
    ----------
    tools
        The sandbox's tools.
    """

    writes_anywhere = False

    def __init__(self, tools: SandboxTools) -> None:
        self._tools = tools
        self._has_shell = False

    @property
    def method(self) -> str:
        """Which way it is, in words for the user."""
        more = " and sandbox_exec" if self._has_shell else ""
        return f"the platform's file tools (sandbox_read, sandbox_write{more})"

    async def root(self) -> str:
        """See `FileAccess.root`."""
        try:
            await self._listed(())
        except (AnswerError, BadRequestError, SandboxFileError) as error:
            raise RouteError(f"sandbox_files cannot be used: {error}") from error
        with suppress(BadRequestError, RouteError, SandboxFileError):
            await self._shell("true", (), "")
            self._has_shell = True
        return ""

    async def entries(self, parts: Parts, *, recursive: bool, limit: int) -> Listing:
        """See `FileAccess.entries`."""
        if parts and (await self.entry(parts)).kind != "directory":
            return Listing((await self.entry(parts),))
        found = await self._listed(parts, recursive=recursive)
        entries = sorted(found.entries, key=lambda entry: entry.path)
        return Listing(tuple(entries[:limit]), found.is_truncated or len(entries) > limit)

    async def matching(self, pattern: str, limit: int) -> Listing:
        """See `FileAccess.matching`."""
        result = await self._call("sandbox_glob", {"pattern": pattern, "limit": limit})
        paths = next((value for value in _lists(result) if value or value == []), [])
        found = [
            FileEntry(str(each), "file", 0, None)
            if isinstance(each, str)
            else _tool_entry(each, (), is_deep=True)
            for each in paths
        ]
        kept = sorted((each for each in found if each is not None), key=lambda entry: entry.path)
        return Listing(tuple(kept[:limit]), len(kept) > limit or _is_cut(result))

    async def entry(self, parts: Parts) -> FileEntry:
        """See `FileAccess.entry`. Each directory on the way is looked at: none may be a link."""
        found = FileEntry("", "directory", 0, None)
        for depth in range(len(parts)):
            if found.kind == "link":
                raise failure({"fail": "link", "name": found.name})
            if found.kind != "directory":
                raise failure({"fail": "os", "errno": 20, "name": found.name})
            listing = await self._listed(parts[:depth])
            path = "/".join(parts[: depth + 1])
            match = [entry for entry in listing.entries if entry.path == path]
            if not match:
                raise failure({"fail": "os", "errno": 2, "name": path})
            found = match[0]
        return found

    async def read(self, parts: Parts, offset_bytes: int, limit_bytes: int) -> Piece:
        """See `FileAccess.read`."""
        path = "/".join(parts)
        result = await self._call(
            "sandbox_read",
            {"path": path, "offset": offset_bytes, "limit": limit_bytes, "encoding": "base64"},
        )
        body = result if isinstance(result, dict) else {"content": result}
        text = next((body[key] for key in _CONTENT if isinstance(body.get(key), str)), None)
        if text is None:
            raise AnswerError(f"sandbox_read returned no content of {path!r}.")
        size = next((body[key] for key in _SIZES if isinstance(body.get(key), int)), None)
        if size is None:
            size = (await self.entry(parts)).size_bytes
        try:
            data = _unpacked(text) if body.get("encoding") == "base64" else text.encode()
        except (ValueError, UnicodeEncodeError):
            raise AnswerError(f"sandbox_read returned no readable content of {path!r}.") from None
        if len(data) > limit_bytes:  # it knows no pieces
            data = data[offset_bytes : offset_bytes + limit_bytes]
        if len(data) != max(0, min(limit_bytes, size - offset_bytes)):
            raise SandboxFileError(
                f"sandbox_read does not return {path!r} byte by byte, so binary files cannot "
                f"travel this way; they need a sandbox that runs Python."
            )
        return Piece(data, Version(size))

    async def read_unverified(self, parts: Parts, offset_bytes: int, limit_bytes: int) -> bytes:
        """See `FileAccess.read_unverified`."""
        return (await self.read(parts, offset_bytes, limit_bytes)).data

    async def fetch(
        self, files: Sequence[Parts], limit_bytes: int
    ) -> list[Piece | IvyError | None]:
        """See `FileAccess.fetch`."""
        return [await self.read(files[0], 0, limit_bytes)]

    async def store(self, parcels: Sequence[Parcel], *, overwrite: bool) -> list[str | IvyError]:
        """See `FileAccess.store`."""
        ends: list[str | IvyError] = []
        for parcel in parcels:
            try:
                ends.append(await self._store(parcel, overwrite=overwrite))
            except SandboxFileError as error:
                ends.append(error)
        return ends

    async def _store(self, parcel: Parcel, *, overwrite: bool) -> str:
        with suppress(NoSuchFileError):
            old = await self.entry(parcel.parts)
            if old.kind != "file":
                raise failure({"fail": "kind", "name": old.path})
            if old.size_bytes == len(parcel.data):
                there = await self._whole(parcel.parts, old.size_bytes)
                if there == parcel.data:
                    return "equal"
            if not overwrite:
                raise failure({"fail": "os", "errno": 17, "name": old.path})
        if not self._has_shell:  # no name can be given: the tool's own write is all there is
            await self.write_file(parcel.parts, parcel.data, append=False)
            await self._read_back(parcel.parts, 0, parcel.data)
            return "written"
        part = f".ivy-{secrets.token_hex(16)}.part"
        await self.write(parcel.parts, part, 0, parcel.data)
        size, mode = len(parcel.data), parcel.mode
        await self.finish(parcel.parts, part, size, overwrite=overwrite, mode=mode)
        return "written"

    async def _whole(self, parts: Parts, size_bytes: int) -> bytes:
        pieces = range(0, size_bytes, _READ_BACK_BYTES)
        return b"".join([(await self.read(parts, at, _READ_BACK_BYTES)).data for at in pieces])

    async def begin(self, parts: Parts, part_name: str, *, create: bool) -> UploadState:
        """See `FileAccess.begin`. A part is begun anew: nothing can be written in its middle."""
        if not self._has_shell:
            raise SandboxFileError(_NO_SHELL.format(what="only small files can be written whole"))
        try:
            return UploadState(await self.entry(parts), 0, None)
        except NoSuchFileError:
            return UploadState(None, 0, None)

    async def write(self, parts: Parts, part_name: str, offset_bytes: int, data: bytes) -> None:
        """See `FileAccess.write`: appends, and finds out by the length whether it has before."""
        beside = (*parts[:-1], part_name)
        if offset_bytes:
            there = (await self.entry(beside)).size_bytes
            if there not in (offset_bytes, offset_bytes + len(data)):
                raise ChecksumError(f"The part file has {there} bytes, not {offset_bytes}.")
            if there == offset_bytes:
                await self.write_file(beside, data, append=True)
        else:
            await self.write_file(beside, data, append=False)
        await self._read_back(beside, offset_bytes, data)

    async def write_unverified(
        self, parts: Parts, part_name: str, offset_bytes: int, data: bytes
    ) -> bool:
        """See `FileAccess.write_unverified`: nothing else could compare the whole."""
        await self.write(parts, part_name, offset_bytes, data)
        return False

    async def gather(self, parts: Parts, part_name: str, offsets_bytes: Sequence[int]) -> None:
        """See `FileAccess.gather`."""

    async def write_file(self, parts: Parts, data: bytes, *, append: bool = False) -> None:
        """Write a file as the tool does, and look at nothing; the JSON has ``data`` in base64."""
        body = {"path": "/".join(parts), "content": Base64(data), "encoding": "base64"}
        await self._call("sandbox_write", {**body, "append": append})

    async def _read_back(self, parts: Parts, offset_bytes: int, data: bytes) -> None:
        for at in range(0, len(data), _READ_BACK_BYTES):
            piece = data[at : at + _READ_BACK_BYTES]
            if (await self.read(parts, offset_bytes + at, len(piece))).data != piece:
                raise ChecksumError(
                    f"sandbox_write did not write what it was given to {'/'.join(parts)!r}."
                )

    async def hashes(
        self, parts: Parts, start_bytes: int, end_bytes: int, step_bytes: int
    ) -> tuple[list[bytes], Version]:
        """See `FileAccess.hashes`: read, and hashed here, for nothing else can."""
        found, version = [], Version((await self.entry(parts)).size_bytes)
        for start in range(start_bytes, end_bytes, step_bytes):
            digest, stop = sha256(), min(start + step_bytes, end_bytes)
            for at in range(start, stop, _READ_BACK_BYTES):
                digest.update((await self.read(parts, at, min(_READ_BACK_BYTES, stop - at))).data)
            found.append(digest.digest())
        return found, version

    async def finish(
        self, parts: Parts, part_name: str, size_bytes: int, *, overwrite: bool, mode: int
    ) -> FileEntry:
        """See `FileAccess.finish`."""
        part, name = shlex.quote("/".join((*parts[:-1], part_name))), shlex.quote("/".join(parts))
        link = f"ln -T -- {part} {name} && rm -f -- {part}"
        place = f"mv -fT -- {part} {name}" if overwrite else link
        await self._shell(f"chmod {mode:o} -- {part} && {place}", parts, "given its name")
        return await self.entry(parts)

    async def remove(self, parts: Parts, *, recursive: bool) -> int:
        """See `FileAccess.remove`."""
        entry = await self.entry(parts)
        below = 1
        name = shlex.quote("/".join(parts))
        command = f"rm -f -- {name}"
        if entry.kind == "directory":
            found = (await self._listed(parts, recursive=True)).entries
            below = sum(each.kind != "directory" for each in found)
            command = f"rm -r -f -- {name}" if recursive else f"rmdir -- {name}"
        await self._shell(command, parts, "removed")
        return below

    async def rename(self, parts: Parts, new_parts: Parts, *, overwrite: bool) -> FileEntry:
        """See `FileAccess.rename`."""
        await self.entry(parts)
        if not overwrite:
            await self._refuse_existing(new_parts)
        old, new = shlex.quote("/".join(parts)), shlex.quote("/".join(new_parts))
        way = "f" if overwrite else "n"
        command = f"mv -{way}T -- {old} {new} && [ ! -e {old} ]"
        await self._shell(command, (*parts[:-1], *new_parts[:-1], ""), "renamed")
        return await self.entry(new_parts)

    async def copy(self, parts: Parts, new_parts: Parts) -> FileEntry:
        """See `FileAccess.copy`."""
        if (await self.entry(parts)).kind != "file":
            raise failure({"fail": "kind", "name": parts[-1]})
        await self._refuse_existing(new_parts)
        old, new = shlex.quote("/".join(parts)), shlex.quote("/".join(new_parts))
        await self._shell(f"cp -nT -- {old} {new}", new_parts, "copied")
        return await self.entry(new_parts)

    async def _refuse_existing(self, parts: Parts) -> None:
        with suppress(NoSuchFileError):
            await self.entry(parts)
            raise failure({"fail": "os", "errno": 17, "name": "/".join(parts)})

    async def make_directory(self, parts: Parts) -> FileEntry:
        """See `FileAccess.make_directory`."""
        if parts:
            name = shlex.quote("/".join(parts))
            await self._shell(f"mkdir -p -- {name}", parts, "made")
        return await self.entry(parts)

    async def _shell(self, command: str, parts: Parts, what: str) -> None:
        """Run a command where no directory on the way to ``parts`` is a link."""
        if what and not self._has_shell:
            raise SandboxFileError(_NO_SHELL.format(what=f"no file can be {what}"))
        nonce = secrets.token_hex(8)
        ways = ["/".join(parts[:depth]) for depth in range(1, len(parts))]
        links = " || ".join(f"[ -L {shlex.quote(way)} ]" for way in ways) or "false"
        refuse = f"if {links}; then echo IVY-''LINK-{nonce}; exit; fi"
        code = f"{refuse}\n{command} && echo IVY-''DONE-{nonce}"
        result = await self._tools.run("sandbox_exec", code, TOOL_SECONDS, retry=False)
        said = "\n".join(strings_in(result))
        if f"IVY-LINK-{nonce}" in said:
            raise failure({"fail": "link", "name": "/".join(parts[:-1])})
        if f"IVY-DONE-{nonce}" not in said:
            if "File exists" in said:
                raise failure({"fail": "os", "errno": 17, "name": "/".join(parts)})
            raise SandboxFileError(
                f"{'/'.join(parts)!r} could not be {what}: {said.strip()[-200:]}"
            )

    async def _listed(self, parts: Parts, *, recursive: bool = False) -> Listing:
        body = {"path": "/".join(parts), "recursive": recursive}
        result = await self._call("sandbox_files", body)
        lists = list(_lists(result))
        if not lists:
            raise AnswerError("sandbox_files returned no list of files.")
        found = [_tool_entry(each, parts, is_deep=recursive) for each in lists[0]]
        return Listing(tuple(each for each in found if each is not None), _is_cut(result))

    async def _call(self, tool: str, body: Json) -> Any:
        try:
            result: Any = await self._tools.call(tool, body, TOOL_SECONDS, retry=False)
        except UnexpectedStatusError as error:
            if error.status_code == 413:
                raise TooLargeError(str(error)) from error
            raise
        if isinstance(result, str) and result[:1] in "[{":
            with suppress(ValueError, RecursionError):
                result = json.loads(result)
        if isinstance(result, dict):
            for key in ("result", "data", "output"):
                if isinstance(result.get(key), dict):
                    result = result[key]
            if result.get("success") is False or (result.get("error") and len(result) <= 2):
                said = f"{result.get('code', '')} {result.get('error', '')}".strip()
                path = str(body.get("path", body.get("pattern", "")))
                if re.search(r"(?i)not.?found|no such|there is no", said):
                    raise failure({"fail": "os", "errno": 2, "name": path})
                raise SandboxFileError(f"{tool} refused {path!r}: {said}.")
        return result


async def export(tools: SandboxTools, parts: Parts, name: str | None) -> Json:
    """Register a file as a result of the chat. Source: the tool ``sandbox_export``.

    Raises
    ------
    SandboxFileError
        When the tool refuses it; says why.
    """
    path = "/".join(parts)
    parameters = {"path": path} if name is None else {"path": path, "name": name}
    result = await tools.call("sandbox_export", parameters, TOOL_SECONDS)
    if not isinstance(result, dict) or result.get("success") is False:
        said = result.get("error") if isinstance(result, dict) else result
        raise SandboxFileError(f"{path!r} could not be exported: {said}.")
    return result


def _unpacked(text: str) -> bytes:
    """Bytes from base64: by msgspec, which is several times as quick, and else in patience."""
    try:
        return msgspec.convert(text, bytes)
    except msgspec.ValidationError:
        return b64decode(text)


_CONTENT = ("content", "data", "text", "result", "output")
_SIZES = ("size", "size_bytes", "sizeBytes", "total_bytes")
_TOOL_KINDS: dict[str, Kind] = {
    **dict.fromkeys(("directory", "dir", "d", "folder"), "directory"),
    **dict.fromkeys(("link", "symlink", "l"), "link"),
    **dict.fromkeys(("file", "f", "regular"), "file"),
}


def _lists(result: Any) -> Iterator[list[Any]]:
    if isinstance(result, list):
        yield result
    elif isinstance(result, dict):
        for value in result.values():
            yield from _lists(value)


def _is_cut(result: Any) -> bool:
    return isinstance(result, dict) and bool(result.get("truncated") or result.get("has_more"))


def _tool_entry(value: Any, parts: Parts, *, is_deep: bool) -> FileEntry | None:
    """Read one entry of a listing, in any plausible form."""
    body = value if isinstance(value, dict) else {"path": value}
    path = str(body.get("path") or body.get("name") or "").strip("/").removeprefix("./")
    is_directory = str(body.get("path") or body.get("name") or "").endswith("/")
    word = str(body.get("type") or body.get("kind") or "").lower()
    kind = _TOOL_KINDS.get(word, "other" if word else "file")
    if is_directory or body.get("is_dir") is True or body.get("isDirectory") is True:
        kind = "directory"
    if not path:
        return None
    top = "/".join(parts)
    if top and not path.startswith(f"{top}/"):
        path = f"{top}/{path if is_deep else path.rpartition('/')[2]}"
    size = next((body[key] for key in (*_SIZES, "bytes") if isinstance(body.get(key), int)), 0)
    moment = next(
        (body[k] for k in ("modified", "mtime", "modified_at", "mtimeMs") if k in body), None
    )
    when = moment_of(moment)
    return FileEntry(path, kind, size, when.timestamp() if when else None)
