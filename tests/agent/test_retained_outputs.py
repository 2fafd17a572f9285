"""What the agent keeps of what it has said: in memory, on disk, and where each cell is in it."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from far_side import BareRunner, Far, kill, route_over
from waiting import eventually

from ivy_kernel.agent import retained_log
from ivy_kernel.agent.message_log import CellIndex, MessageLog
from ivy_kernel.agent.retained_log import DiskLog, output_directory
from ivy_kernel.routes.agent.frames import Inbox, to_kept_cells
from ivy_kernel.routes.events import AgentOpened, KeptCell, KeptOutputs

BARE = ("-I", "-S")


def kept_of(far: Far) -> KeptOutputs:
    """What the route's agent has kept."""
    kept = far.seen(AgentOpened)[-1].kept
    assert kept is not None
    return kept


async def text_of_cell(kept: KeptOutputs, cell: KeptCell) -> str:
    """The stdout of a cell, read again from the agent's log."""
    offset, data = cell.start, b""
    while offset < (cell.end or 0):
        began, part = await kept.read_kept(offset)
        assert began == offset
        assert part
        data += part
        offset += len(part)
    return text_in(data, cell.run)


def text_in(data: bytes, run: str) -> str:
    """The stdout of one cell in a piece of the log."""
    records = Inbox().add(0, data[: data.rindex(b"\n") + 1])
    return "".join(
        record["d"]["text"]
        for record in records
        if record["c"] == "iopub"
        and record["h"]["msg_type"] == "stream"
        and record["p"]["msg_id"] == run
    )


async def test_what_was_acknowledged_can_be_read_again(place: Path) -> None:
    """Each cell's messages, by its place in the log, also for a client that comes later."""
    runner = BareRunner(sys.executable, BARE, place)
    async with route_over(runner, place, session_key="same") as far:
        for number in (1, 2, 3):
            ran = await far.run(f"print('cell {number}' * 1000)", execution_count=number)
            assert ran.fate == "succeeded"
        assert (await far.run("1/0", execution_count=4)).fate == "failed"
        await far.run("print('hidden')", store_history=False)
        await far.route.close(keep=True)
        async with route_over(runner, place, session_key="same") as later:
            await later.route.open()
            kept = kept_of(later)
            cells, _ = await kept.kept_cells()
            assert [cell.number for cell in cells] == [1, 2, 3, 4]
            assert [cell.fate for cell in cells] == ["ok", "ok", "ok", "error"]
            for cell in cells[:3]:
                assert await text_of_cell(kept, cell) == f"cell {cell.number}" * 1000 + "\n"
            # Reading acknowledges nothing, and what is said from now on comes as ever.
            assert (await later.run("print('on')")).text == "on\n"


async def test_the_disk_has_all_of_it_when_the_agent_is_gone(place: Path) -> None:
    """Killed without a chance to write, it leaves the whole of each cell that had ended."""
    runner = BareRunner(sys.executable, BARE, place)
    options: dict[str, Any] = {"session_key": "one", "notebook": "the-notebook"}
    async with route_over(runner, place, **options) as far:
        for number in (1, 2):
            await far.run(f"print('cell {number}' * 5000)", execution_count=number)
        agent = int((await far.run("import os; os.getppid()", execution_count=3)).result)
        directory = place / ".ivy" / "the-notebook" / "outputs"
        await kill(agent)
        rows = [json.loads(line) for line in (directory / "cells.jsonl").read_text().splitlines()]
        cells = to_kept_cells(rows)
        assert [(cell.number, cell.fate) for cell in cells] == [(1, "ok"), (2, "ok"), (3, "ok")]
        (log,) = directory.glob("log-*")
        assert log.name == f"log-{cells[0].log}-{0:016d}"
        for cell in cells[:2]:
            text = text_in(log.read_bytes()[cell.start : cell.end], cell.run)
            assert text == f"cell {cell.number}" * 5000 + "\n"
        for path in (directory.parent, directory):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert stat.S_IMODE(log.stat().st_mode) == 0o600


async def test_a_cell_under_way_is_on_the_disk_soon(place: Path) -> None:
    """What a running cell has printed can be read there about a second later."""
    runner = BareRunner(sys.executable, BARE, place)
    async with route_over(runner, place, notebook="n") as far:
        running = far.begin("import time; print('so far', flush=True); time.sleep(60)")
        directory = place / ".ivy" / "n" / "outputs"
        await eventually(
            lambda: b"so far" in b"".join(log.read_bytes() for log in directory.glob("log-*")),
            "the output on the disk",
        )
        (cell,) = to_kept_cells([json.loads((directory / "cells.jsonl").read_text())])
        assert (cell.run, cell.end, cell.fate) == (running.message_id, None, "")
        await far.route.interrupt_request(running.message_id)
        await running.end()


def lines(count: int) -> list[bytes]:
    """Records of the same size."""
    return [b'{"c":"agent","d":{"n":%06d}}\n' % number for number in range(count)]


def test_memory_keeps_a_limit_and_the_disk_the_rest(tmp_path: Path) -> None:
    """Acknowledged, it is kept up to a size; before that it is read from the files."""
    log = MessageLog(1 << 20, kept_bytes=200_000)
    log.store = DiskLog(tmp_path / "n" / "outputs", "nonce", 0)
    whole = b"".join(lines(20_000))
    for line in lines(20_000):
        log.append(line)
        log.trim(log.end)
    assert log.retained_bytes == 0
    position, read = 0, b""
    while position < log.end:
        began, part = log.read_kept(position, 50_000)
        assert (began, bool(part)) == (position, True)
        read += part
        position += len(part)
    assert read == whole
    log.store.close()
    log.store = None
    began, _ = log.read_kept(0, 10)
    assert log.end - 400_000 < began <= log.end - 100_000


