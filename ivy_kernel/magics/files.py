"""The commands about the sandbox's files, the same in a cell (``%ivy get``) and in a terminal.

What is typed becomes options, then paths on both sides; `SandboxFiles` moves the bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import glob
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence, Sized
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ivy_kernel.errors import IvyError, NoSuchFileError, UsageError
from ivy_kernel.magics.options import command_line, sources_and_target
from ivy_kernel.models import visible
from ivy_kernel.routes.files import FileEntry
from ivy_kernel.session.describe import (
    count_words,
    entry_facts,
    entry_line,
    interrupted_words,
    size_words,
    transfer_progress,
    transferred,
)
from ivy_kernel.session.files import SandboxFiles
from ivy_kernel.session.mirror import Mirror, read_folder
from ivy_kernel.session.transfer import TransferResult, TransferState
from ivy_kernel.status.clock import monotonic_seconds

LARGE_BYTES = 50_000_000
"""From this size on, size and time are told before a transfer begins."""
QUIET_SECONDS = 0.4
"""What takes no longer shows no progress: it would only flicker."""
Options = argparse.Namespace
Source = TypeVar("Source")
Told = tuple[str, Any]
"""What a command tells: to people, and as JSON."""


class ProgressView(Protocol):
    """What shows how far a transfer has come."""

    def show(self, words: str, fraction: float | None) -> None:
        """Show one line, and the part that is done. Called a few times a second."""

    def clear(self) -> None:
        """Remove it."""


class Caller(Protocol):
    """Where a command was typed: a cell of a notebook, or a terminal.

    Attributes
    ----------
    prefix
        What stands before a command's name there: ``%ivy`` or ``jupyter ivy files``.
    """

    prefix: str

    @property
    def directory(self) -> Path:
        """The directory that local paths are relative to."""

    @property
    def stays_inside(self) -> bool:
        """Whether local paths outside of that directory are refused."""

    def open_files(self) -> SandboxFiles:
        """Return the files of the sandbox; the command closes them."""

    async def prepare(self) -> None:
        """Have the sandbox there, as before a cell. Called by ``put`` and ``sync``."""

    async def confirm(self, question: str) -> bool:
        """Ask the user a yes/no question, before something is lost."""

    def show(self, text: str) -> None:
        """Show what stays."""

    def warn(self, text: str) -> None:
        """Show what is no result, on stderr."""

    def progress(self) -> ProgressView:
        """Return what shows a transfer's progress."""


# The commands -----------------------------------------------------------------------------------
async def run_file_command(options: Options, caller: Caller) -> None:
    """Run a command, and show what it tells.

    Parameters
    ----------
    options
        From `ivy_kernel.magics.options.file_parser`.
    caller
        Where it was typed.

    Raises
    ------
    IvyError
        It failed: says what, and what to do.
    """
    files = caller.open_files()
    try:
        text, facts = await _RUN[options.command](files, options, caller)
    except OSError as error:
        raise UsageError(f"This machine says of {error.filename}: {error.strerror}.") from error
    finally:
        await files.aclose()
    as_json = getattr(options, "as_json", False)
    caller.show(json.dumps(facts, indent=2) if as_json else text)


# Paths ------------------------------------------------------------------------------------------
def _local_path(word: str, caller: Caller) -> Path:
    """Return what a word means on this machine.

    Raises
    ------
    UsageError
        When it may not be used: says why.
    """
    if "\0" in word or not word:
        raise UsageError(f"{word!r} cannot be a path on this machine.")
    is_home = word == "~" or word.startswith("~/")
    path = caller.directory / (Path(word).expanduser() if is_home else word)
    return _allowed(path, word, caller)


def _allowed(path: Path, word: str, caller: Caller) -> Path:
    if caller.stays_inside and not path.resolve().is_relative_to(caller.directory.resolve()):
        raise UsageError(
            f"{word} is outside of the notebook's directory, and allow_local is false. Nothing was "
            f"moved."
        )
    return path


