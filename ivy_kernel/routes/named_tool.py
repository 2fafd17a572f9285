"""One call of a tool that the user names: an R script, a shell command, or any other.

Source: ``POST /v1/sandbox/{chatId}/tool/{toolName}``; neither parameters nor results
are documented.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ivy_kernel.errors import BadRequestError
from ivy_kernel.models import Cell, Outcome, Sink
from ivy_kernel.routes.plain_tool import InterruptibleCall
from ivy_kernel.routes.tools import SandboxTools, strings_in

ALTERNATIVE_FIELDS = ("code", "command", "source", "script", "cmd", "input")
PROBE_SECONDS = 30.0

_PROBES = {"sandbox_rscript": "cat('{word}\\n')", "sandbox_exec": "echo {word}"}


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
            return await self._run(tools, self._parameters, self._timeout_seconds)
        try:
            return await self._run_code(tools, code)
        except BadRequestError:  # refused unread, so nothing ran
            if not await self._find_field(tools):
                raise
        return await self._run_code(tools, code)

    async def _run_code(self, tools: SandboxTools, code: str) -> object:
        field = tools.code_fields.get(self._tool, "code")
        return await self._run(tools, {field: code}, self._timeout_seconds)

    async def _run(
        self, tools: SandboxTools, parameters: Mapping[str, Any], seconds: float
    ) -> object:
        result: object = await (await tools.client()).run_tool(
            tools.chat_id, self._tool, parameters, timeout_seconds=seconds
        )
        return result

    async def _find_field(self, tools: SandboxTools) -> bool:
        """Whether another field carries code to the tool, found by a harmless snippet."""
        probe = _PROBES.get(self._tool)
        if probe is None:
            return False
        for name in ALTERNATIVE_FIELDS:
            if name == tools.code_fields.get(self._tool):
                continue
            word = f"IVY-PROBE-{os.urandom(8).hex()}"
            try:
                result = await self._run(tools, {name: probe.format(word=word)}, PROBE_SECONDS)
            except BadRequestError:
                continue
            if any(word in text for text in strings_in(result)):
                tools.code_fields[self._tool] = name  # for the calls that follow, too
                return True
        return False