def test_what_is_not_acknowledged_is_kept_as_before(tmp_path: Path) -> None:
    """The limit above which output is dropped counts what no client has, and nothing else."""
    log = MessageLog(1_000, kept_bytes=1 << 20)
    log.append(b"x" * 900 + b"\n")
    assert not log.has_room(200)
    log.trim(log.end)
    assert log.has_room(200)
    assert log.read_kept(0, 1 << 20) == (0, b"x" * 900 + b"\n")


def test_above_the_limit_of_the_disk_the_oldest_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader is told by the offset that the beginning is not kept any more."""
    monkeypatch.setattr(retained_log, "SEGMENT_BYTES", 10_000)
    monkeypatch.setattr(retained_log, "DISK_LIMIT_BYTES", 50_000)
    directory = tmp_path / "n" / "outputs"
    earlier = DiskLog(directory, "earlier", 0)
    earlier.append(b"y" * 30_000)
    earlier.close()
    os.utime(next(directory.glob("log-earlier-*")), (1, 1))
    log = MessageLog(1 << 20)
    log.store = DiskLog(directory, "nonce", 0)
    for line in lines(10_000):
        log.append(line)
        log.trim(log.end)
    sizes = [path.stat().st_size for path in directory.glob("log-*")]
    assert sum(sizes) <= 50_000
    assert not list(directory.glob("log-earlier-*"))
    whole = b"".join(lines(10_000))
    began, part = log.read_kept(0, 1 << 20)
    log.store.close()
    assert began > log.end - 60_000
    assert part == whole[began : began + len(part)]


def test_an_index_that_has_grown_keeps_the_newest_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole rows: a notebook may be in use for years."""
    monkeypatch.setattr(retained_log, "INDEX_LIMIT_BYTES", 1_000)
    directory = tmp_path / "n" / "outputs"
    for agent in ("one", "two"):
        store = DiskLog(directory, agent, 0)
        for number in range(100):
            store.index(b'{"id":"%s %d"}\n' % (agent.encode(), number))
        store.close()
    rows = [json.loads(row)["id"] for row in (directory / "cells.jsonl").read_text().splitlines()]
    assert rows[-101:] == ["one 99", *(f"two {number}" for number in range(100))]
    assert len(rows) < 140


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_disk_that_cannot_be_written_costs_nothing_else(tmp_path: Path) -> None:
    """The log goes on in memory, and no cell hears of it."""
    tmp_path.chmod(0o500)
    _works_without(tmp_path / "n" / "outputs")


def test_a_disk_that_is_in_the_way_costs_nothing_else(tmp_path: Path) -> None:
    """As where a file of the user's has the directory's name."""
    (tmp_path / "n").write_text("a file of the user's")
    _works_without(tmp_path / "n" / "outputs")


def _works_without(directory: Path) -> None:
    log = MessageLog(1 << 20, kept_bytes=1 << 20)
    log.store = DiskLog(directory, "nonce", 0)
    cells = CellIndex(log, "nonce")
    cells.began("run", {"ivy": {"cell": "c", "number": 1, "code": "00"}})
    log.append(b"record\n")
    cells.ended("run")
    cells.flush_due(1e9)
    assert log.store.is_failed
    assert log.read_kept(0, 100) == (0, b"record\n")
    assert [cell["end"] for cell in cells.newest()] == [7]


def test_what_a_cell_leaves_running_belongs_to_it() -> None:
    """A thread that prints after its cell has ended moves the cell's end."""
    log = MessageLog(1 << 20, kept_bytes=1 << 20)
    cells = CellIndex(log, "nonce")
    cells.began("run", {"ivy": {"cell": "c", "number": 1, "code": "00"}})
    log.append(b"at once\n")
    cells.ended("run", "ok")
    log.append(b"of a thread\n")
    cells.heard("run")
    assert [cell["end"] for cell in cells.newest()] == [log.end]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../up", ".hidden", "x" * 65, "a\n"])
def test_only_a_plain_name_names_a_directory(name: str) -> None:
    """Whatever an option says, nothing is written outside of the notebook's own directory."""
    assert output_directory("/work", name) is None
    assert output_directory("/work", "0a1b") == Path("/work/.ivy/0a1b/outputs")


@pytest.mark.parametrize(
    "row",
    [
        *(None, 7, {}, {"id": "a"}, {"id": "a", "start": -1}, {"id": "a", "start": 5, "end": 4}),
        {"id": "a" * 300, "start": 0, "end": 1},
        {"id": "a", "start": 1 << 70, "end": None},
        {"id": "a", "start": 0, "end": "soon"},
        {"id": "", "start": 0, "end": 1},
    ],
    ids=str,
)
def test_a_row_that_makes_no_sense_is_left_out(row: Any) -> None:
    """The list comes from a sandbox; the sound rows beside it are taken."""
    sound = {"id": "b", "start": 3, "end": None, "cell": 7, "number": True, "fate": None}
    (cell,) = to_kept_cells([row, sound])
    assert (cell.run, cell.start, cell.end, cell.cell_id, cell.fate) == ("b", 3, None, "", "")
