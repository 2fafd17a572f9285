"""What is sent again, what never, and how long is waited before."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from api_calls import CALLS, CHAT, DOCUMENTED, ivy
from scripted_server import (
    Action,
    ScriptedServer,
    answer,
    answer_then_close_silently,
    free_port,
    hang,
    json_answer,
    raw_answer,
    reset,
)

from ivy_kernel.api.clients import BACKOFF, pause_seconds
from ivy_kernel.errors import (
    ApiError,
    CreationFailedError,
    CredentialsError,
    IvyError,
    NoAnswerError,
    NotReadyError,
    NotSentError,
    RateLimitedError,
    UnexpectedStatusError,
)

GOOD = json_answer({"good": True, "files": []})
CHANGING = ("create", "tool", "terminate")

FAULTS: dict[str, Action] = {
    **{str(status): json_answer({}, status) for status in (302, 400, 401, 403, 404, 418)},
    **{str(status): json_answer({}, status) for status in (500, 502, 504, 599)},
    "reset": reset,
    "cut off": raw_answer(b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"a'),
    "HTML": answer(200, b"<html>"),
    "empty": answer(201, b""),
    "hang": hang,
}


@pytest.fixture
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses between attempts start at 20 ms, for tests that only count the attempts."""
    monkeypatch.setattr("ivy_kernel.api.clients.BACKOFF", replace(BACKOFF, first_seconds=0.02))


