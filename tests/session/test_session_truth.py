"""What a session says of a cell is true, also when it is disturbed at an awkward moment."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from typing import Any

import comm
import pytest
from kernel_driver import kernel_variables
from sandbox_server import RunningSandbox, running_sandbox, until

from ivy_kernel.errors import (
    AnswerError,
    IvyError,
    NoAnswerError,
    NotFoundError,
    NotReadyError,
    UnexpectedStatusError,
)
from ivy_kernel.kernel import cells
from ivy_kernel.models import Cell, Message, Outcome
from ivy_kernel.routes.one_call import NamedTool
from ivy_kernel.session.open import open_session
from ivy_kernel.session.output import OutputThrottle
from ivy_kernel.session.session import Session
from ivy_kernel.settings.live import LiveSettings

NOTHING_RAN = "Nothing of this cell was run."
END_SECONDS = 15.0

_numbers = count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningSandbox]:
    """A server for all tests of this module."""
    with running_sandbox() as running:
        yield running


class Disturbed:
    """A session on a real sandbox, between which and the session a test may put itself.

    Parameters
    ----------
    session
        The session.
    chat_id
        Its chat.
    """

    def __init__(self, session: Session, chat_id: str) -> None:
        self.session = session
        self.chat_id = chat_id
        self.texts: list[str] = []
        self.refuses = False
        self.arrived = asyncio.Event()
        """Set while a call of a tool is under way that will be refused."""
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def stand_between(self) -> None:
        """From now on calls of tools come by here."""
        client = await self.session.lifecycle.client()
        run_tool = client.run_tool

        async def watched(*arguments: Any, **options: Any) -> Any:
            if not self.refuses:
                return await run_tool(*arguments, **options)
            self.arrived.set()
            await self.may_answer.wait()
            raise NotReadyError("The sandbox is still starting.", status_code=503)

        client.run_tool = watched  # type: ignore[method-assign]  # the test stands between

    def begin(self, code: str, tool: NamedTool | None = None) -> asyncio.Future[Outcome]:
        """Send a cell, or run a tool."""
        header = {"msg_id": os.urandom(8).hex(), "msg_type": "execute_request", "session": "test"}
        cell = Cell(code, header={**header, "username": "test", "version": "5.3", "date": ""})
        if tool is not None:
            return asyncio.ensure_future(self.session.run_tool(tool, cell, self._take))
        return asyncio.ensure_future(self.session.execute(cell, self._take))

    async def run(self, code: str, tool: NamedTool | None = None) -> Outcome:
        """Run a cell, or a tool, to its end."""
        return await asyncio.wait_for(self.begin(code, tool), END_SECONDS)

    def _take(self, message: Message) -> None:
        if message.msg_type == "stream":
            self.texts.append(message.content["text"])


@pytest.fixture
async def disturbed(
    server: RunningSandbox, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[[str], Any]]:
    """Opens sessions on chats of the test server, each by a route."""
    async with contextlib.AsyncExitStack() as stack:

        async def open_one(route: str) -> Disturbed:
            chat_id = f"truth-{next(_numbers)}"
            server.ready(chat_id, f"session-of-{chat_id}", f"campaign-of-{chat_id}")
            for name, value in kernel_variables(server, chat_id, IVY_ROUTE=route).items():
                monkeypatch.setenv(name, value)
            session = open_session(LiveSettings(), session_key=f"key-{chat_id}")
            stack.push_async_callback(session.aclose)
            one = Disturbed(session, chat_id)
            await one.stand_between()
            return one

        yield open_one


TOOL = NamedTool("sandbox_exec", timeout_seconds=10)


@pytest.mark.parametrize("tool", [None, TOOL], ids=["cell", "tool"])
@pytest.mark.parametrize(
    "error",
    [
        NoAnswerError("No whole answer came."),
        AnswerError("The status is no JSON."),
        UnexpectedStatusError("HTTP 500 on the status.", status_code=500),
    ],
    ids=["no-answer", "no-json", "http-500"],
)
async def test_a_failing_preparation_is_not_told_as_a_cell_that_may_have_run(
    disturbed: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    error: IvyError,
    tool: NamedTool | None,
) -> None:
    """When only the look at the sandbox failed, nothing was sent, and that is what is said."""
    one = await disturbed("notebook")

    async def fail() -> None:
        raise error

    monkeypatch.setattr(one.session.lifecycle, "status", fail)
    outcome = await one.run("echo 1", tool)
    assert outcome.fate == "failed"
    assert NOTHING_RAN in outcome.reply["evalue"]
    assert "may have run" not in outcome.reply["evalue"]


@pytest.mark.parametrize("tool", [None, TOOL], ids=["cell", "tool"])
async def test_a_lost_answer_of_the_cell_itself_may_mean_that_it_has_run(
    disturbed: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tool: NamedTool | None
) -> None:
    """The same error after the cell had gone is told as an outcome that nobody knows."""
    one = await disturbed("notebook")
    assert tool or (await one.run("1")).fate == "succeeded"  # a cell needs an open route
    client = await one.session.lifecycle.client()

    async def fail(*_: Any, **__: Any) -> None:
        raise NoAnswerError("No whole answer came.")

    monkeypatch.setattr(client, "run_tool", fail)
    outcome = await one.run("echo 1", tool)
    assert outcome.fate == "unknown"
    assert NOTHING_RAN not in outcome.reply["evalue"]


async def test_what_a_404_means_is_asked_without_calling_the_tool_sent(
    disturbed: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool that nobody was there to run has not run, also if the status then fails."""
    one = await disturbed("notebook")
    client = await one.session.lifecycle.client()

    async def refuse(*_: Any, **__: Any) -> None:
        async def fail() -> None:
            raise NoAnswerError("No whole answer came.")

        monkeypatch.setattr(one.session.lifecycle, "status", fail)
        raise NotFoundError("There is no such sandbox.", status_code=404)

    monkeypatch.setattr(client, "run_tool", refuse)
    outcome = await one.run("echo 1", TOOL)
    assert outcome.fate == "failed"
    assert NOTHING_RAN in outcome.reply["evalue"]


