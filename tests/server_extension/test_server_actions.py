"""Create, terminate and reconnect, and how an open event stream tells of them."""

from __future__ import annotations

import time
from collections.abc import Callable

from jupyter_server_driver import Json, RunningJupyter
from sandbox_server import RunningSandbox, until
from test_server_routes import check_error


def state_of(sandboxes: list[Json]) -> str:
    """The state of the default sandbox."""
    return str(sandboxes[0]["status"]["state"])


def test_a_start_is_seen_from_create_to_active(
    jupyter: RunningJupyter, platform: RunningSandbox, changed: Callable[..., None], chat_id: str
) -> None:
    """Create answers while it is provisioning; each change is pushed, not waited for."""
    changed(provision_seconds={"compute": 1.0, "mount": 1.0})
    sandbox_id = jupyter.default()["id"]
    with jupyter.events() as events:
        events.until(lambda found: state_of(found) == "none", "the first list came")
        began = time.monotonic()
        created = jupyter.act("create", sandbox_id)
        answered = time.monotonic()
        assert created["status"]["state"] == "provisioning"
        assert created["status"]["phase"] == "compute"
        assert created["status"]["eta_ms"] > 0
        assert answered - began < 5.0
        told, _ = events.until(lambda found: state_of(found) == "provisioning", "provisioning")
        assert told - answered < 5.0
        until(lambda: platform.status(chat_id)["status"] == "active", "it became active", 10)
        became = time.monotonic()
        told, sandboxes = events.until(lambda found: state_of(found) == "active", "active", 20.0)
        # The monitor asks every 1.5 s while it starts; its next slower pace is 15 s.
        assert told - became < 10.0
        assert sandboxes[0]["status"]["eta_ms"] is None
        assert sandboxes[0]["status"]["uptime_ms"] >= 0


def test_terminate_ends_the_sandbox_and_is_seen(
    jupyter: RunningJupyter, platform: RunningSandbox, chat_id: str
) -> None:
    """The answer to terminate, and an event soon after it, say that it is gone."""
    jupyter.act("create")
    with jupyter.events() as events:
        events.until(lambda found: state_of(found) == "active", "it became active")
        terminated = jupyter.act("terminate")
        answered = time.monotonic()
        gone = terminated["status"]["state"]
        assert gone in ("none", "archived", "hibernated")
        assert platform.status(chat_id)["status"] != "active"
        told, _ = events.until(lambda found: state_of(found) == gone, "the end was told")
        assert told - answered < 5.0
    jupyter.act("terminate")  # a second time is harmless


def test_a_start_that_fails_says_why(jupyter: RunningJupyter, changed: Callable[..., None]) -> None:
    """The platform's reason arrives as the status' error, word for word."""
    reason = "no room <b>here</b> & now"
    changed(provision_fails_in="compute", provision_error=reason)
    with jupyter.events() as events:
        jupyter.act("create")
        _, sandboxes = events.until(lambda found: state_of(found) == "failed", "it failed")
        assert sandboxes[0]["status"]["error"] == reason
        assert sandboxes[0]["can_create"] is True


def test_a_refused_create_is_told_in_the_one_shape(
    jupyter: RunningJupyter, changed: Callable[..., None]
) -> None:
    """An error of the platform becomes a 502 that names it, and nothing is called created."""
    changed(create_error=500)
    sandbox_id = jupyter.default()["id"]
    status, _, body = jupyter.call("POST", f"ivy/sandboxes/{sandbox_id}/create")
    assert status == 502
    check_error(body, "CreationFailedError")
    assert jupyter.default()["status"]["state"] == "none"


def test_reconnect_looks_again_at_once(
    jupyter: RunningJupyter, platform: RunningSandbox, chat_id: str
) -> None:
    """Its answer has what happened behind our back, although nothing was due to be asked."""
    assert jupyter.default()["status"]["state"] == "none"  # now asked once a minute
    platform.ready(chat_id, "session", f"campaign-of-{chat_id}")
    again = jupyter.act("reconnect")
    assert again["status"]["state"] == "active"
    assert again["status"]["age_ms"] < 1000
    assert again["status"]["stale"] is False
