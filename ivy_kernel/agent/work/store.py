"""The files of checkpoints: objects by their SHA-256, signed indexes, and the space they take.

Everything is written whole or not at all, and nothing is believed that a signature does not cover.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import json
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    Json = dict[str, Any]

VERSION = 1
INDEX = re.compile(r"index-(\d{8})\.json")
INDEXES_LIMIT = 100
KEPT_LIVES = 2
"""Of so many lives the newest checkpoint is kept, however little space there is."""
FREE_SHARE = 0.1
"""Of the disk that is free, for everything here together."""

STALE_SECONDS = 3600.0
"""A file that was being written for longer than this is nobody's any more."""


class TamperedCheckpointError(Exception):
    """A file is not what was written for this chat and notebook; says which and why."""


class NoSpaceError(Exception):
    """Something takes more space than there is for it; says how much."""


def digest_of(data: Any) -> str:
    """Return the SHA-256 of bytes or a buffer, in hex."""
    return hashlib.sha256(data).hexdigest()


class Store:
    """One directory of checkpoints.

    Parameters
    ----------
    directory
        Where they are; made when something is written.
    key
        Signs indexes.
    chat, notebook
        Whose checkpoints these are: indexes for others are refused.
    """

    def __init__(self, directory: str, key: bytes, chat: str, notebook: str) -> None:
        self.directory = Path(directory)
        self._objects = self.directory / "objects"
        self._key = key
        self._owner = {"version": VERSION, "chat": chat, "notebook": notebook}
        self._count = 0

    # -- objects

    def has(self, digest: str, size_bytes: int) -> bool:
        """Whether an object is there, by name and size."""
        try:
            return (self._objects / digest).stat().st_size == size_bytes
        except OSError:
            return False

    def put(self, data: Any, digest: str | None = None) -> list[Any]:
        """Write an object unless it is there; return its SHA-256 and size.

        Raises
        ------
        NoSpaceError
            The disk is full.
        """
        view = memoryview(data).cast("B") if not isinstance(data, bytes) else memoryview(data)
        digest = digest or digest_of(view)
        if not self.has(digest, view.nbytes):
            for place in (self.directory, self._objects):
                place.mkdir(0o700, parents=True, exist_ok=True)
            self._write(self._objects / digest, view)
        return [digest, view.nbytes]

    def load(self, digest: str, size_bytes: int) -> bytes:
        """Return an object's bytes, which are what the index says.

        Raises
        ------
        TamperedCheckpointError
            They are not, or the file is not there.
        """
        name = f"objects/{digest[:12]}…"
        if not re.fullmatch("[0-9a-f]{64}", digest):
            raise TamperedCheckpointError(f"{name} is no object's name")
        try:
            data = (self._objects / digest).read_bytes()
        except OSError as error:
            raise TamperedCheckpointError(f"{name} cannot be read: {error.strerror}") from error
        if len(data) != size_bytes or digest_of(data) != digest:
            raise TamperedCheckpointError(f"{name} was changed since it was written")
        return data

    # -- indexes

    def indexes(self) -> list[tuple[int, Path]]:
        """Return sequence number and path of every index, newest first."""
        try:
            names = os.listdir(self.directory)  # noqa: PTH208 - names alone
        except OSError:
            return []
        found = ((INDEX.fullmatch(name), name) for name in names)
        return sorted(((int(m[1]), self.directory / n) for m, n in found if m), reverse=True)

    def write_index(self, body: Json) -> Json:
        """Sign and write an index for what is in the body; return the body as it was written.

        Raises
        ------
        NoSpaceError
            The disk is full.
        """
        self.directory.mkdir(0o700, parents=True, exist_ok=True)
        sequence = max((number for number, _ in self.indexes()), default=0) + 1
        body = {**body, **self._owner, "sequence": sequence, "at": time.time()}
        text = json.dumps(body, separators=(",", ":"), sort_keys=True)
        path = self.directory / f"index-{sequence:08d}.json"
        signed = _envelope(text, self._signature(text))
        self._write(path, memoryview(signed), is_durable=True)
        return body

    def read_index(self, path: Path) -> Json:
        """Return the body of an index.

        Raises
        ------
        TamperedCheckpointError
            It was not signed with this key, or is for another chat, notebook or place.
        """
        try:
            data = path.read_bytes()
            signed = json.loads(data.decode("ascii"))
            text, signature = signed["body"], signed["signature"]
            is_ours = hmac.compare_digest(self._signature(text), signature)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise TamperedCheckpointError(f"{path.name} cannot be read as an index") from error
        if not is_ours or data != _envelope(text, signature):
            raise TamperedCheckpointError(
                f"{path.name} was changed since it was written, or not written for this chat"
            )
        body: Json = json.loads(text)
        for name, value in {**self._owner, "sequence": int(path.stem[6:])}.items():
            if body.get(name) != value:
                raise TamperedCheckpointError(f"{path.name} is for another {name}")
        return body

    def names(self) -> set[str]:
        """Return the names of the objects that are there, whatever they hold."""
        return {name for name, _, _ in self._files()}

    def _signature(self, text: str) -> str:
        return hmac.new(self._key, text.encode("utf-8"), "sha256").hexdigest()

    # -- space

    def limit_bytes(self, space_bytes: int) -> int:
        """Return how much one checkpoint may take, from what the settings allow."""
        try:
            place = self.directory if self.directory.exists() else self.directory.parent
            free = os.statvfs(place)
        except OSError:
            return space_bytes
        return min(space_bytes, int(FREE_SHARE * (free.f_bavail * free.f_frsize + self.size())))

    def size(self) -> int:
        """Return the bytes of all objects."""
        return sum(size for _, size, _ in self._files())

    def prune(self, limit_bytes: int) -> None:
        """Remove the oldest indexes until all fits, and the objects that none names then.

        The newest one stays in any case, and the newest of the life before: until that was
        restored, or is given up for good, it may be all there is of it.

        Parameters
        ----------
        limit_bytes
            For all objects.
        """
        bodies: list[tuple[Path, Json]] = []
        newest: dict[str, Path] = {}
        for position, (_, path) in enumerate(self.indexes()):
            try:
                body = self.read_index(path)
            except TamperedCheckpointError:  # it stays, so that a restore can tell of it
                if position >= INDEXES_LIMIT:
                    path.unlink()
                continue
            bodies.append((path, body))
            if len(newest) < KEPT_LIVES:
                newest.setdefault(body["life"], path)
        kept = set(newest.values())
        named = {
            digest: size
            for path, body in bodies
            if path in kept
            for digest, size in body["objects"]
        }
        is_full = False
        for position, (path, body) in enumerate(bodies):
            if path in kept:
                continue
            objects = dict(body["objects"])
            more = sum(size for digest, size in objects.items() if digest not in named)
            is_full = (
                is_full or position >= INDEXES_LIMIT or sum(named.values()) + more > limit_bytes
            )
            if is_full:
                path.unlink()
            else:
                named.update(objects)
        for name, _, age_seconds in self._files():
            if name not in named and (not name.startswith(".") or age_seconds > STALE_SECONDS):
                (self._objects / name).unlink()

    def _files(self) -> Iterable[tuple[str, int, float]]:
        with contextlib.suppress(OSError), os.scandir(self._objects) as entries:
            for entry in entries:
                status = entry.stat()
                yield entry.name, status.st_size, time.time() - status.st_mtime

    def _write(self, path: Path, data: memoryview, *, is_durable: bool = False) -> None:
        self._count += 1
        temporary = path.with_name(f".{os.getpid()}-{self._count}")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(descriptor, "wb", buffering=0) as file:  # noqa: PTH123 - a descriptor
                while data.nbytes:
                    data = data[file.write(data) :]
                if is_durable:
                    os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise NoSpaceError("the disk is full") from error
            raise


def _envelope(text: str, signature: str) -> bytes:
    return json.dumps({"body": text, "signature": signature}).encode("ascii")
