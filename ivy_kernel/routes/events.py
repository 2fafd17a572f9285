"""What a route reports: events beside messages, and at a cell's end its outcome.

An outcome and the error message that says the same are built here alone.
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ivy_kernel.errors import (
    AnswerError,
    ApiError,
    CredentialsError,
    IvyError,
    NetworkError,
    NoAnswerError,
    NotFoundError,
    NotReadyError,
    OutcomeUnknownError,
    RouteError,
    SandboxBrokenError,
    SandboxError,
    SandboxLostError,
    ToolTimeoutError,
    UnexpectedStatusError,
)
from ivy_kernel.models import NEARLY_FULL, Fate, Json, Message, Meter, Outcome, Resources, Sink


@dataclass(frozen=True, slots=True)
class EndingCall:
    """The tool call that ends an agent and its kernel, unless another client has attached since.

    Parameters
    ----------
    tool, code
        Its tool, and the program that the tool runs.
    call_id
        Marks its answer.
    """

    tool: str
    code: str
    call_id: str


@dataclass(frozen=True, slots=True)
class KeptCell:
    """A cell in what a sandbox keeps of what was said there.

    Parameters
    ----------
    run
        The message id of its request.
    cell_id, number, code
        The cell's id in the notebook, its number, and the SHA-256 of its code.
    log
        Names the agent whose log it is.
    start, end
        Where in the log it is; ``end`` is ``None`` while it runs.
    fate
        ``ok``, ``error``, ``aborted``, ``lost`` or ``unknown``; empty while it runs.
    at
        When it was submitted: Unix time, by the sandbox's clock.
    """

    run: str
    cell_id: str
    number: int
    code: str
    log: str
    start: int
    end: int | None
    fate: str
    at: float = 0.0


class KeptOutputs(Protocol):
    """What an agent has said before, to be read beside what it says now. The poller is one.

    Attributes
    ----------
    log
        Names the agent, in `KeptCell`.
    """

    log: str

    async def kept_cells(self) -> tuple[list[KeptCell], int]:
        """Return the newest cells, in the order of their submission, and where the log ends.

        Raises
        ------
        IvyError
            They could not be read.
        """

    async def read_kept(self, offset: int) -> tuple[int, bytes]:
        """Return a slice of the log and where it begins: later where so much is not kept.

        Raises
        ------
        IvyError
            It could not be read.
        """


@dataclass(frozen=True, slots=True)
class AgentOpened:
    """An agent has been found or started, and verified by a second call.

    Parameters
    ----------
    is_found
        It was alive already: variables of an earlier session are still there.
    running
        Message ids of requests that its kernel was still working on.
    ending
        Ends it, also when this connection is gone.
    kept
        What it has said before.
    """

    is_found: bool
    running: tuple[str, ...] = ()
    ending: EndingCall | None = field(default=None, compare=False)
    kept: KeptOutputs | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class KernelReady:
    """The sandbox's kernel can take cells.

    Parameters
    ----------
    kind
        ``ipykernel`` or ``built-in shell``.
    generation
        1 for the agent's first kernel; each restart and each death adds one.
    python_version
        Of the sandbox's Python.
    working_directory
        Where cells run.
    features
        The kernel's ``supported_features``: ``debugger``, ``kernel subshells``.
    """

    kind: str
    generation: int
    python_version: str
    working_directory: str
    features: tuple[str, ...] = ()


def describe_death(
    exit_code: int, log: str = "", *, memory: Meter | None = None, oom_killed: bool | None = None
) -> str:
    """Return why a kernel in the sandbox has ended, as far as it is known.

    Parameters
    ----------
    exit_code
        Negative for a signal.
    log
        The last lines that it wrote.
    memory
        The most that was in use in its last seconds; ``None`` where that is unknown.
    oom_killed
        Whether the system has killed a process just then because memory ran out; ``None`` where
        that is unknown.
    """
    if exit_code == -signal.SIGKILL:
        killed = "the kernel in the sandbox was killed"
        if memory is None:
            by = "when memory ran out" if oom_killed else "most often because the memory ran out"
            return f"{killed}, {by}"
        is_full = memory.part >= NEARLY_FULL
        if oom_killed:
            # It may have filled faster than it was looked at.
            limit = memory.words.partition(" of ")[2]
            how_full = f"{memory.words} were in use" if is_full else f"the limit is {limit}"
            return f"{killed} when memory ran out: {how_full}"
        if is_full:
            return f"{killed}, probably when memory ran out: {memory.words} were in use"
        return f"{killed}; memory was at {memory.words} a moment before"
    if exit_code < 0:
        try:
            name = signal.Signals(-exit_code).name
        except ValueError:
            name = f"signal {-exit_code}"
        return f"its Python crashed ({name}) in the sandbox"
    if last_line(log).startswith("MemoryError"):
        return f"its Python ended in the sandbox because memory ran out (exit code {exit_code})"
    return f"its Python ended by itself with exit code {exit_code} in the sandbox"


def last_line(log: str) -> str:
    """Return the last line that is not empty: of a traceback, the error."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return lines[-1] if lines else "it wrote nothing that tells why."


