"""The files of a chat: its directories, and access that no path leads out of.

Within the chat's directory a path is walked one directory at a time, by descriptors that refuse
symbolic links, so that no exchange of a directory under way can lead elsewhere.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
import mimetypes
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ivy_kernel.local_sandbox.results import ApiError

Json = dict[str, Any]


class FileError(Exception):
    """A file is not as a tool needs it: the tool's own error result, and no HTTP error."""

    def __init__(self, error: str, code: str) -> None:
        super().__init__(error)
        self.code = code


def _outside(path: str, why: str) -> ApiError:
    return ApiError(400, f"path {path!r} is refused: {why}", "PATH_REFUSED")


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
        ApiError
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
                    # O_NOFOLLOW again: a link may have taken the name since the check above.
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
        # Only for a clear error: O_NOFOLLOW is what protects.
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
        """Write a file, whole or not at all; ``append`` adds to an existing one."""
        if not self.parts(path):
            raise FileError(f"{path!r} is not a file", "NOT_A_FILE")
        with self.opened(path, make=True) as (descriptor, name):
            try:
                if append:
                    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
                    _write_and_close(
                        os.open(name, flags | os.O_CLOEXEC, 0o644, dir_fd=descriptor), content
                    )
                    return
                mode = 0o644
                with contextlib.suppress(FileNotFoundError):
                    found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                    if not stat.S_ISREG(found.st_mode):
                        raise FileError(f"{path!r} is not a file", "NOT_A_FILE")
                    mode = stat.S_IMODE(found.st_mode)
                # Written beside and renamed: a reader sees the old content or the new, no half.
                partial = f".{secrets.token_hex(8)}.part"
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                try:
                    _write_and_close(os.open(partial, flags, mode, dir_fd=descriptor), content)
                    os.rename(partial, name, src_dir_fd=descriptor, dst_dir_fd=descriptor)
                except OSError:
                    with contextlib.suppress(OSError):
                        os.unlink(partial, dir_fd=descriptor)
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


def _write_and_close(descriptor: int, content: bytes) -> None:
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
    # Names that are no UTF-8 come as lone surrogates, which JSON cannot hold.
    name = os.fsencode(entry.name).decode(errors="replace")
    return {
        "path": f"{path}/{name}" if path else name,
        "type": kind,
        "size": about.st_size,
        "modified": int(about.st_mtime * 1000),
    }


def decoded(content: bytes) -> tuple[str, str]:
    """Bytes as a string, and its encoding: ``utf-8``, or ``base64`` when they are no text."""
    try:
        return content.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(content).decode(), "base64"


def encoded(content: str, encoding: str) -> bytes:
    """The bytes that a string stands for."""
    if encoding == "base64":
        try:  # msgspec takes a quarter of the time; what it refuses is looked at again
            return msgspec.convert(content, bytes)
        except msgspec.ValidationError:
            pass
        try:
            return base64.b64decode(content, validate=True)
        except binascii.Error:
            raise ApiError(400, "content is not base64", "BAD_PARAMETERS") from None
    try:
        return content.encode()
    except UnicodeEncodeError:
        raise ApiError(400, "content has characters that are no text", "BAD_PARAMETERS") from None


def read_manifest(path: Path) -> list[Json]:
    """The registered files, oldest first."""
    try:
        entries = json.loads(path.read_text())
    except (OSError, ValueError):
        return []
    return entries if isinstance(entries, list) else []


def register(path: Path, entry: Json) -> None:
    """Add a file to the manifest; one that is there already is replaced and counts as new."""
    entries = [known for known in read_manifest(path) if known.get("path") != entry["path"]]
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps([*entries, entry]))
    os.replace(partial, path)  # noqa: PTH105 - the same call, and it says that it is atomic


# -- where the files are ----------------------------------------------------------------------
# Upper case is left out: "A" and "a" are one name on some file systems. "~" is left out, so that
# no chat can take the name that is made for another.
_PLAIN = re.compile(r"[a-z0-9_][a-z0-9_.-]{0,47}")


def safe_name(chat_id: str) -> str:
    """A file name for a chat id: itself if it is plain, else a part of it and a digest."""
    if _PLAIN.fullmatch(chat_id):
        return chat_id
    readable = re.sub(r"[^a-z0-9]+", "-", chat_id.lower())[:24].strip("-") or "chat"
    digest = hashlib.sha256(chat_id.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{readable}~{digest[:12]}"


@dataclass(frozen=True)
class ChatPaths:
    """The directories of one chat.

    Parameters
    ----------
    directory
        The working directory of its code, and all that its tools see.
    state
        Files of the sandbox itself, which its tools do not see.
    """

    directory: Path
    state: Path

    @classmethod
    def of(cls, root: Path, chat_id: str) -> ChatPaths:
        """The directories of a chat below the server's root directory."""
        name = safe_name(chat_id)
        return cls(root / name, root / ".state" / name)

    @property
    def home(self) -> Path:
        """The home directory of its processes."""
        return self.state / "home"

    @property
    def runtime(self) -> Path:
        """The directory for sockets; emptied when the sandbox stops."""
        return self.state / "run"

    @property
    def calls(self) -> Path:
        """The directory for the code of calls in flight."""
        return self.state / "calls"

    @property
    def stage(self) -> Path:
        """A mount point for runners that replace ``/tmp``."""
        return self.state / "stage"

    @property
    def manifest(self) -> Path:
        """The list of registered files."""
        return self.state / "manifest.json"

    @property
    def shared_cache(self) -> Path:
        """A cache directory of all chats."""
        return self.directory.parent / ".cache"

    def make(self) -> None:
        """Make all directories, readable by the user alone."""
        for path in (
            self.directory,
            self.home,
            self.runtime,
            self.calls,
            self.stage,
            self.shared_cache,
        ):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def clear(self) -> None:
        """Remove what is needed by running processes only; the chat's files stay."""
        for path in (self.runtime, self.calls):
            shutil.rmtree(path, ignore_errors=True)
