"""Reads the journal of a kernel's outputs: the cells as a notebook has them, and what is new.

A line counts once its line feed is there, so one that was cut is none. Each reader keeps what it
has put together, so that reading again costs only what was written since.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import IO
from urllib.parse import quote

from jupyter_core.paths import jupyter_data_dir

from ivy_kernel.models import Json
from ivy_kernel.session import private_file

ALL_LIMIT_BYTES = 512_000_000
"""The most that the journals of all kernels hold together, those of living kernels aside."""
LONGEST_DAYS = 30.0
"""An older journal of a kernel that is gone is removed."""

_HEADER_LIMIT_BYTES = 100_000
_COMPACTION_STEP = 1 << 30
"""A compacted file's offsets begin so far behind those of the file before it."""

_HEAD_BYTES = 64
"""So much of a file's beginning tells it from any other."""

_Place = tuple[int, int]
"""Where a line is in the file, and its length."""


def journal_directory() -> Path:
    """Return the directory of the journals."""
    return Path(jupyter_data_dir()) / "ivy" / "outputs"


def journal_file(kernel_id: str) -> Path:
    """Return the journal of a kernel, which need not be there."""
    return journal_directory() / f"{quote(kernel_id, safe='')}.jsonl"


class _Run:
    """The newest run of one cell, as far as the journal tells it."""

    def __init__(self, record: Json) -> None:
        # Loaded by the reader alone: a cell on its way enters as few modules as can be.
        from ivy_kernel.agent.outputs import CellOutputs

        self.run = str(record["begin"])
        self.cell = str(record["cell"])
        self.code = str(record["code"])
        self.number: int | None = record["number"]
        self.started = self.changed_at = float(record["at"])
        self.ended: float | None = None
        self.fate = ""
        self.is_running = True
        self.metadata: Json = {}
        self.outputs = CellOutputs()
        self.changed = 0
        self.lines: dict[int | str, _Place] = {}
        self._texts: list[str] = []
        self._stream: Json = {}
        self._must_clear = False

    def take(self, kind: str, content: Json) -> bool:
        """Take one message; a stream's text waits for `flush`, or joining would take squares."""
        if kind == "stream":
            if content["name"] != self._stream.get("name"):
                self.flush()
            self._stream = content
            self._texts.append(content["text"])
            return True
        self.flush()
        return self.outputs.take(kind, content)

    def flush(self) -> None:
        """Put the text that waits into the outputs."""
        if self._texts:
            self.outputs.take("stream", {**self._stream, "text": "".join(self._texts)})
        self._texts, self._stream = [], {}

    def note(self, place: _Place, record: Json) -> None:
        """Remember where in the file the lines are without which the outputs would be others."""
        kind, content = record["type"], record["content"]
        key: int | str = place[0]
        if kind == "clear_output":
            self._must_clear = bool(content.get("wait"))
            if not self._must_clear:
                self.lines.clear()
                return
        elif kind == "update_display_data":  # the last one of each display counts
            key = str(content["transient"]["display_id"])
            self.lines.pop(key, None)
        elif self._must_clear:
            self.lines.clear()
            self._must_clear = False
        self.lines[key] = place

    def to_json(self, *, is_alive: bool) -> Json:
        is_running = self.is_running and is_alive
        return {
            "run": self.run,
            "code": self.code,
            "number": self.number,
            # Copies, for the originals are written on by the next read, in another thread.
            "outputs": [dict(output) for output in self.outputs.outputs],
            "is_running": is_running,
            "fate": self.fate or ("" if is_running else "unknown"),
            "started": _utc(self.started),
            "ended": _utc(self.ended),
            "changed": _utc(self.changed_at),
            "offset": self.changed,
            "metadata": self.metadata,
        }


def _utc(moment: float | None) -> str | None:
    if moment is None:
        return None
    text = datetime.fromtimestamp(moment, timezone.utc).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


