"""Tool runners for the agent route's tests, and a route that records its messages and events."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fault_proxy import FaultProxy
from sandbox_server import RunningSandbox
from tool_calls import HttpTools
from waiting import eventually

from ivy_kernel.errors import CredentialsError, NotReadyError
from ivy_kernel.models import Cell, Message, Outcome
from ivy_kernel.routes.agent.pacing import AgentOptions
from ivy_kernel.routes.agent.route import AgentRoute
from ivy_kernel.routes.events import Event


class BareRunner:
    """A tool runner without HTTP: pipes each program into an interpreter in one directory."""

    def __init__(self, python: str, flags: Sequence[str], directory: Path) -> None:
        self.calls = 0
        self._argv = [python, *flags, "-"]
        self._directory = directory

    async def __call__(self, tool: str, code: str, timeout_seconds: float) -> object:
        """Run a program and return what it printed."""
        self.calls += 1
        process = await asyncio.create_subprocess_exec(
            *self._argv,
            cwd=self._directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(code.encode()), timeout_seconds)
        except BaseException:
            if process.returncode is None:
                process.kill()
            try:
                await process.wait()
            finally:  # which a second cancellation may have ended
                process._transport.close()
            raise
        return {"stdout": out.decode(), "stderr": err.decode(), "exit_code": process.returncode}

    async def aclose(self) -> None:
        """Do nothing: nothing is held open."""


class RefusingTools:
    """A tool runner that can be made to refuse: calls then fail without having been made.

    Parameters
    ----------
    tools
        Makes the calls that are not refused.
    delay_seconds
        The time that a refusal takes.
    """

    def __init__(self, tools: Any, *, delay_seconds: float = 0.0) -> None:
        self.refusal: Callable[[], Exception] | None = None
        self.refused = 0
        self.under_way = 0
        self._tools = tools
        self._delay_seconds = delay_seconds

    @property
    def calls(self) -> int:
        """The number of calls made."""
        return int(self._tools.calls)

    async def __call__(self, tool: str, code: str, timeout_seconds: float) -> object:
        """Make a call, or fails."""
        if self.refusal is None:
            return await self._tools(tool, code, timeout_seconds)
        error = self.refusal()
        self.refused += 1
        self.under_way += 1
        try:
            await asyncio.sleep(self._delay_seconds)
        finally:
            self.under_way -= 1
        raise error

    async def aclose(self) -> None:
        """Let the last calls through, and close."""
        await self._tools.aclose()


def not_ready() -> Exception:
    """The error of a sandbox that is starting."""
    return NotReadyError("still starting", status_code=503)


def wrong_key() -> Exception:
    """The error of a key that is not accepted."""
    return CredentialsError("the key is not accepted", status_code=401)


@dataclass
class Far:
    """A route, and the messages and events that came from it.

    Parameters
    ----------
    route
        The route.
    tools
        Makes and counts its calls.
    background
        Messages that belonged to no running cell.
    events
        The route's events.
    """

    route: AgentRoute
    tools: Any
    background: list[Message] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    async def run(self, code: str, **options: Any) -> Ran:
        """Run a cell and keep what it showed."""
        return await Running.start(self, code, **options).end()

    def begin(self, code: str, **options: Any) -> Running:
        """Begin to run a cell."""
        return Running.start(self, code, **options)

    def seen(self, kind: type[Event]) -> list[Any]:
        """The events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]


@dataclass
class Ran:
    """A cell's outcome, its messages, and their times."""

    outcome: Outcome
    messages: list[Message]
    times: list[float]
    calls: int

    @property
    def fate(self) -> str:
        """The outcome's fate."""
        return self.outcome.fate

    @property
    def text(self) -> str:
        """All of its stdout and stderr."""
        return text_of(self.messages)

    @property
    def result(self) -> str:
        """The plain text of its result."""
        found = [m for m in self.messages if m.msg_type == "execute_result"]
        return str(found[-1].content["data"]["text/plain"]) if found else ""

    def types(self) -> list[str]:
        """The types of its messages."""
        return [message.msg_type for message in self.messages]


