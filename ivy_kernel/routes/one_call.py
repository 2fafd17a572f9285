"""The base of the routes that run each cell by one call of one tool."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from ivy_kernel.errors import RouteError
from ivy_kernel.models import Cell, Json, Message, Outcome, Sink
from ivy_kernel.routes.base import RouteName
from ivy_kernel.routes.decode import decode_result
from ivy_kernel.routes.outcomes import failed, show_error, succeeded
from ivy_kernel.routes.tools import Probe, SandboxTools

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
    """Show a tool's result as the cell's outputs."""
    decoded = decode_result(result, execution_count=cell.execution_count)
    for output in decoded.outputs:
        content = dict(output)
        msg_type = content.pop("output_type")
        if msg_type == "execute_result":
            content["execution_count"] = cell.execution_count
        sink(Message(msg_type, content))
    if decoded.error is None and was_interrupted and _says_interrupted(decoded.outputs):
        return show_error(sink, "KeyboardInterrupt", STOPPED, "interrupted")
    if decoded.error is None:
        return succeeded()
    interrupted = decoded.error["ename"] == "KeyboardInterrupt"
    return failed(decoded.error, "interrupted" if interrupted else "failed")


def _says_interrupted(outputs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether IPython was hit while it showed something: it says so here, and nowhere else."""
    last: Mapping[str, Any] = outputs[-1] if outputs else {}
    is_stderr = last.get("output_type") == "stream" and last.get("name") == "stderr"
    return is_stderr and str(last.get("text", "")).rstrip().endswith("KeyboardInterrupt")


class InterruptibleCall:
    """Waits for one tool call, but not longer than the user wants to."""

    def __init__(self) -> None:
        self._task: asyncio.Future[object] | None = None
        self._stop: asyncio.Event | None = None

    @property
    def running(self) -> bool:
        """Whether a call is under way."""
        return self._task is not None

    def stop(self) -> None:
        """Stop waiting soon; harmless when nothing is waited for."""
        if self._stop is not None:
            self._stop.set()

    async def show(self, call: Awaitable[object], cell: Cell, sink: Sink) -> Outcome:
        """Run a call to its end, or until shortly after `stop`, and show what came of it."""
        self._stop = asyncio.Event()
        task = self._task = asyncio.ensure_future(call)
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                await asyncio.wait({task}, timeout=INTERRUPT_WAIT_SECONDS)
            if not task.done():
                return show_error(sink, "KeyboardInterrupt", NOT_CONFIRMED, "interrupted")
            return show_result(task.result(), cell, sink, was_interrupted=stopped.done())
        finally:
            self._task = self._stop = None
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
        """Run it, and show its decoded result as the cell's outputs.

        Called by the session, one at a time.

        Raises
        ------
        IvyError
            As `IvyClient.run_tool`.
        """
        return await self._call.show(self._result(tools, cell.code), cell, sink)

    def stop(self) -> None:
        """Stop waiting: the platform offers nothing that would stop a tool."""
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
        """Find the code field and which Python process answers."""
        self._probe = await self._tools.probe(self.tool)

    async def close(self, *, keep: bool) -> None:
        """Nothing to let go: each cell was a call of its own."""
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
        """Run a cell's code, which may have been made ready for the tool, and show its result."""
        call = self._tools.run(self.tool, code, self._cell_timeout_seconds)
        return await self._call.show(call, cell, sink)


def unanswered(expressions: Iterable[str], reason: str) -> Json:
    """``user_expressions`` of a reply (message spec, "Execute") that have no values."""
    missing = {"status": "error", "ename": "RouteError", "evalue": reason, "traceback": []}
    return dict.fromkeys(expressions, missing)
