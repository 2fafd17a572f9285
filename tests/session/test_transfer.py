"""Transfers: whole, verified and resumed, whatever happens on the way."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from faulty_gateway import Fault, Gateway, faulty_gateway
from sandbox_files import files_of
from sandbox_server import RunningSandbox

from ivy_kernel.errors import (
    ChangedFileError,
    FileExistsInSandboxError,
    ForbiddenError,
    TransferInterruptedError,
)
from ivy_kernel.routes import file_access
from ivy_kernel.session import large_files, transfer
from ivy_kernel.session.files import SandboxFiles
from ivy_kernel.session.transfer import ChunkSize, TransferState

CHAT = "transfer"
SIZE = 700_001
CUTS = 20 if os.environ.get("IVY_TEST_THOROUGH") else 6


@pytest.fixture(scope="module")
def active(server: RunningSandbox) -> Path:
    """The directory of the chat that this module uses."""
    server.ready(CHAT)
    return server.root / CHAT


@pytest.fixture
def workspace(active: Path) -> Iterator[Path]:
    """The same, emptied after each test."""
    yield active
    for path in active.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.fixture(scope="module")
def gateway(server: RunningSandbox) -> Iterator[Gateway]:
    """A gateway before the server, through which all transfers of this module go."""
    with faulty_gateway(server) as running:
        yield running


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 16 KiB, so that a small file has many."""
    monkeypatch.setattr(transfer, "SMALL_BYTES", 4 << 10)
    monkeypatch.setattr(large_files, "SMALLEST_RANGE_BYTES", 16 << 10)
    monkeypatch.setattr(ChunkSize.__init__, "__defaults__", (16 << 10, 4 << 10, 64 << 10))


@pytest.fixture
async def files(gateway: Gateway, workspace: Path) -> AsyncIterator[SandboxFiles]:
    """The files of the chat."""
    gateway.faults.clear()
    gateway.always = None
    opened = files_of(gateway, CHAT)
    yield opened
    await opened.aclose()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file that does not shrink, of an odd size."""
    path = tmp_path / "source.bin"
    path.write_bytes(os.urandom(SIZE))
    return path


class Watcher:
    """Keeps the states of a transfer, and may do something at a certain number of bytes."""

    def __init__(self, at_bytes: int = -1, act: Callable[[], object] = lambda: None) -> None:
        self.states: list[TransferState] = []
        self._at_bytes, self._act = at_bytes, act

    def on_progress(self, state: TransferState) -> None:
        """Take a state."""
        self.states.append(state)
        if 0 <= self._at_bytes <= state.done_bytes:
            self._at_bytes = -1
            self._act()


@pytest.fixture
def told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress is told with each chunk."""
    monkeypatch.setattr(transfer, "PROGRESS_SECONDS", 0.0)


def leftovers(place: Path) -> list[str]:
    """The part files in a directory."""
    return [path.name for path in place.iterdir() if path.suffix == ".part"]


async def test_a_file_comes_there_and_back_equal(
    files: SandboxFiles, source: Path, workspace: Path, tmp_path: Path, told_at_once: None
) -> None:
    """Content and SHA-256 are equal; how far it has come is told; no part is left."""
    watcher = Watcher()
    result = await files.put(source, "big.bin", progress=watcher)
    content = source.read_bytes()
    assert (workspace / "big.bin").read_bytes() == content
    assert result.sha256 == {"big.bin": hashlib.sha256(content).hexdigest()}
    assert (result.files, result.total_bytes, result.sent_bytes) == (1, SIZE, SIZE)
    assert watcher.states[-1].done_bytes == watcher.states[-1].total_bytes == SIZE
    assert watcher.states[-1].method == files.method
    back = await files.get("big.bin", tmp_path / "back.bin")
    assert (tmp_path / "back.bin").read_bytes() == content
    assert back.sha256 == result.sha256
    assert leftovers(workspace) == leftovers(tmp_path) == []


async def test_equal_files_are_not_moved_again(
    files: SandboxFiles, source: Path, tmp_path: Path
) -> None:
    """What is there already and equal is told as such; what differs is left alone."""
    await files.put(source, "same.bin")
    again = await files.put(source, "same.bin")
    assert (again.skipped, again.sent_bytes, again.total_bytes) == (1, 0, SIZE)
    back = await files.get("same.bin", source)
    assert (back.skipped, back.sent_bytes) == (1, 0)
    other = tmp_path / "other"
    other.write_bytes(os.urandom(SIZE))
    with pytest.raises(FileExistsInSandboxError, match=r"same.bin.*--force"):
        await files.put(other, "same.bin")
    with pytest.raises(FileExistsInSandboxError, match=r"same.bin.*--force"):
        await files.get("same.bin", other)
    await files.put(other, "same.bin", overwrite=True)
    assert (await files.get("same.bin", other)).skipped == 1


