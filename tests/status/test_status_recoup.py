"""The Recoup dialect: every documented field and word, and the two words together."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from ivy_kernel.errors import AnswerError
from ivy_kernel.status.clock import RequestTiming
from ivy_kernel.status.dialects import parse_recoup_status
from ivy_kernel.status.model import SandboxStatus

TIMING = RequestTiming(sent_monotonic=100.0, received_monotonic=100.0)
SERVER_MS = 1_796_000_000_000
SERVER = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=SERVER_MS)

LIFECYCLE_WORDS = [
    "provisioning",
    "active",
    "hibernating",
    "hibernated",
    "restoring",
    "archived",
    "failed",
]


def body(
    status: object = "active", state: object = "active", **lifecycle: object
) -> dict[str, Any]:
    """A whole answer, as documented."""
    return {
        "status": status,
        "hasSnapshot": False,
        "lifecycleVersion": 7,
        "lifecycle": {
            "serverTime": SERVER_MS,
            "state": state,
            "lastActivityAt": SERVER_MS - 60_000,
            "hibernateAfter": SERVER_MS + 240_000,
            "sandboxExpiresAt": SERVER_MS + 1_500_000,
        }
        | lifecycle,
    }


def parse(found: object, timing: RequestTiming = TIMING) -> SandboxStatus:
    """The status in an answer."""
    return parse_recoup_status(found, timing)


def test_a_whole_answer_becomes_the_canonical_json() -> None:
    """Every field of a documented answer arrives where every reader looks for it."""
    assert parse(body()).to_json(100.0) == {
        "state": "active",
        "label": "Active",
        "hint": "",
        "raw_state": "active",
        "phase": None,
        "eta_ms": None,
        "uptime_ms": None,
        "created_ms": None,
        "last_activity_ms": SERVER_MS - 60_000,
        "idle_ms": 60_000,
        "hibernates_in_ms": 240_000,
        "expires_in_ms": 1_500_000,
        "resumable": False,
        "resumes": False,
        "keeps_awake": True,
        "unknown": [],
        "error": None,
        "dialect": "recoup",
        "age_ms": 0,
        "stale": False,
        "stale_reason": None,
    }


@pytest.mark.parametrize("word", [None, "active", "provisioning"])
def test_a_bound_sandbox_is_active_beside_three_words_only(word: str | None) -> None:
    """As Recoup's own web client has it: no other word beside it means that the sandbox runs."""
    assert parse(body("active", word)).state == "active"


@pytest.mark.parametrize("word", ["hibernating", "hibernated", "restoring", "archived", "failed"])
def test_a_bound_sandbox_that_sleeps_is_not_active(word: str) -> None:
    """Its server says active after it has hibernated or archived a sandbox, without deadlines."""
    found = body("active", word, hibernateAfter=None, sandboxExpiresAt=None)
    status = parse(found)
    assert (status.state, status.raw_state) == (word, word)
    assert status.to_json(100.0)["hibernates_in_ms"] is None


@pytest.mark.parametrize("word", [word for word in LIFECYCLE_WORDS if word != "active"])
def test_without_a_bound_sandbox_the_lifecycle_decides(word: str) -> None:
    """no_sandbox is the normal runtime word of a sandbox that starts, sleeps or has failed."""
    status = parse(body("no_sandbox", word))
    assert (status.state, status.raw_state) == (word, word)


def test_a_session_that_never_had_a_sandbox_has_none() -> None:
    """no_sandbox with a null state is none."""
    status = parse(body("no_sandbox", None))
    assert (status.state, status.raw_state) == ("none", "no_sandbox")


@pytest.mark.parametrize(
    ("expires_in_ms", "state"),
    [(-1_000, "expired"), (0, "expired"), (9_999, "expired"), (10_000, "none"), (None, "none")],
)
def test_an_active_lifecycle_without_a_sandbox_is_expired_or_gone(
    expires_in_ms: int | None, state: str
) -> None:
    """It is called expired only if the expiry tells so; nothing claims that it still runs."""
    expires = None if expires_in_ms is None else SERVER_MS + expires_in_ms
    status = parse(body("no_sandbox", "active", sandboxExpiresAt=expires))
    assert (status.state, status.raw_state) == (state, "no_sandbox")


