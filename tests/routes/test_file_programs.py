"""The programs that read and write files in a sandbox: what they print, and how they run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ivy_kernel.errors import (
    ChecksumError,
    FileExistsInSandboxError,
    IvyError,
    NoSuchFileError,
    RefusedPathError,
    SandboxFileError,
)
from ivy_kernel.routes.agent.frames import read_response
from ivy_kernel.routes.file_access import value_of
from ivy_kernel.routes.file_programs import PROGRAMS, program
from ivy_kernel.routes.files import glob_expression, parts_of


def pythons() -> list[str]:
    """The Pythons of this machine that run, this one first."""
    found = {"": sys.executable}
    for name in filter(None, (shutil.which(f"python3.{version}") for version in range(8, 15))):
        argv = [name, "-c", "import sys; print(sys.version)"]
        told = subprocess.run(argv, capture_output=True, text=True, check=False)
        if told.returncode == 0 and told.stdout.strip() != sys.version:
            found[told.stdout] = name
    return list(found.values())


def ran(place: Path, name: str, *, python: str = sys.executable, **arguments: Any) -> Any:
    """Run a program as a script tool does; return its value and bytes."""
    data = arguments.pop("data", None)
    call = program(name, arguments, data=data)
    done = subprocess.run(
        [python, "-I", "-"], input=call.code, cwd=place, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return value_of(read_response({"stdout": done.stdout}, call.call_id))


def test_code_runs_with_separate_globals_and_locals(tmp_path: Path) -> None:
    """As runners do that call ``exec`` within a function; and no name of it stays behind."""
    (tmp_path / "file").write_bytes(b"content")
    call = program("read", {"parts": ("file",), "offset": 0, "limit": 100})
    runner = "import sys\nglobals_, locals_ = {}, {}\nexec(sys.stdin.read(), globals_, locals_)\n"
    runner += "assert [n for n in (*globals_, *locals_) if n != '__builtins__'] == []\n"
    done = subprocess.run(
        [sys.executable, "-c", runner],
        input=call.code,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert value_of(read_response([done.stdout], call.call_id))[1] == b"content"


@pytest.mark.parametrize("python", pythons())
def test_all_programs_run_in_each_python(python: str, tmp_path: Path) -> None:
    """A file is made, filled, compared, named, listed, moved, copied and removed."""
    part = f".ivy-{'0' * 32}.part"
    begin = {"parts": ("d", "f"), "part": part, "create": True, "stale": "x", "seconds": 9}
    done = [ran(tmp_path, "probe", python=python)[0]["root"] == str(tmp_path.resolve())]
    state, _ = ran(tmp_path, "begin", python=python, **begin)
    done.append((state["final"], state["part"]) == (None, 0))
    write = {"parts": ("d", "f"), "part": part}
    ran(tmp_path, "write", python=python, **write, offset=3, data=b"def")
    (tmp_path / "d" / f"{part}-0").write_bytes(b"abc")
    for _ in range(2):  # again, as after an answer that was lost
        ran(tmp_path, "gather", python=python, **write, at=[0, 9])
    span = {"start": 0, "end": 6, "step": 3}
    _, hashes = ran(tmp_path, "hashes", python=python, parts=("d", part), **span)
    done.append(len(hashes) == 64)
    finish = {"size": 6, "overwrite": False, "mode": 0o640}
    row, _ = ran(tmp_path, "finish", python=python, **write, **finish)
    done.append(row[:3] == ["d/f", "f", 6])
    _, data = ran(tmp_path, "read", python=python, parts=("d", "f"), offset=1, limit=4)
    done.append(data == b"bcde")
    ran(tmp_path, "copy", python=python, parts=("d", "f"), new=("d", "g"), part=part)
    ran(tmp_path, "rename", python=python, parts=("d", "f"), new=("h",), overwrite=False)
    ran(tmp_path, "make", python=python, parts=("m", "n"))
    value, data = ran(tmp_path, "fetch", python=python, files=[("h",), ("no",)], limit=99)
    done.append((value["files"][0][0], value["files"][1]["fail"], data) == (6, "os", b"abcdef"))
    files = [(("s", "one"), 3, 0o644), (("h",), 3, 0o644)]
    store = {"files": files, "part": part, "overwrite": False}
    value, _ = ran(tmp_path, "store", python=python, **store, data=b"onetwo")
    done.append((value["files"][0], value["files"][1]["errno"]) == ("written", 17))
    listing = {"parts": (), "recursive": True, "limit": 99, "match": ""}
    (rows, more), _ = ran(tmp_path, "entries", python=python, **listing)
    found = sorted(row[0] for row in rows)
    done.append((found, more) == (["d", "d/g", "h", "m", "m/n", "s", "s/one"], False))
    row, _ = ran(tmp_path, "entry", python=python, parts=("h",))
    done.append(row[1] == "f")
    value, _ = ran(tmp_path, "remove", python=python, parts=("d",), recursive=True)
    done.append(value["n"] == 1)
    assert all(done), done
    used = set(PROGRAMS)
    assert used == {
        *("probe", "begin", "write", "hashes", "finish", "read", "copy", "rename", "make"),
        *("fetch", "store", "entries", "entry", "remove", "gather"),
    }


def test_what_fails_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    """Each with a sentence of its own; nothing is read or written."""
    (tmp_path / "there").write_bytes(b"x")
    (tmp_path / "link").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "fifo")
    read = {"offset": 0, "limit": 10}
    tries: list[tuple[type[IvyError], str, str, dict[str, Any]]] = [
        (NoSuchFileError, "absent", "read", {"parts": ("absent",), **read}),
        (RefusedPathError, "link", "read", {"parts": ("link",), **read}),
        (SandboxFileError, "fifo", "read", {"parts": ("fifo",), **read}),
        (SandboxFileError, "there", "read", {"parts": ("there", "below"), **read}),
        (RefusedPathError, "link", "make", {"parts": ("link", "below")}),
        (
            FileExistsInSandboxError,
            "there",
            "rename",
            {"parts": ("fifo",), "new": ("there",), "overwrite": False},
        ),
    ]
    for kind, named, name, arguments in tries:
        with pytest.raises(kind, match=named):
            ran(tmp_path, name, **arguments)


def test_data_that_was_damaged_on_the_way_is_not_written(tmp_path: Path) -> None:
    """Length and checksum are compared before anything is opened for writing."""
    (tmp_path / "part").write_bytes(b"")
    arguments = {"parts": ("f",), "part": "part", "offset": 0}
    call = program("write", arguments, data=bytes(range(100)))
    damaged = call.code.replace("_ivy_d='''A", "_ivy_d='''B", 1)
    assert damaged != call.code
    done = subprocess.run(
        [sys.executable, "-"],
        input=damaged,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    with pytest.raises(ChecksumError):
        value_of(read_response(done.stdout, call.call_id))
    assert (tmp_path / "part").read_bytes() == b""


@pytest.mark.parametrize(
    ("pattern", "matches", "others"),
    [
        ("*.csv", ["a.csv", ".csv"], ["d/a.csv", "a.csv.gz"]),
        ("**/*.csv", ["a.csv", "d/a.csv", "d/e/a.csv"], ["a.txt"]),
        ("d/**", ["d/a", "d/e/f"], ["e/a"]),
        ("?[ab]", ["xa", "yb"], ["xc", "/a", "xxa"]),
        ("[!a]", ["b", "!"], ["a", "/"]),
        ("[]a]", ["]", "a"], ["b"]),
        ("a[b", ["a[b"], ["ab"]),
        ("(x)+$", ["(x)+$"], ["x"]),
    ],
)
def test_patterns_match_as_a_shell_would(
    pattern: str, matches: list[str], others: list[str]
) -> None:
    """A star stays within a directory, two cross them."""
    import re

    expression = re.compile(glob_expression(pattern))
    assert [path for path in (*matches, *others) if expression.match(path)] == matches


def test_an_absolute_path_below_the_root_is_relative_to_it() -> None:
    """Only there; and a root that only begins alike is another directory."""
    assert parts_of("/home/me/a//b/./c", "/home/me") == ("a", "b", "c")
    assert parts_of("/home/me", "/home/me/") == ()
    assert parts_of("a/../b", "/home/me") == ("b",)
    for path in ("/home/mean/a", "/home", "/home/me/../x"):
        with pytest.raises(RefusedPathError):
            parts_of(path, "/home/me")