@pytest.mark.parametrize("direction", ["up", "down"])
async def test_many_cuts_are_resumed(
    direction: str,
    gateway: Gateway,
    files: SandboxFiles,
    source: Path,
    workspace: Path,
    tmp_path: Path,
    told_at_once: None,
) -> None:
    """Each try goes on where the one before was cut, and nothing is seen under the final name."""
    there, back = workspace / f"{direction}.bin", tmp_path / "back.bin"
    content = source.read_bytes()
    if direction == "down":
        there.write_bytes(content)
    moved = 0
    for cut in range(1, CUTS + 1):
        loop = asyncio.get_running_loop()
        opened = files_of(gateway, CHAT)  # as a process that was started anew
        state = Watcher()
        work = (
            opened.put(source, there.name, progress=state)
            if direction == "up"
            else opened.get(there.name, back, progress=state)
        )
        task = loop.create_task(work)
        state._at_bytes, state._act = SIZE * cut // (CUTS + 1), task.cancel
        with pytest.raises(asyncio.CancelledError):
            await task
        await opened.aclose()
        moved += state.states[-1].done_bytes - state.states[-1].resumed_bytes
        assert not (there if direction == "up" else back).exists()
        assert len(leftovers(workspace if direction == "up" else tmp_path)) == 1
    if direction == "up":
        result = await files.put(source, there.name)
    else:
        result = await files.get(there.name, back)
    assert result.resumed_bytes > SIZE // 2
    assert moved + result.sent_bytes < SIZE * 3  # each cut costs what was in flight, no more
    assert there.read_bytes() == content
    assert direction == "up" or back.read_bytes() == content
    assert leftovers(workspace) == leftovers(tmp_path) == []


