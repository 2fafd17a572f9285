"""The agent route: a real kernel in the sandbox, behind capped request/response tool calls.

::

    route.py      AgentRoute: what a session asks of it
    attachment.py our hold on an agent: found, lost, found again
    ladder.py     finds out how an agent can live in a sandbox
    link.py       keeps polls in flight: once, in order, soon
    carrier.py    makes calls that carry all that is unacknowledged
    health.py     what failed calls in a row mean
    pacing.py     when to poll, and for how long (pure)
    grace.py      how long output is collected before it is shown (pure)
    portions.py   how much one answer may hold (pure)
    retrying.py   which failed calls are made again (pure)
    outgoing.py   messages of ours, and how they travel
    outbox.py     numbered submissions until they are acknowledged
    inbox.py      slices of the log, put together and cut into messages
    docket.py     which message belongs to which request; the kernel's life
    pending.py    one request on its way
    outcomes.py   how a cell ended, in one truth
    exchange.py   one request to the agent by one tool call
    frames.py     the agent's answer, found in a tool's result
    programs.py   the code that travels with each call
    payload.py    the agent as an archive
    events.py     what is told beside messages
"""

from ivy_kernel.routes.agent.calls import Rung, ToolCall
from ivy_kernel.routes.agent.events import (
    AgentLost,
    AgentOpened,
    Event,
    KernelDied,
    KernelReady,
    OutputDropped,
    ReachableAgain,
    Unreachable,
)
from ivy_kernel.routes.agent.failures import TakenOverError
from ivy_kernel.routes.agent.route import AgentRoute
from ivy_kernel.routes.agent.start import RUNGS

__all__ = [
    "RUNGS",
    "AgentLost",
    "AgentOpened",
    "AgentRoute",
    "Event",
    "KernelDied",
    "KernelReady",
    "OutputDropped",
    "ReachableAgain",
    "Rung",
    "TakenOverError",
    "ToolCall",
    "Unreachable",
]
