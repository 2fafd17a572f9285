"""The outputs of a notebook that no kernel has taken, on their way into this kernel's journal.

A Jupyter server that ends, a machine that crashes or a second machine leave cells running in the
sandbox. What they have said since is kept there, by the agent and on the disk; a page or the server
puts it into the notebook from the journal.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ivy_kernel.errors import IvyError
from ivy_kernel.models import Fate, Json, Message
from ivy_kernel.routes.agent.frames import Inbox, to_kept_cells, to_message
from ivy_kernel.routes.events import (
    AgentLost,
    AgentOpened,
    Event,
    KeptCell,
    KeptOutputs,
    KernelDied,
)
from ivy_kernel.session.journal_reader import JournalReader, journal_directory, notebook_of
from ivy_kernel.session.kernel_registry import cells_in

if TYPE_CHECKING:
    from ivy_kernel.kernel.base import ShownCells
    from ivy_kernel.routes.files import FileEntry
    from ivy_kernel.session.files import SandboxFiles
    from ivy_kernel.session.output_limit import OutputLimit


_log = logging.getLogger(__name__)


# One cell on its way into the journal -------------------------------------------------------------
FATES: dict[str, Fate] = {
    "ok": "succeeded",
    "error": "failed",
    "aborted": "interrupted",
    "lost": "lost",
}

OUTPUT_CLEARED_BY = ("stream", "display_data", "execute_result", "error")
"""Messages that carry out a ``clear_output`` that waits for them."""


class MissedCell:
    """One cell whose messages are brought into the journal, as a front end would have shown them.

    Parameters
    ----------
    cell
        Where it is in the log.
    shown
        The journal of this kernel's cells.
    limit
        The limit of its text.
    """

    def __init__(self, cell: KeptCell, shown: ShownCells, limit: OutputLimit) -> None:
        self.cell = cell
        self.position = cell.start
        self.is_over = False
        self._journal = shown.journal
        self._limit = limit
        self._must_clear = False
        self._reply: Message | None = None
        self._is_idle = False
        self._journal.begin(cell.run, cell.cell_id, cell.code, cell.number)

    def take(self, message: Message) -> None:
        """Take its next message; reply and "idle" together end it."""
        if message.channel == "shell" and message.msg_type == "execute_reply":
            self._reply = message
        elif message.msg_type == "status":
            self._is_idle = message.content.get("execution_state") == "idle" or self._is_idle
        elif message.channel == "iopub":
            self._show(message)
        if self._reply is not None and self._is_idle and not self.is_over:
            status = str(self._reply.content.get("status"))
            self.end(FATES.get(status, "unknown"))

    def _show(self, message: Message) -> None:
        if message.msg_type == "clear_output" and not message.content.get("wait"):
            self._limit.forget()
        self._must_clear = self._must_clear or message.msg_type == "clear_output"
        if self._must_clear and message.msg_type in OUTPUT_CLEARED_BY:
            self._must_clear = False
            self._limit.forget()
        if message.msg_type == "stream" and not self.is_over:
            for part in self._limit.take(message):
                self._write(part)
        else:
            self._write(message)

    def _write(self, message: Message) -> None:
        self._journal.message(
            self.cell.run, message.msg_type, message.content, message.metadata or None
        )

    def note(self, sentence: str) -> None:
        """Say beside its outputs what is missing of them."""
        self._write(Message("stream", {"name": "stderr", "text": f"\n[{sentence}]\n"}))

    def end(self, fate: Fate) -> None:
        """End it; later messages, as of threads, are still taken."""
        if self.is_over:
            return
        self.is_over = True
        for part in self._limit.finish():
            self._write(part)
        number, metadata = self.cell.number, {}
        if self._reply is not None:
            count = self._reply.content.get("execution_count")
            number = count if isinstance(count, int) else number
            metadata = {"ivy": self._reply.metadata.get("ivy", {})}
        self._journal.end(self.cell.run, fate, number, metadata)


ReadLog = Callable[[int, int], Awaitable[tuple[int, bytes]]]
"""Reads at most so many bytes of a log from an offset; says where what it returns begins."""


async def read_cells(
    cells: Sequence[MissedCell], end: int, read: ReadLog, seen: set[str] | None = None
) -> None:
    """Bring what a log holds of some cells into the journal.

    Parameters
    ----------
    cells
        The cells.
    end
        Where the log ends: cells that run are read so far.
    read
        Reads the log.
    seen
        Gets the ids of the messages that were read.
    """
    by_run = {each.cell.run: each for each in cells}
    for start, stop, members in _spans(cells, end):
        inbox, position, missing = Inbox(start), start, 0
        while position < stop:
            began, data = await read(position, stop - position)
            missing += max(0, began - position)
            if not data or not position <= began < stop:
                break
            if began > position:
                inbox = Inbox(began)
            data = data[: stop - began]
            position = began + len(data)
            for record in inbox.add(began, data):
                message = to_message(record)
                if message is not None and message.parent_id in by_run:
                    by_run[message.parent_id].take(message)
                    if seen is not None:
                        seen.add(str((message.header or {}).get("msg_id")))
            for each in members:
                each.position = inbox.read_offset
        missing = missing or stop - position
        for each in members:
            if missing:
                each.note(
                    f"{missing:,} bytes of what cells said at that time are not kept any more in "
                    f"the sandbox, so outputs may be missing here."
                )
            if each.cell.end is not None:  # without a reply, if it was lost
                each.end(FATES.get(each.cell.fate, "unknown"))


def _spans(cells: Sequence[MissedCell], end: int) -> list[tuple[int, int, list[MissedCell]]]:
    """Return the parts of a log that hold some cells, each part once, with its cells."""
    spans: list[tuple[int, int, list[MissedCell]]] = []
    for each in sorted(cells, key=lambda each: each.position):
        stop = end if each.cell.end is None else each.cell.end
        if spans and each.position <= spans[-1][1]:
            start, other_stop, members = spans.pop()
            spans.append((start, max(stop, other_stop), [*members, each]))
        else:
            spans.append((each.position, stop, [each]))
    return spans


# What is on the sandbox's disk --------------------------------------------------------------------
MOST_INDEXES = 20
INDEX_LIMIT_BYTES = 8 << 20
DISK_LIMIT_BYTES = 64 << 20
"""The indexes of so many notebooks are read, the newest first, and so much of the logs."""

READ_BYTES = 1 << 20
LOG_NAME = re.compile(r"log-([0-9a-f]{16})-([0-9]{16})")


class DiskOutputs:
    """What agents have left on a sandbox's disk, at one look.

    Parameters
    ----------
    files
        The sandbox's files.
    """

    def __init__(self, files: SandboxFiles) -> None:
        self.cells: list[KeptCell] = []
        self._files = files
        self._segments: dict[str, dict[int, FileEntry]] = {}

    async def look(self) -> None:
        """List the logs, and read which cells are in them.

        Raises
        ------
        IvyError
            When the sandbox cannot be asked.
        """
        listing = await self._files.glob(".ivy/*/outputs/*")
        entries = [entry for entry in listing.entries if entry.kind == "file"]
        for entry in entries:
            match = LOG_NAME.fullmatch(entry.name)
            if match is not None:
                self._segments.setdefault(match[1], {})[int(match[2])] = entry
        rows: list[Json] = []
        indexes = [entry for entry in entries if entry.name == "cells.jsonl"]
        indexes.sort(key=lambda entry: entry.modified_seconds or 0)
        for entry in indexes[-MOST_INDEXES:]:
            first = max(0, entry.size_bytes - INDEX_LIMIT_BYTES)
            data = await self._files.read(entry.path, offset_bytes=first)
            for line in data.splitlines():
                with suppress(ValueError, RecursionError):
                    rows.append(json.loads(line))
        known = [cell for cell in to_kept_cells(rows) if cell.log in self._segments]
        self.cells = sorted(known, key=lambda cell: cell.at)

    def has(self, log: str) -> bool:
        """Whether anything of a log is there."""
        return log in self._segments

    def end_of(self, log: str) -> int:
        """Return where a log ends, as far as it is on the disk."""
        start, entry = max(self._segments[log].items())
        return start + entry.size_bytes

    def sign_of_life(self, log: str) -> object:
        """Return what changes while a log's agent runs a cell."""
        _, entry = max(self._segments[log].items())
        return entry.size_bytes, entry.modified_seconds

    def reader(self, log: str) -> ReadLog:
        """Return what reads a log."""
        segments = self._segments[log]

        async def read(offset: int, limit_bytes: int) -> tuple[int, bytes]:
            for start, entry in sorted(segments.items()):
                if start + entry.size_bytes > offset:
                    began = max(offset, start)
                    rest_bytes = start + entry.size_bytes - began
                    data = await self._files.read(
                        entry.path,
                        offset_bytes=began - start,
                        limit_bytes=min(limit_bytes, READ_BYTES, rest_bytes),
                    )
                    return began, data
            return offset, b""

        return read


