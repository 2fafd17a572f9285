"""Places for files on this machine, below a directory that the user chose and no path leaves."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from ivy_kernel.errors import RefusedPathError, SandboxFileError, UsageError
from ivy_kernel.routes.files import (
    NAME_LIMIT_BYTES,
    PART_NAME,
    STALE_SECONDS,
    FileEntry,
    Parcel,
    Parts,
)
from ivy_kernel.session.large_files import exists, opened, read_exactly, write_all

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def local_name(name: str) -> str:
    """Return a name from the sandbox that a file here may have.

    Raises
    ------
    RefusedPathError
        When it would name another place, or cannot exist.
    """
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise RefusedPathError(f"The sandbox has a file named {name!r}, which cannot exist here.")
    if len(os.fsencode(name)) > NAME_LIMIT_BYTES:
        raise RefusedPathError(f"The name {name[:40]!r}… is too long for a file here.")
    return name


class LocalDirectory:
    """A directory on this machine, held open: what is below it is walked to without links.

    Parameters
    ----------
    path
        The user's own choice, where links are followed; made where it is missing.
    """

    def __init__(self, path: Path) -> None:
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise UsageError(
                f"{str(path)!r} cannot be a directory here: {error.strerror}."
            ) from error
        self._swept: set[Parts] = set()

    def __enter__(self) -> LocalDirectory:  # noqa: PYI034 - Self is not in Python 3.10
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def make(self, names: Parts) -> None:
        """Make a directory below, and those above it."""
        os.close(self._walked(names))

    def target(self, names: Parts, name: str) -> LocalTarget:
        """Return the place of a file in the directory ``names`` below this one."""
        directory = self._walked(names)
        if names not in self._swept:
            self._swept.add(names)
            sweep(directory)
        return LocalTarget(directory, local_name(name))

    def _walked(self, names: Parts) -> int:
        descriptor = os.dup(self._descriptor)
        for name in names:
            try:
                with suppress(FileExistsError):
                    os.mkdir(local_name(name), dir_fd=descriptor)
                below = os.open(name, _DIRECTORY, dir_fd=descriptor)
            except OSError as error:
                raise refused(name, error) from error
            finally:
                os.close(descriptor)
            descriptor = below
        return descriptor

    def refuse_twins(self, paths: Iterable[str]) -> None:
        """Refuse names that this directory's file system would take for one.

        Raises
        ------
        RefusedPathError
            Names the two.
        """
        seen: dict[str, str] = {}
        for path in paths:
            other = seen.setdefault(unicodedata.normalize("NFC", path).casefold(), path)
            if other != path and self._takes_for_one(path, other):
                raise RefusedPathError(
                    f"{other!r} and {path!r} are two files in the sandbox, but one name here; "
                    f"rename one of them there."
                )

    def _takes_for_one(self, one: str, other: str) -> bool:
        """Find out by two directories, for nobody can ask a file system that."""
        stem = f".ivy-{os.getpid()}-"
        first, second = (stem + path.replace("/", "-")[:60] for path in (one, other))
        if first == second:
            return False
        try:
            os.mkdir(first, dir_fd=self._descriptor)
        except OSError:
            return False
        try:
            os.stat(second, dir_fd=self._descriptor)
        except OSError:
            return False
        else:
            return True
        finally:
            os.rmdir(first, dir_fd=self._descriptor)


@dataclass
class LocalTarget:
    """The place of one file; see `ivy_kernel.session.transfer.Target`.

    Parameters
    ----------
    directory
        Descriptor of its directory, which this closes.
    name
        Its name there.
    """

    directory: int
    name: str

    def __enter__(self) -> LocalTarget:  # noqa: PYI034 - Self is not in Python 3.10
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self.directory)

    def existing(self) -> int | None:
        """Open the file that has the name; ``None`` when it is free."""
        try:
            return self._regular(self.name, os.O_RDONLY)
        except FileNotFoundError:
            return None

    def open_part(self, name: str) -> int:
        """Open the part file, made where it is missing."""
        try:
            return self._regular(name, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError as error:
            raise refused(self.name, error) from error

    def _regular(self, name: str, flags: int) -> int:
        try:
            file = os.open(name, flags | _FILE, 0o600, dir_fd=self.directory)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise refused(name, error) from error
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise RefusedPathError(f"{name!r} exists here and is no regular file; move it away.")
        return file

    def finish(self, part: str, *, overwrite: bool) -> None:
        """Give the part file the final name, never over another file unless ``overwrite``."""
        here = {"src_dir_fd": self.directory, "dst_dir_fd": self.directory}
        mode = 0o666 & ~_umask()
        with suppress(OSError):
            old = os.stat(self.name, dir_fd=self.directory, follow_symlinks=False)
            if stat.S_ISREG(old.st_mode):
                mode = stat.S_IMODE(old.st_mode)
        with suppress(OSError):
            os.chmod(part, mode, dir_fd=self.directory)
        try:
            if overwrite:
                os.rename(part, self.name, **here)  # noqa: PTH104 - within an open directory
                return
            try:
                os.link(part, self.name, follow_symlinks=False, **here)
            except FileExistsError:
                raise exists(self.name) from None
            except OSError:  # no hard links here: the name is reserved first
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE
                os.close(os.open(self.name, flags, mode, dir_fd=self.directory))
                try:
                    os.rename(part, self.name, **here)  # noqa: PTH104 - within an open directory
                except BaseException:
                    os.unlink(self.name, dir_fd=self.directory)
                    raise
            else:
                os.unlink(part, dir_fd=self.directory)
        except FileExistsError:
            raise exists(self.name) from None
        except OSError as error:
            raise refused(self.name, error) from error


def _umask() -> int:
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(one for one in lines if one.startswith("Umask:")).split()[1], 8)
    # There is no call that only reads it; a file that another thread makes meanwhile is private.
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def sweep(directory: int) -> None:
    """Remove the part files in a directory that nothing has touched for a week."""
    with suppress(OSError):
        for name in os.listdir(directory):
            if PART_NAME.fullmatch(name):
                about = os.stat(name, dir_fd=directory, follow_symlinks=False)
                if time.time() - about.st_mtime > STALE_SECONDS:
                    os.unlink(name, dir_fd=directory)


def refused(name: str, error: OSError) -> SandboxFileError | RefusedPathError:
    """Return the error for a name that cannot be used here."""
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return RefusedPathError(
            f"{name!r} here is a symbolic link or no directory, and is not followed; move it away."
        )
    if error.errno in (errno.EILSEQ, errno.ENAMETOOLONG, errno.EINVAL):
        return RefusedPathError(f"{name!r} cannot be the name of a file here: {error.strerror}.")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return SandboxFileError(
            "The disk of this machine is full; make room, then go on with the same command."
        )
    return SandboxFileError(f"{name!r} here cannot be written: {error.strerror}.")


def wanted(entries: Iterable[FileEntry], top: Parts, left_out: list[str]) -> dict[Parts, FileEntry]:
    """Return the files among what the sandbox lists below ``top``; each name may exist here.

    Parameters
    ----------
    entries, top
        The list, and what it was asked for.
    left_out
        Takes what is no file, each with the reason.

    Raises
    ------
    RefusedPathError
        When a name leads elsewhere, or cannot exist here.
    """
    found: dict[Parts, FileEntry] = {}
    for entry in entries:
        parts = tuple(entry.path.split("/"))
        if parts[: len(top)] != top or len(parts) == len(top):
            raise RefusedPathError(f"The sandbox named {entry.path!r}, which is not below it.")
        for name in parts[len(top) :]:
            local_name(name)
        if entry.kind == "file" and not PART_NAME.fullmatch(entry.name):
            found[parts] = entry
        elif entry.kind in ("link", "other"):
            what = "a symbolic link" if entry.kind == "link" else "no regular file"
            left_out.append(f"{entry.path}: {what}")
    return found


# -- what is sent from here


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file below a directory that is sent.

    Parameters
    ----------
    names
        Its place below that directory.
    size_bytes, mode
        Its size and permissions.
    """

    names: Parts
    size_bytes: int
    mode: int