def _local_sources(words: Sequence[str], caller: Caller, *, recursive: bool) -> list[Path]:
    found: list[Path] = []
    for word in words:
        path = _local_path(word, caller)
        if path.exists():
            if path.is_dir() and not recursive:
                raise UsageError(f"{word} is a directory: add -r to put all that is in it.")
            found.append(path)
            continue
        pattern = str(path) if word.startswith("~") else word
        matches: list[Path] = []
        if glob.has_magic(word):  # Path.glob would match hidden files too, which no shell does
            names = glob.glob(pattern, root_dir=caller.directory, recursive=True)  # noqa: PTH207 - see above
            matches = [caller.directory / name for name in sorted(names)]
        if not matches:
            raise UsageError(f"There is no file {word} in {caller.directory}. Nothing was moved.")
        chosen = [match for match in matches if recursive or not match.is_dir()]
        found += [_allowed(match, str(match), caller) for match in chosen]
    for path in found:
        if not path.is_dir() and not path.is_file():
            raise UsageError(f"{path} is no regular file, so it cannot be put into the sandbox.")
    if not found:
        raise UsageError(f"{' '.join(words)} names directories only: add -r to put them.")
    found = list(dict.fromkeys(found))
    return _outermost(found) if recursive else found


def _outermost(paths: list[Path]) -> list[Path]:
    """Leave out what is inside of another one, and would be moved with it."""
    chosen = set(paths)
    return [path for path in paths if not chosen & set(path.parents)]


async def _entry(files: SandboxFiles, path: str) -> FileEntry | None:
    try:
        return await files.stat(path)
    except NoSuchFileError:
        return None


async def _remote_entries(
    files: SandboxFiles, words: Sequence[str], caller: Caller
) -> list[FileEntry]:
    """Return what words and patterns name in the sandbox, each once.

    Raises
    ------
    SandboxFileError
        When one names nothing, or more than can be listed.
    """
    found: dict[str, FileEntry] = {}
    for word in words:
        literal = await _entry(files, word)
        matches = [] if literal is None else [literal]
        if literal is None and glob.has_magic(word):
            listing = await files.glob(word)
            if listing.is_truncated:
                raise UsageError(f"Too many files match {word!r}: use a narrower pattern.")
            matches = list(listing.entries)
        if not matches:
            raise NoSuchFileError(
                f"There is no {word!r} in the sandbox; {caller.prefix} ls lists what is there."
            )
        found |= {entry.path: entry for entry in matches}
    return list(found.values())


def _refuse_twins(names: Sequence[str]) -> None:
    twins = sorted({name for name in names if names.count(name) > 1})
    if twins:
        raise UsageError(f"Two sources are called {visible(twins[0])}: move them one by one.")


# Transfers --------------------------------------------------------------------------------------
class _Meter:
    """Shows how far a command's transfers have come, and says what an interrupt has left."""

    def __init__(self, caller: Caller, options: Options, groups: Sequence[Sized]) -> None:
        self._view = caller.progress()
        self._caller = caller
        self._options = options
        self._count = len(groups)
        self._has_several = sum(map(len, groups)) > 1
        self._number = 0
        self._start = monotonic_seconds()
        self._last: TransferState | None = None
        self._loop, self._is_over = asyncio.get_running_loop(), False
        self.results: list[TransferResult] = []

    def begin(self, name: str, total_bytes: int | None) -> None:
        """Called before each source is moved."""
        self._number += 1
        self._last = None
        if total_bytes is not None and total_bytes >= LARGE_BYTES:
            words = f"{self._head(name)}, {size_words(total_bytes)}; the time that it takes is told"
            self._view.show(f"{words} as soon as the speed is known", 0.0)

    def on_progress(self, state: TransferState) -> None:
        """Show one state of a transfer."""
        self._last = state
        if self.seconds < QUIET_SECONDS or not state.done_bytes:
            return
        # Small files are written, and counted, in another thread.
        self._loop.call_soon_threadsafe(self._show, state)

    def _show(self, state: TransferState) -> None:
        words, fraction = transfer_progress(state)
        if not self._is_over:
            self._view.show(f"{self._head(state.name)}, {words}", fraction)

    def _head(self, name: str) -> str:
        which = f" ({self._number} of {self._count})" if self._count > 1 else ""
        return f"{self._options.command} {visible(name)}{which}"

    @property
    def seconds(self) -> float:
        """The time since the command began to move bytes."""
        return monotonic_seconds() - self._start

    @asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """Take the display away at the end, and say how an interrupted transfer goes on."""
        try:
            yield
        except (asyncio.CancelledError, IvyError) as error:
            self._end()
            if isinstance(error, asyncio.CancelledError):
                line = f"{self._caller.prefix} {command_line(self._options)}"
                self._caller.warn(interrupted_words(self._last, line))
            elif self._has_several:
                self._caller.warn("What arrived before that stays; the same command skips it.")
            raise
        finally:
            self._end()

    def _end(self) -> None:
        self._is_over = True
        self._view.clear()


def _told(verb: str, what: str, meter: _Meter) -> Told:
    words, facts = transferred(meter.results, meter.seconds)
    return f"{verb} {visible(what)}: {words}", facts


