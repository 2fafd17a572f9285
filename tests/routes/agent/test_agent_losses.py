"""The kernel, the agent or the sandbox goes away: it is noticed before the next cell runs."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from far_side import Far, is_alive, kill, route_to, waits_for
from sandbox_server import RunningSandbox, running_sandbox
from waiting import eventually

from ivy_kernel.errors import SandboxLostError
from ivy_kernel.routes.events import AgentLost, KernelDied, KernelReady, OutputDropped


@pytest.fixture(scope="module")
def sandbox() -> Iterator[RunningSandbox]:
    """One server for all tests here."""
    with running_sandbox() as server:
        yield server


async def pids(far: Far) -> tuple[int, int]:
    """The agent's and the kernel's process ids."""
    ran = await far.run("import os\nx = 1\n(os.getppid(), os.getpid())")
    agent, kernel = ran.result.strip("()").split(",")
    return int(agent), int(kernel)


async def refused(far: Far, words: str) -> None:
    """The next cell is refused, once, in these words, and has not run; the one after it runs."""
    with pytest.raises(SandboxLostError, match=words) as refusal:
        await far.run("open('refused.txt', 'w')")
    assert "variables are gone" in str(refusal.value)
    ran = await far.run("import os\n('x' in globals(), os.path.exists('refused.txt'))")
    assert ran.result == "(False, False)"


@pytest.mark.parametrize("kernel", ["ipykernel", "shell"])
async def test_a_kernel_killed_between_cells(sandbox: RunningSandbox, kernel: str) -> None:
    """Killed for its memory while idle: the next cell says so instead of running."""
    async with route_to(sandbox, kernel=kernel) as far:
        _, pid = await pids(far)
        await kill(pid)
        await refused(far, "memory")
        (event,) = far.seen(KernelDied)
        assert (event.exit_code, event.is_reported) == (-signal.SIGKILL, False)


@pytest.mark.parametrize("kernel", ["ipykernel", "shell"])
async def test_a_kernel_killed_under_a_cell(sandbox: RunningSandbox, kernel: str) -> None:
    """The running cell is called lost, in its output and its reply; the next one just runs."""
    async with route_to(sandbox, kernel=kernel) as far:
        _, pid = await pids(far)
        running = far.begin("import time\nprint('on', flush=True)\ntime.sleep(60)")
        await eventually(lambda: running.text, "first output")
        os.kill(pid, signal.SIGKILL)
        ran = await running.end()
        assert ran.fate == "lost"
        assert ran.messages[-1].content == {
            key: ran.outcome.reply[key] for key in ("ename", "evalue", "traceback")
        }
        assert (await far.run("'x' in globals()")).result == "False"


async def test_a_cell_that_ends_its_own_process(sandbox: RunningSandbox) -> None:
    """os._exit is reported with its exit code."""
    async with route_to(sandbox, kernel="shell") as far:
        ran = await far.run("import os; os._exit(3)")
        assert ran.fate == "lost"
        assert "exit code 3" in ran.outcome.reply["evalue"]


async def test_an_agent_killed_between_cells(sandbox: RunningSandbox) -> None:
    """The next cell says that the agent is gone; its kernel has ended with it."""
    async with route_to(sandbox) as far:
        agent, kernel = await pids(far)
        await kill(agent)
        await refused(far, "agent has ended")
        assert len(far.seen(AgentLost)) == 1
        await eventually(lambda: not is_alive(kernel), "the kernel's end")


async def test_an_agent_killed_under_a_cell(sandbox: RunningSandbox) -> None:
    """The running cell is called lost and is not run again."""
    async with route_to(sandbox, kernel="shell") as far:
        agent, _ = await pids(far)
        running = far.begin(
            "open('once.txt', 'a').write('x')\nprint('on', flush=True)\nimport time; time.sleep(60)"
        )
        await eventually(lambda: running.text, "first output")
        os.kill(agent, signal.SIGKILL)
        ran = await running.end()
        assert ran.fate == "lost"
        assert (await far.run("open('once.txt').read()")).result == "'x'"


@pytest.mark.parametrize("removed", ["socket", "directory"])
@pytest.mark.parametrize("kernel", ["ipykernel", "shell"])
async def test_an_agent_whose_files_are_removed_keeps_the_variables(
    sandbox: RunningSandbox, kernel: str, removed: str
) -> None:
    """It lives, so it makes itself found again; a cell that comes meanwhile runs, once."""
    async with route_to(sandbox, kernel=kernel) as far:
        agent, _ = await pids(far)
        directory = Path(far.route.describe()["directory"])
        for number in range(2):
            if removed == "socket":
                (directory / "s").unlink()
            else:
                shutil.rmtree(directory)
            ran = await far.run(f"open('{directory.name}', 'a').write('{number}'); x")
            assert (ran.fate, ran.result) == ("succeeded", "1")
        assert not far.seen(AgentLost)
        assert (await far.run(f"open('{directory.name}').read()")).result == "'01'"
        await far.route.restart_kernel()  # whose program is in the directory
        assert (await far.run("'x' in globals()")).result == "False"
        await far.route.close(keep=False)
        await eventually(lambda: not is_alive(agent), "the agent's end")
        assert not directory.exists()


async def test_an_agent_that_another_one_has_replaced_ends(sandbox: RunningSandbox) -> None:
    """Two cannot be found at one place: the one that is not found leaves nothing behind."""
    async with route_to(sandbox, "replaced", session_key="r", kernel="shell") as far:
        agent, kernel = await pids(far)
        os.kill(agent, signal.SIGSTOP)
        shutil.rmtree(far.route.describe()["directory"])
        async with route_to(sandbox, "replaced", session_key="r", kernel="shell") as other:
            assert (await other.run("y = 2; y")).result == "2"
            os.kill(agent, signal.SIGCONT)
            await eventually(lambda: not is_alive(agent) and not is_alive(kernel), "their end")
            assert (await other.run("y")).result == "2"
            with pytest.raises(SandboxLostError, match="started anew"):
                await far.run("x")
            assert (await far.run("y")).result == "2"


async def test_a_sandbox_that_was_recycled(sandbox: RunningSandbox) -> None:
    """A new sandbox behind the same chat is not taken for the old one."""
    async with route_to(sandbox, "recycled", kernel="shell") as far:
        await pids(far)
        sandbox.call("POST", "/v1/sandbox/recycled/terminate", {})
        sandbox.ready("recycled")
        await refused(far, "gone")


async def test_an_agent_that_another_client_started_anew(sandbox: RunningSandbox) -> None:
    """The agent died and another client has started the next one: its nonce shows that."""
    async with (
        route_to(sandbox, "anew", session_key="k", kernel="shell") as far,
        route_to(sandbox, "anew", session_key="k", kernel="shell") as other,
    ):
        agent, _ = await pids(far)
        await kill(agent)
        await other.run("x = 2")
        with pytest.raises(SandboxLostError, match="started anew"):
            await far.run("x = 3")
        assert (await other.run("x")).result == "2"


@pytest.mark.parametrize("kernel", ["ipykernel", "shell"])
async def test_a_kernel_that_dies_again_and_again(sandbox: RunningSandbox, kernel: str) -> None:
    """While the next start is put off, a cell waits for it; one for the dead kernel is refused."""
    async with route_to(sandbox, kernel=kernel) as far:
        for _ in range(3):
            assert (await far.run("import os; os._exit(3)")).fate == "lost"
            assert (await far.run("6 * 7")).result == "42"
        _, pid = await pids(far)
        await kill(pid)
        await refused(far, "memory")


async def test_restart_needs_no_complaint_after_a_death(sandbox: RunningSandbox) -> None:
    """A user who restarts knows that the variables are gone."""
    async with route_to(sandbox, kernel="shell") as far:
        _, pid = await pids(far)
        await kill(pid)
        await far.route.restart_kernel()
        assert (await far.run("'x' in globals()")).result == "False"


async def test_output_nobody_fetched_is_dropped_and_counted(
    sandbox: RunningSandbox, tmp_path: Path
) -> None:
    """Above its limit the log drops output, says how much, and still tells how the cell ended."""
    options = {"session_key": "full", "kernel": "shell", "log_limit_bytes": 200_000}
    async with route_to(sandbox, "full", **options) as first:
        await first.run("1")
        running = first.begin(
            f"print('on', flush=True)\n{waits_for(tmp_path / 'alone')}"
            "for i in range(100):\n    print('x' * 20_000, flush=True)\n"
            f"x = 'end'\nopen({str(tmp_path / 'done')!r}, 'w').close()"
        )
        await eventually(lambda: running.text, "first output")
        await first.route.close(keep=True)
        async with route_to(sandbox, "full", **options) as second:
            await running.end()
            (tmp_path / "alone").touch()
            await eventually((tmp_path / "done").exists, "the end of the output")
            await second.route.open()
            await eventually(
                lambda: [m for m in second.background if m.channel == "shell"], "the old reply"
            )
            assert (await second.run("x")).result == "'end'"
            assert sum(event.message_count for event in second.seen(OutputDropped)) > 0


async def test_an_ipykernel_that_cannot_start_gives_way_to_the_shell(
    sandbox: RunningSandbox, tmp_path: Path
) -> None:
    """A broken ipykernel in the sandbox costs its comforts, not the cell."""
    broken = tmp_path / "ipykernel"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('broken on purpose')\n")
    async with route_to(sandbox, environment={"PYTHONPATH": str(tmp_path)}) as far:
        ran = await far.run("6 * 7")
        assert (ran.fate, ran.result) == ("succeeded", "42")
        (died,) = far.seen(KernelDied)
        assert "broken on purpose" in died.log
        assert [event.kind for event in far.seen(KernelReady)] == ["built-in shell"]


async def test_a_python_that_cannot_start_at_all_is_told(
    sandbox: RunningSandbox, tmp_path: Path
) -> None:
    """When no kernel comes up after several tries the cell ends, with the reason."""
    broken = tmp_path / "ipykernel"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('broken on purpose')\n")
    environment = {"PYTHONPATH": str(tmp_path)}
    async with route_to(sandbox, environment=environment, kernel="ipykernel") as far:
        ran = await far.run("1")
        assert ran.fate == "lost"
        assert "cannot start: ImportError: broken on purpose" in ran.outcome.reply["evalue"]


async def test_a_shutdown_ends_kernel_and_agent_and_removes_the_directory(
    sandbox: RunningSandbox,
) -> None:
    """Nothing of ours is left in the sandbox."""
    async with route_to(sandbox) as far:
        agent, kernel = await pids(far)
        directory = Path(far.route.describe()["directory"])
        assert directory.is_dir()
        assert directory.stat().st_mode & 0o077 == 0
        await far.route.close(keep=False)
        await eventually(lambda: not is_alive(agent) and not is_alive(kernel), "the end")
        assert not directory.exists()
