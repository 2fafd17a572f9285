"""Connections that are refused, reset, stalled, dripping, closed in between; and time limits."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest
from api_calls import CALLS, CHAT, client_for, ivy
from fault_proxy import ForgetfulRelay
from scripted_server import (
    Request,
    ScriptedServer,
    answer_then_close_silently,
    drip,
    free_port,
    hang,
    json_answer,
    reset,
)
from waiting import eventually

from ivy_kernel.api import clients, connection
from ivy_kernel.api.auth import Credential
from ivy_kernel.api.clients import IvyClient
from ivy_kernel.api.connection import Connection
from ivy_kernel.api.operations import STATUS
from ivy_kernel.errors import NoAnswerError, NotReadyError, NotSentError, SettingError


@pytest.mark.parametrize("operation", CALLS)
async def test_a_refused_connection_was_not_sent(operation: str) -> None:
    """Nobody listens: nothing ran, and the sentence says where and what to check."""
    port = free_port()
    async with client_for(operation, f"http://127.0.0.1:{port}") as client:
        with pytest.raises(NotSentError) as caught:
            await CALLS[operation](client)
    assert f"127.0.0.1:{port} cannot be reached" in str(caught.value)
    setting = "recoup_api_url" if operation == "recoup" else "api_url"
    assert f"the setting {setting}." in str(caught.value)


async def test_a_host_name_that_does_not_exist_was_not_sent() -> None:
    """A typing error in the URL."""
    async with ivy("https://no-such-host.invalid", retry_seconds=0) as client:
        with pytest.raises(NotSentError, match=r"no-such-host\.invalid cannot be reached"):
            await client.status(CHAT)


@pytest.mark.parametrize("operation", CALLS)
async def test_a_reset_after_the_request_was_read_is_no_answer(operation: str) -> None:
    """It may have run, so it is sent once and called unknown."""
    async with ScriptedServer(reset) as server, client_for(operation, server.url) as client:
        with pytest.raises(NoAnswerError):
            await CALLS[operation](client)
    assert len(server.requests) == 1


async def test_a_reset_before_the_request_was_read_is_not_repeated_for_a_tool() -> None:
    """From here it cannot be told whether the request was read, so it is called unknown."""
    async with (
        ScriptedServer(json_answer({}), resets_first=1) as server,
        ivy(server.url, retry_seconds=60) as client,
    ):
        with pytest.raises(NoAnswerError):
            await CALLS["tool"](client)
    assert server.requests == []
    assert server.connections == 1


async def test_a_reset_before_the_request_was_read_is_repeated_for_a_status() -> None:
    """Reading a status twice harms nobody."""
    async with (
        ScriptedServer(json_answer({"status": "none"}), resets_first=1) as server,
        ivy(server.url, retry_seconds=60) as client,
    ):
        assert (await client.status(CHAT)).body == {"status": "none"}
    assert len(server.requests) == 1


@pytest.mark.parametrize("operation", ["tool", "create", "terminate"])
async def test_a_connection_that_was_closed_while_idle_is_replaced(operation: str) -> None:
    """The next call goes over a new connection, and is sent exactly once."""
    script = [answer_then_close_silently, json_answer({"second": True})]
    async with ScriptedServer(*script) as server, ivy(server.url) as client:
        await CALLS[operation](client)
        await eventually(
            lambda: server.closed_connections == 1, "the server's end of the connection", 5
        )
        await CALLS[operation](client)
    assert len(server.requests) == 2
    assert server.connections == 2


async def test_a_connection_that_breaks_when_it_is_used_again_doubles_nothing() -> None:
    """A kept connection breaks after it took the second POST: unknown, and not sent again."""
    script = [json_answer({}), reset, json_answer({})]
    async with ScriptedServer(*script) as server, ivy(server.url, retry_seconds=60) as client:
        await CALLS["tool"](client)
        with pytest.raises(NoAnswerError):
            await CALLS["tool"](client)
    assert len(server.requests) == 2
    assert server.connections == 1


async def test_calls_in_a_row_share_one_connection() -> None:
    """Keep-alive works, also after an error status."""
    script = [json_answer({}), json_answer({}, 503), json_answer({}), json_answer({})]
    async with ScriptedServer(*script) as server, ivy(server.url) as client:
        await CALLS["tool"](client)
        with pytest.raises(NotReadyError):
            await CALLS["tool"](client)
        await CALLS["tool"](client)
        await client.status(CHAT)
    assert len(server.requests) == 4
    assert server.connections == 1


async def test_calls_at_once_do_not_wait_for_each_other() -> None:
    """An interrupt gets a connection of its own while a cell runs."""
    async with (
        ScriptedServer(hang, json_answer({"quick": True})) as server,
        ivy(server.url) as client,
    ):
        slow = asyncio.ensure_future(CALLS["tool"](client))
        await eventually(lambda: server.requests, "the first request", 5)
        assert await asyncio.wait_for(CALLS["tool"](client), 2) == {"quick": True}
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
    assert server.connections == 2


async def test_a_server_that_never_answers_is_given_up() -> None:
    """The request's own limit holds, and the outcome is called unknown."""
    async with ScriptedServer(hang) as server, ivy(server.url, request_seconds=0.3) as client:
        start = time.monotonic()
        with pytest.raises(NoAnswerError, match="ReadTimeout"):
            await client.terminate(CHAT)
    assert 0.25 < time.monotonic() - start < 2
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: "],
    ids=["body", "head"],
)
async def test_a_dripping_answer_does_not_get_around_the_limit(head: bytes) -> None:
    """A byte now and then keeps no call alive: there is one limit for the whole exchange."""
    script = drip(head, b"x", 0.05)
    async with (
        ScriptedServer(script) as server,
        ivy(server.url, request_seconds=1.5, connect_timeout_seconds=0.5) as client,
    ):
        start = time.monotonic()
        with pytest.raises(NoAnswerError, match=r"no whole answer within 2 s"):
            await client.terminate(CHAT)
    assert 1.9 < time.monotonic() - start < 6


