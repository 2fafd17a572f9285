"""The two dialects: the answers of the Ivy and the Recoup API as one `SandboxStatus`. No I/O.

Ivy
---
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

``tunnelUrl`` is left out on purpose: knowing such an address may be enough to use it, so it has no
place in a status that travels to browsers and logs.

Source: ``GET /v1/sandbox/{chatId}/status``, ``POST /v1/sandbox/create``.

Recoup
------
The runtime word (``status``) says that a sandbox is bound to the session, and not that it runs:
after the server itself has hibernated or archived a sandbox it keeps its name and goes on to say
``active``. So both words must agree, as Recoup's own web client has it; an older server of the same
family says ``no_sandbox`` instead.

===============  ==================================  ==========================================
status           lifecycle.state                     state
===============  ==================================  ==========================================
active           null, missing, active,              active: the lifecycle's word may lag behind
                 provisioning                        while a sandbox starts
active           hibernating, hibernated, restoring, that word
                 archived, failed
no_sandbox       null, missing                       none
no_sandbox       active                              expired if the expiry is past or under 10 s
                                                     away (the server calls a runtime active only
                                                     until then), else none
no_sandbox       any other                           that word: a sandbox that is being
                                                     provisioned is not bound yet
missing          null                                none
missing          a known word                        that word
missing          missing                             unknown
an unknown word  anything                            unknown
a known word     an unknown word                     unknown
===============  ==================================  ==========================================

``raw_state`` is the word that decided, so an unknown word is never lost.

A deadline can only be counted down on a server's clock: ``serverTime``, or the answer's ``Date``
header where that is missing.

Source: ``GET /api/sandbox/status``.

Both
----
Ivy runs the cells, so Ivy says what its sandbox is: its word, its launch, its creation. Recoup says
what Ivy has no word for: why there is none (it sleeps, was put away, has expired), whether it can
be resumed, and the deadlines. Where they contradict each other Ivy's word stands, and what Recoup
would have said is unknown. `join` puts them together.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import msgspec

from ivy_kernel.errors import AnswerError
from ivy_kernel.status.clock import RequestTiming
from ivy_kernel.status.model import SandboxStatus, State

# Tolerant readers of single JSON fields -----------------------------------------------------------
#
# They return the value if it can be used, else None. Only `read_object` raises: an API that adds,
# drops or mistypes a field must not take the whole status away.

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_EARLIEST = datetime(2000, 1, 1, tzinfo=timezone.utc)
_LATEST = datetime(2200, 1, 1, tzinfo=timezone.utc)
# The two ranges are far apart, so a number tells by its size which unit it is in; a zero, which
# some servers write for "not set", is in neither.
_EARLIEST_SECONDS = (_EARLIEST - _EPOCH).total_seconds()
_LATEST_SECONDS = (_LATEST - _EPOCH).total_seconds()

_PLAIN_NUMBER = re.compile(r"[0-9]{1,19}(\.[0-9]{1,9})?")

# Colours, cursor movements, and what ends with a bell or ESC backslash, such as a window's title.
_TERMINAL_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"
)

WORD_LIMIT_CHARACTERS = 100
TEXT_LIMIT_CHARACTERS = 2_000


def read_object(body: object, what: str) -> dict[str, Any]:
    """Return the JSON object in a body.

    Parameters
    ----------
    body
        The raw bytes or text of an answer, or what a JSON decoder made of it.
    what
        The name of the answer, for the error: "Ivy's status answer".

    Raises
    ------
    AnswerError
        The body is no JSON, or JSON but no object.
    """
    found = body
    if isinstance(body, (bytes, bytearray, memoryview, str)):
        try:
            found = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
            raise AnswerError(_not_an_object(what, "no JSON")) from exc
    if not isinstance(found, dict):
        raise AnswerError(_not_an_object(what, _JSON_NAMES.get(type(found), "something else")))
    return found


_JSON_NAMES: dict[type, str] = {
    list: "a list",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


def _not_an_object(what: str, found: str) -> str:
    # The body itself stays out of the sentence: a proxy's page may hold anything.
    return (
        f"{what} should be a JSON object but is {found}: check that the API URL in the settings "
        "leads to the API itself and not to a web page or a proxy's sign-in page."
    )


def read_text(value: object, limit_characters: int = TEXT_LIMIT_CHARACTERS) -> str | None:
    """Return a text that is not blank, in one line that no terminal obeys, cut beyond the limit."""
    if not isinstance(value, str):
        return None
    # Lone surrogates are legal in JSON escapes but could not be sent on as UTF-8.
    text = value.encode("utf-8", "replace").decode("utf-8")
    text = _TERMINAL_SEQUENCE.sub("", text)
    text = " ".join(text.split())
    text = "".join(character for character in text if character.isprintable()).strip()
    if len(text) > limit_characters:
        text = text[: limit_characters - 1] + "…"
    return text or None


def read_word(value: object) -> str | None:
    """Return one of the API's own words, such as a state or a phase, as it is written there."""
    return read_text(value, WORD_LIMIT_CHARACTERS)