async def _get(files: SandboxFiles, options: Options, caller: Caller) -> Told:
    sources, target = sources_and_target(options.paths, ".")
    local = _local_path(target, caller)
    entries = await _remote_entries(files, sources, caller)
    kinds = {"file", "directory"} if options.recursive else {"file"}
    chosen = entries
    if any(map(glob.has_magic, sources)):  # a pattern means what can be moved
        chosen = [one for one in entries if one.kind in kinds]
    if not chosen or (not options.recursive and any(one.kind == "directory" for one in chosen)):
        names = next(one.path for one in entries if one.kind != "file") or "the root"
        raise UsageError(f"{visible(names)} is no file: add -r for directories and all in them.")
    into = target.endswith("/") or local.is_dir()
    if len(chosen) > 1:
        if not into:
            raise UsageError(f"{target} is no directory here; {target}/ makes it one.")
        kept = {str(path) for path in _outermost([Path(one.path) for one in chosen])}
        chosen = [one for one in chosen if str(Path(one.path)) in kept]
        _refuse_twins([one.name for one in chosen])
    if into:
        for entry in chosen:
            _allowed(local / entry.name, str(local / entry.name), caller)
        local.mkdir(parents=True, exist_ok=True)
    groups = _grouped(chosen, lambda one: one.kind == "file", lambda one: _parent(one.path))
    meter = _Meter(caller, options, groups)
    async with meter.shown():
        for group in groups:
            entry, is_one = group[0], len(group) == 1
            meter.begin(entry.path, sum(one.size_bytes for one in group))
            meter.results.append(
                await files.get(
                    entry.path if is_one else _parent(entry.path),
                    local / entry.name if is_one and into else local,
                    overwrite=options.force,
                    recursive=options.recursive,
                    progress=meter,
                    only=None if is_one else group,
                )
            )
    if len(chosen) == 1:
        place = local / chosen[0].name if into else local
        return _told("Got", f"{chosen[0].path} → {_here(place, caller)}", meter)
    return _told("Got", f"{_files_of(meter)} → {_here(local, caller)}/", meter)


async def _put(files: SandboxFiles, options: Options, caller: Caller) -> Told:
    words, target = sources_and_target(options.paths, "")
    recursive = options.recursive
    # Before a sandbox is started for a name that is mistyped; beside the loop, for large folders.
    sources = await asyncio.to_thread(_local_sources, words, caller, recursive=recursive)
    await caller.prepare()
    base = "" if target == "." else target.rstrip("/")
    into = target in ("", ".") or target.endswith("/")
    if not into:
        entry = await _entry(files, target)
        into = entry is not None and entry.kind == "directory"
    if len(sources) > 1:
        if not into:
            raise UsageError(f"{target} is no directory in the sandbox; {target}/ makes it one.")
        _refuse_twins([_name(path) for path in sources])
    start = f"{base}/" if base else ""
    groups = _grouped(sources, _is_plain_file, lambda path: str(path.parent))
    meter = _Meter(caller, options, groups)
    async with meter.shown():
        for group in groups:
            path, is_one = group[0], len(group) == 1
            place = f"{start}{_name(path)}" if into else target
            meter.begin(_name(path), sum(one.stat().st_size for one in group if one.is_file()))
            meter.results.append(
                await files.put(
                    path if is_one else path.parent,
                    place if is_one else base,
                    overwrite=options.force,
                    recursive=recursive,
                    progress=meter,
                    only=None if is_one else [one.name for one in group],
                )
            )
    if len(sources) == 1:
        return _told("Put", f"{_here(sources[0], caller)} → {place}", meter)
    return _told("Put", f"{_files_of(meter)} → {base or '.'}/", meter)


def _grouped(
    sources: Sequence[Source],
    may_join: Callable[[Source], bool],
    directory: Callable[[Source], str],
) -> list[list[Source]]:
    """Group the files of one directory: a thousand small ones travel in a few calls."""
    groups: dict[object, list[Source]] = {}
    for number, one in enumerate(sources):
        groups.setdefault(directory(one) if may_join(one) else number, []).append(one)
    return list(groups.values())


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _name(path: Path) -> str:
    return path.resolve().name if path.name in ("", "..") else path.name


def _is_plain_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _files_of(meter: _Meter) -> str:
    return count_words(sum(one.files for one in meter.results), "file")


def _here(path: Path, caller: Caller) -> str:
    """Return a local path as it is shown: relative to the directory, where it is inside."""
    return str(
        path.relative_to(caller.directory) if path.is_relative_to(caller.directory) else path
    )