@dataclass
class Running:
    """A cell under way."""

    message_id: str
    messages: list[Message]
    times: list[float]
    started: float
    far: Far
    calls_before: int
    task: asyncio.Task[Outcome]

    @classmethod
    def start(cls, far: Far, code: str, **options: Any) -> Running:
        """Submit it."""
        message_id = secrets.token_hex(8)
        messages: list[Message] = []
        times: list[float] = []
        started = time.monotonic()

        def sink(message: Message) -> None:
            messages.append(message)
            times.append(time.monotonic() - started)

        cell = Cell(code, header={"msg_id": message_id, "session": "test"}, **options)
        task = asyncio.create_task(far.route.execute(cell, sink))
        return cls(message_id, messages, times, started, far, far.tools.calls, task)

    async def end(self) -> Ran:
        """Wait for its outcome."""
        outcome = await self.task
        return Ran(outcome, self.messages, self.times, self.far.tools.calls - self.calls_before)

    @property
    def text(self) -> str:
        """Its stdout and stderr up to now."""
        return text_of(self.messages)


def text_of(messages: Sequence[Message]) -> str:
    """The text of the streams among these messages."""
    return "".join(m.content["text"] for m in messages if m.msg_type == "stream")


@dataclass
class Listener:
    """Keeps what a route reports; the sandbox never ends under a cell.

    Parameters
    ----------
    on_background, on_event
        Take messages and events.
    """

    on_background: Callable[[Message], None]
    on_event: Callable[[Event], None]
    is_behind: bool = False

    async def sandbox_end(self) -> None:
        """Called by the route for a cell whose end it does not know."""


@contextlib.asynccontextmanager
async def route_over(tools: Any, directory: Path | str, **options: Any) -> AsyncIterator[Far]:
    """A route whose agent lives in a directory; both are gone afterwards."""
    background: list[Message] = []
    events: list[Event] = []
    session_key = options.pop("session_key", secrets.token_hex(4))
    if directory:
        options["directories"] = (str(directory),)
    listener = Listener(background.append, events.append)
    route = AgentRoute(
        tools, session_key=session_key, listener=listener, options=AgentOptions(**options)
    )
    try:
        yield Far(route, tools, background, events)
    finally:
        if isinstance(tools, RefusingTools):
            tools.refusal = None
        await route.close(keep=False)
        await tools.aclose()


@contextlib.asynccontextmanager
async def route_to(
    server: RunningSandbox, chat_id: str = "", *, proxy: FaultProxy | None = None, **options: Any
) -> AsyncIterator[Far]:
    """A route into a sandbox of the local server, perhaps through a fault proxy."""
    chat_id = chat_id or f"chat-{secrets.token_hex(4)}"
    await asyncio.to_thread(server.ready, chat_id)
    url = server.url if proxy is None else server.url.replace(str(port_of(server)), str(proxy.port))
    margin_seconds = options.pop("margin_seconds", 5.0)
    directory = options.pop("directory", server.root.parent)
    tools = HttpTools(url, server.token, chat_id, margin_seconds=margin_seconds)
    async with route_over(tools, directory, **options) as far:
        yield far


def port_of(server: RunningSandbox) -> int:
    """The server's port."""
    return int(server.url.split(":")[2].split("/")[0])


async def kill(pid: int) -> None:
    """Kill a process, and wait until it is gone."""
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: not is_alive(pid), f"the end of process {pid}")


def waits_for(path: Path) -> str:
    """A line of a cell that waits there, for a minute at most, until a test creates a file."""
    return (
        "import os, time; until = time.monotonic() + 60\n"
        f"while not os.path.exists({str(path)!r}) and time.monotonic() < until: time.sleep(0.02)\n"
    )


def is_alive(pid: int) -> bool:
    """Whether a process lives (and is no zombie)."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"
