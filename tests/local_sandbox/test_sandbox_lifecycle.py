"""The life of a sandbox as Recoup's route tells it: idle, hibernation, expiry, resume."""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime

import pytest
from sandbox_server import Json, RunningSandbox, running_sandbox, until

_SESSION = "session-of-c"
_DEADLINES = ("hibernateAfter", "sandboxExpiresAt")


def _state(server: RunningSandbox) -> str | None:
    return server.session_status(_SESSION)["lifecycle"]["state"]


def test_a_local_sandbox_has_no_deadlines(server: RunningSandbox, chat: str) -> None:
    """By default nothing ends it: a local user's variables do not vanish."""
    status = server.session_status(f"session-of-{chat}")
    assert status["status"] == "active"
    assert status["hasSnapshot"] is False
    lifecycle = status["lifecycle"]
    assert lifecycle["state"] == "active"
    assert lifecycle["hibernateAfter"] is None
    assert lifecycle["sandboxExpiresAt"] is None
    assert abs(lifecycle["serverTime"] - time.time() * 1000) < 2000
    assert 0 <= lifecycle["serverTime"] - lifecycle["lastActivityAt"] < 5000


def test_the_cloud_profile_has_typical_deadlines() -> None:
    """300 s after the last activity it may hibernate, 1800 s after its start it expires."""
    with running_sandbox(profile="cloud") as server:
        server.ready("c")
        lifecycle = server.session_status(_SESSION)["lifecycle"]
        assert lifecycle["hibernateAfter"] - lifecycle["lastActivityAt"] == pytest.approx(
            300_000, abs=5
        )
        left = lifecycle["sandboxExpiresAt"] - lifecycle["serverTime"]
        assert 1_795_000 < left <= 1_800_000


def test_provisioning_is_no_sandbox_yet() -> None:
    """While it starts, the state is provisioning and there are no deadlines."""
    settings: Json = {"provision_seconds": {"compute": 5, "mount": 0}, "profile": "cloud"}
    with running_sandbox(settings) as server:
        server.create("c")
        status = server.session_status(_SESSION)
        assert status["status"] == "no_sandbox"
        assert status["lifecycle"]["state"] == "provisioning"
        assert status["lifecycle"]["hibernateAfter"] is None


def test_an_idle_sandbox_hibernates_and_resumes() -> None:
    """Processes and variables are really gone, files are there, and create resumes it."""
    settings: Json = {
        "hibernating_seconds": 3.0,
        "restore_seconds": {"compute": 2.0, "mount": 1.0},
    }
    with running_sandbox(settings) as server:
        server.ready("c")
        server.tool("c", "sandbox_notebook", code="x = 1; open('kept.txt', 'w').write('kept')")
        server.tool("c", "sandbox_exec", command="setsid sleep 300 > /dev/null 2>&1 &")
        assert server.pids()
        states = [_state(server)]
        server.control({"hibernate_seconds": 0.5})

        def hibernated() -> bool:
            states.append(_state(server))
            return states[-1] == "hibernated"

        until(hibernated, "it hibernates")
        server.control({"hibernate_seconds": None})
        assert sorted(set(states), key=states.index) == ["active", "hibernating", "hibernated"]
        assert server.pids() == []
        status = server.session_status(_SESSION)
        assert status["status"] == "active"
        assert status["hasSnapshot"] is True
        assert status["lifecycle"]["hibernateAfter"] is None
        assert status["lifecycle"]["sandboxExpiresAt"] is None
        assert server.status("c") == {"status": "none"}
        path = "/v1/sandbox/c/tool/sandbox_notebook"
        answer = server.call("POST", path, {"code": "x"})
        assert (answer[0], answer[2]["code"]) == (404, "SANDBOX_NOT_FOUND")
        assert "hibernated" in answer[2]["error"]

        assert server.create("c")["status"] == "provisioning"
        restoring = server.session_status(_SESSION)
        assert restoring["lifecycle"]["state"] == "restoring"
        assert restoring["status"] == "active"
        assert server.status("c")["status"] == "provisioning"
        until(lambda: server.status("c")["status"] == "active", "it is back")
        after = server.tool("c", "sandbox_notebook", code="x")
        assert after["outputs"][0]["ename"] == "NameError"
        assert server.tool("c", "sandbox_read", path="kept.txt")["content"] == "kept"


