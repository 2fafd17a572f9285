"""The table of requests in flight, and what is known of the kernel that works on them.

A request ends when its reply (shell channel) and its "idle" (iopub) have both come: they travel on
two channels, and either may be first. What the agent reports can end it without a reply.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Coroutine
from typing import Any, TypeVar

from ivy_kernel.errors import SandboxError, SandboxLostError, WorkError
from ivy_kernel.models import Fate, Json, Message, Namespace, Sink
from ivy_kernel.routes.agent import calls
from ivy_kernel.routes.agent.calls import Outbox, OutgoingMessage, Submission, header_of
from ivy_kernel.routes.agent.frames import is_execute_reply, to_message, to_meter
from ivy_kernel.routes.base import BackgroundListener, WorkOwner
from ivy_kernel.routes.events import (
    Arrival,
    KernelDied,
    KernelReady,
    OutputDropped,
    describe_death,
    last_line,
)

Result = TypeVar("Result")


class RequestEndedError(Exception):
    """Raised for a request that has ended without a reply of the kernel.

    Parameters
    ----------
    fate
        What is known of its end: ``lost``, ``unknown`` or ``interrupted``.
    cause
        The error that ended it, with a sentence for the user.
    has_not_run
        Whether it provably never reached the kernel.
    """

    def __init__(self, fate: Fate, cause: Exception, *, has_not_run: bool = False) -> None:
        super().__init__(str(cause))
        self.fate = fate
        self.cause = cause
        self.has_not_run = has_not_run

    @property
    def sentence(self) -> str:
        """The sentence for the user, of a cell that ended so."""
        if self.fate == "interrupted":
            return str(self.cause)
        if self.fate == "lost":
            return f"{self.cause} Whether this cell had run to its end is not known."
        return f"Whether this cell has run to its end is not known: {self.cause}"


class PendingRequest:
    """A request in flight, until its reply and the kernel's "idle" have come.

    Parameters
    ----------
    message_id
        The request's message id, which its messages name as their parent.
    is_cell
        Whether it is an ``execute_request``.
    needs_reply
        Whether a reply ends it; comm messages have none.
    needs_idle
        Whether "idle" must have come too: output may still follow the reply.
    awaits_drain
        Whether it ends, instead, when the agent has nothing pending and its log has been read.
    sink
        Takes the messages it causes; ``None`` sends them to the background listener.
    """

    def __init__(
        self,
        message_id: str,
        *,
        is_cell: bool = False,
        needs_reply: bool = True,
        needs_idle: bool = True,
        awaits_drain: bool = False,
        sink: Sink | None = None,
    ) -> None:
        self.message_id = message_id
        self.is_cell = is_cell
        self.awaits_drain = awaits_drain
        self.sink = sink
        self.submission: Submission | None = None
        self.was_interrupted = False
        self._needs_reply = needs_reply
        self._needs_idle = needs_idle
        self.reply: Message | None = None
        self._end: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()

    @property
    def is_done(self) -> bool:
        """Whether it has ended, with a reply or without."""
        return self._end.done()

    @property
    def has_not_run(self) -> bool:
        """Whether it provably never reached the kernel."""
        return self.submission is None or self.submission.has_not_run

    @property
    def arrival(self) -> Arrival:
        """Whether it has reached the agent."""
        if self.submission is not None and self.submission.is_acknowledged:
            return "arrived"
        return "not arrived" if self.has_not_run else "unknown"

    def on_reply(self, reply: Message) -> None:
        """Keep the kernel's reply."""
        self.reply = reply
        self._needs_reply = False
        self._check()

    def on_idle(self) -> None:
        """Note that the kernel is idle again after it."""
        self._needs_idle = False
        self._check()

    @property
    def is_answered(self) -> bool:
        """Whether the kernel's reply has come."""
        return self.reply is not None

    def on_drained(self) -> None:
        """End with what has come: nothing more will."""
        self._needs_reply = self._needs_idle = False
        self._check()

    def end(self, error: RequestEndedError) -> None:
        """End with an error, unless it has ended already."""
        if not self._end.done():
            self._end.set_exception(error)
            # Retrieved here: asyncio would log an error that no caller waits for any more.
            self._end.exception()

    async def wait(self) -> Message | None:
        """Return the reply, or ``None`` where there is none; raises RequestEndedError."""
        # Shielded: a caller that is cancelled must not cancel the future that others await.
        return await asyncio.shield(self._end)

    async def unless_ended(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Return the work's result; raises RequestEndedError when this request ends first."""
        task = asyncio.ensure_future(work)
        task.add_done_callback(_retrieve)
        try:
            either: set[asyncio.Future[Any]] = {task, self._end}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self.is_done:
                await self.wait()
            return task.result()
        finally:
            task.cancel()

    def _check(self) -> None:
        if not (self._needs_reply or self._needs_idle or self._end.done()):
            self._end.set_result(self.reply)


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Retrieve a task's error: asyncio would log one that no caller waits for any more."""
    if not task.cancelled():
        task.exception()


LOCALLY_SENT_TYPES = ("status", "execute_input")
"""Messages that the local kernel sends to the front end itself, so that these are dropped."""

FINISHED_KEPT = 256
"""The number of ids of ended requests that are kept, to recognise their late messages."""


class RequestTable:
    """Holds the requests in flight by message id, and gives each message to its request.

    Parameters
    ----------
    listener
        Takes messages that belong to no request, and events.
    namespace
        The notebook's variables; keeps a loss that no cell has reported.

    Attributes
    ----------
    generation
        The number of the kernel that the next request is meant for.
    used_generation
        The number of the kernel that the last cell was sent to; 0 while none was.
    """

    def __init__(self, listener: BackgroundListener, namespace: Namespace) -> None:
        self.listener = listener
        self.namespace = namespace
        self.generation = 1
        self.used_generation = 0
        self.kernel: KernelReady | None = None
        self.dropped_messages = 0
        self._expected_generation = 0
        self._expected_restart = ""
        self._pending: dict[str, PendingRequest] = {}
        self._finished: deque[str] = deque(maxlen=FINISHED_KEPT)

    @property
    def is_active(self) -> bool:
        """Whether a request has been submitted and is in flight."""
        return any(pending.submission is not None for pending in self._pending.values())

    @property
    def may_be_running(self) -> bool:
        """Whether a request may be running in the sandbox."""
        return any(not pending.has_not_run for pending in self._pending.values())

    @property
    def cell_arrival(self) -> Arrival:
        """Whether the cell under way has reached the agent."""
        cells = [pending for pending in self._pending.values() if pending.is_cell]
        return cells[0].arrival if cells else "no cell"

    @property
    def interrupted(self) -> list[PendingRequest]:
        """The requests that have been interrupted and have not ended."""
        return [pending for pending in self._pending.values() if pending.was_interrupted]

    @property
    def is_restarting(self) -> bool:
        """Whether a restart has been asked for and the new kernel is not ready yet."""
        ready = self.kernel.generation if self.kernel else 0
        return self._expected_restart != "" or ready < self._expected_generation

    def expect_restart(self, restart_id: str) -> None:
        """Begin to await the restart with this id; an empty one ends the waiting."""
        self._expected_restart = restart_id
        self._expected_generation = 0

    def add(self, pending: PendingRequest) -> None:
        """Add a request that is about to be submitted."""
        self._pending[pending.message_id] = pending

    def remove(self, pending: PendingRequest) -> None:
        """Remove a request that has ended or is no longer awaited."""
        if self._pending.get(pending.message_id) is pending:
            del self._pending[pending.message_id]
            self._finished.append(pending.message_id)

    def abandon(self, pending: PendingRequest) -> None:
        """Remove a request that goes on without us, like one of an earlier client."""
        if self._pending.get(pending.message_id) is pending:
            del self._pending[pending.message_id]

    def get(self, message_id: str) -> PendingRequest | None:
        """Return the request with this id, while it is in flight."""
        return self._pending.get(message_id)

    def end_all(self, cause: Exception) -> bool:
        """End every request for one cause; return whether a cell was among them to report it."""
        is_reported = False
        is_loss = isinstance(cause, SandboxLostError)
        for pending in list(self._pending.values()):
            is_reported = is_reported or pending.is_cell
            pending.end(
                RequestEndedError(
                    "lost" if is_loss else "unknown", cause, has_not_run=pending.has_not_run
                )
            )
        self._pending.clear()
        return is_reported

    def on_drained(self) -> None:
        """End what is in flight here while the agent has nothing pending: no reply can come."""
        for pending in list(self._pending.values()):
            if pending.submission is None:
                continue  # still waits for the connection
            if pending.awaits_drain:
                pending.on_drained()
                self.remove(pending)
            else:
                self._on_unanswered(pending.message_id)

    def on_record(self, record: Json) -> None:
        """Take one record of the agent's log."""
        if record.get("c") == "agent":
            self._on_agent_event(record["d"])
            return
        message = to_message(record)
        if message is not None:
            self._on_message(message)

    def _on_message(self, message: Message) -> None:
        parent_id = str((message.parent_header or {}).get("msg_id", ""))
        pending = self._pending.get(parent_id)
        if pending is None:
            # Late status of our own requests is dropped like timely status. That of other parents
            # is passed on: the "idle" of an earlier client's cell tells that it has ended.
            is_late = parent_id == "" or parent_id in self._finished
            if message.msg_type not in LOCALLY_SENT_TYPES or not is_late:
                self.listener.on_background(message)
            return
        if message.channel in ("shell", "control"):
            # Only code in the sandbox makes others, and they are no reply.
            if not pending.is_cell or is_execute_reply(message):
                pending.on_reply(message)
        elif message.msg_type == "status":
            if message.content.get("execution_state") == "idle":
                pending.on_idle()
        elif pending.sink is None:
            self.listener.on_background(message)
        elif message.msg_type not in LOCALLY_SENT_TYPES:
            pending.sink(message)
        if pending.is_done:
            self.remove(pending)

    def _on_agent_event(self, event: Json) -> None:
        name = event.get("event")
        generation = int(event.get("generation", 0))
        if name == "ready":
            self._on_ready(event, generation)
        elif name == "died":
            self._on_died(event, generation)
        elif name == "restarted":
            self._on_restarted(event, generation)
        elif name == "refused":
            self._on_refused(str(event.get("id")))
        elif name == "unanswered":
            self._on_unanswered(str(event.get("id")))
        elif name == "dropped":
            messages, size_bytes = int(event.get("messages", 0)), int(event.get("bytes", 0))
            self.dropped_messages += messages
            self.listener.on_event(OutputDropped(messages, size_bytes))

    def _on_ready(self, event: Json, generation: int) -> None:
        self.kernel = KernelReady(
            kind=str(event.get("kind", "")),
            generation=generation,
            python_version=str(event.get("python", "")),
            working_directory=str(event.get("working_directory", "")),
            features=tuple(str(feature) for feature in event.get("features") or ()),
        )
        self.listener.on_event(self.kernel)

    def _on_died(self, event: Json, generation: int) -> None:
        exit_code, log = int(event.get("code", 0)), str(event.get("words", ""))
        never_ready = bool(event.get("never_ready"))
        self.generation = max(self.generation, generation + (not never_ready))
        cause = SandboxLostError(
            f"The sandbox's Python cannot start: {last_line(log)}"
            if never_ready
            else f"The variables are gone, because {_why_died(event, exit_code, log)}. "
            "A new one is started; what the next cells need must be restored, or run again."
        )
        is_reported = self._end_lost(event.get("lost", []), cause)
        # Before it was ready there were no variables to lose; and the death of a kernel older than
        # the one that the last cell was sent to is old news, read late.
        is_reported = is_reported or never_ready or generation < self.used_generation
        if not is_reported:
            self.namespace.lose(cause)
        self.listener.on_event(KernelDied(str(cause), exit_code, log, is_reported))

    def _on_restarted(self, event: Json, generation: int) -> None:
        self.generation = max(self.generation, generation + 1)
        if generation >= self.used_generation:
            self.namespace.forget()  # the user wanted it
        if self._expected_restart in event.get("restarts", ()):
            self._expected_restart = ""
            self._expected_generation = generation + 1
        cause = SandboxLostError("The variables are gone, because the kernel was restarted.")
        self._end_lost(event.get("lost", []), cause)

    def _on_refused(self, message_id: str) -> None:
        """End a request that was meant for a kernel that is gone; the agent has not run it."""
        pending = self._pending.get(message_id)
        if pending is None:
            return
        # Only a cell reports the loss to the user; another request fails with it and leaves it.
        cause = self.namespace.take_loss() if pending.is_cell else self.namespace.loss
        cause = cause or SandboxLostError(
            "The variables are gone, because the kernel was replaced."
        )
        pending.end(RequestEndedError("lost", cause, has_not_run=True))
        self.remove(pending)

    def _on_unanswered(self, message_id: str) -> None:
        """End a request that the kernel has finished without a reply, or without "idle".

        An interrupt at a bad moment can cost the reply (ipykernel's own code is hit), so that an
        interrupted request without one is called interrupted.
        """
        pending = self._pending.get(message_id)
        if pending is None:
            return
        if pending.is_answered:
            pending.on_drained()
            self.remove(pending)
            return
        sentence = "The sandbox's kernel was done with this and did not say how it ended."
        fate: Fate = "interrupted" if pending.was_interrupted else "unknown"
        pending.end(RequestEndedError(fate, SandboxError(sentence)))
        self.remove(pending)

    def _end_lost(self, message_ids: list[str], cause: SandboxLostError) -> bool:
        """End what a dead kernel was working on; return whether a cell of ours was among it."""
        is_reported = False
        for message_id in message_ids:
            pending = self._pending.get(str(message_id))
            if pending is not None:
                is_reported = is_reported or pending.is_cell
                pending.end(RequestEndedError("lost", cause))
                self.remove(pending)
        return is_reported


def _why_died(event: Json, exit_code: int, log: str) -> str:
    was_oom = event.get("oom_killed")
    oom_killed = was_oom if isinstance(was_oom, bool) else None
    memory = to_meter(event.get("memory"))
    return describe_death(exit_code, log, memory=memory, oom_killed=oom_killed)


UNCONFIGURED = "its kernel does no such work: another version of Ivy Kernel has started it"


class Configuring:
    """Tells each kernel once what work it shall do beside cells.

    Parameters
    ----------
    table
        The requests in flight.
    owner
        Says what is wanted; ``None`` for nothing.
    """

    def __init__(self, table: RequestTable, owner: WorkOwner | None) -> None:
        self._table = table
        self._owner = owner
        self._holder = ""
        self._pending: PendingRequest | None = None
        self._is_known = False

    def add_to(self, outbox: Outbox, holder: str) -> None:
        """Put it into the outbox, to travel in the call of the cell that ``holder`` gets next."""
        if self._owner is None or holder == self._holder:
            return
        self._holder, self._is_known = holder, False
        content = self._owner.configuration()
        if content is None:
            return
        request = OutgoingMessage("shell", header_of("ivy_work_request"), content)
        self._pending = PendingRequest(request.message_id, needs_idle=False)
        self._table.add(self._pending)
        self._pending.submission = outbox.add(request.body(self._table.generation))

    def look(self, *, is_last: bool) -> None:
        """Take its reply. Called when the cell behind it has ended, or failed to go out.

        ``is_last``: that cell was answered. The kernel takes requests in order, so what has no
        reply by then will get none.
        """
        pending, owner = self._pending, self._owner
        if pending is None or owner is None:
            return
        reply = pending.reply
        if reply is None and not (is_last or pending.is_done):
            return
        self._pending = None
        self._table.remove(pending)
        if reply is None and not is_last:
            self._holder = ""  # the kernel is gone, or the cell was withdrawn: with the next one
        elif reply is None:
            owner.configured(self._holder, None, UNCONFIGURED)
        else:
            try:
                owner.configured(self._holder, calls.work_answer(reply.content), "")
                self._is_known = True
            except WorkError as error:
                owner.configured(self._holder, None, str(error))

    async def finish(self, timeout_seconds: float) -> None:
        """Wait for the reply, where nothing runs behind it.

        Raises
        ------
        WorkError
            When there is none, or it is an error.
        """
        if self._pending is not None:
            with contextlib.suppress(asyncio.TimeoutError, RequestEndedError):
                await asyncio.wait_for(self._pending.wait(), timeout_seconds)
            self.look(is_last=True)
        if not self._is_known:
            raise WorkError("The sandbox's kernel does no work beside cells.")