def local_file(top: Path, path: str) -> LocalFile:
    """Return a file below a directory, as it is now.

    Raises
    ------
    UsageError
        When it is not there any more.
    """
    names = Path(path).parts
    try:
        about = top.joinpath(*names).lstat()
    except OSError as error:
        raise UsageError(f"{path!r} cannot be sent: {error.strerror}.") from error
    return LocalFile(names, about.st_size, stat.S_IMODE(about.st_mode) & 0o777)


def tree(top: Path, left_out: list[str]) -> tuple[list[LocalFile], list[Parts]]:
    """Return the regular files below a directory, and its directories without any.

    Parameters
    ----------
    top
        The directory.
    left_out
        Takes what is neither, each with the reason.
    """
    files: list[LocalFile] = []
    empty: list[Parts] = []

    def leave_out(error: OSError) -> None:
        left_out.append(f"{error.filename}: {error.strerror}")

    walk = os.fwalk(top, onerror=leave_out, follow_symlinks=False)
    for directory, below, names, descriptor in walk:
        parts = Path(directory).relative_to(top).parts
        below.sort()
        for name in list(below):
            about = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if stat.S_ISLNK(about.st_mode):
                left_out += [f"{'/'.join((*parts, name))}: a symbolic link"]
        for name in sorted(names):
            about = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            path = (*parts, name)
            if stat.S_ISREG(about.st_mode):
                if not PART_NAME.fullmatch(name):
                    mode = stat.S_IMODE(about.st_mode) & 0o777
                    files.append(LocalFile(path, about.st_size, mode))
            else:
                what = "a symbolic link" if stat.S_ISLNK(about.st_mode) else "no regular file"
                left_out.append(f"{'/'.join(path)}: {what}")
        if not names and not below:
            empty.append(parts)
    return files, empty


