"""The record of each cell: the files it reads and writes, whoever opens them, and the chain."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import hashlib
import importlib
import mmap
import os
import resource
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from far_side import BareRunner, route_over
from pyarrow import parquet

from ivy_kernel.agent.work import receipt as receipts
from ivy_kernel.agent.work.packages import Packages
from ivy_kernel.agent.work.receipt import Receipt, check_chain
from ivy_kernel.routes.agent.programs import work_archive

Json = dict[str, Any]


def sha256(data: bytes) -> str:
    """Return what a record says of this content."""
    return hashlib.sha256(data).hexdigest()


class Notebook:
    """A notebook whose cells are functions of a test."""

    def __init__(self, workspace: Path, packages: Packages) -> None:
        self.workspace = workspace
        self.packages = packages
        self.directory = workspace / ".ivy" / "nb"
        self.directory.mkdir(parents=True, exist_ok=True)
        self.number = 0
        self.restart()

    def restart(self) -> None:
        """Begin anew, as another kernel does."""
        self.receipt = Receipt(str(self.directory), "chat", "nb", self.packages, str(Path.cwd()))

    def run(self, cell: Callable[[], object], fate: str = "ok") -> Json:
        """Run a cell and return its record."""
        self.number += 1
        info = {"number": self.number, "cell": f"c{self.number}", "code": sha256(b"code")}
        self.receipt.before_cell(info)
        try:
            cell()
        finally:
            record: Json = self.receipt.after_cell(info, {"status": fate})["receipt"]
        return record

    @property
    def lines(self) -> list[bytes]:
        """The lines of the file."""
        return Path(self.receipt.file).read_bytes().splitlines()


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    """What is installed here."""
    return Packages(str(tmp_path_factory.mktemp("packages")))


@pytest.fixture
def notebook(tmp_path: Path, packages: Packages, monkeypatch: pytest.MonkeyPatch) -> Notebook:
    """A notebook in an empty directory."""
    workspace = tmp_path / "work"
    workspace.mkdir()
    monkeypatch.chdir(workspace)
    return Notebook(workspace, packages)


def files(record: Json, kind: str) -> dict[str, str | None]:
    """Return path → hash."""
    return {entry["path"]: entry["sha256"] for entry in record[kind]}


def fopen(path: str, mode: str, data: bytes = b"") -> None:
    """Open a file as a library in C does: Python tells nothing of it."""
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    file = ctypes.c_void_p(libc.fopen(path.encode(), mode.encode()))
    assert file.value
    libc.fwrite(data, 1, len(data), file)
    libc.fclose(file)


def test_a_record_names_the_cell_its_fate_and_where_it_ran(notebook: Notebook) -> None:
    """Code, number, times, sandbox, Python and packages are those of the cell."""
    record = notebook.run(lambda: None, fate="error")
    assert (record["number"], record["cell"], record["code"]) == (1, "c1", sha256(b"code"))
    assert record["fate"] == "error"
    assert record["started"] <= record["ended"]
    assert record["sandbox"]["chat"] == "chat"
    assert record["python"] == sys.version.split()[0]
    assert record["packages"] == notebook.packages.digest()
    assert (record["reads"], record["writes"], record["incomplete"]) == ([], [], "")


def test_files_that_python_opens_are_read_and_written(notebook: Notebook, tmp_path: Path) -> None:
    """Also in a new directory, and outside the workspace; each with the hash of its content."""
    (tmp_path / "outside.txt").write_bytes(b"far")
    Path("in.txt").write_bytes(b"near")

    def cell() -> None:
        Path("in.txt").read_bytes()
        (tmp_path / "outside.txt").read_bytes()
        Path("a/b").mkdir(parents=True)
        Path("a/b/out.txt").write_bytes(b"new")
        Path("a/b/out.txt").read_bytes()  # its own, so no input

    record = notebook.run(cell)
    outside = str((tmp_path / "outside.txt").resolve())
    assert files(record, "reads") == {"in.txt": sha256(b"near"), outside: sha256(b"far")}
    assert files(record, "writes") == {"a/b/out.txt": sha256(b"new")}
    assert record["writes"][0]["bytes"] == 3
    assert record["incomplete"] == ""


def test_what_belongs_to_python_and_to_us_is_no_input(notebook: Notebook, tmp_path: Path) -> None:
    """Modules, devices, hidden directories; a module of the notebook's own folder is one."""
    Path("mine_to_import.py").write_text("x = 1\n")
    Path(".hidden").mkdir()
    Path(".env").write_text("y")
    (tmp_path / ".netrc").write_text("a key")

    def cell() -> None:
        Path(os.__file__).read_bytes()
        Path(pa.__file__).read_bytes()
        Path("/proc/self/stat").read_bytes()
        Path("/dev/null").write_bytes(b"x")
        Path(".hidden/cache").write_bytes(b"x")
        (notebook.directory / "own").write_bytes(b"x")
        Path(".env").read_bytes()
        (tmp_path / ".netrc").read_bytes()
        sys.path.insert(0, str(Path.cwd()))
        try:
            importlib.import_module("mine_to_import")
        finally:
            sys.path.pop(0)
            sys.modules.pop("mine_to_import", None)

    record = notebook.run(cell)
    assert files(record, "reads") == {".env": sha256(b"y"), "mine_to_import.py": sha256(b"x = 1\n")}
    assert record["writes"] == []