@pytest.mark.parametrize("tool", [None, TOOL], ids=["cell", "tool"])
async def test_a_cell_that_was_interrupted_while_it_was_refused_never_runs(
    disturbed: Callable[[str], Any], server: RunningSandbox, tool: NamedTool | None
) -> None:
    """The interrupt comes while the platform is about to say "not ready": no further try."""
    one = await disturbed("notebook")
    name = f"ran-{one.chat_id}"
    assert (await one.run("1")).fate == "succeeded"
    one.refuses = True
    one.may_answer.clear()
    running = one.begin(f"touch {name}" if tool else f"open('{name}', 'w').close()", tool)
    await asyncio.wait_for(one.arrived.wait(), END_SECONDS)
    interrupting = asyncio.ensure_future(one.session.interrupt())
    await asyncio.sleep(0)  # the wish is noted
    one.may_answer.set()
    await interrupting
    one.refuses = False
    outcome = await asyncio.wait_for(running, END_SECONDS)
    assert outcome.fate == "interrupted"
    assert outcome.reply["ename"] == "KeyboardInterrupt"
    assert "Nothing of" in outcome.reply["evalue"]
    assert not list(server.root.rglob(name))
    assert (await one.run("1")).fate == "succeeded"


async def test_an_interrupted_start_of_the_agent_takes_nothing_over_later(
    disturbed: Callable[[str], Any],
) -> None:
    """The next cell shares the start that goes on; it does not begin a second one beside it."""
    one = await disturbed("agent")
    client = await one.session.lifecycle.client()
    run_tool = client.run_tool
    started, second_ended = asyncio.Event(), asyncio.Event()

    async def first_is_late(*arguments: Any, **options: Any) -> Any:
        if not started.is_set():
            started.set()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(second_ended.wait(), 2.0)
        return await run_tool(*arguments, **options)

    client.run_tool = first_is_late
    first = one.begin("1")
    await asyncio.wait_for(started.wait(), END_SECONDS)
    await one.session.interrupt()
    assert (await first).fate == "interrupted"
    second = await one.run("print('second')")
    second_ended.set()
    assert second.fate == "succeeded", second.reply
    for number in range(3):
        outcome = await one.run(f"print({number})")
        assert outcome.fate == "succeeded", outcome.reply
        await asyncio.sleep(0.3)
    assert "".join(one.texts) == "second\n0\n1\n2\n"