def shown_below(top: Path) -> tuple[list[str], list[str]]:
    """Return the files below a directory, and its directories without any, but what is hidden."""
    found, empty = tree(top, [])

    def shown(all_names: Iterable[Parts]) -> list[str]:
        return [
            "/".join(names)
            for names in all_names
            if not any(name.startswith(".") for name in names)
        ]

    return shown(each.names for each in found), shown(empty)


def open_source(path: Path, names: Parts = ()) -> int:
    """Open a regular file for sending.

    Parameters
    ----------
    path
        The file, or the directory that the user chose; links are followed.
    names
        The way to the file below it, where no link is followed.

    Raises
    ------
    UsageError
        When it is not there, or no regular file.
    """
    descriptors: list[int] = []
    try:
        if names:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            descriptors.append(os.open(path, flags))
            for name in names[:-1]:
                descriptors.append(os.open(name, _DIRECTORY, dir_fd=descriptors[-1]))
            file = os.open(names[-1], os.O_RDONLY | _FILE, dir_fd=descriptors[-1])
        else:
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        shown = str(path.joinpath(*names))
        raise UsageError(f"{shown!r} cannot be read: {error.strerror}.") from error
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise UsageError(f"{str(path.joinpath(*names))!r} is no regular file; it cannot be sent.")
    return file


def packed(top: Path, files: Iterable[tuple[Parts, Parts, int]]) -> list[Parcel]:
    """Read small files below a directory, each with its place in the sandbox and its mode."""
    parcels = []
    for names, parts, mode in files:
        file = open_source(top, names)
        with opened(file):
            data = read_exactly(file, 0, os.fstat(file).st_size)
        parcels.append(Parcel(parts, data, mode & 0o777))
    return parcels


def store_here(target: LocalTarget, parcel: Parcel, *, overwrite: bool) -> str:
    """Write a small file on this machine, whole or not at all: ``written`` or ``equal``."""
    data = parcel.data
    old = target.existing()
    if old is not None:
        with opened(old):
            if os.fstat(old).st_size == len(data) and read_exactly(old, 0, len(data)) == data:
                return "equal"
        if not overwrite:
            raise exists("/".join(parcel.parts))
    part = f".ivy-{secrets.token_hex(16)}.part"
    file = target.open_part(part)
    try:
        with opened(file):
            write_all(file, data, 0)
        target.finish(part, overwrite=overwrite)
    except BaseException:
        with suppress(OSError):
            os.unlink(part, dir_fd=target.directory)
        raise
    return "written"