@pytest.mark.parametrize("operation", CHANGING)
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_call_that_may_have_run_is_sent_exactly_once(
    operation: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever goes wrong after the request was read, nothing runs twice."""
    # The calls' budget is 5 s: this makes the limit 0.2 s.
    monkeypatch.setattr("ivy_kernel.api.clients.ANSWER_MARGIN_SECONDS", -4.8)
    async with (
        ScriptedServer(FAULTS[fault], GOOD) as server,
        ivy(server.url, retry_seconds=60, request_seconds=0.2) as client,
    ):
        if operation == "terminate" and fault == "empty":
            await CALLS[operation](client)
        else:
            with pytest.raises(IvyError):
                await CALLS[operation](client)
    assert len(server.requests) == 1


@pytest.mark.parametrize("operation", ["tool", "terminate"])
async def test_a_503_is_not_repeated_where_the_user_should_see_the_start(operation: str) -> None:
    """The caller waits for the sandbox; the client tells at once."""
    expected = DOCUMENTED[operation].get(503, UnexpectedStatusError)
    async with (
        ScriptedServer(json_answer({}, 503), GOOD) as server,
        ivy(server.url, retry_seconds=60) as client,
    ):
        with pytest.raises(expected):
            await CALLS[operation](client)
    assert len(server.requests) == 1


@pytest.mark.usefixtures("_short_pauses")
@pytest.mark.parametrize("operation", CHANGING)
async def test_a_call_that_was_refused_unread_is_sent_again(operation: str) -> None:
    """429 means that nothing ran, so the call may be repeated, and is then done once."""
    async with (
        ScriptedServer(json_answer({}, 429), GOOD) as server,
        ivy(server.url, retry_seconds=60) as client,
    ):
        await CALLS[operation](client)
    assert len(server.requests) == 2


async def test_a_caller_with_a_rhythm_of_its_own_gets_every_error_at_once() -> None:
    """``retry=False`` sends once, even where repeating would be safe."""
    async with (
        ScriptedServer(json_answer({}, 429)) as server,
        ivy(server.url, retry_seconds=60) as client,
    ):
        with pytest.raises(RateLimitedError):
            await client.run_tool(CHAT, "x", {}, timeout_seconds=5, retry=False)
        with pytest.raises(RateLimitedError):
            await client.status(CHAT, retry=False)
    assert len(server.requests) == 2


async def test_a_connection_that_was_refused_is_tried_again_until_someone_listens() -> None:
    """The server comes up a moment later: the tool runs, once."""
    server = ScriptedServer(GOOD, port=free_port())
    async with ivy(server.url, retry_seconds=20) as client:
        call = asyncio.ensure_future(CALLS["tool"](client))
        done, _ = await asyncio.wait({call}, timeout=0.1)
        assert not done
        async with server:
            assert (await call)["good"] is True
    assert len(server.requests) == 1


@pytest.mark.usefixtures("_short_pauses")
@pytest.mark.parametrize("operation", ["status", "manifest"])
@pytest.mark.parametrize("fault", ["500", "502", "504", "reset", "cut off", "HTML"])
async def test_reading_is_repeated_after_a_passing_fault(operation: str, fault: str) -> None:
    """Two faults in a row are not seen by the user."""
    script = [FAULTS[fault], FAULTS[fault], GOOD]
    async with ScriptedServer(*script) as server, ivy(server.url, retry_seconds=20) as client:
        await CALLS[operation](client)
    assert len(server.requests) == 3


@pytest.mark.parametrize("status", [302, 400, 401, 403, 404, 418])
async def test_reading_is_not_repeated_after_a_refusal(status: int) -> None:
    """Asking again would not change the answer."""
    async with (
        ScriptedServer(json_answer({}, status), GOOD) as server,
        ivy(server.url, retry_seconds=20) as client,
    ):
        with pytest.raises(ApiError):
            await client.status(CHAT)
    assert len(server.requests) == 1


async def test_create_is_repeated_on_503_which_is_documented_as_passing() -> None:
    """The second attempt makes the sandbox."""
    async with (
        ScriptedServer(json_answer({}, 503), GOOD) as server,
        ivy(server.url, retry_seconds=20) as client,
    ):
        assert (await CALLS["create"](client)).status_code == 200
    assert [request.target for request in server.requests] == ["/v1/sandbox/create"] * 2


@pytest.mark.parametrize(
    ("fault", "expected"),
    [("500", CreationFailedError), ("502", UnexpectedStatusError), ("reset", NoAnswerError)],
)
async def test_create_is_not_repeated_on_anything_else(
    fault: str, expected: type[IvyError]
) -> None:
    """A sandbox costs money; a second one is not risked."""
    async with (
        ScriptedServer(FAULTS[fault], GOOD) as server,
        ivy(server.url, retry_seconds=20) as client,
    ):
        with pytest.raises(expected):
            await CALLS["create"](client)
    assert len(server.requests) == 1


async def test_a_storm_of_429_is_met_with_few_requests() -> None:
    """Even with ``Retry-After: 0``: the pauses grow, and the deadline ends it."""
    script = json_answer({}, 429, {"Retry-After": "0"})
    async with ScriptedServer(script) as server, ivy(server.url, retry_seconds=1.5) as client:
        start = time.monotonic()
        with pytest.raises(RateLimitedError):
            await client.status(CHAT)
    assert time.monotonic() - start < 3
    assert 2 <= len(server.requests) <= 6


async def test_retry_after_is_waited_for() -> None:
    """Not a moment earlier than asked."""
    async with (
        ScriptedServer(json_answer({}, 429, {"Retry-After": "0.7"}), GOOD) as server,
        ivy(server.url, retry_seconds=20) as client,
    ):
        start = time.monotonic()
        await client.status(CHAT)
    assert 0.7 <= time.monotonic() - start < 3
    assert len(server.requests) == 2


async def test_a_retry_after_beyond_the_deadline_is_told_at_once() -> None:
    """Nobody waits for an hour without a word."""
    async with (
        ScriptedServer(json_answer({}, 429, {"Retry-After": "3600"})) as server,
        ivy(server.url, retry_seconds=20) as client,
    ):
        start = time.monotonic()
        with pytest.raises(RateLimitedError, match="wait 3600 s"):
            await client.status(CHAT)
    assert time.monotonic() - start < 2
    assert len(server.requests) == 1


def test_pauses_grow_to_a_cap_with_jitter_and_never_below_what_was_asked() -> None:
    """The numbers behind every repetition."""
    fault = NotSentError("x")
    assert pause_seconds(1, fault, 0.0) == 0.125
    assert pause_seconds(1, fault, 1.0) == 0.25
    assert pause_seconds(3, fault, 1.0) == 1.0
    assert pause_seconds(50, fault, 1.0) == BACKOFF.longest_seconds
    for asked in (0.0, 0.1, 2.0, 60.0):
        limited = RateLimitedError("x", status_code=429, retry_after_seconds=asked)
        for attempt in range(1, 9):
            for unit in (0.0, 0.5, 0.99):
                pause = pause_seconds(attempt, limited, unit)
                assert pause >= max(asked, pause_seconds(attempt, fault, unit))
                assert pause <= max(asked * 1.0 + 0.5, BACKOFF.longest_seconds)


async def test_a_changed_key_is_used_for_the_next_call() -> None:
    """No restart, no new client."""
    keys = iter(["ivy_old-key-0001", "ivy_new-key-0002"])
    now = [next(keys)]
    script = [json_answer({}, 401), GOOD]
    async with ScriptedServer(*script) as server, ivy(server.url, key=lambda: now[0]) as client:
        with pytest.raises(CredentialsError):
            await CALLS["tool"](client)
        now[0] = next(keys)
        await CALLS["tool"](client)
    assert [request.header("Authorization") for request in server.requests] == [
        ["Bearer ivy_old-key-0001"],
        ["Bearer ivy_new-key-0002"],
    ]


async def test_a_stale_connection_costs_a_retried_call_nothing() -> None:
    """503, then the server closes: create's repetition goes over a new connection."""
    script = [json_answer({}, 503), answer_then_close_silently, GOOD]
    async with ScriptedServer(*script) as server, ivy(server.url, retry_seconds=20) as client:
        await CALLS["create"](client)
        await client.status(CHAT)
    assert len(server.requests) == 3


async def test_not_ready_tells_how_long_to_wait() -> None:
    """A 503's Retry-After reaches who waits for the sandbox."""
    script = json_answer({}, 503, {"Retry-After": "3"})
    async with ScriptedServer(script) as server, ivy(server.url) as client:
        with pytest.raises(NotReadyError) as caught:
            await CALLS["tool"](client)
    assert caught.value.retry_after_seconds == 3