class JournalReader:
    """Reads one journal; reading again costs only what is new.

    Parameters
    ----------
    path
        The file.

    Attributes
    ----------
    notebook_path
        The notebook, as its last writer knew it.
    position_bytes
        How far the file was read.
    """

    def __init__(self, path: Path) -> None:
        self._file = path
        self._head = b""
        self.notebook_path = ""
        self.position_bytes = 0
        self._base = 0
        self._is_kept = False
        self._cells: dict[str, _Run] = {}
        self._runs: dict[str, _Run] = {}
        self._is_alive = False
        self._lock = threading.Lock()

    @property
    def offset(self) -> int:
        """How far the journal was read: larger with each change, also after a compaction."""
        return self._base + self.position_bytes

    def cells(self, since: int = 0) -> tuple[dict[str, Json], int]:
        """Return the cells that have changed, by their ids, and the offset for the next call.

        Parameters
        ----------
        since
            The offset that an earlier call gave; 0 for all cells.
        """
        with self._lock:
            self.read()
            if since > self.offset:
                since = 0  # of another journal
            return {
                cell: run.to_json(is_alive=self._is_alive)
                for cell, run in self._cells.items()
                if run.changed > since
            }, self.offset

    def read(self) -> None:
        """Read what is new. A file that is not there, or not ours alone, is an empty one."""
        try:
            descriptor = os.open(self._file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            self._start_over()
            return
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not private_file.is_private(status):
                self._start_over()
                return
            # The header's random name, and not the inode's number, which a new file soon has again.
            head = os.pread(descriptor, _HEAD_BYTES, 0)
            if not head.startswith(self._head) or status.st_size < self.position_bytes:
                self._start_over()
            self._head = head
            self._note_life(_is_locked(file))
            file.seek(self.position_bytes)
            for place, record in self._records(file):
                with suppress(KeyError, TypeError, ValueError, AttributeError):
                    self._apply(place, record)
        for run in self._cells.values():
            run.flush()

    def _start_over(self) -> None:
        self._head = b""
        self.position_bytes = self._base = 0
        self._is_kept = False
        self._cells.clear()
        self._runs.clear()

    def _records(self, file: IO[bytes]) -> Iterator[tuple[_Place, Json]]:
        for line in file:
            if not line.endswith(b"\n"):
                break  # cut, or still being written
            place = (self.position_bytes, len(line))
            self.position_bytes += len(line)
            try:
                record = json.loads(line, parse_constant=lambda _: None)  # NaN, say
            except (ValueError, RecursionError):
                continue  # a line that was cut
            if isinstance(record, dict):
                yield place, record

    def _note_life(self, is_alive: bool) -> None:
        """Note whether a writer has the file open: without one, nothing in it runs any more."""
        if self._is_alive and not is_alive:
            self._base += 1  # that is a change too, and no byte tells it
            for run in self._cells.values():
                if run.is_running:
                    run.changed = self.offset
        self._is_alive = is_alive

    def _apply(self, place: _Place, record: Json) -> None:
        if "type" in record:
            self._take(place, record)
        elif "begin" in record:
            run = _Run(record)
            run.changed = record.get("changed", 0) if self._is_kept else self.offset
            earlier = self._cells.pop(run.cell, None)  # so that cells are in the order of runs
            if earlier is not None:
                self._runs.pop(earlier.run, None)
            self._cells[run.cell] = self._runs[run.run] = run
        elif "end" in record:
            ended = self._runs[str(record["end"])]
            ended.is_running = False
            ended.fate = str(record["fate"])
            ended.number = record["number"]
            ended.metadata = dict(record["metadata"])
            ended.ended = float(record["at"])
            self._touch(ended, record)
        elif "journal" in record:
            self.notebook_path = str(record["path"])
            self._is_kept = record.get("kept") is True
            for lost in self._cells.values():  # the writer before this one was killed
                if lost.is_running:
                    lost.is_running = False
                    self._touch(lost, {})
        elif "base" in record:
            self._base = int(record["base"])
            self._is_kept = False

    def _take(self, place: _Place, record: Json) -> None:
        kind, content = str(record["type"]), dict(record["content"])
        run = self._runs.get(str(record["run"]))
        if kind == "update_display_data":
            # A display may be another cell's.
            for other in self._cells.values():
                if other.take(kind, content):
                    other.note(place, record)
                    self._touch(other, record)
            return
        if run is not None:
            run.note(place, record)
            if run.take(kind, content):
                self._touch(run, record)

    def _touch(self, run: _Run, record: Json) -> None:
        run.changed_at = max(run.changed_at, float(record.get("at", 0)))
        if not self._is_kept:
            run.changed = self.offset

    # For the writer -----------------------------------------------------------------------------
    def compacted(self, old: IO[bytes], limit_bytes: int) -> Iterator[Json]:
        """Yield the records of a file with the same cells, without what does not count any more.

        Parameters
        ----------
        old
            The file that was read.
        limit_bytes
            Above it, the cells that ended first are left out.
        """
        sizes = {
            cell: sum(length for _, length in run.lines.values())
            for cell, run in self._cells.items()
        }
        total_bytes = sum(sizes.values())
        for run in sorted(self._cells.values(), key=lambda run: run.changed):
            if total_bytes > limit_bytes and not run.is_running:
                total_bytes -= sizes.pop(run.cell)
        yield {**header(self.notebook_path), "kept": True}
        for cell in sizes:
            yield from _records_of(self._cells[cell], old)
        yield {"base": self.offset + _COMPACTION_STEP}


def _records_of(run: _Run, old: IO[bytes]) -> Iterator[Json]:
    """Yield the records of one run, with stream messages that follow each other joined."""
    begin = {"begin": run.run, "cell": run.cell, "code": run.code, "number": run.number}
    yield {**begin, "at": run.started, "changed": run.changed}
    last: Json = {}
    texts: list[str] = []
    for position, _ in run.lines.values():
        old.seek(position)
        record = json.loads(old.readline())
        record["run"] = run.run  # an update of a display may have come from another cell
        is_stream = record["type"] == "stream"
        if is_stream and texts and record["content"]["name"] == last["content"]["name"]:
            texts.append(record["content"]["text"])
            last["at"] = record["at"]
            continue
        yield from _joined(last, texts)
        last, texts = record, [record["content"]["text"]] if is_stream else []
    yield from _joined(last, texts)
    if run.ended is not None:
        end = {"end": run.run, "fate": run.fate, "number": run.number, "at": run.ended}
        yield {**end, "metadata": run.metadata}


def _joined(record: Json, texts: list[str]) -> Iterator[Json]:
    if texts:
        record["content"]["text"] = "".join(texts)
    if record:
        yield record


def header(path: str) -> Json:
    """Return the first record of a journal, and of each further writer.

    Parameters
    ----------
    path
        The notebook.
    """
    return {"journal": 1, "name": secrets.token_hex(12), "path": path, "at": round(time.time(), 3)}


def _is_locked(file: IO[bytes]) -> bool:
    """Whether a living writer has the file."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False


def notebook_of(path: Path) -> str:
    """Return the notebook that a journal is of, as its writer knew it; empty when it is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if private_file.is_private(os.fstat(descriptor)):
                return str(json.loads(file.readline(_HEADER_LIMIT_BYTES))["path"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return ""


# All journals -------------------------------------------------------------------------------------
def prune_journals(*, all_limit_bytes: int = ALL_LIMIT_BYTES) -> None:
    """Remove journals of kernels that are gone: those of long ago, and the oldest of too many."""
    found = []
    with suppress(OSError), os.scandir(journal_directory()) as entries:
        for entry in entries:
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if entry.is_file(follow_symlinks=False):
                    found.append((status.st_mtime, status.st_size, Path(entry.path)))
    total_bytes = sum(size for _, size, _ in found)
    oldest = time.time() - LONGEST_DAYS * 86400
    for modified, size, path in sorted(found):
        if modified > oldest and total_bytes <= all_limit_bytes:
            break
        with suppress(OSError), path.open("rb") as file:
            if not _is_locked(file):
                path.unlink()
                total_bytes -= size
