"""The status of a sandbox: both APIs' answers as one vocabulary, and its countdowns. Pure."""

from ivy_kernel.status.clock import Exchange, monotonic_seconds, parse_http_date, parse_retry_after
from ivy_kernel.status.dialects import parse_ivy_create, parse_ivy_status, parse_recoup_status
from ivy_kernel.status.model import (
    CHANGING_STATES,
    END_STATES,
    STARTING_STATES,
    Deadline,
    Dialect,
    Reading,
    SandboxStatus,
    State,
    describe_error,
)
from ivy_kernel.status.monitor import Monitor, monitor_for
from ivy_kernel.status.polling import Fetch
from ivy_kernel.status.schedule import Pace
from ivy_kernel.status.watchers import Watch, Watcher

__all__ = [
    "CHANGING_STATES",
    "END_STATES",
    "STARTING_STATES",
    "Deadline",
    "Dialect",
    "Exchange",
    "Fetch",
    "Monitor",
    "Pace",
    "Reading",
    "SandboxStatus",
    "State",
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