@pytest.mark.parametrize(
    ("recoup_server", "word"), [("current", "active"), ("older", "no_sandbox")]
)
def test_a_sandbox_that_was_put_away_is_still_named(recoup_server: str, word: str) -> None:
    """Recoup's present server says active beside hibernated and archived; an older one did not."""
    settings: Json = {"hibernating_seconds": 0.0, "profile": "cloud"}
    with running_sandbox(settings, recoup_server=recoup_server) as server:
        server.ready("c")
        server.control({"hibernate_seconds": 0.2})
        until(lambda: _state(server) == "hibernated", "it hibernates")
        seen = [server.session_status(_SESSION)]
        server.call("POST", "/v1/sandbox/c/terminate")
        seen.append(server.session_status(_SESSION))
        assert [one["status"] for one in seen] == [word, word]
        assert [one["lifecycle"]["state"] for one in seen] == ["hibernated", "archived"]
        assert [one["hasSnapshot"] for one in seen] == [True, False]
        deadlines = [one["lifecycle"][name] for one in seen for name in _DEADLINES]
        assert deadlines == [None] * 4
        assert server.status("c") == {"status": "none"}


@pytest.mark.parametrize(("status_code", "words"), [(401, "message"), (404, "error")])
def test_an_outage_of_recoup_looks_like_a_mistake(status_code: int, words: str) -> None:
    """Its real server answers a database error with 404 and a failing key table with 401."""
    with running_sandbox() as server:
        server.ready("c")
        server.control({"recoup_error": status_code})
        path = f"/sandbox/status?sessionId={_SESSION}"
        status, _, body = server.call("GET", path)
        assert (status, set(body)) == (status_code, {"status", words})
        assert server.status("c")["status"] == "active"
        server.control({"recoup_error": 0})
        assert _state(server) == "active"


def test_every_transition_counts_the_version_up() -> None:
    """provisioning, active, hibernating, hibernated, restoring, active, archived: seven."""
    with running_sandbox(hibernating_seconds=0.0) as server:
        server.ready("c")
        assert server.session_status(_SESSION)["lifecycleVersion"] == 2
        server.control({"hibernate_seconds": 0.2})
        until(lambda: _state(server) == "hibernated", "it hibernates")
        assert server.session_status(_SESSION)["lifecycleVersion"] == 4
        server.control({"hibernate_seconds": None})
        server.ready("c")
        assert server.session_status(_SESSION)["lifecycleVersion"] == 6
        server.call("POST", "/v1/sandbox/c/terminate")
        status = server.session_status(_SESSION)
        assert status["lifecycleVersion"] == 7
        assert status["lifecycle"]["state"] == "archived"
        assert status["hasSnapshot"] is False


def test_reading_the_status_is_no_activity() -> None:
    """However often both routes are read, it hibernates in time."""
    with running_sandbox() as server:
        server.ready("c")
        first = server.session_status(_SESSION)["lifecycle"]["lastActivityAt"]
        server.control({"hibernate_seconds": 1.0})

        def hibernated() -> bool:
            server.status("c")
            return _state(server) != "active"

        until(hibernated, "it hibernates")
        last = server.session_status(_SESSION)["lifecycle"]["lastActivityAt"]
        assert abs(last - first) <= 2


def test_use_is_activity_and_a_call_in_flight_keeps_it_awake() -> None:
    """A tool call moves the deadline, and a long one is not cut off by hibernation."""
    with running_sandbox(hibernate_seconds=3.0) as server:
        server.ready("c")
        code = "import time; time.sleep(5); print('whole')"
        assert server.tool("c", "sandbox_python", code=code)["stdout"] == "whole\n"
        lifecycle = server.session_status(_SESSION)["lifecycle"]
        assert lifecycle["state"] == "active"
        assert lifecycle["hibernateAfter"] - lifecycle["lastActivityAt"] == pytest.approx(
            3000, abs=5
        )


