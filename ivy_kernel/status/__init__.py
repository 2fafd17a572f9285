"""The status of a sandbox: one vocabulary for both APIs, and the monitor that polls it.

::

    fetch ──SandboxStatus or error──→ Monitor ──StatusReading──→ watcher, watcher, …
                                         ↑ refresh, refresh_soon, accept, hold_off

============ ======================================================================
module       contents
============ ======================================================================
`model`      ``SandboxStatus`` and ``StatusReading``: states, countdowns, JSON (pure)
`clock`      a monotonic clock that counts sleep; HTTP dates; ``RequestTiming``
`dialects`   the answers of both APIs → ``SandboxStatus`` (pure)
`schedule`   when the next request is due (pure)
`polling`    one request with a time limit, and the task that sends them when due
`watchers`   the callbacks, and which readings are news to them
`monitor`    puts these together; one monitor for each sandbox in this process
============ ======================================================================

- While there is a watcher, or a caller awaits a refresh, one task polls; otherwise nothing is sent.
- At most one request is in flight, and ``PollIntervals.least_gap_seconds`` lies between two.
  ``Retry-After`` is never cut short.
- Watchers are called with news only: they count down by themselves.
- A monitor belongs to the event loop that it was made on: it polls and calls watchers there. Its
  plain methods may be called from any thread.
"""

from ivy_kernel.status.clock import (
    RequestTiming,
    monotonic_seconds,
    parse_http_date,
    parse_retry_after,
)
from ivy_kernel.status.dialects import parse_ivy_create, parse_ivy_status, parse_recoup_status
from ivy_kernel.status.model import (
    CHANGING_STATES,
    END_STATES,
    STARTING_STATES,
    Deadline,
    Dialect,
    SandboxStatus,
    State,
    StatusReading,
    describe_error,
)
from ivy_kernel.status.monitor import Monitor, monitor_for
from ivy_kernel.status.polling import Fetch
from ivy_kernel.status.schedule import PollIntervals
from ivy_kernel.status.watchers import Watch, Watcher

__all__ = [
    "CHANGING_STATES",
    "END_STATES",
    "STARTING_STATES",
    "Deadline",
    "Dialect",
    "Fetch",
    "Monitor",
    "PollIntervals",
    "RequestTiming",
    "SandboxStatus",
    "State",
    "StatusReading",
    "Watch",
    "Watcher",
    "describe_error",
    "monitor_for",
    "monotonic_seconds",
    "parse_http_date",
    "parse_ivy_create",
    "parse_ivy_status",
    "parse_recoup_status",
    "parse_retry_after",
]
