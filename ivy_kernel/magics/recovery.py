"""``%ivy checkpoint``, ``%ivy restore``, ``%ivy packages``: what outlives the sandbox, by hand."""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ivy_kernel.errors import IvyError, SandboxError, UsageError, WorkError
from ivy_kernel.models import Cell, Json, Message, Sink, visible
from ivy_kernel.routes.base import LiveKernel
from ivy_kernel.routes.events import KeptCell, succeeded
from ivy_kernel.session.describe import count_words
from ivy_kernel.session.recovery import Recovery
from ivy_kernel.session.restored import lacking_packages
from ivy_kernel.session.runs import RunRecord, new_run_id, submit_run
from ivy_kernel.session.session import CHECKPOINTS_OFF, Session

CHECKPOINT_SECONDS = 3600.0
KERNELSPEC = {"name": "ivy-sandbox", "display_name": "Ivy Sandbox", "language": "python"}
PACKAGES_SECONDS = 60.0
INSTALL_SECONDS = 1800.0


class RecoveryOwner(Protocol):
    """The notebook whose cell holds such a command; see `ivy_kernel.magics.commands`."""

    def session(self) -> Session:
        """Return the session that the notebook's cells use."""

    async def confirm(self, question: str) -> bool:
        """Ask the user a yes/no question."""


class DetachOwner(RecoveryOwner, Protocol):
    """The notebook whose cells are handed over."""

    @property
    def number(self) -> int:
        """The number of the notebook's last cell before the next one."""

    def expect(self, cells: Sequence[KeptCell]) -> None:
        """Keep what cells will say that the sandbox runs by itself."""


def _recovery(session: Session) -> Recovery:
    if session.recovery is None:
        raise UsageError(CHECKPOINTS_OFF)
    return session.recovery


def _kernel(session: Session) -> LiveKernel:
    recovery, kernel = _recovery(session), session.live
    if recovery.why_off:
        raise WorkError(f"This sandbox keeps no checkpoints: {recovery.why_off}")
    if kernel is None or not recovery.checkpoints_directory:
        raise SandboxError(
            "No kernel of this notebook is known to run in the sandbox; run a cell first."
        )
    return kernel


async def run_checkpoint(owner: RecoveryOwner, options: argparse.Namespace, sink: Sink) -> None:
    """Write a checkpoint now, and say what is in it. Called for ``%ivy checkpoint``."""
    session = owner.session()
    recovery, kernel = _recovery(session), _kernel(session)
    wanted = {"do": "checkpoint", "now": True}
    summary = await kernel.work(wanted, timeout_seconds=CHECKPOINT_SECONDS)
    recovery.summary = summary
    lines = []
    missing: dict[str, Json] = summary.get("missing") or {}
    for name, about in sorted(missing.items()):
        cell = f" (cell {about['cell']})" if about.get("cell") else ""
        lines.append(f"Not in it: {visible(name)}{cell}: {visible(about.get('why', 'unknown'))}")
    try:
        copied = await recovery.keeper(session).bring(kernel)
    except IvyError as error:
        lines.append(f"It has no copy on this machine yet: {error}")
    else:
        if copied is not None and copied.left_out:
            names = ", ".join(map(visible, copied.left_out))
            lines.append(f"Too large for the copy on this machine (checkpoint_copy_bytes): {names}")
    first = f"Checkpoint {summary.get('sequence')}: {recovery.chat.words(summary)}."
    _print(sink, [first, *lines])


async def run_restore(owner: RecoveryOwner, options: argparse.Namespace, sink: Sink) -> None:
    """Restore variables now. Called for ``%ivy restore``."""
    session = owner.session()

    def show(message: Message) -> None:
        if message.msg_type != "error" or not _is_ours(message):
            sink(message)

    cell = Cell("", allow_stdin=True)
    outcome = await session.restore(cell, show, at=options.at, rerun=options.rerun)
    if outcome.reply["status"] == "error":
        raise SandboxError(str(outcome.reply.get("evalue", "")))


def _is_ours(message: Message) -> bool:
    """Whether an error comes from us, and not from a cell that runs again in the sandbox."""
    return message.header is None


async def run_packages(owner: RecoveryOwner, options: argparse.Namespace, sink: Sink) -> None:
    """List the packages that changed, or install them again. Called for ``%ivy packages``."""
    session = owner.session()
    recovery, kernel = _recovery(session), _kernel(session)
    there = await kernel.work({"do": "packages"}, timeout_seconds=PACKAGES_SECONDS)
    lock = recovery.chat.lock
    lacking = lacking_packages(lock, there) if lock else []
    if not options.install:
        _print(sink, _package_lines(there, lacking))
        return
    if not lacking:
        _print(sink, ["All packages that this notebook had are there."])
        return
    names = ", ".join(map(visible, lacking))
    if not options.yes and not await owner.confirm(f"Install in the sandbox: {names}?"):
        _print(sink, ["Nothing was installed."])
        return
    wanted = {"do": "install", "lock": lock}
    told = await kernel.work(wanted, timeout_seconds=INSTALL_SECONDS)
    lines = told_packages(told)
    there = await kernel.work({"do": "packages"}, timeout_seconds=PACKAGES_SECONDS)
    lacking = lacking_packages(lock, there)
    if lacking:
        lines.append(f"Not there yet: {', '.join(map(visible, lacking))}")
    else:
        lines.append("All packages that this notebook had are there.")
    _print(sink, lines)


