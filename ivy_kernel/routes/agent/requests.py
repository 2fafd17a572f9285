"""Our requests by message id, and what we know of the kernel that works on them."""

from __future__ import annotations

import asyncio
import base64
import secrets
import signal
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Protocol, TypeVar

from ivy_kernel.errors import SandboxError, SandboxLostError
from ivy_kernel.models import Cell, Channel, Fate, Json, Message, Sink
from ivy_kernel.routes.agent.calls import Submission
from ivy_kernel.routes.agent.frames import to_message
from ivy_kernel.routes.events import Event, KernelDied, KernelReady, OutputDropped

Result = TypeVar("Result")


class RequestEndedError(Exception):
    """A request ended without a reply of the kernel.

    Parameters
    ----------
    fate
        What is known about it: ``lost``, ``unknown`` or ``interrupted``.
    cause
        Why, in an error whose words are for the user.
    has_not_run
        It provably never reached the kernel.
    """

    def __init__(self, fate: Fate, cause: Exception, *, has_not_run: bool = False) -> None:
        super().__init__(str(cause))
        self.fate = fate
        self.cause = cause
        self.has_not_run = has_not_run

    @property
    def sentence(self) -> str:
        """What the user is told of a cell that ended so."""
        if self.fate == "interrupted":
            return str(self.cause)
        if self.fate == "lost":
            return f"{self.cause} Whether this cell had run to its end is not known."
        return f"Whether this cell has run to its end is not known: {self.cause}"