@dataclass(frozen=True, slots=True)
class KernelDied:
    """The sandbox's Python has ended by itself; the next one starts with nothing in it.

    Parameters
    ----------
    sentence
        One sentence for the user.
    exit_code
        Negative for a signal.
    log
        The last lines that it wrote.
    is_reported
        Whether a running cell has reported it; otherwise the next cell will.
    """

    sentence: str
    exit_code: int
    log: str
    is_reported: bool


@dataclass(frozen=True, slots=True)
class ResourcesRead:
    """The agent has told what the sandbox uses.

    Parameters
    ----------
    resources
        What it uses.
    """

    resources: Resources


@dataclass(frozen=True, slots=True)
class MemoryLow:
    """Memory has become alarmingly full while a cell runs; told once, until it is emptier again.

    Parameters
    ----------
    memory
        What is in use of it.
    """

    memory: Meter


@dataclass(frozen=True, slots=True)
class AgentLost:
    """The agent, and the variables in its kernel, are gone.

    Parameters
    ----------
    sentence
        One sentence for the user.
    """

    sentence: str


@dataclass(frozen=True, slots=True)
class OutputDropped:
    """Output was dropped in the sandbox because it was not fetched in time.

    Parameters
    ----------
    message_count
        How many messages.
    size_bytes
        How large they were together.
    """

    message_count: int
    size_bytes: int


