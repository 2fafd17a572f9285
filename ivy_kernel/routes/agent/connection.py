"""The connection to the agent: started or found, opened when needed, lost, opened again, closed."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

from ivy_kernel.agent import PROTOCOL_VERSION
from ivy_kernel.errors import (
    AnswerError,
    ApiError,
    IvyError,
    NetworkError,
    NoAnswerError,
    RouteError,
    SandboxError,
    SandboxLostError,
)
from ivy_kernel.models import Json
from ivy_kernel.routes.agent.calls import (
    AgentCalls,
    Counters,
    LaunchMethod,
    RunningAgent,
    ToolCall,
    ToolCaller,
    ending_call,
    pack,
)
from ivy_kernel.routes.agent.failures import FailureStreak, Health, is_final, may_mean_the_end
from ivy_kernel.routes.agent.frames import (
    ENOENT,
    AgentResponse,
    AgentUnresponsiveError,
    NoAgentError,
    TruncatedError,
    read_response,
    run_record,
)
from ivy_kernel.routes.agent.pacing import AgentOptions, PollScheduler
from ivy_kernel.routes.agent.poller import Poller
from ivy_kernel.routes.agent.programs import in_private_namespace, new_call_id, start_program
from ivy_kernel.routes.agent.requests import PendingRequest, RequestEndedError, RequestTable
from ivy_kernel.routes.events import (
    AgentLost,
    AgentOpened,
    CallRefused,
    Disconnected,
    ReachableAgain,
    Unreachable,
)
from ivy_kernel.routes.tools import NOTEBOOK_TOOL

START_TIMEOUT_SECONDS = 60.0  # includes sending the agent's archive and starting its Python
MAX_LOST_AGENTS = 2
"""Give up on a launch method after so many agents that answered their start call and were gone at
the next call."""

# Lower than what polls bear (MAX_UNREADABLE_POLLS), since nothing runs yet and there is another
# launch method, or another route, to try.
MAX_UNREADABLE_STARTS = 3
MAX_UNRESPONSIVE_STARTS = 4


def directory_key(session_key: str) -> str:
    """Return the private directory's name part; it holds the protocol version, to keep apart."""
    plain = re.fullmatch(r"[A-Za-z0-9_-]{1,20}", session_key)
    key = session_key if plain else hashlib.sha256(session_key.encode()).hexdigest()[:16]
    return f"{key}.{PROTOCOL_VERSION}"


class LaunchFailedError(Exception):
    """Raised when a launch method does not work in this sandbox; the message says why."""


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
        # The next cell tries all of them again: the sandbox may be another one by then.
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
            caller = ToolCaller(self._call, method.call_tool, directory, self._counters)
            try:
                second = await self._retried(lambda: caller.ask(request), method)  # noqa: B023 - awaited here
            except NoAgentError as error:
                if error.errno == ENOENT:
                    # This call sees another file system there: start again, elsewhere.
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

    async def _start(self, method: LaunchMethod, request: Json) -> AgentResponse:
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
                "notebook": self._options.notebook,
            },
            environment=dict(self._options.environment),
        )
        if method.start_tool == NOTEBOOK_TOOL:
            program = in_private_namespace(program)
        self._counters.calls += 1
        result = await self._call(method.start_tool, program, START_TIMEOUT_SECONDS)
        try:
            return read_response(result, call_id)
        except (AgentUnresponsiveError, NoAgentError) as error:
            raise LaunchFailedError(str(error)) from error

    async def _retried(
        self, ask: Callable[[], Awaitable[AgentResponse]], method: LaunchMethod
    ) -> AgentResponse:
        """Return the response; repeat the request while its failure is one that passes."""
        deadline = time.monotonic() + self._options.open_limit_seconds
        streak = FailureStreak()
        while True:
            try:
                response = await ask()
                if "attached" in response.header:
                    if "nonce" not in response.header:
                        raise AnswerError("The agent does not say who it is.")
                    return response
                raise LaunchFailedError(f"the agent refused: {response.header.get('error')}")
            except (NetworkError, ApiError, AgentUnresponsiveError, TruncatedError) as error:
                self._counters.failed_calls += 1
                pause_seconds = streak.failed(error)
                self._raise_if_hopeless(error, streak, method)
                if time.monotonic() + pause_seconds > deadline:
                    if isinstance(error, IvyError):
                        raise
                    raise LaunchFailedError(str(error)) from error
                await asyncio.sleep(pause_seconds)

    @staticmethod
    def _raise_if_hopeless(error: Exception, streak: FailureStreak, method: LaunchMethod) -> None:
        """Raise when this failure means that the launch method does not work, or that none will."""
        times = streak.same_failures
        if isinstance(error, AnswerError) and times >= MAX_UNREADABLE_STARTS:
            raise LaunchFailedError(str(error)) from error
        if (
            isinstance(error, (AgentUnresponsiveError, TruncatedError))
            and times >= MAX_UNRESPONSIVE_STARTS
        ):
            raise LaunchFailedError(str(error)) from error
        if is_final(error, times):
            if isinstance(error, ApiError) and error.status_code in (400, 404):
                raise LaunchFailedError(f"{method.start_tool}: {error}") from error
            raise error


