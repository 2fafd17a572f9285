"""The journal of outputs: nothing wrong and nothing twice, wherever its writer was killed."""

from __future__ import annotations

import json
import os
import random
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ivy_kernel.agent.outputs import CellOutputs
from ivy_kernel.session import journal_reader
from ivy_kernel.session.journal_reader import (
    JournalReader,
    journal_directory,
    journal_file,
    notebook_of,
    prune_journals,
)
from ivy_kernel.session.output_journal import OutputJournal

Json = dict[str, Any]

CODE = "ab" * 32


def text_of(cell: Json) -> str:
    """All text of a cell's streams."""
    return "".join(o["text"] for o in cell["outputs"] if o["output_type"] == "stream")


def say(journal: OutputJournal, run: str, text: str, name: str = "stdout") -> None:
    """One stream message."""
    journal.message(run, "stream", {"name": name, "text": text})


def image(size_bytes: int, mark: str, display_id: str = "") -> Json:
    """The content of a display of that size."""
    content = {"data": {"image/png": mark * size_bytes}, "metadata": {}}
    return {**content, "transient": {"display_id": display_id} if display_id else {}}


def whole_run(journal: OutputJournal) -> None:
    """Three cells of every kind of output; the third clears what it has shown."""
    journal.begin("r1", "one", CODE, 1)
    for number in range(4):
        say(journal, "r1", f"line {number} é 🙂\n")
    journal.message("r1", "display_data", image(40, "a", "d"))
    journal.end("r1", "succeeded", 1, {"ivy": {"receipt": {"hash": "x"}}})
    journal.begin("r2", "two", CODE, 2)
    journal.message("r2", "update_display_data", image(30, "b", "d"))
    error = {"ename": "ValueError", "evalue": "no", "traceback": ["a\n", "b"]}
    journal.message("r2", "error", error)
    journal.end("r2", "failed", 2, {})
    journal.begin("r3", "three", CODE, 3)
    say(journal, "r3", "gone")
    journal.message("r3", "clear_output", {"wait": True})
    say(journal, "r3", "stays", "stderr")
    journal.message("r3", "execute_result", {**image(9, "c"), "execution_count": 3})
    journal.end("r3", "succeeded", 3, {})


def shown(cells: dict[str, Json]) -> Json:
    """What a notebook shows of cells: no times, no offsets."""
    kept = ("run", "code", "number", "outputs", "is_running", "fate", "metadata")
    return {cell: {name: run[name] for name in kept} for cell, run in cells.items()}


def test_a_reader_puts_cells_together_as_a_notebook_has_them() -> None:
    """Streams joined, cleared ones gone, and another cell's display updated."""
    journal = OutputJournal("k", "/somewhere/a notebook.ipynb")
    whole_run(journal)
    cells, _ = JournalReader(journal_file("k")).cells()
    journal.close()
    first = cells["one"]
    assert (first["run"], first["code"], first["number"]) == ("r1", CODE, 1)
    assert (first["fate"], first["is_running"]) == ("succeeded", False)
    assert first["metadata"] == {"ivy": {"receipt": {"hash": "x"}}}
    assert text_of(first) == "".join(f"line {number} é 🙂\n" for number in range(4))
    assert first["outputs"][1]["data"] == {"image/png": "b" * 30}
    assert [o["output_type"] for o in cells["two"]["outputs"]] == ["error"]
    third = [o.get("text") or o["data"] for o in cells["three"]["outputs"]]
    assert third == ["stays", {"image/png": "c" * 9}]
    assert notebook_of(journal_file("k")) == "/somewhere/a notebook.ipynb"