def told_packages(reply: Json) -> list[str]:
    """Return what an installation says of each package, a line for each."""
    lines = []
    told = reply.get("packages")
    for one in told if isinstance(told, list) else ():
        if not isinstance(one, dict):
            continue
        why = f": {visible(one['why'])}" if one.get("why") else ""
        lines.append(visible(f"{one.get('name')} {one.get('version')}: {one.get('fate')}") + why)
    return lines


def _package_lines(there: Json, lacking: list[str]) -> list[str]:
    kinds = {"pip": "pip", "conda": "conda", "r": "R"}
    counts = [
        f"{count_words(len(there[kind]), 'package')} by {word}"
        for kind, word in kinds.items()
        if there.get(kind)
    ]
    lines = [f"Python {visible(there.get('python', '?'))}; {', '.join(counts) or 'no packages'}"]
    changed: dict[str, list[object]] = there.get("changed") or {}
    for name, pair in sorted(changed.items()):
        before, after = (visible(one) if one else "not there" for one in pair)
        lines.append(f"changed since the sandbox began: {visible(name)}: {before} → {after}")
    if lacking:
        names = ", ".join(map(visible, lacking))
        lines.append(f"had before, and not there: {names}; %ivy packages --install installs them")
    return lines


def checkpoint_line(session: Session) -> str:
    """Return the line of ``%ivy status`` about checkpoints."""
    recovery = session.recovery
    if recovery is None:
        return "checkpoints: off (setting checkpoints)"
    if recovery.why_off:
        return f"checkpoints: off ({recovery.why_off})"
    return f"checkpoint: {recovery.chat.words(recovery.summary)}"


def _print(sink: Sink, lines: list[str]) -> None:
    sink(Message("stream", {"name": "stdout", "text": "\n".join(lines) + "\n"}))


# Cells of an open notebook ------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class HandedCells:
    """Cells of an open notebook that are handed over.

    Parameters
    ----------
    run_id, name
        The run's id, and the notebook's name.
    number
        The number of the cell before the first.
    cells
        Id, source, and whether an error lets the run go on.
    """

    run_id: str
    name: str
    number: int
    cells: tuple[tuple[str, str, bool], ...]

    @property
    def kept(self) -> list[KeptCell]:
        """The cells, as the agent's log will name them."""
        return [
            KeptCell(
                run=f"{self.run_id}-{index}",
                cell_id=cell_id,
                number=self.number + 1 + index,
                code=hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest(),
                log="",
                start=0,
                end=None,
                fate="",
            )
            for index, (cell_id, source, _) in enumerate(self.cells)
        ]


def read_cells(text: str, *, number: int) -> HandedCells:
    """Return the cells that ``%ivy detach`` is given.

    Parameters
    ----------
    text
        Base64 of JSON: ``{"cells": [[id, source, allows_error], ...], "name": …}``.
    number
        The number of the cell before the first.

    Raises
    ------
    UsageError
        When it is not that.
    """
    try:
        value = json.loads(base64.b64decode(text, validate=True))
        cells = tuple((str(a), str(b), c is True) for a, b, c in value["cells"] if str(b).strip())
    except (ValueError, LookupError, TypeError, RecursionError):
        raise UsageError(
            "%ivy detach takes base64 of JSON, as JupyterLab's command Run Remaining Cells in the "
            "Sandbox makes it. Nothing was run."
        ) from None
    if not cells:
        raise UsageError("%ivy detach: there is no cell with code. Nothing was run.")
    return HandedCells(new_run_id(), str(value.get("name", ""))[:200], number, cells)


async def hand_over(session: Session, handed: HandedCells, sink: Sink) -> RunRecord:
    """Have the notebook's own kernel in the sandbox run cells by itself.

    Raises
    ------
    IvyError
        As `submit_run`.
    """
    cells: list[Json] = [
        {
            "cell_type": "code",
            "execution_count": None,
            "id": cell_id,
            "metadata": {"tags": ["raises-exception"]} if allows_error else {},
            "outputs": [],
            "source": source,
        }
        for cell_id, source, allows_error in handed.cells
    ]
    recovery = session.recovery
    record = await submit_run(
        session,
        {
            "cells": cells,
            "metadata": {"kernelspec": KERNELSPEC},
            "nbformat": 4,
            "nbformat_minor": 5,
        },
        [(cell_id, at, allows) for at, (cell_id, _, allows) in enumerate(handed.cells)],
        sink,
        run_id=handed.run_id,
        name=handed.name,
        notebook_id=recovery.chat.record.notebook_id if recovery else f"run-{handed.run_id}",
        number=handed.number,
        ends_agent=False,
    )
    if recovery is not None:
        # What becomes of them is not awaited: after a loss they count among what has run.
        for number, (cell_id, source, _) in enumerate(handed.cells, handed.number + 1):
            cell = Cell(source, execution_count=number, cell_id=cell_id)
            recovery.ended(cell, succeeded())
    return record


async def run_detach(owner: DetachOwner, options: argparse.Namespace, sink: Sink) -> None:
    """Hand cells over, and say so. Called for ``%ivy detach``."""
    handed = read_cells(options.cells, number=owner.number)
    session = owner.session()
    owner.expect(handed.kept)  # before they are sent: the first may speak at once
    record = await hand_over(session, handed, sink)
    count = count_words(record.cells, "cell")
    _print(
        sink,
        [
            f"Run {record.run_id}: the sandbox runs {count} from now on, without this notebook; "
            f"jupyter ivy runs tells how far it is. Cells that you run meanwhile wait behind."
        ],
    )
