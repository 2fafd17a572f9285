"""The agent route: cells run in a kernel that our agent keeps in the sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import secrets
from collections.abc import Awaitable, Callable
from typing import Literal

from ivy_kernel.agent import PROTOCOL_VERSION
from ivy_kernel.errors import AnswerError, NoAnswerError, SandboxError, SandboxLostError
from ivy_kernel.models import Cell, Channel, Json, Message, Outcome, Sink
from ivy_kernel.routes.agent.calls import Counters, Rung, ToolCall
from ivy_kernel.routes.agent.connection import Attachment
from ivy_kernel.routes.agent.events import (
    AgentLost,
    AgentOpened,
    Event,
    KernelDied,
    Unreachable,
)
from ivy_kernel.routes.agent.requests import Docket, EndedError, Outgoing, Pending, header_of
from ivy_kernel.routes.agent.start import RUNGS, Ladder
from ivy_kernel.routes.base import RouteName
from ivy_kernel.routes.outcomes import execute_content, fate_in_words, fate_of, show_error, told
from ivy_kernel.routes.tools import SandboxTools

Interrupted = Literal["sent", "armed", "finished", "unreachable"]

RESTART_SECONDS = 60.0
READY_POLL_SECONDS = 0.02
SHUTDOWN_SECONDS = 4.0
COMM_SECONDS = 60.0
HELD_TIMES = 4
"""How much more than the agent keeps of its output may be held here: replies it keeps always."""


def directory_key(session_key: str) -> str:
    """The private directory's name part for a session; other protocol versions keep out of it."""
    plain = re.fullmatch(r"[A-Za-z0-9_-]{1,20}", session_key)
    key = session_key if plain else hashlib.sha256(session_key.encode()).hexdigest()[:16]
    return f"{key}.{PROTOCOL_VERSION}"


