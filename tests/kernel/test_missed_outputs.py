"""Which outputs a kernel brings into its journal, and whose agent it claims: without a sandbox."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ivy_kernel.kernel.base import ShownCells
from ivy_kernel.kernel.missed_outputs import MissedCell, newest_unknown, read_cells
from ivy_kernel.models import Json
from ivy_kernel.routes.events import KeptCell
from ivy_kernel.session.journal_reader import JournalReader, journal_file
from ivy_kernel.session.kernel_registry import NotebookClaim
from ivy_kernel.session.output_limit import OutputLimit


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directories of our own, and a notebook."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "one.ipynb"))
    monkeypatch.setattr(NotebookClaim, "held", {})
    write(tmp_path / "one.ipynb", {"a": "x = 1", "b": "y = 2"})
    return tmp_path


def write(path: Path, cells: dict[str, str]) -> None:
    """Write a notebook."""
    rows = [{"id": key, "cell_type": "code", "source": [code]} for key, code in cells.items()]
    path.write_text(json.dumps({"cells": rows}))


# Whose agent is claimed ---------------------------------------------------------------------------
def claim(kernel: str, has_agents: Callable[[str], bool] = lambda _: True) -> str:
    """The name in sandboxes that a kernel gets; it ends then."""
    key = NotebookClaim(f"/runtime/kernel-{kernel}.json", kernel * 20, has_agents).take()
    NotebookClaim.held.clear()  # as the end of its process does
    return key


def ran(kernel: str, cell_id: str, code: str = "x = 1") -> None:
    """Have a kernel run a cell."""
    shown = ShownCells(f"/runtime/kernel-{kernel}.json")
    shown.begin(code, cell_id, {"header": {"msg_id": f"{kernel}-{cell_id}"}}, 1)
    shown.journal.close()


def test_the_next_kernel_of_a_notebook_claims_the_agent() -> None:
    """Its file has a cell that ran there; without an agent there is nothing to claim."""
    assert claim("a") == "a" * 20
    ran("a", "a")
    assert claim("b") == "a" * 20
    assert claim("c", lambda _: False) == "c" * 20


def test_a_kernel_that_is_restarted_keeps_its_name(home: Path) -> None:
    """Also one that has claimed an earlier one's, and whose notebook was changed meanwhile."""
    claim("a")
    ran("a", "a")
    claim("b")
    (home / "one.ipynb").unlink()
    assert claim("b") == "a" * 20


def test_a_new_notebook_of_the_same_name_claims_nothing(home: Path) -> None:
    """As ``Untitled.ipynb`` is again and again."""
    claim("a")
    ran("a", "a")
    write(home / "one.ipynb", {"new": "print()"})
    assert claim("b") == "b" * 20


def test_cells_without_ids_are_told_by_their_code(home: Path) -> None:
    """Notebooks of before nbformat 4.5: a page gives them other ids each time."""
    claim("a")
    ran("a", "given by the page", "x = 1")
    rows = [{"cell_type": "code", "source": "x = 1"}]
    (home / "one.ipynb").write_text(json.dumps({"cells": rows}))
    assert claim("b") == "a" * 20


