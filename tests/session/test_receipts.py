"""The receipt of a notebook: sealed after a run, and every change of it found and named."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from executed_notebook import CELLS, KEY, LOCK, Case, executed, reply_of, used

from ivy_kernel.session.receipt_check import Finding, check
from ivy_kernel.session.receipts import code_cells, digest, line_of, note_reply, seal, seal_of


@pytest.fixture
def case(tmp_path: Path) -> Case:
    """An executed notebook."""
    return executed(tmp_path)


def changed(findings: list[Finding]) -> list[tuple[str, int, str]]:
    """What differs: subject, cell and name of each."""
    return [(one.subject, one.cell, one.name) for one in findings if one.kind == "changed"]


# What is intact -----------------------------------------------------------------------------------
async def test_an_untouched_notebook_has_no_findings(case: Case) -> None:
    """Also after a way through a file, with sources and outputs as lists of lines."""
    assert await case.findings() == []
    for cell in case.cells[1:]:
        cell["source"] = cell["source"].splitlines(keepends=True)
        cell["outputs"][0]["text"] = cell["outputs"][0]["text"].splitlines(keepends=True)
    assert await case.findings() == []


async def test_words_between_the_cells_may_change(case: Case) -> None:
    """Markdown, tags and empty cells are no part of what ran."""
    case.cells[0]["source"] = "# Other words"
    case.cells[1]["metadata"]["tags"] = []
    case.cells.append({"cell_type": "markdown", "id": "m", "metadata": {}, "source": "more"})
    empty = {"cell_type": "code", "id": "e", "metadata": {}, "source": " \n", "outputs": []}
    case.cells.append(empty)
    assert await case.findings() == []


async def test_a_file_is_what_its_last_use_left(case: Case) -> None:
    """An input that a later cell wrote over has to be what that cell wrote."""
    (case.folder / "in-1.csv").write_text("written over")
    notebook = case.notebook
    last = notebook["cells"][-1]
    record = dict(last["metadata"]["ivy"]["receipt"])
    record.pop("hash")
    record["writes"] = [used(case.folder / "in-1.csv", case.folder)]
    note_reply(last, reply_of(record))
    case.lines = [*(case.lines or [])[:-1], line_of(record)]
    seal(notebook, owner="owner", key=KEY, lock=LOCK, place="place")
    assert await case.findings() == []


async def test_a_hash_that_came_with_a_later_cell_counts(case: Case) -> None:
    """A large file has no hash in its own cell's record, and one in the next."""
    notebook = copy.deepcopy(case.notebook)
    cells = [one.cell for one in code_cells(notebook)]
    previous, lines = "", []
    for place, cell in enumerate(cells):
        record = dict(cell["metadata"]["ivy"]["receipt"])
        record.pop("hash")
        record["previous"] = previous
        if place == 0:
            record["reads"][0]["sha256"] = None
        if place == 1:
            late = used(case.folder / "in-1.csv", case.folder)
            record["late"] = [{**late, "of": previous}]
        previous = digest(line_of(record))
        lines.append(line_of(record))
        note_reply(cell, reply_of(record))
    seal(notebook, owner="owner", key=KEY, lock=LOCK, place="place")
    again = Case(notebook, case.folder, lines, case.lock)
    assert await again.findings() == []
    (case.folder / "in-1.csv").write_bytes(
        (case.folder / "in-1.csv").read_bytes().replace(b"a", b"c")
    )
    assert changed(await again.findings()) == [("file", 1, "in-1.csv")]


# What cannot be told ------------------------------------------------------------------------------
async def test_a_key_on_another_machine_is_told(case: Case) -> None:
    """It is no sign of a change, and not passed over."""
    (found,) = await case.findings(key=None)
    assert (found.kind, found.subject) == ("unknown", "signature")
    assert "another machine" in found.words


async def test_another_sandbox_is_told(case: Case) -> None:
    """Where neither record nor files are, nothing was tampered with."""
    case.lines = None
    for path in case.folder.iterdir():
        path.unlink()
    findings = await case.findings()
    assert {one.kind for one in findings} == {"unknown"}
    assert {one.subject for one in findings} == {"record", "file"}


