"""The REST routes: what they answer, to whom, and the one shape of errors."""

from __future__ import annotations

from typing import Any

import pytest
from jupyter_server_driver import RunningJupyter

ROUTES = [
    ("GET", "ivy/sandboxes"),
    ("GET", "ivy/sandboxes/some-id"),
    ("POST", "ivy/sandboxes/some-id/create"),
    ("POST", "ivy/sandboxes/some-id/terminate"),
    ("POST", "ivy/sandboxes/some-id/reconnect"),
    ("GET", "ivy/events"),
    *((method, "ivy/contents/chat/file") for method in ("GET", "PUT", "POST", "PATCH", "DELETE")),
    ("GET", "ivy/contents/"),
    ("GET", "ivy/contents/chat/file/checkpoints"),
    ("POST", "ivy/contents/chat/file/checkpoints"),
    ("POST", "ivy/contents/chat/file/checkpoints/some-id"),
    ("DELETE", "ivy/contents/chat/file/checkpoints/some-id"),
    ("GET", "ivy/files/chat/file"),
    ("GET", "ivy/manifest/chat"),
    ("POST", "ivy/send"),
    ("GET", "ivy/transfers"),
    ("DELETE", "ivy/transfers/1"),
    ("GET", "ivy/chats"),
    ("PUT", "ivy/chats/some-id"),
    ("DELETE", "ivy/chats/some-id"),
    ("POST", "ivy/chats/some-id/default"),
    ("GET", "ivy/account"),
    ("POST", "ivy/account"),
    ("GET", "ivy/outputs"),
    ("GET", "ivy/anything/else"),
]

SANDBOX_FIELDS = {
    "id": str,
    "name": str,
    "local": bool,
    "chat_id": str,
    "default": bool,
    "account": bool,
    "missing": (str, type(None)),
    "can_create": bool,
    "can_terminate": bool,
    "sessions": list,
    "status": dict,
    "resources": type(None),  # no kernel has told what it uses
}
STATUS_FIELDS = {
    *("state", "raw_state", "phase", "eta_ms", "uptime_ms", "created_ms", "last_activity_ms"),
    *("idle_ms", "hibernates_in_ms", "expires_in_ms", "resumable", "error"),
    *("label", "hint", "resumes", "keeps_awake", "unknown"),
    *("dialect", "age_ms", "stale", "stale_reason"),
}


def check_error(body: Any, kind: str) -> str:
    """Check the one shape of errors; the message."""
    assert set(body) <= {"error", "message"}  # the drive says it twice, for JupyterLab's dialogs
    assert body.get("message", body["error"]["message"]) == body["error"]["message"]
    assert sorted(body["error"]) == ["kind", "message"]
    assert body["error"]["kind"] == kind
    message: str = body["error"]["message"]
    assert message.endswith(".")
    assert "\n" not in message
    return message


def test_the_list_has_the_default_sandbox_first(jupyter: RunningJupyter, chat_id: str) -> None:
    """A sandbox is listed with all its fields, and a status with all of its own."""
    status, headers, body = jupyter.call("GET", "ivy/sandboxes")
    assert status == 200
    assert headers["Content-Type"] == "application/json"
    assert list(body) == ["sandboxes"]
    sandbox = body["sandboxes"][0]
    assert set(sandbox) == set(SANDBOX_FIELDS)
    for name, kind in SANDBOX_FIELDS.items():
        assert isinstance(sandbox[name], kind), name
    assert set(sandbox["status"]) == STATUS_FIELDS
    assert (sandbox["name"], sandbox["chat_id"]) == (f"Chat {chat_id}", chat_id)
    assert sandbox["default"] is True
    assert sandbox["account"] is True
    assert sandbox["local"] is False
    assert sandbox["missing"] is None
    assert sandbox["can_create"] is True
    assert sandbox["can_terminate"] is True
    assert sandbox["status"]["state"] == "none"
    assert sandbox["status"]["stale"] is False


def test_one_sandbox_is_found_by_its_id(jupyter: RunningJupyter) -> None:
    """The id in the list leads to the same sandbox, and stays the same."""
    first = jupyter.default()
    status, _, body = jupyter.call("GET", f"ivy/sandboxes/{first['id']}")
    assert status == 200
    assert {**body, "status": None} == {**first, "status": None}
    assert jupyter.default()["id"] == first["id"]


def test_an_id_tells_nothing(jupyter: RunningJupyter, chat_id: str) -> None:
    """Ids are opaque, and fit into a path as they are."""
    sandbox_id = jupyter.default()["id"]
    assert sandbox_id.isalnum()
    assert chat_id not in sandbox_id


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "ivy/sandboxes/no-such-id", 404, "UnknownSandboxError"),
        ("POST", "ivy/sandboxes/no-such-id/create", 404, "UnknownSandboxError"),
        ("POST", "ivy/sandboxes/no-such-id/terminate", 404, "UnknownSandboxError"),
        ("POST", "ivy/sandboxes/no-such-id/reconnect", 404, "UnknownSandboxError"),
        ("POST", "ivy/sandboxes/no-such-id/explode", 404, "NotFound"),
        ("GET", "ivy", 404, "NotFound"),
        ("GET", "ivy/", 404, "NotFound"),
        ("GET", "ivy/nothing", 404, "NotFound"),
        ("DELETE", "ivy/nothing", 404, "NotFound"),
        ("POST", "ivy/sandboxes", 405, "MethodNotAllowed"),
        ("DELETE", "ivy/sandboxes/no-such-id", 405, "MethodNotAllowed"),
        ("GET", "ivy/sandboxes/no-such-id/create", 405, "MethodNotAllowed"),
        ("PUT", "ivy/events", 405, "MethodNotAllowed"),
        ("GET", "ivy/manifest/no-such-chat", 404, "UnknownSandboxError"),
        ("GET", "ivy/manifest", 404, "NotFound"),
        ("DELETE", "ivy/transfers/77", 404, "NotFound"),
        ("POST", "ivy/send", 400, "UsageError"),
    ],
)
def test_every_error_has_the_one_shape(
    shared_jupyter: RunningJupyter, method: str, path: str, status: int, kind: str
) -> None:
    """Wrong addresses, ids and methods are told in the same JSON shape, with a fitting status."""
    got, headers, body = shared_jupyter.call(method, path)
    assert got == status
    assert headers["Content-Type"] == "application/json"
    check_error(body, kind)


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("headers", [{}, {"Authorization": "token wrong"}], ids=["none", "wrong"])
def test_nobody_gets_in_without_the_token(
    shared_jupyter: RunningJupyter, method: str, path: str, headers: dict[str, str]
) -> None:
    """Without the server's token, or with a wrong one, each route refuses in the one shape."""
    status, _, body = shared_jupyter.call(method, path, headers=headers)
    assert status == 403
    check_error(body, "Forbidden")


def test_a_panel_that_looks_does_not_keep_an_idle_server_alive(jupyter: RunningJupyter) -> None:
    """Reading does not count as activity, by which hubs and timeouts judge; acting does."""

    def last_activity() -> str:
        return str(jupyter.call("GET", "api/status")[2]["last_activity"])

    before = last_activity()
    sandbox_id = jupyter.default()["id"]
    with jupyter.events() as events:
        events.until(bool, "the first list came")
    assert last_activity() == before
    jupyter.act("reconnect", sandbox_id)
    assert last_activity() > before