def read_flag(value: object) -> bool | None:
    """Return a real true or false; nothing else counts as one."""
    return value if isinstance(value, bool) else None


def read_number(value: object, low: float, high: float) -> float | None:
    """Return a number, or a string of digits, between the bounds, both included."""
    if isinstance(value, str) and _PLAIN_NUMBER.fullmatch(value.strip()):
        # Servers write 64-bit columns as strings, because JavaScript cannot hold them.
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    # A NaN fails every comparison; an int too large for a float compares without converting.
    return float(value) if low <= value <= high else None


def read_instant(value: object) -> datetime | None:
    """Return a moment between the years 2000 and 2200, in UTC.

    Parameters
    ----------
    value
        Epoch milliseconds, epoch seconds (told apart by their size), either of them as a string
        of digits, or an ISO 8601 date-time. One without a time zone is taken as UTC.
    """
    seconds = read_number(value, _EARLIEST_SECONDS, _LATEST_SECONDS)
    if seconds is not None:
        return _EPOCH + timedelta(seconds=seconds)
    milliseconds = read_number(value, _EARLIEST_SECONDS * 1000, _LATEST_SECONDS * 1000)
    if milliseconds is not None:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    if not isinstance(value, str):
        return None
    try:
        instant = msgspec.convert(value.strip(), datetime)
        if instant.tzinfo is None:
            instant = instant.replace(tzinfo=timezone.utc)
        instant = instant.astimezone(timezone.utc)
    except (msgspec.ValidationError, ValueError, OverflowError):
        return None
    return instant if _EARLIEST <= instant <= _LATEST else None


# Recoup ------------------------------------------------------------------------------------------
_RECOUP_STATES: dict[str, State] = {
    "provisioning": "provisioning",
    "active": "active",
    "hibernating": "hibernating",
    "hibernated": "hibernated",
    "restoring": "restoring",
    "archived": "archived",
    "failed": "failed",
}

_EXPIRY_MARGIN = timedelta(seconds=10)
"""The server reports a runtime as active only while its expiry is at least this far away."""