def test_a_module_that_comes_from_its_bytecode_is_its_source(notebook: Notebook) -> None:
    """The second kernel opens only the cache."""
    Path("mine_to_import.py").write_text("x = 1\n")
    Path("__pycache__").mkdir()
    cache = notebook.workspace / "__pycache__" / "mine_to_import.cpython-311.pyc"
    cache.write_bytes(b"x")
    record = notebook.run(cache.read_bytes)
    assert files(record, "reads") == {"mine_to_import.py": sha256(b"x = 1\n")}


@pytest.mark.parametrize("change", ["write", "rename", "remove", "update", "sqlite"])
def test_a_file_that_is_read_and_changed_has_the_hash_of_what_was_read(
    notebook: Notebook, change: str
) -> None:
    """It is hashed before Python changes it."""
    if change == "sqlite":
        with sqlite3.connect("data") as made:
            made.execute("create table t (a)")
        made.close()
    else:
        Path("data").write_bytes(b"before")
    before = Path("data").read_bytes()

    def cell() -> None:
        if change == "sqlite":
            database = sqlite3.connect("data")
            database.execute("insert into t values (1)")
            database.commit()
            database.close()
            return
        if change == "update":
            with open("data", "r+b") as file:  # noqa: PTH123 - a mode as a cell writes it
                file.write(b"AFTER")
            return
        Path("data").read_bytes()
        if change == "write":
            Path("data").write_bytes(b"after")
        elif change == "rename":
            Path("new").write_bytes(b"after")
            Path("new").replace("data")
        else:
            Path("data").unlink()

    record = notebook.run(cell)
    assert files(record, "reads") == {"data": sha256(before)}
    after = None if change == "remove" else sha256(Path("data").read_bytes())
    assert files(record, "writes") == {"data": after}
    assert after != sha256(before)


def test_a_file_that_changes_unseen_after_it_was_read_is_told(notebook: Notebook) -> None:
    """Its hash is not known any more, and the record says so."""
    Path("data").write_bytes(b"before")

    def cell() -> None:
        Path("data").read_bytes()
        fopen("data", "w", b"after!!")

    record = notebook.run(cell)
    assert files(record, "reads") == {"data": None}
    assert record["incomplete"] == "no hash of data: changed during the cell"
    assert files(record, "writes") == {"data": sha256(b"after!!")}


def read_by_os_open() -> None:
    """Read without a file object."""
    file = os.open("data", os.O_RDONLY)
    os.read(file, 1)
    os.close(file)


def read_by_mmap() -> None:
    """Read without reading."""
    file = os.open("data", os.O_RDONLY)
    mapped = mmap.mmap(file, 0, prot=mmap.PROT_READ)
    os.close(file)
    assert mapped[:1]
    mapped.close()


