"""The status of a sandbox: both APIs' answers as one vocabulary, and its countdowns. Pure."""

from ivy_kernel.status.clock import Exchange, monotonic_seconds
from ivy_kernel.status.dialects import parse_ivy_create, parse_ivy_status
from ivy_kernel.status.http_time import parse_http_date, parse_retry_after
from ivy_kernel.status.model import (
    CHANGING_STATES,
    END_STATES,
    STARTING_STATES,
    Deadline,
    Dialect,
    SandboxStatus,
    State,
)
from ivy_kernel.status.pace import Pace
from ivy_kernel.status.reading import Reading, describe_error
from ivy_kernel.status.recoup import parse_recoup_status

__all__ = [
    "CHANGING_STATES",
    "END_STATES",
    "STARTING_STATES",
    "Deadline",
    "Dialect",
    "Exchange",
    "Pace",
    "Reading",
    "SandboxStatus",
    "State",
    "describe_error",
    "monotonic_seconds",
    "parse_http_date",
    "parse_ivy_create",
    "parse_ivy_status",
    "parse_recoup_status",
    "parse_retry_after",
]