def parse_recoup_status(body: object, timing: RequestTiming) -> SandboxStatus:
    """Parse the answer of Recoup's status route.

    Parameters
    ----------
    body
        The body of the answer, raw or decoded.
    timing
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
    server_time = read_instant(lifecycle.get("serverTime")) or timing.server_time
    expires_at = read_instant(lifecycle.get("sandboxExpiresAt"))
    state, raw_state = _recoup_state(found, lifecycle, _has_expired(expires_at, server_time))
    return SandboxStatus(
        state=state,
        dialect="recoup",
        received_monotonic=timing.received_monotonic,
        described_monotonic=timing.middle_monotonic,
        server_time=server_time,
        raw_state=raw_state,
        last_activity_at=read_instant(lifecycle.get("lastActivityAt")),
        hibernate_at=read_instant(lifecycle.get("hibernateAfter")),
        expires_at=expires_at,
        resumable=read_flag(found.get("hasSnapshot")),
        # Only the error answers document this field; one that comes with 200 is not lost either.
        error=read_text(found.get("error")) if state in ("failed", "unknown") else None,
    )


def _has_expired(expires_at: datetime | None, server_time: datetime | None) -> bool:
    if expires_at is None or server_time is None:
        return False
    return expires_at - server_time < _EXPIRY_MARGIN


def _recoup_state(
    found: dict[str, Any], lifecycle: dict[str, Any], has_expired: bool
) -> tuple[State, str | None]:
    """Return the state, and the word of the API that decided it."""
    runtime = read_word(found.get("status"))
    word = read_word(lifecycle.get("state"))
    if runtime not in (None, "active", "no_sandbox"):
        return "unknown", runtime
    if word is not None and word not in _RECOUP_STATES:
        return "unknown", word
    if runtime == "active" and word in (None, "active", "provisioning"):
        return "active", runtime
    if runtime == "no_sandbox" and word == "active":
        return ("expired" if has_expired else "none"), runtime
    if word is not None:
        return _RECOUP_STATES[word], word
    never_had_one = "state" in lifecycle and lifecycle["state"] is None
    return ("none" if runtime or never_had_one else "unknown"), runtime


# Ivy ---------------------------------------------------------------------------------------------
_IVY_STATES: dict[str, State] = {
    "none": "none",
    "provisioning": "provisioning",
    "creating": "provisioning",
    "active": "active",
    "ready": "active",
    "failed": "failed",
}
_LONGEST_ETA_SECONDS = 7 * 24 * 3600.0
"""A longer estimate is taken for a mistake."""


def parse_ivy_status(body: object, timing: RequestTiming) -> SandboxStatus:
    """Parse the answer of Ivy's status route.

    Parameters
    ----------
    body
        The body of the answer, raw or decoded.
    timing
        When the request was made; its ``Date`` header is the only clock of this dialect.

    Raises
    ------
    AnswerError
        The body is no JSON object. Nothing inside an object raises.
    """
    found = read_object(body, "Ivy's status answer")
    word = read_word(found.get("status"))
    return _ivy_status(found, word, _ivy_state(word), timing)


def parse_ivy_create(body: object, http_status: int, timing: RequestTiming) -> SandboxStatus:
    """Parse a successful answer of Ivy's create route.

    Parameters
    ----------
    body
        The body of the answer, raw or decoded.
    http_status
        200 or 202; the HTTP client turns error answers into exceptions.
    timing
        When the request was made.

    Raises
    ------
    AnswerError
        The body is no JSON object. Nothing inside an object raises.
    """
    found = read_object(body, "Ivy's answer to create")
    word = read_word(found.get("status"))
    state = _ivy_state_without_word(found) if word is None else _ivy_state(word)
    if http_status == 202 and (word is None or state == "active"):
        state = "provisioning"
    return _ivy_status(found, word, state, timing)


def _ivy_state(word: str | None) -> State:
    return "unknown" if word is None else _IVY_STATES.get(word, "unknown")


def _ivy_state_without_word(found: dict[str, Any]) -> State:
    if read_flag(found.get("success")) is False:
        return "failed"
    if read_word(found.get("sandboxId")) is not None:
        return "active"
    if read_word(found.get("phase")) is not None or _ivy_eta(found) is not None:
        return "provisioning"
    return "unknown"


def _ivy_eta(found: dict[str, Any]) -> float | None:
    return read_number(found.get("etaSeconds"), 0, _LONGEST_ETA_SECONDS)


def _ivy_status(
    found: dict[str, Any], word: str | None, state: State, timing: RequestTiming
) -> SandboxStatus:
    # Beside any other state the message would be about the past.
    may_carry_error = state in ("failed", "unknown")
    return SandboxStatus(
        state=state,
        dialect="ivy",
        received_monotonic=timing.received_monotonic,
        described_monotonic=timing.middle_monotonic,
        server_time=timing.server_time,
        raw_state=word,
        phase=read_word(found.get("phase")),
        eta_seconds=_ivy_eta(found),
        created_at=read_instant(found.get("createdAt")),
        error=read_text(found.get("errorMessage")) if may_carry_error else None,
        sandbox_id=read_word(found.get("sandboxId")),
    )


# Both --------------------------------------------------------------------------------------------
_CONTRADICTION_SECONDS = 5.0
"""Two answers that contradict each other are mostly of two moments: worth another look soon."""
_FINER_STATES: dict[State, frozenset[State]] = {
    "none": frozenset({"hibernating", "hibernated", "restoring", "archived", "failed", "expired"}),
    "provisioning": frozenset({"restoring"}),
    "active": frozenset({"hibernating"}),
}
"""Ivy's state → the states of Recoup that say the same more finely."""
_RUNNING_STATES: frozenset[State] = frozenset({"active", "hibernating", "unknown"})


