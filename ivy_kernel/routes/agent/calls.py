"""Makes calls that carry everything the agent has not acknowledged: submissions, and interrupts."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from ivy_kernel.agent import PROTOCOL_VERSION
from ivy_kernel.errors import AnswerError
from ivy_kernel.models import Json
from ivy_kernel.routes.agent.failures import (
    Backoff,
    TakenOverError,
    UnknownAgentError,
    is_final,
    provably_not_run,
)
from ivy_kernel.routes.agent.frames import Answer, NoAgentError, read_answer
from ivy_kernel.routes.agent.programs import in_private_namespace, new_call_id, snippet

ToolCall = Callable[[str, str, float], Awaitable[object]]
"""``await call(tool_name, code, timeout_seconds)``: the tool's decoded JSON result."""

PYTHON_TOOL = "sandbox_python"
NOTEBOOK_TOOL = "sandbox_notebook"
FRAGMENT_CHARS = 60_000
"""Some runners hand the code over as one argument, which Linux limits to 128 KiB."""

SNIPPET_MARGIN_SECONDS = 10.0
TOOL_MARGIN_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class LaunchMethod:
    """One way: the tool that starts the agent and the tool that speaks to it."""

    starter: str
    speaker: str

    def __str__(self) -> str:
        return f"started by {self.starter}, spoken to by {self.speaker}"


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
        Its own random name.
    client_number
        Ours among its clients: the agent refuses those with a lower one.
    is_found
        Whether it was living before.
    header
        What it said about itself when we attached.
    """

    launch_method: LaunchMethod
    directory: str
    nonce: str
    client_number: int
    is_found: bool
    header: Json


@dataclass
class Counters:
    """What the link has done, for ``describe``."""

    calls: int = 0
    failed_calls: int = 0
    truncated_answers: int = 0
    fragments: int = 0
    agents_started: int = 0


def pack(request: Json) -> bytes:
    """A request as the text that travels in a program."""
    text = json.dumps({"v": PROTOCOL_VERSION, **request}, separators=(",", ":"), default=str)
    return base64.b64encode(zlib.compress(text.encode("utf-8", "surrogatepass"), 1))


class ToolCaller:
    """Speaks to the agent in one directory by one tool.

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

    async def ask(self, request: Json, *, wait_seconds: float = 0.0) -> Answer:
        """Send a request and decode the answer; ``wait_seconds`` is how long it may be parked."""
        packed = pack(request)
        if len(packed) <= FRAGMENT_CHARS:
            return await self._send(packed, wait_seconds)
        upload = secrets.token_hex(8)
        starts = range(0, len(packed), FRAGMENT_CHARS)
        head = f"F:{upload}:%d:{len(starts)}:"
        for index, start in enumerate(starts):
            fragment = (head % index).encode() + packed[start : start + FRAGMENT_CHARS]
            self.counters.fragments += 1
            answer = await self._send(fragment, wait_seconds)
        return answer

    async def _send(self, packed: bytes, wait_seconds: float) -> Answer:
        call_id = new_call_id()
        program = snippet(
            self._directory,
            packed,
            timeout_seconds=wait_seconds + SNIPPET_MARGIN_SECONDS,
            call_id=call_id,
        )
        if self._tool == NOTEBOOK_TOOL:
            program = in_private_namespace(program)
        self.counters.calls += 1
        result = await self._call(self._tool, program, wait_seconds + TOOL_MARGIN_SECONDS)
        return read_answer(result, call_id)


@dataclass
class Submission:
    """One thing for the agent to do, exactly once.

    Parameters
    ----------
    number
        Its place in the order of submissions.
    body
        What travels.
    is_sent
        Whether any call has carried it yet.
    is_exposed
        Whether a call that carried it, and has ended, may have been applied.
    carriers
        How many calls carry it at this moment.
    """

    number: int
    body: Json
    is_sent: bool = False
    is_exposed: bool = False
    carriers: int = 0

    @property
    def has_not_run(self) -> bool:
        """Whether it provably never reached the agent."""
        return not self.is_exposed and not self.carriers


