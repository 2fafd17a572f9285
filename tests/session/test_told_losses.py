"""The end of a sandbox is told by one sentence, before anything runs, however it was noticed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import psutil
import pytest

from ivy_kernel.models import Cell, Message, Outcome
from ivy_kernel.routes.one_call import NamedTool
from ivy_kernel.session import local_server
from ivy_kernel.session.open import open_session
from ivy_kernel.session.session import Session
from ivy_kernel.settings.live import LiveSettings

CELL_SECONDS = 60.0
ROUTES = ["agent", "notebook", "script"]

SPEAKS = (
    "import threading, time\n"
    "def speak():\n    while True:\n        print('tick', flush=True); time.sleep(0.3)\n"
    "threading.Thread(target=speak, daemon=True).start()"
)
"""A thread that is listened to between cells."""


class Notebook:
    """A session as a notebook uses it.

    Parameters
    ----------
    session
        The session.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.messages: list[Message] = []

    async def run(self, code: str, *, tool: NamedTool | None = None, **options: Any) -> Outcome:
        """Run a cell to its end; `messages` are its own."""
        header = {"msg_id": os.urandom(8).hex(), "msg_type": "execute_request", "session": "test"}
        cell = Cell(code, header={**header, "username": "test", "version": "5.3"}, **options)
        self.messages.clear()
        if tool is not None:
            running = self.session.run_tool(tool, cell, self.messages.append)
        else:
            running = self.session.execute(cell, self.messages.append)
        return await asyncio.wait_for(running, CELL_SECONDS)

    @property
    def text(self) -> str:
        """What the last cell printed, notes of ours included."""
        return "".join(
            message.content["text"] for message in self.messages if message.msg_type == "stream"
        )

    async def told_once(self, code: str = "open('ran.txt', 'w').close()", **options: Any) -> str:
        """The next cell tells of the loss, in one sentence, and the one after it runs anew."""
        outcome = await self.run(code, **options)
        sentence = str(outcome.reply.get("evalue"))
        assert outcome.fate == "lost", (outcome.reply, self.text)
        assert outcome.reply["ename"] == "SandboxLostError"
        errors = [message.content for message in self.messages if message.msg_type == "error"]
        assert [error["evalue"] for error in errors] == [sentence]
        assert "tick" in self.text or self.text == "", "nothing else is said"
        assert "[" not in self.text, "nothing else is said"
        assert "gone" in sentence
        assert sentence.count("Nothing of this cell was run") == 1
        assert "new sandbox" in sentence
        assert "while this cell was running" not in sentence
        following = await self.run("import os; ('x' in globals(), os.path.exists('ran.txt'))")
        assert following.fate == "succeeded", following.reply
        shown = [m.content for m in self.messages if m.msg_type == "execute_result"]
        if shown:
            assert shown[0]["data"]["text/plain"] == "(False, False)"
        return sentence


Opened = Callable[..., Awaitable[Notebook]]


@pytest.fixture
async def opened(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Opened]:
    """Opens notebooks on the embedded local sandbox, or on a server that stands for a platform."""
    async with contextlib.AsyncExitStack() as stack:

        async def open_one(route: str, variables: dict[str, str] | None = None) -> Notebook:
            for name, value in (variables or {"IVY_ROUTE": route}).items():
                monkeypatch.setenv(name, value)
            session = open_session(LiveSettings())
            stack.push_async_callback(session.aclose)
            return Notebook(session)

        yield open_one


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    found = local_server.find()
    if found is not None:
        process = psutil.Process(found.process_id)
        local_server.stop()
        process.wait(20)


# Who notices the end -----------------------------------------------------------------------------
async def nothing(notebook: Notebook) -> None:
    """The cell itself notices it."""


async def a_status(notebook: Notebook) -> None:
    """``%ivy status`` was asked."""
    await notebook.session.lifecycle.status()


async def a_monitor(notebook: Notebook) -> None:
    """Widget or panel have looked."""
    await notebook.session.lifecycle.read_status()


async def a_completion(notebook: Notebook) -> None:
    """The front end has asked for completions, and did not wait for them."""
    with contextlib.suppress(Exception):
        asking = notebook.session.ask("complete_request", {"code": "x", "cursor_pos": 1})
        await asyncio.wait_for(asking, 1.0)


async def a_widget(notebook: Notebook) -> None:
    """A widget's message was sent."""
    if notebook.session.live is not None:
        header = {"msg_id": os.urandom(8).hex(), "msg_type": "comm_msg", "session": "test"}
        with contextlib.suppress(Exception):
            sending = notebook.session.live.send_comm(header, {"comm_id": "1", "data": {}}, {}, ())
            await asyncio.wait_for(sending, 1.0)


async def a_usage_request(notebook: Notebook) -> None:
    """The front end has asked for the kernel's memory."""
    if notebook.session.live is not None:
        header = {"msg_id": os.urandom(8).hex(), "msg_type": "usage_request", "session": "test"}
        with contextlib.suppress(Exception):
            await asyncio.wait_for(notebook.session.live.control(header, {}), 1.0)


async def polls_for_long(notebook: Notebook) -> None:
    """The polls between cells have failed for a while."""
    await asyncio.sleep(7.0)


NOTICED_BY = [nothing, a_status, a_monitor, a_completion, a_widget, a_usage_request]


# The local sandbox ends --------------------------------------------------------------------------
def _server() -> tuple[psutil.Process, psutil.Process]:
    """The supervisor and the server below it."""
    found = local_server.find()
    assert found is not None
    supervisor = psutil.Process(found.process_id)
    server = next(
        child
        for child in supervisor.children()
        if "--supervisor-descriptor" in " ".join(child.cmdline())
    )
    return supervisor, server


async def _gone(*processes: psutil.Process) -> None:
    await asyncio.to_thread(psutil.wait_procs, processes, 20)


async def sigterm() -> None:
    """It is stopped in order, as its idle exit does."""
    supervisor, server = _server()
    supervisor.send_signal(signal.SIGTERM)
    await _gone(supervisor, server)


async def kill_server() -> None:
    """Its server is killed; the supervisor cleans up after it."""
    _, server = _server()
    server.kill()
    await _gone(server)


async def kill_supervisor() -> None:
    """Its supervisor is killed, and the server stops by itself."""
    supervisor, server = _server()
    supervisor.kill()
    await _gone(server)


async def kill_both() -> None:
    """Both are killed, and the reapers clean up."""
    supervisor, server = _server()
    supervisor.kill()
    server.kill()
    await _gone(supervisor, server)


ENDS = [sigterm, kill_server, kill_supervisor, kill_both]


@pytest.mark.parametrize("notices", NOTICED_BY)
@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("route", ROUTES)
async def test_the_end_of_the_local_sandbox_is_told(
    opened: Opened,
    route: str,
    ends: Callable[[], Awaitable[None]],
    notices: Callable[[Notebook], Awaitable[None]],
) -> None:
    """However it ended and whoever saw it first: one sentence, nothing ran, then a new one."""
    notebook = await opened(route)
    assert (await notebook.run("x = 1")).fate == "succeeded"
    await ends()
    await notices(notebook)
    sentence = await notebook.told_once()
    assert "Local sandbox is gone" in sentence
