"""Cells through the agent in a real sandbox process: what a front end sees and can do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from far_side import Far, route_to, text_of, waits_for
from sandbox_server import RunningSandbox, running_sandbox
from waiting import eventually

from ivy_kernel.errors import SandboxError, SandboxLostError
from ivy_kernel.models import Message
from ivy_kernel.routes.events import AgentOpened, KernelReady

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[RunningSandbox]:
    """One server for all tests here."""
    with running_sandbox() as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def far(sandbox: RunningSandbox):
    """One session for all tests that leave it as they found it: a start takes a second."""
    async with route_to(sandbox) as far:
        await ready(far)
        yield far


async def ready(far: Far) -> None:
    """Run a first cell, so that starting costs the next one nothing."""
    assert (await far.run("1")).fate == "succeeded"


async def test_a_short_cell_is_one_call(far: Far) -> None:
    """Submitting a short cell and hearing its end takes exactly one HTTP call."""
    calls = []
    for _ in range(5):
        ran = await far.run("6 * 7")
        assert (ran.fate, ran.result) == ("succeeded", "42")
        calls.append(ran.calls)
    assert min(calls) == 1, calls  # one that took a second was no short cell


async def test_opening_runs_no_cell_and_takes_two_calls(sandbox: RunningSandbox) -> None:
    """The agent is started by one call and verified by a second."""
    async with route_to(sandbox) as far:
        await far.route.open()
        assert far.tools.calls == 2
        assert far.events[0] == AgentOpened(is_found=False)


async def test_the_kernel_tells_what_it_is(far: Far) -> None:
    """After the first cell it is known which kernel runs, for doctor and status."""
    (event,) = far.seen(KernelReady)
    assert event.kind == "ipykernel"
    assert far.route.describe()["kernel_features"] == list(event.features)


async def test_output_comes_while_the_cell_runs(far: Far, tmp_path: Path) -> None:
    """Flushed prints arrive one by one, not at the end."""
    files = [tmp_path / str(i) for i in range(4)]
    running = far.begin("".join(f"print({f.name}, flush=True)\n{waits_for(f)}" for f in files))
    for file in files:
        await eventually(lambda f=file: running.text.endswith(f"{f.name}\n"), f"line {file.name}")
        assert not running.task.done()
        file.touch()
    ran = await running.end()
    assert ran.text == "0\n1\n2\n3\n"
    assert set(ran.types()) == {"stream"}


async def test_unflushed_output_comes_while_the_cell_runs(far: Far, tmp_path: Path) -> None:
    """A print without flush is shown without waiting for the end of its cell."""
    running = far.begin("print('now')\n" + waits_for(tmp_path / "seen"))
    await eventually(lambda: running.text, "the output")
    assert not running.task.done()
    (tmp_path / "seen").touch()
    assert (await running.end()).text == "now\n"


async def test_messages_keep_the_header_of_the_request_as_parent(far: Far) -> None:
    """What a cell shows has the front end's own header as its parent."""
    running = far.begin("print('x')")
    ran = await running.end()
    (message,) = ran.messages
    assert message.parent_header is not None
    assert message.parent_header["msg_id"] == running.message_id
    assert message.parent_header["session"] == "test"


async def test_an_error_is_shown_and_replied(far: Far) -> None:
    """An exception is an error message and an error reply with the same name."""
    ran = await far.run("1/0")
    assert ran.fate == "failed"
    assert ran.types() == ["error"]
    assert ran.messages[0].content["ename"] == ran.outcome.reply["ename"] == "ZeroDivisionError"


async def test_rich_output_keeps_metadata_and_display_ids(far: Far) -> None:
    """Whole MIME bundles, display ids and updates arrive unchanged."""
    code = (
        "from IPython.display import display, clear_output\n"
        "h = display({'text/plain': 'a', 'application/x-own': {'k': [1]}}, raw=True,"
        " metadata={'m': 1}, display_id='d')\n"
        "h.update({'text/plain': 'b'}, raw=True)\nclear_output(wait=True)"
    )
    ran = await far.run(code)
    assert ran.types() == ["display_data", "update_display_data", "clear_output"]
    shown = ran.messages[0].content
    assert shown["data"]["application/x-own"] == {"k": [1]}
    assert shown["metadata"] == {"m": 1}
    assert ran.messages[1].content["transient"] == {"display_id": "d"}