class Outbox:
    """What every call carries: all that is unacknowledged, in order."""

    def __init__(self) -> None:
        self.last_number = 0
        self._waiting: dict[int, Submission] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def has_unsent(self) -> bool:
        """Whether there is something that no call has carried."""
        return any(not submission.is_sent for submission in self._waiting.values())

    def add(self, body: Json) -> Submission:
        """Number a submission and keep it until it is acknowledged."""
        self.last_number += 1
        submission = Submission(self.last_number, body)
        self._waiting[self.last_number] = submission
        return submission

    def take(self) -> list[Submission]:
        """Everything unacknowledged, for the next call."""
        carried = list(self._waiting.values())
        for submission in carried:
            submission.is_sent = True
            submission.carriers += 1
        return carried

    @staticmethod
    def put_down(carried: list[Submission], *, provably_not_applied: bool) -> None:
        """The call that carried these has ended."""
        for submission in carried:
            submission.carriers -= 1
            submission.is_exposed = submission.is_exposed or not provably_not_applied

    def withdraw(self, submission: Submission) -> bool:
        """Take a submission back; false when it may have been applied already.

        Its number still travels, as nothing to do, because the agent waits for every number.
        """
        if not submission.has_not_run:
            return False
        submission.body = {"do": "nothing"}
        return True

    def acknowledge(self, number: int) -> None:
        """The agent has applied everything up to this number."""
        for waiting in [n for n in self._waiting if n <= number]:
            self._waiting.pop(waiting).is_exposed = True


class CallsOwner(Protocol):
    """What has `AgentCalls` made and hears how they fare."""

    def on_failed_call(self) -> None:
        """Called after each failed call: what it carried may be known not to have arrived."""
        ...


class AgentCalls:
    """Calls of one client to one agent; each carries everything that is unacknowledged.

    Parameters
    ----------
    caller
        Makes the single calls.
    agent
        The agent that they go to.
    owner
        Told of failed calls.
    """

    def __init__(self, caller: ToolCaller, agent: RunningAgent, owner: CallsOwner) -> None:
        self.agent = agent
        self.counters = caller.counters
        self.outbox = Outbox()
        self._caller = caller
        self._owner = owner
        self._interrupts: dict[str, Json] = {}
        self._is_closed = False

    @property
    def has_load(self) -> bool:
        """Whether anything waits to reach the agent."""
        return len(self.outbox) > 0 or bool(self._interrupts)

    def close(self) -> None:
        """Ask no more."""
        self._is_closed = True

    async def send(
        self, request: Json, carried: list[Submission], wait_seconds: float = 0.0
    ) -> Answer:
        """One call, with submissions taken from the outbox in it."""
        # An interrupt that got no answer is carried by every later call until one gets through.
        interrupt: Json = request.get("interrupt") or next(iter(self._interrupts.values()), {})
        request = {
            **request,
            **({"interrupt": interrupt} if interrupt else {}),
            "nonce": self.agent.nonce,
            "session": self.agent.client_number,
            "submit": [[submission.number, submission.body] for submission in carried],
        }
        not_applied = False
        try:
            answer = await self._caller.ask(request, wait_seconds=wait_seconds)
            error = answer.header.get("error")
            not_applied = error in ("taken over", "nonce", "version")
            _raise_refusal(answer)
        except Exception as failure:
            not_applied = not_applied or provably_not_run(failure)
            raise
        finally:
            self.outbox.put_down(carried, provably_not_applied=not_applied)
        self.outbox.acknowledge(answer.header.get("acknowledged", 0))
        if interrupt and self._interrupts.get(interrupt["target"]) is interrupt:
            del self._interrupts[interrupt["target"]]
        return answer

    async def interrupt(
        self, target: str, *, deadline_seconds: float, is_moot: Callable[[], bool]
    ) -> str:
        """Have the agent interrupt a request; its answer, empty when none came in time.

        It is kept then, and every later call carries it until one gets through.
        """
        interrupt = {"id": secrets.token_hex(8), "target": target}
        self._interrupts[target] = interrupt
        answer = await self.ask(
            {"interrupt": interrupt}, deadline_seconds=deadline_seconds, is_moot=is_moot
        )
        return str(answer.header.get("interrupt")) if answer is not None else ""

    async def ask(
        self,
        request: Json,
        *,
        deadline_seconds: float,
        is_moot: Callable[[], bool] = lambda: False,
    ) -> Answer | None:
        """Ask something beside the polls; ``None`` when no answer could be had in time.

        It is not asked again once ``is_moot`` says that nobody needs it any more.
        """
        loop = asyncio.get_running_loop()
        backoff = Backoff()
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
                pause_seconds = backoff.failed(error)
                times = backoff.same_failures
                self._owner.on_failed_call()
                is_gone = isinstance(error, NoAgentError) and times > 1
                if is_gone or is_final(error, times):
                    return None
                if is_moot() or loop.time() + pause_seconds > deadline:
                    return None
                await asyncio.sleep(pause_seconds)
        return None


def _raise_refusal(answer: Answer) -> None:
    error = answer.header.get("error")
    if error == "taken over":
        raise TakenOverError("Another notebook or a restarted kernel has taken over this session.")
    if error in ("nonce", "version"):
        raise UnknownAgentError
    if error is not None or "fragment" in answer.header:
        raise AnswerError(f"The agent could not read a request: {answer.header.get('why')}")