def test_cut_at_any_byte_no_output_is_wrong_or_doubled() -> None:
    """A cut line is none; the next writer ends it, and goes on behind it."""
    journal = OutputJournal("whole")
    whole_run(journal)
    journal.close()
    whole = journal_file("whole").read_bytes()
    states: list[Json] = [{}]  # after each line, all that was so far
    reader = JournalReader(journal_file("growing"))
    growing = journal_file("growing")
    growing.touch(0o600)
    for line in whole.splitlines(keepends=True):
        with growing.open("ab") as file:
            file.write(line)
        states.append(shown(reader.cells()[0]))
    dice = random.Random(11)
    for cut in sorted({0, 1, len(whole) - 1, *dice.sample(range(len(whole)), 150)}):
        path = journal_file(f"cut-{cut}")
        path.touch(0o600)
        path.write_bytes(whole[:cut])
        lines = whole[:cut].count(b"\n")
        assert shown(JournalReader(path).cells()[0]) == states[lines], cut
        after = OutputJournal(f"cut-{cut}")
        after.begin("new", "four", CODE, 4)
        say(after, "new", "after the cut")
        after.end("new", "succeeded", 4)
        after.close()
        # A line that was whole but for its line feed counts now; nothing else may.
        is_whole = whole[cut : cut + 1] == b"\n"
        found = shown(JournalReader(path).cells()[0])
        assert text_of(found.pop("four")) == "after the cut", cut
        assert found == _ended(states[lines + is_whole]), cut
        path.unlink()


def _ended(cells: Json) -> Json:
    """The same cells when nothing runs any more."""
    return {
        name: {**cell, "is_running": False, "fate": cell["fate"] or "unknown"}
        for name, cell in cells.items()
    }


