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
from far_side import port_of
from fault_proxy import FaultProxy, Faults
from kernel_driver import kernel_variables
from sandbox_server import RunningSandbox
from thoroughness import further
from waiting import all_ended, eventually

from ivy_kernel.errors import NotFoundError, NotReadyError
from ivy_kernel.models import Cell, Message, Namespace, Outcome
from ivy_kernel.routes.events import Event
from ivy_kernel.routes.one_call import NamedTool
from ivy_kernel.session import local_server
from ivy_kernel.session.describe import event_sentence
from ivy_kernel.session.open import open_session
from ivy_kernel.session.session import Session
from ivy_kernel.settings.live import LiveSettings

CELL_SECONDS = 60.0
ROUTES = ["agent", "notebook", "script"]
SOME_ROUTES = ["agent", *(further(route) for route in ROUTES[1:])]

SPEAKS = (
    "import threading, time\n"
    "def speak():\n    while True:\n        print('tick', flush=True); time.sleep(0.3)\n"
    "threading.Thread(target=speak, daemon=True).start()"
)
"""A thread that is listened to between cells."""


class Notebook:
    """A session as a notebook uses it."""

    session: Session

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def on_event(self, event: Event) -> None:
        """Show a note as the kernel does."""
        sentence = event_sentence(event)
        if sentence:
            self.messages.append(Message("stream", {"name": "stderr", "text": f"[{sentence}]"}))

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
            notebook = Notebook()
            notebook.session = open_session(LiveSettings(), on_event=notebook.on_event)
            stack.push_async_callback(notebook.session.aclose)
            return notebook

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


ALL_ROUTES = [nothing, a_status, a_monitor, a_completion]
NOTICED_BY = [
    *(("agent", notices) for notices in (*ALL_ROUTES, a_widget, a_usage_request)),
    *(("notebook", notices) for notices in ALL_ROUTES),
    *(("script", notices) for notices in ALL_ROUTES[:2]),
]
"""Route and who notices it; only the agent's kernel can be spoken to beside cells."""


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
    await eventually(lambda: all_ended(processes), f"the end of {processes}", 20)


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


def some(always: list[tuple[Any, ...]], every: list[tuple[Any, ...]]) -> list[Any]:
    """Every case as a parameter; those that are not in ``always`` are thorough ones."""
    return [case if case in always else further(*case) for case in every]


ALWAYS_AFTER_END: list[tuple[Any, ...]] = [
    ("agent", nothing, sigterm),
    ("agent", a_status, kill_both),
    ("agent", a_completion, sigterm),
    ("agent", a_widget, kill_both),
    ("notebook", nothing, kill_both),
    ("notebook", a_monitor, sigterm),
    ("script", nothing, sigterm),
]
"""Each route, way of ending and who notices it once; the thorough tests run all combinations."""


@pytest.mark.parametrize(
    ("route", "notices", "ends"),
    some(
        ALWAYS_AFTER_END,
        [
            (*each, ends)
            for ends in (sigterm, kill_both, kill_server, kill_supervisor)
            for each in NOTICED_BY
        ],
    ),
)
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


# A sandbox of a platform ends elsewhere -----------------------------------------------------------
@pytest.fixture
def on_platform(
    opened: Opened, server: RunningSandbox, new_chat: Callable[[], str]
) -> Callable[..., Awaitable[tuple[Notebook, str]]]:
    """Opens notebooks on chats of a server that is configured as the platform is."""

    async def open_one(route: str, **more: str) -> tuple[Notebook, str]:
        chat = new_chat()
        variables = kernel_variables(server, chat, IVY_ROUTE=route, **more)
        return await opened(route, variables), chat

    return open_one


def end_of(server: RunningSandbox, chat: str) -> None:
    """Terminate it as another notebook, or the platform's page, does."""
    server.call("POST", f"/v1/sandbox/{chat}/terminate")


async def as_503(notebook: Notebook) -> None:
    """Have calls of tools answer 503 where there is no sandbox, as some platforms do."""
    client = await notebook.session.lifecycle.client()
    run_tool = client.run_tool

    async def answered(*arguments: Any, **options: Any) -> Any:
        try:
            return await run_tool(*arguments, **options)
        except NotFoundError as error:
            raise NotReadyError("The sandbox is still starting.", status_code=503) from error

    client.run_tool = answered  # type: ignore[method-assign]  # stands for another platform


@pytest.mark.parametrize(
    ("route", "notices", "status_code"),
    some(
        [
            ("agent", a_monitor, 404),
            ("agent", a_usage_request, 404),
            ("agent", polls_for_long, 404),
            ("agent", nothing, 503),
            ("notebook", a_completion, 404),
            ("notebook", nothing, 503),
            ("script", a_status, 404),
        ],
        [(*each, code) for code in (404, 503) for each in [*NOTICED_BY, ("agent", polls_for_long)]],
    ),
)
async def test_an_end_elsewhere_is_told(
    on_platform: Callable[..., Any],
    server: RunningSandbox,
    route: str,
    status_code: int,
    notices: Callable[[Notebook], Awaitable[None]],
) -> None:
    """Whatever the tools answer then: one sentence, nothing ran, then a new sandbox."""
    notebook, chat = await on_platform(route)
    assert (await notebook.run(f"x = 1\n{SPEAKS}")).fate == "succeeded"
    if status_code == 503:
        await as_503(notebook)
    end_of(server, chat)
    await notices(notebook)
    sentence = await notebook.told_once()
    assert f"Chat {chat} is gone (its state is now 'not started')" in sentence


