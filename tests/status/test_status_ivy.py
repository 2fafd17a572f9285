"""The Ivy dialect: every documented field, word and answer of create, and what is undocumented."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest

from ivy_kernel.errors import AnswerError
from ivy_kernel.status.clock import RequestTiming
from ivy_kernel.status.dialects import parse_ivy_create, parse_ivy_status

SERVER_DATE = datetime(2026, 11, 29, 12, 0, 0, tzinfo=timezone.utc)
TIMING = RequestTiming(sent_monotonic=100.0, received_monotonic=100.2, server_date=SERVER_DATE)

# What a field may hold other than what the documents say.
WRONG_VALUES = [None, "", "  ", 5, -1, 1.5, True, False, [], ["x"], {}, {"x": 1}, 10**400, "\ud800"]


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("none", "none"),
        ("provisioning", "provisioning"),
        ("active", "active"),
        ("failed", "failed"),
        ("creating", "provisioning"),
        ("ready", "active"),
    ],
)
def test_every_documented_status_word_has_a_state(word: str, state: str) -> None:
    """Each word of the documents becomes one state, and is kept as it was."""
    status = parse_ivy_status({"status": word}, TIMING)
    assert (status.state, status.raw_state) == (state, word)
    assert status.dialect == "ivy"


@pytest.mark.parametrize("word", ["paused", "ACTIVE", "hibernated", "aktív", "x" * 50])
def test_an_unknown_status_word_is_kept(word: str) -> None:
    """A word that nobody documented is called unknown, and shown."""
    status = parse_ivy_status({"status": word}, TIMING)
    assert (status.state, status.raw_state) == ("unknown", word)


def test_a_very_long_word_is_cut() -> None:
    """A word of a megabyte does not travel to every browser."""
    status = parse_ivy_status({"status": "x" * 1_000_000}, TIMING)
    assert status.raw_state is not None
    assert len(status.raw_state) == 100


@pytest.mark.parametrize("value", [None, "", 5, True, [], {}])
def test_a_status_that_is_no_word_is_unknown(value: object) -> None:
    """A wrong type where the state should be does not raise, and is not taken for a state."""
    status = parse_ivy_status({"status": value}, TIMING)
    assert (status.state, status.raw_state) == ("unknown", None)


def test_an_empty_object_is_unknown() -> None:
    """An object without any field is a status about which nothing is known."""
    status = parse_ivy_status({}, TIMING)
    shown = status.to_json(100.2)
    assert shown["state"] == "unknown"
    known = {"state", "dialect", "age_ms", "stale", "label", "hint"}
    known |= {"resumes", "keeps_awake", "unknown"}
    assert {name for name, value in shown.items() if value is not None} == known


@pytest.mark.parametrize("phase", ["compute", "mount", "ready", "failed", "warming up"])
def test_every_phase_is_kept(phase: str) -> None:
    """The documented phases, and one that is not, are passed on as they are."""
    assert parse_ivy_status({"status": "provisioning", "phase": phase}, TIMING).phase == phase


@pytest.mark.parametrize("phase", ["ready", "failed"])
def test_the_phase_never_decides_the_state(phase: str) -> None:
    """While the status says provisioning, no phase makes it usable or failed."""
    status = parse_ivy_status({"status": "provisioning", "phase": phase}, TIMING)
    assert status.state == "provisioning"


@pytest.mark.parametrize("value", [None, "", 5, True, [], {}])
def test_a_phase_that_is_no_word_is_none(value: object) -> None:
    """A wrong type where the phase should be is as good as no phase."""
    assert parse_ivy_status({"status": "provisioning", "phase": value}, TIMING).phase is None


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(42, 42), (0, 0), (1.5, 1.5), ("42", 42), (7 * 86400, 7 * 86400)],
)
def test_an_eta_is_read(value: object, seconds: float) -> None:
    """The documented whole seconds, and numbers that a server might write instead."""
    status = parse_ivy_status({"status": "provisioning", "etaSeconds": value}, TIMING)
    assert status.eta_seconds == seconds


@pytest.mark.parametrize(
    "value",
    [None, -1, 7 * 86400 + 1, 10**400, float("nan"), float("inf"), True, "soon", "-3", "", [], {}],
)
def test_an_eta_that_cannot_be_meant_is_none(value: object) -> None:
    """Negative, endless, or no number: no estimate rather than a wrong one."""
    status = parse_ivy_status({"status": "provisioning", "etaSeconds": value}, TIMING)
    assert status.eta_seconds is None
    assert status.to_json(100.2)["eta_ms"] is None


def test_an_eta_counts_down_to_zero_and_stays_there() -> None:
    """The estimate shrinks by the monotonic clock, and is never negative."""
    status = parse_ivy_status({"status": "provisioning", "etaSeconds": 42}, TIMING)
    assert status.to_json(110.1)["eta_ms"] == 32_000
    assert status.to_json(142.1)["eta_ms"] == 0
    assert status.to_json(9_999.0)["eta_ms"] == 0


@pytest.mark.parametrize("word", ["none", "active", "failed", "paused"])
def test_an_eta_is_shown_only_while_something_starts(word: str) -> None:
    """A leftover estimate of a sandbox that is not starting is not shown."""
    assert (
        parse_ivy_status({"status": word, "etaSeconds": 42}, TIMING).to_json(101)["eta_ms"] is None
    )


def test_the_error_message_of_a_failure_is_kept() -> None:
    """What the platform says about a failure reaches the user."""
    status = parse_ivy_status({"status": "failed", "errorMessage": " no capacity\n"}, TIMING)
    assert status.error == "no capacity"
    assert status.to_json(101)["error"] == "no capacity"


@pytest.mark.parametrize("word", ["none", "provisioning", "active"])
def test_an_error_message_without_a_failure_is_not_shown(word: str) -> None:
    """The documents give the message only with failed; elsewhere it would be about the past."""
    assert parse_ivy_status({"status": word, "errorMessage": "old"}, TIMING).error is None


@pytest.mark.parametrize("value", [None, "", 5, True, [], {"message": "x"}])
def test_an_error_message_of_another_type_is_none(value: object) -> None:
    """A wrong type is no text."""
    assert parse_ivy_status({"status": "failed", "errorMessage": value}, TIMING).error is None


def test_a_long_error_message_is_cut_and_stays_sendable() -> None:
    """Text beyond the limit is cut with a sign of it; lone surrogates cannot break the JSON."""
    status = parse_ivy_status({"status": "failed", "errorMessage": "\ud800" + "x" * 9_999}, TIMING)
    assert status.error is not None
    assert len(status.error) == 2_000
    assert status.error.endswith("…")
    json.dumps(status.to_json(101), ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "value",
    [
        "2026-11-29T11:58:20Z",
        "2026-11-29T11:58:20.000Z",
        "2026-11-29T11:58:20.000000+00:00",
        "2026-11-29T13:58:20+02:00",
        "2026-11-29T11:58:20",
        "2026-11-29 11:58:20Z",
        1795953500,
        1795953500000,
        1795953500000.0,
        "1795953500000",
        "1795953500",
    ],
)
def test_a_creation_time_is_read_in_every_form(value: object) -> None:
    """ISO with any zone, epoch seconds and milliseconds, as numbers or digits: one moment."""
    status = parse_ivy_status({"status": "active", "createdAt": value}, TIMING)
    assert status.created_at == datetime(2026, 11, 29, 11, 58, 20, tzinfo=timezone.utc)
    assert status.to_json(100.1)["created_ms"] == 1795953500000


@pytest.mark.parametrize(
    "value",
    [
        *WRONG_VALUES,
        0,
        -1795953500000,
        float("nan"),
        float("-inf"),
        "yesterday",
        "2026-13-45T00:00:00Z",
        "2026-11-29",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00",
        "1999-12-31T23:59:59Z",
        1795953500000000,
        "9" * 19,
    ],
)
def test_a_creation_time_that_cannot_be_meant_is_none(value: object) -> None:
    """Anything that is no moment between 2000 and 2200 is no moment, and nothing raises."""
    status = parse_ivy_status({"status": "active", "createdAt": value}, TIMING)
    assert status.created_at is None
    assert status.to_json(101)["uptime_ms"] is None


def test_uptime_is_counted_on_the_servers_clock() -> None:
    """Uptime is the Date header less the creation, plus what has passed since the request."""
    body = {"status": "active", "createdAt": "2026-11-29T11:58:20Z"}
    status = parse_ivy_status(body, TIMING)
    assert status.server_time == SERVER_DATE + timedelta(milliseconds=500)
    assert status.to_json(100.1)["uptime_ms"] == 100_500
    assert status.to_json(160.1)["uptime_ms"] == 160_500


@pytest.mark.parametrize("word", ["none", "provisioning", "failed", "paused"])
def test_what_is_not_up_has_no_uptime(word: str) -> None:
    """The age of a sandbox that is starting or has failed is no uptime."""
    body = {"status": word, "createdAt": "2026-11-29T11:58:20Z"}
    shown = parse_ivy_status(body, TIMING).to_json(101)
    assert (shown["uptime_ms"], shown["created_ms"]) == (None, 1795953500000)


def test_uptime_is_never_negative() -> None:
    """A creation later than the server's own clock gives zero."""
    body = {"status": "active", "createdAt": "2026-11-29T12:00:05Z"}
    assert parse_ivy_status(body, TIMING).to_json(100.1)["uptime_ms"] == 0


