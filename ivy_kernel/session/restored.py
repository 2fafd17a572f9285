"""What came back after a loss, in words; what a cell needs of it; what is set up before it."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ivy_kernel.errors import IvyError, WorkError
from ivy_kernel.models import Json, visible
from ivy_kernel.routes.base import LiveKernel
from ivy_kernel.session.describe import count_words
from ivy_kernel.session.notebook_record import KeptCell, own_names

RESTORE_TYPE = "application/vnd.ivy.restore+json"
"""MIME type of what came back after a loss, and what can be done about the rest."""

NAMED_AT_MOST = 8
QUESTION_SECONDS = 60.0
INSTALL_SECONDS = 1800.0

Ask = Callable[[str], Awaitable[bool]]
"""Asks the user a yes/no question."""


@dataclass(slots=True)
class Restored:
    """What came back after a loss.

    Parameters
    ----------
    number
        The cell after which the variables were so.
    names
        The variables that are back.
    missing
        Name of a variable that is not → ``why``, and the ``cell`` that made it.
    place
        Where the checkpoint was, in words.
    lacking
        Packages that are not there any more.
    stale
        Cells that ended after that one.
    named
        Missing variables that the cell needs for which it was restored.
    cells
        The code of the life's cells, by number.
    what_ended
        Empty when the user has asked for it.
    sequence
        The checkpoint's.
    others
        Variables that are there and not in the checkpoint.
    """

    number: int
    names: list[str]
    missing: dict[str, Json]
    place: str
    lacking: list[str] = field(default_factory=list)
    stale: list[int] = field(default_factory=list)
    named: list[str] = field(default_factory=list)
    cells: dict[int, KeptCell] = field(default_factory=dict)
    what_ended: str = ""
    sequence: int = 0
    others: list[str] = field(default_factory=list)

    @staticmethod
    def of(result: Json, *, place: str, lacking: list[str], changed: list[str]) -> Restored:
        """Read what the sandbox says; ``changed`` are variables whose copy was tampered with."""
        missing = {str(name): dict(about) for name, about in (result.get("missing") or {}).items()}
        for name in changed:
            about = missing.setdefault(name, {"cell": 0})
            about["why"] = "its copy on this machine was changed, and was not used"
        names = own_names(result.get("restored") or ())
        number, sequence = (int(result.get(name) or 0) for name in ("number", "sequence"))
        others = own_names(result.get("others") or ())
        return Restored(number, names, missing, place, lacking, sequence=sequence, others=others)

    def to_rerun(self, ended: Sequence[int]) -> list[int]:
        """Return the cells that make the rest, in the order in which they ran."""
        makers = {int(about.get("cell") or 0) for about in self.missing.values()} - {0}
        earlier = [number for number in ended if number in makers and number not in self.stale]
        return list(dict.fromkeys(earlier or sorted(makers - set(self.stale)))) + self.stale

    def sentence(self) -> str:
        """Return the one line that says what came back and what did not."""
        begin = f"{self.what_ended} had ended; restored" if self.what_ended else "Restored"
        count = count_words(len(self.names), "variable")
        parts = [f"{begin} {count} as they were after cell {self.number}, from {self.place}."]
        if self.missing:
            makers = sorted({int(each.get("cell") or 0) for each in self.missing.values()} - {0})
            parts.append(f"Not restored: {self._missing_words()}.")
            if makers:
                parts.append(f"{_cells(makers).capitalize()} made that.")
        if self.stale:
            parts.append(f"{_cells(self.stale).capitalize()} ran after that.")
        if self.others and not self.what_ended:  # else cells have just set them up
            parts.append(f"Not of that checkpoint, and as before: {self._other_words()}.")
        if self.to_rerun(()):
            which = "it" if len(self.to_rerun(())) == 1 else "them"
            parts.append(f"%ivy restore --rerun runs {which} again.")
        if self.lacking:
            some = ", ".join(map(visible, self.lacking[:NAMED_AT_MOST]))
            parts.append(f"Not there any more: {some}; %ivy packages --install installs them.")
        return " ".join(parts)

    def _missing_words(self) -> str:
        some = sorted(self.missing.items())[:NAMED_AT_MOST]
        shown = [missing_words(name, about) for name, about in some]
        more = len(self.missing) - len(shown)
        return ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")

    def _other_words(self) -> str:
        shown = ", ".join(map(visible, self.others[:NAMED_AT_MOST]))
        more = len(self.others) - NAMED_AT_MOST
        return shown + (f" and {more:,} more" if more > 0 else "")

    def refusal(self) -> str:
        """Return why the cell was not run for which this was restored."""
        if self.named:
            why = f"It needs {', '.join(map(visible, self.named))}, which could not be restored"
        else:
            why = f"The variables are as they were before {_cells(self.stale)} ran"
        return (
            f"{why}. Nothing of this cell was run. %ivy restore --rerun runs again what is "
            f"missing; then run this cell again."
        )

    def bundle(self) -> Json | None:
        """Return it as a display with what can be done; ``None`` when there is nothing to do."""
        actions = ["rerun"] if self.to_rerun(()) else []
        actions += ["install"] if self.lacking else []
        if not actions:
            return None
        kept = [self.cells.get(number) for number in self.to_rerun(sorted(self.cells))]
        facts = {
            "text": self.sentence(),
            "missing": self.missing,
            "cells": [cell.cell_id for cell in kept if cell is not None and cell.cell_id],
            "actions": actions,
        }
        return {"text/plain": f"[{self.sentence()}]", RESTORE_TYPE: facts}


def missing_words(name: str, about: Json) -> str:
    """Return a variable that was not restored, why, and the cell that made it."""
    cell = f", cell {about['cell']}" if about.get("cell") else ""
    return f"{visible(name)} ({visible(about.get('why', 'unknown'))}{cell})"


def _cells(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"cell {numbers[0]}"
    return f"cells {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


# What the notebook and its cells say --------------------------------------------------------------
SETUP_TAG = "ivy-setup"


def setup_cells(path: str) -> list[str]:
    """Return the code of the notebook's cells that are tagged ``ivy-setup``, as they were saved.

    Tags travel in the document only, so they are read from its file; none where it is not known.
    """
    if not path:
        return []
    try:
        cells = json.loads(Path(path).read_text("utf-8"))["cells"]
        return [
            "".join(cell["source"])
            for cell in cells
            if cell["cell_type"] == "code" and SETUP_TAG in cell["metadata"].get("tags", ())
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []


_NAME = re.compile(r"[^\W\d]\w*")


def missing_hint(reply: Json, missing: dict[str, Json]) -> str:
    """Return what a cell is told that has met a variable which was not restored; else nothing."""
    if reply.get("ename") != "NameError":
        return ""
    name = str(reply.get("evalue", "")).partition("'")[2].partition("'")[0]
    if name not in missing:
        return ""
    words = missing_words(name, missing[name])
    return f"{words} was not restored: %ivy restore --rerun makes it again."


def names_in(code: str) -> set[str]:
    """Return the names of variables that a cell may need from before it; rather too many.

    Left out are those that it sets itself first. What cannot be parsed counts as all its words.
    """
    plain, loaded = [], set()
    for line in code.splitlines():
        if line.lstrip()[:1] in ("%", "!", "?"):
            loaded.update(_NAME.findall(line))
            plain.append("")
        else:
            plain.append(line)
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        tree = compile("\n".join(plain), "cell", "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set(_NAME.findall(code))
    bound: set[str] = set()
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(statement.name)
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
                loaded.update({node.id} - bound)
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                loaded.update({node.target.id} - bound)
        if isinstance(statement, ast.Import | ast.ImportFrom):
            bound.update((a.asname or a.name).split(".")[0] for a in statement.names)
        elif isinstance(statement, ast.Assign):
            bound.update(each.id for each in statement.targets if isinstance(each, ast.Name))
    return loaded


async def offer_packages(kernel: LiveKernel, lock: Json, ask: Ask | None) -> list[str]:
    """Have packages installed again that are not there any more; return those that are not."""
    if not lock:
        return []
    with suppress(WorkError):
        there = await kernel.work({"do": "packages"}, timeout_seconds=QUESTION_SECONDS)
        lacking = lacking_packages(lock, there)
        if not lacking or ask is None:
            return lacking
        question = f"Packages that you had installed are not there: {', '.join(lacking)}. "
        wants = False
        with suppress(IvyError):  # nobody can be asked
            wants = await ask(f"{question}Install them again?")
        if wants:
            wanted = {"do": "install", "lock": lock}
            await kernel.work(wanted, timeout_seconds=INSTALL_SECONDS)
            there = await kernel.work({"do": "packages"}, timeout_seconds=QUESTION_SECONDS)
            lacking = lacking_packages(lock, there)
        return lacking
    return []


def lacking_packages(lock: Json, there: Json) -> list[str]:
    """Return what a lock has and a sandbox has not, in words such as ``numpy 2.1.0``.

    Parameters
    ----------
    lock, there
        Packages by the program that installs them, as the sandbox tells them.
    """
    found = []
    for kind in ("pip", "conda", "r"):
        wanted, has = lock.get(kind), there.get(kind) or {}
        if not isinstance(wanted, dict):  # the sandbox has told it
            continue
        for name, version in sorted(wanted.items()):
            if has.get(name) != version:
                found.append(f"{name} {version}")
    return found
