"""The base of the routes that run each cell by one call of one tool."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from ivy_kernel.models import Cell, Json, Outcome, Sink
from ivy_kernel.routes.base import RouteName
from ivy_kernel.routes.plain_tool import InterruptibleCall
from ivy_kernel.routes.tools import Probe, SandboxTools


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
