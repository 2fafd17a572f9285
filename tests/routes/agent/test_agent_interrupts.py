"""Interrupts where they are easily lost: before a cell is sent, in an outage, in a callback."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from far_side import BareRunner, Far, RefusingTools, not_ready, route_over, text_of
from waiting import eventually

from ivy_kernel.errors import NoAnswerError


@pytest.fixture
async def far(place: Path) -> AsyncIterator[Far]:
    """A session whose calls can be made to fail."""
    tools = RefusingTools(BareRunner(sys.executable, (), place), delay_seconds=0.2)
    async with route_over(tools, place, kernel="shell") as far:
        yield far


async def has_run(far: Far) -> bool:
    """Whether a cell that defines ``ran`` has run."""
    return (await far.run("'ran' in globals()")).result == "True"


async def test_a_cell_that_was_refused_is_taken_back_at_the_first_interrupt(far: Far) -> None:
    """A cell that the platform has not taken ends as not run, and does not run later."""
    await far.run("1")
    far.tools.refusal = not_ready
    running = far.begin("ran = True")
    await eventually(lambda: far.tools.refused, "the first refusal")
    assert await far.route.interrupt_request(running.message_id, deadline_seconds=4) == "finished"
    ran = await asyncio.wait_for(running.end(), 1)
    assert ran.fate == "interrupted"
    assert "before it ran" in ran.outcome.reply["evalue"]
    far.tools.refusal = None
    assert not await has_run(far)


async def test_a_cell_is_taken_back_between_two_tries(far: Far) -> None:
    """With no call under way it takes no call at all to take a refused cell back."""
    await far.run("1")
    far.tools.refusal = not_ready
    running = far.begin("ran = True")
    await eventually(lambda: far.tools.refused > 2 and not far.tools.under_way, "a pause")
    refused = far.tools.refused
    assert await far.route.interrupt_request(running.message_id) == "finished"
    assert far.tools.refused == refused
    assert (await running.end()).fate == "interrupted"
    far.tools.refusal = None
    assert not await has_run(far)


async def test_a_cell_that_waits_for_the_agent_ends_at_once(far: Far) -> None:
    """Interrupted while no agent can be started, a cell does not wait for the end of that."""
    far.tools.refusal = not_ready
    running = far.begin("ran = True")
    await eventually(lambda: far.tools.refused, "the first refusal")
    assert await far.route.interrupt_request(running.message_id) == "finished"
    assert (await asyncio.wait_for(running.end(), 1)).fate == "interrupted"
    far.tools.refusal = None
    assert not await has_run(far)


async def test_an_interrupt_in_an_outage_comes_through_after_it(far: Far) -> None:
    """A running cell that could not be reached is interrupted when it can be, without asking."""
    running = far.begin("import time\nprint('on', flush=True)\ntime.sleep(60)")
    await eventually(lambda: running.text, "first output")
    far.tools.refusal = lambda: NoAnswerError("the network is out")
    said = await far.route.interrupt_request(running.message_id, deadline_seconds=0.5)
    assert said == "unreachable"
    assert not running.task.done()
    far.tools.refusal = None
    ran = await asyncio.wait_for(running.end(), 15)
    assert ran.fate == "interrupted"
    assert (await far.run("7")).result == "7"


async def test_a_widgets_callback_is_interrupted(place: Path) -> None:
    """An interrupt aimed at a widget's message stops its callback, and nothing after it."""
    code = (
        "import time\nfrom comm import create_comm\n"
        "c = create_comm(target_name='t')\n"
        "def got(message):\n"
        "    print('begin', flush=True)\n"
        "    try:\n        time.sleep(60)\n"
        "    except KeyboardInterrupt:\n        print('stopped', flush=True)\n"
        "c.on_msg(got)"
    )
    runner = BareRunner(sys.executable, (), place)
    async with route_over(runner, place, kernel="ipykernel") as far:
        ran = await far.run(code)
        (opened,) = [m for m in ran.messages if m.msg_type == "comm_open"]
        header = {"msg_id": secrets.token_hex(8), "msg_type": "comm_msg"}
        content = {"comm_id": opened.content["comm_id"], "data": {}}
        sending = asyncio.create_task(far.route.send_comm(header, content))
        await eventually(lambda: "begin" in text_of(far.background), "the callback's begin")
        assert await far.route.interrupt_request(header["msg_id"]) == "sent"
        await asyncio.wait_for(sending, 10)
        assert "stopped" in text_of(far.background)
        assert await far.route.interrupt_request(header["msg_id"]) == "finished"
        assert (await far.run("import time; time.sleep(0.2); 7")).result == "7"


