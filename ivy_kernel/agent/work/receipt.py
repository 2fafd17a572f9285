"""The receipt of a notebook: one record a cell of what ran and what it used, chained by hash.

A record is one line of a file in the state directory, and names the SHA-256 of the line before. It
is written before the cell's reply is sent, and travels in that reply. Files are hashed then if
that holds the reply up for no more than `HASH_SECONDS`, or `HASH_SHARE` of the time that the cell
took. A larger one has no hash yet in its cell's record: it is hashed while the kernel has nothing
to do, and the record of the next cell gives the hash as ``late``, so that the chain has one line
for each cell and no other. What a cell read is hashed before the same cell changes it, as far as
Python tells.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import sys
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Callable

from .audit import Audit, Hashes
from .files_used import (
    Json,
    Look,
    Opened,
    Places,
    State,
    Use,
    Watch,
    coarse_time_ns,
    open_files,
    state_of,
)
from .packages import Packages, open_packages
from .requests import Part

if TYPE_CHECKING:
    from .requests import Context, Request

HASH_SECONDS = 0.05
"""A reply waits so long for hashes, or for `HASH_SHARE` of its cell's time."""

HASH_SHARE = 0.1
HASH_SECONDS_LIMIT = 2.0
HASH_BYTES = 256 << 20
"""Of each cell's files, so much is hashed; of others size and time are known."""

IDLE_SECONDS = 0.1
FILES_LIMIT = 300
"""A record names so many files at most, of each kind."""

UNKNOWN: State = (-1, -1, -1, -1)