async def test_a_tool_is_waited_for_longer_than_its_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The platform's own 504 has time to arrive before we give up."""
    monkeypatch.setattr("ivy_kernel.api.clients.ANSWER_MARGIN_SECONDS", 0.4)
    async with ScriptedServer(hang) as server, ivy(server.url, request_seconds=0.01) as client:
        start = time.monotonic()
        with pytest.raises(NoAnswerError):
            await client.run_tool(CHAT, "sandbox_notebook", {}, timeout_seconds=0.2)
    assert 0.55 < time.monotonic() - start < 3


async def test_connecting_has_a_limit_of_its_own() -> None:
    """A server that never says hello in TLS is given up soon, and was not sent anything."""
    async with ScriptedServer(hang) as server:
        url = server.url.replace("http:", "https:")
        async with ivy(url, request_seconds=30, connect_timeout_seconds=0.3) as client:
            start = time.monotonic()
            with pytest.raises(NotSentError, match="ConnectTimeout"):
                await CALLS["tool"](client)
    assert time.monotonic() - start < 3


async def test_a_cancelled_call_frees_its_connection() -> None:
    """The server sees the connection close, and the client goes on."""
    async with ScriptedServer(hang, json_answer({})) as server, ivy(server.url) as client:
        task = asyncio.ensure_future(CALLS["tool"](client))
        await eventually(lambda: server.requests, "the request", 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await CALLS["tool"](client) == {}


async def test_closing_while_a_call_is_under_way_ends_it_with_one_of_our_errors() -> None:
    """The call's outcome is unknown; nothing of httpx comes through."""
    async with ScriptedServer(hang) as server, ivy(server.url) as client:
        task = asyncio.ensure_future(CALLS["tool"](client))
        await eventually(lambda: server.requests, "the request", 5)
        await client.aclose()
        with pytest.raises(NoAnswerError):
            await asyncio.wait_for(task, 5)


async def test_a_closed_client_opens_again_when_it_is_used() -> None:
    """Closing lets go of connections, and nothing else."""
    async with ScriptedServer(json_answer({"a": 1})) as server, ivy(server.url) as client:
        await client.aclose()
        await client.aclose()
        assert await CALLS["tool"](client) == {"a": 1}


@pytest.mark.parametrize(
    "url",
    ["http://example.org", "ftp://x", "", "local", "https://u:p@h", "https://h?x", "https://a..b"],
)
def test_a_connection_to_an_unfit_url_is_refused(url: str) -> None:
    """No key can be sent in the clear, whatever made the URL."""
    with pytest.raises(SettingError, match="cannot be used"):
        Connection(url, Credential(lambda: "key"))


async def test_an_operation_without_names_has_readable_sentences() -> None:
    """A caller that names nothing gets a sentence all the same."""
    port = free_port()
    connection = Connection(f"http://127.0.0.1:{port}", Credential(lambda: ""))
    with pytest.raises(NotSentError, match="read the sandbox status of chat"):
        await connection.send(STATUS, total_seconds=1, path={"chatId": "x"})
    await IvyClient(connection).aclose()


# Connections that are forgotten on the way -------------------------------------------------------
@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pause counts as one in which a connection may have been forgotten."""
    monkeypatch.setattr(connection, "SILENCE_SECONDS", 0.0)
    monkeypatch.setattr(connection, "REPEAT_READ_SECONDS", 0.5)
    monkeypatch.setattr(connection, "DOUBT_SECONDS", 0.3)


@pytest.mark.usefixtures("silence")
@pytest.mark.parametrize("operation", ["status", "manifest", "recoup"])
async def test_a_read_over_a_forgotten_connection_is_made_again(operation: str) -> None:
    """Over a new connection, and long before its time limit; the server sees it once."""
    async with (
        ScriptedServer(json_answer({"status": "none", "files": []})) as server,
        ForgetfulRelay(server.port).running() as relay,
        client_for(operation, f"http://127.0.0.1:{relay.port}") as client,
    ):
        await CALLS[operation](client)
        for _ in range(3):
            relay.forget()
            await asyncio.wait_for(CALLS[operation](client), 10)
    assert relay.connections == 4
    assert len(server.requests) == 4


@pytest.mark.usefixtures("silence")
async def test_a_slow_answer_is_waited_for_beside_the_repetition() -> None:
    """The read is slow and nothing was forgotten: whichever answer comes first counts."""

    async def slow(request: Request, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(1.0)
        return await json_answer({"status": "slow"})(request, writer)

    ready = json_answer({"status": "ready"})
    async with ScriptedServer(ready, slow, hang) as server, ivy(server.url) as client:
        await client.status(CHAT)
        assert (await client.status(CHAT)).body == {"status": "slow"}
    assert server.connections == 2
    assert len(server.requests) == 3


@pytest.mark.usefixtures("silence")
async def test_a_tool_over_a_forgotten_connection_is_never_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may have run. Meanwhile, and afterwards, other calls take new connections."""
    monkeypatch.setattr(clients, "ANSWER_MARGIN_SECONDS", 1.0)
    async with (
        ScriptedServer(json_answer({"status": "none"})) as server,
        ForgetfulRelay(server.port).running() as relay,
        ivy(
            f"http://127.0.0.1:{relay.port}", retry_seconds=60, connect_timeout_seconds=1
        ) as client,
    ):
        await client.status(CHAT)
        relay.forget()
        tool = asyncio.ensure_future(
            client.run_tool(CHAT, "sandbox_python", {"code": "1"}, timeout_seconds=1)
        )
        await asyncio.sleep(0.6)  # by then the connection is doubted
        await asyncio.wait_for(
            client.run_tool(CHAT, "sandbox_exec", {"command": "1"}, timeout_seconds=1), 5
        )
        with pytest.raises(NoAnswerError):
            await tool
    assert [request.target.rpartition("/")[2] for request in server.requests] == [
        "status",
        "sandbox_exec",
    ]


async def test_after_a_pause_a_call_takes_a_new_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that was idle for long may be forgotten, and a tool's call cannot be made again."""
    monkeypatch.setattr(connection, "KEEPALIVE_SECONDS", 0.2)
    async with ScriptedServer(json_answer({})) as server, ivy(server.url) as client:
        await CALLS["tool"](client)
        await CALLS["tool"](client)
        assert server.connections == 1
        await asyncio.sleep(0.5)
        await CALLS["tool"](client)
    assert server.connections == 2
    assert connection.KEEPALIVE_SECONDS < 60  # of balancers and routers, the quickest to forget


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
async def test_a_connection_is_probed_while_a_call_lasts() -> None:
    """By TCP, so that neither routers nor balancers forget it."""
    async with ScriptedServer(hang) as server, ivy(server.url) as client:
        call = asyncio.ensure_future(CALLS["tool"](client))
        await eventually(lambda: len(server.requests) == 1, "the request", 10)
        keep_alive_timer = "02"
        await eventually(
            lambda: timer_of_connection_to(server.port) == keep_alive_timer, "the timer", 10
        )
        call.cancel()


def timer_of_connection_to(port: int) -> str:
    """The timer that runs for the client's end of a connection (proc(5), /proc/net/tcp)."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[2] == f"0100007F:{port:04X}" and fields[3] == "01":
            return fields[5].partition(":")[0]
    return ""
