"""The connection to one agent: found or started when it is needed, lost and found again, let go."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import Any

from ivy_kernel.errors import NoAnswerError, SandboxError, SandboxLostError
from ivy_kernel.models import Json
from ivy_kernel.routes.agent.calls import (
    NOTEBOOK_TOOL,
    AgentCalls,
    Counters,
    RunningAgent,
    ToolCall,
    ToolCaller,
)
from ivy_kernel.routes.agent.failures import Health
from ivy_kernel.routes.agent.options import AgentOptions
from ivy_kernel.routes.agent.pacing import PollScheduler
from ivy_kernel.routes.agent.poller import Poller
from ivy_kernel.routes.agent.requests import PendingRequest, RequestEndedError, RequestTable
from ivy_kernel.routes.agent.start import AgentStarter
from ivy_kernel.routes.events import AgentLost, AgentOpened, ReachableAgain, Unreachable

HELD_TIMES = 4
"""How much more than the agent keeps of its output may be held here: replies it keeps always."""


class AgentConnection:
    """Opens the poller when it is first needed, and knows what became of earlier ones.

    It is what `Poller`, `AgentCalls` and `Health` report to.

    Parameters
    ----------
    call
        Runs code by a tool; see `ivy_kernel.routes.agent.route.AgentRoute`.
    session_key
        Names the agent in the sandbox: the same key finds the same living agent again.
    options
        How the agent is started and how long it is waited for.
    table
        The requests in flight; its listener hears of the connection's events too.
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
        self._loss: SandboxLostError | None = None
        self._known: tuple[str, int] | None = None
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
        """Return the poller, if there is one: what the user did not run starts nothing.

        Raises
        ------
        NoAnswerError
            There is none.
        """
        self._refuse_when_closed()
        if self.poller is None:
            raise NoAnswerError("The sandbox's kernel is not connected; the next cell connects it.")
        return self.poller

    def withdraw(self, pending: PendingRequest) -> bool:
        """Take back a request that has provably not reached the agent; whether that was so."""
        submission, poller = pending.submission, self.poller
        if submission is not None and not (
            poller is not None and poller.calls.outbox.withdraw(submission)
        ):
            return False
        pending.end(RequestEndedError("interrupted", SandboxError("Interrupted before it ran.")))
        self._table.remove(pending)
        return True

    # -- a loss, told once

    def raise_loss(self) -> None:
        """Say that the variables are gone, once, instead of running a cell without them."""
        loss, self._loss = self._loss or self._table.pop_pending_loss(), None
        if loss is not None:
            raise loss

    def forget_loss(self) -> None:
        """Drop the news of a loss: the user has asked for a restart, so expects no variables."""
        self._loss = None
        self._table.pop_pending_loss()

    # -- the end of the connection

    async def shut_down(self, deadline_seconds: float) -> None:
        """End the agent and its kernel, as far as they can be reached in time; then close."""
        self._is_closed = True
        if self._opening is not None:
            # An agent that is being started just now must be ended too, so its start is awaited.
            with contextlib.suppress(Exception):
                await asyncio.wait_for(asyncio.shield(self._opening), deadline_seconds)
        if self.poller is not None:
            await self.poller.calls.ask({"shutdown": True}, deadline_seconds=deadline_seconds)
        self.close()

    def close(self) -> None:
        """Let go of the agent, which lives on; what is under way is called unknown."""
        self._is_closed = True
        if self._opening is not None:
            self._opening.cancel()
        if self.poller is not None:
            self.poller.close()
            self.poller = None
        self._table.end_all(SandboxError("This session was closed."))

    def describe(self) -> Json:
        """Return how the agent is reached, and how well."""
        poller, scheduler = self.poller, self._scheduler
        return {
            "is_open": poller is not None,
            "launch_method": str(poller.calls.agent.launch_method) if poller else "",
            "reasons": list(self._starter.reasons),
            "directory": poller.calls.agent.directory if poller else "",
            "calls_may_overlap": scheduler.may_overlap if scheduler else None,
            "wait_limit_seconds": scheduler.wait_limit_seconds if scheduler else None,
            "answer_limit_chars": poller.size_limit.limit_chars if poller else None,
            "unreadable_records": poller.inbox.unreadable_records if poller else 0,
            **vars(self._counters),
        }

    # -- opening

    def _refuse_when_closed(self) -> None:
        if self._is_closed:
            raise SandboxError("This session is closed; restart the kernel to open it again.")

    def _on_opening_done(self, task: asyncio.Task[Any]) -> None:
        self._opening = None
        if not task.cancelled():
            task.exception()  # retrieved here, because perhaps no caller waits any more

    async def _open(self) -> Poller:
        agent = await self._starter.open(secrets.token_hex(16))
        is_notebook = agent.launch_method.speaker == NOTEBOOK_TOOL
        # Kept across reconnections: what was learned of the sandbox's tools stays true.
        self._scheduler = self._scheduler or PollScheduler(
            wait_seconds=self._options.poll_wait_seconds,
            idle_poll_seconds=self._options.idle_poll_seconds,
            may_overlap=False if is_notebook else None,
        )
        self._table.expect_restart("")
        self._table.generation = agent.header.get("generation") or 1
        self._compare(agent)
        caller = ToolCaller(
            self._call, agent.launch_method.speaker, agent.directory, self._counters
        )
        poller = Poller(
            AgentCalls(caller, agent, self),
            self._scheduler,
            Health(self._table, self, give_up_seconds=self._options.give_up_seconds),
            self._table,
            self,
            held_limit_bytes=HELD_TIMES * self._options.log_limit_bytes,
        )
        self.poller = poller
        running = tuple(str(i) for i in agent.header.get("under_way") or ())
        self._table.listener.on_event(AgentOpened(agent.is_found, running))
        if agent.is_found:
            poller.listen()
        return poller

    def _compare(self, agent: RunningAgent) -> None:
        """See whether the variables are where they were before calls were given up."""
        known, self._known = self._known, None
        generation = self._table.generation
        if known == (agent.nonce, generation):
            return
        if known is not None:
            what = "kernel" if known[0] == agent.nonce else "agent"
            self._loss = SandboxLostError(
                f"The variables are gone, because the sandbox's {what} was started anew while it "
                f"could not be reached."
            )
        # What is about to be told is not to be told again when the log's old events are read.
        self._table.used_generation = 0 if self._loss is None else generation

    # -- what the poller, its calls and its health report

    def on_failed_call(self) -> None:
        """Withdraw what was interrupted: it may be known now that it has not arrived."""
        for pending in self._table.interrupted:
            self.withdraw(pending)

    def on_over(self, reason: Exception) -> None:
        """End what is under way, and remember a loss that no cell has told the user."""
        poller, self.poller = self.poller, None
        self._table.kernel = None
        if poller is not None and not isinstance(reason, SandboxLostError):
            self._known = (poller.calls.agent.nonce, self._table.generation)
        is_reported = self._table.end_all(reason)
        if isinstance(reason, SandboxLostError):
            self._table.listener.on_event(AgentLost(str(reason)))
            self._loss = None if is_reported else reason

    def on_reachable(self, error: Exception | None) -> None:
        """Pass on that calls have been failing for some seconds, or get through again."""
        event = ReachableAgain() if error is None else Unreachable(error)
        self._table.listener.on_event(event)
