"""Calls are refused, or the agent is gone meanwhile: what a cell is told, and what starts none."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from far_side import BareRunner, Far, RefusingTools, Running, is_alive, kill, route_over, wrong_key
from waiting import eventually

from ivy_kernel.errors import CredentialsError, NoAnswerError, SandboxLostError
from ivy_kernel.models import Message
from ivy_kernel.routes.events import AgentOpened

HEALTH = "ivy_kernel.routes.agent.failures"


@pytest.fixture
async def far(place: Path) -> AsyncIterator[Far]:
    """A session whose calls can be made to fail."""
    tools = RefusingTools(BareRunner(sys.executable, (), place))
    async with route_over(tools, place, kernel="shell") as far:
        yield far


async def begun(far: Far) -> tuple[Running, int, int]:
    """A cell that goes on for a while, and the agent's and the kernel's process ids."""
    ran = await far.run("import os\nx = 1\n(os.getppid(), os.getpid())")
    agent, kernel = ran.result.strip("()").split(",")
    running = far.begin("import time\nprint('on', flush=True)\ntime.sleep(4)\nx = 2")
    await eventually(lambda: running.text, "first output")
    return running, int(agent), int(kernel)


async def given_up(far: Far, running: Running) -> None:
    """Refuse calls until that is believed."""
    far.tools.refusal = wrong_key
    ran = await asyncio.wait_for(running.end(), 10)
    assert ran.fate == "unknown"


async def test_a_running_cell_outlives_a_moment_of_refusals(far: Far) -> None:
    """More refusals in a row than are believed otherwise do not end a cell that is running."""
    running, _, _ = await begun(far)
    far.tools.refusal = wrong_key
    await eventually(lambda: far.tools.refused >= 6, "six refusals")
    assert not running.task.done()
    far.tools.refusal = None
    assert (await asyncio.wait_for(running.end(), 15)).fate == "succeeded"


async def test_a_cell_that_was_refused_from_the_start_hears_it_soon(far: Far) -> None:
    """A key that is not accepted is told within seconds where nothing can be running."""
    await far.run("1")
    far.tools.refusal = wrong_key
    with pytest.raises(CredentialsError):
        await asyncio.wait_for(far.run("2"), 10)


async def test_variables_are_kept_when_the_same_kernel_is_found_again(
    far: Far, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After refusals that lasted, the same kernel is used again without a word."""
    monkeypatch.setattr(f"{HEALTH}.REFUSED_SECONDS", 0.3)
    running, _, _ = await begun(far)
    await given_up(far, running)
    far.tools.refusal = None
    assert (await far.run("x")).result == "2"
    assert len(far.seen(AgentOpened)) == 2


async def test_an_agent_that_was_replaced_while_calls_were_refused(
    far: Far, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next cell says that the variables are gone instead of running without them, once."""
    monkeypatch.setattr(f"{HEALTH}.REFUSED_SECONDS", 0.3)
    running, agent, kernel = await begun(far)
    await given_up(far, running)
    await kill(agent)
    await eventually(lambda: not is_alive(kernel), "the kernel's end")
    far.tools.refusal = None
    with pytest.raises(SandboxLostError, match="agent was started anew"):
        await far.run("ran = True")
    ran = await far.run("('x' in globals(), 'ran' in globals())")
    assert ran.result == "(False, False)"


async def test_a_kernel_that_died_while_calls_were_refused(
    far: Far, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next cell says so instead of running; the ones after it run, without a late word."""
    monkeypatch.setattr(f"{HEALTH}.REFUSED_SECONDS", 0.3)
    running, _, kernel = await begun(far)
    await given_up(far, running)
    await kill(kernel)
    far.tools.refusal = None
    with pytest.raises(SandboxLostError, match="variables are gone"):
        await far.run("ran = True")
    for _ in range(3):
        ran = await far.run("('x' in globals(), 'ran' in globals())")
        assert ran.result == "(False, False)"


async def test_a_death_is_told_in_every_agent(far: Far) -> None:
    """The end of an agent that had many kernels hides no end of a kernel in the next one."""
    for _ in range(2):
        await far.run("x = 1")
        await far.route.restart_kernel()
    ran = await far.run("import os; os.getppid()")
    await kill(int(ran.result))
    with pytest.raises(SandboxLostError):
        await far.run("1")
    kernel = int((await far.run("import os; os.getpid()")).result)
    await kill(kernel)
    with pytest.raises(SandboxLostError, match="memory"):
        await far.run("1")
    assert (await far.run("7")).result == "7"


async def test_a_message_without_an_end_ends_the_connection(place: Path) -> None:
    """What is larger than an agent keeps is not held: the cell's outcome is called unknown."""
    runner = BareRunner(sys.executable, (), place)
    async with route_over(runner, place, kernel="shell", log_limit_bytes=50_000) as far:
        await far.run("import random\nt = random.Random(1).randbytes(2_000_000).hex()")
        ran = await asyncio.wait_for(far.run("1", user_expressions={"e": "t"}), 20)
        assert ran.fate == "unknown"
        assert "more than 200000 bytes" in ran.outcome.reply["evalue"]


async def test_questions_and_widgets_start_no_agent(far: Far) -> None:
    """What the user did not run makes no call while there is no agent."""
    question = {"code": "x", "cursor_pos": 1}
    with pytest.raises(NoAnswerError, match="not connected"):
        await far.route.request("complete_request", question, timeout_seconds=5)
    with pytest.raises(NoAnswerError, match="not connected"):
        await far.route.send_comm({"msg_type": "comm_msg"}, {"comm_id": "c", "data": {}})
    with pytest.raises(NoAnswerError, match="not connected"):
        await far.route.answer_input("x", request=Message("input_request", {}))
    assert far.tools.calls == 0


async def test_questions_do_not_look_for_an_agent_that_was_lost(far: Far) -> None:
    """After the end of the agent, questions make no calls until a cell has found the next."""
    ran = await far.run("import os; os.getppid()")
    await kill(int(ran.result))
    with pytest.raises(SandboxLostError):
        await far.run("1")
    calls = far.tools.calls
    for _ in range(3):
        with pytest.raises(NoAnswerError):
            await far.route.request("comm_info_request", {}, timeout_seconds=5)
    assert far.tools.calls == calls
