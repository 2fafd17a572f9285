"""Creating, watching and terminating a sandbox over Ivy's routes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from sandbox_server import Json, RunningSandbox, running_sandbox, until


def _ids(chat: str, **changes: object) -> Json:
    ids = {"chatId": chat, "sessionId": f"s-{chat}", "campaignId": f"campaign-of-{chat}"}
    return {name: value for name, value in {**ids, **changes}.items() if value is not None}


def test_a_chat_without_a_sandbox_has_status_none(server: RunningSandbox) -> None:
    """An unknown chat is no error."""
    assert server.status("never-heard-of") == {"status": "none"}


def test_provisioning_goes_through_its_phases_with_an_eta() -> None:
    """compute, mount and ready follow each other while the estimate falls."""
    with running_sandbox(provision_seconds={"compute": 2.1, "mount": 2.5}) as server:
        first = server.create("c")
        assert first == {"status": "provisioning", "phase": "compute", "etaSeconds": 5}
        seen = [server.status("c")]

        def active() -> bool:
            seen.append(server.status("c"))
            return seen[-1]["status"] == "active"

        until(active, "it is active")
    phases = [status["phase"] for status in seen]
    assert sorted(set(phases), key=phases.index) == ["compute", "mount", "ready"]
    etas = [status["etaSeconds"] for status in seen if status["status"] == "provisioning"]
    assert etas == sorted(etas, reverse=True)
    assert set(etas) <= {1, 2, 3, 4, 5}
    assert etas[0] > etas[-1]
    assert all(status["createdAt"].endswith("Z") for status in seen)
    assert "etaSeconds" not in seen[-1]


def test_tools_wait_for_the_start() -> None:
    """While it starts, a tool is answered 503 SANDBOX_NOT_READY."""
    with running_sandbox(provision_seconds={"compute": 5, "mount": 0}) as server:
        server.create("c")
        path = "/v1/sandbox/c/tool/sandbox_python"
        status, headers, body = server.call("POST", path, {"code": "1"})
        assert (status, body["code"], headers["Retry-After"]) == (503, "SANDBOX_NOT_READY", "1")


def test_a_tool_without_a_sandbox_is_404(server: RunningSandbox) -> None:
    """A chat that has none is told so."""
    path = "/v1/sandbox/never-heard-of/tool/sandbox_python"
    status, _, body = server.call("POST", path, {"code": "1"})
    assert (status, body["code"]) == (404, "SANDBOX_NOT_FOUND")


def test_concurrent_creates_start_one_sandbox() -> None:
    """Of many creates one starts, the others are 202 deduped; later ones 200 ready."""
    with running_sandbox(provision_seconds={"compute": 4.0, "mount": 0.0}) as server:
        answers: list[tuple[int, Json]] = []

        def create() -> None:
            status, _, body = server.call("POST", "/v1/sandbox/create", _ids("c"))
            answers.append((status, body))

        threads = [threading.Thread(target=create) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        started = [body for status, body in answers if status == 200]
        deduped = [body for status, body in answers if status == 202]
        assert len(started) == 1
        assert "deduped" not in started[0]
        assert len(deduped) == 7
        for body in deduped:
            assert body["deduped"] is True
            assert body["success"] is True
            assert body["status"] == "provisioning"
        until(lambda: server.status("c")["status"] == "active", "it is active")
        assert len(server.control()["sandboxes"]) == 1
        status, _, body = server.call("POST", "/v1/sandbox/create", _ids("c"))
        assert status == 200
        assert body["status"] == "ready"
        assert body["deduped"] is True
        assert body["success"] is True
        assert body["sandboxId"].startswith("sbx_")
        assert body["tunnelUrl"] == server.url


@pytest.mark.parametrize("name", ["chatId", "sessionId", "campaignId"])
@pytest.mark.parametrize("value", [None, "", "  ", 7, "x" * 300])
def test_a_missing_or_wrong_id_is_400(server: RunningSandbox, name: str, value: object) -> None:
    """Each of the three ids must be there, as a string."""
    status, _, body = server.call("POST", "/v1/sandbox/create", _ids("c", **{name: value}))
    assert status == 400
    assert name in body["error"]


def test_another_campaign_is_400(server: RunningSandbox, chat: str) -> None:
    """A chat keeps the campaign of its first create."""
    ids = _ids(chat, campaignId="another")
    status, _, body = server.call("POST", "/v1/sandbox/create", ids)
    assert (status, body["code"]) == (400, "CAMPAIGN_MISMATCH")


@pytest.mark.parametrize("phase", ["compute", "mount"])
def test_failed_provisioning_is_final_until_created_again(phase: str) -> None:
    """Status says failed and why, tools answer 502, and a new create can succeed."""
    with running_sandbox(provision_fails_in=phase, provision_error="no GPU left") as server:
        server.create("c")
        status = until(
            lambda: (found := server.status("c"))["status"] == "failed" and found, "it failed"
        )
        assert status["phase"] == "failed"
        assert status["errorMessage"] == "no GPU left"
        path = "/v1/sandbox/c/tool/sandbox_exec"
        code, _, body = server.call("POST", path, {"command": "true"})
        assert (code, body["code"]) == (502, "SANDBOX_FAILED")
        assert "no GPU left" in body["error"]
        assert server.session_status("session-of-c")["lifecycle"]["state"] == "failed"
        server.control({"provision_fails_in": ""})
        server.ready("c")
        assert server.tool("c", "sandbox_exec", command="echo on")["stdout"] == "on\n"


@pytest.mark.parametrize("error", [500, 503])
def test_create_can_fail_as_documented(error: int) -> None:
    """500 and 503 come with a JSON error and leave no sandbox."""
    with running_sandbox(create_error=error) as server:
        status, _, body = server.call("POST", "/v1/sandbox/create", _ids("c"))
        assert status == error
        assert body["error"]
        assert server.status("c") == {"status": "none"}


def test_terminate_ends_it_and_create_starts_anew(server: RunningSandbox, chat: str) -> None:
    """Variables and processes are gone, files stay."""
    server.tool(chat, "sandbox_notebook", code="x = 1; open('kept.txt', 'w').write('kept')")
    status, _, body = server.call("POST", f"/v1/sandbox/{chat}/terminate")
    assert (status, body) == (200, {"success": True, "status": "none", "terminated": True})
    assert server.status(chat) == {"status": "none"}
    path = f"/v1/sandbox/{chat}/tool/sandbox_notebook"
    assert server.call("POST", path, {"code": "x"})[0] == 404
    server.ready(chat)
    assert server.tool(chat, "sandbox_notebook", code="x")["outputs"][0]["ename"] == "NameError"
    assert server.tool(chat, "sandbox_read", path="kept.txt")["content"] == "kept"


def test_terminate_without_a_sandbox_is_harmless(server: RunningSandbox) -> None:
    """It is answered 200 and says that there was none."""
    status, _, body = server.call("POST", "/v1/sandbox/never-heard-of/terminate")
    assert (status, body["terminated"]) == (200, False)


def test_terminate_stops_provisioning() -> None:
    """A sandbox that is still starting can be terminated."""
    with running_sandbox(provision_seconds={"compute": 30, "mount": 0}) as server:
        server.create("c")
        began = time.monotonic()
        assert server.call("POST", "/v1/sandbox/c/terminate")[2]["terminated"] is True
        assert time.monotonic() - began < 5
        assert server.status("c") == {"status": "none"}
        assert server.pids() == []


def test_terminate_and_create_at_once_end_in_one_truth(
    server: RunningSandbox, new_chat: Callable[[], str]
) -> None:
    """However creates and terminates overlap, the last create wins and works."""
    chat = new_chat()
    for _ in range(3):
        server.ready(chat)
        ending = threading.Thread(
            target=server.call, args=("POST", f"/v1/sandbox/{chat}/terminate")
        )
        ending.start()
        server.create(chat)
        ending.join()
    server.ready(chat)
    assert server.tool(chat, "sandbox_exec", command="echo on")["stdout"] == "on\n"
    server.call("POST", f"/v1/sandbox/{chat}/terminate")
