"""The base of the routes that run each cell by one call of one tool."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from ivy_kernel.errors import RouteError
from ivy_kernel.models import Cell, Json, Message, Outcome, Sink
from ivy_kernel.routes.base import RouteName
from ivy_kernel.routes.decode.result import decode_result
from ivy_kernel.routes.outcomes import failed, show_error, succeeded
from ivy_kernel.routes.tools import PYTHON_TOOL, Probe, SandboxTools

INTERRUPT_WAIT_SECONDS = 0.7
"""How long after an interrupt the tool may still bring the cell's real end; IPython may take half
of it for its first traceback."""

STOPPED = "Interrupted in the sandbox, which has confirmed it."

NOT_CONFIRMED = (
    "Stopped waiting for the cell. The sandbox did not confirm that it stopped there, so it may be "
    "still running, and the next cell may have to wait for it; %ivy terminate ends it for sure."
)


def show_result(
    result: object, cell: Cell, sink: Sink, *, was_interrupted: bool = False
) -> Outcome:
    """Shows a tool's result as the cell's outputs."""
    decoded = decode_result(result, execution_count=cell.execution_count)
    for output in decoded.outputs:
        content = dict(output)
        msg_type = content.pop("output_type")
        if msg_type == "execute_result":
            # The tool counts the cells of all notebooks of the chat; a notebook shows its own.
            content["execution_count"] = cell.execution_count
        sink(Message(msg_type, content))
    if decoded.error is None and was_interrupted and _says_interrupted(decoded.outputs):
        return show_error(sink, "KeyboardInterrupt", STOPPED, "interrupted")
    if decoded.error is None:
        return succeeded()
    interrupted = decoded.error["ename"] == "KeyboardInterrupt"
    return failed(decoded.error, "interrupted" if interrupted else "failed")


def _says_interrupted(outputs: Sequence[Mapping[str, Any]]) -> bool:
    """Returns whether the outputs end in the line that IPython prints when a display is hit.

    IPython reports that interrupt on stderr alone: the cell itself counts as succeeded there.
    """
    last: Mapping[str, Any] = outputs[-1] if outputs else {}
    is_stderr = last.get("output_type") == "stream" and last.get("name") == "stderr"
    return is_stderr and str(last.get("text", "")).rstrip().endswith("KeyboardInterrupt")


class InterruptibleCall:
    """One tool call that the user may stop waiting for."""

    def __init__(self) -> None:
        self._task: asyncio.Future[object] | None = None
        self._stop: asyncio.Event | None = None

    @property
    def running(self) -> bool:
        """Whether a call is under way."""
        return self._task is not None

    def stop(self) -> None:
        """Stops the waiting soon; harmless when no call is under way."""
        if self._stop is not None:
            self._stop.set()

    async def show(self, call: Awaitable[object], cell: Cell, sink: Sink) -> Outcome:
        """Runs a call to its end, or until shortly after `stop`, and shows its result."""
        self._stop = asyncio.Event()
        task = self._task = asyncio.ensure_future(call)
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            # Stopped: an interrupted cell ends with its own KeyboardInterrupt if it is given time.
            if not task.done():
                await asyncio.wait({task}, timeout=INTERRUPT_WAIT_SECONDS)
            if not task.done():
                return show_error(sink, "KeyboardInterrupt", NOT_CONFIRMED, "interrupted")
            return show_result(task.result(), cell, sink, was_interrupted=stopped.done())
        finally:
            self._task = self._stop = None
            # Awaited too, so that no exception is left that nothing has retrieved.
            for future in (task, stopped):
                future.cancel()
            await asyncio.gather(task, stopped, return_exceptions=True)


class NamedTool:
    """A call of one tool, which may be stopped.

    Parameters
    ----------
    tool
        The tool's name, such as ``sandbox_rscript``.
    parameters
        The tool's own parameters; ``None``: the cell's code is the one parameter.
    timeout_seconds
        Time budget; the platform has caps of its own (300 s, scripts 120 s).
    """

    def __init__(
        self, tool: str, *, parameters: Mapping[str, Any] | None = None, timeout_seconds: float
    ) -> None:
        self._tool = tool
        self._parameters = parameters
        self._timeout_seconds = timeout_seconds
        self._call = InterruptibleCall()

    async def execute(self, tools: SandboxTools, cell: Cell, sink: Sink) -> Outcome:
        """Runs it, and shows its decoded result as the cell's outputs.

        Called by the session, one at a time.

        Raises
        ------
        IvyError
            As `IvyClient.run_tool`.
        """
        return await self._call.show(self._result(tools, cell.code), cell, sink)

    def stop(self) -> None:
        """Stops waiting: the platform offers nothing that would stop a tool."""
        self._call.stop()

    async def _result(self, tools: SandboxTools, code: str) -> object:
        if self._parameters is not None:
            return await tools.call(self._tool, self._parameters, self._timeout_seconds)
        try:
            return await tools.run(self._tool, code, self._timeout_seconds)
        except RouteError as error:
            # The tool's own words tell more, for example that the sandbox has no such tool.
            raise (error.__cause__ or error) from None


class PlainRoute:
    """Runs each cell through one tool. A subclass names the tool, and what is special about it.

    Parameters
    ----------
    tools
        The sandbox's tools.
    cell_timeout_seconds
        Time budget of a cell; the platform has a cap of its own for each tool.
    """

    name: RouteName
    notice: str
    notices_losses = False
    live: None = None
    tool: ClassVar[str]
    """The tool that runs the cells' Python."""
    variables_persist: ClassVar[bool]
    """Whether a cell sees the variables of those before it."""

    def __init__(self, tools: SandboxTools, *, cell_timeout_seconds: float) -> None:
        self._tools = tools
        self._cell_timeout_seconds = cell_timeout_seconds
        self._probe: Probe | None = None
        self._call = InterruptibleCall()

    async def open(self) -> None:
        """Finds the code field and the Python process that answers."""
        self._probe = await self._tools.probe(self.tool)

    async def close(self, *, keep: bool) -> None:
        """Stops waiting for a call. Nothing else is held: each cell was a call of its own."""
        self._call.stop()

    async def end_with_sandbox(self) -> None:
        """Nothing to let go: the platform ends the call of a cell with its sandbox."""

    def describe(self) -> Json:
        """Code field and remote Python."""
        return {
            "route": self.name,
            "code_field": self._tools.found_fields.get(self.tool, ""),
            "python": self._probe.python_version if self._probe else "",
            "variables_persist": self.variables_persist,
            "streams": False,
        }

    async def _run(self, code: str, cell: Cell, sink: Sink) -> Outcome:
        """Runs a cell's code, perhaps adapted to the tool, and shows its result."""
        call = self._tools.run(self.tool, code, self._cell_timeout_seconds)
        return await self._call.show(call, cell, sink)


