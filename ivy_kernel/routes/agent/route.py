"""The agent route: cells run in a kernel that our agent keeps in the sandbox.

A cell's way: `AgentRoute.execute` puts a `PendingRequest` into the `RequestTable` and submits the
message to the `Poller`, whose next `AgentCalls.send` carries it to the agent. The agent's log comes
back with that poll and later ones; `RequestTable.on_record` hands its messages to the cell's sink.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import Literal, NoReturn

from ivy_kernel.errors import AnswerError, NoAnswerError, SandboxError, SandboxLostError
from ivy_kernel.models import Cell, Channel, Json, Message, Namespace, Outcome, Sink
from ivy_kernel.routes.agent import calls
from ivy_kernel.routes.agent.calls import OutgoingMessage, ToolCall, execute_request, header_of
from ivy_kernel.routes.agent.connection import AgentConnection, holder_of
from ivy_kernel.routes.agent.failures import EndOfSandbox
from ivy_kernel.routes.agent.frames import fate_of
from ivy_kernel.routes.agent.pacing import AgentOptions
from ivy_kernel.routes.agent.requests import (
    Configuring,
    PendingRequest,
    RequestEndedError,
    RequestTable,
)
from ivy_kernel.routes.base import LiveKernel, RouteListener, RouteName, WorkOwner
from ivy_kernel.routes.events import (
    ENDED_UNDER_CELL,
    ERROR_NAMES,
    NOT_RUN,
    NOT_STOPPED,
    TERMINATED,
    TERMINATED_BEFORE,
    AgentLost,
    AgentOpened,
    CallRefused,
    Event,
    KernelDied,
    ReachableAgain,
    Unreachable,
    show_error,
)

Interrupted = Literal["sent", "armed", "finished", "unreachable"]

SHUTDOWN_SECONDS = 4.0
COMM_SECONDS = 60.0
QUESTION_SECONDS = 30.0  # callers have their own, shorter limits
INTERRUPT_SECONDS = 4.0
GIVE_UP_SECONDS = 3.0
"""After the second interrupt of a cell, for it to end."""
CONTROL_SECONDS = WORK_SECONDS = 60.0


class AgentRoute:
    """Runs each cell in the kernel that our agent keeps in the sandbox.

    It is a `Route` and its own `LiveKernel`, and the `BackgroundListener` of its request table. Not
    thread-safe: everything happens on one event loop.

    Parameters
    ----------
    call
        ``await call(tool_name, code, timeout_seconds)`` runs code by one of the platform's tools
        and returns its decoded JSON. It raises the errors of ``ivy_kernel.errors`` and never
        repeats a call by itself.
    session_key
        Names the kernel in the sandbox: another route with the same key attaches to the same
        living kernel, and takes over from this one.
    listener
        Takes messages that belong to no running cell (of threads, of widgets' callbacks, of a cell
        of an earlier client) and events; finds out whether the sandbox has ended.
    options
        Limits and choices.
    namespace
        The notebook's variables in this sandbox, whichever route and session come before and after;
        ``None`` for one of its own.
    work
        Says what the kernel is to do beside cells; ``None`` for nothing.
    """

    name: RouteName = "agent"
    notice = ""
    notices_losses = True
    ending = None  # what runs in the agent is ended with the agent

    def __init__(
        self,
        call: ToolCall,
        *,
        session_key: str,
        listener: RouteListener,
        options: AgentOptions | None = None,
        namespace: Namespace | None = None,
        work: WorkOwner | None = None,
    ) -> None:
        self.holder = ""
        self._listener = listener
        self._namespace = namespace or Namespace()
        self._table = RequestTable(self, self._namespace)
        self._configuring = Configuring(self._table, work)
        options = options or AgentOptions()
        self._connection = AgentConnection(call, session_key, options, self._table)
        self._was_found = False
        self._cell_id = ""
        self._comm_ids: list[str] = []
        self._earlier_ids: set[str] = set()
        self._interrupts = 0
        self._is_terminated = False
        self._end = EndOfSandbox(listener, self._connection)

    @property
    def live(self) -> LiveKernel:
        """The route itself: its kernel takes requests at any time."""
        return self

    # -- the agent's life

    async def open(self) -> None:
        """Find or start the agent. Runs no cell; callers at the same time share one attempt.

        Raises
        ------
        RouteError
            No agent can live in this sandbox; the message gives the reasons.
        ApiError, NetworkError
            The platform refuses the calls or cannot be reached.
        """
        await self._connection.opened()

    async def check(self) -> None:
        """Do nothing: each submission names the kernel it is meant for."""

    async def restart(self) -> None:
        """Replace a kernel that was found; one that this route has started is new already.

        Raises
        ------
        NoAnswerError
            The new kernel has not come up, or could not be asked for.
        """
        if self._was_found:
            await self.restart_kernel()

    async def restart_kernel(self) -> None:
        """Replace the kernel by a new one with an empty namespace, whatever runs in the old one."""
        await self._connection.restart_kernel()

    async def close(self, *, keep: bool) -> None:
        """End the agent and its kernel, or leave them to a later process with the same key."""
        if keep:
            self._connection.close()
        else:
            await self._connection.shut_down(SHUTDOWN_SECONDS)

    async def end_with_sandbox(self) -> None:
        """Drop an agent that is gone with its sandbox, and end the running cell."""
        self._is_terminated = True
        self._connection.close()

    # -- cells

    async def execute(self, cell: Cell, sink: Sink) -> Outcome:
        """Run a cell and return how it ended; it is submitted once and never again.

        The cell's messages go to ``sink`` as they are, but for ``status`` and ``execute_input``,
        which a front end gets from its own kernel. A cell that ends without a reply gets an
        ``error`` message that says the same as the outcome.

        Raises
        ------
        SandboxLostError
            Noticed before the cell ran: the variables of earlier cells are gone. Raised once.
        SandboxError
            The cell has not run, because the agent could not be reached.
        RouteError, ApiError, NotSentError
            The cell has not run, because there is no agent or no way to it.
        """
        request = execute_request(cell)
        pending = PendingRequest(request.message_id, is_cell=True, sink=sink)
        self._cell_id, self._interrupts = str(cell.header.get("msg_id", "")), 0
        # In the table before there is an agent, so that an interrupt can end it from now on.
        self._table.add(pending)
        try:
            poller = self._connection.poller
            if poller is None:
                poller = await pending.unless_ended(self._connection.opened())
            self._connection.raise_loss()
            self._table.used_generation = self._table.generation
            self.holder = holder_of(poller.calls.agent.nonce, self._table.generation)
            self._configuring.add_to(poller.calls.outbox, self.holder)
            pending.submission = poller.submit(request.body(self._table.generation))
            reply = await pending.wait()
        except RequestEndedError as error:
            ended = error
        except (NoAnswerError, AnswerError, SandboxError) as error:
            self._raise_not_run(error)
        else:
            self._namespace.holder = self.holder
            content = dict(reply.content) if reply is not None else {}
            metadata = {"ivy": reply.metadata.get("ivy", {})} if reply is not None else {}
            fate = fate_of(content, was_interrupted=pending.was_interrupted)
            return Outcome(fate, content, metadata=metadata)
        finally:
            # Before the end is explained below: an interrupt that comes during that look at the
            # sandbox is not for this cell any more.
            self._cell_id = ""
            self._table.remove(pending)
            self._configuring.look(is_last=pending.is_answered)
        if ended.has_not_run and ended.fate != "interrupted":
            self._raise_not_run(ended.cause)
        return await self._end_without_reply(ended, sink)

    def _raise_not_run(self, error: Exception) -> NoReturn:
        """Raise the error of a cell that provably has not run."""
        told = error
        if isinstance(error, NoAnswerError | AnswerError | SandboxError) and self._is_terminated:
            told = SandboxLostError(TERMINATED_BEFORE)
        elif self._end.error:
            told = self._end.error
        elif isinstance(error, NoAnswerError | AnswerError):
            told = SandboxError(f"{error} {NOT_RUN}")
        if isinstance(told, SandboxLostError):
            self._namespace.forget()  # this cell tells it
        raise told from (None if told is error else error)

    async def _end_without_reply(self, ended: RequestEndedError, sink: Sink) -> Outcome:
        """End a cell without a reply; the sandbox's end may explain a fate that is unknown."""
        fate, sentence = ended.fate, ended.sentence
        if fate == "unknown" and self._is_terminated:
            fate, sentence = "lost", TERMINATED
        elif fate == "unknown":
            end = self._end.error or await self._listener.sandbox_end()
            if end:
                fate, sentence = "lost", f"{end} {ENDED_UNDER_CELL}"
        if fate == "lost":
            self._namespace.forget()  # this cell tells it
        elif not ended.has_not_run:
            self._namespace.holder = self.holder
        return show_error(sink, ERROR_NAMES[fate], sentence, fate)

    async def interrupt(self) -> None:
        """Interrupt the running cell, or else a widget's callback.

        An earlier client's cell, behind which ours would wait, is interrupted too. A second
        interrupt of the same cell gives up waiting: at once where the sandbox cannot be reached,
        else where the cell has not ended after some seconds.
        """
        self._interrupts += 1
        if self._interrupts > 1 and self._cell_id:
            loop = asyncio.get_running_loop()
            loop.call_later(GIVE_UP_SECONDS, self.give_up, self._cell_id, NOT_STOPPED)
        own_ids = [self._cell_id] if self._cell_id else self._comm_ids
        for message_id in [*self._earlier_ids, *own_ids]:
            reached = await self.interrupt_request(message_id, deadline_seconds=INTERRUPT_SECONDS)
            if reached == "unreachable" and self._interrupts > 1:
                self.give_up(message_id)

    async def interrupt_request(
        self, message_id: str, *, deadline_seconds: float = 20.0
    ) -> Interrupted:
        """Interrupt one cell, or one widget's message, running or still on its way.

        A request that has provably not reached the agent is withdrawn, now or as soon as that is
        known; the agent is asked to interrupt it all the same while it may have arrived.

        Returns ``sent``: it was running and the kernel has been signalled. ``armed``: it has not
        begun, and will be stopped when it does. ``finished``: there is nothing to stop, or no
        longer. ``unreachable``: the agent could not be asked in time; later calls go on asking.
        """
        pending = self._table.get(message_id)
        if pending is not None:
            pending.was_interrupted = True
            self._connection.withdraw(pending)
        poller = self._connection.poller
        if poller is None or (pending is not None and pending.is_done):
            return "finished"
        result = await poller.interrupt(
            message_id,
            deadline_seconds=deadline_seconds,
            is_moot=lambda: pending is not None and pending.is_done,
        )
        for known in ("sent", "armed", "finished"):
            if result == known:
                return known
        return "finished" if pending is not None and pending.is_done else "unreachable"

    def give_up(self, message_id: str, why: str = "Given up while it was running.") -> None:
        """Stop waiting for a cell: it ends as "not run" where that is certain, else as unknown."""
        pending = self._table.get(message_id)
        if pending is None or self._connection.withdraw(pending):
            return
        pending.end(RequestEndedError("unknown", SandboxError(why)))
        # It may be running still, and the next cell waits behind it: an interrupt is for both.
        self._table.abandon(pending)
        self._earlier_ids.add(message_id)

    # -- the living kernel, beside cells

    @property
    def running_comms(self) -> bool:
        """Whether the kernel is working on a widget's message."""
        return bool(self._comm_ids)

    @property
    def earlier_runs(self) -> bool:
        """Whether the kernel is still working for an earlier client with the same key."""
        return bool(self._earlier_ids)

    async def follow(self) -> None:
        """Return when the kernel has nothing in flight, and all that it sent has been shown.

        Called after attaching to a kernel that was still working for an earlier client, whose
        messages are shown as background meanwhile.

        Raises
        ------
        SandboxLostError
            The kernel, or the agent, has ended meanwhile.
        """
        pending = PendingRequest(secrets.token_hex(16), awaits_drain=True)
        self._table.add(pending)
        try:
            poller = await self._connection.opened()
            # Only with a submission does it count as in flight, which keeps the polls going.
            pending.submission = poller.submit({"do": "nothing"})
            await pending.wait()
        except RequestEndedError as ended:
            raise ended.cause from None
        finally:
            self._table.remove(pending)
        self._earlier_ids.clear()

    async def ask(self, msg_type: str, content: Json) -> Json | None:
        """Ask the kernel a question about code; the reply's content."""
        return (await self.request(msg_type, content, timeout_seconds=QUESTION_SECONDS)).content

    async def work(self, content: Json, *, timeout_seconds: float = WORK_SECONDS) -> Json:
        """Have the kernel's process do something beside cells; see `LiveKernel.work`."""
        reply = await self.request("ivy_work_request", content, timeout_seconds=timeout_seconds)
        return calls.work_answer(reply.content)

    async def configure(self) -> None:
        """Tell the kernel what its `WorkOwner` wants, without a cell; see `LiveKernel`."""
        poller = await self._connection.opened()
        self.holder = holder_of(poller.calls.agent.nonce, self._table.generation)
        self._configuring.add_to(poller.calls.outbox, self.holder)
        poller.submit({"do": "nothing"})  # takes it along
        await self._configuring.finish(WORK_SECONDS)

    async def queue(self, request: Json) -> Json:
        """Ask the agent about a run of its own; see `LiveKernel.queue`."""
        return await self._connection.ask_about_run(request)

    async def control(self, header: Json, content: Json) -> Json:
        """Make a request on the control channel, such as ``debug_request``; the reply's content."""
        kind = str(header["msg_type"])
        reply = await self.request(
            kind, content, header=header, channel="control", timeout_seconds=CONTROL_SECONDS
        )
        return reply.content

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

        Never looks for an agent, nor starts one: only cells do.

        Raises
        ------
        NoAnswerError
            No reply came within ``timeout_seconds``, or no agent is known.
        SandboxLostError
            The kernel that was asked is gone.
        """
        request = OutgoingMessage(
            channel, header_of(msg_type, header), content, metadata=metadata, buffers=buffers
        )
        pending = PendingRequest(request.message_id, needs_idle=False)
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
        """Send a ``comm_open``, ``comm_msg`` or ``comm_close``; return at the remote "idle".

        Front ends drop a widget's callbacks at "idle", so the local one must not come earlier.

        Raises
        ------
        NoAnswerError
            No agent is known; none is looked for.
        """
        self._connection.open_poller()
        header = header_of(str(header.get("msg_type", "comm_msg")), header)
        request = OutgoingMessage("shell", header, content, metadata=metadata, buffers=buffers)
        pending = PendingRequest(request.message_id, needs_reply=False)
        self._comm_ids.append(request.message_id)
        try:
            with contextlib.suppress(NoAnswerError):
                await self._await(pending, request, timeout_seconds)
        finally:
            self._comm_ids.remove(request.message_id)

    async def answer_input(self, value: str, request: Message | None = None) -> None:
        """Answer an ``input_request`` (message spec, "Messages on the stdin channel").

        Raises
        ------
        NoAnswerError
            The agent that asked is gone.
        """
        poller = self._connection.open_poller()
        content = {"value": value, "status": "ok"}
        parent = (request.header if request is not None else None) or {}
        answer = OutgoingMessage("stdin", header_of("input_reply"), content, parent=parent)
        poller.submit(answer.body(self._table.generation))

    async def _await(
        self, pending: PendingRequest, request: OutgoingMessage, timeout_seconds: float
    ) -> Message | None:
        self._table.add(pending)
        try:
            poller = self._connection.open_poller()
            pending.submission = poller.submit(request.body(self._table.generation))
            return await asyncio.wait_for(pending.wait(), timeout_seconds)
        except asyncio.TimeoutError:
            raise NoAnswerError(
                f"The sandbox's kernel did not reply within {timeout_seconds:g} s."
            ) from None
        except RequestEndedError as ended:
            raise ended.cause from None
        finally:
            self._table.remove(pending)

    def describe(self) -> Json:
        """Return the route as it stands, for ``doctor`` and ``%ivy status``."""
        kernel = self._table.kernel
        return {
            "route": self.name,
            "kernel_kind": kernel.kind if kernel else "",
            "kernel_features": list(kernel.features) if kernel else [],
            "python_version": kernel.python_version if kernel else "",
            "generation": self._table.generation,
            "dropped_messages": self._table.dropped_messages,
            **self._connection.describe(),
            "variables_persist": True,
            "streams": True,
        }

    # -- BackgroundListener, of the request table and the connection

    def on_background(self, message: Message) -> None:
        """Pass on a message that belongs to no request in flight."""
        if message.msg_type == "status" and message.content.get("execution_state") == "idle":
            self._earlier_ids.discard(message.parent_id)
        elif message.msg_type == "execute_input":  # of the agent's queue: it can be interrupted
            self._earlier_ids.add(message.parent_id)
        self._listener.on_background(message)

    def on_event(self, event: Event) -> None:
        """Keep what matters here of an event, and pass it on."""
        if isinstance(event, AgentOpened):
            self._was_found = event.is_found
            self._earlier_ids = set(event.running)
        elif isinstance(event, AgentLost | KernelDied):
            self._earlier_ids.clear()
        elif self._cell_id and isinstance(event, CallRefused | Unreachable):
            self._end.look(event)
            return
        elif isinstance(event, ReachableAgain) and self._end.take_untold() is not None:
            return  # the one has not been told, so the other need not be
        self._listener.on_event(event)

    @property
    def is_behind(self) -> bool:
        """Whether so much waits to be shown that no more should be fetched for now."""
        return self._listener.is_behind
