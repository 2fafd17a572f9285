"""Requests beside cells: code help, history, the user's input, debugger and usage."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Protocol

import zmq
from IPython.core.inputtransformer2 import TransformerManager

from ivy_kernel.models import Json

if TYPE_CHECKING:  # importing it takes longer than the kernel's start
    from ivy_kernel.kernel.cells import CellRunner
    from ivy_kernel.routes.base import LiveKernel


# Interrupts (control channel) --------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ReceivedInterrupt:
    """An ``interrupt_request``, and how far things were when it came (message spec, "Interrupt").

    It is for what its user saw running, or had sent before. The two channels do not keep that
    order: the message may overtake a cell, and a cell that is sent after it may begin first.

    Parameters
    ----------
    header
        Its header.
    received
        How many messages the shell channel had brought.
    cell
        The request of the cell that was running.
    """

    header: Json
    received: int
    cell: Json | None

    def is_for(self, cell: Json, number: int | None) -> bool:
        """Whether it is for a cell, with this request and this number in the shell channel."""
        sent, interrupted = cell["header"].get("date"), self.header.get("date")
        is_same_sender = cell["header"].get("session") == self.header.get("session")
        if is_same_sender and isinstance(sent, datetime) and isinstance(interrupted, datetime):
            return sent <= interrupted
        # By a Jupyter server, on behalf of a page whose clock may be another: the order of arrival.
        return cell is self.cell or (number is not None and number <= self.received)


# Code help (shell channel) -----------------------------------------------------------------------
AskSandbox = Callable[[str, Json], Awaitable[Json | None]]
"""Makes a request to the sandbox, if it is there and idle; ``None`` without a reply."""

CODE_HELP_SECONDS = 1.0
"""The shell channel is held for no longer; JupyterLab drops what comes later."""
LATE_ANSWERS_KEPT = 8


class CodeHelp:
    """Answers a front end's requests about code, always at once or nearly so.

    An answer that comes later, over a slow line, is kept for the request when it is repeated: the
    user presses Tab again.

    Parameters
    ----------
    ask_sandbox
        Makes a request of the given type and content.
    """

    def __init__(self, ask_sandbox: AskSandbox) -> None:
        self._ask_sandbox = ask_sandbox
        self._asked: dict[str, asyncio.Future[Json | None]] = {}
        self._transformer = TransformerManager()

    def is_complete(self, code: str) -> Json:
        """Answer here, without the sandbox (message spec, "Code completeness")."""
        status, indent = self._transformer.check_complete(code)
        reply: Json = {"status": status}
        if status == "incomplete":
            reply["indent"] = " " * (indent or 0)
        return reply

    async def complete(self, code: str, cursor_pos: int) -> Json:
        """Answer as the sandbox does, else empty (message spec, "Completion")."""
        nothing = {
            "status": "ok",
            "matches": [],
            "cursor_start": cursor_pos,
            "cursor_end": cursor_pos,
            "metadata": {},
        }
        content = {"code": code, "cursor_pos": cursor_pos}
        return await self._ask("complete_request", content) or nothing

    async def inspect(self, code: str, cursor_pos: int, detail_level: int) -> Json:
        """Answer as the sandbox does, else empty (message spec, "Introspection")."""
        nothing = {"status": "ok", "found": False, "data": {}, "metadata": {}}
        content = {"code": code, "cursor_pos": cursor_pos, "detail_level": detail_level}
        return await self._ask("inspect_request", content) or nothing

    def forget(self) -> None:
        """Drop all answers: a cell is about to run, after which others may be right."""
        asked, self._asked = self._asked, {}
        for asking in asked.values():
            asking.cancel()

    async def _ask(self, msg_type: str, content: Json) -> Json | None:
        """Return the answer, kept or new; ``None`` when it is not there in time."""
        key = json.dumps([msg_type, content], sort_keys=True)
        asking = self._asked.get(key)
        if asking is None or (asking.done() and not _answer_of(asking)):
            while len(self._asked) >= LATE_ANSWERS_KEPT:
                self._asked.pop(next(iter(self._asked))).cancel()
            asking = self._asked[key] = asyncio.ensure_future(self._ask_sandbox(msg_type, content))
        await asyncio.wait({asking}, timeout=CODE_HELP_SECONDS)
        if not asking.done():
            return None
        # Only late answers are kept: what is asked anew otherwise shows what is there now.
        if self._asked.get(key) is asking:
            del self._asked[key]
        return _answer_of(asking)


def _answer_of(asking: asyncio.Future[Json | None]) -> Json | None:
    """Return the answer of a request that has ended; ``None`` when it failed."""
    return None if asking.cancelled() or asking.exception() else asking.result()


# History (shell channel) -------------------------------------------------------------------------
Entry = tuple[int, int, Any]
"""Session, line, and input or (input, output)."""


class History:
    """Inputs of the cells that the user ran in this kernel, as session 1 of the message spec."""

    def __init__(self) -> None:
        self._inputs: list[tuple[int, str]] = []

    def add(self, line: int, code: str) -> None:
        """Keep one cell's input.

        Parameters
        ----------
        line
            Its execution count.
        code
            Its source.
        """
        self._inputs.append((line, code))

    def find(
        self,
        access_type: str,
        *,
        output: bool,
        session: int | None,
        start: int | None,
        stop: int | None,
        count: int | None,
        pattern: str | None,
        unique: bool,
    ) -> list[Entry]:
        """Answer a ``history_request``, whose fields these are.

        Parameters
        ----------
        access_type
            ``tail``, ``range`` or ``search``.
        output
            Whether entries have a place for the output.
        session, start, stop
            For ``range``; sessions before this one (1; also 0 and ``None``) are not known.
        count
            For ``tail`` and ``search``: how many at most.
        pattern, unique
            For ``search``.
        """
        if access_type == "tail":
            return self.tail(count, output=output)
        if access_type == "range" and session in (None, 0, 1):
            return self.range(start or 0, stop, output=output)
        if access_type == "search":
            return self.search(pattern or "*", count, output=output, unique=unique)
        return []

    def tail(self, count: int | None, *, output: bool) -> list[Entry]:
        """Return the last ``count`` inputs, oldest first."""
        chosen = self._inputs[-count:] if count else []
        return [self._entry(line, code, output) for line, code in chosen]

    def range(self, start: int, stop: int | None, *, output: bool) -> list[Entry]:
        """Return the inputs with ``start <= line < stop``; ``None`` for no end."""
        return [
            self._entry(line, code, output)
            for line, code in self._inputs
            if line >= start and (stop is None or line < stop)
        ]

    def search(self, pattern: str, count: int | None, *, output: bool, unique: bool) -> list[Entry]:
        """Return the last ``count`` inputs that match a glob pattern."""
        found = [(line, code) for line, code in self._inputs if fnmatchcase(code, pattern)]
        if unique:  # of equal inputs the last one stays, in the place of the first
            found = list({code: (line, code) for line, code in found}.values())
        chosen = found[-count:] if count else found
        return [self._entry(line, code, output) for line, code in chosen]

    @staticmethod
    def _entry(line: int, code: str, output: bool) -> Entry:
        # Outputs live in the notebook, not here, so an output is always "none known".
        return (1, line, (code, None)) if output else (1, line, code)


# The user's input (stdin channel) ----------------------------------------------------------------
INPUT_POLL_SECONDS = 0.02
"""Polling interval for the reply on the stdin channel."""


async def request_input(
    wire: Any,
    stdin_socket: Any,
    prompt: str,
    *,
    parent: dict[str, Any],
    ident: Any,
    password: bool = False,
) -> str:
    """Send an ``input_request`` and wait for the reply without blocking the loop.

    Cancel the task to give up, for example when the cell is interrupted.

    Parameters
    ----------
    wire
        jupyter_client's session.
    stdin_socket, ident
        The stdin channel, and the client that is asked on it.
    prompt, password
        Content of the request (message spec, "Prompt").
    parent
        The request whose cell asks.
    """
    while True:  # drop replies that came too late for an earlier request
        try:
            stdin_socket.recv_multipart(zmq.NOBLOCK)
        except zmq.ZMQError:
            break
    content = {"prompt": prompt, "password": password}
    wire.send(stdin_socket, "input_request", content, parent, ident=ident)
    while True:
        _, reply = wire.recv(stdin_socket, zmq.NOBLOCK)
        if reply is not None:
            return str(reply["content"].get("value", ""))
        await asyncio.sleep(INPUT_POLL_SECONDS)


# Debugger and usage (control channel) ------------------------------------------------------------
USAGE_SECONDS = 1.0
DEBUG_SECONDS = 30.0
"""Time limits for the sandbox's kernel to reply."""


