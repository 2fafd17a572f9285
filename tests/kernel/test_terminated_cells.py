"""A cell whose sandbox is terminated under it says that this is what ended it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable

import pytest
from kernel_driver import StartKernel, kernel_variables
from sandbox_server import RunningSandbox, until

from ivy_kernel.models import Cell, Message, Outcome
from ivy_kernel.routes.agent import failures
from ivy_kernel.routes.one_call import NamedTool
from ivy_kernel.session.open import open_session
from ivy_kernel.session.session import Session
from ivy_kernel.settings.live import LiveSettings

BEGAN_SECONDS = 20.0
END_SECONDS = 10.0


def numbered(code: str) -> Cell:
    """A cell with a header of its own."""
    header = {"msg_id": os.urandom(8).hex(), "msg_type": "execute_request"}
    return Cell(code, header={**header, "session": "test", "username": "test", "version": "5.3"})


class Opened:
    """A session on a chat whose sandbox is there.

    Parameters
    ----------
    session
        The session.
    chat_id
        The chat.
    server
        Its server.
    """

    def __init__(self, session: Session, chat_id: str, server: RunningSandbox) -> None:
        self.session = session
        self.chat_id = chat_id
        self._server = server
        self._messages: list[Message] = []

    async def begin(self, *, as_tool: bool = False) -> asyncio.Future[Outcome]:
        """Run a cell or a tool that takes long; returns when it runs."""
        began = f"began-{self.chat_id}"
        first = await self.session.execute(numbered("1"), self._messages.append)
        assert first.fate == "succeeded", first.reply
        self._messages.clear()
        if as_tool:
            tool = NamedTool("sandbox_exec", timeout_seconds=60)
            cell = numbered(f"touch {began}; sleep 60")
            work = self.session.run_tool(tool, cell, self._messages.append)
        else:
            cell = numbered(f"import time; open('{began}', 'w').close(); time.sleep(60)")
            work = self.session.execute(cell, self._messages.append)
        running = asyncio.ensure_future(work)
        await asyncio.to_thread(
            until,
            lambda: list(self._server.root.glob(f"*/{began}")),
            "the cell runs",
            BEGAN_SECONDS,
        )
        return running

    async def lost(self, running: asyncio.Future[Outcome]) -> str:
        """Wait for the cell's end, which must be told as a loss, once; the sentence."""
        outcome = await asyncio.wait_for(running, END_SECONDS)
        sentence = str(outcome.reply["evalue"])
        assert outcome.fate == "lost", sentence
        assert outcome.reply["ename"] == "SandboxLostError"
        errors = [message.content for message in self._messages if message.msg_type == "error"]
        assert [error["evalue"] for error in errors] == [sentence]
        return sentence


@pytest.fixture
async def open_on(
    server: RunningSandbox, new_chat: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[[str], Opened]]:
    """Opens sessions, each by a route."""
    async with contextlib.AsyncExitStack() as stack:

        def open_one(route: str) -> Opened:
            chat = new_chat()
            server.ready(chat, f"session-of-{chat}", f"campaign-of-{chat}")
            for name, value in kernel_variables(server, chat, IVY_ROUTE=route).items():
                monkeypatch.setenv(name, value)
            session = open_session(LiveSettings())
            stack.push_async_callback(session.aclose)
            return Opened(session, chat, server)

        yield open_one


@pytest.mark.parametrize("kind", ["agent", "notebook", "script", "tool"])
async def test_a_cell_ends_as_lost_with_the_sandbox_that_was_terminated(
    open_on: Callable[[str], Opened], kind: str
) -> None:
    """Whichever way it was sent, its end is known: output and reply say so, once."""
    one = open_on("script" if kind == "tool" else kind)
    running = await one.begin(as_tool=kind == "tool")
    await one.session.terminate()
    assert "terminated while this cell was running" in await one.lost(running)


@pytest.mark.parametrize("route", ["agent", "notebook", "script"])
async def test_a_cell_ends_as_lost_with_a_sandbox_that_somebody_else_has_ended(
    open_on: Callable[[str], Opened],
    server: RunningSandbox,
    monkeypatch: pytest.MonkeyPatch,
    route: str,
) -> None:
    """Nobody tells this process; it looks as soon as it does not hear the cell any more."""
    monkeypatch.setattr(failures, "UNREACHABLE_AFTER_SECONDS", 0.5)
    one = open_on(route)
    running = await one.begin()
    server.call("POST", f"/v1/sandbox/{one.chat_id}/terminate")
    sentence = await one.lost(running)
    assert "is gone (its state is now 'not started')" in sentence
    assert "ended while this cell was running" in sentence
    shown: list[Message] = []
    following = await one.session.execute(numbered("'anew'"), shown.append)
    assert following.fate == "succeeded", "the loss is told once"


def test_the_panels_button_ends_a_running_cell_and_says_so(
    start_kernel: StartKernel, server: RunningSandbox, new_chat: Callable[[], str]
) -> None:
    """Terminate in the live panel: the cell tells of that, and the next one runs anew."""
    pytest.importorskip("anywidget")
    kernel = start_kernel(chat_id=new_chat(), IVY_ROUTE="agent")
    shown = kernel.run("%ivy widget").datas("display_data")[-1]
    model_id = shown["application/vnd.jupyter.widget-view+json"]["model_id"]
    kernel.run("x = 5")
    cell = kernel.submit(f"import time; open('{model_id}', 'w').close(); time.sleep(60)")
    until(lambda: list(server.root.glob(f"*/{model_id}")), "the cell runs", BEGAN_SECONDS)
    data = {"method": "custom", "content": {"action": "terminate"}}
    message = kernel.client.session.msg("comm_msg", {"comm_id": model_id, "data": data})
    kernel.client.shell_channel.send(message)
    ended = kernel.finish(cell, beside=True)
    assert ended.reply["ename"] == "SandboxLostError"
    assert "terminated while this cell was running" in ended.reply["evalue"]
    assert "closed" not in ended.reply["evalue"]
    assert kernel.run("'x' in globals()").result == "False"