async def test_ten_megabytes_arrive_whole(far: Far) -> None:
    """A large output is cut into slices on its way and arrives unchanged."""
    ran = await far.run("import random\nrandom.seed(1)\nprint(random.randbytes(5_000_000).hex())")
    assert len(ran.text) == 10_000_001


async def test_a_large_cell_travels_in_fragments(far: Far) -> None:
    """A cell larger than a program may be is sent in pieces and run once."""
    import random

    text = random.Random(1).randbytes(150_000).hex()
    ran = await far.run(f"t = {text!r}\nlen(t)")
    assert ran.result == "300000"
    assert far.route.describe()["fragments"] > 1


async def test_user_expressions_are_answered(far: Far) -> None:
    """The reply carries the values of user expressions."""
    ran = await far.run("x = 5", user_expressions={"e": "x + 1"})
    assert ran.outcome.reply["user_expressions"]["e"]["data"]["text/plain"] == "6"


async def test_an_interrupt_stops_the_running_cell(far: Far) -> None:
    """An interrupt reaches the kernel, and the cell says KeyboardInterrupt."""
    running = far.begin("import time\nprint('on', flush=True)\ntime.sleep(60)")
    await eventually(lambda: running.text, "first output")
    assert await far.route.interrupt_request(running.message_id) == "sent"
    ran = await asyncio.wait_for(running.end(), 20)
    assert ran.fate == "interrupted"
    assert ran.messages[-1].content["ename"] == "KeyboardInterrupt"
    assert (await far.run("7")).result == "7"


async def test_an_interrupt_that_overtakes_its_cell_still_stops_it(far: Far) -> None:
    """An interrupt sent in the same moment as the cell is aimed at it and not lost."""
    running = far.begin("import time; time.sleep(60)")
    await asyncio.sleep(0)
    said = await far.route.interrupt_request(running.message_id)
    assert said in ("sent", "armed")
    assert (await asyncio.wait_for(running.end(), 20)).fate == "interrupted"


async def test_an_interrupt_for_a_queued_cell_waits_for_it(far: Far, tmp_path: Path) -> None:
    """An interrupt aimed at a cell behind another leaves that other one alone."""
    first = far.begin("print('on', flush=True)\n" + waits_for(tmp_path / "armed") + "'whole'")
    second = far.begin("import time; time.sleep(60)")
    await eventually(lambda: first.text, "first output")
    assert await far.route.interrupt_request(second.message_id) == "armed"
    (tmp_path / "armed").touch()
    assert (await first.end()).result == "'whole'"
    assert (await asyncio.wait_for(second.end(), 20)).fate == "interrupted"


async def test_an_interrupt_for_a_finished_cell_does_nothing(far: Far) -> None:
    """A late interrupt harms no other cell."""
    running = far.begin("1")
    await running.end()
    assert await far.route.interrupt_request(running.message_id) == "finished"


async def test_a_cell_interrupted_while_the_agent_starts_does_not_run(
    sandbox: RunningSandbox,
) -> None:
    """Stopping the first cell during the start means that it never runs."""
    async with route_to(sandbox, kernel="shell") as far:
        running = far.begin("open('ran', 'w')")
        await asyncio.sleep(0)
        assert await far.route.interrupt_request(running.message_id) == "finished"
        ran = await running.end()
        assert ran.fate == "interrupted"
        assert (await far.run("import os; os.path.exists('ran')")).result == "False"


async def test_input_is_asked_and_answered(far: Far) -> None:
    """An input_request arrives at the cell's sink, and its answer reaches the cell."""
    running = far.begin("name = input('who? ')\nname[::-1]", allow_stdin=True)
    asked = await eventually(
        lambda: [m for m in running.messages if m.msg_type == "input_request"], "the question"
    )
    assert asked[0].channel == "stdin"
    assert asked[0].content == {"prompt": "who? ", "password": False}
    await far.route.answer_input("abc", request=asked[0])
    assert (await running.end()).result == "'cba'"