@pytest.mark.parametrize(
    "read",
    [
        read_by_os_open,
        read_by_mmap,
        lambda: np.fromfile("data", dtype="u1"),
        lambda: np.memmap("data", mode="r").sum(),
        lambda: pa.OSFile("data").read(),
        lambda: pa.memory_map("data").read(),
        lambda: fopen("data", "r"),
        lambda: subprocess.run(["cat", "data"], check=True, stdout=subprocess.DEVNULL),
    ],
    ids=["os.open", "mmap", "fromfile", "memmap", "OSFile", "memory_map", "fopen", "child"],
)
def test_a_file_is_an_input_whatever_opens_it(
    notebook: Notebook, read: Callable[[], object]
) -> None:
    """Libraries in C and other processes too."""
    Path("data").write_bytes(b"12345678")
    assert files(notebook.run(read), "reads") == {"data": sha256(b"12345678")}


@pytest.mark.parametrize("place", [".", "new/directory"])
def test_a_file_is_an_output_whatever_writes_it(notebook: Notebook, place: str) -> None:
    """Also below a directory that the cell makes."""

    def cell() -> None:
        Path(place).mkdir(parents=True, exist_ok=True)
        np.arange(3, dtype="u1").tofile(f"{place}/a")
        parquet.write_table(pa.table({"x": [1]}), f"{place}/b")
        fopen(f"{place}/c", "w", b"three")

    record = notebook.run(cell)
    paths = [Path(place, name) for name in "abc"]
    assert files(record, "writes") == {str(path): sha256(path.read_bytes()) for path in paths}
    assert record["reads"] == []


def test_a_file_that_stays_open_is_an_input_of_the_cells_after(notebook: Notebook) -> None:
    """Nothing tells when it is read; what is written by way of memory is seen."""
    np.zeros(4, dtype="u1").tofile("data")
    kept: list[Any] = []
    notebook.run(lambda: kept.append(np.memmap("data", mode="r+")))
    record = notebook.run(lambda: kept[0].sum())
    assert record["reads"][0] == {
        "path": "data", "how": "held open", "bytes": 4, "sha256": sha256(bytes(4))
    }  # fmt: skip
    assert record["writes"] == []
    record = notebook.run(lambda: kept[0].__setitem__(0, 7))
    assert files(record, "writes") == {"data": sha256(b"\7\0\0\0")}
    kept.clear()
    assert notebook.run(lambda: None)["reads"] == []


def test_a_file_elsewhere_that_a_library_holds_open_is_an_input(
    notebook: Notebook, tmp_path: Path
) -> None:
    """The system tells which files a process has open."""
    outside = (tmp_path / "outside").resolve()
    outside.write_bytes(b"far")
    with contextlib.ExitStack() as kept:
        record = notebook.run(lambda: kept.enter_context(pa.OSFile(str(outside))))
    assert files(record, "reads") == {str(outside): sha256(b"far")}


def test_a_process_is_named_without_its_arguments(notebook: Notebook) -> None:
    """They may hold keys; what it reads elsewhere is not known."""
    secret = "sk-very-secret"

    def cell() -> None:
        subprocess.run(["true", secret], check=True)
        os.system(f"TOKEN={secret} echo {secret} > shown")

    record = notebook.run(cell)
    assert record["incomplete"] == "started a process (true); started a process (echo)"
    assert secret not in str(record)
    assert list(files(record, "writes")) == ["shown"]