def test_a_killed_writer_leaves_what_it_had_said() -> None:
    """SIGKILL in the middle of a flood: each line is whole, in order, and the cell is over."""
    program = (
        "import time\n"
        "from ivy_kernel.session.output_journal import OutputJournal\n"
        "journal = OutputJournal('killed')\n"
        f"journal.begin('r', 'cell', '{CODE}', 1)\n"
        "for number in range(10_000_000):\n"
        "    journal.message('r', 'stream', {'name': 'stdout', 'text': f'{number}\\n'})\n"
        "    time.sleep(0.0001)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program])
    reader = JournalReader(journal_file("killed"))
    try:
        deadline = time.monotonic() + 30
        while not (found := reader.cells()[0]) or len(text_of(found["cell"])) < 5000:
            assert process.poll() is None
            assert time.monotonic() < deadline
        assert found["cell"]["is_running"]
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    _, before = reader.cells()
    cell = reader.cells()[0]["cell"]
    assert (cell["is_running"], cell["fate"]) == (False, "unknown")
    numbers = text_of(cell).splitlines()
    assert numbers == [str(number) for number in range(len(numbers))]
    assert reader.cells(before) == ({}, before)


def test_reading_again_tells_what_is_new_alone() -> None:
    """An offset of an earlier call, or of a reader that is gone, leaves out what did not change."""
    journal = OutputJournal("k")
    whole_run(journal)
    reader = JournalReader(journal_file("k"))
    _, offset = reader.cells()
    assert reader.cells(offset) == ({}, offset)
    say(journal, "r2", "later, from a thread")
    for other in (reader, JournalReader(journal_file("k"))):
        cells, after = other.cells(offset)
        assert list(cells) == ["two"]
        assert text_of(cells["two"]) == "later, from a thread"
        assert after > offset
    assert set(reader.cells(after + 1_000_000)[0]) == {"one", "two", "three"}  # of another journal
    journal.close()


def test_a_cell_that_runs_again_starts_over() -> None:
    """Also by the same run, whose messages were fetched anew; the run before says nothing more."""
    journal = OutputJournal("k")
    journal.begin("r1", "cell", CODE, 1)
    say(journal, "r1", "part")
    journal.begin("r1", "cell", CODE, 1)
    say(journal, "r1", "whole")
    reader = JournalReader(journal_file("k"))
    assert text_of(reader.cells()[0]["cell"]) == "whole"
    journal.begin("r2", "cell", CODE, 2)
    say(journal, "r1", "late")
    say(journal, "unknown", "of nobody")
    say(journal, "r2", "new")
    cell = reader.cells()[0]["cell"]
    assert (cell["run"], text_of(cell), cell["is_running"]) == ("r2", "new", True)
    journal.begin("r3", "", CODE, 3)  # no cell of a notebook
    say(journal, "r3", "of a console")
    assert set(reader.cells()[0]) == {"cell"}
    journal.close()
    assert reader.cells()[0]["cell"]["is_running"] is False


def test_above_the_limit_finished_cells_go_oldest_first(
    until_compacted: Callable[[OutputJournal], None],
) -> None:
    """What counts no more goes before them; a reader that was there misses nothing after it."""
    journal = OutputJournal("k", "notebook.ipynb", limit_bytes=100_000)
    reader = JournalReader(journal_file("k"))
    offset = 0
    journal.begin("long", "long", CODE, 1)
    say(journal, "long", "still ")
    for number in range(40):
        journal.begin(f"r{number}", f"cell {number}", CODE, number)
        journal.message(f"r{number}", "display_data", image(9000, str(number % 10), "d"))
        journal.end(f"r{number}", "succeeded", number)
        until_compacted(journal)
        cells, offset = reader.cells(offset)
        assert f"cell {number}" in cells
        assert journal_file("k").stat().st_size <= 110_000
    say(journal, "long", "here")
    cells, _ = JournalReader(journal_file("k")).cells()
    assert text_of(cells["long"]) == "still here"
    finished = [int(name.split()[1]) for name in cells if name != "long"]
    assert finished == list(range(finished[0], 40))
    assert len(finished) >= 3
    assert notebook_of(journal_file("k")) == "notebook.ipynb"
    # Displays can be updated as before, and one cell that shows the same again and again fits in.
    journal.message("r39", "update_display_data", image(10, "u", "d"))
    journal.begin("film", "film", CODE, 41)
    for number in range(60):
        journal.message("film", "clear_output", {"wait": True})
        journal.message("film", "display_data", image(9000, str(number % 10)))
        until_compacted(journal)
    journal.end("film", "succeeded", 41)
    cells, _ = reader.cells(offset)
    assert cells["film"]["outputs"][0]["data"] == {"image/png": "9" * 9000}
    assert cells["cell 39"]["outputs"][0]["data"] == {"image/png": "u" * 10}
    journal.close()


@pytest.fixture
def until_compacted() -> Callable[[OutputJournal], None]:
    """Waits for a compaction that is under way."""

    def wait(journal: OutputJournal) -> None:
        thread = journal._compaction
        if thread is not None:
            thread.join(20)

    return wait


def test_a_cell_without_room_says_that_something_is_missing() -> None:
    """What is there stays; a part does not look like the whole, and the next cell is kept."""
    journal = OutputJournal("k", limit_bytes=100_000)
    journal.begin("r1", "large", CODE, 1)
    for mark in "abcdefghijklmnop":
        journal.message("r1", "display_data", image(12_000, mark))
    journal.end("r1", "succeeded", 1)
    journal.begin("r2", "next", CODE, 2)
    say(journal, "r2", "all")
    cells, _ = JournalReader(journal_file("k")).cells()
    outputs = cells["large"]["outputs"]
    assert "missing here" in outputs[-1]["text"]
    shown_images = [output["data"]["image/png"][0] for output in outputs[:-1]]
    assert shown_images == list("abcdefghijklmnop")[: len(shown_images)]
    assert shown_images
    assert text_of(cells["next"]) == "all"
    assert journal_file("k").stat().st_size < 105_000
    journal.close()


def test_a_full_disk_reaches_no_cell_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The part line that a full disk leaves is taken back, and the cell tells what is missing."""
    journal = OutputJournal("k")
    journal.begin("r1", "cell", CODE, 1)
    say(journal, "r1", "before ")
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: _fill_up(write, fd, data))
        say(journal, "r1", "not kept")
    say(journal, "r1", "nor this")
    journal.end("r1", "succeeded", 1)
    text = text_of(JournalReader(journal_file("k")).cells()[0]["cell"])
    assert text.startswith("before ")
    assert "No space left" in text
    assert "not kept" not in text
    assert "nor this" not in text
    journal.close()


def _fill_up(write: Callable[[int, bytes], int], descriptor: int, data: bytes) -> int:
    """Writes a part, then nothing more."""
    if len(data) > 10:
        return write(descriptor, data[:10])
    raise OSError(28, os.strerror(28))


@pytest.mark.parametrize(
    "content",
    [
        {"name": "stdout", "text": "half a pair \ud83d"},
        {"name": "stdout", "text": "a number", "extra": 10**30},
        {"name": "stdout", "text": "none", "extra": float("nan")},
    ],
)
def test_odd_content_is_kept_and_is_json(content: Json) -> None:
    """Nothing that a message can hold stops the journal, or makes an answer no browser reads."""
    journal = OutputJournal("k")
    journal.begin("r", "cell", CODE, 1)
    journal.message("r", "stream", content)
    odd = {"data": {"application/json": content}, "metadata": {}}
    journal.message("r", "display_data", odd)
    cells, _ = JournalReader(journal_file("k")).cells()
    assert text_of(cells["cell"]) == content["text"]
    json.dumps(cells, allow_nan=False)
    journal.close()


def test_it_is_private_and_one_that_others_could_read_is_not_used() -> None:
    """Mode 0600 from the first byte; a link or an open file is neither written nor read."""
    journal = OutputJournal("k")
    journal.begin("r", "cell", CODE, 1)
    path = journal_file("k")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.chmod(0o644)
    assert JournalReader(path).cells() == ({}, 0)
    assert notebook_of(path) == ""
    journal.close()
    before = path.read_bytes()
    again = OutputJournal("k")
    again.begin("r", "cell", CODE, 1)
    again.end("r", "succeeded", 1)
    assert path.read_bytes() == before
    link = journal_file("link")
    link.symlink_to(path)
    assert JournalReader(link).cells() == ({}, 0)
    assert Path(journal_file("../../up")).parent == journal_directory()


def test_journals_of_kernels_that_are_gone_are_removed_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of long ago, and the oldest of too many; never one that is written."""
    living = OutputJournal("living")
    living.begin("r", "cell", CODE, 1)
    for number, name in enumerate(("old", "first", "second")):
        journal = OutputJournal(name)
        journal.begin("r", "cell", CODE, 1)
        say(journal, "r", "x" * 1000)
        journal.close()
        os.utime(journal_file(name), (number, time.time() - 100 + number))
    os.utime(journal_file("living"), (0, 1000))
    os.utime(journal_file("old"), (0, 1000))
    prune_journals()
    left = {path.stem for path in journal_directory().iterdir()}
    assert left == {"living", "first", "second"}
    monkeypatch.setattr(journal_reader, "ALL_LIMIT_BYTES", 0)
    prune_journals(all_limit_bytes=2000)
    left = {path.stem for path in journal_directory().iterdir()}
    assert left == {"living", "second"}
    living.close()


def test_what_is_read_is_what_the_messages_make() -> None:
    """Thousands of messages, read in pieces: the same as put together at once."""
    dice = random.Random(3)
    journal, expected = OutputJournal("k"), CellOutputs()
    journal.begin("r", "cell", CODE, 1)
    reader = JournalReader(journal_file("k"))
    for _ in range(3000):
        kind, content = dice.choice(_MESSAGES)
        journal.message("r", kind, content)
        expected.take(kind, dict(content))
        if dice.random() < 0.02:
            assert reader.cells()[0]["cell"]["outputs"] == expected.outputs
    assert reader.cells()[0]["cell"]["outputs"] == expected.outputs
    journal.close()


_MESSAGES: list[tuple[str, Json]] = [
    *[("stream", {"name": name, "text": f"{name}\n"}) for name in ("stdout", "stdout", "stderr")],
    ("display_data", image(3, "x", "d")),
    ("update_display_data", image(3, "y", "d")),
    ("update_display_data", image(3, "z", "d")),
    ("clear_output", {"wait": True}),
    ("clear_output", {"wait": False}),
    ("execute_result", {"data": {"text/plain": "1"}, "metadata": {}, "execution_count": 1}),
    ("comm_msg", {"data": {}}),
]
