"""What becomes of a notebook's variables when its sandbox ends: kept beside cells, and restored.

Each kernel in the sandbox is told with its first cell to write checkpoints. After a loss the next
cell finds a new kernel, into which the newest checkpoint of this *life* is restored before it runs:
a life begins with an empty namespace, and goes on as long as its variables do.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Protocol

from ivy_kernel.errors import (
    IvyError,
    NoSandboxError,
    SandboxLostError,
    TamperedCheckpointError,
    UsageError,
    WorkError,
)
from ivy_kernel.models import Cell, Json, Message, Outcome, Sink, sound_work
from ivy_kernel.routes.agent.programs import work_archive
from ivy_kernel.routes.base import LiveKernel, Route
from ivy_kernel.routes.events import show_error
from ivy_kernel.session.notebook_record import ChatRecord, KeptCell, Life
from ivy_kernel.session.restored import (
    QUESTION_SECONDS,
    Ask,
    Restored,
    missing_hint,
    names_in,
    offer_packages,
    setup_cells,
)
from ivy_kernel.status.clock import monotonic_seconds
from ivy_kernel.status.model import END_STATES

if TYPE_CHECKING:  # what a warm cell does not need is imported when it is
    from ivy_kernel.session.checkpoint_copies import CopyKeeper
    from ivy_kernel.session.files import SandboxFiles
    from ivy_kernel.session.lifecycle import Lifecycle
    from ivy_kernel.session.route_choice import CellRun

SPACE_BYTES = 4 << 30
"""Checkpoints take no more of the sandbox's disk."""
TIME_SHARE = 0.05
"""Part of a notebook's time that checkpoints may take."""
RESTORE_SECONDS = 3600.0
FIRST_LOOK_SECONDS = 2.0
NOTE_SECONDS = 0.5
"""So long after a cell it is written down: not on its way, and several at once."""


class RecoveryHost(Protocol):
    """The session, as its recovery uses it, and the keeper of copies."""

    lifecycle: Lifecycle

    @property
    def live(self) -> LiveKernel | None:
        """The kernel behind the open route, where it has one."""

    @property
    def busy(self) -> bool:
        """Whether a cell is under way."""

    def files(self) -> SandboxFiles:
        """Return the sandbox's files."""

    def forget(self) -> None:
        """Forget the sandbox of before: it is gone, and the user knows it."""

    async def open_for(self, cell: Cell, sink: Sink) -> Route:
        """See that sandbox and route are there for a cell, which may start a sandbox."""

    async def run_on(self, run: CellRun, route: Route, cell: Cell, sink: Sink) -> Outcome:
        """Run a cell of ours within the run of another one, to its end."""

    def holds(self, holder: str) -> None:
        """Note that a kernel has variables now that must not be lost unnoticed."""


