"""Access control: credentials, rate limit, and the form of errors."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import pytest
from sandbox_server import Json, RunningSandbox, running_sandbox, until

_GOOD, _OTHER = "the-good-token", "the-other-token"
_STATUS = "/v1/sandbox/c/status"


@pytest.fixture(scope="module")
def owned() -> RunningSandbox:
    """A server with two owners: each has a chat and a session."""
    settings: Json = {
        "tokens": {_OTHER: "somebody"},
        "chats": {
            "mine": {"owner": "local", "campaign": "k"},
            "theirs": {"owner": "somebody", "campaign": "k"},
        },
        "sessions": {"my-session": "local", "their-session": "somebody"},
    }
    with running_sandbox(settings, token=_GOOD) as running:
        yield running


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {_GOOD}"},
        {"Authorization": f"bearer   {_GOOD} "},
        {"X-Ivy-Api-Key": _GOOD},
        {"Cookie": f"theme=dark; __session={_GOOD}"},
    ],
)
def test_documented_credentials_are_accepted(owned: RunningSandbox, headers: Json) -> None:
    """Bearer, X-Ivy-Api-Key and the session cookie all let in."""
    assert owned.call("GET", _STATUS, headers=headers)[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer "},
        {"Authorization": _GOOD},
        {"Authorization": f"Basic {_GOOD}"},
        {"Authorization": "Bearer wrong", "X-Ivy-Api-Key": _GOOD},
        {"X-Ivy-Api-Key": ""},
        {"x-api-key": _GOOD},
        {"Cookie": "__session=wrong"},
    ],
)
def test_other_credentials_are_401(owned: RunningSandbox, headers: Json) -> None:
    """Anything else is refused with a JSON error."""
    status, _, body = owned.call("GET", _STATUS, headers=headers)
    assert (status, body["code"]) == (401, "UNAUTHORIZED")


@pytest.mark.parametrize(
    "headers", [{"X-Ivy-Api-Key": _GOOD}, {"Cookie": f"__session={_GOOD}"}, {}]
)
def test_create_takes_authorization_only(owned: RunningSandbox, headers: Json) -> None:
    """On create the other forms are not enough."""
    ids = {"chatId": "c", "sessionId": "s", "campaignId": "k"}
    assert owned.call("POST", "/v1/sandbox/create", ids, headers=headers)[0] == 401


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/sandbox/theirs/status"),
        ("GET", "/v1/sandbox/theirs/manifest"),
        ("POST", "/v1/sandbox/theirs/terminate"),
        ("POST", "/v1/sandbox/theirs/exec"),
        ("POST", "/v1/sandbox/theirs/tool/sandbox_files"),
        ("GET", "/sandbox/status?sessionId=their-session"),
    ],
)
def test_what_is_anothers_is_403(owned: RunningSandbox, method: str, path: str) -> None:
    """Every route refuses the chat or session of another owner."""
    assert owned.call(method, path)[0] == 403


def test_creating_for_anothers_chat_or_session_is_403(owned: RunningSandbox) -> None:
    """Neither a chat nor a session can be taken from its owner."""
    ids = {"chatId": "theirs", "sessionId": "my-session", "campaignId": "k"}
    assert owned.call("POST", "/v1/sandbox/create", ids)[0] == 403
    ids = {"chatId": "mine", "sessionId": "their-session", "campaignId": "k"}
    assert owned.call("POST", "/v1/sandbox/create", ids)[0] == 403


def test_a_chat_belongs_to_who_creates_first(owned: RunningSandbox) -> None:
    """After one owner's create the other is refused."""
    headers = {"Authorization": f"Bearer {_OTHER}"}
    ids = {"chatId": "new", "sessionId": "new-session", "campaignId": "k"}
    assert owned.call("POST", "/v1/sandbox/create", ids, headers=headers)[0] == 200
    assert owned.call("GET", "/v1/sandbox/new/status")[0] == 403
    assert owned.call("GET", "/v1/sandbox/new/status", headers=headers)[0] == 200