def test_without_a_date_header_there_is_no_uptime() -> None:
    """Where the server's clock is unknown, this machine's is not put in its place."""
    timing = RequestTiming(sent_monotonic=100.0, received_monotonic=100.2)
    body = {"status": "active", "createdAt": "2026-11-29T11:58:20Z"}
    shown = parse_ivy_status(body, timing).to_json(101)
    assert shown["uptime_ms"] is None
    assert shown["created_ms"] == 1795953500000


@pytest.mark.parametrize(
    ("http_status", "body", "state"),
    [
        (200, {"status": "provisioning", "phase": "compute", "etaSeconds": 40}, "provisioning"),
        (200, {"status": "creating"}, "provisioning"),
        (200, {"status": "active"}, "active"),
        (200, {"status": "ready"}, "active"),
        (200, {"status": "ready", "deduped": True, "success": True}, "active"),
        (202, {"status": "provisioning", "deduped": True, "success": True}, "provisioning"),
        (202, {"status": "creating", "deduped": True}, "provisioning"),
        (202, {"deduped": True, "success": True}, "provisioning"),
        (202, {}, "provisioning"),
        (202, {"status": "ready"}, "provisioning"),
        (202, {"status": "failed"}, "failed"),
        (200, {"status": "failed", "phase": "failed"}, "failed"),
        (200, {"status": "warming"}, "unknown"),
        (202, {"status": "warming"}, "unknown"),
        (200, {}, "unknown"),
        (200, {"success": True}, "unknown"),
        (200, {"success": False}, "failed"),
        (200, {"deduped": True, "sandboxId": "sb-1"}, "active"),
        (200, {"phase": "mount"}, "provisioning"),
        (200, {"etaSeconds": 9}, "provisioning"),
    ],
)
def test_every_answer_of_create_has_a_state(
    http_status: int, body: dict[str, object], state: str
) -> None:
    """All documented answers of create, and those with a field missing, become the right state."""
    assert parse_ivy_create(body, http_status, TIMING).state == state


