"""One request to the agent by one tool call, or by several when the request is large."""

from __future__ import annotations

import base64
import json
import secrets
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ivy_kernel.agent import PROTOCOL_VERSION
from ivy_kernel.models import Json
from ivy_kernel.routes.agent.frames import Answer, read_answer
from ivy_kernel.routes.agent.programs import in_private_namespace, new_call_id, snippet

ToolCall = Callable[[str, str, float], Awaitable[object]]
"""``await call(tool_name, code, timeout_seconds)``: the tool's decoded JSON result."""

NOTEBOOK_TOOL = "sandbox_notebook"
FRAGMENT_CHARS = 60_000
"""Some runners hand the code over as one argument, which Linux limits to 128 KiB."""

SNIPPET_MARGIN_SECONDS = 10.0
TOOL_MARGIN_SECONDS = 15.0


@dataclass
class Counters:
    """What the link has done, for ``describe``."""

    calls: int = 0
    failed_calls: int = 0
    truncated_answers: int = 0
    fragments: int = 0
    agents_started: int = 0


def pack(request: Json) -> bytes:
    """A request as the text that travels in a program."""
    text = json.dumps({"v": PROTOCOL_VERSION, **request}, separators=(",", ":"), default=str)
    return base64.b64encode(zlib.compress(text.encode("utf-8", "surrogatepass"), 1))


class Exchange:
    """Speaks to the agent in one directory by one tool.

    Parameters
    ----------
    call
        Runs code by a tool.
    tool
        The tool's name.
    directory
        The agent's private directory.
    counters
        Where calls are counted.
    """

    def __init__(self, call: ToolCall, tool: str, directory: str, counters: Counters) -> None:
        self._call = call
        self._tool = tool
        self._directory = directory
        self.counters = counters

    async def ask(self, request: Json, *, wait_seconds: float = 0.0) -> Answer:
        """Send a request and decode the answer; ``wait_seconds`` is how long it may be parked."""
        packed = pack(request)
        if len(packed) <= FRAGMENT_CHARS:
            return await self._send(packed, wait_seconds)
        upload = secrets.token_hex(8)
        starts = range(0, len(packed), FRAGMENT_CHARS)
        head = f"F:{upload}:%d:{len(starts)}:"
        for index, start in enumerate(starts):
            fragment = (head % index).encode() + packed[start : start + FRAGMENT_CHARS]
            self.counters.fragments += 1
            answer = await self._send(fragment, wait_seconds)
        return answer

    async def _send(self, packed: bytes, wait_seconds: float) -> Answer:
        call_id = new_call_id()
        program = snippet(
            self._directory,
            packed,
            timeout_seconds=wait_seconds + SNIPPET_MARGIN_SECONDS,
            call_id=call_id,
        )
        if self._tool == NOTEBOOK_TOOL:
            program = in_private_namespace(program)
        self.counters.calls += 1
        result = await self._call(self._tool, program, wait_seconds + TOOL_MARGIN_SECONDS)
        return read_answer(result, call_id)