def test_a_configured_campaign_is_demanded(owned: RunningSandbox) -> None:
    """Creating with another campaign than the configured one is 400."""
    ids = {"chatId": "mine", "sessionId": "my-session", "campaignId": "other"}
    assert owned.call("POST", "/v1/sandbox/create", ids)[0] == 400


def test_control_is_for_the_servers_own_token(owned: RunningSandbox) -> None:
    """Another owner's token is 403, and no answer shows a token."""
    headers = {"Authorization": f"Bearer {_OTHER}"}
    assert owned.call("GET", "/_control", headers=headers)[0] == 403
    shown = json.dumps(owned.control())
    assert _OTHER not in shown
    assert _GOOD not in shown


def test_control_is_absent_unless_asked_for() -> None:
    """Without --control the route does not exist."""
    with running_sandbox(control=False) as server:
        assert server.call("GET", "/_control")[0] == 404


@pytest.mark.parametrize("changes", [{"runner": "x"}, {"nothing": 1}, {"tokens": {"secret-1": 5}}])
def test_control_refuses_wrong_settings(owned: RunningSandbox, changes: Json) -> None:
    """A wrong setting is 400, changes nothing, and a token in it is not repeated."""
    before = owned.control()["config"]
    status, _, body = owned.call("POST", "/_control", changes)
    assert (status, body["code"]) == (400, "BAD_SETTING")
    assert "secret-1" not in body["error"]
    assert owned.control()["config"] == before


@pytest.mark.parametrize("headers", [{"x-api-key": _GOOD}, {"Authorization": f"Bearer {_GOOD}"}])
def test_recoup_takes_either_credential(owned: RunningSandbox, headers: Json) -> None:
    """A session that never had a sandbox has no state, version 0 and no deadlines."""
    path = "/sandbox/status?sessionId=my-session"
    status, _, body = owned.call("GET", path, headers=headers)
    assert status == 200
    assert isinstance(body["lifecycle"].pop("serverTime"), int)
    assert body == {
        "status": "no_sandbox",
        "hasSnapshot": False,
        "lifecycleVersion": 0,
        "lifecycle": {
            "state": None,
            "lastActivityAt": None,
            "hibernateAfter": None,
            "sandboxExpiresAt": None,
        },
    }


@pytest.mark.parametrize(
    ("path", "headers", "expected"),
    [
        ("?sessionId=my-session", {}, 401),
        ("?sessionId=my-session", {"x-api-key": "wrong"}, 401),
        (
            "?sessionId=my-session",
            {"x-api-key": _GOOD, "Authorization": f"Bearer {_GOOD}"},
            401,
        ),
        ("?sessionId=my-session", {"Cookie": f"__session={_GOOD}"}, 401),
        ("", {"x-api-key": _GOOD}, 400),
        ("?sessionId=", {"x-api-key": _GOOD}, 400),
        ("?sessionId=unknown", {"x-api-key": _GOOD}, 404),
        ("?sessionId=their-session", {"x-api-key": _GOOD}, 403),
    ],
)
def test_recoup_errors_have_their_own_shape(
    owned: RunningSandbox, path: str, headers: Json, expected: int
) -> None:
    """Both credentials at once are refused, and every error says status and error."""
    status, _, body = owned.call("GET", f"/sandbox/status{path}", headers=headers)
    assert status == expected
    assert set(body) == {"status", "error"}
    assert body["status"] == "error"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example"])
def test_a_foreign_host_header_is_403(owned: RunningSandbox, host: str) -> None:
    """A web page that made its own name point here is not let in, token or not."""
    headers = {"Authorization": f"Bearer {_GOOD}", "Host": host}
    status, _, body = owned.call("GET", _STATUS, headers=headers)
    assert (status, body["code"]) == (403, "FORBIDDEN_HOST")


