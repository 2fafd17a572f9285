"""The mirror: a directory of the sandbox that is made what a small local folder is, one way."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import stat
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ivy_kernel.errors import NoSuchFileError, UsageError
from ivy_kernel.routes.files import FileEntry, Parts
from ivy_kernel.session.describe import size_words
from ivy_kernel.session.files import SandboxFiles
from ivy_kernel.session.local_files import open_source
from ivy_kernel.session.transfer import Progress

LIMIT_BYTES = 100_000_000
LIMIT_FILES = 2_000
SKIPPED_NAMES = frozenset({".git", "__pycache__", ".ipynb_checkpoints"})
"""Directories that are left out, wherever in the folder."""
RECORD = ".ivy-sync.json"
"""In the mirrored directory of the sandbox: what was put there."""
LISTED_ENTRIES = 50_000
READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Copy:
    """A file's content, and where it is in the sandbox the time that the file has there."""

    size_bytes: int
    sha256: str
    modified_seconds: float | None = None

    def is_as_left(self, entry: FileEntry) -> bool:
        """Whether a file of the sandbox looks as it was left."""
        mine = (self.size_bytes, self.modified_seconds)
        return mine == (entry.size_bytes, entry.modified_seconds)


# The local folder ---------------------------------------------------------------------------------
@dataclass(slots=True)
class Folder:
    """What is in a local folder.

    Parameters
    ----------
    path
        The folder.
    files
        Its files, by their paths below it.
    skipped
        What is left out, with the reason where the name is none.
    """

    path: Path
    files: dict[str, Copy] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)


def read_folder(path: Path, name: str, *, force: bool) -> Folder:
    """Read all files of a folder; links are not followed, and left out.

    Parameters
    ----------
    path, name
        The folder, and what the user calls it.
    force
        Whether it may be of any size.

    Raises
    ------
    UsageError
        When it is larger than what is mirrored on each run, or cannot be read.
    """
    folder, total_bytes = Folder(path), 0

    def refuse(error: OSError) -> None:  # what is not seen here would be removed there
        raise UsageError(
            f"The folder {error.filename} cannot be read: {error.strerror}. Nothing was moved."
        ) from error

    for directory, directories, names in os.walk(path, onerror=refuse):
        for one in list(directories):
            if one in SKIPPED_NAMES or Path(directory, one).is_symlink():
                directories.remove(one)
                folder.skipped.add(one if one in SKIPPED_NAMES else f"{one} (a link)")
        for one in sorted(names):
            file = Path(directory, one)
            reason = _reason_to_skip(file)
            if reason:
                folder.skipped.add(f"{ascii(one) if reason == NOT_UTF8 else one} ({reason})")
                continue
            total_bytes += file.stat().st_size
            is_large = total_bytes > LIMIT_BYTES or len(folder.files) >= LIMIT_FILES
            if is_large and not force:
                raise UsageError(
                    f"{name} has more than {LIMIT_FILES:,} files or {size_words(LIMIT_BYTES)}, "
                    f"too much to be compared at each run: put -r moves it once, --force mirrors "
                    f"it all the same. Nothing was moved."
                )
            place = file.relative_to(path)
            folder.files[place.as_posix()] = _copy_of(path, place.parts)
    return folder


NOT_UTF8 = "its name is not UTF-8"


def _reason_to_skip(file: Path) -> str:
    """Return why a file is left out; empty for a file that is mirrored."""
    if file.name == RECORD:
        return "the record of sync"
    try:
        file.name.encode()
    except UnicodeEncodeError:
        return NOT_UTF8
    mode = file.lstat().st_mode
    if stat.S_ISLNK(mode):
        return "a link"
    return "" if stat.S_ISREG(mode) else "no regular file"  # reading from a FIFO would never end


