"""The journal of a kernel's outputs: what each cell has said, on this machine, for its notebook.

The kernel appends what it shows; the Jupyter server reads it for a page that comes back, and for
the document where no page is open. The file is JSON lines, one for each begin, message and end of
a cell, and a line counts once its line feed is there: a writer that is killed at any byte leaves no
wrong output behind.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from ivy_kernel.models import Json
from ivy_kernel.session import private_file
from ivy_kernel.session.journal_reader import JournalReader, header, journal_file, prune_journals

LIMIT_BYTES = 64_000_000
"""The most that the journal of one kernel holds."""

TYPES = frozenset(
    {
        *("stream", "display_data", "update_display_data"),
        *("execute_result", "error", "clear_output"),
    }
)
"""The messages that leave something in a notebook; no others are kept."""

_Number = int | None


class OutputJournal:
    """Writes what the cells of one kernel say. No method raises, and each is quick.

    Nothing is written before the first cell begins. A cell that the front end gave no id has no
    place in a notebook, and is left out.

    Parameters
    ----------
    kernel_id
        The kernel, as its Jupyter server calls it.
    path
        Its notebook, as ``JPY_SESSION_NAME`` has it; empty when unknown.
    limit_bytes
        The most that the file holds.
    """

    def __init__(self, kernel_id: str, path: str = "", *, limit_bytes: int = LIMIT_BYTES) -> None:
        self._file = journal_file(kernel_id)
        self._path = path
        self._limit_bytes = limit_bytes
        self._descriptor = -1
        self._is_locked = False
        self._size_bytes = 0
        self._compact_at_bytes = limit_bytes * 3 // 4
        self._compaction: threading.Thread | None = None
        self._lock = threading.Lock()  # between the kernel's loop and a compaction
        self._runs: dict[str, str] = {}  # cell → its newest run, and the other way round
        self._cells: dict[str, str] = {}
        self._stopped: set[str] = set()
        self._owed: list[Json] = []

    def begin(self, run: str, cell: str, code_sha256: str, number: _Number) -> None:
        """Begin a cell's run; one that has begun before starts over.

        Parameters
        ----------
        run
            The run: the message id of its request.
        cell
            The cell's id in the notebook; empty when the front end gave none.
        code_sha256
            SHA-256 of the cell's source, in hex.
        number
            Its execution count.
        """
        if not cell:
            return
        # Of a cell that has run again nothing more is shown, so its earlier run is forgotten.
        self._cells.pop(self._runs.get(cell, ""), None)
        self._runs[cell], self._cells[run] = run, cell
        self._stopped.discard(run)
        self._append(
            run, {"begin": run, "cell": cell, "code": code_sha256, "number": number, "at": _now()}
        )

    def message(self, run: str, msg_type: str, content: Json, metadata: Json | None = None) -> None:
        """Keep one message of a run, as it is shown to the front end; it may come after the end.

        Parameters
        ----------
        run
            The run; one that did not begin here is ignored.
        msg_type, content, metadata
            As in the message spec, "Messages on the IOPub channel".
        """
        if msg_type in TYPES and run in self._cells and run not in self._stopped:
            record = {"run": run, "type": msg_type, "content": content, "at": _now()}
            if metadata:
                record["metadata"] = metadata
            self._append(run, record)

    def end(self, run: str, fate: str, number: _Number, metadata: Json | None = None) -> None:
        """End a run.

        Parameters
        ----------
        run
            The run; one that did not begin here is ignored.
        fate
            The cell's fate, as in the glossary.
        number
            Its execution count.
        metadata
            The metadata of the reply.
        """
        if run in self._cells:
            self._append(
                run,
                {
                    "end": run,
                    "fate": fate,
                    "number": number,
                    "metadata": metadata or {},
                    "at": _now(),
                },
            )

    def close(self) -> None:
        """Let go of the file: what has no end now is not running any more."""
        compaction = self._compaction
        if compaction is not None:
            compaction.join()
        with self._lock:
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                with suppress(OSError):
                    os.close(descriptor)
            self._is_locked = False

    def _append(self, run: str, record: Json) -> None:
        line = _line(record)
        if line is None:
            self._stop(run, "no JSON can hold what it has shown")
            return
        try:
            if not self._is_locked:
                with self._lock:
                    self._open()
            if self._size_bytes + len(line) > self._compact_at_bytes:
                self._make_room(len(line))
            with self._lock:
                if self._size_bytes + len(line) > self._limit_bytes and "type" in record:
                    self._stop(run, "there is no room for more in this machine's journal")
                    return
                while self._owed:
                    self._write(_line(self._owed[0]) or b"")
                    del self._owed[0]
                self._write(line)
        except (OSError, RuntimeError) as exc:  # RuntimeError: no thread can be started
            reason = getattr(exc, "strerror", None) or "no thread could be started"
            self._stop(run, f"they could not be kept on this machine ({reason})")

    def _stop(self, run: str, reason: str) -> None:
        """Keep no more of a run, and tell so in its place: a part must not look like the whole."""
        if run in self._stopped:
            return
        self._stopped.add(run)
        text = f"\n[Further outputs of this cell are missing here: {reason}.]\n"
        content = {"name": "stderr", "text": text}
        self._owed.append({"run": run, "type": "stream", "content": content, "at": _now()})

    def _open(self) -> None:
        """Open the file, if it is not; end the line that its last writer was killed in."""
        if self._descriptor < 0:
            directory = self._file.parent
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not private_file.is_private(directory.lstat(), writable_only=True):
                raise PermissionError(13, "others can write to the journals' directory")
            if not self._file.exists():
                prune_journals()
            self._descriptor = _opened(self._file)
            self._size_bytes = os.fstat(self._descriptor).st_size
            is_cut = self._size_bytes and os.pread(
                self._descriptor, 1, self._size_bytes - 1
            ) != bytes([10])
            first = _line(header(self._path)) or b""
            self._write(b"\n" + first if is_cut else first)
        if not self._is_locked:
            # A reader that looks at this moment is in the way: then the next line tries again.
            with suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._is_locked = True

    def _write(self, line: bytes) -> None:
        written = 0
        try:
            written = os.write(self._descriptor, line)
            while written < len(line):  # the disk is full, or a signal came
                written += os.write(self._descriptor, line[written:])
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._size_bytes)
            raise
        self._size_bytes += written

    # Making room --------------------------------------------------------------------------------
    def _make_room(self, wanted_bytes: int) -> None:
        """Compact the file beside the cell; wait for that only when the limit is reached."""
        compaction = self._compaction
        if compaction is None:
            compaction = threading.Thread(target=self._compact, name="ivy-journal", daemon=True)
            self._compaction = compaction
            compaction.start()
        if self._size_bytes + wanted_bytes > self._limit_bytes:
            compaction.join()

    def _compact(self) -> None:
        """Write a new file with what counts, and put it in the place of the old one."""
        partial = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        descriptor = -1
        try:
            reader = JournalReader(self._file)
            reader.read()
            with suppress(OSError):
                partial.unlink()
            descriptor = _opened(partial)
            with self._file.open("rb") as old, os.fdopen(descriptor, "ab", closefd=False) as new:
                for record in reader.compacted(old, self._limit_bytes // 2):
                    new.write(_line(record) or b"")
                with self._lock:
                    old.seek(reader.position_bytes)
                    while data := old.read(1_000_000):  # what came meanwhile
                        new.write(data)
                    new.flush()
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                    partial.replace(self._file)
                    self._descriptor, descriptor = descriptor, self._descriptor
                    self._size_bytes = os.fstat(self._descriptor).st_size
        except (OSError, ValueError):
            with suppress(OSError):
                partial.unlink()
        finally:
            with suppress(OSError):
                os.close(descriptor)
            with self._lock:
                # Not again for each line of a cell that is large by itself.
                step = self._limit_bytes // 8
                self._compact_at_bytes = max(self._limit_bytes * 3 // 4, self._size_bytes + step)
                self._compaction = None


def _now() -> float:
    return round(time.time(), 3)


def _line(record: Json) -> bytes | None:
    """Return a record as a line; ``None`` for what no JSON can hold."""
    try:
        return msgspec.json.encode(record) + b"\n"  # the standard library's takes 6 times as long
    except (ValueError, TypeError, OverflowError, RecursionError):
        pass
    try:  # half a surrogate pair, a number of more than 64 bits
        return json.dumps(record, separators=(",", ":"), default=str).encode("ascii") + b"\n"
    except (ValueError, TypeError, RecursionError):
        return None


def _opened(path: Path) -> int:
    """Open a journal for writing, if it is ours alone."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    if not private_file.is_private(os.fstat(descriptor)):
        os.close(descriptor)
        raise PermissionError(13, "others can read or write the journal")
    return descriptor
