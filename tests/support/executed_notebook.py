"""An executed notebook with made-up records, sealed as after a run, and the place where it ran."""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ivy_kernel.session.receipt_check import Finding, SeenFile, check, look_around
from ivy_kernel.session.receipts import canonical, digest, line_of, note_reply, seal

KEY = bytes(range(32))
LOCK = {
    "python": "3.11.9",
    "pip": {"numpy": "2.1.0", "pandas": "2.3.1", "scipy": "1.14.0"},
    "conda": {"openssl": "3.3.1"},
    "r": {"ggplot2": "3.5.1"},
}
CELLS = 6


@dataclass
class Case:
    """An executed notebook, and the place where it ran.

    Parameters
    ----------
    notebook
        The sealed notebook.
    folder
        The files of the sandbox.
    lines
        The record on its disk.
    lock
        What is installed there now.
    """

    notebook: dict[str, Any]
    folder: Path
    lines: list[str] | None
    lock: dict[str, Any] | None

    async def look(self, path: str) -> SeenFile:
        """A file of the folder."""
        place = self.folder / path
        if not place.is_file():
            return SeenFile()
        data = place.read_bytes()
        return SeenFile(hashlib.sha256(data).hexdigest(), len(data))

    async def record_lines(self, place: str) -> list[str] | None:
        """The lines of the record."""
        assert place == "place"
        return self.lines

    async def lock_of(self) -> dict[str, Any] | None:
        """What is installed."""
        return self.lock

    async def findings(self, *, key: bytes | None = KEY) -> list[Finding]:
        """Everything that a check finds."""
        looker = _Looker(self)
        return check(self.notebook, key=key, seen=await look_around(self.notebook, looker))

    @property
    def cells(self) -> list[dict[str, Any]]:
        """The cells of the notebook."""
        return self.notebook["cells"]


class _Looker:
    def __init__(self, case: Case) -> None:
        self.look, self.record_lines, self.lock = case.look, case.record_lines, case.lock_of


def used(path: Path, root: Path) -> dict[str, Any]:
    """A file as a record has it."""
    data = path.read_bytes()
    name = str(path.relative_to(root))
    return {"path": name, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


def reply_of(record: dict[str, Any]) -> dict[str, Any]:
    """The reply to a cell that carries its record."""
    told = {**record, "hash": digest(line_of(record))}
    return {
        "parent_header": {"msg_id": f"run-{record['number']}"},
        "metadata": {"ivy": {"receipt": told}},
        "content": {"status": "ok"},
    }


def executed(folder: Path) -> Case:
    """A notebook of six cells that read and wrote files, sealed as after a run."""
    folder.mkdir(exist_ok=True)
    cells: list[dict[str, Any]] = [
        {"cell_type": "markdown", "id": "words", "metadata": {}, "source": "# Words"}
    ]
    lines: list[str] = []
    previous = ""
    for number in range(1, CELLS + 1):
        (folder / f"in-{number}.csv").write_text(f"a,b\n{number},{number * number}\n" * 5)
        (folder / f"out-{number}.txt").write_text(f"result {number}\n")
        source = f"x{number} = read('in-{number}.csv')\nprint(x{number})"
        outputs = [
            {"output_type": "stream", "name": "stdout", "text": f"value {number}.5\n"},
            {
                "output_type": "execute_result",
                "execution_count": number,
                "data": {"text/plain": f"{number * 3}"},
                "metadata": {},
            },
        ]
        cell = {
            "cell_type": "code",
            "id": f"cell-{number}",
            "metadata": {"tags": ["t"]},
            "execution_count": number,
            "source": source,
            "outputs": outputs,
        }
        record = {
            "v": 1,
            "previous": previous,
            "number": number,
            "cell": "",
            "code": digest(source),
            "fate": "ok",
            "started": f"2026-11-30T10:00:{number:02}.000Z",
            "ended": f"2026-11-30T10:00:{number:02}.500Z",
            "sandbox": {"chat": "chat-1", "host": "h", "boot": "b", "kernel": "1-aa"},
            "python": LOCK["python"],
            "platform": "Linux 6 x86_64",
            "packages": digest(canonical(LOCK)),
            "reads": [used(folder / f"in-{number}.csv", folder)],
            "writes": [used(folder / f"out-{number}.txt", folder)],
            "incomplete": "",
        }
        previous = digest(line_of(record))
        lines.append(line_of(record))
        note_reply(cell, reply_of(record))
        cells.append(cell)
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    assert seal(notebook, owner="owner", key=KEY, lock=LOCK, place="place") is not None
    return Case(json.loads(json.dumps(notebook)), folder, lines, copy.deepcopy(LOCK))
