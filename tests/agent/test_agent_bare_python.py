"""The agent's source in a bare interpreter: nothing installed, nothing but the standard library."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from far_side import BareRunner, is_alive, route_over, waits_for
from waiting import eventually

from ivy_kernel.agent.daemon import remove_directory
from ivy_kernel.routes.agent.calls import pack
from ivy_kernel.routes.agent.frames import AgentUnresponsiveError, read_response
from ivy_kernel.routes.agent.programs import agent_archive, start_program
from ivy_kernel.routes.events import AgentOpened, KernelReady

BARE = ("-I", "-S")
VERSIONS = ("3.8", "3.9", "3.11", "3.13")


def interpreter(version: str) -> str:
    """A Python of this version on this machine; the test is skipped when there is none."""
    candidates = [shutil.which(f"python{version}") or ""]
    candidates += map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        candidates.append(sys.executable)
    for candidate in filter(None, candidates):
        tried = subprocess.run([candidate, "--version"], capture_output=True, check=False)
        if f"Python {version}.".encode() in tried.stdout:
            return candidate
    pytest.skip(f"there is no Python {version} on this machine")


@pytest.mark.parametrize("version", VERSIONS)
async def test_cells_run_in_a_bare_interpreter(version: str, place: Path) -> None:
    """Piped into python -I -S in an empty directory, the agent runs cells in its built-in shell."""
    runner = BareRunner(interpreter(version), BARE, place)
    async with route_over(runner, place) as far:
        ran = await far.run("import sys\nprint('to stdout')\nsys.version_info[:2]")
        assert ran.text == "to stdout\n"
        assert ran.result == str(tuple(map(int, version.split("."))))
        assert (await far.run("await __import__('asyncio').sleep(0, 5)")).result == "5"
        assert (await far.run("1/0")).outcome.reply["ename"] == "ZeroDivisionError"
        running = far.begin("import time\nprint('on', flush=True)\ntime.sleep(60)")
        await eventually(lambda: running.text, "first output")
        await far.route.interrupt_request(running.message_id)
        assert (await running.end()).fate == "interrupted"
        (event,) = far.seen(KernelReady)
        assert event.kind == "built-in shell"
        assert event.python_version.startswith(version)
    await eventually(lambda: not any(place.iterdir()), "an empty directory")


async def test_a_real_kernel_where_there_is_one(place: Path) -> None:
    """The same source finds ipykernel in an interpreter that has it."""
    async with route_over(BareRunner(sys.executable, (), place), place) as far:
        assert (await far.run("get_ipython().__class__.__name__")).result.startswith("'ZMQ")
        (event,) = far.seen(KernelReady)
        assert event.kind == "ipykernel"


def start(place: Path, **options: object) -> tuple[dict[str, object], dict[str, object]]:
    """Run the start program once: where the agent is, and what it says about itself."""
    program = start_program(
        key="k",
        request=pack({"attach": "t"}),
        call_id="c",
        directories=(str(place),),
        options={"kernel": "shell", **options},
    )
    done = subprocess.run(
        [sys.executable, *BARE, "-"], input=program.encode(), capture_output=True, check=True
    )
    answer = read_response({"stdout": done.stdout.decode()}, "c")
    return answer.place, answer.header


async def test_a_start_that_nobody_confirms_ends_by_itself(place: Path) -> None:
    """An agent that is not spoken to a second time goes away, its directory too."""
    where, _ = start(place, unconfirmed_seconds=3.0)
    assert Path(str(where["directory"])).exists()
    await eventually(lambda: not any(place.iterdir()), "the agent's end", 30)


async def test_an_agent_that_nobody_visits_ends_by_itself(place: Path) -> None:
    """After its idle lifetime without contact agent and kernel are gone."""
    runner = BareRunner(sys.executable, BARE, place)
    async with route_over(runner, place, idle_lifetime_seconds=3.0) as far:
        ran = await far.run("import os; (os.getppid(), os.getpid())")
        pids = [int(text) for text in ran.result.strip("()").split(",")]
        await eventually(lambda: not any(map(is_alive, pids)), "the end of both", 30)
        assert not any(place.iterdir())


async def test_a_running_cell_keeps_the_agent_alive(place: Path, tmp_path: Path) -> None:
    """The idle lifetime does not count while a cell runs that nobody listens to."""
    runner = BareRunner(sys.executable, BARE, place)
    async with route_over(runner, place, session_key="k", idle_lifetime_seconds=3.0) as first:
        running = first.begin(waits_for(tmp_path / "go-on") + "x = 'whole'")
        await eventually(lambda: runner.calls >= 3, "the submission")
        await eventually(lambda: first.route.describe()["kernel_kind"], "the kernel")
        await first.route.close(keep=True)
        await running.end()
        await asyncio.sleep(4.0)  # longer than the lifetime: nobody speaks to the agent
        async with route_over(runner, place, session_key="k") as second:
            await second.route.open()
            (tmp_path / "go-on").touch()
            assert (await second.run("x")).result == "'whole'"


async def test_two_starts_at_once_give_one_agent(place: Path) -> None:
    """Whoever comes second finds the agent of the first."""
    answers = await asyncio.gather(*(asyncio.to_thread(start, place) for _ in range(4)))
    assert len({header["nonce"] for _, header in answers}) == 1
    assert max(str(where["how"]) for where, _ in answers) == "started"
    agents = list(place.iterdir())
    assert len(agents) == 1
    lock = agents[0] / "lock"
    assert lock.exists()
    await end_all(place)


async def end_all(place: Path) -> None:
    """End the agents that serve below a directory."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(place).encode() in command and b"serve" in command:
                os.kill(int(entry.name), signal.SIGTERM)
    await eventually(lambda: not any(place.iterdir()), "the agents' end")


@pytest.mark.parametrize("spoil", ["open", "symlink", "file"])
async def test_a_directory_that_others_can_enter_is_refused(place: Path, spoil: str) -> None:
    """Where the private directory is not private no agent is started in it."""
    name = place / f".ivy-{os.getuid()}-k"
    if spoil == "open":
        name.mkdir(mode=0o777)
        name.chmod(0o777)
    elif spoil == "symlink":
        (place / "elsewhere").mkdir(mode=0o700)
        name.symlink_to(place / "elsewhere")
    else:
        name.write_text("")
    with pytest.raises(AgentUnresponsiveError, match=r"private|File exists"):
        start(place)
    assert not list(place.rglob("agent.zip"))


async def test_a_found_agent_is_told_apart_from_a_started_one(place: Path) -> None:
    """A second route with the same key finds the variables of the first."""
    runner = BareRunner(sys.executable, BARE, place)
    async with route_over(runner, place, session_key="k") as first:
        await first.run("x = 41")
        await first.route.close(keep=True)
        async with route_over(runner, place, session_key="k") as second:
            assert (await second.run("x + 1")).result == "42"
            assert second.seen(AgentOpened)[0].is_found


def test_the_archive_is_the_same_bytes_for_the_same_source() -> None:
    """Nothing of the time or the machine gets into what travels, and it stays small."""
    first = agent_archive()
    agent_archive.cache_clear()
    assert agent_archive() == first
    program = start_program(key="k", request=pack({}), call_id="c")
    assert len(program) < 64_000


def test_the_directory_goes_even_without_its_socket(place: Path) -> None:
    """A socket that somebody has removed already keeps nothing from being cleaned up."""
    directory = place / "ours"
    directory.mkdir()
    (directory / "agent.log").touch()
    remove_directory(str(directory))
    assert not directory.exists()
