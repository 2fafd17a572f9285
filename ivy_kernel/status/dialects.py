"""The Ivy dialect: the answers of the status and create routes.

======================  ============  =========================================================
status                  state         remarks
======================  ============  =========================================================
none                    none
provisioning, creating  provisioning
active, ready           active        ``phase`` describes the launch but never decides the state
failed                  failed        ``errorMessage`` says why
any other word          unknown       the word is kept in ``raw_state``
missing, not a string   unknown       but see below for create
======================  ============  =========================================================

A create answered with 202 says that one is already under way, so without a word it reads as
provisioning, and with ``ready`` too: the next status answer decides. A create answered with 200 but
without a word is judged by what only some answers carry: ``success: false`` is failed, a sandbox id
is active, a launch phase or an ETA is provisioning.

``tunnelUrl`` is left out on purpose: whoever knows such an address may be able to use it, so it has
no place in a status that travels to browsers and logs.

Source: ``GET /v1/sandbox/{chatId}/status``, ``POST /v1/sandbox/create``.
"""

from __future__ import annotations

from typing import Any

from ivy_kernel.status.clock import Exchange
from ivy_kernel.status.fields import (
    read_flag,
    read_instant,
    read_number,
    read_object,
    read_text,
    read_word,
)
from ivy_kernel.status.model import SandboxStatus, State

_STATES: dict[str, State] = {
    "none": "none",
    "provisioning": "provisioning",
    "creating": "provisioning",
    "active": "active",
    "ready": "active",
    "failed": "failed",
}
_LONGEST_ETA_SECONDS = 7 * 24 * 3600.0


def parse_ivy_status(body: object, exchange: Exchange) -> SandboxStatus:
    """The status in the answer of Ivy's status route.

    Parameters
    ----------
    body
        The body of the answer, raw or decoded.
    exchange
        When the request was made; its ``Date`` header is the only clock of this dialect.

    Raises
    ------
    AnswerError
        The body is no JSON object. Nothing inside an object raises.
    """
    found = read_object(body, "Ivy's status answer")
    word = read_word(found.get("status"))
    return _status(found, word, _state_of(word), exchange)


def parse_ivy_create(body: object, http_status: int, exchange: Exchange) -> SandboxStatus:
    """The status in a successful answer of Ivy's create route.

    Parameters
    ----------
    body
        The body of the answer, raw or decoded.
    http_status
        200 or 202; error answers are the HTTP client's business.
    exchange
        When the request was made.

    Raises
    ------
    AnswerError
        The body is no JSON object. Nothing inside an object raises.
    """
    found = read_object(body, "Ivy's answer to create")
    word = read_word(found.get("status"))
    state = _state_without_a_word(found) if word is None else _state_of(word)
    if http_status == 202 and (word is None or state == "active"):
        state = "provisioning"
    return _status(found, word, state, exchange)


def _state_of(word: str | None) -> State:
    return "unknown" if word is None else _STATES.get(word, "unknown")


def _state_without_a_word(found: dict[str, Any]) -> State:
    if read_flag(found.get("success")) is False:
        return "failed"
    if read_word(found.get("sandboxId")) is not None:
        return "active"
    if read_word(found.get("phase")) is not None or _read_eta(found) is not None:
        return "provisioning"
    return "unknown"


def _read_eta(found: dict[str, Any]) -> float | None:
    return read_number(found.get("etaSeconds"), 0, _LONGEST_ETA_SECONDS)


def _status(
    found: dict[str, Any], word: str | None, state: State, exchange: Exchange
) -> SandboxStatus:
    tells_error = state in ("failed", "unknown")
    return SandboxStatus(
        state=state,
        dialect="ivy",
        received_monotonic=exchange.received_monotonic,
        described_monotonic=exchange.middle_monotonic,
        server_time=exchange.server_time,
        raw_state=word,
        phase=read_word(found.get("phase")),
        eta_seconds=_read_eta(found),
        created_at=read_instant(found.get("createdAt")),
        error=read_text(found.get("errorMessage")) if tells_error else None,
        sandbox_id=read_word(found.get("sandboxId")),
        deduped=read_flag(found.get("deduped")) is True,
    )
