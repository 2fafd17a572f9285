"""The Recoup dialect: a runtime word (``status``) and a lifecycle word (``lifecycle.state``).

The runtime word says whether a living sandbox is bound to the session *now*; the lifecycle word is
what the server last wrote down, and may lag behind.

===============  =====================  ==================================================
status           lifecycle.state        state
===============  =====================  ==================================================
active           hibernating            hibernating: still bound, on its way out
active           any other, or null     active: the runtime word decides when it is ready, and
                                        a failed lifecycle of a live runtime heals itself
no_sandbox       null, missing          none
no_sandbox       active                 expired if the expiry is past or under 10 s away (the
                                        server calls a runtime active only until then), else
                                        none
no_sandbox       any other              that word: a sandbox that is being provisioned or
                                        restored is not bound yet, a hibernated one no longer
missing          null                   none
missing          a known word           that word
missing          missing                unknown
an unknown word  anything               unknown
a known word     an unknown word        unknown
===============  =====================  ==================================================

``raw_state`` is the word that decided, so an unknown word is never lost.

A deadline can only be counted down on a server's clock: ``serverTime``, or the answer's ``Date``
header where that is missing.

Source: ``GET /api/sandbox/status``.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from ivy_kernel.status.clock import Exchange
from ivy_kernel.status.fields import (
    read_flag,
    read_instant,
    read_object,
    read_text,
    read_whole_number,
    read_word,
)
from ivy_kernel.status.model import SandboxStatus, State

_LIFECYCLE_STATES: dict[str, State] = {
    "provisioning": "provisioning",
    "active": "active",
    "hibernating": "hibernating",
    "hibernated": "hibernated",
    "restoring": "restoring",
    "archived": "archived",
    "failed": "failed",
}
_LARGEST_VERSION = 2**63 - 1

_EXPIRY_MARGIN = timedelta(seconds=10)
"""The server reports a runtime as active only while its expiry is at least this far away."""


def parse_recoup_status(body: object, exchange: Exchange) -> SandboxStatus:
    """The status in the answer of Recoup's status route.

    Parameters
    ----------
    body
        The body of the answer, raw or decoded.
    exchange
        When the request was made.

    Raises
    ------
    AnswerError
        The body is no JSON object. Nothing inside an object raises.
    """
    found = read_object(body, "Recoup's status answer")
    lifecycle = found.get("lifecycle")
    if not isinstance(lifecycle, dict):
        lifecycle = {}
    server_time = read_instant(lifecycle.get("serverTime")) or exchange.server_time
    expires_at = read_instant(lifecycle.get("sandboxExpiresAt"))
    state, raw_state = _read_state(found, lifecycle, _is_over(expires_at, server_time))
    return SandboxStatus(
        state=state,
        dialect="recoup",
        received_monotonic=exchange.received_monotonic,
        described_monotonic=exchange.middle_monotonic,
        server_time=server_time,
        raw_state=raw_state,
        last_activity_at=read_instant(lifecycle.get("lastActivityAt")),
        hibernate_at=read_instant(lifecycle.get("hibernateAfter")),
        expires_at=expires_at,
        resumable=read_flag(found.get("hasSnapshot")),
        lifecycle_version=read_whole_number(found.get("lifecycleVersion"), 0, _LARGEST_VERSION),
        # Only the error answers document this field; one that comes with 200 is not lost either.
        error=read_text(found.get("error")) if state in ("failed", "unknown") else None,
    )


def _is_over(expires_at: datetime | None, server_time: datetime | None) -> bool:
    if expires_at is None or server_time is None:
        return False
    return expires_at - server_time < _EXPIRY_MARGIN


def _read_state(
    found: dict[str, Any], lifecycle: dict[str, Any], is_over: bool
) -> tuple[State, str | None]:
    """The state, and the word of the API that decided it."""
    runtime = read_word(found.get("status"))
    word = read_word(lifecycle.get("state"))
    if runtime not in (None, "active", "no_sandbox"):
        return "unknown", runtime
    if word is not None and word not in _LIFECYCLE_STATES:
        return "unknown", word
    if runtime == "active" and word != "hibernating":
        return "active", runtime
    if runtime == "no_sandbox" and word == "active":
        return ("expired" if is_over else "none"), runtime
    if word is not None:
        return _LIFECYCLE_STATES[word], word
    never_had_one = "state" in lifecycle and lifecycle["state"] is None
    return ("none" if runtime or never_had_one else "unknown"), runtime