@pytest.mark.parametrize("word", ["paused", "error", "ACTIVE"])
@pytest.mark.parametrize("state", ["active", "hibernated", None, "warped"])
def test_an_unknown_runtime_word_is_unknown(word: str, state: object) -> None:
    """A runtime word that we do not know is never guessed at."""
    status = parse(body(word, state))
    assert (status.state, status.raw_state) == ("unknown", word)


@pytest.mark.parametrize("runtime", ["active", "no_sandbox", None])
def test_an_unknown_lifecycle_word_is_unknown(runtime: str | None) -> None:
    """A lifecycle word that we do not know is shown as it is."""
    status = parse(body(runtime, "migrating"))
    assert (status.state, status.raw_state) == ("unknown", "migrating")


@pytest.mark.parametrize("word", LIFECYCLE_WORDS)
def test_a_missing_runtime_word_leaves_the_lifecycle_word(word: str) -> None:
    """With half of the answer the other half still counts."""
    found = body(state=word)
    del found["status"]
    assert parse(found).state == word


@pytest.mark.parametrize(
    ("found", "state"),
    [
        ({}, "unknown"),
        ({"lifecycle": None}, "unknown"),
        ({"lifecycle": {"state": None}}, "none"),
        ({"lifecycle": {"state": 5}}, "unknown"),
        ({"status": "active"}, "active"),
        ({"status": "active", "lifecycle": []}, "active"),
        ({"status": "no_sandbox"}, "none"),
        ({"status": "no_sandbox", "lifecycle": {"state": ["active"]}}, "none"),
        ({"status": None, "lifecycle": {"state": "failed"}}, "failed"),
        ({"status": 5, "lifecycle": "active"}, "unknown"),
    ],
)
def test_missing_and_mistyped_words_never_raise(found: dict[str, object], state: str) -> None:
    """Fields that are missing, null or of a wrong type leave what the rest says."""
    assert parse(found).state == state


@pytest.mark.parametrize(("value", "resumable"), [(True, True), (False, False)])
def test_a_snapshot_makes_it_resumable(value: bool, resumable: bool) -> None:
    """The flag decides resume versus create."""
    found = body("no_sandbox", "hibernated", hibernateAfter=None, sandboxExpiresAt=None)
    status = parse(found | {"hasSnapshot": value})
    assert status.resumable is resumable
    assert status.to_json(100)["resumable"] is resumable


@pytest.mark.parametrize("value", [None, 0, 1, "true", [], {}])
def test_a_snapshot_that_is_no_flag_is_unknown(value: object) -> None:
    """Nothing but true and false counts."""
    assert parse(body() | {"hasSnapshot": value}).resumable is None


TIMES = ["lastActivityAt", "hibernateAfter", "sandboxExpiresAt"]
FIELD_OF = {
    "serverTime": "server_time",
    "lastActivityAt": "last_activity_at",
    "hibernateAfter": "hibernate_at",
    "sandboxExpiresAt": "expires_at",
}


