"""Calls to the agent, and the submissions and interrupts that they carry until acknowledged.

Exactly once, in order: a call may be lost without a trace, so each submission has a sequence number
and travels in every call until the agent acknowledges it; the agent applies each number once, and
only after all smaller ones.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timezone

from ivy_kernel.agent import PROTOCOL_VERSION
from ivy_kernel.errors import AnswerError, WorkError
from ivy_kernel.models import Cell, Channel, Json, sound_work, visible
from ivy_kernel.routes.agent.failures import (
    ConnectionListener,
    FailureStreak,
    TakenOverError,
    UnknownAgentError,
    is_final,
    provably_not_run,
)
from ivy_kernel.routes.agent.frames import AgentResponse, NoAgentError, read_response
from ivy_kernel.routes.agent.programs import in_private_namespace, new_call_id, snippet
from ivy_kernel.routes.events import EndingCall
from ivy_kernel.routes.tools import NOTEBOOK_TOOL, PYTHON_TOOL

ToolCall = Callable[[str, str, float], Awaitable[object]]
"""``await call(tool_name, code, timeout_seconds)``: the tool's decoded JSON result."""

FRAGMENT_CHARS = 60_000
"""A longer request is sent in fragments: some runners pass the code as one argument, which Linux
limits to 128 KiB."""

# Beyond the long poll itself. The snippet's limit is the shorter one, so that it can still report a
# silent agent before the tool ends it.
SNIPPET_MARGIN_SECONDS = 10.0
TOOL_MARGIN_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class LaunchMethod:
    """A way to run an agent: the tool that starts it, and the tool that makes the later calls."""

    start_tool: str
    call_tool: str

    def __str__(self) -> str:
        return f"started by {self.start_tool}, spoken to by {self.call_tool}"


LAUNCH_METHODS = (
    LaunchMethod(PYTHON_TOOL, PYTHON_TOOL),
    LaunchMethod(NOTEBOOK_TOOL, PYTHON_TOOL),
    LaunchMethod(NOTEBOOK_TOOL, NOTEBOOK_TOOL),
)
"""The ways to start and reach an agent, best first."""


@dataclass(frozen=True, slots=True)
class RunningAgent:
    """An agent that has outlived the call that started it.

    Parameters
    ----------
    launch_method
        How it was started and is reached.
    directory
        Its private directory.
    nonce
        The random name that it gave itself; another one means that the variables are gone.
    client_number
        Ours among its clients: the agent refuses those with a lower one.
    is_found
        Whether it was alive before this session.
    header
        The header of the response to our attaching.
    """

    launch_method: LaunchMethod
    directory: str
    nonce: str
    client_number: int
    is_found: bool
    header: Json


@dataclass
class Counters:
    """Numbers of calls and failures, for ``describe``."""

    calls: int = 0
    failed_calls: int = 0
    truncated_answers: int = 0
    fragments: int = 0
    agents_started: int = 0


def pack(request: Json) -> bytes:
    """Encode a request as the text that travels in a program."""
    text = json.dumps({"v": PROTOCOL_VERSION, **request}, separators=(",", ":"), default=str)
    return base64.b64encode(zlib.compress(text.encode("utf-8", "surrogatepass"), 1))


def ending_call(agent: RunningAgent) -> EndingCall:
    """Return the call that ends this agent, as long as this client is its latest."""
    call_id = new_call_id()
    request = {"nonce": agent.nonce, "session": agent.client_number, "shutdown": True}
    program = snippet(
        agent.directory, pack(request), timeout_seconds=SNIPPET_MARGIN_SECONDS, call_id=call_id
    )
    tool = agent.launch_method.call_tool
    if tool == NOTEBOOK_TOOL:
        program = in_private_namespace(program)
    return EndingCall(tool, program, call_id)


