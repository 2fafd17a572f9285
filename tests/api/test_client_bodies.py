"""What comes of each kind of body in a good answer, and what goes into a request."""

from __future__ import annotations

import base64
import gzip
import json
import math
import zlib
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from api_calls import CALLS, CHAT, OPERATIONS, client_for, ivy
from scripted_server import KEY, ScriptedServer, answer, json_answer, raw_answer

from ivy_kernel.api.operations import Base64, encode_json
from ivy_kernel.errors import AnswerError, NoAnswerError, UsageError

HTML = b"<!DOCTYPE html><html><body>Log in to the hotel's network</body></html>"

NOT_JSON = {
    "empty": (b"", "empty"),
    "blank": (b" \r\n", "empty"),
    "html": (HTML, "an HTML page"),
    "html without doctype": (b"\n <html></html>", "an HTML page"),
    "cut off": (b'{"status": "act', "broken or cut-off JSON of 15 bytes"),
    "two values": (b"{}{}", "broken or cut-off JSON"),
    "text": (b"OK", "2 bytes of something else"),
    "binary": (bytes(range(128, 256)), "128 bytes of something else"),
    "nesting": (b"[" * 200_000 + b"]" * 200_000, "broken or cut-off JSON"),
}


@pytest.mark.parametrize("operation", CALLS)
@pytest.mark.parametrize("kind", NOT_JSON)
async def test_a_good_status_without_json_is_an_answer_error(operation: str, kind: str) -> None:
    """Says what it is instead and what to check; only terminate may be answered with nothing."""
    body, words = NOT_JSON[kind]
    async with (
        ScriptedServer(answer(200, body)) as server,
        client_for(operation, server.url) as client,
    ):
        if operation == "terminate" and words == "empty":
            assert (await CALLS[operation](client)).body == {}
            return
        with pytest.raises(AnswerError) as caught:
            await CALLS[operation](client)
    sentence = str(caught.value)
    assert OPERATIONS[operation].name in sentence
    assert words in sentence
    setting = "recoup_api_url" if operation == "recoup" else "api_url"
    assert f"check the setting {setting} " in sentence
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "body", [b"[]", b"null", b"true", b"5", b"-1.5e3", b'"text"', b'[{"a": 1}]'], ids=bytes.decode
)
async def test_json_that_is_no_object_reaches_the_caller_as_it_is(body: bytes) -> None:
    """A tool's result may be any JSON; who needs an object says so himself."""
    async with ScriptedServer(answer(200, body)) as server, ivy(server.url) as client:
        assert await CALLS["tool"](client) == json.loads(body)
        assert (await client.status(CHAT)).body == json.loads(body)


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"a": "\\ud83d"}', {"a": "\ud83d"}),
        (b'{"a": Infinity}', {"a": float("inf")}),
        (b"\xef\xbb\xbf{}", {}),
        (b' \n{"a": "\xf0\x9f\x90\x8d"}\n ', {"a": "🐍"}),
        (b'{"a": "x\xff\xfey"}', {"a": "x��y"}),
        (b'{"a": 1, "a": 2}', {"a": 2}),
        (b'{"a": 123456789012345678901234567890}', {"a": 123456789012345678901234567890}),
        ("{}".encode("utf-16"), {}),
    ],
)
async def test_json_that_is_a_little_wrong_is_read_all_the_same(body: bytes, value: Any) -> None:
    """A cell's result is not lost for a stray byte, a lone surrogate or a mark at the start."""
    async with ScriptedServer(answer(200, body)) as server, ivy(server.url) as client:
        assert await CALLS["tool"](client) == value


async def test_not_a_number_is_read() -> None:
    """Python's own spelling of NaN, which is no JSON, counts as a number."""
    async with ScriptedServer(answer(200, b'{"a": NaN}')) as server, ivy(server.url) as client:
        result = await CALLS["tool"](client)
    assert result["a"] != result["a"]


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

BROKEN = {
    "shorter than Content-Length": b'HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{"a": 1}',
    "chunk cut off": CHUNKED + b'ff\r\n{"a": 1}',
    "chunks without an end": CHUNKED + b"2\r\n{}\r\n",
    "chunk length is no number": CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n",
    "head cut off": b"HTTP/1.1 200 OK\r\nContent-Le",
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
    "nothing": b"",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "head without end": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000,
}


@pytest.mark.parametrize("operation", CALLS)
@pytest.mark.parametrize("kind", BROKEN)
async def test_an_answer_that_breaks_off_is_no_answer(operation: str, kind: str) -> None:
    """The outcome is unknown: never a success, and nothing is sent a second time."""
    async with (
        ScriptedServer(raw_answer(BROKEN[kind])) as server,
        client_for(operation, server.url) as client,
    ):
        with pytest.raises(NoAnswerError) as caught:
            await CALLS[operation](client)
    assert "broke before the answer was complete" in str(caught.value)
    assert f"127.0.0.1:{server.port}" in str(caught.value)
    assert len(server.requests) == 1


