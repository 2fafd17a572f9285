"""The fields that say how it went: success, exit code, status, time limits, counts."""

from __future__ import annotations

import re
from typing import Any

from ivy_kernel.routes.decode.fields import Fields
from ivy_kernel.routes.decode.outputs import take_count

from ivy_kernel.routes.decode.parts import Parts
from ivy_kernel.routes.decode.vocabulary import (
    BAD_STATES,
    EXIT_NAMES,
    GOOD_STATES,
    TIMED_OUT_NAMES,
    TIMEOUT_STATES,
    state_of,
)

_CUT_NAMES = ("truncated", "output_truncated", "stdout_truncated", "stderr_truncated")


def take_flags(fields: Fields, parts: Parts, *, has_streams: bool) -> bool:
    """Take the fields that say how it went.

    Parameters
    ----------
    fields
        An object of the answer.
    parts
        Takes what they say.
    has_streams
        Whether it is a process with streams, so that ``code`` and ``status`` may be its exit code.

    Returns
    -------
    bool
        Whether the object says that something failed.
    """
    count = take_count(fields)
    if count is not None:
        parts.execution_count = count
    is_bad = has_flag = False
    for name in ("success", "ok", "succeeded", "is_error", "failed"):
        flag = fields.peek(name)
        if isinstance(flag, bool):
            fields.drop(name)
            has_flag = True
            is_good = flag is not (name in ("is_error", "failed"))
            is_bad = is_bad or not is_good
            parts.has_succeeded = parts.has_succeeded or is_good
    for name in TIMED_OUT_NAMES:
        if isinstance(fields.peek(name), bool):
            parts.timed_out = fields.take(name) or parts.timed_out
    for name in _CUT_NAMES:
        if isinstance(fields.peek(name), bool) and fields.take(name):
            parts.notes.append("The platform cut this output short.")
    parts.has_flag = parts.has_flag or has_flag
    is_bad = _take_state(fields, parts) or is_bad
    parts.has_failed = parts.has_failed or is_bad
    names = (*EXIT_NAMES, "code", "status") if has_streams else EXIT_NAMES
    for name in names:
        exit_code = _integer(fields.peek(name))
        if exit_code is not None:
            fields.drop(name)
            parts.families.add("process")
            parts.exit_code = exit_code if parts.exit_code in (None, 0) else parts.exit_code
    return is_bad or parts.exit_code not in (None, 0) or parts.timed_out


def _take_state(fields: Fields, parts: Parts) -> bool:
    """Take ``status`` or ``state`` where its word is known; returns whether it is a bad one."""
    word = state_of(fields)
    if word is None:
        return False
    fields.take("status", "state")
    parts.has_flag = True
    parts.has_succeeded = parts.has_succeeded or word in GOOD_STATES
    parts.timed_out = parts.timed_out or word in TIMEOUT_STATES
    return word in BAD_STATES


def _integer(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,9}", value.strip(), re.ASCII):
        return int(value)
    return value if isinstance(value, int) else None