class ToolCaller:
    """Sends single requests to the agent in one directory, by one tool.

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

    async def ask(self, request: Json, *, poll_wait_seconds: float = 0.0) -> AgentResponse:
        """Send a request that the agent may hold for ``poll_wait_seconds``; decode the response."""
        packed = pack(request)
        if len(packed) <= FRAGMENT_CHARS:
            return await self._send(packed, poll_wait_seconds)
        # The agent puts the fragments together and answers the last one as the whole request.
        upload = secrets.token_hex(8)
        starts = range(0, len(packed), FRAGMENT_CHARS)
        head = f"F:{upload}:%d:{len(starts)}:"
        for index, start in enumerate(starts):
            fragment = (head % index).encode() + packed[start : start + FRAGMENT_CHARS]
            self.counters.fragments += 1
            response = await self._send(fragment, poll_wait_seconds)
        return response

    async def _send(self, packed: bytes, poll_wait_seconds: float) -> AgentResponse:
        call_id = new_call_id()
        program = snippet(
            self._directory,
            packed,
            timeout_seconds=poll_wait_seconds + SNIPPET_MARGIN_SECONDS,
            call_id=call_id,
        )
        if self._tool == NOTEBOOK_TOOL:
            program = in_private_namespace(program)
        self.counters.calls += 1
        result = await self._call(self._tool, program, poll_wait_seconds + TOOL_MARGIN_SECONDS)
        return read_response(result, call_id)


@dataclass
class Submission:
    """An instruction that the agent carries out exactly once.

    Parameters
    ----------
    sequence_number
        Its place in the order of submissions, from 1.
    body
        The instruction: a Jupyter message, or ``{"do": …}``.
    is_sent
        Whether any call has carried it yet.
    may_have_arrived
        Whether it was in a call that has ended and that the agent may have read.
    is_acknowledged
        Whether the agent has said that it has applied it.
    calls_in_flight
        How many calls carry it at this moment.
    """

    sequence_number: int
    body: Json
    is_sent: bool = False
    may_have_arrived: bool = False
    is_acknowledged: bool = False
    calls_in_flight: int = 0

    @property
    def has_not_run(self) -> bool:
        """Whether it provably never reached the agent.

        A call that is still in flight proves nothing yet; a refusal that is documented to come
        before anything is run (`provably_not_run`) does.
        """
        return not self.may_have_arrived and not self.calls_in_flight


class Outbox:
    """The unacknowledged submissions, in order; every call carries all of them."""

    def __init__(self) -> None:
        self.last_sequence_number = 0
        self._unacknowledged: dict[int, Submission] = {}

    def __len__(self) -> int:
        return len(self._unacknowledged)

    @property
    def has_unsent(self) -> bool:
        """Whether a submission has been in no call yet."""
        return any(not submission.is_sent for submission in self._unacknowledged.values())

    def add(self, body: Json) -> Submission:
        """Number a submission and keep it until it is acknowledged."""
        self.last_sequence_number += 1
        submission = Submission(self.last_sequence_number, body)
        self._unacknowledged[self.last_sequence_number] = submission
        return submission

    def take(self) -> list[Submission]:
        """Return everything unacknowledged, for the next call; `release` follows when it ends."""
        submissions = list(self._unacknowledged.values())
        for submission in submissions:
            submission.is_sent = True
            submission.calls_in_flight += 1
        return submissions

    @staticmethod
    def release(submissions: list[Submission], *, provably_not_applied: bool) -> None:
        """Note that a call with these has ended, and whether the agent can have read it."""
        for submission in submissions:
            submission.calls_in_flight -= 1
            submission.may_have_arrived = submission.may_have_arrived or not provably_not_applied

    def withdraw(self, submission: Submission) -> bool:
        """Take a submission back; return False when it may have been applied already."""
        if not submission.has_not_run:
            return False
        # Its number is sent all the same: the agent applies 8 only after it has seen 7.
        submission.body = {"do": "nothing"}
        return True

    def acknowledge(self, number: int) -> None:
        """Drop the submissions up to this number, which the agent has applied."""
        for applied in [n for n in self._unacknowledged if n <= number]:
            submission = self._unacknowledged.pop(applied)
            submission.may_have_arrived = submission.is_acknowledged = True


class AgentCalls:
    """Makes the calls of one client to one agent; each carries everything unacknowledged.

    Parameters
    ----------
    caller
        Makes the single calls.
    agent
        The agent that they go to.
    listener
        Told of failed calls.
    """

    def __init__(
        self, caller: ToolCaller, agent: RunningAgent, listener: ConnectionListener
    ) -> None:
        self.agent = agent
        self.counters = caller.counters
        self.outbox = Outbox()
        self._caller = caller
        self._listener = listener
        self._interrupts: dict[str, Json] = {}
        self._is_closed = False

    @property
    def has_outgoing(self) -> bool:
        """Whether a submission or an interrupt is not known to have reached the agent."""
        return len(self.outbox) > 0 or bool(self._interrupts)

    def close(self) -> None:
        """Stop repeating calls that fail."""
        self._is_closed = True

    async def send(
        self, request: Json, submissions: list[Submission], poll_wait_seconds: float = 0.0
    ) -> AgentResponse:
        """Make one call with submissions taken from the outbox; raises what `ToolCaller` does."""
        # An interrupt whose call failed rides on every later call until one gets through: what the
        # user wants stopped must stop even if the sandbox is reachable again only in a minute. Its
        # id lets the agent ignore the repetitions.
        interrupt: Json = request.get("interrupt") or next(iter(self._interrupts.values()), {})
        request = {
            **request,
            **({"interrupt": interrupt} if interrupt else {}),
            "nonce": self.agent.nonce,
            "session": self.agent.client_number,
            "submit": [[submission.sequence_number, submission.body] for submission in submissions],
        }
        not_applied = False
        try:
            response = await self._caller.ask(request, poll_wait_seconds=poll_wait_seconds)
            error = response.header.get("error")
            # These three are checked by the agent before it looks at the submissions.
            not_applied = error in ("taken over", "nonce", "version")
            _raise_if_refused(response)
        except Exception as failure:
            not_applied = not_applied or provably_not_run(failure)
            raise
        finally:
            self.outbox.release(submissions, provably_not_applied=not_applied)
        self.outbox.acknowledge(response.header.get("acknowledged", 0))
        if interrupt and self._interrupts.get(interrupt["target"]) is interrupt:
            del self._interrupts[interrupt["target"]]
        return response

    async def interrupt(
        self, target: str, *, deadline_seconds: float, is_moot: Callable[[], bool]
    ) -> str:
        """Have the agent interrupt a request; return what it did, empty when that is not known.

        The interrupt is kept then, and every later call carries it until one gets through.
        """
        interrupt = {"id": secrets.token_hex(8), "target": target}
        self._interrupts[target] = interrupt
        response = await self.ask(
            {"interrupt": interrupt}, deadline_seconds=deadline_seconds, is_moot=is_moot
        )
        return str(response.header.get("interrupt")) if response is not None else ""

    async def ask(
        self,
        request: Json,
        *,
        deadline_seconds: float,
        is_moot: Callable[[], bool] = lambda: False,
    ) -> AgentResponse | None:
        """Make a request beside the polls; return ``None`` when no response came in time.

        A failed call is repeated unless ``is_moot`` says that the response is no longer needed.
        """
        loop = asyncio.get_running_loop()
        streak = FailureStreak()
        deadline = loop.time() + deadline_seconds
        while not (self._is_closed or is_moot()):
            try:
                rest = max(0.0, deadline - loop.time())
                return await asyncio.wait_for(self.send(request, self.outbox.take()), rest)
            except asyncio.TimeoutError:
                return None
            except (UnknownAgentError, TakenOverError):
                return None
            except Exception as error:
                pause_seconds = streak.failed(error)
                times = streak.same_failures
                self._listener.on_failed_call(error)
                # Twice in a row there was no agent: it has ended, and what was asked of it is moot.
                is_gone = isinstance(error, NoAgentError) and times > 1
                if is_gone or is_final(error, times):
                    return None
                if is_moot() or loop.time() + pause_seconds > deadline:
                    return None
                await asyncio.sleep(pause_seconds)
        return None


def _raise_if_refused(response: AgentResponse) -> None:
    """Raise the error that a response reports."""
    error = response.header.get("error")
    if error == "taken over":
        raise TakenOverError("Another notebook or a restarted kernel has taken over this session.")
    if error in ("nonce", "version"):
        raise UnknownAgentError
    if error is not None or "fragment" in response.header:
        raise AnswerError(f"The agent could not read a request: {response.header.get('why')}")


# -- what is submitted


@dataclass(frozen=True)
class OutgoingMessage:
    """A message for the sandbox's kernel (message spec, "General message format").

    Parameters
    ----------
    channel
        The channel it goes to: shell, control or stdin.
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
        """Return it as a submission's body.

        The agent hands it to the kernel of this generation only and refuses it when that one has
        been replaced: a cell never runs in a namespace that its user does not expect.
        """
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
    """Return a message header; the front end's own where there is one, without its subshell."""
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


