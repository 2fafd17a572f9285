"""What the earlier kernels of a notebook have left: their agent, and outputs that nobody has taken.

A Jupyter server that ends, a machine that crashes or a second machine leave cells running in the
sandbox. What they have said since is kept there, by the agent and on the disk; it is brought into
the journal of this kernel, cell by cell, from which a page or the server puts it into the notebook.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import platform
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from jupyter_core.paths import jupyter_data_dir

from ivy_kernel.errors import IvyError
from ivy_kernel.models import Fate, Json, Message
from ivy_kernel.routes.agent.frames import Inbox, to_message
from ivy_kernel.routes.events import (
    AgentLost,
    AgentOpened,
    Event,
    KeptCell,
    KeptOutputs,
    KernelDied,
)
from ivy_kernel.session import private_file
from ivy_kernel.session.journal_reader import (
    JournalReader,
    journal_directory,
    journal_file,
    notebook_of,
)
from ivy_kernel.session.kernel_registry import kernel_id_of

if TYPE_CHECKING:
    from ivy_kernel.kernel.base import ShownCells
    from ivy_kernel.session.output_limit import OutputLimit


# The agent of the kernel before -------------------------------------------------------------------
class NotebookClaim:
    """One kernel's claim on what an earlier kernel of its notebook has left in sandboxes.

    A kernel of a Jupyter server holds the lock of its notebook's path for as long as its process
    lives. The file beside the lock names the kernel before, whose agent is claimed only if the
    notebook is the same: a new one may have the old one's name, and a renamed one another. It is
    the same if its file has a cell that ran in that kernel.

    Parameters
    ----------
    connection_file
        This kernel's connection file.
    own_key
        Its own name in sandboxes.
    has_agents
        Whether the kernel of a name has left agents.
    """

    held: ClassVar[dict[Path, int]] = {}  # descriptors, until this process ends

    def __init__(
        self, connection_file: str, own_key: str, has_agents: Callable[[str], bool]
    ) -> None:
        self._has_agents = has_agents
        self._kernel = {"kernel_id": kernel_id_of(connection_file), "session_key": own_key}
        self._notebook = os.environ.get("JPY_SESSION_NAME", "")
        self._directory = Path(jupyter_data_dir()) / "ivy" / "claims"

    def take(self) -> str:
        """Return the name that this kernel has in sandboxes."""
        own_key = self._kernel["session_key"]
        own = self._file_of(self._notebook)
        try:
            if not self._lock(own):
                return own_key  # another kernel of that path lives
            self._kernel["session_key"] = self._key_in(own) or self._key_of_renamed(own) or own_key
            private_file.write_json(own, {"path": self._notebook, **self._kernel})
        except OSError:
            return own_key  # nothing can be kept there
        return self._kernel["session_key"]

    def _file_of(self, notebook: str) -> Path:
        which = hashlib.sha256(f"{platform.node()}\n{notebook}".encode()).hexdigest()[:20]
        return self._directory / f"{which}.json"

    def _lock(self, path: Path) -> bool:
        if path in self.held:
            return False
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            # Of this process alone: a `%%local` cell may leave children that outlive it.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self.held[path] = descriptor
        return True

    def _key_of_renamed(self, own: Path) -> str:
        """Return the name of the kernel of a notebook whose file is gone, if this is its new one.

        The claim has been taken over then.
        """
        for path in self._directory.glob("*.json"):
            with suppress(OSError, ValueError, KeyError, TypeError):
                notebook = str(private_file.read_json(path)["path"])
                if path == own or Path(notebook).exists() or not self._key_in(path):
                    continue
                if self._lock(path):
                    key = self._key_in(path)
                    path.unlink()
                    return key
        return ""

    def _key_in(self, path: Path) -> str:
        """Return the name of the kernel before; empty if there is nothing of it to be claimed."""
        try:
            before = private_file.read_json(path)
            key, kernel_id = str(before["session_key"]), str(before["kernel_id"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""
        if not re.fullmatch(r"[0-9a-f]{20}", key) or not self._has_agents(key):
            return ""
        if kernel_id == self._kernel["kernel_id"]:
            return key  # this kernel, restarted
        return key if self._has_cell_of(kernel_id) else ""

    def _has_cell_of(self, kernel_id: str) -> bool:
        ran, _ = JournalReader(journal_file(kernel_id)).cells()
        known = {*ran, *(str(cell["code"]) for cell in ran.values())}
        return not known.isdisjoint(_cells_in(Path(self._notebook)))


def _cells_in(notebook: Path) -> Iterator[str]:
    """Yield what tells a notebook's cells from others': their ids, and the hashes of their code."""
    with suppress(OSError, ValueError, AttributeError, TypeError, RecursionError):
        for cell in json.loads(notebook.read_text("utf-8")).get("cells", ()):
            source = cell.get("source", "")
            code = source if isinstance(source, str) else "".join(source)
            yield str(cell.get("id", ""))
            if code.strip():
                yield hashlib.sha256(code.encode("utf-8", "surrogatepass")).hexdigest()


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


async def read_cells(cells: Sequence[MissedCell], end: int, read: ReadLog) -> set[str]:
    """Bring what a log holds of some cells into the journal; return the ids of what was read.

    Parameters
    ----------
    cells
        The cells.
    end
        Where the log ends: cells that run are read so far.
    read
        Reads the log.
    """
    by_run = {each.cell.run: each for each in cells}
    seen: set[str] = set()
    for start, stop in _spans(cells, end):
        inbox, position, missing = Inbox(start), start, 0
        while position < stop:
            began, data = await read(position, stop - position)
            if began > position or not data:
                missing += max(0, began - position)
                if not data or began >= stop:
                    break
                inbox = Inbox(began)
            data = data[: stop - began]
            position = began + len(data)
            for record in inbox.add(began, data):
                message = to_message(record)
                if message is not None and message.parent_id in by_run:
                    by_run[message.parent_id].take(message)
                    seen.add(str((message.header or {}).get("msg_id")))
        if missing or position < stop:
            for each in cells:
                if start <= each.cell.start < stop:
                    each.note(
                        f"{missing or stop - position:,} bytes of what cells said at that time are "
                        f"not kept any more in the sandbox, so outputs may be missing here."
                    )
    return seen


def _spans(cells: Sequence[MissedCell], end: int) -> list[tuple[int, int]]:
    """Return the parts of a log that hold some cells, each part once."""
    spans: list[tuple[int, int]] = []
    for start, stop in sorted(
        (each.cell.start, end if each.cell.end is None else each.cell.end) for each in cells
    ):
        if spans and start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], stop))
        else:
            spans.append((start, stop))
    return spans


# All that was missed ------------------------------------------------------------------------------
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
        self._held: list[Message] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def on_event(self, event: Event) -> None:
        """Called with each event of the session's routes."""
        if isinstance(event, AgentOpened) and event.is_found and event.kept is not None:
            self._held = []
            self.start(self._catch_up(event.kept))
        elif isinstance(event, AgentLost | KernelDied):
            for cell in self._cells.values():
                cell.end("lost")

    def start(self, work: Any) -> None:
        """Run something beside cells."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def heard(self, message: Message) -> None:
        """Called with each message that belongs to no cell of this process, in order."""
        if self._held is not None:
            self._held.append(message)
        elif message.parent_id in self._cells:
            self._cells[message.parent_id].take(message)

    async def _catch_up(self, kept: KeptOutputs) -> None:
        """Read what an agent that was found has said of cells that the journals do not have."""
        seen: set[str] = set()
        try:
            cells, end = await kept.kept_cells()
            missed = await self._begin(cells)
            seen = await read_cells(missed, end, lambda offset, _: kept.read_kept(offset))
        except IvyError:
            for cell in self._cells.values():
                cell.note("The sandbox did not answer, so outputs may be missing here.")
        finally:
            held, self._held = self._held or [], None
            for message in held:
                if str((message.header or {}).get("msg_id")) not in seen:
                    self.heard(message)

    async def _begin(self, cells: Sequence[KeptCell]) -> list[MissedCell]:
        """Begin those cells that are newer than what the journals have, in their order."""
        known = await asyncio.to_thread(known_cells, self._shown.path)
        begun = []
        for cell in newest_unknown(cells, known):
            if cell.cell_id in self._shown.newest or cell.run in self._cells:
                continue  # it runs again by now, or is on its way
            missed = self._cells[cell.run] = MissedCell(cell, self._shown, self._limit())
            begun.append(missed)
        return begun


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
