"""Requests of the control channel that the kernel in the sandbox answers: debugger and usage."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import zmq
from IPython.core.inputtransformer2 import TransformerManager

from ivy_kernel.models import Json

if TYPE_CHECKING:
    from ivy_kernel.kernel.cells import CellRunner
    from ivy_kernel.models import Json


Entry = tuple[int, int, Any]
"""Session, line, and input or (input, output)."""


class History:
    """Inputs of the cells that the user ran in this kernel, as session 1."""

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
        """The last ``count`` inputs, oldest first."""
        chosen = self._inputs[-count:] if count else []
        return [self._entry(line, code, output) for line, code in chosen]

    def range(self, start: int, stop: int | None, *, output: bool) -> list[Entry]:
        """Inputs with ``start <= line < stop``; ``None`` for no end."""
        return [
            self._entry(line, code, output)
            for line, code in self._inputs
            if line >= start and (stop is None or line < stop)
        ]

    def search(self, pattern: str, count: int | None, *, output: bool, unique: bool) -> list[Entry]:
        """The last ``count`` inputs that match a glob pattern."""
        found = [(line, code) for line, code in self._inputs if fnmatchcase(code, pattern)]
        if unique:
            found = list({code: (line, code) for line, code in found}.values())
        chosen = found[-count:] if count else found
        return [self._entry(line, code, output) for line, code in chosen]

    @staticmethod
    def _entry(line: int, code: str, output: bool) -> Entry:
        # Outputs live in the notebook, not here, so an output is always "none known".
        return (1, line, (code, None)) if output else (1, line, code)


POLL_SECONDS = 0.02


async def ask(
    session: Any,
    stdin_socket: Any,
    prompt: str,
    *,
    parent: dict[str, Any],
    ident: Any,
    password: bool = False,
) -> str:
    """Send an ``input_request`` and wait for the reply without blocking the loop.

    Cancel the task to give up, for example when the cell is interrupted.
    """
    while True:  # answers that came too late for an earlier question
        try:
            stdin_socket.recv_multipart(zmq.NOBLOCK)
        except zmq.ZMQError:
            break
    content = {"prompt": prompt, "password": password}
    session.send(stdin_socket, "input_request", content, parent, ident=ident)
    while True:
        _, reply = session.recv(stdin_socket, zmq.NOBLOCK)
        if reply is not None:
            return str(reply["content"].get("value", ""))
        await asyncio.sleep(POLL_SECONDS)


Ask = Callable[[str, "Json"], Awaitable["Json | None"]]
"""Asks the sandbox, if it is there and idle, for a second at most; ``None`` without an answer."""


class CodeHelp:
    """Answers a front end's questions about code, always at once or nearly so.

    Parameters
    ----------
    ask
        Asks the sandbox a question of the given type and content.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._transformer = TransformerManager()

    def is_complete(self, code: str) -> Json:
        """Answered here (message spec, "Code completeness")."""
        status, indent = self._transformer.check_complete(code)
        reply: Json = {"status": status}
        if status == "incomplete":
            reply["indent"] = " " * (indent or 0)
        return reply

    async def complete(self, code: str, cursor_pos: int) -> Json:
        """Answered by the sandbox, else empty (message spec, "Completion")."""
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
        """Answered by the sandbox, else empty (message spec, "Introspection")."""
        nothing = {"status": "ok", "found": False, "data": {}, "metadata": {}}
        content = {"code": code, "cursor_pos": cursor_pos, "detail_level": detail_level}
        return await self._ask("inspect_request", content) or nothing


MISSING = (
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


def answer_without_debugger(request: Json) -> Json:
    """The content of the reply: "not started" to who asks, a refusal to all else.

    Parameters
    ----------
    request
        The content of the request (Debug Adapter Protocol).
    """
    command = request.get("command", "")
    answer: Json = {
        "type": "response",
        "seq": request.get("seq", 0),
        "request_seq": request.get("seq", 0),
        "command": command,
    }
    if command == "debugInfo":
        return {**answer, "success": True, "body": dict(_NOT_STARTED)}
    return {**answer, "success": False, "message": MISSING, "body": {}}


USAGE_SECONDS = 1.0
DEBUG_SECONDS = 30.0

Handler = Callable[[Any, Any, Any], Awaitable[None]]
"""Takes the stream to answer on, who asks, and the request; as ipykernel's handlers do."""


class ControlRequests:
    """Handlers for ipykernel, which calls them on the control thread.

    Parameters
    ----------
    runner
        Gives the runner, once there is one.
    main_loop
        Gives the loop that the sandbox is spoken to on, once it runs.
    send
        jupyter_client's ``session.send``.
    own_usage
        Answers a ``usage_request`` for this process.
    """

    def __init__(
        self,
        *,
        runner: Callable[[], CellRunner | None],
        main_loop: Callable[[], asyncio.AbstractEventLoop | None],
        send: Callable[..., Any],
        own_usage: Handler,
    ) -> None:
        self._runner = runner
        self._main_loop = main_loop
        self._send = send
        self._own_usage = own_usage
        self._answering: set[asyncio.Future[None]] = set()

    async def debug_request(self, stream: Any, ident: Any, parent: Json) -> None:
        """The debugger of the kernel in the sandbox (message spec, "Debug request")."""
        self._beside(self._debug(stream, ident, parent))

    async def usage_request(self, stream: Any, ident: Any, parent: Json) -> None:
        """Memory and processor of the kernel in the sandbox, or of this process."""
        self._beside(self._usage(stream, ident, parent))

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Answer later, without holding up the channel: a shutdown may be the next message."""
        task = asyncio.ensure_future(work)
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _debug(self, stream: Any, ident: Any, parent: Json) -> None:
        runner = self._runner()
        has_one = runner is not None and "debugger" in runner.features
        content = await self._forwarded(parent, DEBUG_SECONDS) if has_one else None
        if not content:
            content = answer_without_debugger(parent["content"])
        self._send(stream, "debug_reply", content, parent, ident)

    async def _usage(self, stream: Any, ident: Any, parent: Json) -> None:
        content = await self._forwarded(parent, USAGE_SECONDS)
        if content is None:
            await self._own_usage(stream, ident, parent)
        else:
            self._send(stream, "usage_reply", content, parent, ident)

    async def _forwarded(self, parent: Json, seconds: float) -> Json | None:
        """The sandbox's answer to a request; ``None`` without one."""
        runner, loop = self._runner(), self._main_loop()
        agent = runner.live if runner is not None else None
        if agent is None or loop is None:
            return None
        work = asyncio.run_coroutine_threadsafe(
            agent.control(parent["header"], parent["content"]), loop
        )
        with suppress(Exception):
            return await asyncio.wait_for(asyncio.wrap_future(work), seconds)
        return None