def test_localhost_is_this_machine(owned: RunningSandbox) -> None:
    """The name localhost is as good as the address."""
    port = urlsplit(owned.url).port
    headers = {"Authorization": f"Bearer {_GOOD}", "Host": f"localhost:{port}"}
    assert owned.call("GET", _STATUS, headers=headers)[0] == 200


@pytest.mark.parametrize("data", [b"", b"[]", b"7", b"{", b"\xff", b'{"a": NaN}', b"[" * 100_000])
@pytest.mark.parametrize("path", ["/v1/sandbox/create", "/v1/sandbox/c/tool/sandbox_files"])
def test_a_body_that_is_no_object_is_400(owned: RunningSandbox, path: str, data: bytes) -> None:
    """Whatever is no JSON object is refused in words."""
    status, _, body = owned.call("POST", path, data=data)
    assert (status, body["code"]) == (400, "BAD_BODY")


def test_an_unknown_tool_is_400(owned: RunningSandbox) -> None:
    """The answer names the tools that there are."""
    status, _, body = owned.call("POST", "/v1/sandbox/c/tool/sandbox_fly", {})
    assert (status, body["code"]) == (400, "UNKNOWN_TOOL")
    assert "sandbox_notebook" in body["error"]


def test_an_unknown_route_is_404_as_json(owned: RunningSandbox) -> None:
    """Errors of the server itself are JSON too."""
    status, headers, body = owned.call("GET", "/v2/nothing")
    assert (status, body["code"]) == (404, "NOT_FOUND")
    assert headers["Content-Type"] == "application/json"


def test_another_method_is_405(owned: RunningSandbox) -> None:
    """The answer says which method is allowed."""
    status, headers, _ = owned.call("DELETE", _STATUS)
    assert (status, headers["Allow"]) == (405, "GET")
    status, headers, _ = owned.call("GET", "/v1/sandbox/create")
    assert (status, headers["Allow"]) == (405, "POST")


@pytest.mark.parametrize("form", ["seconds", "date", "none"])
def test_rate_limit_is_429_with_retry_after(form: str) -> None:
    """Too many requests are refused, with Retry-After in the configured form, until it is over."""
    rule = {"requests": 2, "per_seconds": 5, "retry_after": form}
    with running_sandbox(control=False, rate_limit=rule) as server:
        began = time.monotonic()
        answers = [server.call("GET", _STATUS) for _ in range(3)]
        assert [status for status, _, _ in answers] == [200, 200, 429]
        retry_after = answers[2][1]["Retry-After"]
        if form == "seconds":
            assert began + 5 - time.monotonic() <= int(retry_after) <= 5
        elif form == "date":
            wait = parsedate_to_datetime(retry_after).timestamp() - time.time()
            # A date has whole seconds.
            assert began + 4 - time.monotonic() <= wait <= 5
        else:
            assert retry_after is None
        until(lambda: server.call("GET", _STATUS)[0] == 200, "asking is allowed again")


def test_a_body_above_the_limit_is_400() -> None:
    """The answer says how large it was and what is allowed."""
    with running_sandbox(max_request_bytes=1000) as server:
        status, _, body = server.call("POST", "/v1/sandbox/create", {"chatId": "x" * 2000})
        assert (status, body["code"]) == (400, "REQUEST_TOO_LARGE")
        assert "1000" in body["error"]


def test_a_large_body_is_taken(server: RunningSandbox, chat: str) -> None:
    """Twenty megabytes of code run."""
    code = "x = '" + "y" * 20_000_000 + "'\nprint(len(x))"
    assert server.tool(chat, "sandbox_python", code=code)["stdout"] == "20000000\n"