def execute_request(cell: Cell) -> OutgoingMessage:
    """Return a cell's ``execute_request``; the local kernel handles ``stop_on_error``.

    Its metadata say which cell of which notebook it is; hidden cells are none.
    """
    content = {
        "code": cell.code,
        "silent": cell.silent,
        "store_history": cell.store_history,
        "user_expressions": cell.user_expressions,
        "allow_stdin": cell.allow_stdin,
        "stop_on_error": False,
    }
    metadata: Json = {}
    if cell.store_history and not cell.silent:
        code = hashlib.sha256(cell.code.encode("utf-8", "surrogatepass")).hexdigest()
        metadata["ivy"] = {"cell": cell.cell_id, "number": cell.execution_count, "code": code}
    header = header_of("execute_request", cell.header)
    return OutgoingMessage("shell", header, content, metadata=metadata)


def work_answer(answer: Json) -> Json:
    """Return the content of an ``ivy_work_reply``, without what makes no sense.

    Raises
    ------
    WorkError
        When it says that the work was refused, or failed.
    """
    if answer.get("status") != "ok":
        why = visible(f"{answer.get('ename')}: {answer.get('evalue')}")
        raise WorkError(f"The sandbox's kernel refused ({why}).")
    index = answer.get("index")
    return {**sound_work(answer), "index": sound_work(index) if isinstance(index, dict) else None}