def test_a_connection_is_named_by_host_and_port(notebook: Notebook) -> None:
    """By the name that was looked up, where one was."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]

        def cell(host: str) -> None:
            socket.create_connection((host, port)).close()

        assert notebook.run(lambda: cell("127.0.0.1"))["incomplete"] == (
            f"connected to 127.0.0.1:{port}"
        )
        assert notebook.run(lambda: cell("localhost"))["incomplete"] == (
            f"connected to localhost:{port}"
        )


def test_odd_names_and_calls_reach_the_user_unchanged(notebook: Notebook) -> None:
    """A name that is no text, a path that cannot be, a directory: nothing is raised by us."""
    name = os.fsdecode(b"\xff.txt")

    def cell() -> None:
        Path(name).write_bytes(b"x")
        with pytest.raises(ValueError, match="null"):
            Path("a\0b").read_bytes()
        with pytest.raises(FileNotFoundError):
            Path("missing").read_bytes()
        with pytest.raises(IsADirectoryError):
            Path().read_bytes()
        os.close(os.dup(1))

    record = notebook.run(cell)
    assert files(record, "writes") == {"\\xff.txt": sha256(b"x")}
    assert record["reads"] == []
    assert record["incomplete"] == ""


def test_two_ways_to_one_file_are_one(notebook: Notebook, tmp_path: Path) -> None:
    """A symbolic link is another name of a directory."""
    (tmp_path / "link").symlink_to(notebook.workspace)
    Path("data").write_bytes(b"1")

    def cell() -> None:
        (tmp_path / "link" / "data").read_bytes()
        Path("data").read_bytes()

    assert files(notebook.run(cell), "reads") == {"data": sha256(b"1")}


def test_what_happens_between_cells_belongs_to_none(notebook: Notebook) -> None:
    """The next cell reads a file that came between as it is."""
    notebook.run(lambda: None)
    Path("between").mkdir()
    Path("between/data").write_bytes(b"1")
    assert notebook.run(lambda: None)["writes"] == []
    record = notebook.run(lambda: fopen("between/data", "r"))
    assert files(record, "reads") == {"between/data": sha256(b"1")}


def test_without_inotify_the_workspace_is_looked_at(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written unseen is found; that reads may be missing is said."""

    def refuse(_places: object) -> None:
        raise OSError("no inotify")

    monkeypatch.setattr(receipts, "Watch", refuse)
    Path("gone").write_bytes(b"1")
    Path("data").write_bytes(b"1")
    notebook.restart()

    def cell() -> None:
        Path("data").read_bytes()
        fopen("new", "w", b"2")
        fopen("data", "w", b"34")
        Path("gone").unlink()

    record = notebook.run(cell)
    assert files(record, "writes") == {
        "data": sha256(b"34"), "gone": None, "new": sha256(b"2")
    }  # fmt: skip
    assert "only a library in C reads" in record["incomplete"]


