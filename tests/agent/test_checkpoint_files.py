"""The files of checkpoints: what was changed is refused before it is unpickled; space and time."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bare_kernel import BareKernel
from waiting import until

CHANGES = 100


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[tuple[BareKernel, Path]]:
    """A kernel that has saved some variables, and the directory of its checkpoints."""
    with contextlib.closing(BareKernel(tmp_path)) as kernel:
        kernel.configure()
        kernel.run("a = [1, 2]; b = {'a': a}; c = 'text'; d = bytearray(200000)\ndef f(): return 3")
        kernel.ask("checkpoint", now=True)
        yield kernel, tmp_path / ".ivy/notebook/checkpoints"


def flip(path: Path, random_numbers: random.Random) -> bytes:
    """Change one random byte of a file; return what was there."""
    before = path.read_bytes()
    after = bytearray(before)
    after[random_numbers.randrange(len(after))] ^= random_numbers.randrange(1, 256)
    path.write_bytes(bytes(after))
    return before


def test_a_changed_byte_anywhere_is_refused(saved: tuple[BareKernel, Path]) -> None:
    """Each of a hundred changed files is refused by name, and nothing of it comes back."""
    kernel, directory = saved
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    summary = kernel.ask("index")
    random_numbers = random.Random(11)
    for count in range(CHANGES):
        path = files[count % len(files)]
        before = flip(path, random_numbers)
        kernel.run("for _ in 'abcdf': globals().pop(_, None)")
        reply = kernel.ask("restore")
        if path.name.startswith("index"):
            assert reply["status"] == "error"
            assert reply["ename"] == "TamperedCheckpointError"
            assert path.name in reply["evalue"]
            kernel.run("assert not {*'abcdf'} & set(globals())")
        else:
            assert reply["refused"][0][0] == f"objects/{path.name[:12]}…"
            assert set(reply["restored"]) | set(reply["missing"]) == set(summary["names"])
        path.write_bytes(before)
    assert kernel.ask("restore")["refused"] == []


@pytest.mark.parametrize(
    ("what", "ename"),
    [("chat", "TamperedCheckpointError"), ("key", "TamperedCheckpointError")],
)
def test_another_chats_checkpoints_are_refused(
    saved: tuple[BareKernel, Path], tmp_path: Path, what: str, ename: str
) -> None:
    """A kernel of another chat, or with another key, unpickles nothing of them."""
    with contextlib.closing(BareKernel(tmp_path)) as other:
        assert other.configure(**{what: "cd" * 32})["index"] is None
        reply = other.ask("restore")
        assert (reply["status"], reply["ename"]) == ("error", ename)
        other.run("assert 'a' not in globals()")


def test_cut_and_swapped_objects_are_refused_and_others_come_back(
    saved: tuple[BareKernel, Path], tmp_path: Path
) -> None:
    """One object is cut, two are swapped: their variables are missing, with the reason."""
    kernel, directory = saved
    reply = kernel.ask("index")
    sizes = dict(reply["objects"])
    first, second, third = sorted(sizes, key=lambda digest: sizes[digest])[:3]
    objects = directory / "objects"
    (objects / first).write_bytes((objects / first).read_bytes()[:-1])
    one, other = (objects / second).read_bytes(), (objects / third).read_bytes()
    (objects / second).write_bytes(other)
    (objects / third).write_bytes(one)
    with contextlib.closing(BareKernel(tmp_path)) as restored:
        restored.configure()
        reply = restored.ask("restore", at=1)
        assert len(reply["refused"]) == 3
        assert reply["missing"]
        assert all("was changed" in lost["why"] for lost in reply["missing"].values())
        assert set(reply["missing"]) | set(reply["restored"]) == {*"abcdf"}


def test_an_index_under_another_number_is_refused(saved: tuple[BareKernel, Path]) -> None:
    """A copy of an index cannot pass for a later one."""
    kernel, directory = saved
    shutil.copy(directory / "index-00000001.json", directory / "index-00000009.json")
    reply = kernel.ask("restore")
    assert reply["sequence"] == 1
    assert reply["refused"] == [
        ["index-00000009.json", "index-00000009.json is for another sequence"]
    ]


def test_earlier_cells_can_be_gone_back_to(saved: tuple[BareKernel, Path]) -> None:
    """``at`` takes the newest state up to that cell; a cell that changed nothing has one, too."""
    kernel, _ = saved
    kernel.run("a.append(3)")
    kernel.ask("checkpoint", now=True)
    kernel.run("pass")
    history = kernel.ask("checkpoint", now=True)["history"]
    assert [number for _, number, _ in history] == [3, 2, 1]
    assert kernel.ask("restore", at=1)["number"] == 1
    assert kernel.run("print(a, b['a'] is a, f())")["text"] == "[1, 2] True 3\n"
    names = kernel.ask("index", at=2)["names"]
    assert {name: known["cell"] for name, known in names.items()} == {
        **dict.fromkeys("ab", 2),
        **dict.fromkeys("cdf", 1),
    }


def test_files_are_private_and_what_did_not_change_is_not_written_again(
    saved: tuple[BareKernel, Path],
) -> None:
    """Only the owner may read; a second checkpoint adds what is new alone."""
    kernel, directory = saved
    before = {path: path.stat().st_mtime_ns for path in (directory / "objects").iterdir()}
    kernel.run("c = 'other'")
    kernel.ask("checkpoint", now=True)
    after = {path: path.stat().st_mtime_ns for path in (directory / "objects").iterdir()}
    assert before.items() <= after.items()
    assert sum(path.stat().st_size for path in set(after) - set(before)) < 20_000
    modes = {oct(path.stat().st_mode & 0o777) for path in directory.rglob("*") if path.is_file()}
    assert modes == {"0o600"}
    assert {oct(p.stat().st_mode & 0o777) for p in (directory, *directory.parents[:2])} == {"0o700"}


def test_space_is_kept_within_its_limit(tmp_path: Path) -> None:
    """Old checkpoints go; what is larger than the limit by itself is named, and the rest saved."""
    with contextlib.closing(BareKernel(tmp_path)) as kernel:
        kernel.configure(space_bytes=1_000_000)
        for number in range(6):
            kernel.run(f"a = bytes([{number}]) * 400000; big = bytes(2000000)")
            summary = kernel.ask("checkpoint", now=True)
        assert "bytes that are left" in summary["missing"]["big"]["why"]
        assert "a" in summary["names"]
        objects = tmp_path / ".ivy/notebook/checkpoints/objects"
        assert sum(path.stat().st_size for path in objects.iterdir()) <= 1_000_000
        assert [number for _, number, _ in summary["history"]] == [6, 5]


def test_a_checkpoint_is_written_beside_the_notebook_and_leaves_no_trace(tmp_path: Path) -> None:
    """After a cell a child writes it: no name, output, child process or random number shows it."""
    with contextlib.closing(BareKernel(tmp_path)) as kernel:
        kernel.configure()
        kernel.run(
            "import os, random, sys, warnings; random.seed(1); names = sorted(globals())\n"
            "filters, modules = list(warnings.filters), set(sys.modules)\n"
            "class Loud:\n    def __reduce__(self):\n        print('saved'); os.write(1, b'raw')\n"
            "        return Loud, ()\nloud = Loud()"
        )
        kernel.idle()
        shown = kernel.run(
            "new = sorted(set(globals()) - set(names))\n"
            "print(new, random.random(), warnings.filters == filters)\n"
            "try: print(os.waitpid(-1, os.WNOHANG))\nexcept ChildProcessError: print('no child')"
        )
        expected = random.Random(1).random()
        assert shown["text"] == (
            f"['Loud', 'filters', 'loud', 'modules', 'names'] {expected} True\nno child\n"
        )

        def is_written() -> Any:
            kernel.idle()
            return kernel.ask("index")["sequence"]

        until(is_written, "a checkpoint")
        assert "checkpoint" in kernel.run("pass")["metadata"]["ivy"]


def test_a_value_that_never_ends_to_be_saved_is_named(tmp_path: Path) -> None:
    """What brings the saving process to its end is left out of the next one."""
    with contextlib.closing(BareKernel(tmp_path)) as kernel:
        kernel.configure()
        kernel.run(
            "import os\nfine = 1\nclass Deadly:\n    def __reduce__(self): os._exit(3)\n"
            "deadly = Deadly()"
        )
        summary = kernel.ask("checkpoint", now=True)
        assert summary["missing"]["deadly"]["why"] == "the process that was saving it ended"
        assert "fine" in summary["names"]


def test_nothing_is_written_where_it_is_switched_off(tmp_path: Path) -> None:
    """With ``checkpoints`` off no cell is followed by one."""
    with contextlib.closing(BareKernel(tmp_path)) as kernel:
        kernel.configure(checkpoints=False)
        kernel.run("a = 1")
        assert kernel.idle() is None
        assert kernel.ask("index")["sequence"] == 0
        assert not (tmp_path / ".ivy/notebook/checkpoints").exists()


def test_a_full_disk_costs_no_cell(tmp_path: Path) -> None:
    """Where nothing can be written, the cell runs, and a request tells why there is none."""
    with contextlib.closing(BareKernel(tmp_path)) as kernel:
        kernel.configure()
        place = tmp_path / ".ivy/notebook/checkpoints"
        place.write_text("a file is in the way")
        kernel.run("a = 1")
        kernel.idle()
        assert kernel.ask("checkpoint", now=True)["status"] == "error"
        assert kernel.run("print(a)")["text"] == "1\n"
        place.unlink()
        assert json.dumps(kernel.ask("checkpoint", now=True)["names"])


def test_a_copy_without_some_objects_brings_back_the_rest(
    saved: tuple[BareKernel, Path], tmp_path: Path
) -> None:
    """Asked for what is there, a restore names the variables whose objects were left out."""
    kernel, directory = saved
    summary = kernel.ask("index")
    largest = max(summary["objects"], key=lambda item: item[1])[0]
    (directory / "objects" / largest).unlink()
    with contextlib.closing(BareKernel(tmp_path)) as other:
        assert other.configure()["index"] is None
        assert other.ask("index", partial=True)["sequence"] == 1
        reply = other.ask("restore", partial=True)
        assert reply["missing"] == {"d": {"cell": 1, "why": "not in the copy"}}
        assert reply["refused"] == []
        assert other.run("print(a, b['a'] is a)")["text"] == "[1, 2] True\n"


def test_what_did_not_come_back_is_missing_until_it_is_made_again(tmp_path: Path) -> None:
    """Later checkpoints name it with its reason and cell, also after a cell that failed."""
    with contextlib.closing(BareKernel(tmp_path)) as kernel:
        kernel.configure()
        kernel.run("a = 1; g = (i for i in 'ab'); h = open('/dev/null')")
        kernel.ask("checkpoint", now=True)
    with contextlib.closing(BareKernel(tmp_path)) as kernel:
        kernel.configure()
        missing = kernel.ask("restore")["missing"]
        assert set(missing) == {"g", "h"}
        with pytest.raises(AssertionError, match="NameError"):
            kernel.run("b = 2; next(g)")
        summary = kernel.ask("checkpoint", now=True)
        assert summary["missing"] == missing
        assert summary["number"] == 2
        assert "b" in summary["names"]
        kernel.run("g = [1]")
        summary = kernel.ask("checkpoint", now=True)
        assert set(summary["missing"]) == {"h"}


def test_a_new_life_never_hides_the_one_before(tmp_path: Path) -> None:
    """Cells of a new process are the same numbers again; a restore brings what was left there."""
    with contextlib.closing(BareKernel(tmp_path)) as kernel:
        kernel.configure()
        for number in range(1, 4):
            kernel.run(f"a = {number}")
            kernel.ask("checkpoint", now=True)
    with contextlib.closing(BareKernel(tmp_path)) as kernel:
        kernel.configure()
        kernel.run("b = 1")
        assert kernel.ask("checkpoint", now=True)["number"] == 1
        assert kernel.ask("index")["sequence"] == 4
        chosen = kernel.ask("index", to_restore=True)
        assert (chosen["sequence"], chosen["number"]) == (3, 3)
        kernel.run("b = 2")
        kernel.ask("checkpoint", now=True)
        assert kernel.ask("index", at=2)["sequence"] == 5  # this life has come as far
        assert kernel.ask("restore", at=3)["sequence"] == 3  # that one alone has
        assert kernel.run("print(a, b)")["text"] == "3 2\n"


def test_nothing_that_was_written_since_it_was_chosen_is_restored(tmp_path: Path) -> None:
    """The near side names the sequence; a checkpoint that a process of its own made is later."""
    with contextlib.closing(BareKernel(tmp_path)) as kernel:
        kernel.configure()
        kernel.run("a = 1")
        chosen = kernel.ask("checkpoint", now=True)["sequence"]
    with contextlib.closing(BareKernel(tmp_path)) as kernel:
        kernel.configure()
        kernel.run("b = 1")
        kernel.ask("checkpoint", now=True)
    with contextlib.closing(BareKernel(tmp_path)) as kernel:
        kernel.configure()
        assert kernel.ask("restore", sequence=chosen)["restored"] == ["a"]


def test_what_was_restored_is_the_newest_again(saved: tuple[BareKernel, Path]) -> None:
    """A loss right after going back brings that back, and not what was gone back from."""
    kernel, directory = saved
    for number in (2, 3):
        kernel.run(f"n = {number}")
        kernel.ask("checkpoint", now=True)
    assert kernel.ask("restore", at=2)["sequence"] == 2
    assert kernel.ask("restore")["number"] == 2
    kernel.run("n = 'anew'")
    kernel.ask("checkpoint", now=True)
    kernel.run("n = 'later'")
    kernel.ask("checkpoint", now=True)
    assert kernel.ask("restore", at=3)["number"] == 3
    assert kernel.run("print(n)")["text"] == "anew\n"
    assert len(list(directory.glob("index-*"))) == 5 + 2  # two were gone back to, one as it was


def test_a_cell_that_runs_again_does_not_pass_for_the_state_of_then(
    saved: tuple[BareKernel, Path], tmp_path: Path
) -> None:
    """It has its old number; the state is that of the newest cell, and so is the count."""
    kernel, _ = saved
    kernel.run("n = 2")
    kernel.ask("checkpoint", now=True)
    kernel.run("n = 3")
    kernel.run("again = 1", number=1)
    assert kernel.ask("checkpoint", now=True)["number"] == 1
    assert kernel.ask("restore", at=2)["number"] == 2
    assert kernel.run("print(n)")["text"] == "2\n"
    with contextlib.closing(BareKernel(tmp_path)) as other:
        other.configure()
        other.ask("restore", at=3)
        after = other.run("print(n)")
        assert (after["text"], after["number"]) == ("3\n", 4)


def test_making_room_leaves_the_newest_of_the_life_before(tmp_path: Path) -> None:
    """A new life that fills the space removes its own old checkpoints first."""
    with contextlib.closing(BareKernel(tmp_path)) as kernel:
        kernel.configure()
        for number in (1, 2):
            kernel.run(f"a = bytes([{number}]) * 400000")
            kernel.ask("checkpoint", now=True)
    with contextlib.closing(BareKernel(tmp_path)) as kernel:
        kernel.configure(space_bytes=1_000_000)
        for number in range(4):
            kernel.run(f"b = bytes([{number}]) * 400000")
            history = kernel.ask("checkpoint", now=True)["history"]
        assert [sequence for sequence, _, _ in history] == [6, 2]
        assert kernel.ask("restore")["restored"] == ["a"]


def test_where_nothing_can_be_forked_values_that_draw_take_no_number(tmp_path: Path) -> None:
    """Their code runs in the notebook's process then, and its random numbers go on as without."""
    with contextlib.closing(BareKernel(tmp_path)) as kernel:
        kernel.configure()
        kernel.run("import random, sys, types; sys.modules['cupy'] = types.ModuleType('cupy')")
        kernel.run(
            "class Drawn:\n def __reduce__(self): return float, (random.random(),)\n"
            "drawn = Drawn(); random.seed(7); before = random.getstate()"
        )
        assert "drawn" in kernel.ask("checkpoint", now=True)["names"]
        assert kernel.run("print(random.getstate() == before)")["text"] == "True\n"
