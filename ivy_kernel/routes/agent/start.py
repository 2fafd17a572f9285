"""Finds out how an agent can live in this sandbox: which tool starts it, which speaks to it."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from typing import Any

from ivy_kernel.agent import PROTOCOL_VERSION
from ivy_kernel.errors import AnswerError, ApiError, IvyError, NetworkError, RouteError
from ivy_kernel.models import Json
from ivy_kernel.routes.agent.calls import (
    NOTEBOOK_TOOL,
    Counters,
    LaunchMethod,
    RunningAgent,
    ToolCall,
    ToolCaller,
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
from ivy_kernel.routes.agent.options import AgentOptions
from ivy_kernel.routes.agent.programs import in_private_namespace, new_call_id, start_program

START_TIMEOUT_SECONDS = 60.0
MAX_LOST_AGENTS = 2
"""Give up on a launch method after so many agents that answered their start call and were gone at
the next call."""

MAX_UNREADABLE_STARTS = 3
MAX_SILENT_STARTS = 4


def directory_key(session_key: str) -> str:
    """The private directory's name part for a session; other protocol versions keep out of it."""
    plain = re.fullmatch(r"[A-Za-z0-9_-]{1,20}", session_key)
    key = session_key if plain else hashlib.sha256(session_key.encode()).hexdigest()[:16]
    return f"{key}.{PROTOCOL_VERSION}"


class LaunchFailedError(Exception):
    """A launch method that does not work here; the message says why."""


class AgentStarter:
    """Tries the launch methods in turn and remembers which one works.

    Parameters
    ----------
    call
        Runs code by a tool.
    session_key
        The same key finds the same living agent again.
    options
        What to try, and for how long.
    counters
        Where calls are counted.
    """

    def __init__(
        self, call: ToolCall, session_key: str, options: AgentOptions, counters: Counters
    ) -> None:
        self.reasons: list[str] = []
        self._call = call
        self._key = directory_key(session_key)
        self._options = options
        self._counters = counters
        self._index = 0
        self._excluded: list[str] = []

    async def open(self, token: str) -> RunningAgent:
        """Find or start an agent and attach to it as the client with this token.

        Raises
        ------
        RouteError
            No launch method works; the message gives the reason for each.
        ApiError, NetworkError
            The platform refuses the calls, or cannot be reached for too long.
        """
        while self._index < len(self._options.launch_methods):
            method = self._options.launch_methods[self._index]
            try:
                return await self._try(method, token)
            except LaunchFailedError as failure:
                self.reasons.append(f"{method}: {failure}")
                self._index += 1
        self._index = 0
        self._excluded.clear()
        raise RouteError(
            "No agent can live in this sandbox ("
            + "; ".join(self.reasons[-len(self._options.launch_methods) :])
            + ")."
        )

    async def _try(self, method: LaunchMethod, token: str) -> RunningAgent:
        request: Json = {"attach": token}
        lost_agents = 0
        while True:
            first = await self._retried(lambda: self._start(method, request), method)
            directory = str(first.place.get("directory", ""))
            if not directory.startswith("/") or not directory.isprintable():
                raise LaunchFailedError(f"the agent names no usable directory: {directory!r}")
            caller = ToolCaller(self._call, method.speaker, directory, self._counters)
            try:
                second = await self._retried(lambda: caller.ask(request), method)  # noqa: B023 - awaited here
            except NoAgentError as error:
                if error.code == ENOENT:
                    self._excluded.append(str(first.place.get("base", "")))
                    self.reasons.append(f"{method}: {directory} is not shared between calls")
                    continue
                lost_agents += 1
                if lost_agents >= MAX_LOST_AGENTS:
                    raise LaunchFailedError("what a call starts does not survive it") from error
                continue
            if second.header.get("nonce") != first.header.get("nonce"):
                lost_agents += 1
                if lost_agents >= MAX_LOST_AGENTS:
                    raise LaunchFailedError("each call finds another agent")
                continue
            is_found = first.place.get("how") == "found"
            self._counters.agents_started += not is_found
            header = second.header
            return RunningAgent(
                method, directory, header["nonce"], header["attached"], is_found, header
            )

    async def _start(self, method: LaunchMethod, request: Json) -> Answer:
        call_id = new_call_id()
        program = start_program(
            key=self._key,
            request=pack(request),
            call_id=call_id,
            directories=self._options.directories,
            excluded=tuple(self._excluded),
            options={
                "kernel": self._options.kernel,
                "idle_lifetime_seconds": self._options.idle_lifetime_seconds,
                "log_limit_bytes": self._options.log_limit_bytes,
            },
            environment=dict(self._options.environment),
        )
        if method.starter == NOTEBOOK_TOOL:
            program = in_private_namespace(program)
        self._counters.calls += 1
        result = await self._call(method.starter, program, START_TIMEOUT_SECONDS)
        try:
            return read_answer(result, call_id)
        except (AgentSilentError, NoAgentError) as error:
            raise LaunchFailedError(str(error)) from error

    async def _retried(self, ask: Any, method: LaunchMethod) -> Answer:
        """Return the answer; ask again while the failure is one that passes."""
        deadline = time.monotonic() + self._options.open_limit_seconds
        backoff = Backoff()
        while True:
            try:
                answer: Answer = await ask()
                if "attached" in answer.header:
                    if "nonce" not in answer.header:
                        raise AnswerError("The agent does not say who it is.")
                    return answer
                raise LaunchFailedError(f"the agent refused: {answer.header.get('error')}")
            except (NetworkError, ApiError, AgentSilentError, TruncatedError) as error:
                self._counters.failed_calls += 1
                pause_seconds = backoff.failed(error)
                self._raise_if_hopeless(error, backoff, method)
                if time.monotonic() + pause_seconds > deadline:
                    if isinstance(error, IvyError):
                        raise
                    raise LaunchFailedError(str(error)) from error
                await asyncio.sleep(pause_seconds)

    @staticmethod
    def _raise_if_hopeless(error: Exception, backoff: Backoff, method: LaunchMethod) -> None:
        """Raise when this failure means that the launch method does not work, or that none will."""
        times = backoff.same_failures
        if isinstance(error, AnswerError) and times >= MAX_UNREADABLE_STARTS:
            raise LaunchFailedError(str(error)) from error
        if isinstance(error, (AgentSilentError, TruncatedError)) and times >= MAX_SILENT_STARTS:
            raise LaunchFailedError(str(error)) from error
        if is_final(error, times):
            if isinstance(error, ApiError) and error.status_code in (400, 404):
                raise LaunchFailedError(f"{method.starter}: {error}") from error
            raise error