def join(
    ivy: SandboxStatus,
    recoup: SandboxStatus | None,
    *,
    reason: str = "",
    retry_seconds: float | None = None,
) -> SandboxStatus:
    """Join what both APIs say of a sandbox to its one status.

    Parameters
    ----------
    ivy
        What Ivy says.
    recoup
        What Recoup says, or said a short while ago; ``None`` when that is not known.
    reason
        Why Recoup's part is missing or not of this moment, as a sentence; empty when neither.
    retry_seconds
        After so long Recoup is worth another request; ``None`` when nothing is missing.
    """
    if reason and recoup is not None and _contradicts(ivy, recoup):
        recoup = None  # what it said a while ago is no longer so, and it cannot be asked
    unknown = [_missing_sentence(ivy, recoup, reason)] if reason else []
    joined = replace(ivy, retry_seconds=retry_seconds)
    if recoup is not None:
        # The last seconds before its expiry, in which Recoup no longer calls a runtime active.
        ends_soon = ivy.state == "active" and recoup.state == "expired"
        if recoup.state in _FINER_STATES.get(ivy.state, ()):
            joined = replace(joined, state=recoup.state, raw_state=recoup.raw_state)
        elif _contradicts(ivy, recoup) and not ends_soon:
            unknown.append(_contradiction_sentence(ivy, recoup))
            joined = replace(joined, retry_seconds=_CONTRADICTION_SECONDS)
            recoup = None
    if recoup is not None:
        joined = _with_recoups_times(joined, recoup)
    return replace(joined, unknown=tuple(unknown))


def _contradicts(ivy: SandboxStatus, recoup: SandboxStatus) -> bool:
    """Whether both cannot be true of one moment; a start is seen by one before the other."""
    if ivy.state == "active":
        return recoup.state not in ("active", "provisioning")
    return ivy.state == "none" and recoup.state == "active"


def _contradiction_sentence(ivy: SandboxStatus, recoup: SandboxStatus) -> str:
    return (
        f"{_what_is_missing(ivy)} is not known: Recoup says {recoup.raw_state or recoup.state!r} "
        f"while Ivy says {ivy.raw_state or ivy.state!r}; if that stays so, check the setting "
        f"recoup_session_id."
    )


def _missing_sentence(ivy: SandboxStatus, recoup: SandboxStatus | None, reason: str) -> str:
    if recoup is None:
        return f"{_what_is_missing(ivy)} is not known: {reason}"
    return f"{_what_is_missing(ivy)} is as Recoup last said: {reason}"


def _what_is_missing(ivy: SandboxStatus) -> str:
    if ivy.state in _RUNNING_STATES:
        return "When it hibernates and expires"
    return "Whether its files can be resumed"


def _with_recoups_times(status: SandboxStatus, recoup: SandboxStatus) -> SandboxStatus:
    """Return the status with Recoup's times, on Recoup's clock; its own creation stays on Ivy's."""
    if recoup.server_time is None:  # without a clock its times are no durations
        return replace(status, dialect="ivy+recoup", resumable=recoup.resumable)
    # Recoup's clock at the moment that the status describes.
    later = status.described_monotonic - recoup.described_monotonic
    clock, ahead = recoup.server_time + timedelta(seconds=later), 0.0
    if status.server_time is not None:
        ahead = (status.server_time - clock).total_seconds()
    return replace(
        status,
        dialect="ivy+recoup",
        received_monotonic=status.received_monotonic + recoup.uncertainty_seconds,
        server_time=clock,
        created_at=status.created_at if status.server_time is not None else None,
        creation_clock_ahead_seconds=ahead,
        last_activity_at=recoup.last_activity_at,
        hibernate_at=recoup.hibernate_at if recoup.state != "expired" else None,
        expires_at=recoup.expires_at,
        resumable=recoup.resumable,
        error=status.error or recoup.error,
    )
