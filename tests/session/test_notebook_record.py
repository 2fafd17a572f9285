"""What this machine keeps of a notebook: keys, cells, and the copy of a checkpoint."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ivy_kernel.errors import TamperedCheckpointError
from ivy_kernel.models import Cell
from ivy_kernel.routes.agent.calls import work_answer
from ivy_kernel.session.checkpoint_copies import CheckpointCopies, CopyKeeper
from ivy_kernel.session.notebook_record import (
    CELLS_KEPT,
    KeptCell,
    Life,
    NotebookRecord,
    notebook_path,
)
from ivy_kernel.session.recovery import Recovery
from ivy_kernel.session.restored import Restored, lacking_packages, names_in, setup_cells

CHAT = ("local", "chat-1")


def test_keys_are_kept_by_notebook_and_chat_in_a_private_file(tmp_path: Path) -> None:
    """Each is 32 random bytes, the same for a later process, and another one for another chat."""
    record = NotebookRecord(str(tmp_path / "one.ipynb"))
    keys = [record.key, record.chat(CHAT).key, record.chat(("local", "chat-2")).key]
    assert [len(key) for key in keys] == [32, 32, 32]
    assert len(set(keys)) == 3
    again = NotebookRecord(str(tmp_path / "one.ipynb"))
    assert [again.key, again.chat(CHAT).key] == keys[:2]
    assert NotebookRecord(str(tmp_path / "two.ipynb")).key not in keys
    assert stat.S_IMODE(record.file.stat().st_mode) == 0o600


def test_two_processes_do_not_lose_each_others_changes(tmp_path: Path) -> None:
    """A record that was read earlier merges what it changes into the file."""
    one, two = (NotebookRecord(str(tmp_path / "n.ipynb")) for _ in range(2))
    one.keep_session_key("abc")
    two.chat(CHAT).keep(lock={"pip": {"a": "1"}})
    again = NotebookRecord(str(tmp_path / "n.ipynb"))
    assert again.session_key == "abc"
    assert again.chat(CHAT).lock == {"pip": {"a": "1"}}


def test_the_newest_code_of_cells_is_kept_within_limits() -> None:
    """A number that ran again has its newest code; the oldest cells are dropped."""
    chat = NotebookRecord(kernel="k").chat(CHAT)
    chat.add_cells([KeptCell(1, "a", "x = 1", "L"), KeptCell(2, "b", "y = 2", "L")])
    chat.add_cells([KeptCell(1, "a", "x = 3", "L"), KeptCell(1, "a", "other", "M")])
    assert [cell.code for cell in chat.cells] == ["y = 2", "x = 3", "other"]
    assert {n: cell.code for n, cell in chat.cells_of("L").items()} == {2: "y = 2", 1: "x = 3"}
    chat.add_cells([KeptCell(n, "", "z", "N") for n in range(CELLS_KEPT)])
    assert len(chat.cells) == CELLS_KEPT
    assert chat.cells[0].life == "N"


def test_a_record_that_cannot_be_read_counts_as_none(tmp_path: Path) -> None:
    """Nothing raises, and the notebook begins anew."""
    record = NotebookRecord(str(tmp_path / "n.ipynb"))
    key = record.key
    record.file.write_text('{"version": 1, "chats": ')
    assert NotebookRecord(str(tmp_path / "n.ipynb")).key != key


def test_the_notebook_is_known_where_jupyter_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Absolute, or relative to the server's directory; a console has none."""
    (tmp_path / "n.ipynb").touch()
    monkeypatch.chdir(tmp_path)
    for name, found in (
        (str(tmp_path / "n.ipynb"), str(tmp_path / "n.ipynb")),
        ("folder/n.ipynb", str(tmp_path / "n.ipynb")),
        ("folder/other.ipynb", ""),
        ("console-1-abc", ""),
    ):
        monkeypatch.setenv("JPY_SESSION_NAME", name)
        assert notebook_path() == found


def test_cells_after_a_checkpoint_are_those_that_ended_after_it() -> None:
    """By the order in which they ran, not by their numbers."""
    life = Life(ended=[1, 2, 3, 2, 5])
    assert life.cells_after(2) == [5]
    assert life.cells_after(5) == []
    assert life.cells_after(7) == [1, 2, 3, 2, 5]