RESTART_SECONDS = 60.0
READY_POLL_SECONDS = 0.02


# The connection ----------------------------------------------------------------------------------
RUN_SECONDS = 120.0  # the request may hold a whole notebook

HELD_LIMIT_FACTOR = 4
"""The inbox may hold this many times the agent's own log limit: beyond that limit the agent drops
output, but it keeps every reply."""


def holder_of(nonce: str, generation: int) -> str:
    """Return the name of an agent's kernel, as `Namespace` keeps it."""
    return f"agent:{nonce}/{generation}"


class AgentConnection:
    """Opens the poller when it is first needed, and remembers how earlier ones ended.

    It is the `ConnectionListener` of the poller, its calls and its health.

    Parameters
    ----------
    call
        Runs code by a tool; see `ivy_kernel.routes.agent.route.AgentRoute`.
    session_key
        Names the agent in the sandbox: the same key finds the same living agent again.
    options
        How the agent is started and how long it is waited for.
    table
        The requests in flight; its listener gets the connection's events too.
    """

    def __init__(
        self, call: ToolCall, session_key: str, options: AgentOptions, table: RequestTable
    ) -> None:
        self._call = call
        self._options = options
        self._table = table
        self._counters = Counters()
        self._starter = AgentStarter(call, session_key, options, self._counters)
        self._scheduler: PollScheduler | None = None
        self._opening: asyncio.Task[Poller] | None = None
        self._namespace = table.namespace
        self._is_closed = False
        self.poller: Poller | None = None

    async def opened(self) -> Poller:
        """Return the poller, opened if need be; callers at the same time share one attempt.

        Raises
        ------
        RouteError, ApiError, NetworkError
            There is no agent, or no way to it.
        """
        self._refuse_when_closed()
        if self.poller is not None:
            return self.poller
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
            self._opening.add_done_callback(self._on_opening_done)
        # Shielded: an interrupted cell must not undo a start that the next cell can use.
        poller = await asyncio.shield(self._opening)
        self._refuse_when_closed()
        return poller

    def open_poller(self) -> Poller:
        """Return the poller that is open. Opens none: only what the user runs starts an agent.

        Raises
        ------
        NoAnswerError
            There is none.
        """
        self._refuse_when_closed()
        if self.poller is None:
            raise NoAnswerError("The sandbox's kernel is not connected; the next cell connects it.")
        return self.poller

    async def ask_about_run(self, request: Json) -> Json:
        """Make a request about a run of the agent's own queue; see `LiveKernel.queue`."""
        poller = await self.opened()
        about = {"run": {**request, "g": self._table.generation}}
        record = run_record(await poller.calls.ask(about, deadline_seconds=RUN_SECONDS))
        poller.poll_for_background()
        return record

    def withdraw(self, pending: PendingRequest) -> bool:
        """Take back a request; return False unless it has provably not reached the agent."""
        submission, poller = pending.submission, self.poller
        if submission is not None and not (
            poller is not None and poller.calls.outbox.withdraw(submission)
        ):
            return False
        pending.end(RequestEndedError("interrupted", SandboxError("Interrupted before it ran.")))
        self._table.remove(pending)
        return True

    async def restart_kernel(self) -> None:
        """Replace the kernel; see `AgentRoute.restart_kernel`."""
        poller = await self.opened()
        self._namespace.forget()  # the user has asked for it, so expects no variables
        restart_id = secrets.token_hex(8)
        self._table.expect_restart(restart_id)
        poller.submit({"do": "restart", "id": restart_id})
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RESTART_SECONDS
        while self._table.is_restarting:
            if self.poller is not poller or loop.time() > deadline:
                self._table.expect_restart("")
                raise NoAnswerError("The sandbox's kernel did not come up after the restart.")
            await asyncio.sleep(READY_POLL_SECONDS)

    # -- a loss, reported once

    def raise_loss(self) -> None:
        """Raise the loss of the variables, once, instead of running a cell without them."""
        loss = self._namespace.take_loss()
        if loss is not None:
            raise loss

    # -- the end of the connection

    async def shut_down(self, deadline_seconds: float) -> None:
        """End the agent and its kernel, if they can be reached in time; then close."""
        self._is_closed = True
        if self._opening is not None:
            # An agent that is being started just now must be ended too, so its start is awaited.
            with contextlib.suppress(Exception):
                await asyncio.wait_for(asyncio.shield(self._opening), deadline_seconds)
        if self.poller is not None:
            await self.poller.calls.ask({"shutdown": True}, deadline_seconds=deadline_seconds)
        self.close()

    async def end_with_sandbox(self) -> None:
        """Close because the sandbox is gone; what has provably not arrived there is known then."""
        self._is_closed = True
        if self.poller is not None:
            await self.poller.settle()
        self.close()

    def close(self) -> None:
        """Leave the agent, which lives on; requests in flight end with an unknown outcome."""
        self._is_closed = True
        if self._opening is not None:
            self._opening.cancel()
        if self.poller is not None:
            self.poller.close()
            self._drop_poller()
        self._table.end_all(SandboxError("This session was closed."))

    def describe(self) -> Json:
        """Return how the agent is reached, and how well."""
        poller, scheduler = self.poller, self._scheduler
        return {
            "is_open": poller is not None,
            "launch_method": str(poller.calls.agent.launch_method) if poller else "",
            "call_tool": poller.calls.agent.launch_method.call_tool if poller else "",
            "reasons": list(self._starter.reasons),
            "directory": poller.calls.agent.directory if poller else "",
            "calls_may_overlap": scheduler.may_overlap if scheduler else None,
            "wait_limit_seconds": scheduler.wait_limit_seconds if scheduler else None,
            "answer_limit_chars": poller.size_limit.limit_chars if poller else None,
            "unreadable_records": poller.inbox.unreadable_records if poller else 0,
            **vars(self._counters),
        }

    # -- opening

    def _drop_poller(self) -> None:
        """Forget the poller, but not how far it has read: a later one must not show that again."""
        poller, self.poller = self.poller, None
        if poller is not None:
            self._namespace.log_position = (poller.calls.agent.nonce, poller.inbox.read_offset)

    def _refuse_when_closed(self) -> None:
        if self._is_closed:
            raise SandboxError("This session is closed; restart the kernel to open it again.")

    def _on_opening_done(self, task: asyncio.Task[Any]) -> None:
        self._opening = None
        if not task.cancelled():
            task.exception()  # retrieved here, because perhaps no caller waits any more

    async def _open(self) -> Poller:
        agent = await self._starter.open(secrets.token_hex(16))
        is_notebook = agent.launch_method.call_tool == NOTEBOOK_TOOL
        # Kept across reconnections: what was learned of the sandbox's tools stays true.
        self._scheduler = self._scheduler or PollScheduler(
            self._options,
            may_overlap=False if is_notebook else None,
        )
        # No restart that an earlier connection asked for is awaited here.
        self._table.expect_restart("")
        self._table.generation = agent.header.get("generation") or 1
        self._notice_lost_variables(agent)
        caller = ToolCaller(
            self._call, agent.launch_method.call_tool, agent.directory, self._counters
        )
        nonce, offset = self._namespace.log_position
        poller = Poller(
            AgentCalls(caller, agent, self),
            self._scheduler,
            Health(self, give_up_seconds=self._options.give_up_seconds),
            self._table,
            self,
            held_limit_bytes=HELD_LIMIT_FACTOR * self._options.log_limit_bytes,
            start=offset if nonce == agent.nonce else 0,
        )
        self.poller = poller
        running = tuple(str(i) for i in agent.header.get("under_way") or ())
        opened = AgentOpened(agent.is_found, running, ending_call(agent), kept=poller)
        self._table.listener.on_event(opened)
        if agent.is_found:
            poller.poll_for_background()
        return poller

    def _notice_lost_variables(self, agent: RunningAgent) -> None:
        """Remember a loss when this is not the kernel that the last cell was sent to."""
        known, generation = self._namespace.holder, self._table.generation
        if known == holder_of(agent.nonce, generation):
            return
        is_another = known.startswith("agent:")
        if is_another:
            what = "kernel" if known.startswith(f"agent:{agent.nonce}/") else "agent"
            self._namespace.lose(
                SandboxLostError(
                    f"The variables are gone, because the sandbox's {what} was started anew "
                    f"meanwhile."
                )
            )
        # The death of the old kernel may be in the log that is read next; a loss is reported once.
        self._table.used_generation = generation if is_another else 0

    # -- ConnectionListener

    def on_failed_call(self, error: Exception) -> None:
        """Withdraw interrupted requests: it may be known now that they have not arrived."""
        for pending in self._table.interrupted:
            self.withdraw(pending)
        if may_mean_the_end(error):
            self._table.listener.on_event(CallRefused(error))

    def on_connection_lost(self, reason: Exception) -> None:
        """End all requests, and remember a loss that no cell has reported to the user."""
        self._drop_poller()
        self._table.kernel = None
        is_reported = self._table.end_all(reason)
        if not isinstance(reason, SandboxLostError):
            self._table.listener.on_event(Disconnected(reason))
            return
        self._table.listener.on_event(AgentLost(str(reason)))
        if not is_reported:
            self._namespace.lose(reason)

    def on_reachable(self, error: Exception | None) -> None:
        """Report that calls have been failing for some seconds, or get through again."""
        cell = self._table.cell_arrival
        event = ReachableAgain() if error is None else Unreachable(error, cell)
        self._table.listener.on_event(event)
