"""Every status code of every operation, and what the user is told."""

from __future__ import annotations

import re

import pytest
from api_calls import CALLS, CHAT, DOCUMENTED, OPERATIONS, SESSION, client_for, ivy
from scripted_server import KEY, ScriptedServer, answer, json_answer

from ivy_kernel.errors import (
    ApiError,
    BadRequestError,
    CreationFailedError,
    CredentialsError,
    ForbiddenError,
    NotFoundError,
    NotReadyError,
    RateLimitedError,
    SandboxBrokenError,
    ToolTimeoutError,
    UnexpectedStatusError,
)

UNDOCUMENTED = (302, 307, 400, 404, 418, 500, 502, 503, 504, 599)

FIX: dict[type[ApiError], str] = {
    BadRequestError: r"check the settings|jupyter ivy doctor|set recoup_session_id",
    CredentialsError: r"correct the setting (recoup_)?api_key \((IVY|RECOUP)_API_KEY",
    ForbiddenError: r"check the settings (chat_id|recoup_session_id) and (recoup_)?api_key",
    NotFoundError: r"%ivy status|check the setting (chat_id|recoup_session_id)",
    RateLimitedError: r"wait 7 s and try again",
    CreationFailedError: r"%ivy status, then try again",
    SandboxBrokenError: r"%ivy terminate, then %ivy create",
    NotReadyError: r"try again shortly",
    ToolTimeoutError: r"budget of 5 s; split the work",
}

CASES = [
    (operation, status, DOCUMENTED[operation].get(status, UnexpectedStatusError))
    for operation in CALLS
    for status in sorted({*DOCUMENTED[operation], *UNDOCUMENTED})
]


@pytest.mark.parametrize(("operation", "status", "expected"), CASES)
async def test_every_status_of_every_operation_is_its_own_error(
    operation: str, status: int, expected: type[ApiError]
) -> None:
    """Error class, facts and one sentence with subject and fix; a key that is quoted is masked."""
    body = {"error": {"message": f"Nope,\n {KEY} is bad.", "code": "SOME_CODE"}}
    script = json_answer(body, status, {"Retry-After": "7"})
    async with ScriptedServer(script) as server, client_for(operation, server.url) as client:
        with pytest.raises(ApiError) as caught:
            await CALLS[operation](client)
    error = caught.value
    assert type(error) is expected
    assert error.status_code == status
    assert error.operation == OPERATIONS[operation].name
    assert error.retry_after_seconds == 7
    assert error.code == "SOME_CODE"
    assert error.detail == "Nope, (the key) is bad"
    sentence = str(error)
    assert sentence.startswith("Could not ")
    assert repr(SESSION if operation == "recoup" else CHAT) in sentence
    assert f"HTTP {status}" in sentence
    assert "(the platform says: Nope, (the key) is bad)." in sentence
    assert "\n" not in sentence
    assert KEY not in sentence
    fix = FIX.get(expected, r"api_url|try again")
    assert re.search(fix, sentence), sentence
    assert len(server.requests) == 1


@pytest.mark.parametrize("operation", CALLS)
def test_the_table_holds_every_status_that_has_a_meaning(operation: str) -> None:
    """No status gets a meaning without a row in the table above."""
    assert set(OPERATIONS[operation].meanings) == set(DOCUMENTED[operation])


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_to_another_host_is_never_followed(status: int) -> None:
    """The other host hears nothing, the user reads where it would have led."""
    async with ScriptedServer(json_answer({})) as other:
        there = f"{other.url}/v1/sandbox/{CHAT}/status"
        script = answer(status, headers={"Location": there})
        async with ScriptedServer(script) as server, ivy(server.url) as client:
            for operation in ("status", "tool"):
                with pytest.raises(UnexpectedStatusError, match="redirect") as caught:
                    await CALLS[operation](client)
                assert there in str(caught.value)
    assert other.connections == 0