@pytest.mark.parametrize(("number", "left"), [(3, [1, 2, 3]), (5, [1, 2, 3, 2, 5]), (9, [9])])
def test_cells_that_were_gone_back_from_stop_no_later_one(number: int, left: list[int]) -> None:
    """The notebook goes on from what was restored; where that is of another life, from it alone."""
    life = Life(ended=[1, 2, 3, 2, 5])
    life.end_with(number)
    assert life.ended == left
    assert life.cells_after(number) == []


@pytest.mark.parametrize(
    ("code", "needed"),
    [
        ("print(f.read())", True),
        ("f = open('x')\nf.read()", False),
        ("f += 1", True),
        ("def g():\n    return f", True),
        ("def f():\n    return f", False),
        ("import f\nf.x", False),
        ("if y:\n    f = 1\nf", True),
        ("await f", True),
        ("%timeit f()", True),
        ("!ls", False),
        ("%%R\nplot(f)", True),
        ("this is no Python: f", True),
        ("x = 'f'", False),
        ("del f", True),
    ],
)
def test_a_cell_needs_the_names_that_it_does_not_set_first(code: str, needed: bool) -> None:
    """Rather too many than too few: code that is no Python counts with all its words."""
    assert ("f" in names_in(code)) is needed


def test_setup_cells_are_read_from_the_notebook(tmp_path: Path) -> None:
    """In order, those with the tag; a file that is no notebook has none."""
    cells = [
        {"cell_type": "code", "source": ["a\n", "b"], "metadata": {"tags": ["ivy-setup"]}},
        {"cell_type": "code", "source": "c", "metadata": {}},
        {"cell_type": "markdown", "source": "d", "metadata": {"tags": ["ivy-setup"]}},
        {"cell_type": "code", "source": "e", "metadata": {"tags": ["x", "ivy-setup"]}},
    ]
    path = tmp_path / "n.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    assert setup_cells(str(path)) == ["a\nb", "e"]
    path.write_text("[1]")
    assert setup_cells(str(path)) == setup_cells("") == []


def test_packages_that_are_not_there_any_more_are_named() -> None:
    """Gone, or of another version."""
    lock = {"pip": {"a": "1", "b": "2", "c": "3"}, "r": {"d": "4"}}
    assert lacking_packages(lock, {"pip": {"a": "1", "b": "9"}}) == ["b 2", "c 3", "d 4"]


def test_one_sentence_says_what_came_back_and_what_did_not() -> None:
    """With the cells that made the rest, and how to run them again."""
    result = {
        "number": 12,
        "restored": ["a", "b"],
        "missing": {"f": {"why": "open file", "cell": 3}},
    }
    restored = Restored.of(result, place="its disk", lacking=[], changed=[])
    restored.what_ended = "The sandbox"
    restored.cells = {3: KeptCell(3, "id-3", "f = open('x')")}
    assert restored.sentence() == (
        "The sandbox had ended; restored 2 variables as they were after cell 12, from its disk. "
        "Not restored: f (open file, cell 3). Cell 3 made that. %ivy restore --rerun runs it again."
    )
    bundle = restored.bundle()
    assert bundle is not None
    facts = bundle["application/vnd.ivy.restore+json"]
    assert (facts["cells"], facts["actions"]) == (["id-3"], ["rerun"])
    restored.missing = {}
    assert restored.bundle() is None


def test_a_restore_that_was_asked_for_names_what_is_not_of_the_checkpoint() -> None:
    """It stays as it is; and nothing is offered to be run again where no cell made what misses."""
    result = {
        "number": 2,
        "restored": ["a"],
        "others": ["b", "_i3"],
        "missing": {"ours.count": {"why": "imported anew", "cell": 0}},
    }
    restored = Restored.of(result, place="its disk", lacking=[], changed=[])
    assert restored.sentence() == (
        "Restored 1 variable as they were after cell 2, from its disk. "
        "Not restored: ours.count (imported anew). Not of that checkpoint, and as before: b."
    )
    assert restored.bundle() is None


def test_a_cell_under_way_counts_as_run_for_the_process_after_this_one(tmp_path: Path) -> None:
    """With its code: one that dies under it leaves a cell that has run, as far as is known."""

    async def check() -> None:
        record = NotebookRecord(str(tmp_path / "n.ipynb"))
        recovery = Recovery(record.chat(CHAT))
        recovery.sent(Cell("n += 1", execution_count=7))
        recovery.write_down()
        after = NotebookRecord(str(tmp_path / "n.ipynb")).chat(CHAT)
        assert (after.life.ended, [cell.code for cell in after.cells]) == ([7], ["n += 1"])
        recovery.left()
        recovery.write_down()
        after = NotebookRecord(str(tmp_path / "n.ipynb")).chat(CHAT)
        assert after.life.ended == []

    asyncio.run(check())