Arrival = Literal["arrived", "not arrived", "unknown", "no cell"]
"""Whether the cell under way has reached the sandbox."""


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Calls have been failing for some seconds; they go on being made.

    Parameters
    ----------
    error
        The last failure.
    cell
        Whether the cell under way has reached the sandbox.
    """

    error: Exception
    cell: Arrival = "unknown"


@dataclass(frozen=True, slots=True)
class CallRefused:
    """A call was refused, or could not be made: the sandbox may have ended.

    Parameters
    ----------
    error
        The failure.
    """

    error: Exception


@dataclass(frozen=True, slots=True)
class Disconnected:
    """No more calls are made to the agent; whether it lives is not known.

    Parameters
    ----------
    reason
        The failure that ended them.
    """

    reason: Exception


@dataclass(frozen=True, slots=True)
class ReachableAgain:
    """Calls get through again after :class:`Unreachable`."""


Event = (
    AgentOpened
    | KernelReady
    | KernelDied
    | ResourcesRead
    | MemoryLow
    | AgentLost
    | OutputDropped
    | Unreachable
    | CallRefused
    | Disconnected
    | ReachableAgain
)


# Outcomes -----------------------------------------------------------------------------------------
RED, PLAIN = "\x1b[0;31m", "\x1b[0m"


NOT_STOPPED = (
    "It did not stop when it was interrupted twice, so it is no longer waited for. It may be still "
    "running in the sandbox, and the next cell waits for it; restarting the kernel ends it."
)

TERMINATED_BEFORE = "The sandbox was terminated."

INTERRUPTED_UNSENT = (
    "Interrupted before it was sent to the sandbox. Nothing of this cell was run. A sandbox that "
    "is starting goes on starting, and the next cell uses it when it is ready."
)
TERMINATED = (
    "The sandbox was terminated while this cell was running, which ended the cell. How far it had "
    "come is not known."
)

ENDED_UNDER_CELL = (
    "It ended while this cell was running, or just before; how far the cell had come is not known."
)
NOT_RUN = "Nothing of this cell was run."

ERROR_NAMES: dict[Fate, str] = {
    "lost": SandboxLostError.__name__,
    "unknown": OutcomeUnknownError.__name__,
    "interrupted": "KeyboardInterrupt",
}
"""The exception's name that a front end shows for a cell that ended without a kernel's reply."""

ERRORS_WHEN_SANDBOX_ENDS = (
    *(NetworkError, RouteError),
    *(CredentialsError, NotFoundError, NotReadyError, SandboxBrokenError, UnexpectedStatusError),
)
"""Errors that a call can raise when its sandbox has ended, before it or while it runs."""


def succeeded() -> Outcome:
    """Return the outcome of a cell that ran to its end."""
    return Outcome("succeeded", {"status": "ok", "user_expressions": {}, "payload": []})


def failed(error: Mapping[str, Any], fate: Fate = "failed") -> Outcome:
    """Return the outcome of a cell that ended in an error that has been shown already.

    Parameters
    ----------
    error
        ``ename``, ``evalue``, ``traceback``.
    fate
        The kind of end.
    """
    reply = {
        "status": "error",
        "ename": str(error["ename"]),
        "evalue": str(error["evalue"]),
        "traceback": list(error["traceback"]),
        "user_expressions": {},
        "payload": [],
    }
    return Outcome(fate, reply)


def show_error(sink: Sink, name: str, sentence: str, fate: Fate, traceback: str = "") -> Outcome:
    """End a cell with an error of ours, in the output and in the reply.

    Parameters
    ----------
    sink
        Takes the ``error`` message (Jupyter message spec, "Execution errors").
    name, sentence
        The exception's name and value in the front end.
    fate
        The kind of end.
    traceback
        More text to show; by default just name and sentence.
    """
    lines = [f"{RED}{name}{PLAIN}: {sentence}"]
    if traceback:
        lines.append(traceback)
    content: Json = {"ename": name, "evalue": sentence, "traceback": lines}
    sink(Message("error", content))
    return failed(content, fate)


def show_command_error(sink: Sink, error: IvyError) -> Outcome:
    """End a cell with the error of one of our own commands; its sentence says all that is known."""
    outcome = show_error(sink, type(error).__name__, str(error), "failed")
    return dataclasses.replace(outcome, was_refused=True)


def show_ivy_error(sink: Sink, error: IvyError, *, was_sent: bool = True) -> Outcome:
    """End a cell with one of this package's errors, and say what is known of its fate.

    Parameters
    ----------
    sink, error
        Takes the ``error`` message; the error.
    was_sent
        Whether the cell itself had gone out; not so when only its preparation failed.
    """
    name = type(error).__name__
    # Each branch says exactly as much as is known: not run, may have run, or was ended.
    if isinstance(error, SandboxLostError):
        words = [str(error), NOT_RUN if NOT_RUN not in str(error) else "", error.advice]
        return show_error(sink, name, " ".join(filter(None, words)), "lost")
    if not may_have_run(error, was_sent=was_sent):
        sentence = str(error)
        is_general = isinstance(error, NetworkError | ApiError | RouteError)
        if is_general or type(error) is SandboxError:
            sentence += f" {NOT_RUN}" if NOT_RUN not in sentence else ""
        outcome = show_error(sink, name, sentence, "failed")
        return dataclasses.replace(outcome, was_refused=not was_sent)
    # A 5xx may come from a gateway, after the code has run.
    unknown_fault = isinstance(error, UnexpectedStatusError) and error.status_code >= 500
    if unknown_fault or isinstance(error, NoAnswerError | AnswerError):
        sentence = (
            f"{error} The cell was sent, so it may have run; it was not sent again. Look at its "
            f"effects before you run it again."
        )
        return show_error(sink, name, sentence, "unknown")
    if isinstance(error, ToolTimeoutError):
        sentence = f"{error} Whether it was stopped there is not known."
        return show_error(sink, name, sentence, "failed")
    return show_error(sink, name, str(error), "failed")


def may_have_run(error: IvyError, *, was_sent: bool) -> bool:
    """Whether a cell that ended in this error may have run, or part of it.

    Parameters
    ----------
    error
        The error.
    was_sent
        Whether the cell itself had gone out; not so when only its preparation failed.
    """
    # What is documented as decided before the platform runs anything is not among these: 4xx, 503.
    doubtful = (
        *(AnswerError, NoAnswerError, SandboxBrokenError, ToolTimeoutError),
        *(UnexpectedStatusError,),
    )
    return was_sent and isinstance(error, doubtful)