@pytest.mark.parametrize("location", ["https://x/{0}", "{chat_id.__class__}", "%s {", "", "é\x85"])
async def test_what_a_server_says_is_never_taken_for_a_template(location: str) -> None:
    """Braces and percent signs from outside neither fail nor are filled in."""
    headers = {"Location": location}
    script = json_answer({"message": location}, 302, headers)
    async with ScriptedServer(script) as server, ivy(server.url) as client:
        with pytest.raises(UnexpectedStatusError) as caught:
            await client.status("{tool} %s")
    assert "'{tool} %s'" in str(caught.value)
    assert "class '" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "detail", "code"),
    [
        (b'{"error": "words"}', "words", ""),
        (b'{"message": "words", "code": "C"}', "words", "C"),
        (b'{"error": {"message": "words", "code": "C"}}', "words", "C"),
        (b'{"errorMessage": "words"}', "words", ""),
        (b'{"detail": "words"}', "words", ""),
        (b'{"error": true, "message": 5}', "", ""),
        (b'{"status": "error", "error": "words"}', "words", ""),
        (b'["words"]', "", ""),
        (b"words", "", ""),
        (b"<html>words</html>", "", ""),
        (b"", "", ""),
        (b"\xff\xfe", "", ""),
        (b"[" * 100_000, "", ""),
        (b'{"error": "' + b"x" * 1000 + b'"}', "x" * 299 + "…", ""),
        (b'{"error": "a\\u001b[31mb\\u0000\\u200bc"}', "a[31mbc", ""),
    ],
)
async def test_the_platforms_own_words_are_kept_short_and_clean(
    body: bytes, detail: str, code: str
) -> None:
    """Whatever the error body is, the status still decides, and nothing odd gets on the screen."""
    async with ScriptedServer(answer(403, body)) as server, ivy(server.url) as client:
        with pytest.raises(ForbiddenError) as caught:
            await client.status(CHAT)
    assert (caught.value.detail, caught.value.code) == (detail, code)
    assert ("the platform says" in str(caught.value)) == bool(detail)
    assert str(caught.value).isprintable()


async def test_sandbox_not_ready_keeps_its_code() -> None:
    """503 on a tool: the documented machine-readable code reaches the caller."""
    script = json_answer({"error": "SANDBOX_NOT_READY", "code": "SANDBOX_NOT_READY"}, 503)
    async with ScriptedServer(script) as server, ivy(server.url) as client:
        with pytest.raises(NotReadyError) as caught:
            await CALLS["tool"](client)
    assert caught.value.code == "SANDBOX_NOT_READY"


@pytest.mark.parametrize("operation", ["create", "tool", "terminate"])
async def test_a_fault_of_the_platform_leaves_unknown_whether_it_was_done(operation: str) -> None:
    """An undocumented 5xx on a call that changes something claims neither yes nor no."""
    async with ScriptedServer(answer(599)) as server, ivy(server.url) as client:
        with pytest.raises(UnexpectedStatusError, match="unknown whether it was done"):
            await CALLS[operation](client)


@pytest.mark.parametrize(
    ("value", "date", "expected"),
    [
        ("0", None, 0.0),
        ("12.5", None, 12.5),
        ("Sun, 06 Nov 1994 08:50:37 GMT", "Sun, 06 Nov 1994 08:49:37 GMT", 60.0),
        ("Sun, 06 Nov 1994 08:48:37 GMT", "Sun, 06 Nov 1994 08:49:37 GMT", 0.0),
        ("Sun, 06 Nov 1994 08:50:37 GMT", None, None),
        ("999999999", None, 86400.0),
        ("-5", None, None),
        ("soon", None, None),
        ("5, 6", None, None),
    ],
)
async def test_retry_after_is_read_in_both_forms(
    value: str, date: str | None, expected: float | None
) -> None:
    """Seconds, or a date against the server's clock; nonsense counts as absent, a day is all."""
    headers = {"Retry-After": value} | ({"Date": date} if date else {})
    async with ScriptedServer(json_answer({}, 429, headers)) as server, ivy(server.url) as client:
        with pytest.raises(RateLimitedError) as caught:
            await client.status(CHAT, retry=False)
    assert caught.value.retry_after_seconds == expected
    assert ("a moment" in str(caught.value)) == (expected is None)