def test_a_notebook_without_any_receipt_is_told() -> None:
    """In one finding."""
    cell = {"cell_type": "code", "id": "a", "metadata": {}, "source": "1", "outputs": []}
    (found,) = check({"cells": [cell], "metadata": {}}, key=KEY)
    assert (found.kind, found.subject) == ("unknown", "receipt")


def test_what_jupyterlab_leaves_is_checked_without_a_seal(tmp_path: Path) -> None:
    """Cells have records there and the notebook no seal: text and outputs are checked."""
    case = executed(tmp_path)
    del case.notebook["metadata"]["ivy"]
    assert {(one.kind, one.subject) for one in check(case.notebook, key=None)} == {
        ("unknown", "receipt")
    }
    case.cells[2]["source"] += "\n"
    assert changed(check(case.notebook, key=None)) == [("cell text", 2, "")]


def test_a_run_over_two_sandboxes_is_no_change(tmp_path: Path) -> None:
    """The record begins anew in the second; the seal knows where."""
    case = executed(tmp_path)
    previous = ""
    for cell in case.cells[4:]:
        record = dict(cell["metadata"]["ivy"]["receipt"])
        record.pop("hash")
        record["previous"] = previous
        previous = digest(line_of(record))
        note_reply(cell, reply_of(record))
    seal(case.notebook, owner="owner", key=KEY, lock=LOCK, place="place")
    (found,) = check(case.notebook, key=KEY)
    assert (found.kind, found.subject, found.cell) == ("note", "chain", 4)


def test_a_lock_of_another_moment_is_not_sealed(tmp_path: Path) -> None:
    """Only the one whose hash the last record names; without it the check says so."""
    case = executed(tmp_path)
    made = seal(case.notebook, owner="owner", key=KEY, lock={**LOCK, "python": "3.12.0"})
    assert made is not None
    assert made["packages"] is None
    (found,) = check(case.notebook, key=KEY)
    assert (found.kind, found.subject) == ("unknown", "version")


def test_what_an_earlier_run_has_left_is_taken_away() -> None:
    """A cell whose reply tells nothing, and a run without records, keep no old receipt."""
    cell = {
        "cell_type": "code",
        "id": "a",
        "source": "1",
        "outputs": [],
        "metadata": {"ivy": {"run": "old"}},
    }
    note_reply(cell, {"metadata": {}, "parent_header": {}})
    assert cell["metadata"] == {}
    notebook = {"cells": [cell], "metadata": {"ivy": {"receipt": {"v": 1}}}}
    assert seal(notebook, owner="o", key=KEY, lock=None) is None
    assert notebook["metadata"] == {}


# What was tampered with ---------------------------------------------------------------------------
Tampering = Callable[[Case, random.Random], tuple[str, int, str]]


def record_in(case: Case, number: int) -> dict[str, Any]:
    """The record of a cell."""
    return case.cells[number]["metadata"]["ivy"]["receipt"]


def _input_byte(case: Case, dice: random.Random) -> tuple[str, int, str]:
    number = dice.randint(1, CELLS)
    name = dice.choice([f"in-{number}.csv", f"out-{number}.txt"])
    data = bytearray((case.folder / name).read_bytes())
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    (case.folder / name).write_bytes(data)
    return "file", number, name


def _input_size(case: Case, dice: random.Random) -> tuple[str, int, str]:
    number = dice.randint(1, CELLS)
    path = case.folder / f"in-{number}.csv"
    if dice.random() < 0.5:
        path.write_bytes(path.read_bytes() + b"\n")
    else:
        path.unlink()
    return "file", number, path.name


def _version(case: Case, dice: random.Random) -> tuple[str, int, str]:
    section = dice.choice(["pip", "conda", "r", "python", "new"])
    assert case.lock is not None
    if section == "python":
        case.lock["python"] = f"3.12.{dice.randrange(99)}"
        return "version", 0, "Python"
    if section == "new":
        name = f"package{dice.randrange(99)}"
        case.lock["pip"][name] = "1"
        return "version", 0, name
    name = dice.choice(sorted(case.lock[section]))
    case.lock[section][name] = f"9.{dice.randrange(99)}"
    return "version", 0, name


