"""The key is in one header of each request, and nowhere else."""

from __future__ import annotations

import json
import logging
import traceback
from typing import Any

import pytest
from api_calls import CALLS, CHAT, SESSION, client_for, ivy, recoup
from scripted_server import (
    KEY,
    Action,
    ScriptedServer,
    answer,
    free_port,
    hang,
    json_answer,
    raw_answer,
    reset,
)

from ivy_kernel.api.auth import Credential
from ivy_kernel.api.clients import RecoupClient, recoup_credential
from ivy_kernel.api.connection import Connection
from ivy_kernel.errors import IvyError, SettingError

ECHO = json.dumps({"message": f"what is {KEY}?", "code": KEY, "key": KEY})

FAULTS: dict[str, Action] = {
    "echoed in 401": answer(401, ECHO.encode()),
    "echoed in 502": answer(502, ECHO.encode()),
    "echoed in a long text": json_answer({"message": "x" * 290 + KEY}, 403),
    "echoed in a redirect": answer(302, headers={"Location": f"https://elsewhere/?key={KEY}"}),
    "echoed in broken JSON": answer(200, ECHO.encode()[:-1]),
    "echoed above the limit": answer(200, ECHO.encode() * 100_000),
    "echoed in a broken head": raw_answer(f"HTTP/1.1 200 OK\r\n{KEY}\x00\r\n\r\n".encode()),
    "echoed in no HTTP": raw_answer(f"{KEY}\r\n\r\n".encode()),
    "reset": reset,
    "stall": hang,
}


def everything(error: BaseException) -> str:
    """All that any tool prints of an exception: the chain, with all local variables."""
    parts = [str(error), repr(error), repr(vars(error)), repr(error.args)]
    parts += traceback.format_exception(error)
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:  # what "from None" hides from print is there for tools all the same
        each = todo.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        todo += [each.__cause__, each.__context__]
        whole = traceback.TracebackException.from_exception(each, capture_locals=True)
        # This file's own variables are no secret from itself.
        frames = [frame for frame in whole.stack if frame.filename != __file__]
        whole.stack = traceback.StackSummary.from_list(frames)
        parts += list(whole.format())
    return "\n".join(parts)