@pytest.mark.parametrize("refuses", [False, True], ids=["reachable", "refused"])
async def test_a_sandbox_that_is_terminated_under_a_cell_ends_it_and_the_next_one_runs(
    disturbed: Callable[[str], Any], server: RunningSandbox, *, refuses: bool
) -> None:
    """The cell does not wait for an answer, and nobody is told of a loss that he wished himself."""
    one = await disturbed("agent")
    began = f"began-{one.chat_id}"
    assert (await one.run("x = 1")).fate == "succeeded"
    running = one.begin(f"import time; open('{began}', 'w').close(); time.sleep(60)")
    await asyncio.to_thread(until, lambda: list(server.root.rglob(began)), "the cell runs")
    one.refuses = refuses
    await one.session.terminate()
    outcome = await asyncio.wait_for(running, 20.0)
    assert outcome.fate not in ("succeeded", "interrupted")
    one.refuses = False
    one.texts.clear()
    following = await one.run("print('x' in globals())")
    assert following.fate == "succeeded", following.reply
    assert "".join(one.texts) == "False\n"


async def test_a_cell_of_a_terminated_sandbox_can_still_be_interrupted(
    disturbed: Callable[[str], Any],
) -> None:
    """Also where the platform leaves its call without an answer."""
    one = await disturbed("notebook")
    assert (await one.run("1")).fate == "succeeded"
    one.refuses = True
    one.may_answer.clear()
    running = one.begin("1")
    await asyncio.wait_for(one.arrived.wait(), END_SECONDS)
    await one.session.terminate()
    await one.session.interrupt()
    assert (await asyncio.wait_for(running, 20.0)).fate == "interrupted"


async def test_an_interrupted_start_does_not_go_on_in_the_next_sandbox(
    disturbed: Callable[[str], Any],
) -> None:
    """Terminate ends the start of the agent too, or it would take the next session over."""
    one = await disturbed("agent")
    one.refuses = True
    first = one.begin("1")
    await asyncio.wait_for(one.arrived.wait(), END_SECONDS)
    await one.session.interrupt()
    assert (await first).fate == "interrupted"
    await one.session.terminate()
    one.arrived.clear()
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(one.arrived.wait(), 1.0)


@pytest.mark.parametrize("interrupts", [1, 2])
async def test_an_interrupt_after_a_cells_end_does_not_change_that_end(
    monkeypatch: pytest.MonkeyPatch, interrupts: int
) -> None:
    """While the last of a cell with widgets is being shown, interrupts have nothing to stop."""
    monkeypatch.setattr(comm, "create_comm", comm.create_comm)  # the runner puts its own there
    monkeypatch.setattr(comm, "get_comm_manager", comm.get_comm_manager)
    monkeypatch.setattr(cells, "COMM_APART_SECONDS", 1.0)
    finish = OutputThrottle.finish

    async def finish_slowly(throttle: OutputThrottle) -> None:
        await asyncio.sleep(1.0 if interrupts > 1 else 0.0)
        await finish(throttle)

    monkeypatch.setattr(OutputThrottle, "finish", finish_slowly)

    class Host:
        def publish(self, message: Message) -> None:
            pass

        is_full = False

        async def settle(self) -> None:
            pass

        async def ask_user(self, prompt: str, *, is_secret: bool) -> str:
            return ""

        def run_local(self, code: str, cell: Cell) -> Outcome:
            comm.create_comm(target_name="test")
            return Outcome("succeeded", {"status": "ok"})

    runner = cells.CellRunner(Host(), flags=None, connection_file="kernel-1.json")
    cell = Cell("%%local\nmake_a_widget()", header={})
    running = asyncio.ensure_future(runner.execute(cell))
    for _ in range(interrupts):
        await asyncio.sleep(0.1)
        assert runner.interruptible
        await runner.interrupt()
    assert (await running).fate == "succeeded"