async def test_input_that_nobody_answers_can_be_interrupted(far: Far) -> None:
    """A cell that waits for input stops at an interrupt."""
    running = far.begin("import getpass; getpass.getpass()", allow_stdin=True)
    await eventually(lambda: running.messages, "the question")
    assert running.messages[0].content["password"] is True
    await far.route.interrupt_request(running.message_id)
    assert (await asyncio.wait_for(running.end(), 20)).fate == "interrupted"


async def test_completion_inspection_and_history(far: Far) -> None:
    """Requests beside cells are answered by the remote kernel."""
    await far.run("some_name = 1")
    done = await far.route.request(
        "complete_request", {"code": "some_n", "cursor_pos": 6}, timeout_seconds=20
    )
    assert "some_name" in done.content["matches"]
    looked = await far.route.request(
        "inspect_request", {"code": "len", "cursor_pos": 3, "detail_level": 0}, timeout_seconds=20
    )
    assert looked.content["found"]
    past = await far.route.request(
        "history_request",
        {"hist_access_type": "tail", "n": 1, "raw": True, "output": False},
        timeout_seconds=20,
    )
    assert past.content["history"][-1][2] == "some_name = 1"


async def test_the_debugger_answers_on_the_control_channel(far: Far, tmp_path: Path) -> None:
    """Control requests travel, also while a cell runs."""
    running = far.begin(waits_for(tmp_path / "answered"))
    info = {"type": "request", "seq": 1, "command": "debugInfo"}
    reply = await far.route.request("debug_request", info, channel="control", timeout_seconds=20)
    assert reply.content["command"] == "debugInfo"
    assert not running.task.done()
    (tmp_path / "answered").touch()
    assert (await running.end()).fate == "succeeded"


async def test_widget_messages_and_buffers_travel_both_ways(far: Far) -> None:
    """A comm opened remotely gets our messages with their buffers, and answers likewise."""
    code = (
        "from comm import create_comm\n"
        "c = create_comm(target_name='t', data={'a': 1})\n"
        "def got(m):\n"
        "    print('got', m['content']['data'], bytes(m['buffers'][0]))\n"
        "    c.send({'back': 1}, buffers=[b'\\x00\\xff'])\n"
        "c.on_msg(got)"
    )
    ran = await far.run(code)
    (opened,) = [m for m in ran.messages if m.msg_type == "comm_open"]
    await far.route.send_comm(
        {"msg_id": "w1", "msg_type": "comm_msg"},
        {"comm_id": opened.content["comm_id"], "data": {"v": 2}},
        buffers=(b"\x01\x02",),
    )
    said = [m for m in far.background if m.msg_type == "stream"]
    assert said[0].content["text"].strip() == "got {'v': 2} b'\\x01\\x02'"
    (back,) = [m for m in far.background if m.msg_type == "comm_msg"]
    assert back.buffers == (b"\x00\xff",)
    assert back.parent_header is not None
    assert back.parent_header["msg_id"] == "w1"


@pytest.mark.parametrize("kernel", ["ipykernel", "shell"])
async def test_a_thread_is_heard_between_cells(
    sandbox: RunningSandbox, kernel: str, tmp_path: Path
) -> None:
    """What a thread prints after its cell has ended arrives without another cell."""
    code = (
        "import os, threading, time\n"
        "def later():\n"
        f"    while not os.path.exists({str(tmp_path / 'ended')!r}): time.sleep(0.1)\n"
        "    print('late', flush=True)\n"
        "threading.Thread(target=later, daemon=True).start()"
    )
    async with route_to(sandbox, kernel=kernel) as far:
        ran = await far.run(code)
        assert ran.text == ""
        (tmp_path / "ended").touch()
        await eventually(lambda: text_of(far.background).strip() == "late", "the late output")


async def test_nothing_is_polled_when_nothing_can_speak(sandbox: RunningSandbox) -> None:
    """Between ordinary cells there are no calls at all."""
    async with route_to(sandbox) as far:
        await ready(far)
        calls = far.tools.calls
        await asyncio.sleep(1.0)  # there is no condition to wait for: nothing is to happen
        assert far.tools.calls == calls


