"""Events that a route reports beside messages: one small class each."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Literal

from ivy_kernel.models import NEARLY_FULL, Meter, Resources


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
    """

    is_found: bool
    running: tuple[str, ...] = ()
    ending: EndingCall | None = field(default=None, compare=False)


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