def test_a_workspace_too_large_to_be_watched_is_told(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest is as Python tells it."""
    monkeypatch.setattr("ivy_kernel.agent.work.files_used.ENTRIES_LIMIT", 3)
    for name in "abcdef":
        Path(name).mkdir()
    notebook.restart()
    assert "too large" in notebook.run(lambda: None)["incomplete"]


def test_a_large_file_is_hashed_later(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reply does not wait for it; the next record has the hash."""
    data = os.urandom(3 << 20)
    Path("data").write_bytes(data)
    monkeypatch.setattr(receipts, "HASH_SECONDS", 0.0)
    monkeypatch.setattr(receipts, "HASH_SHARE", 0.0)
    first = notebook.run(Path("data").read_bytes)
    assert files(first, "reads") == {"data": None}
    assert first["reads"][0]["bytes"] == len(data)
    assert "next cell's record" in first["incomplete"]
    monkeypatch.setattr(receipts, "IDLE_SECONDS", -1.0)
    slices = 1
    while notebook.receipt.on_idle():
        slices += 1
    assert slices == 3  # each goes on where the one before stopped
    after = notebook.receipt.summary()["late"]
    late = notebook.run(lambda: None)["late"]
    assert (
        after
        == late
        == [{"of": first["hash"], "path": "data", "bytes": len(data), "sha256": sha256(data)}]
    )
    assert "late" not in notebook.run(lambda: None)


def test_the_chain_goes_on_with_the_next_kernel(notebook: Notebook) -> None:
    """Each line names the one before, whoever wrote it."""
    notebook.run(lambda: None)
    second = notebook.run(lambda: None)
    notebook.restart()
    third = notebook.run(lambda: None)
    assert third["previous"] == second["hash"] == sha256(notebook.lines[1])
    assert check_chain(notebook.lines, third["hash"]) == []
    summary = notebook.receipt.summary()
    assert (summary["head"], summary["count"]) == (third["hash"], 3)
    assert summary["packages"] == notebook.packages.lock()


def test_the_lock_travels_when_it_is_another(notebook: Notebook) -> None:
    """With the first cell of a kernel, and not again."""
    told = []
    for _ in range(2):
        notebook.receipt.before_cell({})
        told.append(notebook.receipt.after_cell({}, {"status": "ok"}))
    assert told[0]["lock"] == notebook.packages.lock()
    assert "lock" not in told[1]


def test_two_kernels_write_one_chain(notebook: Notebook) -> None:
    """Each reads what the other has written."""
    other = Notebook(notebook.workspace, notebook.packages)
    for each in (notebook, other, notebook, other):
        last = each.run(lambda: None)
    assert check_chain(notebook.lines, last["hash"]) == []


def test_a_record_that_was_cut_off_is_closed_and_told(notebook: Notebook) -> None:
    """What is there stays, and the chain goes on behind it."""
    notebook.run(lambda: None)
    with Path(notebook.receipt.file).open("ab") as file:
        file.write(b'{"v":1,"prev')
    notebook.restart()
    record = notebook.run(lambda: None)
    assert record["incomplete"] == "the record before was cut off"
    assert check_chain(notebook.lines, record["hash"]) == [(1, "it is no record")]


def test_a_full_disk_costs_the_line_and_not_the_cell(notebook: Notebook) -> None:
    """The reply has the record; the file has no half of it."""
    first = notebook.run(lambda: None)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(notebook.lines[0]) + 100, hard))
    try:
        lost = notebook.run(lambda: None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert lost["incomplete"].startswith("the record could not be written")
    third = notebook.run(lambda: None)
    assert third["previous"] == first["hash"]
    assert check_chain(notebook.lines, third["hash"]) == []


def test_every_change_of_the_file_of_records_is_found(notebook: Notebook) -> None:
    """A byte of any line, the order, a line that is gone or new."""
    for index in range(5):
        Path("data").write_bytes(bytes([index]))
        head = notebook.run(Path("data").read_bytes)["hash"]
    lines = notebook.lines
    assert check_chain(lines, head) == []
    changed = []
    for index, line in enumerate(lines):
        for at in range(0, len(line), 15):
            byte = b"1" if line[at : at + 1] != b"1" else b"2"
            changed.append([*lines[:index], line[:at] + byte + line[at + 1 :], *lines[index + 1 :]])
        changed.append([*lines[:index], *lines[index + 1 :]])
        changed.append([*lines[:index], line, *lines[index:]])
    changed += [[lines[1], lines[0], *lines[2:]], lines[::-1], []]
    assert len(changed) > 200
    assert [c for c in changed if not check_chain(c, head)] == []


@pytest.mark.parametrize("kernel", ["ipykernel", "shell"])
async def test_a_reply_from_a_sandbox_carries_the_record(tmp_path: Path, kernel: str) -> None:
    """What the kernel itself opens for a cell is no file of the cell's; the requests answer."""
    (tmp_path / "data").write_bytes(b"12345678")
    configure = {
        "do": "configure", "archive": base64.b64encode(work_archive()).decode(), "key": "00" * 32,
        "chat": "chat", "notebook": "nb", "directory": ".ivy/nb", "receipts": True,
        "checkpoints": False,
    }  # fmt: skip
    runner = BareRunner(sys.executable, (), tmp_path)
    agent = tempfile.mkdtemp(prefix="ivy-")  # a socket's path is short
    async with route_over(runner, agent, kernel=kernel) as far:
        await far.route.open()
        await far.run("pass")
        await far.route.work(configure)
        code = "open('out', 'w').write(open('data').read() * 2)"
        first = (await far.run(code)).outcome.metadata["ivy"]
        record = first["receipt"]
        assert record["code"] == sha256(code.encode())
        assert files(record, "reads") == {"data": sha256(b"12345678")}
        assert files(record, "writes") == {"out": sha256(b"1234567812345678")}
        assert (record["fate"], record["incomplete"]) == ("ok", "")
        failed = (await far.run("import pandas, pyarrow, matplotlib.pyplot\n1 / 0")).outcome
        second = failed.metadata["ivy"]["receipt"]
        assert (second["fate"], second["previous"]) == ("error", record["hash"])
        assert (second["reads"], second["writes"], second["incomplete"]) == ([], [], "")
        summary = await far.route.work({"do": "receipt"})
        assert (summary["head"], summary["count"]) == (second["hash"], 2)
        packages = await far.route.work({"do": "packages"})
        assert packages["pip"] == first["lock"]["pip"] == summary["packages"]["pip"]
        assert packages["changed"] == {}
        await far.route.work({**configure, "receipts": False})
        assert "receipt" not in (await far.run("1")).outcome.metadata.get("ivy", {})
    shutil.rmtree(agent, ignore_errors=True)
    lines = (tmp_path / ".ivy" / "nb" / "receipts" / "nb.jsonl").read_bytes().splitlines()
    assert check_chain(lines, second["hash"]) == []