# Listing, removing, registering -----------------------------------------------------------------
async def _ls(files: SandboxFiles, options: Options, caller: Caller) -> Told:
    lines: list[str] = []
    found: list[FileEntry] = []
    is_truncated = False
    paths = options.paths or [""]
    for word in paths:
        top = await _remote_entries(files, [word], caller)
        inside = len(top) == 1 and top[0].kind == "directory" and not glob.has_magic(word)
        entries, start = list(top), ""
        if inside or options.recursive:
            entries = [] if inside else entries
            start = f"{top[0].path}/" if inside and top[0].path else ""
            for directory in [one for one in top if one.kind == "directory"]:
                listing = await files.list(directory.path, recursive=options.recursive)
                entries += listing.entries
                is_truncated |= listing.is_truncated
        if len(paths) > 1:
            lines.append(f"{word}:")
        entries.sort(key=lambda one: one.path)
        lines += [entry_line(one, start, is_long=options.long) for one in entries]
        found += entries
    if is_truncated:
        caller.warn("There are more; this listing was cut off. Name a directory or a pattern.")
    facts = {"entries": [entry_facts(one) for one in found], "is_truncated": is_truncated}
    return "\n".join(lines) or "(empty)", facts


async def _rm(files: SandboxFiles, options: Options, caller: Caller) -> Told:
    entries = await _remote_entries(files, options.paths, caller)
    directories = [one for one in entries if one.kind == "directory"]
    for one in directories:
        if one.path in ("", "."):
            raise UsageError("The sandbox's working directory itself cannot be removed.")
        if not options.recursive:
            raise UsageError(f"{visible(one.path)} is a directory: add -r to remove all in it.")
    if directories and not options.yes:
        for one in directories:
            listing = await files.list(one.path, recursive=True)
            count = sum(inside.kind != "directory" for inside in listing.entries)
            many = "more than " if listing.is_truncated else ""
            words = f"{visible(one.path)} with {many}{count_words(count, 'file')}"
            if not await caller.confirm(f"Remove the directory {words} from the sandbox?"):
                return "Nothing was removed.", {"removed": 0}
    removed = 0
    for path in _outermost([Path(one.path) for one in entries]):
        is_directory = any(Path(one.path) == path for one in directories)
        removed += await files.remove(path.as_posix(), recursive=is_directory)
    return f"Removed {count_words(removed, 'file')} from the sandbox.", {"removed": removed}


async def _export(files: SandboxFiles, options: Options, caller: Caller) -> Told:
    (path,) = options.paths
    facts = await files.export(path, options.name)
    name = f" as {options.name}" if options.name else ""
    return f"Registered {visible(path)} for the chat{name}: it is among its files now.", facts


# A folder that is mirrored ----------------------------------------------------------------------
async def _sync(files: SandboxFiles, options: Options, caller: Caller) -> Told:
    if len(options.paths) > 2:
        raise UsageError(f"sync takes one folder and one target, not {options.paths[2]!r} too.")
    word, *rest = options.paths
    folder = _local_path(word, caller)
    if not folder.is_dir():
        raise UsageError(f"There is no folder {word} in {caller.directory}. Nothing was moved.")
    target = (rest[0] if rest else folder.resolve().name).rstrip("/")
    local = await asyncio.to_thread(read_folder, folder, word, force=options.force)
    await caller.prepare()
    mirror = Mirror(files, local, "" if target == "." else target, force=options.force)
    meter = _Meter(caller, options, [local.files])
    async with meter.shown():
        await mirror.run(meter)
    counts = ", ".join(f"{count} {word}" for word, count in mirror.counts.items())
    text = f"Synced {word} → {target or '.'}: {counts}; {meter.seconds:.1f} s"
    if local.skipped:
        text += f"; left out: {', '.join(map(visible, sorted(local.skipped)[:5]))}"
    if mirror.kept:
        text += (
            f"\nAs they are stayed {count_words(len(mirror.kept), 'file')} of the sandbox, changed "
            f"there or not put there by sync: {', '.join(map(visible, mirror.kept[:5]))}; --force "
            f"replaces them."
        )
    return text, {**mirror.counts, "kept": mirror.kept, "left_out": sorted(local.skipped)}


_RUN: dict[str, Callable[[SandboxFiles, Options, Caller], Awaitable[Told]]] = {
    "ls": _ls,
    "get": _get,
    "put": _put,
    "rm": _rm,
    "export": _export,
    "sync": _sync,
}