class AgentRoute:
    """Runs cells through the agent. Not thread-safe: everything happens on one event loop.

    Parameters
    ----------
    call
        ``await call(tool_name, code, timeout_seconds)`` runs code by one of the platform's tools
        and returns its decoded JSON. It raises the errors of ``ivy_kernel.errors`` and never
        repeats a call by itself.
    session_key
        Names the session in the sandbox: another route with the same key attaches to the same
        living kernel, and takes over from this one.
    on_background
        Takes messages whose parent is no running cell of this route: of threads, of widgets'
        callbacks, of a cell of an earlier client.
    on_event
        Takes :data:`ivy_kernel.routes.agent.events.Event`.
    rungs, directories
        How and where to start the agent; the defaults try everything.
    kernel
        ``auto``, ``ipykernel`` or ``shell`` (the built-in one).
    environment
        Set for the agent, its kernel and all cells.
    wait_seconds
        The longest time that a call waits for output.
    idle_poll_seconds
        How long after the last activity widgets and threads are listened to between cells.
    idle_lifetime_seconds
        After how long without contact the agent ends itself and the kernel.
    log_limit_bytes
        How much output is kept in the sandbox for a reader that does not come.
    open_limit_seconds
        How long calls may fail while the agent is looked for.
    give_up_seconds
        How long calls may fail before the outcome of what is running is called unknown.
    """

    def __init__(
        self,
        call: ToolCall,
        *,
        session_key: str,
        on_background: Callable[[Message], None] | None = None,
        on_event: Callable[[Event], None] | None = None,
        rungs: tuple[Rung, ...] = RUNGS,
        directories: tuple[str, ...] = (),
        kernel: str = "auto",
        environment: dict[str, str] | None = None,
        wait_seconds: float = 25.0,
        idle_poll_seconds: float = 300.0,
        idle_lifetime_seconds: float = 45 * 60.0,
        log_limit_bytes: int = 64 << 20,
        open_limit_seconds: float = 90.0,
        give_up_seconds: float = 900.0,
    ) -> None:
        on_event = on_event or _ignore
        counters = Counters()
        ladder = Ladder(
            call,
            directory_key(session_key),
            counters,
            rungs=rungs,
            directories=directories,
            environment=environment,
            give_up_seconds=open_limit_seconds,
            options={
                "kernel": kernel,
                "idle_lifetime_seconds": idle_lifetime_seconds,
                "log_limit_bytes": log_limit_bytes,
            },
        )
        self._docket = Docket(on_background or _ignore, on_event)
        self._attachment = Attachment(
            call,
            ladder,
            self._docket,
            counters,
            on_event=on_event,
            on_failed_call=self._withdraw_unwanted,
            wait_seconds=wait_seconds,
            idle_poll_seconds=idle_poll_seconds,
            give_up_seconds=give_up_seconds,
            held_limit_bytes=HELD_TIMES * log_limit_bytes,
        )

    # -- the agent's life

    async def open(self) -> None:
        """Find or start the agent. Runs no cell; callers at the same time share one attempt.

        Raises
        ------
        RouteError
            No agent can live in this sandbox; the words give the reasons.
        ApiError, NetworkError
            The platform refuses the calls or cannot be reached.
        """
        await self._attachment.opened()

    async def restart(self) -> None:
        """Replace the kernel by a new one with an empty namespace.

        Raises
        ------
        NoAnswerError
            The new kernel has not come up, or nobody could be asked.
        """
        link = await self._attachment.opened()
        self._attachment.forget_loss()
        restart_id = secrets.token_hex(8)
        self._docket.expect_restart(restart_id)
        link.submit({"do": "restart", "id": restart_id})
        deadline = asyncio.get_running_loop().time() + RESTART_SECONDS
        while self._docket.is_expecting:
            if self._attachment.link is not link or asyncio.get_running_loop().time() > deadline:
                self._docket.expect_restart("")
                raise NoAnswerError("The sandbox's kernel did not come up after the restart.")
            await asyncio.sleep(READY_POLL_SECONDS)

    async def shutdown(self) -> None:
        """End the agent and its kernel, as far as they can be reached within a few seconds."""
        self._attachment.refuse()
        await self._attachment.settled(SHUTDOWN_SECONDS)
        link = self._attachment.link
        if link is not None:
            await link.carrier.ask({"shutdown": True}, deadline_seconds=SHUTDOWN_SECONDS)
        self._attachment.close()

    async def detach(self) -> None:
        """Leave the agent and its kernel living, for a later route with the same key."""
        self._attachment.close()

    # -- cells

    async def execute(self, cell: Cell, sink: Sink) -> Outcome:
        """Run a cell and return how it ended. It is submitted once and never again.

        The cell's messages go to ``sink`` as they are, but for ``status`` and ``execute_input``,
        which a front end gets from its own kernel. A cell whose end was not told gets an ``error``
        message that says the same as the outcome.

        Raises
        ------
        SandboxLostError
            Noticed before the cell ran: the variables of earlier cells are gone. Said once.
        RouteError, ApiError, NetworkError
            The cell has not run, because there is no agent or no way to it.
        """
        header = header_of("execute_request", cell.header)
        request = Outgoing("shell", header, execute_content(cell))
        pending = Pending(request.message_id, is_cell=True, sink=sink)
        self._docket.add(pending)
        try:
            link = self._attachment.link
            if link is None:
                link = await pending.unless_ended(self._attachment.opened())
            self._attachment.raise_loss()
            self._docket.used_generation = self._docket.generation
            pending.submission = link.submit(request.body(self._docket.generation))
            reply = await pending.wait()
        except EndedError as ended:
            if ended.fate == "interrupted":
                return told(sink, "interrupted", str(ended.cause))
            if ended.has_not_run:
                raise ended.cause from None
            return told(sink, ended.fate, fate_in_words(ended))
        finally:
            self._docket.remove(pending)
        content = dict(reply.content) if reply is not None else {}
        return Outcome(fate_of(content, was_interrupted=pending.was_interrupted), content)

    async def interrupt(self, msg_id: str, *, deadline_seconds: float = 20.0) -> Interrupted:
        """Interrupt one cell, or one widget's message, wherever it is on its way.

        What has provably not reached the agent is taken back, now or as soon as that is known.

        Returns
        -------
        str
            ``sent``: it was running and the kernel has been signalled. ``armed``: it has not begun,
            and will be stopped when it does. ``finished``: there is nothing to stop, or no longer.
            ``unreachable``: nobody could be asked in time; later calls go on asking.
        """
        pending = self._docket.get(msg_id)
        if pending is not None:
            pending.was_interrupted = True
            self._withdraw(pending)
        link = self._attachment.link
        if link is None or (pending is not None and pending.is_done):
            return "finished"
        said = await link.interrupt(
            msg_id,
            deadline_seconds=deadline_seconds,
            is_moot=lambda: pending is not None and pending.is_done,
        )
        for word in ("sent", "armed", "finished"):
            if said == word:
                return word
        return "finished" if pending is not None and pending.is_done else "unreachable"

    def give_up(self, msg_id: str) -> None:
        """Stop waiting for a cell: its outcome is called unknown, or "not run" where that is so.

        Called by the kernel when the user interrupts a second time and nobody can be reached.
        """
        pending = self._docket.get(msg_id)
        if pending is None or self._withdraw(pending):
            return
        pending.end(EndedError("unknown", SandboxError("Given up while it was running.")))
        self._docket.remove(pending)

    async def follow(self) -> None:
        """Return when the kernel has nothing under way, and all that it said has arrived.

        Called after attaching to a kernel that was still working for an earlier client, whose
        messages go to ``on_background`` meanwhile.

        Raises
        ------
        SandboxLostError
            The kernel, or the agent, has ended meanwhile.
        """
        pending = Pending(secrets.token_hex(16), awaits_silence=True)
        self._docket.add(pending)
        try:
            link = await self._attachment.opened()
            pending.submission = link.submit({"do": "nothing"})
            await pending.wait()
        except EndedError as ended:
            raise ended.cause from None
        finally:
            self._docket.remove(pending)

    async def answer_input(self, value: str, *, request: Message | None = None) -> None:
        """Answer an ``input_request`` (message spec, "Messages on the stdin channel").

        Raises
        ------
        NoAnswerError
            The agent that asked is gone.
        """
        link = self._attachment.open_link()
        answer = Outgoing(
            "stdin",
            header_of("input_reply"),
            {"value": value, "status": "ok"},
            parent=(request.header if request is not None else None) or {},
        )
        link.submit(answer.body(self._docket.generation))

    # -- everything else

    async def request(
        self,
        msg_type: str,
        content: Json,
        *,
        header: Json | None = None,
        channel: Channel = "shell",
        timeout_seconds: float,
        metadata: Json | None = None,
        buffers: tuple[bytes, ...] = (),
    ) -> Message:
        """Ask the kernel something and return its reply: completion, inspection, history, ….

        Never looks for an agent, nor starts one: that is for cells alone.

        Raises
        ------
        NoAnswerError
            No reply came within ``timeout_seconds``, or no agent is known.
        SandboxLostError
            The kernel that was asked is gone.
        """
        request = Outgoing(
            channel, header_of(msg_type, header), content, metadata=metadata, buffers=buffers
        )
        pending = Pending(request.message_id, needs_idle=False)
        reply = await self._await(pending, request, timeout_seconds)
        if reply is None:
            raise NoAnswerError(f"The sandbox's kernel did not reply to {msg_type}.")
        return reply

    async def send_comm(
        self,
        header: Json,
        content: Json,
        metadata: Json | None = None,
        buffers: tuple[bytes, ...] = (),
        *,
        timeout_seconds: float = COMM_SECONDS,
    ) -> None:
        """Hand a ``comm_open``, ``comm_msg`` or ``comm_close`` over; returns at the remote "idle".

        Front ends drop a widget's callbacks at "idle", so it must not be told too early.

        Raises
        ------
        NoAnswerError
            No agent is known; none is looked for.
        """
        self._attachment.open_link()
        header = header_of(str(header.get("msg_type", "comm_msg")), header)
        request = Outgoing("shell", header, content, metadata=metadata, buffers=buffers)
        pending = Pending(request.message_id, needs_reply=False)
        with contextlib.suppress(NoAnswerError):
            await self._await(pending, request, timeout_seconds)

    def describe(self) -> Json:
        """The route as it stands, for ``doctor`` and ``%ivy status``."""
        kernel = self._docket.kernel
        return {
            "route": "agent",
            "kernel_kind": kernel.kind if kernel else "",
            "kernel_features": list(kernel.features) if kernel else [],
            "python_version": kernel.python_version if kernel else "",
            "generation": self._docket.generation,
            "dropped_messages": self._docket.dropped_messages,
            **self._attachment.describe(),
        }

    # -- inside

    def _withdraw(self, pending: Pending) -> bool:
        """Take back what has provably not reached the agent; whether that was so."""
        submission, link = pending.submission, self._attachment.link
        if submission is not None and not (
            link is not None and link.carrier.outbox.withdraw(submission)
        ):
            return False
        pending.end(EndedError("interrupted", SandboxError("Interrupted before it ran.")))
        self._docket.remove(pending)
        return True

    def _withdraw_unwanted(self) -> None:
        for pending in self._docket.unwanted:
            self._withdraw(pending)

    async def _await(
        self, pending: Pending, request: Outgoing, timeout_seconds: float
    ) -> Message | None:
        self._docket.add(pending)
        try:
            link = self._attachment.open_link()
            pending.submission = link.submit(request.body(self._docket.generation))
            return await asyncio.wait_for(pending.wait(), timeout_seconds)
        except asyncio.TimeoutError:
            raise NoAnswerError(
                f"The sandbox's kernel did not reply within {timeout_seconds:g} s."
            ) from None
        except EndedError as ended:
            raise ended.cause from None
        finally:
            self._docket.remove(pending)


def _ignore(_: object) -> None:
    """Take something nobody asked for."""


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