def test_a_renamed_notebook_claims_its_agent_and_a_copy_does_not(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy has the same cells, and its original is there."""
    claim("a")
    ran("a", "a")
    (home / "two.ipynb").write_text((home / "one.ipynb").read_text())
    monkeypatch.setenv("JPY_SESSION_NAME", str(home / "two.ipynb"))
    assert claim("b") == "b" * 20
    (home / "one.ipynb").unlink()
    assert claim("c") == "a" * 20
    # Once: the next kernel has it by the new name alone.
    monkeypatch.setenv("JPY_SESSION_NAME", str(home / "three.ipynb"))
    (home / "three.ipynb").write_text((home / "two.ipynb").read_text())
    assert claim("d") == "d" * 20


def test_a_living_kernel_of_another_process_keeps_its_claim() -> None:
    """Two servers with the same notebook: the second kernel has a name of its own."""
    ran("a", "a")
    program = (
        "import sys\n"
        "from ivy_kernel.session.kernel_registry import NotebookClaim\n"
        "print(NotebookClaim('/runtime/kernel-a.json', 'a' * 20, bool).take(), flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as living:
        assert living.stdin is not None
        assert living.stdout is not None
        assert living.stdout.readline().decode().strip() == "a" * 20
        assert claim("b") == "b" * 20
        living.stdin.close()
        living.wait(20)
    assert claim("c") == "a" * 20


def test_a_claim_that_cannot_be_read_is_none(home: Path) -> None:
    """Whatever the file holds, the kernel has its own name, and starts."""
    claim("a")
    ran("a", "a")
    (path,) = (home / "data" / "ivy" / "claims").glob("*.json")
    for text in ("", "[]", "{}", '{"session_key": "../../x", "kernel_id": "a"}', "[" * 10_000):
        path.write_text(text)
        assert claim("b") == "b" * 20


# Which cells --------------------------------------------------------------------------------------
def kept(run: str, cell_id: str, start: int = 0, end: int | None = 10, at: float = 0.0) -> KeptCell:
    """A cell as a sandbox tells of it."""
    return KeptCell(run, cell_id, 1, "00", "log", start, end, "ok", at)


def known(run: str, *, ended: str | None = "x", started: str = "2026-11-30T10:00:00Z") -> Json:
    """A cell as a journal has it."""
    return {"run": run, "ended": ended, "started": started}


def test_only_the_newest_run_of_a_cell_is_missed() -> None:
    """What ran again by now has other outputs."""
    cells = [kept("1", "a"), kept("2", "b"), kept("3", "a"), kept("4", "")]
    assert [cell.run for cell in newest_unknown(cells, {})] == ["2", "3"]


def test_what_a_journal_has_to_its_end_is_not_missed() -> None:
    """One without an end is: its kernel was killed in the middle."""
    cells = [kept("1", "a"), kept("2", "b")]
    journals = {"a": known("1"), "b": known("2", ended=None)}
    assert [cell.run for cell in newest_unknown(cells, journals)] == ["2"]


def test_a_cell_that_ran_again_elsewhere_is_not_set_back() -> None:
    """A run that the sandbox does not know of counts, if it is the later one."""
    journals = {"a": known("9", started="2026-11-30T10:00:00Z")}
    noon = 1_796_040_000.0  # 2026-11-30T12:00:00Z
    assert newest_unknown([kept("1", "a", at=noon - 9_000)], journals) == []
    assert len(newest_unknown([kept("1", "a", at=noon)], journals)) == 1


# Their outputs ------------------------------------------------------------------------------------
def line(run: str, msg_type: str, content: Json, channel: str = "iopub") -> bytes:
    """A record of the log."""
    header = {"msg_id": f"{run}-{msg_type}-{json.dumps(content)}", "msg_type": msg_type}
    record = {"c": channel, "h": header, "p": {"msg_id": run}, "m": {}, "d": content}
    return json.dumps(record).encode() + b"\n"


def said(run: str, *texts: str) -> bytes:
    """A whole cell."""
    return b"".join(
        [
            *(line(run, "stream", {"name": "stdout", "text": text}) for text in texts),
            line(run, "execute_reply", {"status": "ok", "execution_count": 7}, "shell"),
            line(run, "status", {"execution_state": "idle"}),
        ]
    )


class Log:
    """A log of which the first bytes are not kept any more."""

    def __init__(self, data: bytes, kept_from: int = 0, slice_bytes: int = 100) -> None:
        self.data = data
        self.kept_from = kept_from
        self.slice_bytes = slice_bytes

    async def read(self, offset: int, limit_bytes: int) -> tuple[int, bytes]:
        """Read a slice."""
        began = max(offset, self.kept_from)
        return began, self.data[began : began + min(limit_bytes, self.slice_bytes)]


def journal_of(shown: ShownCells) -> dict[str, Any]:
    """What the journal has."""
    return JournalReader(journal_file("k")).cells()[0]


def texts(cell: Json, name: str) -> str:
    """The text of a stream."""
    return "".join(each["text"] for each in cell["outputs"] if each.get("name") == name)


async def test_cells_are_read_out_of_a_log_that_they_share() -> None:
    """In slices cut anywhere; what others have said between is left out."""
    first, other, second = said("1", "a", "b"), said("9", "other"), said("2", "c")
    log = Log(first + other + second)
    shown = ShownCells("/runtime/kernel-k.json")
    cells = [
        MissedCell(kept("1", "x", 0, len(first)), shown, OutputLimit(0)),
        MissedCell(kept("2", "y", len(first), len(log.data)), shown, OutputLimit(0)),
    ]
    await read_cells(cells, len(log.data), log.read)
    journal = journal_of(shown)
    shown.journal.close()
    assert {key: texts(cell, "stdout") for key, cell in journal.items()} == {"x": "ab", "y": "c"}
    assert [cell["fate"] for cell in journal.values()] == ["succeeded", "succeeded"]
    assert [cell["number"] for cell in journal.values()] == [7, 7]


async def test_what_is_not_kept_any_more_is_told_in_its_cell() -> None:
    """After a flood beyond the limits: the rest is there, with a note of what is not."""
    whole = said("1", *(f"line {number}\n" for number in range(100)))
    log = Log(whole, kept_from=len(whole) // 2)
    shown = ShownCells("/runtime/kernel-k.json")
    await read_cells(
        [MissedCell(kept("1", "x", 0, len(whole)), shown, OutputLimit(0))], len(whole), log.read
    )
    (cell,) = journal_of(shown).values()
    shown.journal.close()
    assert texts(cell, "stdout").endswith("line 98\nline 99\n")
    assert not texts(cell, "stdout").startswith("line 0\n")
    assert f"{len(whole) // 2:,} bytes" in texts(cell, "stderr")
    assert cell["fate"] == "succeeded"


async def test_a_log_that_is_gone_is_told_too() -> None:
    """Nothing of it can be read; the cell has its fate all the same."""
    shown = ShownCells("/runtime/kernel-k.json")
    missed = MissedCell(kept("1", "x", 0, 500), shown, OutputLimit(0))
    await read_cells([missed], 500, Log(b"").read)
    (cell,) = journal_of(shown).values()
    shown.journal.close()
    assert "500 bytes" in texts(cell, "stderr")
    assert cell["fate"] == "succeeded"


async def test_a_long_text_is_limited_as_it_would_have_been() -> None:
    """Head and tail, with the count of what is between; a clear begins anew."""
    shown = ShownCells("/runtime/kernel-k.json")
    long = [f"{number:09d}\n" for number in range(1_000)]
    whole = (
        line("1", "stream", {"name": "stdout", "text": "before\n" * 1_000})
        + line("1", "clear_output", {"wait": False})
        + said("1", *long)
    )
    cell = MissedCell(kept("1", "x", 0, len(whole)), shown, OutputLimit(2_000))
    await read_cells([cell], len(whole), Log(whole, slice_bytes=10_000).read)
    (found,) = journal_of(shown).values()
    shown.journal.close()
    text = texts(found, "stdout")
    assert text.startswith("".join(long[:100]))
    assert text.endswith("".join(long[-100:]))
    assert "before" not in text
    assert len(text) == 2_000
    assert "8,000 bytes of output are not shown" in texts(found, "stderr")