async def test_an_answer_above_the_limit_is_refused() -> None:
    """The sentence names the limit and the setting; the client works on afterwards."""
    large = answer(200, json.dumps("x" * 1000).encode())
    script = [large, json_answer({"stdout": "fine"})]
    async with (
        ScriptedServer(*script) as server,
        ivy(server.url, response_limit_bytes=1000) as client,
    ):
        with pytest.raises(AnswerError) as caught:
            await CALLS["tool"](client)
        assert await CALLS["tool"](client) == {"stdout": "fine"}
    assert "run sandbox_python in the sandbox of chat 'chat-17'" in str(caught.value)
    assert "larger than 1000 bytes" in str(caught.value)
    assert "response_limit_bytes" in str(caught.value)


async def test_an_answer_at_the_limit_is_taken() -> None:
    """The limit itself is allowed."""
    body = json.dumps("x" * 998).encode()
    async with (
        ScriptedServer(answer(200, body)) as server,
        ivy(server.url, response_limit_bytes=len(body)) as client,
    ):
        assert await CALLS["tool"](client) == "x" * 998


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_compressed_answer_is_read(encoding: str) -> None:
    """Both encodings that the client offers."""
    pack = gzip.compress if encoding == "gzip" else zlib.compress
    body = pack(json.dumps({"text": "é" * 100}).encode())
    script = answer(200, body, {"Content-Encoding": encoding})
    async with ScriptedServer(script) as server, ivy(server.url) as client:
        assert await CALLS["tool"](client) == {"text": "é" * 100}
    assert server.requests[0].header("Accept-Encoding") == ["gzip, deflate"]


async def test_a_compressed_answer_counts_by_what_it_becomes() -> None:
    """A small body that unpacks to 50 MB stops at the limit."""
    bomb = answer(200, gzip.compress(b" " * 50_000_000), {"Content-Encoding": "gzip"})
    async with (
        ScriptedServer(bomb) as server,
        ivy(server.url, response_limit_bytes=1_000_000) as client,
    ):
        with pytest.raises(AnswerError, match="larger than 1000000 bytes"):
            await CALLS["tool"](client)


async def test_broken_compression_is_an_answer_error() -> None:
    """An answer came, but it makes no sense."""
    script = answer(200, b"this is no gzip", {"Content-Encoding": "gzip"})
    async with ScriptedServer(script) as server, ivy(server.url) as client:
        with pytest.raises(AnswerError, match="compression is broken"):
            await CALLS["tool"](client)


@pytest.mark.parametrize("length_bytes", [0, 5_000_000])
async def test_a_large_code_and_a_large_answer_arrive_whole(length_bytes: int) -> None:
    """Nothing is cut on the way, in either direction."""
    text = "ü" * (length_bytes // 2)
    async with ScriptedServer(json_answer({"stdout": text})) as server, ivy(server.url) as client:
        result = await client.run_tool(CHAT, "sandbox_python", {"code": text}, timeout_seconds=5)
    assert result == {"stdout": text}
    assert server.requests[0].json["code"] == text


@pytest.mark.parametrize("code", ["print('\ud83d')", "'\x00\x1b\u2028'", "# 🐍 é", '"\\"\n'])
async def test_every_code_reaches_the_tool_as_it_was_written(code: str) -> None:
    """Lone surrogates and control characters included."""
    async with ScriptedServer(json_answer({})) as server, ivy(server.url) as client:
        await client.run_tool(CHAT, "sandbox_python", {"code": code}, timeout_seconds=5)
    assert server.requests[0].json["code"] == code


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}, b"bytes"])
async def test_what_cannot_be_written_as_json_is_not_sent(value: object) -> None:
    """Refused at once, without waiting to try again."""
    async with (
        ScriptedServer(json_answer({})) as server,
        ivy(server.url, retry_seconds=60) as client,
    ):
        with pytest.raises(UsageError, match="cannot be written as JSON"):
            await client.run_tool(CHAT, "sandbox_read", {"x": value}, timeout_seconds=5)
    assert server.connections == 0


@pytest.mark.parametrize(
    ("chat_id", "path"),
    [
        ("chat-17", "chat-17"),
        ("a/b", "a%2Fb"),
        ("../../admin", "..%2F..%2Fadmin"),
        ("a?b=c#d", "a%3Fb%3Dc%23d"),
        ("a%2Fb", "a%252Fb"),
        ("a b+c&d;e", "a%20b%2Bc%26d%3Be"),
        ("é🐍", "%C3%A9%F0%9F%90%8D"),
        ("{toolName}{chatId}", "%7BtoolName%7D%7BchatId%7D"),
        ("a\r\nX: y", "a%0D%0AX%3A%20y"),
        ("...", "..."),
    ],
)
async def test_odd_characters_in_an_id_stay_in_its_part_of_the_path(
    chat_id: str, path: str
) -> None:
    """An id never leads to another route, query or header."""
    async with (
        ScriptedServer(json_answer({"files": []})) as server,
        ivy(server.url + "/api") as client,
    ):
        await client.status(chat_id)
        await client.run_tool(chat_id, "sandbox_read", {}, timeout_seconds=5)
        await client.terminate(chat_id)
        await client.manifest(chat_id)
    base = f"/api/v1/sandbox/{path}"
    assert [request.target for request in server.requests] == [
        f"{base}/status",
        f"{base}/tool/sandbox_read",
        f"{base}/terminate",
        f"{base}/manifest",
    ]