class Recovery:
    """Keeps the variables of one notebook in one chat beyond their sandbox, as a `WorkOwner`.

    Parameters
    ----------
    chat
        What is kept of the notebook in this chat on this machine.
    restore
        Whether the next cell after a loss restores by itself (``auto``), says how (``ask``), or
        does neither (``off``).
    copy_limit_bytes
        How large the copy on this machine may be; 0 for none.

    Attributes
    ----------
    ask
        Asks the user of the cell under way; ``None`` where nobody can be asked.
    pause_seconds
        After a cell the newest checkpoint is brought here in so long.
    why_off
        Why no checkpoints are written; empty while they are, or before it is known.
    summary
        The newest checkpoint of this life, as far as it is known.
    """

    def __init__(
        self, chat: ChatRecord, *, restore: str = "auto", copy_limit_bytes: int = 1 << 30
    ) -> None:
        self._chat = chat
        self._mode = restore
        self._copy_limit_bytes = copy_limit_bytes
        self._host: RecoveryHost | None = None
        self._life = chat.life
        self._loss: SandboxLostError | None = None
        self._is_restoring = False
        self._reply: Json = {}
        self._missing: dict[str, Json] = {}
        self._unwritten: list[KeptCell] = []
        self._under_way: KeptCell | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._keeper: CopyKeeper | None = None
        self._look: asyncio.TimerHandle | None = None
        self.pause_seconds = FIRST_LOOK_SECONDS
        self.ask: Ask | None = None
        self.why_off = ""
        self.summary: Json = {}

    def attach(self, host: RecoveryHost) -> None:
        """Called by the session that it works for."""
        self._host = host

    @property
    def chat(self) -> ChatRecord:
        """What is kept of the notebook in this chat on this machine."""
        return self._chat

    @property
    def life(self) -> Life:
        """See `Life`."""
        return self._life

    @property
    def checkpoints_directory(self) -> str:
        """The directory of checkpoints in the sandbox; empty before it is known."""
        directory = str(self._reply.get("directory", ""))
        return f"{directory}/checkpoints" if directory else ""

    # -- WorkOwner

    def configuration(self) -> Json:
        """Return what a new kernel is told with its first cell; see `WorkOwner`."""
        return {
            "do": "configure",
            "archive": base64.b64encode(work_archive()).decode("ascii"),
            "key": self._chat.key.hex(),
            "chat": self._chat.chat[-1],
            "notebook": self._chat.record.notebook_id,
            "directory": f".ivy/{self._chat.record.notebook_id}",
            "checkpoints": True,
            "receipts": True,
            "space_bytes": SPACE_BYTES,
            "share": TIME_SHARE,
        }

    def configured(self, holder: str, reply: Json | None, why: str) -> None:
        """Take the kernel's answer to that; see `WorkOwner`."""
        self._reply, self.why_off = reply or {}, why
        if holder != self._life.holder and not self._is_restoring:
            self._begin_life(holder)

    def _begin_life(self, holder: str) -> None:
        """Note that the namespace is empty, and what is on that disk is of before."""
        index = self._reply.get("index") or {}
        floor = int(index.get("sequence", 0))
        self._life = Life(secrets.token_hex(8), floor, holder, [], self._life.id)
        self.summary, self._loss, self._missing = {}, None, {}
        self._note_soon()

    # -- cells

    def sent(self, cell: Cell) -> None:
        """Note that a cell goes out: a process that ends under it leaves one that may have run."""
        if cell.store_history and not cell.silent:
            self._under_way = self._kept(cell)
            self._note_soon()

    def left(self) -> None:
        """Note that no cell is under way any more, however it ended."""
        if self._under_way is not None:
            self._under_way = None
            self._note_soon()

    def _kept(self, cell: Cell) -> KeptCell:
        return KeptCell(cell.execution_count, cell.cell_id, cell.code, self._life.id)

    def ended(self, cell: Cell, outcome: Outcome) -> Outcome:
        """Note how a cell ended that was sent; return its outcome, with the notebook's id."""
        ivy: Json = outcome.metadata.get("ivy") or {}
        if not self._reply or self.why_off:
            return outcome
        if cell.store_history and not cell.silent and outcome.fate != "lost":
            self._life.ended.append(cell.execution_count)
            self._unwritten.append(self._kept(cell))
        summary = ivy.get("checkpoint")
        if isinstance(summary, dict) and (summary := sound_work(summary)).get("sequence"):
            self.summary = summary
        if isinstance(ivy.get("lock"), dict):
            self._chat.keep(lock=ivy["lock"])
        self._note_soon()
        self._look_soon()
        told = {**ivy, "notebook": self._chat.record.notebook_id}
        return replace(outcome, metadata={**outcome.metadata, "ivy": told})

    def hint(self, outcome: Outcome, sink: Sink) -> None:
        """Say so when a cell has missed a variable that was not restored."""
        if self._missing and (sentence := missing_hint(outcome.reply, self._missing)):
            _note(sink, sentence)

    def keeper(self, host: RecoveryHost) -> CopyKeeper:
        """Return what keeps the copy on this machine."""
        if self._keeper is None:
            from ivy_kernel.session.checkpoint_copies import CopyKeeper

            self._keeper = CopyKeeper(self, host, limit_bytes=self._copy_limit_bytes)
        return self._keeper

    def _look_soon(self) -> None:
        if self._copy_limit_bytes and self._look is None:
            loop = asyncio.get_running_loop()
            self._look = loop.call_later(self.pause_seconds, self._look_now)

    def _look_now(self) -> None:
        self._look = None
        if self._host is not None:
            self.keeper(self._host).look()

    def _note_soon(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(
                NOTE_SECONDS, lambda: loop.run_in_executor(None, self.write_down)
            )

    def write_down(self) -> None:
        """Write down which cells have run. In a thread, or when the session is closed."""
        self._timer, cells, self._unwritten = None, self._unwritten, []
        life, under_way = asdict(self._life), self._under_way
        if under_way is not None:
            cells.append(replace(under_way, life=self._life.id))
            life["ended"].append(under_way.number)
        self._chat.add_cells(cells, life=life, summary=self.summary)

    def close(self) -> None:
        """Called when the session is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self.write_down()
        if self._look is not None:
            self._look.cancel()
        if self._keeper is not None:
            self._keeper.close()

    def memory_low(self) -> None:
        """Called when memory is nearly full: the variables may be lost soon."""
        if self._host is not None and self._reply:
            self.keeper(self._host).hurry()

    # -- losses

    def lost(self, cell: Cell, sink: Sink) -> None:
        """Called when a cell that was under way has ended as lost: the next one may restore."""
        if self._mode == "auto" and self._life.ended and cell.store_history:
            self._loss = SandboxLostError("The variables were lost with the cell before.")
            if self.summary:
                _note(sink, "The next cell restores the variables from the newest checkpoint.")

    def terminated(self) -> None:
        """Called when the user has terminated the sandbox here: nothing is restored by itself."""
        self._loss = None

    def loss_before(self, cell: Cell) -> SandboxLostError | None:
        """Return the loss that was told, and after which nothing was restored yet."""
        return self._loss if cell.store_history and not cell.silent else None

    async def is_for(self, cell: Cell, loss: SandboxLostError) -> bool:
        """Whether a cell that met a loss before it ran shall have the variables restored.

        Raises
        ------
        SandboxLostError
            When the user is to decide: says how.
        """
        is_meant = self._life.ended and cell.store_history and not cell.silent
        if self._mode == "off" or not is_meant or not await self._may_be_at_hand():
            return False
        if self._mode == "ask":
            raise SandboxLostError(
                f"{loss} %ivy restore brings back what its newest checkpoint has.",
                advice=loss.advice,
            )
        return True

    async def _may_be_at_hand(self) -> bool:
        """Whether a checkpoint of this life may be here, or on a disk that is kept."""
        if self._chat.copy.get("life") == self._life.id:
            return True
        if self._host is None or not self._reply:
            return False
        with suppress(IvyError):
            status = await self._host.lifecycle.status()
            return status.state not in END_STATES or status.resumes(monotonic_seconds())
        return False

    async def resume(
        self, run: CellRun, cell: Cell, sink: Sink, loss: SandboxLostError
    ) -> Outcome | None:
        """Restore before a cell; return its outcome when it must not run, else ``None``.

        Raises
        ------
        IvyError
            There was nothing to restore, which a loss tells; or the next cell can try again.
        """
        was_told, self._loss = loss is self._loss, loss
        restored = await self._bring_back(run, cell, sink, loss=loss, at=None)
        if isinstance(restored, Outcome):
            return restored
        if restored is None:
            self._loss = None
            if was_told:
                return None
            raise loss
        # Another checkpoint than the wanted one, which was not whole, is of no use to the cell.
        is_wanted = restored.sequence == int(self.summary.get("sequence", 0))
        restored.stale = self._life.cells_after(restored.number if is_wanted else 0)
        restored.named = sorted(names_in(cell.code) & set(restored.missing))
        self._show(restored, sink)
        if not restored.stale and not restored.named:
            return None
        run.keeps_variables = True
        return show_error(sink, SandboxLostError.__name__, restored.refusal(), "lost")

    async def restore(
        self, run: CellRun, cell: Cell, sink: Sink, *, at: int | None, rerun: bool
    ) -> Outcome | None:
        """Restore now, because the user wants it; run again what made the rest, if asked for.

        Raises
        ------
        UsageError
            There is no checkpoint, or none of that cell.
        """
        try:
            restored = await self._bring_back(run, cell, sink, loss=None, at=at)
        except SandboxLostError:  # noticed only now, and what the user wants to have mended
            self._of_session().forget()
            restored = await self._bring_back(run, cell, sink, loss=None, at=at)
        if isinstance(restored, Outcome):
            return restored
        if restored is None:
            which = "" if at is None else f" as old as cell {at}"
            where = "neither on the sandbox's disk nor on this machine; run the cells again"
            raise UsageError(f"There is no checkpoint{which} of this notebook, {where}.")
        if at is not None:  # what ran after it is undone; the copy is to follow
            self._life.end_with(restored.number)
            self._look_soon()
        restored.stale = self._life.cells_after(restored.number) if at is None else []
        self._show(restored, sink, is_rerun=rerun)
        return await self._rerun(run, restored, cell, sink) if rerun else None

    async def _bring_back(
        self, run: CellRun, cell: Cell, sink: Sink, *, loss: SandboxLostError | None, at: int | None
    ) -> Restored | Outcome | None:
        """Restore into the kernel there; ``None`` when there is no checkpoint."""
        host, before = self._of_session(), self._life.holder
        self.write_down()
        self._is_restoring = True
        try:
            route = await run.prepare(host.open_for(cell, sink))
            if isinstance(route, Outcome):
                return route
            found = await run.prepare(self._find(route, loss=loss, at=at))
            if found is None or isinstance(found, Outcome):
                return found
            kernel, summary, place, changed = found
            is_other = before.split("/")[0] != route.holder.split("/")[0]
            if loss is not None:
                ended = await self._set_up(run, route, cell, sink)
                if ended is not None:
                    return ended
            lock = self._chat.lock if is_other else {}
            lacking = await run.prepare(offer_packages(kernel, lock, self.ask))
            if isinstance(lacking, Outcome):
                return lacking
            wanted = {"do": "restore", "at": at, "partial": place != "its disk"}
            wanted["sequence"] = summary["sequence"]
            result = await run.prepare(kernel.work(wanted, timeout_seconds=RESTORE_SECONDS))
            if isinstance(result, Outcome):
                return result
        finally:
            self._is_restoring = False
            run.was_sent = False  # what was sent meanwhile was not the cell itself
        self._life.holder, self._loss, self.summary = route.holder, None, summary
        host.holds(route.holder)
        self._note_soon()
        restored = Restored.of(result, place=place, lacking=lacking, changed=changed)
        restored.cells = self._chat.cells_of(self._life.id)
        earlier = {n: why for n, why in self._missing.items() if n not in restored.names}
        self._missing = restored.missing = {**earlier, **restored.missing}
        if loss is not None:
            restored.what_ended = "The sandbox" if is_other else "The sandbox's Python"
        return restored

    async def _find(
        self, route: Route, *, loss: SandboxLostError | None, at: int | None
    ) -> tuple[LiveKernel, Json, str, list[str]] | None:
        """Return kernel, checkpoint, where it is, and what of it was changed; begin a life else."""
        kernel, place, changed = route.live, "its disk", []
        if kernel is None:
            return None
        try:
            await kernel.configure()
            asked = {"do": "index", "at": at, "to_restore": True}
            summary = await kernel.work(asked, timeout_seconds=QUESTION_SECONDS)
            copy, floor = self._chat.copy, self._life.floor if loss is not None else 0
            sequence = int(summary.get("sequence", 0))
            is_ours = loss is None or copy.get("life") == self._life.id
            is_newer = int(copy.get("sequence", 0)) > (sequence if sequence > floor else 0)
            if copy and is_ours and is_newer and at in (None, copy.get("number")):
                place = "the copy on this machine"
                keeper = self.keeper(self._of_session())
                changed = await keeper.put_back(self.checkpoints_directory)
                summary = {**self._chat.summary, **copy}
        except (WorkError, TamperedCheckpointError) as error:
            self._is_restoring = False
            self.configured(route.holder, self._reply or None, self.why_off)
            if loss is None:
                raise
            raise SandboxLostError(f"{loss} {error}", advice=loss.advice) from error
        if int(summary.get("sequence", 0)) > floor:
            return kernel, summary, place, changed
        self._is_restoring = False
        self.configured(route.holder, self._reply, self.why_off)
        return None

    def _of_session(self) -> RecoveryHost:
        if self._host is None:
            raise NoSandboxError("No session uses these checkpoints; run a cell first.")
        return self._host

    async def _set_up(self, run: CellRun, route: Route, cell: Cell, sink: Sink) -> Outcome | None:
        """Run the notebook's cells that are tagged ``ivy-setup``; return the first that failed."""
        for code in setup_cells(self._chat.record.path):
            own = Cell(code, store_history=False, allow_stdin=cell.allow_stdin)
            outcome = await self._of_session().run_on(run, route, own, sink)
            if outcome.fate != "succeeded":
                return outcome
        return None

    async def _rerun(
        self, run: CellRun, restored: Restored, cell: Cell, sink: Sink
    ) -> Outcome | None:
        """Run again, in order, the cells that made what is missing, and those that came after."""
        host = self._of_session()
        for number in restored.to_rerun(self._life.ended):
            kept = restored.cells.get(number)
            if kept is None:
                _note(sink, f"The code of cell {number} was not kept; run it yourself.")
                continue
            _note(sink, f"Cell {number} runs again.")
            own = replace(
                cell, code=kept.code, execution_count=number, cell_id=kept.cell_id, header={}
            )
            route = await run.prepare(host.open_for(own, sink))
            if isinstance(route, Outcome):
                return route
            outcome = await host.run_on(run, route, own, sink)
            self.ended(own, outcome)
            if outcome.fate != "succeeded":
                return outcome
        return None

    def _show(self, restored: Restored, sink: Sink, *, is_rerun: bool = False) -> None:
        bundle = None if is_rerun else restored.bundle()
        if bundle is None:
            _note(sink, restored.sentence())
        else:
            content: Json = {"data": bundle, "metadata": {}, "transient": {}}
            sink(Message("display_data", content))


def _note(sink: Sink, sentence: str) -> None:
    sink(Message("stream", {"name": "stderr", "text": f"[{sentence}]\n"}))