@pytest.mark.parametrize("operation", ["tool", "status", "recoup"])
@pytest.mark.parametrize("fault", FAULTS)
async def test_no_error_shows_the_key(
    operation: str, fault: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not its text, its chain, its local variables, or any log record at DEBUG."""
    monkeypatch.setattr("ivy_kernel.api.clients.ANSWER_MARGIN_SECONDS", -4.7)
    caplog.set_level(logging.DEBUG)
    async with ScriptedServer(FAULTS[fault]) as server:
        more: dict[str, Any] = {"response_limit_bytes": 1000}
        if operation != "recoup":
            more["request_seconds"] = 0.3
        async with client_for(operation, server.url, **more) as client:
            if operation == "recoup":
                client._request_seconds = 0.3
            with pytest.raises(IvyError) as caught:
                await CALLS[operation](client)
    assert f"Bearer {KEY}" in str(server.requests) or f"'{KEY}'" in str(server.requests)
    shown = everything(caught.value)
    assert "connection.py" in shown
    assert "operation = Operation" in shown
    assert KEY not in shown
    assert KEY[:20] not in shown
    logged = "\n".join(
        f"{record.getMessage()} {record.args} {vars(record)}"
        for record in caplog.records
        # What the server itself says is in httpcore's log of the answer's head.
        if "receive_response_headers" not in record.getMessage()
    )
    assert "send_request_headers" in logged
    assert KEY not in logged


async def test_a_success_logs_no_key(caplog: pytest.LogCaptureFixture) -> None:
    """Httpx and httpcore at DEBUG, and our own loggers, for every operation."""
    caplog.set_level(logging.DEBUG)
    async with ScriptedServer(json_answer({"files": []})) as server:
        for operation, call in CALLS.items():
            async with client_for(operation, server.url) as client:
                await call(client)
    assert len(server.requests) == len(CALLS)
    assert len(caplog.records) > 20
    assert KEY not in "\n".join(str(vars(record)) for record in caplog.records)


async def test_a_refused_connection_shows_no_key() -> None:
    """The error of a request that was never sent."""
    async with ivy(f"http://127.0.0.1:{free_port()}") as client:
        with pytest.raises(IvyError) as caught:
            await CALLS["tool"](client)
    assert KEY not in everything(caught.value)


def test_no_repr_shows_the_key() -> None:
    """Connection, credential, client and pool."""
    for credential in (Credential(lambda: KEY), recoup_credential(lambda: KEY)):
        connection = Connection("https://h", credential)
        pool = connection.warm_up()
        for thing in (credential, connection, pool, pool.auth, pool.headers, vars(connection)):
            assert KEY not in repr(thing)
            assert KEY not in str(thing)
    assert repr(connection) == "Connection('https://h')"


@pytest.mark.parametrize(
    "key", ["ivy_line\nbreak", "ivy_car\rriage", "ivy_zero\x00x", "ivy_schlüssel", "ivy_sp ace"]
)
async def test_a_key_that_no_header_can_carry_is_refused_without_being_shown(key: str) -> None:
    """Neither httpx nor h11 gets it, whose messages would quote it."""
    async with ScriptedServer(json_answer({})) as server, ivy(server.url, key=key) as client:
        with pytest.raises(SettingError, match="setting api_key cannot be used") as caught:
            await CALLS["tool"](client)
    shown = everything(caught.value)
    assert key not in shown
    assert repr(key)[1:-1] not in shown
    assert server.requests == []


async def test_settings_that_cannot_be_read_stop_the_request() -> None:
    """A config file that is broken just now: its error comes through, its text does not."""

    def key() -> str:
        try:
            raise ValueError(f"bad line: {KEY}")
        except ValueError:
            raise SettingError("The config file is broken.", setting="api_key") from None

    async with ScriptedServer(json_answer({})) as server, ivy(server.url, key=key) as client:
        with pytest.raises(SettingError, match="config file is broken") as caught:
            await CALLS["tool"](client)
    assert KEY not in everything(caught.value)
    assert server.requests == []


async def test_ivys_key_travels_as_bearer_alone() -> None:
    """The form that every route takes, create included; no other form beside it."""
    async with ScriptedServer(json_answer({"files": []})) as server, ivy(server.url) as client:
        for operation, call in CALLS.items():
            if operation != "recoup":
                await call(client)
    assert len(server.requests) == 5
    for request in server.requests:
        assert request.header("Authorization") == [f"Bearer {KEY}"]
        assert str(request).count(KEY) == 1
        for name in ("X-Ivy-Api-Key", "x-api-key", "Cookie"):
            assert request.header(name) == []


async def test_recoups_key_travels_in_its_own_header_alone() -> None:
    """Two credentials at once would be refused."""
    async with ScriptedServer(json_answer({})) as server, recoup(server.url) as client:
        await client.status(SESSION)
    request = server.requests[0]
    assert request.header("x-api-key") == [KEY]
    assert request.header("Authorization") == []
    assert str(request).count(KEY) == 1


async def test_recoups_session_token_travels_as_bearer_alone() -> None:
    """A JWT, of a user without a key, goes as documented for it, and not as a key."""
    token = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJ1c2VyIn0.c2lnbmF0dXJl-_x"
    async with ScriptedServer(json_answer({})) as server:
        connection = Connection(server.url, recoup_credential(lambda: token))
        await RecoupClient(connection).status(SESSION)
        await connection.aclose()
    request = server.requests[0]
    assert request.header("Authorization") == [f"Bearer {token}"]
    assert request.header("x-api-key") == []
    assert str(request).count(token) == 1


async def test_recoups_401_names_recoups_setting() -> None:
    """The user is not sent to the wrong key."""
    async with ScriptedServer(json_answer({}, 401)) as server, recoup(server.url) as client:
        with pytest.raises(IvyError, match=r"recoup_api_key \(RECOUP_API_KEY"):
            await client.status(SESSION)


async def test_without_a_key_no_credential_is_sent() -> None:
    """Nor an empty one; a name and password in a netrc file are not used either."""
    async with ScriptedServer(json_answer({})) as server, ivy(server.url, key="") as client:
        await client.status(CHAT)
    names = [name.lower() for name, _ in server.requests[0].headers]
    assert "authorization" not in names


async def test_cookies_of_a_server_lend_no_second_credential() -> None:
    """A session that the platform may set does not outlive the key that it was set for."""
    script = json_answer({}, headers={"Set-Cookie": "__session=abc; Path=/"})
    async with ScriptedServer(script) as server, ivy(server.url) as client:
        await client.status(CHAT)
        await client.status(CHAT)
    assert server.requests[1].header("Cookie") == []