@pytest.mark.parametrize("value", [None, True, -1, 10**4000, 1e400, "x", [1], [[1, 2]], {"a": 1}])
@pytest.mark.parametrize(
    "name",
    ["number", "sequence", "restored", "others", "missing", "names", "objects", "at", "file"],
)
def test_what_makes_no_sense_in_a_kernel_s_answer_is_left_out(
    name: str, value: Any, tmp_path: Path
) -> None:
    """Code in its process may have made it; what is said of the rest stays readable."""
    told = {"status": "ok", "number": 3, "sequence": 2, "restored": ["a"], "file": "f", name: value}
    told["index"] = dict(told)
    answer = work_answer(told)
    for each in (answer, answer["index"]):
        restored = Restored.of(each, place="its disk", lacking=[], changed=[])
        assert restored.sentence().startswith("Restored ")
        restored.bundle()
        json.dumps(each)
        record = NotebookRecord(str(tmp_path / "n.ipynb"))
        assert record.chat(CHAT).words(each).startswith("after cell ")
        recovery = Recovery(record.chat(CHAT))
        recovery._begin_life = lambda holder: None  # type: ignore[method-assign]  # it needs a loop
        recovery.configured("holder", {**answer, "index": each}, "")


def test_packages_that_make_no_sense_are_left_out() -> None:
    """The record may have kept them for long."""
    assert lacking_packages({"pip": 5, "r": {"d": "4"}}, {}) == ["d 4"]


# Copies -------------------------------------------------------------------------------------------
class FilesHere:
    """A sandbox's files in a local directory, as far as copies use them."""

    def __init__(self, top: Path) -> None:
        self.top = top

    async def read(self, path: str, *, limit_bytes: int) -> bytes:
        """Return a file's bytes."""
        return (self.top / path).read_bytes()[:limit_bytes]

    async def stat(self, path: str) -> Any:
        """Return an entry with its path."""
        return type("Entry", (), {"path": path})

    async def get(self, remote: str, local: Path, *, overwrite: bool, only: Any) -> None:
        """Bring the listed files here."""
        for entry in only:
            (local / entry.name).write_bytes((self.top / entry.path).read_bytes())

    async def put(self, local: Path, remote: str, *, overwrite: bool, only: Any) -> None:
        """Take files from here."""
        for name in only:
            target = self.top / remote / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((local / name).read_bytes())


def checkpoint(top: Path, key: bytes, values: dict[str, bytes]) -> dict[str, Any]:
    """Write a checkpoint as a sandbox has it; return its summary."""
    objects, groups = [], []
    (top / "c" / "objects").mkdir(parents=True)
    for name, data in values.items():
        digest = hashlib.sha256(data).hexdigest()
        (top / "c" / "objects" / digest).write_bytes(data)
        objects.append([digest, len(data)])
        groups.append({"names": [name], "object": digest})
    body = json.dumps({"groups": groups})
    signature = hmac.new(key, body.encode(), hashlib.sha256).hexdigest()
    (top / "c" / "index-00000001.json").write_text(
        json.dumps({"body": body, "signature": signature})
    )
    return {"sequence": 1, "file": "index-00000001.json", "objects": objects}