class Chain:
    """The file of records, each of which names the hash of the line before."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._size = -1
        self.head = ""
        self.count = 0
        self._had_lines = False

    def _read(self, file: int) -> str:
        """Read the chain as it is in the file; return what is wrong with its end."""
        why = ""
        with open(file, "rb", closefd=False) as lines:
            data = lines.read()
        if data and not data.endswith(b"\n"):
            # A process that was killed, or a full disk: what is there is closed and kept.
            os.write(file, b"\n")
            data += b"\n"
            why = "the record before was cut off"
        records = data.split(b"\n")[:-1]
        if len(records) < self.count:
            why = "records before were taken away"
        self.count = len(records)
        self.head = hashlib.sha256(records[-1]).hexdigest() if records else ""
        self._size = len(data)
        return why

    def look(self) -> None:
        """Read the file, if another process has changed it."""
        with contextlib.suppress(OSError):
            self._locked(lambda _file, _why: None)

    def _locked(self, act: Callable[[int, str], None]) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        file = os.open(self._path, flags, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            why = ""
            if os.fstat(file).st_size != self._size:
                os.lseek(file, 0, os.SEEK_SET)
                why = self._read(file)
            act(file, why)
        finally:
            os.close(file)

    def append(self, record: Json) -> str:
        """Write one record and return the hash of its line.

        The record gets its ``previous``. What is wrong with the file is added to ``incomplete``.
        """

        def write(file: int, why: str) -> None:
            if why:
                _add_reason(record, why)
            record["previous"] = self.head
            data = line_of(record)
            written = os.write(file, data + b"\n")
            if written != len(data) + 1:
                os.ftruncate(file, self._size)
                raise OSError("the disk is full")
            self.head = hashlib.sha256(data).hexdigest()
            self.count += 1
            self._size += written

        try:
            self._locked(write)
        except OSError as refused:
            _add_reason(
                record, "the record could not be written: %s" % (refused.strerror or refused)
            )
            record["previous"] = self.head
            return hashlib.sha256(line_of(record)).hexdigest()
        return self.head


def line_of(record: Json) -> bytes:
    """Return a record as its line has it, without the end of the line."""
    return json.dumps(record, sort_keys=True, separators=(",", ":")).encode("ascii")


def check_chain(lines: list[bytes], head: str) -> list[tuple[int, str]]:
    """Return what is wrong with a file of records: the number of each such line from 0, and why.

    Parameters
    ----------
    head
        The hash of the last line.
    """
    found = []
    previous = ""
    for index, line in enumerate(lines):
        try:
            record = json.loads(line.decode("utf-8"))
            named = record["previous"]
        except (ValueError, KeyError, TypeError):
            found.append((index, "it is no record"))
        else:
            if named != previous:
                found.append((index, "the line before is not the one that it names"))
        previous = hashlib.sha256(line).hexdigest()
    if previous != head:
        found.append((len(lines), "the last line is not the one that was written"))
    return found


def _add_reason(record: Json, why: str) -> None:
    record["incomplete"] = "; ".join(filter(None, [record.get("incomplete", ""), why]))


def _utc(seconds: float) -> str:
    at = datetime.fromtimestamp(seconds, timezone.utc)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Receipt:
    """Writes the record of each cell.

    Parameters
    ----------
    directory
        The state directory.
    chat, notebook
        Whose cells these are.
    packages
        Tells which packages are there.
    workspace
        What is looked at around each cell.
    """

    def __init__(
        self, directory: str, chat: str, notebook: str, packages: Packages, workspace: str
    ) -> None:
        place = os.path.join(directory, "receipts")
        os.makedirs(place, mode=0o700, exist_ok=True)
        self._packages = packages
        # In a sandbox this code is in an archive, in the private directory of the agent.
        here = os.path.abspath(__file__)
        while not os.path.exists(here):
            here = os.path.dirname(here)
        self.places = Places(workspace, (directory, os.path.dirname(here)))
        self._hashes = Hashes()
        self.file = os.path.join(place, "{}.jsonl".format(os.path.basename(notebook or "notebook")))
        self._chain = Chain(self.file)
        self._own_files = frozenset(open_files(self.places, frozenset()))
        self._around: Watch | Look
        try:
            self._around = Watch(self.places)
        except OSError:
            self._around = Look(self.places)
        system = os.uname()
        self._sandbox = {
            "chat": chat,
            "host": system.nodename,
            "boot": _boot(),
            "kernel": f"{os.getpid()}-{os.urandom(4).hex()}",
        }
        self._platform = f"{system.sysname} {system.release} {system.machine}"
        self._audit: Audit | None = None
        self._info: Json = {}
        self._started = 0.0
        self._clock = 0.0
        self._tick_ns = 0
        self._held: dict[str, tuple[Opened, State | None]] = {}
        self._told = ""
        self._waiting: list[tuple[str, str, State]] = []
        self._late: list[Json] = []

    def before_cell(self, info: Json) -> None:
        """Begin to look. Called before each cell."""
        self._info = info
        self._held = {
            path: (opened, state_of(path))
            for path, opened in open_files(self.places, self._own_files).items()
        }
        self._around.begin()
        self._tick_ns = coarse_time_ns()
        self._started = time.time()
        self._clock = time.monotonic()
        self._audit = Audit(self.places, self._hashes)
        self._audit.begin()

    def after_cell(self, info: Json, reply: Json) -> Json:
        """Write the record. Called before the reply is sent.

        Returns
        -------
        dict
            ``receipt``: the record with its hash; ``lock``: the packages, where they are others
            than at the cell before.
        """
        Audit.end()
        audit, self._audit = self._audit, None
        if audit is None:
            return {}
        took = time.monotonic() - self._clock
        info = info or self._info
        uses = self._uses(audit)
        packages = self._packages.digest()
        record: Json = {
            "v": 1,
            "previous": "",
            "number": info.get("number"),
            "cell": info.get("cell", ""),
            "code": info.get("code", ""),
            "fate": str(reply.get("status", "")),
            "started": _utc(self._started),
            "ended": _utc(self._started + took),
            "sandbox": self._sandbox,
            "python": sys.version.split()[0],
            "platform": self._platform,
            "packages": packages,
        }
        reads, writes, waiting = self._entries(uses, audit.reasons, took)
        record.update(reads=reads, writes=writes, incomplete="; ".join(audit.reasons))
        if self._late:
            record["late"], self._late = self._late, []
        digest = self._chain.append(record)
        self._waiting = [(digest, path, state) for path, state in waiting]
        told: Json = {"receipt": dict(record, hash=digest)}
        if packages != self._told:
            self._told = packages
            told["lock"] = self._packages.lock()
        return told

    def on_idle(self) -> bool:
        """Hash what did not fit into a reply, for a moment; return whether there is more."""
        until = time.monotonic() + IDLE_SECONDS
        while self._waiting:
            of, path, state = self._waiting[0]
            found: Json = {"of": of, "path": self.places.name(path), "bytes": state[0]}
            try:
                found["sha256"] = self._hashes.take(path, state, until)
            except OSError:
                found.update(sha256=None, why="changed after the cell")
            else:
                if found["sha256"] is None:
                    return True
            self._late.append(found)
            self._waiting.pop(0)
        return False

    def summary(self) -> Json:
        """Return where the chain stands, the hashes that came after the last cell, the packages."""
        until = time.monotonic() + HASH_SECONDS_LIMIT
        while self.on_idle() and time.monotonic() < until:
            pass
        self._chain.look()
        return {
            "late": list(self._late),
            "head": self._chain.head,
            "count": self._chain.count,
            "packages": self._packages.lock(),
            "file": self.places.name(self.file),
        }

    def _uses(self, audit: Audit) -> dict[str, Use]:
        """Put together what Python and the system tell."""
        uses: dict[str, Use] = {}
        for path, use in audit.uses.items():
            # A way through a symbolic link is another name of the same file.
            directory, _, name = path.rpartition("/")
            real = os.path.realpath(directory or "/").rstrip("/") + "/" + name
            known = uses.setdefault(real, use)
            if known is not use:
                known.is_read = known.is_read or use.is_read
                known.is_written = known.is_written or use.is_written
        why = self._around.take(uses)
        if why:
            audit.reasons[why] = None
        held = open_files(self.places, self._own_files)
        for path, (opened, state) in self._held.items():
            use = uses.setdefault(path, Use(state))
            use.how = use.how or "held open"
            if opened.can_read and not use.is_read:
                use.is_read, use.read_state = True, state
            use.is_written = use.is_written or opened.can_write
        for path, opened in held.items():
            if path not in uses:
                use = uses[path] = Use(UNKNOWN)
                use.how = "unseen"
                use.is_read, use.is_written = opened.can_read, opened.can_write
        return uses

    def _entries(
        self, uses: dict[str, Use], reasons: dict[str, None], took: float
    ) -> tuple[list[Json], list[Json], list[tuple[str, State]]]:
        """Return what was read and written, and what is still to be hashed."""
        reads: list[Json] = []
        writes: list[Json] = []
        wanted: list[tuple[Json, str, State]] = []
        for path, use in sorted(uses.items()):
            now = state_of(path)
            if now is None and os.path.exists(path):
                continue  # a directory, a pipe, a device
            is_changed = use.is_written and self._is_changed(use, now)
            if use.is_read and (use.read_state or use.before is not None):
                self._add_read(reads, wanted, path, use, now)
            if not is_changed:
                continue
            entry = self._entry(path, use)
            writes.append(entry)
            if now is None:
                entry.update(sha256=None, bytes=None, why="removed")
            else:
                entry.update(sha256=None, bytes=now[0])
                wanted.append((entry, path, now))
                if use.before == UNKNOWN and not use.is_read:
                    reasons["{} may have been read before it was changed".format(entry["path"])] = (
                        None
                    )
        waiting = self._hash(wanted, took)
        for kind, entries in (("read", reads), ("written", writes)):
            if len(entries) > FILES_LIMIT:
                reasons[f"{len(entries) - FILES_LIMIT} more files were {kind}"] = None
                del entries[FILES_LIMIT:]
            for entry in entries:
                if entry["sha256"] is None and kind == "read":
                    reasons["no hash of {}: {}".format(entry["path"], entry["why"])] = None
        return reads, writes, waiting

    def _is_changed(self, use: Use, now: State | None) -> bool:
        if use.before == UNKNOWN and now is not None:
            return max(now[1], now[2]) >= self._tick_ns
        return now != use.before

    def _entry(self, path: str, use: Use) -> Json:
        entry: Json = {"path": self.places.name(path)}
        if use.how:
            entry["how"] = use.how
        return entry

    def _add_read(
        self,
        reads: list[Json],
        wanted: list[tuple[Json, str, State]],
        path: str,
        use: Use,
        now: State | None,
    ) -> None:
        entry = self._entry(path, use)
        reads.append(entry)
        state = use.read_state
        # Only the system told of it: without a sign of a change it was then as it is now.
        if state is None and now and not use.is_written and now[1] <= self._started * 1e9:
            state = now
        entry["bytes"] = state[0] if state else None
        entry["sha256"] = use.digest or self._hashes.known(path, state)
        if entry["sha256"] is not None:
            return
        if state is None or state != now:
            entry["why"] = "changed during the cell"
            return
        wanted.append((entry, path, state))

    def _hash(self, wanted: list[tuple[Json, str, State]], took: float) -> list[tuple[str, State]]:
        """Hash what there is time for, the small files first; return those that wait."""
        share = min(HASH_SECONDS_LIMIT, took * HASH_SHARE)
        until = time.monotonic() + max(HASH_SECONDS, share)
        waiting = []
        left = HASH_BYTES
        for entry, path, state in sorted(wanted, key=lambda item: item[2][0]):
            if state[0] > left:
                entry["why"] = f"more than {HASH_BYTES >> 20} MB in one cell"
                continue
            left -= state[0]
            try:
                if self._hashes.fits(state[0], until):
                    entry["sha256"] = self._hashes.take(path, state, until)
            except OSError as refused:
                entry["why"] = "it cannot be read: %s" % (refused.strerror or refused)
                continue
            if entry["sha256"] is None:
                entry["why"] = "it is in the next cell's record"
                waiting.append((path, state))
        for entry, _, state in wanted:
            if entry["sha256"] is None:
                entry["modified"] = _utc(state[1] / 1e9)
        return waiting


class ReceiptPart(Part):
    """The receipt beside cells, while the setting ``receipts`` is on; the request ``receipt``.

    Parameters
    ----------
    context
        Directory, ids, settings.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._workspace = _workspace(context.directory)
        self._receipt: Receipt | None = None

    def _open(self) -> Receipt:
        if self._receipt is None:
            context = self._context
            self._receipt = Receipt(
                context.directory,
                context.chat,
                context.notebook,
                open_packages(context.directory),
                self._workspace,
            )
        return self._receipt

    def requests(self) -> dict[str, Request]:
        """Return what answers ``receipt``."""
        return {"receipt": lambda _: self._open().summary()}

    def before_cell(self, info: Json) -> None:
        """Begin to look."""
        if self._context.settings.get("receipts", True):
            self._open().before_cell(info)

    def after_cell(self, info: Json, reply: Json) -> Json:
        """Write the record of a cell that was looked at."""
        return self._receipt.after_cell(info, reply) if self._receipt else {}

    def on_idle(self) -> float | None:
        """Hash what is large, a slice at a time."""
        return 0.0 if self._receipt and self._receipt.on_idle() else None


def _workspace(directory: str) -> str:
    """Return the directory that the state directory was made in (``.ivy/<notebook>``)."""
    above = os.path.dirname(directory)
    return os.path.dirname(above) if os.path.basename(above) == ".ivy" else os.getcwd()


def open_part(context: Context) -> Part:
    """Return the part that writes the receipt."""
    return ReceiptPart(context)


def _boot() -> str:
    """Return the id of the system's start; empty where it does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""
