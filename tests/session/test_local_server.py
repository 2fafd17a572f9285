"""The one local sandbox of a user: found by all, started on demand, replaced when it is gone."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from waiting import eventually

from ivy_kernel.api.auth import Credential
from ivy_kernel.api.clients import IvyClient
from ivy_kernel.api.connection import Connection
from ivy_kernel.errors import NotSentError
from ivy_kernel.session import local_server
from ivy_kernel.session.local_server import LocalServer, find, find_or_start, runtime_file
from ivy_kernel.session.open import open_lifecycle
from ivy_kernel.settings.live import LiveSettings

REPOSITORY = Path(__file__).resolve().parents[2]


def is_gone(process_id: int) -> bool:
    """Whether a process has ended, reaped or not."""
    try:
        return psutil.Process(process_id).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def family(process_id: int) -> list[int]:
    """A process and all below it."""
    process = psutil.Process(process_id)
    return [process_id, *(child.pid for child in process.children(recursive=True))]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """After each test the server is ended, and every process that was started for it is gone."""
    before = len(local_server._started)
    yield
    found = find()
    processes = [psutil.Process(found.process_id)] if found is not None else []
    local_server.stop()
    _, alive = psutil.wait_procs(processes, timeout=20)
    assert not alive
    for process in local_server._started[before:]:
        process.wait(timeout=20)
    assert find() is None


@pytest.fixture
def bystander() -> Iterator[int]:
    """A living process that is no server; whatever goes wrong here, no other one is harmed."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.kill()
    process.communicate()


async def start(idle_exit_seconds: float = 600) -> LocalServer:
    """The server of this test."""
    return await find_or_start(idle_exit_seconds=idle_exit_seconds)


def start_with(settings: dict[str, str]) -> None:
    """Start the server of this test with settings of its own."""
    command = local_server.server_command(idle_exit_seconds=600)
    argv = [sys.executable, *command, "--config", json.dumps(settings)]
    local_server._started.append(subprocess.Popen(argv, stdout=subprocess.DEVNULL))


async def state_of(found: LocalServer) -> str:
    """What its API says of a chat."""
    client = IvyClient(Connection(found.url, Credential(lambda: found.token)), retry_seconds=0)
    try:
        return str((await client.status("chat-1")).body["status"])
    finally:
        await client.aclose()


async def test_it_is_started_once_and_then_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are private, its token works, and it has no key of ours."""
    monkeypatch.setenv("IVY_API_KEY", "ivy_Sekret-key")
    monkeypatch.setenv("RECOUP_API_KEY", "Sekret-key")
    monkeypatch.setenv("JPY_SESSION_NAME", "Sekret.ipynb")
    assert find() is None
    first = await start()
    assert await start() == first
    assert find() == first
    assert await state_of(first) == "none"
    for path in (runtime_file(), runtime_file().with_suffix(".log")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert first.token not in repr(first)
    for process_id in family(first.process_id):
        process = psutil.Process(process_id)
        assert "Sekret" not in str(process.environ())
        assert first.token not in str(process.cmdline())


async def test_two_starters_at_once_end_up_with_one_server() -> None:
    """Kernels of several notebooks that open together, in one process and in others."""
    code = (
        "import asyncio\nfrom ivy_kernel.session import local_server\n"
        "print(asyncio.run(local_server.find_or_start(idle_exit_seconds=600)).process_id)"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    others = [
        subprocess.Popen(  # noqa: ASYNC220 - starting it takes no time
            [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    ours = await asyncio.gather(*(start() for _ in range(3)))
    theirs = [int((await asyncio.to_thread(other.communicate, timeout=60))[0]) for other in others]
    assert len({*(found.process_id for found in ours), *theirs}) == 1
    assert await state_of(ours[0]) == "none"


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o622, 0o601])
async def test_a_runtime_file_that_others_could_touch_is_ignored(mode: int) -> None:
    """They could have read the token, or put a server of theirs there."""
    found = await start()
    runtime_file().chmod(mode)
    assert find() is None
    runtime_file().chmod(0o600)
    assert find() == found


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
async def test_a_runtime_file_of_another_owner_is_ignored() -> None:
    """Whoever owns it wrote it."""
    found = await start()
    os.chown(runtime_file(), 12345, 12345)
    assert find() is None
    os.chown(runtime_file(), os.getuid(), os.getgid())
    assert find() == found


async def test_a_runtime_file_that_is_a_link_is_ignored(tmp_path: Path) -> None:
    """It may lead to a file that was made for another purpose."""
    found = await start()
    moved = runtime_file().rename(tmp_path / "moved.json")
    runtime_file().symlink_to(moved)
    assert find() is None
    runtime_file().unlink()
    moved.rename(runtime_file())
    assert find() == found


@pytest.mark.parametrize(
    "change",
    [
        {"url": "http://example.org/api"},
        {"url": "https://u:p@h"},
        {"url": 5},
        {"pid": "x"},
        {"pid": None},
        {"pid": 2**40},
        {"pid": -1},
        {"token": None, "url": None},
        None,
    ],
)
async def test_a_runtime_file_that_makes_no_sense_is_ignored(
    change: dict[str, Any] | None, bystander: int
) -> None:
    """A key is never sent where it says; a new server is simply started."""
    runtime_file().parent.mkdir(parents=True, exist_ok=True)
    facts = {"url": "http://127.0.0.1:1/api", "token": "t", "pid": bystander}
    runtime_file().write_text("[]" if change is None else json.dumps({**facts, **change}))
    runtime_file().chmod(0o600)
    assert find() is None
    runtime_file().unlink()


async def test_the_number_of_a_process_that_is_no_server_is_not_trusted(bystander: int) -> None:
    """A killed server's number may be another program's now, or that of a dead child."""
    runtime_file().parent.mkdir(parents=True, exist_ok=True)
    zombie = subprocess.Popen(  # noqa: ASYNC220 - asyncio would reap it
        [sys.executable, "-c", "pass", "ivy_kernel.local_sandbox"]
    )
    await eventually(lambda: is_gone(zombie.pid), "the child's end", 20)
    for process_id in (bystander, zombie.pid):
        facts = {"url": "http://127.0.0.1:1/api", "token": "t", "pid": process_id}
        runtime_file().write_text(json.dumps(facts))
        runtime_file().chmod(0o600)
        assert find() is None
    zombie.wait()
    found = await start()
    assert await state_of(found) == "none"


async def test_a_server_that_was_killed_is_replaced() -> None:
    """SIGKILL for all its processes leaves its file behind; a new one takes over."""
    first = await start()
    processes = family(first.process_id)
    for process_id in reversed(processes):
        with suppress(ProcessLookupError):
            os.kill(process_id, signal.SIGKILL)
    await eventually(lambda: all(map(is_gone, processes)), "the end of all its processes", 20)
    assert runtime_file().exists()
    assert find() is None
    second = await start()
    assert second.process_id != first.process_id
    assert await state_of(second) == "none"


async def test_who_talks_to_a_killed_server_soon_talks_to_a_new_one() -> None:
    """Through settings and lifecycle, as kernel and panel do; nobody waits for the dead one."""
    lifecycle = open_lifecycle(LiveSettings())
    assert (await lifecycle.status()).state == "none"
    first = find()
    assert first is not None
    processes = family(first.process_id)
    os.kill(first.process_id, signal.SIGKILL)
    await eventually(lambda: all(map(is_gone, processes)), "the end of all its processes", 20)
    begin = time.monotonic()
    assert (await lifecycle.status()).state == "none"
    assert time.monotonic() - begin < 10
    second = find()
    assert second is not None
    assert second.process_id != first.process_id
    await lifecycle.aclose()


async def test_an_idle_server_ends_and_the_next_use_starts_another() -> None:
    """It takes its file along and leaves no process."""
    first = await start(idle_exit_seconds=1)
    processes = family(first.process_id)
    await eventually(lambda: not runtime_file().exists(), "the idle exit", 20)
    await eventually(lambda: all(map(is_gone, processes)), "the end of all its processes", 20)
    assert find() is None
    second = await start()
    assert second.process_id != first.process_id


async def test_stopping_ends_it_with_all_its_processes() -> None:
    """And says whether there was one."""
    assert local_server.stop() is False
    found = await start()
    processes = family(found.process_id)
    assert len(processes) >= 2
    assert local_server.stop() is True
    await eventually(lambda: all(map(is_gone, processes)), "the end of all its processes", 20)
    assert not runtime_file().exists()
    assert local_server.stop() is False


async def test_a_server_that_cannot_start_is_told_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Soon, and the log says why."""
    blocked = tmp_path / "data"
    blocked.write_text("a file, where a directory is needed")
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(blocked))
    with pytest.raises(NotSentError, match="did not start; its log is") as caught:
        await start()
    log = runtime_file().with_suffix(".log")
    assert str(log) in str(caught.value)
    assert "NotADirectoryError" in log.read_text()