@pytest.mark.parametrize("kernel", ["shell", "ipykernel"])
async def test_an_interrupt_ends_the_child_that_a_cell_waits_for(place: Path, kernel: str) -> None:
    """At once, as a terminal's Ctrl-C does, though `os.system` has Python itself ignore it."""
    code = (
        "import os, time\nbegan = time.monotonic()\nprint('on', flush=True)\n"
        "status = os.system('touch began; sleep 60')\n"
        "print(status, 'soon' if time.monotonic() - began < 4 else 'late')"
    )
    async with route_over(BareRunner(sys.executable, (), place), place, kernel=kernel) as far:
        running = far.begin(code)
        await eventually((place / "began").exists, "the child")
        assert await far.route.interrupt_request(running.message_id) == "sent"
        ran = await asyncio.wait_for(running.end(), 30)
        assert ran.text.endswith("2 soon\n")
        assert (await far.run("7")).result == "7"


CLOSED = "import sys\nsys.{0} = file = open('log', 'w')\nfile.write('x')\nfile.close()"


@pytest.mark.parametrize("kernel", ["shell", "ipykernel"])
@pytest.mark.parametrize(
    "code",
    [
        CLOSED.format("stdout"),
        CLOSED.format("stderr"),
        "import sys; sys.stdout = object()",
        "import sys; sys.stderr = None",
    ],
)
async def test_a_cell_that_breaks_its_streams_ends_and_so_do_the_next(
    place: Path, kernel: str, code: str
) -> None:
    """The kernel flushes them after each cell, and must reply all the same."""
    async with route_over(BareRunner(sys.executable, (), place), place, kernel=kernel) as far:
        await far.run("1")
        for _ in range(2):
            ran = await asyncio.wait_for(far.run(code), 30)
            assert ran.fate == "succeeded", ran.outcome
        assert (await asyncio.wait_for(far.run("6 * 7"), 30)).result == "42"
        if kernel == "ipykernel":  # which needs them, so that they are put back
            ran = await asyncio.wait_for(far.run("print('heard')"), 30)
            assert ran.text == "heard\n"


MUTE = """
session = get_ipython().kernel.session
send, dropped = session.send, []
def without_the_end(stream, kind, content=None, *arguments, **options):
    if kind == "execute_reply" or content == {"execution_state": "idle"}:
        dropped.append(kind)
        if len(dropped) == 2:
            session.send = send
        return None
    return send(stream, kind, content, *arguments, **options)
session.send = without_the_end
"""


async def test_a_kernel_that_never_says_that_a_cell_has_ended_is_asked(place: Path) -> None:
    """It is done with a cell when it answers what it was asked after it; the cell's end is told."""
    async with route_over(BareRunner(sys.executable, (), place), place, kernel="ipykernel") as far:
        ran = await asyncio.wait_for(far.run(MUTE), 60)
        assert ran.fate == "unknown"
        assert "did not say how it ended" in ran.outcome.reply["evalue"]
        assert (await asyncio.wait_for(far.run("len(dropped)"), 30)).result == "2"


POLLS = """
import asyncio, time
kernel = get_ipython().kernel
loop = asyncio.get_running_loop()
until = time.monotonic() + 9
# As jupyter_ui_poll does: requests are taken while the cell runs.
kernel._main_asyncio_lock.release()
while time.monotonic() < until:
    await asyncio.sleep(0.05)
await kernel._main_asyncio_lock.acquire()
print('the end')
"""


async def test_a_cell_that_has_requests_taken_while_it_runs_is_waited_for(place: Path) -> None:
    """The answer to what was asked after it does not mean its end then."""
    async with route_over(BareRunner(sys.executable, (), place), place, kernel="ipykernel") as far:
        ran = await asyncio.wait_for(far.run(POLLS), 60)
        assert ran.fate == "succeeded"
        assert ran.text == "the end\n"