async def test_faults_of_all_kinds_do_not_hurt(
    gateway: Gateway,
    files: SandboxFiles,
    source: Path,
    workspace: Path,
    tmp_path: Path,
    told_at_once: None,
) -> None:
    """Lost answers, refusals and gateways' errors are repeated, and the file is equal."""
    await files.list()
    faults = [
        Fault("cut"),
        Fault("after", 502),
        Fault("instead", 503, "{}"),
        Fault("instead", 429, "{}", {"Retry-After": "0"}),
        Fault("instead", 500),
        Fault("instead", 504),
        Fault("after", 200, '{"stdout": "nothing"}'),
    ]
    gateway.next_tool_calls(*faults)

    def too_large() -> None:
        gateway.next_tool_calls(Fault("instead", 413))

    await files.put(source, "faults.bin", progress=Watcher(SIZE // 2, too_large))
    gateway.next_tool_calls(*faults)
    await files.get("faults.bin", tmp_path / "faults.bin")
    assert (tmp_path / "faults.bin").read_bytes() == source.read_bytes()
    assert (workspace / "faults.bin").read_bytes() == source.read_bytes()


async def test_the_last_calls_answer_may_be_lost(
    gateway: Gateway,
    files: SandboxFiles,
    source: Path,
    workspace: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file that has got its name in a call without an answer counts as brought."""
    await files.list()
    access = (await files._ready()).access
    finish = access.finish

    async def losing(*arguments: object, **more: object) -> object:
        gateway.next_tool_calls(Fault("cut"))
        monkeypatch.undo()
        return await finish(*arguments, **more)  # type: ignore[arg-type]  # as given

    monkeypatch.setattr(access, "finish", losing)
    await files.put(source, "lost.bin")
    assert (workspace / "lost.bin").read_bytes() == source.read_bytes()


async def test_patience_ends_with_what_to_do(
    gateway: Gateway, workspace: Path, source: Path, tmp_path: Path, told_at_once: None
) -> None:
    """Without progress it ends, says how much has arrived, and the same command goes on."""
    files = files_of(gateway, CHAT, patience_seconds=0.5)

    def outage() -> None:
        gateway.always = Fault("instead", 503, "{}")

    with pytest.raises(
        TransferInterruptedError, match=r"of 700001 bytes have arrived.*same command"
    ):
        await files.put(source, "patience.bin", progress=Watcher(SIZE // 2, outage))
    gateway.always = None
    result = await files.put(source, "patience.bin")
    assert result.resumed_bytes > SIZE // 3
    await files.aclose()


async def test_a_refusal_is_told_at_once(
    gateway: Gateway, files: SandboxFiles, source: Path
) -> None:
    """What repeating does not change is not repeated."""
    await files.list()
    gateway.always = Fault("instead", 403, "{}")
    with pytest.raises(ForbiddenError):
        await files.put(source, "forbidden.bin")


async def test_a_file_that_changes_is_told(
    files: SandboxFiles, source: Path, workspace: Path, tmp_path: Path, told_at_once: None
) -> None:
    """Content of two moments is never put together under one name."""
    there = workspace / "changing.bin"
    there.write_bytes(source.read_bytes())

    def change() -> None:
        with there.open("r+b") as file:
            file.seek(SIZE - 10)
            file.write(b"changed")

    with pytest.raises(ChangedFileError, match=r"changing.bin"):
        await files.get(there.name, tmp_path / "changing.bin", progress=Watcher(SIZE // 3, change))
    assert not (tmp_path / "changing.bin").exists()

    def change_here() -> None:
        with source.open("r+b") as file:
            file.write(b"changed")

    with pytest.raises(ChangedFileError, match="changed while it was sent"):
        await files.put(source, "changing-up.bin", progress=Watcher(SIZE // 3, change_here))
    assert not (workspace / "changing-up.bin").exists()


async def test_what_was_damaged_in_the_part_is_sent_again(
    files: SandboxFiles, source: Path, workspace: Path, told_at_once: None
) -> None:
    """The part file is compared as a whole before it gets its name."""

    def damage() -> None:
        (name,) = leftovers(workspace)
        with (workspace / name).open("r+b") as file:
            file.write(b"damaged")

    await files.put(source, "damaged.bin", progress=Watcher(SIZE // 2, damage))
    assert (workspace / "damaged.bin").read_bytes() == source.read_bytes()


async def test_old_part_files_go_at_the_next_transfer(
    files: SandboxFiles, source: Path, workspace: Path, tmp_path: Path
) -> None:
    """Those of a week ago are removed on both sides, younger ones and others' files stay."""
    for place in (workspace, tmp_path):
        for name, days in ((f".ivy-{'a' * 32}.part", 8), (f".ivy-{'b' * 32}.part", 6)):
            (place / name).write_bytes(b"x")
            os.utime(place / name, (time.time() - days * 86400,) * 2)
    (workspace / "other.part").write_bytes(b"x")
    os.utime(workspace / "other.part", (0, 0))
    await files.put(source, "sweep.bin")
    await files.get("sweep.bin", tmp_path / "sweep.bin")
    assert sorted(leftovers(workspace)) == [f".ivy-{'b' * 32}.part", "other.part"]
    assert leftovers(tmp_path) == [f".ivy-{'b' * 32}.part"]


@pytest.mark.parametrize(
    "limits",
    [
        {"max_code_chars": 20_000},
        {"stdout_limit_chars": 20_000},
        {"runner": "serial", "result_family": "nbformat_lines"},
        {"result_family": "mcp", "result_nesting": "result_json"},
    ],
    ids=str,
)
async def test_platforms_with_small_limits_get_smaller_chunks(
    limits: dict[str, object],
    files: SandboxFiles,
    changed: Callable[..., None],
    workspace: Path,
    tmp_path: Path,
) -> None:
    """A call that is refused for its size, or an answer that is cut, is made smaller."""
    changed(**limits)
    source = tmp_path / "limited"
    source.write_bytes(os.urandom(150_000))
    await files.put(source, "limited")
    await files.get("limited", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == source.read_bytes()
    await files.write("limited-2", source.read_bytes()[:70_000])
    assert await files.read("limited-2") == source.read_bytes()[:70_000]
    assert b"".join([piece async for piece in files.stream("limited")]) == source.read_bytes()


async def test_where_no_python_runs_the_platforms_tools_are_used(
    server: RunningSandbox,
    workspace: Path,
    changed: Callable[..., None],
    source: Path,
    tmp_path: Path,
) -> None:
    """Binary files come there and back, verified; which way was used is told."""
    changed(python="/nonexistent/python")
    files = files_of(server, CHAT)
    result = await files.put(source, "tools/big.bin")
    assert "sandbox_write" in result.method
    assert (workspace / "tools/big.bin").read_bytes() == source.read_bytes()
    back = await files.get("tools/big.bin", tmp_path / "back.bin")
    assert back.sha256 == {"tools/big.bin": hashlib.sha256(source.read_bytes()).hexdigest()}
    assert (tmp_path / "back.bin").read_bytes() == source.read_bytes()
    with pytest.raises(FileExistsInSandboxError):
        await files.write("tools/big.bin", b"other")
    await files.write("tools/it's", b"\xff\0small")
    assert await files.read("tools/it's") == b"\xff\0small"
    assert [each.name for each in (await files.list("tools")).entries] == ["big.bin", "it's"]
    assert [each.path for each in (await files.glob("tools/*.bin")).entries] == ["tools/big.bin"]
    await files.rename("tools/it's", "tools/new")
    await files.copy("tools/new", "tools/copy")
    await files.make_directory("tools/deep/er")
    assert await files.remove("tools", recursive=True) == 3
    assert not (workspace / "tools").exists()
    await files.aclose()


async def test_a_runner_with_short_arguments_gets_shorter_code(
    server: RunningSandbox,
    workspace: Path,
    changed: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A runner that passes code as an argument takes 128 KiB: a chunk that does not fit shrinks."""
    monkeypatch.undo()
    changed(runner="python_dash_c")
    files = files_of(server, CHAT)
    source = tmp_path / "long"
    source.write_bytes(os.urandom(1_200_000))
    await files.put(source, "long")
    assert (workspace / "long").read_bytes() == source.read_bytes()
    await files.aclose()


@pytest.fixture
def swift(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a test's size count as large, and are gathered when they are 128 KiB."""
    monkeypatch.setattr(file_access, "SMALLEST_SWIFT_BYTES", 4 << 10)
    monkeypatch.setattr(large_files, "GATHERED_BYTES", 128 << 10)


def writes(gateway: Gateway) -> int:
    """How often the platform's own tool has written."""
    return sum(path.endswith("/sandbox_write") for _, path in gateway.calls)


async def test_large_chunks_are_written_by_the_platforms_own_tool(
    gateway: Gateway, files: SandboxFiles, source: Path, workspace: Path, swift: None
) -> None:
    """Once the first has proved exact, no Python is started for one; no piece stays behind."""
    gateway.calls.clear()
    await files.put(source, "swift.bin")
    assert (workspace / "swift.bin").read_bytes() == source.read_bytes()
    assert [path.name for path in workspace.iterdir()] == ["swift.bin"]
    assert gateway.tool_calls() - writes(gateway) < writes(gateway)


async def test_pieces_of_an_upload_that_was_cut_are_not_sent_again(
    gateway: Gateway,
    files: SandboxFiles,
    source: Path,
    workspace: Path,
    told_at_once: None,
    swift: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What lies there in pieces counts as brought, and faults on the way do no harm."""
    monkeypatch.setattr(large_files, "GATHERED_BYTES", SIZE)
    watcher = Watcher()
    task = asyncio.ensure_future(files.put(source, "pieces.bin", progress=watcher))
    watcher._at_bytes, watcher._act = SIZE // 2, task.cancel
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len([path for path in workspace.iterdir() if ".part-" in path.name]) > 3

    def fault() -> None:
        gateway.next_tool_calls(Fault("cut"), Fault("after", 502), Fault("instead", 503, "{}"))

    result = await files.put(source, "pieces.bin", progress=Watcher(SIZE * 3 // 4, fault))
    assert result.resumed_bytes > SIZE // 3
    assert (workspace / "pieces.bin").read_bytes() == source.read_bytes()
    assert [path.name for path in workspace.iterdir()] == ["pieces.bin"]


@pytest.mark.parametrize("right", [0, 8])
async def test_a_tool_that_does_not_write_what_it_is_given_is_noticed(
    right: int,
    gateway: Gateway,
    files: SandboxFiles,
    source: Path,
    workspace: Path,
    swift: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the first piece on, or only after some were right: the file is what was sent."""
    await files.list()
    access = (await files._ready()).access
    write = access._tool_files.write_file  # type: ignore[attr-defined]  # programs are used here
    done = 0

    async def wrong(parts: tuple[str, ...], data: bytes) -> None:
        nonlocal done
        done += 1
        await write(parts, data if done <= right else b"wrong" + data[5:])

    monkeypatch.setattr(access._tool_files, "write_file", wrong)  # type: ignore[attr-defined]  # likewise
    await files.put(source, "noticed.bin")
    assert (workspace / "noticed.bin").read_bytes() == source.read_bytes()
    assert [path.name for path in workspace.iterdir()] == ["noticed.bin"]
    assert right or done <= transfer.IN_FLIGHT  # each of the first ones was on its way already


async def test_progress_is_told_on_the_event_loop(
    files: SandboxFiles, workspace: Path, tmp_path: Path, told_at_once: None
) -> None:
    """Of small files as of large ones, so that a watcher may touch what belongs to it."""
    for number in range(3):
        (workspace / f"{number}").write_bytes(b"x" * number * 9_000)
    threads: set[int] = set()

    class Listener:
        def on_progress(self, state: TransferState) -> None:
            threads.add(threading.get_ident())

    await files.get("", tmp_path / "small", recursive=True, progress=Listener())
    assert threads == {threading.get_ident()}
