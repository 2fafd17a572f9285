"""The files of a chat: no path leads out of its directory.

A path is walked one directory at a time, by descriptors that refuse symbolic links, so that no
exchange of a directory under way can lead elsewhere.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import mimetypes
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ivy_kernel.local_sandbox.errors import Refusal

Json = dict[str, Any]


class FileError(Exception):
    """A file is not as the tool needs it: this becomes the tool's own error result."""

    def __init__(self, error: str, code: str) -> None:
        super().__init__(error)
        self.code = code


def _outside(path: str, why: str) -> Refusal:
    return Refusal(400, f"path {path!r} is refused: {why}", "PATH_REFUSED")


def _from_os(path: str, error: OSError) -> FileError:
    if isinstance(error, FileNotFoundError):
        return FileError(f"there is no file {path!r}", "FILE_NOT_FOUND")
    return FileError(f"{path!r}: {error.strerror}", "FILE_ERROR")


class Workspace:
    """The directory of a chat.

    Parameters
    ----------
    directory
        Its path, without symbolic links in it.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def parts(self, path: str) -> list[str]:
        """The names that lead to ``path`` from the chat's directory.

        Raises
        ------
        Refusal
            The path leads out of the directory (400).
        """
        if "\0" in path:
            raise _outside(path, "it has a zero byte in it")
        try:
            os.fsencode(path)
        except UnicodeEncodeError:
            raise _outside(path, "it cannot be a file name") from None
        if path.startswith("/"):
            inside = Path(path)
            if ".." in inside.parts or not inside.is_relative_to(self.directory):
                raise _outside(path, "it is outside of the chat's directory")
            return list(inside.relative_to(self.directory).parts)
        names = [name for name in path.split("/") if name not in ("", ".")]
        if ".." in names:
            raise _outside(path, "'..' is not allowed")
        return names

    @contextlib.contextmanager
    def opened(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """The descriptor of the directory that holds ``path``, and the name in it.

        The name is ``.`` for the chat's directory itself. ``make`` makes missing directories.
        """
        names = self.parts(path)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(self.directory, flags)
        except OSError as error:
            raise _from_os(path, error) from error
        try:
            for name in names[:-1]:
                self._refuse_link(path, name, descriptor)
                try:
                    if make:
                        with contextlib.suppress(FileExistsError):
                            os.mkdir(name, 0o755, dir_fd=descriptor)
                    below = os.open(name, flags, dir_fd=descriptor)
                except OSError as error:
                    raise _from_os(path, error) from error
                os.close(descriptor)
                descriptor = below
            last = names[-1] if names else "."
            self._refuse_link(path, last, descriptor)
            yield descriptor, last
        finally:
            os.close(descriptor)

    def _refuse_link(self, path: str, name: str, descriptor: int) -> None:
        with contextlib.suppress(OSError):
            if stat.S_ISLNK(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode):
                raise _outside(path, f"{name!r} is a symbolic link")

    def about(self, path: str) -> Json:
        """Name, size and time of a regular file."""
        with self.opened(path) as (descriptor, name):
            try:
                found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            except OSError as error:
                raise _from_os(path, error) from error
            if not stat.S_ISREG(found.st_mode):
                raise FileError(f"{path!r} is not a file", "NOT_A_FILE")
        return {
            "path": "/".join(self.parts(path)),
            "name": name,
            "size": found.st_size,
            "mimeType": mimetypes.guess_type(name)[0] or "application/octet-stream",
        }

    def read_bytes(self, path: str, offset_bytes: int, limit_bytes: int) -> bytes:
        """A part of a file, up to ``limit_bytes``."""
        with self.opened(path) as (descriptor, name):
            # Without O_NONBLOCK the opening of a named pipe would wait for its writer.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            try:
                file = os.open(name, flags, dir_fd=descriptor)
            except OSError as error:
                raise _from_os(path, error) from error
            if not stat.S_ISREG(os.fstat(file).st_mode):
                os.close(file)
                raise FileError(f"{path!r} is not a file", "NOT_A_FILE")
            with os.fdopen(file, "rb") as opened:
                opened.seek(offset_bytes)
                return opened.read(limit_bytes)

    def write_bytes(self, path: str, content: bytes, *, append: bool = False) -> None:
        """Write a file, whole or not at all; ``append`` adds to it."""
        if not self.parts(path):
            raise FileError(f"{path!r} is not a file", "NOT_A_FILE")
        with self.opened(path, make=True) as (descriptor, name):
            try:
                if append:
                    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
                    _fill(os.open(name, flags | os.O_CLOEXEC, 0o644, dir_fd=descriptor), content)
                    return
                mode = 0o644
                with contextlib.suppress(FileNotFoundError):
                    found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                    if not stat.S_ISREG(found.st_mode):
                        raise FileError(f"{path!r} is not a file", "NOT_A_FILE")
                    mode = stat.S_IMODE(found.st_mode)
                passing = f".{secrets.token_hex(8)}.part"
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                try:
                    _fill(os.open(passing, flags, mode, dir_fd=descriptor), content)
                    os.rename(passing, name, src_dir_fd=descriptor, dst_dir_fd=descriptor)
                except OSError:
                    with contextlib.suppress(OSError):
                        os.unlink(passing, dir_fd=descriptor)
                    raise
            except OSError as error:
                raise _from_os(path, error) from error

    def listed(self, path: str, *, recursive: bool, limit: int) -> tuple[list[Json], bool]:
        """Entries below a directory, sorted, and whether there are more than ``limit``."""
        entries: list[Json] = []
        todo = ["/".join(self.parts(path))]
        while todo:
            current = todo.pop(0)
            for entry in self._entries(current):
                if len(entries) >= limit:
                    return entries, True
                entries.append(entry)
                if recursive and entry["type"] == "directory":
                    todo.append(entry["path"])
        return entries, False

    def _entries(self, path: str) -> list[Json]:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        with self.opened(path) as (descriptor, name):
            try:
                directory = os.open(name, flags, dir_fd=descriptor)
            except NotADirectoryError as error:
                raise FileError(f"{path!r} is not a directory", "NOT_A_DIRECTORY") from error
            except OSError as error:
                raise _from_os(path, error) from error
        try:
            with os.scandir(directory) as scanned:
                found = [_entry(path, entry) for entry in scanned]
        finally:
            os.close(directory)
        return sorted(found, key=lambda entry: str(entry["path"]))


def _fill(descriptor: int, content: bytes) -> None:
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _entry(path: str, entry: os.DirEntry[str]) -> Json:
    about = entry.stat(follow_symlinks=False)
    kind = "other"
    if stat.S_ISLNK(about.st_mode):
        kind = "link"
    elif stat.S_ISDIR(about.st_mode):
        kind = "directory"
    elif stat.S_ISREG(about.st_mode):
        kind = "file"
    name = os.fsencode(entry.name).decode(errors="replace")
    return {
        "path": f"{path}/{name}" if path else name,
        "type": kind,
        "size": about.st_size,
        "modified": int(about.st_mtime * 1000),
    }


def decoded(content: bytes) -> tuple[str, str]:
    """Bytes as a string, and its encoding: ``utf-8``, or ``base64`` for what is no text."""
    try:
        return content.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(content).decode(), "base64"


def encoded(content: str, encoding: str) -> bytes:
    """The bytes that a string stands for."""
    if encoding == "base64":
        try:
            return base64.b64decode(content, validate=True)
        except binascii.Error:
            raise Refusal(400, "content is not base64", "BAD_PARAMETERS") from None
    try:
        return content.encode()
    except UnicodeEncodeError:
        raise Refusal(400, "content has characters that are no text", "BAD_PARAMETERS") from None


def read_manifest(path: Path) -> list[Json]:
    """The registered files, oldest first."""
    try:
        entries = json.loads(path.read_text())
    except (OSError, ValueError):
        return []
    return entries if isinstance(entries, list) else []


def register(path: Path, entry: Json) -> None:
    """Add a file; one that is there already is replaced and counts as new."""
    entries = [known for known in read_manifest(path) if known.get("path") != entry["path"]]
    passing = path.with_suffix(".part")
    passing.write_text(json.dumps([*entries, entry]))
    os.replace(passing, path)  # noqa: PTH105 - the same call, and it says that it is atomic