class PendingRequest:
    """One request, from its submission until its reply and the kernel's "idle" have come.

    Parameters
    ----------
    message_id
        Of the request.
    is_cell
        Whether it is an ``execute_request``.
    needs_reply
        Comm messages have none.
    needs_idle
        Whether the end is only reached at "idle".
    awaits_silence
        It ends when the kernel has nothing under way, and not by a reply.
    sink
        Takes the messages it causes; ``None`` for those that belong in the background.
    """

    def __init__(
        self,
        message_id: str,
        *,
        is_cell: bool = False,
        needs_reply: bool = True,
        needs_idle: bool = True,
        awaits_silence: bool = False,
        sink: Sink | None = None,
    ) -> None:
        self.message_id = message_id
        self.is_cell = is_cell
        self.awaits_silence = awaits_silence
        self.sink = sink
        self.submission: Submission | None = None
        self.was_interrupted = False
        self._needs_reply = needs_reply
        self._needs_idle = needs_idle
        self._reply: Message | None = None
        self._end: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()

    @property
    def is_done(self) -> bool:
        """Whether it has ended, one way or another."""
        return self._end.done()

    @property
    def has_not_run(self) -> bool:
        """Whether it provably never reached the kernel."""
        return self.submission is None or self.submission.has_not_run

    def replied(self, reply: Message) -> None:
        """The kernel's reply has come."""
        self._reply = reply
        self._needs_reply = False
        self._check()

    def idle(self) -> None:
        """The kernel is idle again after it."""
        self._needs_idle = False
        self._check()

    def silent(self) -> None:
        """The kernel has nothing under way any more."""
        self._needs_reply = self._needs_idle = False
        self._check()

    def end(self, error: RequestEndedError) -> None:
        """There will be no reply."""
        if not self._end.done():
            self._end.set_exception(error)
            self._end.exception()  # retrieved here, because perhaps nobody waits any more

    async def wait(self) -> Message | None:
        """The reply, or ``None`` where there is none; raises RequestEndedError."""
        return await asyncio.shield(self._end)

    async def unless_ended(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The work's result; raises RequestEndedError as soon as this request has ended instead."""
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
            self._end.set_result(self._reply)


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Look at a task's error, because perhaps nobody waits any more."""
    if not task.cancelled():
        task.exception()


@dataclass(frozen=True)
class OutgoingMessage:
    """One message for the kernel (message spec, "General message format").

    Parameters
    ----------
    channel
        Where it goes: shell, control or stdin.
    header, content, parent, metadata, buffers
        The parts of a Jupyter message.
    """

    channel: Channel
    header: Json
    content: Json
    parent: Json | None = None
    metadata: Json | None = None
    buffers: tuple[bytes, ...] = ()

    @property
    def message_id(self) -> str:
        """The id that its reply will name."""
        return str(self.header["msg_id"])

    def body(self, generation: int) -> Json:
        """As the agent takes it: for the kernel with this generation, and for no later one."""
        body: Json = {
            "c": self.channel,
            "h": self.header,
            "d": self.content,
            "m": self.metadata or {},
            "g": generation,
        }
        if self.parent is not None:
            body["p"] = self.parent
        if self.buffers:
            body["b"] = [base64.b64encode(buffer).decode("ascii") for buffer in self.buffers]
        return body


def header_of(msg_type: str, header: Json | None = None) -> Json:
    """A message header; the front end's own where there is one, without its subshell."""
    made = {
        "msg_id": secrets.token_hex(16),
        "msg_type": msg_type,
        "username": "ivy",
        "session": "ivy",
        "date": datetime.now(timezone.utc).isoformat(),
        "version": "5.3",
    }
    made.update(header or {})
    made.pop("subshell_id", None)
    return made


OWN_TYPES = ("status", "execute_input")
"""What a front end hears from its own kernel about requests of ours."""

FINISHED_KEPT = 256


def death_in_words(exit_code: int) -> str:
    """Why a kernel that ended with this code is gone, as far as the code tells."""
    if exit_code == -signal.SIGKILL:
        return "its Python was killed, most often because the memory ran out"
    if exit_code < 0:
        try:
            name = signal.Signals(-exit_code).name
        except ValueError:
            name = f"signal {-exit_code}"
        return f"its Python crashed ({name})"
    return f"its Python ended by itself with exit code {exit_code}"


def last_line(log: str) -> str:
    """The last line that says something: of a traceback, the error."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return lines[-1] if lines else "it wrote nothing that tells why."


class TableListener(Protocol):
    """What hears of all that belongs to no request in flight."""

    def on_message(self, message: Message) -> None:
        """Called with each message whose parent is no request of ours in flight."""
        ...

    def on_event(self, event: Event) -> None:
        """Called with what the agent, or the connection to it, has to tell beside messages."""
        ...


class RequestTable:
    """The requests in flight, by message id: gives each message to the request it belongs to.

    Parameters
    ----------
    listener
        Hears of everything else.

    Attributes
    ----------
    generation
        The number of the kernel that the next request is meant for.
    used_generation
        The number of the kernel that the user's variables are in; 0 while no cell has run.
    """

    def __init__(self, listener: TableListener) -> None:
        self.listener = listener
        self.generation = 1
        self.used_generation = 0
        self.kernel: KernelReady | None = None
        self.dropped_messages = 0
        self._expected_generation = 0
        self._expected_restart = ""
        self._pending: dict[str, PendingRequest] = {}
        self._pending_loss: SandboxLostError | None = None
        self._finished: deque[str] = deque(maxlen=FINISHED_KEPT)

    @property
    def is_active(self) -> bool:
        """Whether anything of ours has been submitted and is under way."""
        return any(pending.submission is not None for pending in self._pending.values())

    @property
    def is_at_work(self) -> bool:
        """Whether anything of ours may be running in the sandbox."""
        return any(not pending.has_not_run for pending in self._pending.values())

    @property
    def interrupted(self) -> list[PendingRequest]:
        """What has been interrupted and has not ended."""
        return [pending for pending in self._pending.values() if pending.was_interrupted]

    @property
    def is_expecting(self) -> bool:
        """Whether a restarted kernel is awaited."""
        ready = self.kernel.generation if self.kernel else 0
        return self._expected_restart != "" or ready < self._expected_generation

    def expect_restart(self, restart_id: str) -> None:
        """A restart has been asked for; an empty id means that nobody waits for one any more."""
        self._expected_restart = restart_id
        self._expected_generation = 0

    def add(self, pending: PendingRequest) -> None:
        """A request is about to be submitted."""
        self._pending[pending.message_id] = pending

    def remove(self, pending: PendingRequest) -> None:
        """Nobody waits for this request any more."""
        if self._pending.get(pending.message_id) is pending:
            del self._pending[pending.message_id]
            self._finished.append(pending.message_id)

    def get(self, message_id: str) -> PendingRequest | None:
        """The request with this id, while it is under way."""
        return self._pending.get(message_id)

    def pop_pending_loss(self) -> SandboxLostError | None:
        """What the user must hear before the next cell runs; told once."""
        notice, self._pending_loss = self._pending_loss, None
        return notice

    def end_all(self, cause: Exception) -> bool:
        """End every request, for one cause; whether a cell was among them, which tells the user."""
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

    def on_silence(self) -> None:
        """The kernel has nothing under way: what still waits for it would wait for ever."""
        for pending in list(self._pending.values()):
            if pending.submission is None:
                continue
            if pending.awaits_silence:
                pending.silent()
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
            is_late = parent_id == "" or parent_id in self._finished
            if message.msg_type not in OWN_TYPES or not is_late:
                self.listener.on_message(message)
            return
        if message.channel in ("shell", "control"):
            pending.replied(message)
        elif message.msg_type == "status":
            if message.content.get("execution_state") == "idle":
                pending.idle()
        elif pending.sink is None:
            self.listener.on_message(message)
        elif message.msg_type not in OWN_TYPES:
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
            else f"The variables are gone, because {death_in_words(exit_code)} in the sandbox. "
            "A new one has been started; run the cells that the next ones need again."
        )
        is_reported = self._lose(event.get("lost", []), cause)
        # Before it is ready there are no variables to lose; and a loss from before the last cell
        # is old news, read late.
        is_reported = is_reported or never_ready or generation < self.used_generation
        if not is_reported:
            self._pending_loss = cause
        self.listener.on_event(KernelDied(str(cause), exit_code, log, is_reported))

    def _on_restarted(self, event: Json, generation: int) -> None:
        self.generation = max(self.generation, generation + 1)
        self._pending_loss = None
        if self._expected_restart in event.get("restarts", ()):
            self._expected_restart = ""
            self._expected_generation = generation + 1
        cause = SandboxLostError("The variables are gone, because the kernel was restarted.")
        self._lose(event.get("lost", []), cause)

    def _on_refused(self, message_id: str) -> None:
        """The agent did not hand a request on, because it was meant for a kernel that is gone."""
        pending = self._pending.get(message_id)
        if pending is None:
            return
        cause = self.pop_pending_loss() if pending.is_cell else self._pending_loss
        cause = cause or SandboxLostError(
            "The variables are gone, because the kernel was replaced."
        )
        pending.end(RequestEndedError("lost", cause, has_not_run=True))
        self.remove(pending)

    def _on_unanswered(self, message_id: str) -> None:
        pending = self._pending.get(message_id)
        if pending is None:
            return
        words = "The sandbox's kernel was done with this and did not say how it ended."
        fate: Fate = "interrupted" if pending.was_interrupted else "unknown"
        pending.end(RequestEndedError(fate, SandboxError(words)))
        self.remove(pending)

    def _lose(self, message_ids: list[str], cause: SandboxLostError) -> bool:
        """End what a dead kernel was working on; whether a cell of ours was among it."""
        is_reported = False
        for message_id in message_ids:
            pending = self._pending.get(str(message_id))
            if pending is not None:
                is_reported = is_reported or pending.is_cell
                pending.end(RequestEndedError("lost", cause))
                self.remove(pending)
        return is_reported


def execute_content(cell: Cell) -> Json:
    """The content of an ``execute_request``; whether to stop on errors is decided on our side."""
    return {
        "code": cell.code,
        "silent": cell.silent,
        "store_history": cell.store_history,
        "user_expressions": cell.user_expressions,
        "allow_stdin": cell.allow_stdin,
        "stop_on_error": False,
    }


def fate_of(reply: Json, *, was_interrupted: bool) -> Fate:
    """What a reply says of its cell."""
    if reply.get("status") == "ok":
        return "succeeded"
    if was_interrupted and reply.get("ename") == "KeyboardInterrupt":
        return "interrupted"
    return "failed"