class ControlOwner(Protocol):
    """The kernel that gets the requests, as far as they need it."""

    runner: CellRunner | None
    main_loop: asyncio.AbstractEventLoop | None

    @property
    def wire(self) -> Any:
        """jupyter_client's session."""

    async def usage_request(self, stream: Any, ident: Any, parent: Json) -> None:
        """Answer a ``usage_request`` for this process."""


class ControlRequests:
    """Handlers that ipykernel calls on the control thread.

    Front ends ask by themselves for memory and processor every few seconds, and for the debugger's
    state with every notebook that is opened. While no cell runs in the sandbox, neither is asked
    there: it would wake a sandbox that hibernates, and keep another from it.

    Parameters
    ----------
    owner
        The kernel.
    """

    def __init__(self, owner: ControlOwner) -> None:
        self._owner = owner
        self._answering: set[asyncio.Future[None]] = set()
        self._debugged: LiveKernel | None = None
        self._usage_of: LiveKernel | None = None
        self._last_usage: Json = {}

    async def debug_request(self, stream: Any, ident: Any, parent: Json) -> None:
        """Have the sandbox's debugger answer (message spec, "Debug request")."""
        self._beside(self._debug(stream, ident, parent))

    async def usage_request(self, stream: Any, ident: Any, parent: Json) -> None:
        """Report memory and processor: of the sandbox's kernel while a cell runs, or as they were.

        Where nothing is known of that kernel, those of this process.
        """
        self._beside(self._usage(stream, ident, parent))

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Answer later, without holding up the channel: a shutdown may be the next message."""
        task = asyncio.ensure_future(work)
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _debug(self, stream: Any, ident: Any, parent: Json) -> None:
        runner, content = self._owner.runner, None
        command = str(parent["content"].get("command", ""))
        if runner is not None and "debugger" in runner.features:
            live = runner.live
            # Of a debugger that is not in use the state is known: it is not started.
            if command != "debugInfo" or self._debugged is live or self._cell_runs_there:
                content = await self._forward(parent, DEBUG_SECONDS)
            if content and content.get("success"):
                self._note_debugger(command, live)
        if not content:
            content = reply_without_debugger(parent["content"])
        self._owner.wire.send(stream, "debug_reply", content, parent, ident)

    def _note_debugger(self, command: str, live: LiveKernel | None) -> None:
        if command in ("initialize", "attach"):
            self._debugged = live
        elif command in ("disconnect", "terminate"):
            self._debugged = None

    async def _usage(self, stream: Any, ident: Any, parent: Json) -> None:
        live = self._owner.runner.live if self._owner.runner is not None else None
        content = await self._forward(parent, USAGE_SECONDS) if self._cell_runs_there else None
        if content is not None:
            self._usage_of, self._last_usage = live, content
        elif live is not None and self._usage_of is live:
            content = self._last_usage  # as it was in the last cell
        if content is None:
            await self._owner.usage_request(stream, ident, parent)
        else:
            self._owner.wire.send(stream, "usage_reply", content, parent, ident)

    @property
    def _cell_runs_there(self) -> bool:
        """Whether a cell is under way in the sandbox, which is awake then."""
        session = self._owner.runner.session if self._owner.runner is not None else None
        return session is not None and session.busy

    async def _forward(self, parent: Json, seconds: float) -> Json | None:
        """Return the reply of the sandbox's kernel to a request; ``None`` without one."""
        runner, loop = self._owner.runner, self._owner.main_loop
        live = runner.live if runner is not None else None
        if live is None or loop is None:
            return None
        # The connections to the sandbox belong to the main loop; we are on the control thread's.
        work = asyncio.run_coroutine_threadsafe(
            live.control(parent["header"], parent["content"]), loop
        )
        with suppress(Exception):
            return await asyncio.wait_for(asyncio.wrap_future(work), seconds)
        return None


NO_DEBUGGER = (
    "The debugger is the one of the sandbox's Python, which is not there yet, or has none. "
    "Run a cell first; where that does not help, install debugpy in the sandbox."
)

_NOT_STARTED: Json = {
    "isStarted": False,
    "hashMethod": "Murmur2",
    "hashSeed": 0,
    "tmpFilePrefix": "",
    "tmpFileSuffix": ".py",
    "breakpoints": [],
    "stoppedThreads": [],
    "richRendering": True,
    "exceptionPaths": [],
    "copyToGlobals": True,
}


def reply_without_debugger(request: Json) -> Json:
    """Return the content of a ``debug_reply``: "not started" to ``debugInfo``, else a refusal.

    Parameters
    ----------
    request
        Content of the request (Debug Adapter Protocol).
    """
    command = request.get("command", "")
    reply: Json = {
        "type": "response",
        "seq": request.get("seq", 0),
        "request_seq": request.get("seq", 0),
        "command": command,
    }
    if command == "debugInfo":
        return {**reply, "success": True, "body": dict(_NOT_STARTED)}
    return {**reply, "success": False, "message": NO_DEBUGGER, "body": {}}