@pytest.mark.parametrize(("snapshot", "end"), [(True, "hibernated"), (False, "archived")])
def test_a_runtime_expires(snapshot: bool, end: str) -> None:
    """When its time is over it is gone, busy or not; with a snapshot it can be resumed."""
    settings: Json = {"runtime_seconds": 5.0, "expiry_keeps_snapshot": snapshot}
    with running_sandbox(settings) as server:
        server.ready("c")
        deadline = server.session_status(_SESSION)["lifecycle"]["sandboxExpiresAt"]
        path = "/v1/sandbox/c/tool/sandbox_python"
        status, _, body = server.call("POST", path, {"code": "import time; time.sleep(30)"})
        assert (status, body["code"]) == (502, "SANDBOX_ENDED")
        after = server.session_status(_SESSION)
        assert 0 <= after["lifecycle"]["serverTime"] - deadline < 5000
        assert after["status"] == "active"
        assert after["lifecycle"]["sandboxExpiresAt"] is None
        assert after["lifecycle"]["state"] == end
        assert after["hasSnapshot"] is snapshot
        assert server.status("c") == {"status": "none"}
        assert server.call("POST", path, {"code": "1"})[0] == 404
        assert server.pids() == []
        server.control({"runtime_seconds": None})
        server.ready("c")


def test_active_ends_a_margin_before_expiry() -> None:
    """Close to its expiry the status is no_sandbox, although the state is still active."""
    with running_sandbox(runtime_seconds=60, expiry_margin_seconds=59.0) as server:
        server.ready("c")

        def inside_margin() -> bool:
            return server.session_status(_SESSION)["status"] == "no_sandbox"

        until(inside_margin, "the margin is reached")
        assert _state(server) == "active"
        assert server.tool("c", "sandbox_exec", command="echo on")["stdout"] == "on\n"


def test_a_failed_lifecycle_of_a_living_runtime_heals() -> None:
    """When hibernating fails the processes live on, and the next read says active again."""
    settings: Json = {"hibernating_seconds": 0.0, "hibernation_fails": True}
    with running_sandbox(settings) as server:
        server.ready("c")
        server.tool("c", "sandbox_notebook", code="x = 1")
        before = server.session_status(_SESSION)["lifecycleVersion"]
        server.control({"hibernate_seconds": 0.3})
        # The control route reads no status, so that it does not heal anything.
        until(lambda: server.control()["sandboxes"][0]["state"] == "failed", "it failed")
        server.control({"hibernate_seconds": None})
        assert _state(server) == "active"
        assert server.session_status(_SESSION)["lifecycleVersion"] >= before + 3
        shown = server.tool("c", "sandbox_notebook", code="x")["outputs"][0]
        assert shown["data"]["text/plain"] == "1"


def test_create_while_hibernating_resumes_afterwards() -> None:
    """A create that comes in the middle is not lost."""
    with running_sandbox(hibernating_seconds=3.0) as server:
        server.ready("c")
        server.control({"hibernate_seconds": 0.3})
        until(lambda: _state(server) == "hibernating", "it hibernates")
        server.control({"hibernate_seconds": None})
        assert server.create("c")["status"] == "provisioning"
        assert _state(server) in ("restoring", "active")


@pytest.mark.parametrize("hours", [1, -1])
def test_the_servers_clock_can_be_off(hours: int) -> None:
    """Server time, all timestamps and the Date header move together; durations do not."""
    skew = hours * 3_600_000
    with running_sandbox(profile="cloud", skew_ms=skew) as server:
        server.ready("c")
        path = "/sandbox/status?sessionId=session-of-c"
        status, headers, body = server.call("GET", path)
        assert status == 200
        lifecycle = body["lifecycle"]
        off = lifecycle["serverTime"] - time.time() * 1000
        assert off == pytest.approx(skew, abs=3000)
        date = parsedate_to_datetime(headers["Date"]).timestamp()
        assert date * 1000 == pytest.approx(lifecycle["serverTime"], abs=2000)
        assert lifecycle["sandboxExpiresAt"] - lifecycle["serverTime"] == pytest.approx(
            1_800_000, abs=5000
        )


def test_a_session_follows_its_latest_create(
    server: RunningSandbox, new_chat: Callable[[], str]
) -> None:
    """A session that created for another chat tells of that chat's sandbox."""
    one, two = new_chat(), new_chat()
    server.ready(one, session_id="moving-session")
    first = server.session_status("moving-session")["lifecycle"]["lastActivityAt"]
    server.call("POST", f"/v1/sandbox/{one}/terminate")
    assert server.session_status("moving-session")["lifecycle"]["state"] == "archived"
    server.ready(two, session_id="moving-session")
    status = server.session_status("moving-session")
    assert status["status"] == "active"
    assert status["lifecycle"]["lastActivityAt"] >= first
    server.call("POST", f"/v1/sandbox/{two}/terminate")
