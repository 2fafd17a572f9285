"""What our sentences about errors are made of: the page puts what to do before what happened."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ivy_kernel.api import operations
from ivy_kernel.api.operations import Operation, error_from_response
from ivy_kernel.settings.settings import missing_sentence
from ivy_kernel.status.model import describe_error

REPOSITORY = Path(__file__).parents[2]
QUOTED = " (the platform says: "
SUBJECT = {
    "chat_id": "chat-7",
    "campaign_id": "campaign-7",
    "session_id": "session-7",
    "tool": "sandbox_python",
    "timeout_seconds": 300,
    "key_setting": "api_key",
    "key_variable": "IVY_API_KEY",
}


def imperative() -> re.Pattern[str]:
    """The pattern by which the page finds what to do."""
    source = (REPOSITORY / "labextension/src/format.ts").read_text("utf-8")
    (pattern,) = re.findall(r"const IMPERATIVE =\s*/(.+)/i;", source)
    assert QUOTED in source
    return re.compile(pattern, re.IGNORECASE)


MEANINGS = [
    (operation, status)
    for operation in vars(operations).values()
    if isinstance(operation, Operation)
    for status in (*operation.meanings, 302, 418)
]


@pytest.mark.parametrize(
    ("operation", "status"), MEANINGS, ids=lambda value: getattr(value, "name", value)
)
def test_what_to_do_is_found_before_the_platforms_words(operation: Operation, status: int) -> None:
    """Each error of the platform has a clause that begins with an imperative, and quotes last."""
    body = b'{"error": "no; try harder. Set nothing"}'
    sentence = str(error_from_response(operation, status, {}, body, SUBJECT))
    ours, _, quoted = sentence.partition(QUOTED)
    assert "try harder" in quoted
    found = imperative().search(ours)
    assert found, ours
    assert found.start() > 0, "it tells nothing of what happened"


@pytest.mark.parametrize("name", ["api_key", "chat_id", "recoup_session_id"])
def test_what_to_do_about_a_missing_setting_is_found(name: str) -> None:
    """The sentence about a missing setting too."""
    sentence = missing_sentence(name)
    found = imperative().search(sentence)
    assert found
    assert sentence[found.end() :].startswith("Run `jupyter ivy login`")


def test_a_long_reason_keeps_its_end() -> None:
    """The reason for a stale status is not cut off before it says what to do."""
    body = b'{"error": "' + b"very long words " * 100 + b'"}'
    subject = {**SUBJECT, "chat_id": "c" * 200}
    error = error_from_response(operations.STATUS, 401, {}, body, subject)
    assert describe_error(error) == str(error)