@pytest.mark.parametrize("phase", ["compute", "mount", "ready", "failed", "warming up"])
def test_a_create_tells_its_phase_and_its_estimate(phase: str) -> None:
    """The launch is known from the first answer on, whatever its phase is called."""
    body = {"status": "provisioning", "phase": phase, "etaSeconds": 40}
    status = parse_ivy_create(body, 200, TIMING)
    assert (status.state, status.phase) == ("provisioning", phase)
    assert status.eta_remaining_seconds(100.1) == 40


def test_a_deduplicated_ready_answer_keeps_the_id_but_not_the_tunnel() -> None:
    """The sandbox id is kept; an address that may open the sandbox goes nowhere."""
    body = {
        "status": "ready",
        "success": True,
        "deduped": True,
        "sandboxId": "sb-1",
        "tunnelUrl": "https://secret-tunnel.example",
    }
    status = parse_ivy_create(body, 200, TIMING)
    assert status.sandbox_id == "sb-1"
    assert "secret-tunnel" not in repr(status)
    assert "secret-tunnel" not in json.dumps(status.to_json(101))


@pytest.mark.parametrize("value", [None, "", 5, True, [], {}])
def test_a_sandbox_id_of_another_type_is_none(value: object) -> None:
    """A wrong type is no id, and does not make a sandbox ready."""
    status = parse_ivy_create({"sandboxId": value}, 200, TIMING)
    assert (status.sandbox_id, status.state) == (None, "unknown")


@pytest.mark.parametrize("field", ["phase", "etaSeconds", "success", "deduped", "sandboxId"])
@pytest.mark.parametrize("value", WRONG_VALUES)
def test_no_value_in_an_answer_of_create_raises(field: str, value: object) -> None:
    """Whatever one field holds, the others are still read."""
    body = {"status": "provisioning", field: value}
    assert parse_ivy_create(body, 200, TIMING).state == "provisioning"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b"", "no JSON"),
        (b"<html>gateway</html>", "no JSON"),
        (b"\xff\xfe{}", "no JSON"),
        (b'{"status": "active"', "no JSON"),
        (b"[" * 100_000, "no JSON"),
        ("\ud800", "no JSON"),
        (b"[]", "a list"),
        (b'"active"', "a string"),
        (b"7", "a number"),
        (b"true", "true or false"),
        (b"null", "null"),
        (None, "null"),
        ([{"status": "active"}], "a list"),
        (1.5, "a number"),
        (object(), "something else"),
    ],
)
def test_a_body_that_is_no_object_is_an_answer_error(body: object, found: str) -> None:
    """No JSON object at all is an error that says what came, quotes nothing and names a remedy."""
    for parse in (
        lambda: parse_ivy_status(body, TIMING),
        lambda: parse_ivy_create(body, 200, TIMING),
    ):
        with pytest.raises(AnswerError, match=found) as caught:
            parse()
        assert "API URL" in str(caught.value)
        assert "gateway" not in str(caught.value)


RAW = b'{"status": "active"}'


@pytest.mark.parametrize("body", [RAW, bytearray(RAW), memoryview(RAW), RAW.decode()])
def test_a_raw_body_is_decoded(body: object) -> None:
    """Bytes and text are read as JSON."""
    assert parse_ivy_status(body, TIMING).state == "active"