@pytest.mark.parametrize("created_by", ["elsewhere", "command"])
@pytest.mark.parametrize("route", ["agent", "notebook"])
async def test_a_sandbox_that_was_replaced_is_told(
    on_platform: Callable[..., Any], server: RunningSandbox, route: str, created_by: str
) -> None:
    """Another sandbox behind the chat is not taken for the one with the variables."""
    notebook, chat = await on_platform(route)
    assert (await notebook.run("x = 1")).fate == "succeeded"
    end_of(server, chat)
    if created_by == "command":
        await notebook.session.create(lambda _: None)
    else:
        server.ready(chat, f"session-of-{chat}", f"campaign-of-{chat}")
        await notebook.session.reconnect()
    outcome = await notebook.run("open('ran.txt', 'w').close()")
    assert outcome.fate == "lost", outcome.reply
    assert "gone" in outcome.reply["evalue"]
    assert outcome.reply["evalue"].count("Nothing of this cell was run") == 1
    assert "closed" not in outcome.reply["evalue"]
    await notebook.run("import os; ('x' in globals(), os.path.exists('ran.txt'))")
    shown = [m.content for m in notebook.messages if m.msg_type == "execute_result"]
    assert shown[0]["data"]["text/plain"] == "(False, False)"


@pytest.mark.parametrize("route", SOME_ROUTES)
async def test_a_tool_tells_the_end_too(
    on_platform: Callable[..., Any], server: RunningSandbox, route: str
) -> None:
    """A cell in another language is no way around it."""
    notebook, chat = await on_platform(route)
    assert (await notebook.run("x = 1")).fate == "succeeded"
    end_of(server, chat)
    await notebook.told_once("touch ran.txt", tool=NamedTool("sandbox_exec", timeout_seconds=10))


@pytest.mark.parametrize("route", SOME_ROUTES)
async def test_hidden_code_does_not_use_the_sentence_up(
    on_platform: Callable[..., Any], server: RunningSandbox, route: str
) -> None:
    """A front end's own cell meets the end first and is refused; the user is told all the same."""
    notebook, chat = await on_platform(route)
    assert (await notebook.run("x = 1")).fate == "succeeded"
    end_of(server, chat)
    for _ in range(2):
        hidden = await notebook.run("open('ran.txt', 'w').close()", store_history=False)
        assert hidden.fate == "lost"
    await notebook.told_once()


@pytest.mark.parametrize("route", SOME_ROUTES)
async def test_a_loss_that_no_cell_has_told_survives_a_changed_setting(
    on_platform: Callable[..., Any], opened: Opened, server: RunningSandbox, route: str
) -> None:
    """The session that knows of the variables is closed, and the next one tells their loss."""
    namespace = Namespace()
    notebook, chat = await on_platform(route)
    first = open_session(LiveSettings(), namespace=namespace, session_key=f"key-{chat}")
    notebook.session = first
    assert (await notebook.run("x = 1")).fate == "succeeded"
    end_of(server, chat)
    await first.aclose(keep=True)
    notebook.session = open_session(LiveSettings(), namespace=namespace, session_key=f"key-{chat}")
    try:
        await notebook.told_once()
    finally:
        await notebook.session.aclose()


@pytest.mark.parametrize("route", ROUTES)
async def test_a_platform_that_cannot_be_reached_is_no_loss(
    opened: Opened, server: RunningSandbox, new_chat: Callable[[], str], route: str
) -> None:
    """An outage: nothing ran, and that is said; the variables are there when it is over."""
    chat = new_chat()
    async with FaultProxy(port_of(server), Faults()).running() as proxy:
        variables = kernel_variables(server, chat, IVY_ROUTE=route)
        variables["IVY_API_URL"] = f"http://127.0.0.1:{proxy.port}/api"
        notebook = await opened(route, variables)
        assert (await notebook.run("x = 1")).fate == "succeeded"
        await proxy.stop_listening()
        await asyncio.sleep(0.5)  # until the ends of kept connections are there to be seen
        running = asyncio.ensure_future(notebook.run("open('ran.txt', 'w').close()"))
        if route == "agent":  # it goes on trying
            await eventually(lambda: "cannot be reached" in notebook.text, "the note")
            assert "Nothing of this cell was run" in notebook.text
            assert "has arrived: it goes on" not in notebook.text
            await notebook.session.interrupt()
            assert (await running).fate == "interrupted"
        else:
            outcome = await running
            assert outcome.fate == "failed", outcome.reply
            assert "cannot be reached" in outcome.reply["evalue"]
            assert outcome.reply["evalue"].count("Nothing of this cell was run") == 1
            assert "gone" not in outcome.reply["evalue"]
        await proxy.listen()
        await notebook.run("import os; ('x' in globals(), os.path.exists('ran.txt'))")
        shown = [m.content for m in notebook.messages if m.msg_type == "execute_result"]
        assert not shown or shown[0]["data"]["text/plain"] == f"({route != 'script'}, False)"