async def test_a_starter_that_hangs_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lock is somebody else's; the event loop goes on meanwhile."""
    monkeypatch.setattr(local_server, "START_TIMEOUT_SECONDS", 0.3)
    runtime_file().parent.mkdir(parents=True, exist_ok=True)
    with (runtime_file().parent / "ivy-local-sandbox.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = asyncio.ensure_future(start())
        await asyncio.sleep(0)
        assert not waiting.done()
        with pytest.raises(NotSentError, match="Another program is starting"):
            await asyncio.wait_for(waiting, 5)


async def test_a_start_that_is_interrupted_leaves_no_second_server() -> None:
    """The user interrupts, and at once runs the cell again: there is one server in the end."""
    before = len(local_server._started)
    first = asyncio.ensure_future(start())
    await eventually(lambda: len(local_server._started) > before, "the start of the process", 20)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = await start()
    dead = local_server._started[before]
    await eventually(lambda: dead.poll() is not None, "the end of the first one", 20)
    assert second.process_id != dead.pid
    assert find() == second
    assert await state_of(second) == "none"


@pytest.mark.parametrize("own_key", ["", "key-of-recoups-own"])
async def test_its_countdowns_need_no_setting(
    monkeypatch: pytest.MonkeyPatch, own_key: str
) -> None:
    """It speaks both dialects, so whoever has no account sees uptime and deadlines together."""
    monkeypatch.setenv("RECOUP_API_KEY", own_key)
    monkeypatch.setenv("RECOUP_API_URL", "https://recoup.invalid")
    await asyncio.to_thread(start_with, {"profile": "cloud"})
    await eventually(lambda: find() is not None, "it listens")
    lifecycle = open_lifecycle(LiveSettings(arguments={"api_url": "local"}))
    try:
        none = await lifecycle.status()
        assert (none.state, none.unknown) == ("none", ()), "there is no session yet, and no fault"
        await lifecycle.create()
        status = await lifecycle.wait_until_ready()
        status = await lifecycle.status()
        shown = status.to_json(status.received_monotonic)
    finally:
        await lifecycle.aclose()
    assert (shown["state"], shown["unknown"], shown["keeps_awake"]) == ("active", [], True)
    assert 290_000 < shown["hibernates_in_ms"] <= 300_000
    assert 1_790_000 < shown["expires_in_ms"] <= 1_800_000
    assert shown["uptime_ms"] is not None