def unanswered(expressions: Iterable[str], reason: str) -> Json:
    """Returns the ``user_expressions`` of a reply (message spec, "Execute") without values."""
    missing = {"status": "error", "ename": "RouteError", "evalue": reason, "traceback": []}
    return dict.fromkeys(expressions, missing)


class ScriptRoute(PlainRoute):
    """Runs each cell through ``sandbox_python``; the platform caps scripts at 120 s."""

    name: RouteName = "script"
    tool = PYTHON_TOOL
    variables_persist = False
    notice = (
        "This sandbox offers only scripts: each cell runs in a Python process of its own, so "
        "variables and imports do not persist from cell to cell (files do), magics do not work, "
        "and a cell may take 120 s at most."
    )

    async def check(self) -> None:
        """Does nothing: without variables, none can be lost."""

    async def execute(self, cell: Cell, sink: Sink) -> Outcome:
        """Runs one cell."""
        outcome = await self._run(show_last_value(cell.code), cell, sink)
        if outcome.fate == "succeeded" and cell.user_expressions:
            outcome.reply["user_expressions"] = unanswered(
                cell.user_expressions, "variables do not persist on the script route"
            )
        return outcome

    async def ask(self, msg_type: str, content: Json) -> Json | None:
        """Returns ``None``: between two scripts no Python is there to ask."""
        return None

    async def interrupt(self) -> None:
        """Stops waiting: the platform offers nothing that would stop a script."""
        self._call.stop()

    async def restart(self) -> None:
        """Does nothing: each cell has a fresh namespace anyway."""


def show_last_value(code: str) -> str:
    """Returns the code, made to print the value of its last line if that is an expression.

    A script shows no values; a cell does. Line numbers stay as they are, since the change is
    confined to the last expression, which is parenthesised where it stands.
    """
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code  # the sandbox's Python says what is wrong with it, in its own words
    if not body or not isinstance(body[-1], ast.Expr) or code.rstrip().endswith(";"):
        return code
    last = body[-1]
    lines = code.encode().split(b"\n")  # ast counts columns in bytes of UTF-8
    first, end = last.lineno - 1, (last.end_lineno or last.lineno) - 1
    if lines[first][: last.col_offset].strip():
        return code  # something stands before it on its line
    comment = lines[end][last.end_col_offset :]
    lines[end] = lines[end][: last.end_col_offset] + b")" + comment
    # The displayhook, not print: like a cell, it shows nothing for None.
    lines[first] = b"__import__('sys').displayhook(" + lines[first]
    return b"\n".join(lines).decode()