def _copy_of(top: Path, names: Parts) -> Copy:
    digest, size = hashlib.sha256(), 0
    # Opened as it is when it is sent: what has become a link or a FIFO meanwhile is not read.
    with os.fdopen(open_source(top, names), "rb") as opened:
        while chunk := opened.read(READ_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return Copy(size, digest.hexdigest())


# The directory of the sandbox ---------------------------------------------------------------------
class Mirror:
    """Makes a directory of the sandbox what a local folder is, and touches nothing of others there.

    Parameters
    ----------
    files
        The sandbox's files.
    folder
        The folder.
    target
        The directory in the sandbox; empty for its working directory.
    force
        Whether files are replaced, or removed, that others have put there or changed.

    Attributes
    ----------
    counts
        The number of files by what was done: added, changed, removed, unchanged.
    kept
        Files of the sandbox that stand in the way, and were left as they are.
    """

    def __init__(
        self, files: SandboxFiles, folder: Folder, target: str, *, force: bool = False
    ) -> None:
        self._files = files
        self._folder = folder
        self._target = target
        self._force = force
        # One record serves several folders; none may remove what another one has put there.
        place = f"{platform.node()}:{folder.path.resolve()}"
        self._id = hashlib.sha256(place.encode()).hexdigest()[:16]
        self._record: dict[str, Any] = {}
        self.counts = {"added": 0, "changed": 0, "removed": 0, "unchanged": 0}
        self.kept: list[str] = []

    async def run(self, progress: Progress) -> None:
        """Bring the sandbox's directory up to date.

        Raises
        ------
        SandboxFileError
            When a file could not be moved. The next run goes on from there.
        """
        local = self._folder.files
        there = await self._listed()
        earlier = await self._earlier(there)
        left: dict[str, Copy] = {}
        to_put: dict[str, str] = {}
        for name, mine in local.items():
            entry, before = there.get(name), earlier.get(name)
            word = await self._compare(mine, entry, before)
            if word == "kept":
                self.kept.append(name)
                continue
            left[name] = mine
            if word != "unchanged":
                to_put[name] = word
                continue
            self.counts["unchanged"] += 1
            if before is not None and entry is not None and before.is_as_left(entry):
                left[name] = before
        await self._put(to_put, left, progress)
        for name in sorted((earlier.keys() - local.keys()) & there.keys()):
            copy, entry = earlier[name], there[name]
            is_ours = self._force or copy.is_as_left(entry)
            if entry.kind == "file" and (is_ours or await self._hash(entry.path) == copy.sha256):
                await self._files.remove(entry.path)
                self.counts["removed"] += 1
            else:
                self.kept.append(name)
                left[name] = copy
        if self.counts["removed"]:
            await self._remove_empty(there, earlier.keys() - left.keys())
        if left != earlier or RECORD not in there:
            await self._write_record(left)

    async def _compare(self, mine: Copy, entry: FileEntry | None, before: Copy | None) -> str:
        """Return what is to be done with a file: added, changed, unchanged or kept."""
        if entry is None:
            return "added"
        if entry.kind != "file":
            return "kept"
        if before is not None and before.is_as_left(entry):
            return "unchanged" if before.sha256 == mine.sha256 else "changed"
        # It was not put there by us, or has been changed since, or only its time has.
        theirs = await self._hash(entry.path)
        if theirs == mine.sha256:
            return "unchanged"
        is_ours = before is not None and theirs == before.sha256
        return "changed" if is_ours or self._force else "kept"

    async def _put(self, words: dict[str, str], left: dict[str, Copy], progress: Progress) -> None:
        for word in ("added", "changed"):
            names = {name for name, one in words.items() if one == word}
            if not names:
                continue
            result = await self._files.put(
                self._folder.path,
                self._target,
                overwrite=word == "changed",
                progress=progress,
                only=sorted(names),
            )
            self.counts[word] = result.files
            # A file that has changed since it was read is told as what was sent.
            for name in names & left.keys():
                sent = result.sha256.get(self._at(name), left[name].sha256)
                left[name] = replace(left[name], sha256=sent)

    def _at(self, name: str) -> str:
        return f"{self._target}/{name}" if self._target else name

    async def _listed(self) -> dict[str, FileEntry]:
        """Return what is in the directory, by the path below it; nothing where it is not there."""
        try:
            listing = await self._files.list(self._target, recursive=True, limit=LISTED_ENTRIES)
        except NoSuchFileError:
            return {}
        if listing.is_truncated:
            raise UsageError(
                f"{self._target or 'The sandbox'} has more than {LISTED_ENTRIES:,} entries: name "
                f"another target for sync."
            )
        start = f"{self._target}/" if self._target else ""
        return {one.path.removeprefix(start): one for one in listing.entries}

    async def _earlier(self, there: Collection[str]) -> dict[str, Copy]:
        """Return what an earlier run has put there; code in the sandbox may have written it."""
        if RECORD not in there:
            return {}
        try:
            record = json.loads(await self._files.read(self._at(RECORD)))
            self._record = record if isinstance(record, dict) else {}
            mine = self._record.get(self._id, {})
            return {str(name): Copy(int(a), str(b), c) for name, (a, b, c) in mine.items()}
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            return {}  # as at the first run, where what is equal is found to be equal

    async def _write_record(self, left: dict[str, Copy]) -> None:
        there = await self._listed()  # with the times that the files now have
        facts = {
            name: [copy.size_bytes, copy.sha256, there[name].modified_seconds]
            for name, copy in left.items()
            if name in there
        }
        text = json.dumps({**self._record, self._id: facts}, indent=1)
        await self._files.write(self._at(RECORD), text.encode(), overwrite=True)

    async def _remove_empty(self, before: dict[str, FileEntry], removed: Collection[str]) -> None:
        """Remove the directories that a removal has emptied; Python would import an empty one."""
        parents = {str(parent) for name in removed for parent in Path(name).parents} - {"."}
        there = await self._listed()
        for directory in sorted(parents, key=len, reverse=True):
            if directory in there and not any(name.startswith(f"{directory}/") for name in there):
                await self._files.remove(there.pop(directory).path, recursive=True)

    async def _hash(self, path: str) -> str:
        digest = hashlib.sha256()
        async for chunk in self._files.stream(path):
            digest.update(chunk)
        return digest.hexdigest()
