"""Finds out how an agent can live in this sandbox: which tool starts it, which speaks to it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from ivy_kernel.errors import AnswerError, ApiError, IvyError, NetworkError, RouteError
from ivy_kernel.models import Json
from ivy_kernel.routes.agent.calls import (
    NOTEBOOK_TOOL,
    Contact,
    Counters,
    Exchange,
    Rung,
    ToolCall,
    pack,
)
from ivy_kernel.routes.agent.failures import Backoff, is_final
from ivy_kernel.routes.agent.frames import (
    ENOENT,
    AgentSilentError,
    Answer,
    NoAgentError,
    TruncatedError,
    read_answer,
)
from ivy_kernel.routes.agent.programs import in_private_namespace, new_call_id, start_program

PYTHON_TOOL = "sandbox_python"
START_TIMEOUT_SECONDS = 60.0
REFUSALS_BELIEVED = 2
"""How often an agent that answered its start call must be gone at the next one."""

UNREADABLE_BELIEVED = 3
SILENCES_BELIEVED = 4


RUNGS = (
    Rung(PYTHON_TOOL, PYTHON_TOOL),
    Rung(NOTEBOOK_TOOL, PYTHON_TOOL),
    Rung(NOTEBOOK_TOOL, NOTEBOOK_TOOL),
)


class RungFailedError(Exception):
    """A rung that does not hold; the words say why."""


class Ladder:
    """Tries the rungs in turn and remembers which one held.

    Parameters
    ----------
    call
        Runs code by a tool.
    key
        The private directory's name part.
    counters
        Where calls are counted.
    rungs
        The ways to try, best first.
    directories
        Where to make the private directory; empty for the standard places.
    options
        The daemon's options.
    environment
        Set for the agent and all cells.
    give_up_seconds
        How long calls may fail for reasons that pass.
    """

    def __init__(
        self,
        call: ToolCall,
        key: str,
        counters: Counters,
        *,
        rungs: tuple[Rung, ...] = RUNGS,
        directories: tuple[str, ...] = (),
        options: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
        give_up_seconds: float = 90.0,
    ) -> None:
        self.reasons: list[str] = []
        self._call = call
        self._key = key
        self._counters = counters
        self._rungs = rungs
        self._directories = directories
        self._options = options or {}
        self._environment = environment or {}
        self._give_up_seconds = give_up_seconds
        self._index = 0
        self._excluded: list[str] = []

    async def open(self, token: str) -> Contact:
        """Find or start an agent and attach to it as the client with this token.

        Raises
        ------
        RouteError
            No rung holds; its words give the reason for each.
        ApiError, NetworkError
            The platform refuses the calls, or cannot be reached for too long.
        """
        while self._index < len(self._rungs):
            rung = self._rungs[self._index]
            try:
                return await self._try(rung, token)
            except RungFailedError as failure:
                self.reasons.append(f"{rung}: {failure}")
                self._index += 1
        self._index = 0
        self._excluded.clear()
        raise RouteError(
            "No agent can live in this sandbox ("
            + "; ".join(self.reasons[-len(self._rungs) :])
            + ")."
        )

    async def _try(self, rung: Rung, token: str) -> Contact:
        request: Json = {"attach": token}
        refusals = 0
        while True:
            first = await self._patiently(lambda: self._start(rung, request), rung)
            directory = str(first.place.get("directory", ""))
            if not directory.startswith("/") or not directory.isprintable():
                raise RungFailedError(f"the agent names no usable directory: {directory!r}")
            exchange = Exchange(self._call, rung.speaker, directory, self._counters)
            try:
                second = await self._patiently(lambda: exchange.ask(request), rung)  # noqa: B023 - awaited here
            except NoAgentError as error:
                if error.code == ENOENT:
                    self._excluded.append(str(first.place.get("base", "")))
                    self.reasons.append(f"{rung}: {directory} is not shared between calls")
                    continue
                refusals += 1
                if refusals >= REFUSALS_BELIEVED:
                    raise RungFailedError("what a call starts does not survive it") from error
                continue
            if second.header.get("nonce") != first.header.get("nonce"):
                refusals += 1
                if refusals >= REFUSALS_BELIEVED:
                    raise RungFailedError("each call finds another agent")
                continue
            is_found = first.place.get("how") == "found"
            self._counters.agents_started += not is_found
            header = second.header
            return Contact(rung, directory, header["nonce"], header["attached"], is_found, header)

    async def _start(self, rung: Rung, request: Json) -> Answer:
        call_id = new_call_id()
        program = start_program(
            key=self._key,
            request=pack(request),
            call_id=call_id,
            directories=self._directories,
            excluded=tuple(self._excluded),
            options=self._options,
            environment=self._environment,
        )
        if rung.starter == NOTEBOOK_TOOL:
            program = in_private_namespace(program)
        self._counters.calls += 1
        result = await self._call(rung.starter, program, START_TIMEOUT_SECONDS)
        try:
            return read_answer(result, call_id)
        except (AgentSilentError, NoAgentError) as error:
            raise RungFailedError(str(error)) from error

    async def _patiently(self, ask: Any, rung: Rung) -> Answer:
        """Ask again while the failure is one that passes."""
        deadline = time.monotonic() + self._give_up_seconds
        backoff = Backoff()
        while True:
            try:
                answer: Answer = await ask()
                if "attached" in answer.header:
                    if "nonce" not in answer.header:
                        raise AnswerError("The agent does not say who it is.")
                    return answer
                raise RungFailedError(f"the agent refused: {answer.header.get('error')}")
            except (NetworkError, ApiError, AgentSilentError, TruncatedError) as error:
                self._counters.failed_calls += 1
                pause_seconds = backoff.failed(error)
                self._believe(error, backoff, rung)
                if time.monotonic() + pause_seconds > deadline:
                    if isinstance(error, IvyError):
                        raise
                    raise RungFailedError(str(error)) from error
                await asyncio.sleep(pause_seconds)

    @staticmethod
    def _believe(error: Exception, backoff: Backoff, rung: Rung) -> None:
        """Raise when this failure means that the rung does not hold, or that nothing will."""
        times = backoff.same_failures
        if isinstance(error, AnswerError) and times >= UNREADABLE_BELIEVED:
            raise RungFailedError(str(error)) from error
        if isinstance(error, (AgentSilentError, TruncatedError)) and times >= SILENCES_BELIEVED:
            raise RungFailedError(str(error)) from error
        if is_final(error, times):
            if isinstance(error, ApiError) and error.status_code in (400, 404):
                raise RungFailedError(f"{rung.starter}: {error}") from error
            raise error