@pytest.mark.parametrize("name", FIELD_OF)
@pytest.mark.parametrize(
    "value",
    [SERVER_MS, float(SERVER_MS), str(SERVER_MS), SERVER_MS // 1000, SERVER.isoformat()],
)
def test_every_time_is_read_in_milliseconds_seconds_and_iso(name: str, value: object) -> None:
    """The documented epoch milliseconds, and the forms that servers write by mistake."""
    assert getattr(parse(body(**{name: value})), FIELD_OF[name]) == SERVER


@pytest.mark.parametrize("name", FIELD_OF)
@pytest.mark.parametrize(
    "value",
    [None, 0, -SERVER_MS, 10**18, 10**400, float("nan"), float("inf"), True, "", "x", [], {}],
)
def test_every_time_that_cannot_be_meant_is_none(name: str, value: object) -> None:
    """Null, out of range or of a wrong type: no time, no error, and the state stands."""
    status = parse(body(**{name: value}))
    assert getattr(status, FIELD_OF[name]) is None
    assert status.state == "active"


@pytest.mark.parametrize("name", FIELD_OF)
def test_every_time_may_be_missing(name: str) -> None:
    """A field that is not there reads like null."""
    found = body()
    del found["lifecycle"][name]
    assert getattr(parse(found), FIELD_OF[name]) is None


def test_without_any_server_clock_nothing_is_counted_down() -> None:
    """Deadlines without the server's time cannot be durations, and this machine's clock is none."""
    shown = parse(body(serverTime=None)).to_json(100.0)
    assert (shown["hibernates_in_ms"], shown["expires_in_ms"], shown["idle_ms"]) == (None,) * 3
    assert shown["state"] == "active"


def test_the_date_header_stands_in_for_a_missing_server_time() -> None:
    """The header is the same server's clock, if only to half a second."""
    timing = RequestTiming(100.0, 100.0, server_date=SERVER)
    shown = parse(body(serverTime=None), timing).to_json(100.0)
    assert shown["expires_in_ms"] == 1_499_500


def test_the_server_time_wins_over_the_date_header() -> None:
    """The body's own time is the exact one."""
    timing = RequestTiming(100.0, 100.0, server_date=SERVER + timedelta(hours=1))
    assert parse(body(), timing).to_json(100.0)["expires_in_ms"] == 1_500_000


def test_null_deadlines_after_hibernation_are_not_counted() -> None:
    """After hibernation both deadlines are null, a snapshot exists, and nothing ticks."""
    found = body("no_sandbox", "hibernated", hibernateAfter=None, sandboxExpiresAt=None)
    shown = parse(found | {"hasSnapshot": True}).to_json(100.0)
    assert (shown["state"], shown["resumable"]) == ("hibernated", True)
    assert (shown["hibernates_in_ms"], shown["expires_in_ms"]) == (None, None)


@pytest.mark.parametrize("state", ["hibernated", "archived", "failed"])
def test_leftover_deadlines_of_an_ended_sandbox_are_not_shown(state: str) -> None:
    """A deadline that no longer applies does not tick."""
    shown = parse(body("no_sandbox", state)).to_json(100.0)
    assert (shown["hibernates_in_ms"], shown["expires_in_ms"]) == (None, None)


def test_deadlines_of_an_unknown_state_are_shown() -> None:
    """A word that we do not know does not make known deadlines unknown."""
    shown = parse(body("active", "migrating")).to_json(100.0)
    assert (shown["hibernates_in_ms"], shown["expires_in_ms"]) == (240_000, 1_500_000)


def test_a_sandbox_that_is_being_hibernated_has_only_an_expiry() -> None:
    """What has begun has no countdown any more."""
    shown = parse(body("active", "hibernating")).to_json(100.0)
    assert (shown["hibernates_in_ms"], shown["expires_in_ms"]) == (None, 1_500_000)


def test_deadlines_that_are_past_read_zero() -> None:
    """A deadline an hour ago is zero, never negative, and the sandbox is called expired."""
    past = SERVER_MS - 3_600_000
    status = parse(body(hibernateAfter=past, sandboxExpiresAt=past))
    assert status.remaining_seconds("hibernation", 100.0) == 0
    assert status.remaining_seconds("expiry", 100.0) == 0
    shown = status.to_json(100.0)
    assert (shown["state"], shown["expires_in_ms"], shown["hibernates_in_ms"]) == (
        "expired",
        0,
        None,
    )


def test_an_active_sandbox_expires_between_two_answers() -> None:
    """When the countdown reaches zero the state reads expired without a new answer."""
    status = parse(body())
    assert status.effective_state(1599.9) == "active"
    assert status.effective_state(1600.0) == "expired"
    assert status.to_json(1600.0)["raw_state"] == "active"


def test_a_passed_hibernation_deadline_is_no_hibernation() -> None:
    """The server may hibernate from then on; until it says so the sandbox is active."""
    status = parse(body())
    shown = status.to_json(100.0 + 300)
    assert (shown["state"], shown["hibernates_in_ms"]) == ("active", 0)


def test_an_error_text_with_an_unknown_word_is_kept() -> None:
    """The documented error object, should it come with 200, loses nothing."""
    status = parse({"status": "error", "error": "no such session"})
    assert (status.state, status.raw_state, status.error) == ("unknown", "error", "no such session")


def test_an_error_text_beside_a_living_sandbox_is_not_shown() -> None:
    """Only a failure has an error."""
    assert parse(body() | {"error": "old"}).error is None


@pytest.mark.parametrize("found", [b"", b"<html>", b"[]", None, 7, "null"])
def test_a_body_that_is_no_object_is_an_answer_error(found: object) -> None:
    """No JSON object at all cannot be a status."""
    with pytest.raises(AnswerError, match="Recoup's status answer should be a JSON object"):
        parse(found)