async def test_restart_gives_a_fresh_namespace(far: Far) -> None:
    """After a restart the variables are gone, and the next cell runs without a complaint."""
    await far.run("x = 1")
    await far.route.restart_kernel()
    ran = await far.run("'x' in globals()")
    assert (ran.fate, ran.result) == ("succeeded", "False")
    assert ran.outcome.reply["execution_count"] == 1


async def test_restart_during_a_cell_says_so(far: Far) -> None:
    """A cell that a restart ends is called lost, once, in the output and in the reply."""
    running = far.begin("import time\nprint('on', flush=True)\ntime.sleep(60)")
    await eventually(lambda: running.text, "first output")
    await far.route.restart_kernel()
    ran = await running.end()
    assert ran.fate in ("lost", "interrupted"), ran.outcome.reply["evalue"]
    assert ran.messages[-1].content["ename"] == ran.outcome.reply["ename"]


async def test_a_second_route_attaches_and_shows_what_went_on(
    sandbox: RunningSandbox, tmp_path: Path
) -> None:
    """After a crash of the client, a new one gets the running cell's output and its variables."""
    async with route_to(sandbox, "crash", session_key="same") as first:
        await ready(first)
        running = first.begin(
            f"x = 5\nprint('on', flush=True)\n{waits_for(tmp_path / 'attached')}"
            "for i in range(6):\n    print(i, flush=True)"
        )
        await eventually(lambda: running.text, "first output")
        await first.route.close(keep=True)
        assert (await running.end()).fate == "unknown"
        async with route_to(sandbox, "crash", session_key="same") as second:
            await second.route.open()
            (opened,) = second.seen(AgentOpened)
            assert opened == AgentOpened(is_found=True, running=(running.message_id,))
            (tmp_path / "attached").touch()
            done = await eventually(
                lambda: [m for m in second.background if m.channel == "shell"], "the old reply"
            )
            assert done[0].parent_header["msg_id"] == running.message_id
            shown = [m for m in second.background if m.msg_type == "stream"]
            assert "".join(m.content["text"] for m in shown).endswith("3\n4\n5\n")
            assert (await second.run("x")).result == "5"


async def test_an_older_client_is_refused_after_a_takeover(sandbox: RunningSandbox) -> None:
    """When a newer client has attached, the older one runs nothing and says why."""
    async with (
        route_to(sandbox, "over", session_key="one") as older,
        route_to(sandbox, "over", session_key="one") as newer,
    ):
        await older.run("x = []")
        await newer.route.open()
        with pytest.raises(SandboxError, match="taken over") as refusal:
            await older.run("x.append(1)")
        assert not isinstance(refusal.value, SandboxLostError)
        assert (await newer.run("x")).result == "[]"


async def test_a_closed_route_says_so(sandbox: RunningSandbox) -> None:
    """After shutdown a cell is refused with a sentence that says so."""
    async with route_to(sandbox, kernel="shell") as far:
        await ready(far)
        await far.route.close(keep=False)
        with pytest.raises(SandboxError, match="closed"):
            await far.run("1")


async def test_shutdown_during_the_start_leaves_nothing(sandbox: RunningSandbox) -> None:
    """A shutdown while the agent is starting ends that agent too."""
    async with route_to(sandbox, "early", kernel="shell") as far:
        sandbox_id = sandbox.create("early")["sandboxId"]  # of the sandbox that is there
        running = far.begin("1")
        await eventually(lambda: far.tools.calls, "the start")
        await far.route.close(keep=False)
        with pytest.raises(SandboxError):
            await running.end()
    ours = {"sandboxId": sandbox_id, "pids": []}
    await eventually(
        lambda: any(ours.items() <= one.items() for one in sandbox.control()["sandboxes"]),
        "the agent's end",
    )


async def test_messages_of_a_cell_reach_its_sink_in_order(far: Far) -> None:
    """A thousand messages of one cell arrive once each and in order."""
    code = "from IPython.display import display\nfor i in range(1000):\n    display(i)"
    ran = await far.run(code)
    numbers = [int(m.content["data"]["text/plain"]) for m in ran.messages]
    assert numbers == list(range(1000))
    assert all(isinstance(message, Message) for message in ran.messages)