# All that was missed ------------------------------------------------------------------------------
FIRST_LOOK_SECONDS = 1.0
LOOK_SECONDS = 2.0
LONGEST_LOOK_SECONDS = 10.0
LIFELESS_SECONDS = 20.0
"""An agent that runs a cell shows a sign of life on the disk more often than that."""


class MissedOutputs:
    """Brings what was said while no kernel of the notebook was there into this kernel's journal.

    It disturbs no cell: it reads beside them, and never raises.

    Parameters
    ----------
    shown
        The journal of this kernel's cells.
    limit
        Returns the limit of a cell's text.
    """

    def __init__(self, shown: ShownCells, limit: Callable[[], OutputLimit]) -> None:
        self._shown = shown
        self._limit = limit
        self._cells: dict[str, MissedCell] = {}
        self._expected: dict[str, KeptCell] = {}
        self._kept: KeptOutputs | None = None
        self._held: list[Message] = []
        self._seen: set[str] = set()  # what was read, which a poll may bring, too, and later
        self._catching_up = 0
        self._has_looked = False
        self._tasks: set[asyncio.Task[None]] = set()

    def on_event(self, event: Event, open_files: Callable[[], SandboxFiles]) -> None:
        """Called with each event of the session's routes; its files are for reading beside them."""
        if isinstance(event, AgentOpened) and event.kept is not None:
            self._kept = event.kept
            if event.is_found:
                self._catching_up += 1
                self._start(self._catch_up(event.kept))
            if not self._has_looked:
                self._has_looked = True
                self._start(self._follow_disk(open_files(), event.kept.log))
        elif isinstance(event, AgentLost):
            for cell in self._live:
                cell.end("lost")
        elif isinstance(event, KernelDied) and self._live and self._kept is not None:
            self._start(self._end_lost(self._kept))

    @property
    def _live(self) -> list[MissedCell]:
        """The cells that run in the session's own agent."""
        logs = ("", self._kept.log if self._kept is not None else "")
        cells = self._cells.values()
        return [each for each in cells if each.cell.log in logs and not each.is_over]

    async def _end_lost(self, kept: KeptOutputs) -> None:
        """End those cells that a Python has taken with it."""
        with suppress(IvyError):  # its cells are called running then
            cells, _ = await kept.kept_cells()
            ended = {cell.run: cell.fate for cell in cells if cell.end is not None}
            for each in self._live:
                if each.cell.run in ended:
                    each.end(FATES.get(ended[each.cell.run], "unknown"))

    async def _follow_disk(self, files: SandboxFiles, own_log: str) -> None:
        """Bring in what other agents have left on the disk: earlier ones, or another machine's.

        Those that live are not disturbed; while one of them runs a cell of this notebook, the disk
        is looked at again and again.
        """
        with suppress(IvyError):  # it is a help; cells tell what is wrong with the sandbox
            notebook = await asyncio.to_thread(lambda: set(cells_in(Path(self._shown.path))))
            known = await asyncio.to_thread(known_cells, self._shown.path)
            pause, signs = FIRST_LOOK_SECONDS, dict[str, tuple[object, float]]()
            followed: dict[str, MissedCell] = {}
            while notebook:
                await asyncio.sleep(pause)
                disk = DiskOutputs(files)
                await disk.look()
                cells = {cell.run: cell for cell in disk.cells}
                others = [
                    cell
                    for cell in newest_unknown(disk.cells, known)
                    if cell.log != own_log and not notebook.isdisjoint((cell.cell_id, cell.code))
                ]
                for missed in self._begin(_newest_within(others, disk)):
                    followed[missed.cell.run] = missed
                pause = min(pause * 1.5, LONGEST_LOOK_SECONDS)
                for run, missed in list(followed.items()):
                    missed.cell = cells.get(run, missed.cell)
                    log, before = missed.cell.log, missed.position
                    if not disk.has(log):
                        missed.end("lost")
                        del followed[run]
                        continue
                    await read_cells([missed], disk.end_of(log), disk.reader(log))
                    if missed.position > before:
                        pause = LOOK_SECONDS
                    sign, seen_at = disk.sign_of_life(log), time.monotonic()
                    if signs.setdefault(log, (sign, seen_at))[0] != sign:
                        signs[log] = (sign, seen_at)
                    if seen_at - signs[log][1] > LIFELESS_SECONDS:
                        missed.end("lost")
                    if missed.is_over:
                        del followed[run]
                if not followed:
                    return

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside cells, which never hear of a fault in it."""

        def end(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and task.exception() is not None:
                _log.error("Missed outputs could not be read.", exc_info=task.exception())

        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(end)

    def expect(self, cells: Sequence[KeptCell]) -> None:
        """Take what these cells will say, which the agent runs by itself; each begins then."""
        self._expected.update((cell.run, cell) for cell in cells)

    def heard(self, message: Message) -> None:
        """Called with each message that belongs to no cell of this process, in order."""
        expected = self._expected.pop(message.parent_id, None)
        if expected is not None:
            missed = MissedCell(expected, self._shown, self._limit())
            self._cells.setdefault(expected.run, missed)
        message_id = str((message.header or {}).get("msg_id"))
        if self._catching_up:
            self._held.append(message)
        elif message_id in self._seen:
            self._seen.discard(message_id)
        elif message.parent_id in self._cells:
            self._cells[message.parent_id].take(message)

    async def _catch_up(self, kept: KeptOutputs) -> None:
        """Read what an agent that was found has said of cells that the journals do not have."""
        missed: list[MissedCell] = []
        try:
            cells, end = await kept.kept_cells()
            known = await asyncio.to_thread(known_cells, self._shown.path)
            missed = self._begin(newest_unknown(cells, known))
            await read_cells(missed, end, lambda offset, _: kept.read_kept(offset), self._seen)
        except IvyError:
            for each in missed:
                if not each.is_over:
                    each.note("The sandbox did not answer, so outputs may be missing here.")
                if each.cell.end is not None:
                    each.end(FATES.get(each.cell.fate, "unknown"))
        finally:
            self._catching_up -= 1
            held, self._held = self._held, []
            for message in held:
                self.heard(message)

    def _begin(self, cells: Sequence[KeptCell]) -> list[MissedCell]:
        """Begin cells in the journal, in their order."""
        begun = []
        for cell in cells:
            if cell.cell_id in self._shown.newest or cell.run in self._cells:
                continue  # it runs again by now, or is on its way
            missed = self._cells[cell.run] = MissedCell(cell, self._shown, self._limit())
            begun.append(missed)
        return begun


def _newest_within(cells: Sequence[KeptCell], disk: DiskOutputs) -> list[KeptCell]:
    """Return the newest cells that are no longer, together, than what is read at most."""
    total_bytes, chosen = 0, list[KeptCell]()
    for cell in reversed(cells):
        total_bytes += (disk.end_of(cell.log) if cell.end is None else cell.end) - cell.start
        if total_bytes > DISK_LIMIT_BYTES and chosen:
            break
        chosen.append(cell)
    return chosen[::-1]


def known_cells(notebook: str) -> dict[str, Json]:
    """Return what the journals on this machine hold of a notebook's cells, by the cells' ids."""
    found: dict[str, Json] = {}
    for path in journal_directory().glob("*.jsonl"):
        if notebook_of(path) != notebook:
            continue
        for cell_id, cell in JournalReader(path).cells()[0].items():
            if cell_id not in found or found[cell_id]["started"] < cell["started"]:
                found[cell_id] = cell
    return found


def _unix(moment: str) -> float:
    return datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp()


def newest_unknown(cells: Sequence[KeptCell], known: dict[str, Json]) -> list[KeptCell]:
    """Return the newest run of each cell, without those that are known to their end, or outdated.

    Parameters
    ----------
    cells
        The runs that a sandbox knows of, in order.
    known
        The runs that the journals have, by the cells' ids.
    """
    places = {cell.run: index for index, cell in enumerate(cells)}
    newest = {cell.cell_id: cell for cell in cells if cell.cell_id}
    wanted = []
    for cell_id, cell in newest.items():
        have = known.get(cell_id)
        if have is not None and have["run"] == cell.run and have["ended"] is not None:
            continue
        if have is not None and have["run"] not in places and _unix(have["started"]) > cell.at:
            continue  # it ran again, elsewhere
        wanted.append(cell)
    return sorted(wanted, key=lambda cell: places[cell.run])
