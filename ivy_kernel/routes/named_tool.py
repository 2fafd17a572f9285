"""One call of a tool that the user names: an R script, a shell command, or any other.

Source: ``POST /v1/sandbox/{chatId}/tool/{toolName}``; neither parameters nor results
are documented.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ivy_kernel.errors import RouteError
from ivy_kernel.models import Cell, Outcome, Sink
from ivy_kernel.routes.plain_tool import InterruptibleCall
from ivy_kernel.routes.tools import SandboxTools


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