def _sealed_version(case: Case, dice: random.Random) -> tuple[str, int, str]:
    packages = seal_of(case.notebook)["packages"]
    name = dice.choice(sorted(packages["pip"]))
    packages["pip"][name] = f"9.{dice.randrange(99)}"
    return "version", 0, name


def _cell_text(case: Case, dice: random.Random) -> tuple[str, int, str]:
    number = dice.randint(1, CELLS)
    text = case.cells[number]["source"]
    at = dice.randrange(len(text))
    case.cells[number]["source"] = text[:at] + dice.choice("abc \n") * 2 + text[at:]
    return "cell text", number, ""


def _order(case: Case, dice: random.Random) -> tuple[str, int, str]:
    one, other = sorted(dice.sample(range(1, CELLS + 1), 2))
    cells = case.cells
    cells[one], cells[other] = cells[other], cells[one]
    return "order", one, ""


def _output(case: Case, dice: random.Random) -> tuple[str, int, str]:
    number = dice.randint(1, CELLS)
    outputs = case.cells[number]["outputs"]
    how = dice.randrange(4)
    if how == 0:
        outputs[0]["text"] = outputs[0]["text"].replace(".5", f".{dice.randrange(51, 99)}")
    elif how == 1:
        outputs[1]["data"]["text/plain"] = str(dice.randrange(100, 999))
    elif how == 2:
        del outputs[dice.randrange(2)]
    else:
        outputs.append({"output_type": "stream", "name": "stderr", "text": "more"})
    return "outputs", number, ""


def _swapped_outputs(case: Case, dice: random.Random) -> tuple[str, int, str]:
    one, other = dice.sample(range(1, CELLS + 1), 2)
    first, second = case.cells[one], case.cells[other]
    first["outputs"], second["outputs"] = second["outputs"], first["outputs"]
    return "outputs", one, ""


def _record_field(case: Case, dice: random.Random) -> tuple[str, int, str]:
    number = dice.randint(1, CELLS)
    record = record_in(case, number)
    name = dice.choice(["number", "fate", "started", "sandbox", "python", "reads", "incomplete"])
    if name == "reads":
        record[name][0]["sha256"] = "0" * 64
    else:
        record[name] = "something else"
    return "record", number, ""


def _rehashed_record(case: Case, dice: random.Random) -> tuple[str, int, str]:
    number = dice.randint(1, CELLS)
    record = record_in(case, number)
    record["ended"] = f"2026-12-{dice.randint(1, 31):02}"
    record["hash"] = digest(line_of(record))
    return "record", number, ""


def _head(case: Case, dice: random.Random) -> tuple[str, int, str]:
    seal_of(case.notebook)["head"] = digest(str(dice.random()))
    return "chain", 0, ""


def _removed_line(case: Case, dice: random.Random) -> tuple[str, int, str]:
    assert case.lines is not None
    number = dice.randint(1, CELLS)
    del case.lines[number - 1]
    return "record", number, ""


def _changed_line(case: Case, dice: random.Random) -> tuple[str, int, str]:
    assert case.lines is not None
    number = dice.randint(1, CELLS)
    line = json.loads(case.lines[number - 1])
    line["started"] = f"2026-10-{dice.randint(1, 31):02}"
    case.lines[number - 1] = line_of(line)
    return "record", number, ""


def _removed_cell(case: Case, dice: random.Random) -> tuple[str, int, str]:
    number = dice.randint(1, CELLS)
    del case.cells[number]
    return "cell", 0, f"cell-{number}"


def _added_cell(case: Case, dice: random.Random) -> tuple[str, int, str]:
    number = dice.randint(1, CELLS + 1)
    made = copy.deepcopy(case.cells[1])
    made["id"] = dice.choice(["new", "cell-1"])
    made["metadata"] = {}
    case.cells.insert(number, made)
    place = number if made["id"] == "new" or number > 1 else 2
    return "cell", place, ""


def _removed_record(case: Case, dice: random.Random) -> tuple[str, int, str]:
    number = dice.randint(1, CELLS)
    del case.cells[number]["metadata"]["ivy"]
    return "record", number, ""