@pytest.mark.parametrize("chat_id", ["", ".", "..", "\ud83d"])
async def test_an_id_that_would_name_another_place_is_not_sent(chat_id: str) -> None:
    """Such ids cannot be quoted; the user reads which one it is."""
    async with ScriptedServer(json_answer({})) as server, ivy(server.url) as client:
        with pytest.raises(UsageError, match="cannot be a chatId"):
            await client.status(chat_id)
        with pytest.raises(UsageError, match="cannot be a toolName"):
            await client.run_tool(CHAT, chat_id, {}, timeout_seconds=5)
    assert server.connections == 0


async def test_an_odd_session_id_stays_in_its_query_value() -> None:
    """Recoup's one parameter is quoted too."""
    async with (
        ScriptedServer(json_answer({})) as server,
        client_for("recoup", server.url) as client,
    ):
        await client.status("a&b=c#d é/?")
    assert server.requests[0].method == "GET"
    address = urlsplit(server.requests[0].target)
    assert address.path == "/api/sandbox/status"
    assert parse_qs(address.query) == {"sessionId": ["a&b=c#d é/?"]}


async def test_create_sends_the_three_ids() -> None:
    """The documented fields, by their documented names, and both good statuses."""
    script = [json_answer({"status": "provisioning"}), json_answer({"deduped": True}, 202)]
    async with ScriptedServer(*script) as server, ivy(server.url) as client:
        first = await client.create(session_id="s", chat_id="c", campaign_id="p")
        second = await client.create(session_id="s", chat_id="c", campaign_id="p")
    assert server.requests[0].method == "POST"
    assert server.requests[0].target == "/v1/sandbox/create"
    assert server.requests[0].json == {"sessionId": "s", "chatId": "c", "campaignId": "p"}
    assert server.requests[0].header("Content-Type") == ["application/json"]
    assert (first.status_code, second.status_code) == (200, 202)
    assert (first.body, second.body) == ({"status": "provisioning"}, {"deduped": True})


async def test_terminate_sends_what_is_documented() -> None:
    """It reads no fields and gets none."""
    async with ScriptedServer(json_answer({})) as server, ivy(server.url) as client:
        await client.terminate(CHAT)
    assert server.requests[0].json == {}


@pytest.mark.parametrize(
    ("body", "files"),
    [
        ([{"a": 1}, {"b": 2}], [{"a": 1}, {"b": 2}]),
        ({"files": [{"a": 1}, "no object"]}, [{"a": 1}]),
        ({"count": 1, "items": [{"name": "x", "extra": None}]}, [{"name": "x", "extra": None}]),
        ([], []),
        ({"files": []}, []),
    ],
)
async def test_a_manifest_is_found_under_any_name(body: Any, files: list[Any]) -> None:
    """The body is undocumented: order and unknown fields are kept."""
    async with ScriptedServer(json_answer(body)) as server, ivy(server.url) as client:
        assert await client.manifest(CHAT) == files
    assert server.requests[0].method == "GET"


@pytest.mark.parametrize("body", [{}, {"files": None}, 5, "text", None])
async def test_a_manifest_without_a_list_is_an_answer_error(body: Any) -> None:
    """It says so instead of showing no files."""
    async with ScriptedServer(json_answer(body)) as server, ivy(server.url) as client:
        with pytest.raises(AnswerError, match="holds no list of files"):
            await client.manifest(CHAT)


async def test_an_answer_tells_when_it_was_made() -> None:
    """Our clock around it, and the server's clock from the Date header."""
    script = json_answer({}, headers={"Date": "Sun, 06 Nov 1994 08:49:37 GMT"})
    async with ScriptedServer(script) as server, ivy(server.url) as client:
        got = await client.status(CHAT)
    assert got.server_date is not None
    assert got.server_date.isoformat() == "1994-11-06T08:49:37+00:00"
    assert 0 < got.received_monotonic - got.sent_monotonic < 5
    assert KEY not in repr(got)


def test_bytes_of_a_body_travel_in_base64() -> None:
    """And long texts as they are, beside members that only Python's own JSON can write."""
    data, text = bytes(range(256)), '"\\ \n\x7f' * 20_000
    body = {
        "content": Base64(data),
        "text": text,
        "odd": "\ud800\u00e9",
        "deep": [{"a": None}],
        "n": 1 << 70,
    }
    read = json.loads(encode_json(body))
    assert base64.b64decode(read.pop("content"), validate=True) == data
    assert read == {name: value for name, value in body.items() if name != "content"}
    with pytest.raises(ValueError, match="JSON"):
        encode_json({"content": Base64(data), "nan": math.nan})