def test_an_unexpected_error_is_500_without_internals(server: RunningSandbox, chat: str) -> None:
    """An unexpected error is JSON, and says nothing of paths or code."""
    sockets = server.root / ".state" / chat / "run"
    sockets.rmdir()
    status, _, body = server.call(
        "POST", f"/v1/sandbox/{chat}/tool/sandbox_notebook", {"code": "print(1)"}
    )
    sockets.mkdir()
    assert status == 500
    assert set(body) == {"error", "code"}
    assert str(server.root) not in json.dumps(body)
    assert "Traceback" not in json.dumps(body)


def test_connections_are_kept_and_answers_are_prompt(server: RunningSandbox) -> None:
    """Many requests on one connection take well under a millisecond of waiting each."""
    where = urlsplit(server.url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=10)
    headers = {"Authorization": f"Bearer {server.token}"}
    took = []
    for _ in range(100):
        began = time.monotonic()
        connection.request("GET", f"/api{_STATUS}", headers=headers)
        answer = connection.getresponse()
        assert answer.status == 200
        answer.read()
        took.append(time.monotonic() - began)
    connection.close()
    # With Nagle's algorithm and delayed acknowledgements all but the first would take 40 ms; a
    # busy machine makes some slow, but not nine of ten.
    assert sorted(took)[10] < 0.02


def _send_and_leave(server: RunningSandbox, chat: str, code: str, begun: str) -> None:
    """Start a call and close the connection while it runs."""
    where = urlsplit(server.url)
    body = json.dumps({"code": code}).encode()
    head = (
        f"POST /api/v1/sandbox/{chat}/tool/sandbox_python HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Bearer {server.token}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((where.hostname, where.port), timeout=10) as connection:
        connection.sendall(head.encode() + body)
        until((server.root / chat / begun).exists, "the call runs")


_SLOW = (
    "import pathlib, time; pathlib.Path('a').touch(); time.sleep(0.5); pathlib.Path('b').touch()"
)


def test_a_call_goes_on_when_its_client_leaves(server: RunningSandbox, chat: str) -> None:
    """The connection's end does not end the call."""
    _send_and_leave(server, chat, _SLOW, "a")
    until((server.root / chat / "b").exists, "the call came to its end")


def test_a_call_can_be_made_to_end_with_its_client() -> None:
    """With cancel_on_disconnect the processes of the call are killed."""
    with running_sandbox(cancel_on_disconnect=True) as server:
        server.ready("c")
        _send_and_leave(server, "c", _SLOW.replace("0.5", "30"), "a")
        until(lambda: server.pids() == [], "the call's processes are gone")
        assert server.control()["sandboxes"][0]["callsInFlight"] == 0


def test_counters_count(server: RunningSandbox, chat: str) -> None:
    """Requests, calls and starts of processes are counted."""
    before = server.counters()
    server.tool(chat, "sandbox_exec", command="true")
    after = server.counters()
    route = "POST /v1/sandbox/{chatId}/tool/{toolName}"
    assert after["requests"][route] == before["requests"].get(route, 0) + 1
    assert after["calls"]["sandbox_exec"] == before["calls"].get("sandbox_exec", 0) + 1
    assert len(after["spawn_ms"]) == len(before["spawn_ms"]) + 1
    assert after["bytes_out"] > before["bytes_out"]


def test_calls_of_one_chat_overlap(server: RunningSandbox, chat: str) -> None:
    """In the normal runner two scripts run at the same time and can meet."""
    code = (
        "import pathlib, time\npathlib.Path('{0}').touch()\nend = time.time() + 20\n"
        "while not pathlib.Path('{1}').exists() and time.time() < end: time.sleep(0.01)\n"
        "print(pathlib.Path('{1}').exists())"
    )
    printed: list[str] = []
    threads = [
        threading.Thread(
            target=lambda pair=pair: printed.append(
                server.tool(chat, "sandbox_python", code=code.format(*pair))["stdout"]
            )
        )
        for pair in (("one", "two"), ("two", "one"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert printed == ["True\n", "True\n"]
