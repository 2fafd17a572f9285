"""The agent route as the session sees it: see `ivy_kernel.routes.agent` for how it works."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ivy_kernel.errors import AnswerError, NoAnswerError, SandboxError, SandboxLostError
from ivy_kernel.models import Cell, Json, Message, Outcome, Sink
from ivy_kernel.routes.agent import (
    AgentLost,
    AgentOpened,
    AgentRoute,
    Event,
    KernelDied,
    Unreachable,
)
from ivy_kernel.routes.base import RouteName
from ivy_kernel.routes.outcomes import show_error
from ivy_kernel.routes.tools import SandboxTools

QUESTION_SECONDS = 30.0
"""The session's callers have their own, shorter limits."""
INTERRUPT_SECONDS = 4.0
CONTROL_SECONDS = 60.0

TERMINATED = (
    "The sandbox was terminated while this cell was running, which ended the cell. How far it had "
    "come is not known."
)
TERMINATED_BEFORE = "The sandbox was terminated. Nothing of this cell was run."


class AgentCells:
    """Runs each cell in the kernel that our agent keeps in the sandbox.

    Parameters
    ----------
    tools
        The sandbox's tools.
    session_key
        Names the kernel in the sandbox; the same key finds the same living kernel again.
    on_background
        Takes messages that belong to no cell under way: widgets, threads, an earlier client's cell.
    on_event
        Takes what is told beside messages.
    sandbox_end
        Awaited for a cell whose end the agent route does not know, or that it cannot hear: says
        that the sandbox has ended under it, or nothing.
    idle_lifetime_seconds
        After so long without contact the agent ends itself, and the variables with it.
    """

    name: RouteName = "agent"
    notice = ""
    notices_losses = True

    def __init__(
        self,
        tools: SandboxTools,
        *,
        session_key: str,
        on_background: Callable[[Message], None],
        on_event: Callable[[Event], None],
        sandbox_end: Callable[[], Awaitable[str]],
        idle_lifetime_seconds: float,
    ) -> None:
        self._agent = AgentRoute(
            lambda tool, code, seconds: tools.run(tool, code, seconds, retry=False),
            session_key=session_key,
            on_background=self._on_message,
            on_event=self._on_event,
            idle_lifetime_seconds=idle_lifetime_seconds,
        )
        self._sandbox_end = sandbox_end
        self._show = on_background
        self._tell = on_event
        self._found = False
        self._cell = ""
        self._comms: list[str] = []
        self._earlier: set[str] = set()
        self._interrupts = 0
        self._is_terminated = False
        self._end_in_words = ""
        self._looking: asyncio.Future[None] | None = None

    def _on_event(self, event: Event) -> None:
        if isinstance(event, AgentOpened):
            self._found = event.is_found
            self._earlier = set(event.running)
        elif isinstance(event, AgentLost | KernelDied):
            self._earlier.clear()
        elif isinstance(event, Unreachable) and self._cell and self._looking is None:
            self._looking = asyncio.ensure_future(self._look_for_the_end())
        self._tell(event)

    async def _look_for_the_end(self) -> None:
        """A cell that cannot be heard need not be waited for when its sandbox is gone."""
        try:
            self._end_in_words = await self._sandbox_end()
            if self._end_in_words:
                await self._agent.detach()
        finally:
            self._looking = None

    def _on_message(self, message: Message) -> None:
        if message.msg_type == "status" and message.content.get("execution_state") == "idle":
            self._earlier.discard(str((message.parent_header or {}).get("msg_id")))
        self._show(message)

    async def open(self) -> None:
        """Find or start the agent."""
        await self._agent.open()

    async def check(self) -> None:
        """Nothing to do: each submission names the kernel it is meant for."""

    async def execute(self, cell: Cell, sink: Sink) -> Outcome:
        """Run one cell: one request for a short one, streamed for a long one."""
        self._cell, self._interrupts = str(cell.header.get("msg_id", "")), 0
        ends: list[Message] = []

        def take(message: Message) -> None:
            is_own = message.header is None  # of the agent route, where the kernel said nothing
            (ends.append if is_own and message.msg_type == "error" else sink)(message)

        try:
            outcome = await self._agent.execute(cell, take)
        except (NoAnswerError, AnswerError, SandboxError) as error:
            # The agent route raises only what is known not to have run.
            if self._is_terminated:
                raise SandboxLostError(TERMINATED_BEFORE) from error
            if isinstance(error, SandboxError):
                raise
            raise SandboxError(f"{error} Nothing of this cell was run.") from error
        finally:
            self._cell = ""
        if outcome.fate == "unknown":
            known = TERMINATED if self._is_terminated else self._end_in_words
            sentence = known or await self._sandbox_end()
            if sentence:
                return show_error(sink, SandboxLostError.__name__, sentence, "lost")
        for message in ends:
            sink(message)
        return outcome

    @property
    def running_comms(self) -> bool:
        """Whether the kernel is at work on a widget's message."""
        return bool(self._comms)

    @property
    def earlier_runs(self) -> bool:
        """Whether the kernel is still at work for an earlier client with the same key."""
        return bool(self._earlier)

    async def follow(self) -> None:
        """Return when that work is done, and all that it said was shown as background."""
        await self._agent.follow()
        self._earlier.clear()

    async def ask(self, msg_type: str, content: Json) -> Json | None:
        """Ask the kernel."""
        reply = await self._agent.request(msg_type, content, timeout_seconds=QUESTION_SECONDS)
        return reply.content

    async def control(self, header: Json, content: Json) -> Json:
        """A request on the control channel, such as ``debug_request``; the reply's content."""
        reply = await self._agent.request(
            str(header["msg_type"]),
            content,
            header=header,
            channel="control",
            timeout_seconds=CONTROL_SECONDS,
        )
        return reply.content

    async def send_comm(
        self, header: Json, content: Json, metadata: Json, buffers: tuple[bytes, ...]
    ) -> None:
        """Hand a widget's message over; returns when the kernel is done with it."""
        message_id = str(header["msg_id"])
        self._comms.append(message_id)
        try:
            await self._agent.send_comm(header, content, metadata, buffers)
        finally:
            self._comms.remove(message_id)

    async def answer_input(self, value: str, request: Message) -> None:
        """Answer an ``input_request``."""
        await self._agent.answer_input(value, request=request)

    async def interrupt(self) -> None:
        """Signal the kernel, aimed at the running cell, or else at a widget's callback.

        An earlier client's cell, behind which ours would wait, is stopped too. A second one gives
        up waiting where the sandbox cannot be reached.
        """
        self._interrupts += 1
        for target in [*self._earlier, *([self._cell] if self._cell else self._comms)]:
            reached = await self._agent.interrupt(target, deadline_seconds=INTERRUPT_SECONDS)
            if reached == "unreachable" and self._interrupts > 1:
                self._agent.give_up(target)

    async def restart(self) -> None:
        """Replace the kernel by a new one; one that was started just now is new already."""
        if self._found:
            await self._agent.restart()

    async def close(self, *, keep: bool) -> None:
        """End the agent and its kernel, or leave them to a later process with the same key."""
        if keep:
            await self._agent.detach()
        else:
            await self._agent.shutdown()

    async def end_with_sandbox(self) -> None:
        """Let go of an agent that has gone with its sandbox, and end the cell under way.

        Called by the session when the user has terminated the sandbox.
        """
        self._is_terminated = True
        await self._agent.detach()

    def describe(self) -> Json:
        """Rung, directory, remote kernel and counters."""
        return {**self._agent.describe(), "variables_persist": True, "streams": True}