def test_a_copy_is_put_back_as_it_was(tmp_path: Path) -> None:
    """Opaque bytes in private files; what is there already is not fetched again."""
    chat = NotebookRecord(kernel="k").chat(CHAT)
    summary = checkpoint(tmp_path / "old", chat.key, {"x": b"one", "y": b"two"})
    copies = CheckpointCopies(chat, limit_bytes=1000)
    copied = asyncio.run(copies.fetch(FilesHere(tmp_path / "old"), "c", summary))  # type: ignore[arg-type]  # as far as it is used
    assert (copied.objects, copied.is_whole, copied.left_out) == (2, True, ())
    again = asyncio.run(copies.fetch(FilesHere(tmp_path / "old"), "c", summary))  # type: ignore[arg-type]  # likewise
    assert again.objects == 0
    files = [path for path in copies.directory.rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert asyncio.run(copies.put_back(FilesHere(tmp_path / "new"), "c")) == []  # type: ignore[arg-type]  # likewise
    for path in (tmp_path / "old" / "c").rglob("*"):
        if path.is_file():
            assert (tmp_path / "new" / path.relative_to(tmp_path / "old")).read_bytes() == (
                path.read_bytes()
            )


def test_what_is_too_large_for_the_copy_is_named(tmp_path: Path) -> None:
    """The small objects are taken first."""
    chat = NotebookRecord(kernel="k").chat(CHAT)
    summary = checkpoint(tmp_path / "old", chat.key, {"big": b"x" * 900, "small": b"y" * 200})
    copies = CheckpointCopies(chat, limit_bytes=1000)
    copied = asyncio.run(copies.fetch(FilesHere(tmp_path / "old"), "c", summary))  # type: ignore[arg-type]  # as far as it is used
    assert (copied.objects, copied.left_out) == (1, ("big",))


@pytest.mark.parametrize("part", ["index", "object"])
def test_a_copy_that_was_changed_is_not_sent(tmp_path: Path, part: str) -> None:
    """Of a changed index nothing is; a changed object is left out, and its variables are named."""
    chat = NotebookRecord(kernel="k").chat(CHAT)
    summary = checkpoint(tmp_path / "old", chat.key, {"x": b"one", "y": b"two"})
    copies = CheckpointCopies(chat, limit_bytes=1000)
    asyncio.run(copies.fetch(FilesHere(tmp_path / "old"), "c", summary))  # type: ignore[arg-type]  # as far as it is used
    new = tmp_path / "new"
    if part == "index":
        index = copies.directory / "index-00000001.json"
        index.write_text(index.read_text().replace('[\\"x\\"]', '[\\"z\\"]'))
        with pytest.raises(TamperedCheckpointError, match="signature"):
            asyncio.run(copies.put_back(FilesHere(new), "c"))  # type: ignore[arg-type]  # likewise
        assert not new.exists()
    else:
        digest = hashlib.sha256(b"one").hexdigest()
        (copies.directory / "objects" / digest).write_bytes(b"eno")
        assert asyncio.run(copies.put_back(FilesHere(new), "c")) == ["x"]  # type: ignore[arg-type]  # likewise
        assert not (new / "c" / "objects" / digest).exists()


class KernelThatWorks:
    """A living kernel, as far as copies ask it for work; notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def work(self, content: dict[str, Any], *, timeout_seconds: float) -> dict[str, Any]:
        """Answer a request as where there is no checkpoint."""
        self.asked.append(content["do"])
        return {"sequence": 0}


def test_memory_that_runs_low_has_a_checkpoint_written_at_once() -> None:
    """Also beside a cell, behind which the kernel does it; twice at once is once."""
    kernel = KernelThatWorks()
    host = SimpleNamespace(live=kernel, busy=True)
    recovery = Recovery(NotebookRecord(kernel="k").chat(CHAT))
    recovery.attach(host)  # type: ignore[arg-type]  # as far as it is used

    async def run() -> None:
        recovery.memory_low()  # before the kernel is known to keep checkpoints
        recovery.configured("agent:a/1", {"directory": "/d", "index": None}, "")
        recovery.memory_low()
        recovery.memory_low()
        await asyncio.sleep(0.01)
        recovery.close()

    asyncio.run(run())
    assert kernel.asked == ["checkpoint"]


async def test_a_look_that_is_due_during_another_one_is_not_forgotten() -> None:
    """It comes after that: the last cell's checkpoint would have no copy else."""
    is_asked, may_answer, kernel = asyncio.Event(), asyncio.Event(), KernelThatWorks()
    none = SimpleNamespace(remaining_seconds=lambda *_: None)

    async def work(content: dict[str, Any], *, timeout_seconds: float) -> dict[str, Any]:
        answer = await kernel.work(content, timeout_seconds=timeout_seconds)
        is_asked.set()
        await may_answer.wait()
        return answer

    async def status(*, retry: bool) -> Any:
        return none

    host = SimpleNamespace(
        live=SimpleNamespace(work=work), busy=False, lifecycle=SimpleNamespace(status=status)
    )
    recovery = Recovery(NotebookRecord(kernel="k").chat(CHAT))
    keeper = CopyKeeper(recovery, host, limit_bytes=1)  # type: ignore[arg-type]  # as far as it is used
    keeper.look()
    await is_asked.wait()
    keeper.look()
    keeper.look()
    may_answer.set()
    for _ in range(100):
        await asyncio.sleep(0)
    assert kernel.asked == ["index", "index"]
    keeper.close()