def _forged(case: Case, dice: random.Random) -> tuple[str, int, str]:
    """Everything is made to fit again, by someone who has not the key."""
    number = dice.randint(1, CELLS)
    case.cells[number]["outputs"][0]["text"] = "forged\n"
    seal(case.notebook, owner="owner", key=dice.randbytes(32), lock=LOCK, place="place")
    return "signature", 0, ""


TAMPERINGS: list[Tampering] = [
    *(_input_byte, _input_size, _version, _sealed_version, _cell_text, _order, _output),
    *(_swapped_outputs, _record_field, _rehashed_record, _head, _removed_line, _changed_line),
    *(_removed_cell, _added_cell, _removed_record, _forged),
]
TRIES = 12
"""Of each kind: together more than two hundred."""


@pytest.mark.parametrize("tampering", TAMPERINGS, ids=lambda one: one.__name__.strip("_"))
async def test_every_tampering_is_named(tampering: Tampering, tmp_path: Path) -> None:
    """With the subject, and the cell, file or package; 200 and more, none of them passed over."""
    untouched = executed(tmp_path)
    for number in range(TRIES):
        case = copy.deepcopy(untouched)
        executed(tmp_path)  # its files, as they were
        expected = tampering(case, random.Random(f"{tampering.__name__} {number}"))
        findings = await case.findings()
        assert expected in changed(findings) or expected in [
            (subject, cell, "") for subject, cell, _ in changed(findings)
        ], (number, expected, findings)
        assert all(one.words for one in findings)


@pytest.mark.parametrize(
    "tampering",
    [_cell_text, _order, _output, _swapped_outputs, _record_field, _head, _removed_cell],
    ids=lambda one: one.__name__.strip("_"),
)
def test_most_tamperings_are_named_without_key_and_sandbox(
    tampering: Tampering, tmp_path: Path
) -> None:
    """On a machine that has the notebook alone."""
    for number in range(TRIES):
        case = executed(tmp_path)
        expected = tampering(case, random.Random(f"{tampering.__name__} {number}"))
        assert expected in changed(check(case.notebook, key=None)), (number, expected)


async def test_a_changed_field_is_named_with_both_values(case: Case) -> None:
    """Where the sandbox still has the record."""
    record_in(case, 3)["fate"] = "error"
    named = [one for one in await case.findings() if one.subject == "record"]
    assert [(one.cell, one.recorded, one.found) for one in named][:1] == [(3, '"ok"', '"error"')]
    assert "fate" in named[0].words


def test_no_finding_tells_the_right_signature(tmp_path: Path) -> None:
    """It would make what was forged look true."""
    case = executed(tmp_path)
    right = seal_of(case.notebook)["signature"]
    seal_of(case.notebook)["signature"] = "0" * 64
    findings = check(case.notebook, key=KEY)
    assert changed(findings) == [("signature", 0, "")]
    assert right not in repr(findings)


@pytest.mark.parametrize(
    "metadata",
    [
        {"ivy": []},
        {"ivy": {"receipt": {"v": 2, "cells": []}}},
        {"ivy": {"receipt": {"v": 1, "cells": [["a"]]}}},
        {"ivy": {"receipt": {"v": 1, "cells": [[1, 2, 3, 4]]}}},
        {"ivy": {"receipt": {"v": 1, "cells": {"a": 1}, "signature": 5}}},
        {"ivy": {"receipt": {"v": 1, "cells": [], "signature": "\ud800", "breaks": 7}}},
    ],
)
async def test_a_receipt_of_any_form_is_read_without_a_fault(
    metadata: dict[str, Any], case: Case
) -> None:
    """It comes from anyone; what it is not is told."""
    case.notebook["metadata"] = metadata
    case.cells[1]["metadata"]["ivy"] = {"receipt": {"reads": [{"path": 5}, 7], "late": [3]}}
    case.cells[2]["metadata"]["ivy"] = {"receipt": {"v": {}, "reads": {"path": "x"}}}
    case.cells[3]["outputs"] = [{"output_type": "display_data", "data": 5}]
    case.cells[4]["outputs"] = 5
    assert check(case.notebook, key=KEY) != []
