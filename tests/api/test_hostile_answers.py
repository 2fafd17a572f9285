"""Answers that quote the key and command the terminal: two hundred, each wherever it is shown."""

from __future__ import annotations

import base64
import json
import logging
import re
import tracemalloc
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from api_calls import CHAT, ivy, recoup
from scripted_server import KEY, Action, ScriptedServer, answer, json_answer, raw_answer

from ivy_kernel.api.auth import SHORTEST_MASKED_KEY
from ivy_kernel.api.operations import STATUS_LIMIT_BYTES
from ivy_kernel.cli.sandbox import status_line
from ivy_kernel.errors import AnswerError, IvyError, SandboxFailedError, UnexpectedStatusError
from ivy_kernel.models import Message
from ivy_kernel.session.describe import status_lines
from ivy_kernel.session.lifecycle import Lifecycle
from ivy_kernel.session.start_progress import StartProgress
from ivy_kernel.status.clock import monotonic_seconds
from ivy_kernel.status.model import StatusReading

TITLE, CLEAR, RED = "\x1b]0;owned\x07", "\x1b[2J\x1b[H", "\x1b[31m"

FORMS: dict[str, str] = {
    "plain": KEY,
    "in a sentence": f"the key {KEY} is wrong",
    "as a header": f"Authorization: Bearer {KEY}",
    "twice": f"{KEY}{KEY}",
    "over two lines": f"{KEY[:11]}\n{KEY[11:]}",
    "with a colour in it": f"{KEY[:7]}{RED}{KEY[7:]}",
    "with zero width in it": "\u200b".join(KEY),
    "with a bidi control in it": f"{KEY[:9]}\u202e{KEY[9:]}",
    "with NUL in it": f"{KEY[:6]}\x00{KEY[6:]}",
    "after a title": f"{TITLE}{KEY}",
    "after a cleared screen": f"{CLEAR}{KEY}\x9b2J",
    "first half": KEY[: len(KEY) // 2] + " …",
    "second half": "… " + KEY[len(KEY) // 2 :],
    "in a URL": f"https://x/?key={quote(KEY, safe='')}",
    "all in percents": "".join(f"%{ord(character):02X}" for character in KEY),
    "in JSON, escaped": json.dumps({"key": "".join(f"\\u{ord(c):04x}" for c in KEY)}),
    "in HTML, escaped": "".join(f"&#{ord(character)};" for character in KEY),
    "in base64": base64.b64encode(f"Bearer {KEY}".encode()).decode(),
    "in URL-safe base64": base64.urlsafe_b64encode(f"??>{KEY}>?".encode()).decode(),
    "near the limit": "x" * 290 + KEY,
}

PLACES: dict[str, Callable[[str], Action]] = {
    "status word": lambda text: json_answer({"status": text}),
    "phase": lambda text: json_answer({"status": "provisioning", "phase": text}),
    "error message": lambda text: json_answer({"status": "failed", "errorMessage": text}),
    "sandbox id": lambda text: json_answer({"status": "active", "sandboxId": text}),
    "error body": lambda text: json_answer({"message": text, "code": text}, 403),
    "nested error body": lambda text: json_answer({"error": {"message": text, "code": text}}, 418),
    "error as plain text": lambda text: answer(500, text.encode()),
    "redirect": lambda text: answer(302, headers={"Location": repr(text)}),
    "head": lambda text: raw_answer(b"HTTP/1.1 200 " + text.encode() + b"\r\n\r\n{}"),
    "header": lambda text: json_answer({"status": "none"}, headers={"X-Said": repr(text)}),
}


def test_the_corpus_is_large_enough() -> None:
    """Two hundred answers."""
    assert len(FORMS) * len(PLACES) == 200


def is_shown_safely(text: str) -> bool:
    """Whether neither a large part of the key nor anything that a terminal obeys is in a text."""
    decoded = [text]
    for found in re.findall(r"[A-Za-z0-9+/_-]{16,}", text):
        for start in range(4):
            raw = found[start:].replace("-", "+").replace("_", "/")
            decoded.append(base64.b64decode(raw[: len(raw) // 4 * 4]).decode("latin-1"))
    parts = [KEY[start : start + 14] for start in range(len(KEY) - 13)]
    has_key = any(part in each for each in decoded for part in parts)
    return not has_key and all(c.isprintable() or c in "\n\t" for c in text)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("form", FORMS)
async def test_no_answer_shows_the_key_or_commands_a_terminal(
    form: str, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In a cell, a command, the panel, and every log."""
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []
    lifecycle = Lifecycle(None, chat_id=CHAT, campaign_id="", session_id="")  # type: ignore[arg-type]
    async with ScriptedServer(PLACES[place](FORMS[form])) as server, ivy(server.url) as client:
        lifecycle._client = client
        now = monotonic_seconds()
        try:
            status = await lifecycle.status()
        except IvyError as error:
            shown.append(str(error))
            reading = StatusReading(error=error)
        else:
            reading = StatusReading(status=status)
            shown += status_lines(lifecycle, status, now)
            StartProgress("Chat", lambda message: shown.append(text_of(message))).show(status)
            if status.state == "failed":
                with pytest.raises(SandboxFailedError) as failed:
                    await lifecycle.wait_until_ready()
                shown.append(str(failed.value))
        shown.append(status_line("Chat", reading, now))
        shown.append(json.dumps(reading.to_json(now), ensure_ascii=False))
    shown += [record.getMessage() for record in caplog.records]
    assert [text for text in shown if not is_shown_safely(text)] == []


def text_of(message: Message) -> str:
    """All text of a display."""
    return "\n".join(str(value) for value in message.content.get("data", {}).values())


@pytest.mark.parametrize("form", [form for form in FORMS if "half" not in form])
async def test_a_tools_result_does_not_show_the_key(form: str) -> None:
    """Wherever it stands there; the user's own colours and controls stay."""
    text = f"{RED}red{FORMS[form]}"
    result = {"outputs": [{"text": text, FORMS[form]: 1}], "error": text, "deep": [[[text]]]}
    async with ScriptedServer(json_answer(result)) as server, ivy(server.url) as client:
        got = await client.run_tool(CHAT, "sandbox_python", {"code": "1"}, timeout_seconds=5)
    assert got["error"].startswith(f"{RED}red")
    assert is_shown_safely(json.dumps(got).replace("\\u", "u"))


async def test_a_large_result_does_not_show_the_key() -> None:
    """As it is, or encoded as a whole."""
    text = f"{'x' * 3_000_000}{KEY}{base64.b64encode(KEY.encode()).decode()}"
    async with ScriptedServer(json_answer({"text": text})) as server, ivy(server.url) as client:
        got = await client.run_tool(CHAT, "sandbox_python", {"code": "1"}, timeout_seconds=5)
    assert got["text"].startswith("x" * 3_000_000 + "(the key)(the key)")


async def test_a_short_key_garbles_nothing() -> None:
    """It is no real one, and would be found in other words."""
    short = "k" * (SHORTEST_MASKED_KEY - 1)
    said = json_answer({"status": "failed", "errorMessage": short})
    async with ScriptedServer(said) as server, ivy(server.url, key=short) as client:
        assert (await client.status(CHAT)).body["errorMessage"] == short


@pytest.mark.parametrize("client_of", [ivy, recoup])
async def test_a_status_that_is_too_large_is_not_read_to_its_end(client_of: Any) -> None:
    """Neither takes its memory nor is it decoded; the sentence says what may be wrong."""
    body = b'{"status": [' + b'"x",' * 15_000_000 + b"1]}"
    async with ScriptedServer(answer(200, body)) as server, client_of(server.url) as client:
        tracemalloc.start()
        try:
            with pytest.raises(AnswerError, match=f"larger than {STATUS_LIMIT_BYTES} bytes; check"):
                await client.status(CHAT)
            # Most of it is the test's own server's, in two copies of what it sends.
            assert tracemalloc.get_traced_memory()[1] < 200_000_000
        finally:
            tracemalloc.stop()


async def test_an_errors_body_is_not_read_to_its_end() -> None:
    """Its status says what is wrong."""
    body = b'{"message": "' + b"x" * 60_000_000 + b'"}'
    async with ScriptedServer(answer(500, body)) as server, ivy(server.url) as client:
        with pytest.raises(UnexpectedStatusError, match="HTTP 500"):
            await client.run_tool(CHAT, "sandbox_python", {"code": "1"}, timeout_seconds=5)
