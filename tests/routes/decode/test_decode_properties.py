"""What holds for every JSON value that a tool may answer."""

from __future__ import annotations

import base64
import json
import re
import urllib.parse
from collections.abc import Iterator
from typing import Any

import nbformat
import pytest
from decode_strategies import PNG, TRACEBACK, answers, any_json
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from thoroughness import THOROUGH

from ivy_kernel.local_sandbox.config import ResultShape
from ivy_kernel.local_sandbox.results import Run
from ivy_kernel.local_sandbox.simulation.platforms import CASES, SHAPES
from ivy_kernel.local_sandbox.tools import shaped
from ivy_kernel.routes.decode.result import decode_result
from ivy_kernel.routes.decode.values import (
    ECHO_KEYS,
    NOISE_KEYS,
    clean_text,
    clean_value,
    parse_json,
    snake_case,
)

STRUCTURE_KEYS = {"output_type", "msg_type", "type", "name", "status", "outcome", "mime_type"}
"""Fields of the strategies whose strings say what a thing is, or how it is to be shown."""

thorough = settings(
    max_examples=300 if THOROUGH else 80,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
anything = st.one_of(any_json, answers)


def assert_valid(outputs: list[dict[str, Any]]) -> None:
    """Assert that the outputs make a valid notebook, which UTF-8 JSON can carry."""
    cell = {
        "cell_type": "code",
        "id": "cell",
        "metadata": {},
        "source": "",
        "execution_count": None,
        "outputs": outputs,
    }
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [cell]}
    nbformat.validate(notebook)
    json.dumps(outputs, ensure_ascii=False, allow_nan=False).encode()


def strings_of(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every string of a value with the name of the field that it stands in."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, list):
        for item in value:
            yield from strings_of(item, key)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from strings_of(item, name)


def text_of_outputs(outputs: list[dict[str, Any]]) -> str:
    """All that the outputs say: their strings, the names in their data, and the JSON of it all."""
    lines: list[str] = []
    for output in outputs:
        lines.append("\n".join(output.get("traceback", [])))
        lines += [text for _, text in strings_of(output)]
        lines.append(json.dumps(output, ensure_ascii=False))
    return "\n".join(lines)


def is_shown(text: str, shown: str) -> bool:
    """Whether a text can be found: as it is, escaped in JSON, decoded, or as its parts."""
    text = clean_text(text).strip()
    escaped = json.dumps(text, ensure_ascii=False)[1:-1]
    if text in shown or escaped in shown or json.dumps(escaped, ensure_ascii=False)[1:-1] in shown:
        return True
    packed = "".join(text.split())
    head, _, tail = packed.partition(",")
    data = tail if head.lower().startswith("data:") else packed
    is_base64 = re.fullmatch(r"[\w+/=-]+", data, re.ASCII) is not None
    if (is_base64 and data in "".join(shown.split())) or urllib.parse.unquote(tail) in shown:
        return True
    try:
        if base64.b64decode(data, validate=True).decode() in shown:
            return True
    except ValueError:
        pass
    value = parse_json(text)
    if value is not None and not missing_texts(value, shown):
        return True
    lines = text.split(
        "\n"
    )  # a traceback at the end of a text is shown apart from what precedes it
    return any(
        "\n".join(lines[:cut]).strip() in shown and "\n".join(lines[cut:]).strip() in shown
        for cut in range(1, len(lines))
    )


def missing_texts(value: Any, shown: str) -> list[tuple[str, str]]:
    """The texts of a value that should be in the outputs and are not."""
    return [
        (key, text)
        for key, text in strings_of(clean_value(value))
        if not is_exempt(snake_case(key), text) and not is_shown(text, shown)
    ]


def is_exempt(name: str, text: str) -> bool:
    """Whether a text is structure, an echo, book-keeping, or blank."""
    is_noise = name in NOISE_KEYS and len(text) <= 200 and "\n" not in text
    return not text.strip() or name in ECHO_KEYS | STRUCTURE_KEYS or is_noise


@thorough
@given(value=anything)
@example(value={"content": [{"type": "text", "text": TRACEBACK}], "isError": True})
@example(value={"images": [PNG[:20] + "\n" + PNG[20:]]})
def test_any_value_becomes_valid_outputs(value: Any) -> None:
    """Any JSON value gives valid nbformat outputs and raises nothing."""
    decoded = decode_result(value, execution_count=3)

    assert_valid(decoded.outputs)


@thorough
@given(value=anything)
def test_no_text_is_lost(value: Any) -> None:
    """Every text that is not structure, echo or book-keeping can be found in the outputs."""
    decoded = decode_result(value)

    assert missing_texts(value, text_of_outputs(decoded.outputs)) == []


@thorough
@given(value=anything)
def test_the_error_is_the_last_error_output(value: Any) -> None:
    """The error is that of the last error output, and there is none without one."""
    decoded = decode_result(value)

    errors = [output for output in decoded.outputs if output["output_type"] == "error"]
    expected = errors[-1] if errors else None
    assert (decoded.error is None) is (expected is None)
    if decoded.error is not None and expected is not None:
        assert {"output_type": "error", **decoded.error} == expected


@thorough
@given(value=anything)
def test_decoding_is_deterministic(value: Any) -> None:
    """The same value gives the same outputs, and is not changed."""
    before = repr(clean_value(value))

    assert decode_result(value) == decode_result(value)
    assert repr(clean_value(value)) == before


@thorough
@given(value=anything)
def test_decoded_outputs_decode_to_themselves(value: Any) -> None:
    """An nbformat result that holds decoded outputs gives exactly these outputs."""
    outputs = decode_result(value, execution_count=5).outputs

    assert decode_result({"outputs": outputs}).outputs == outputs
    assert decode_result({"cells": [{"outputs": outputs}]}).outputs == outputs


@pytest.mark.parametrize("opening", ["[", '{"result":'])
def test_depth_is_no_danger(opening: str) -> None:
    """A value nested a hundred thousand deep is shown, with the text at its bottom."""
    value: Any = "at the bottom"
    for _ in range(100_000):
        value = [value] if opening == "[" else {"result": value}

    decoded = decode_result(value)

    assert_valid(decoded.outputs)
    assert "at the bottom" in text_of_outputs(decoded.outputs)


def test_json_strings_nested_in_each_other_are_no_danger() -> None:
    """JSON strings within objects within JSON strings are unpacked or shown, never an error."""
    value: Any = {"stdout": "innermost\n", "exitCode": 0}
    for _ in range(12):
        for _ in range(40):
            value = {"result": value}
        value = {"result": json.dumps(value)}

    decoded = decode_result(value)

    assert_valid(decoded.outputs)
    assert "innermost" in text_of_outputs(decoded.outputs)


# Nothing twice, and no failure that passes for success -------------------------------------------
TOKENS = ("gap-open", "gap-extend", "gap-close")
"""Words that no shape has by itself: printed, a value, and an exception's message."""


def run_of(*, fails: bool) -> Run:
    """A run that prints a word, and shows another or fails with it."""
    printed, value, message = TOKENS
    outputs: list[dict[str, Any]] = [
        {"output_type": "stream", "name": "stdout", "text": f"{printed}\n"}
    ]
    if fails:
        lines = [*TRACEBACK.splitlines()[:-1], f"ValueError: {message}"]
        outputs.append(
            {
                "output_type": "error",
                "ename": "ValueError",
                "evalue": message,
                "traceback": lines,
            }
        )
    else:
        data = {"text/plain": value}
        outputs.append(
            {
                "output_type": "execute_result",
                "data": data,
                "metadata": {},
                "execution_count": 1,
            }
        )
    return Run(outputs, exit_code=int(fails), execution_count=1)


TWICE = {
    "MCP, as JSON text": lambda told, _: {
        "content": [{"type": "text", "text": json.dumps(told, indent=2)}],
        "structuredContent": told,
    },
    "MCP, as words": lambda told, words: {
        "content": [{"type": "text", "text": words}],
        "structuredContent": told,
    },
    "raw beside result": lambda told, _: {"result": told, "rawResult": told},
    "output beside data": lambda told, _: {"output": told, "data": told},
    "an unknown name": lambda told, _: {"result": told, "echo_of_it": told},
    "JSON text beside it": lambda told, _: {"result": told, "body": json.dumps(told)},
    "in a wrapper twice": lambda told, _: {"response": {"result": told, "payload": told}},
}
"""Ways in which an answer tells the same twice: of the answer, and of its text."""


def shown_words(outputs: list[dict[str, Any]]) -> str:
    """What a user reads: streams, texts of displays, and tracebacks."""
    words = [output.get("text", "") for output in outputs]
    words += [str(output.get("data", {}).get("text/plain", "")) for output in outputs]
    words += ["\n".join(output.get("traceback", [])) for output in outputs]
    return "\n".join(words)


@pytest.mark.parametrize("fails", [False, True], ids=["succeeds", "fails"])
@pytest.mark.parametrize("family", SHAPES)
@pytest.mark.parametrize("way", TWICE)
def test_nothing_is_shown_twice(way: str, family: ResultShape, fails: bool) -> None:
    """An answer that tells the same in two forms shows it once, in every family."""
    run = run_of(fails=fails)
    for case in CASES:
        told = shaped(run, family, case, "")

        decoded = decode_result(TWICE[way](told, run.output_text + run.error_text))

        assert (decoded.error is not None) == fails
        shown = shown_words(decoded.outputs)
        expected = (TOKENS[0], TOKENS[2] if fails else TOKENS[1])
        assert {word: shown.count(word) for word in expected} == dict.fromkeys(expected, 1)
        assert '"' not in shown.replace('File "cell.py"', ""), "shown as JSON"


FAILURES = [
    *({"success": False}, {"ok": False}, {"isError": True}, {"failed": True}),
    *({"status": "error"}, {"status": "Failure"}, {"state": "crashed"}, {"status": "cancelled"}),
    *({"outcome": "OUTCOME_FAILED"}, {"outcome": "OUTCOME_DEADLINE_EXCEEDED"}),
    *({"status": {"id": 11, "description": "Runtime Error (NZEC)"}}, {"verdict": "TLE"}),
    *({"exitCode": 1}, {"returncode": -9}, {"exit_status": "2"}, {"code": 1, "stdout": "x"}),
    *({"signal": "SIGKILL", "stdout": ""}, {"timedOut": True}, {"oom_killed": True}),
    *({"error": "no such gene"}, {"error": {"message": "no such gene"}}, {"errors": ["no"]}),
    *({"exception": "KeyError"}, {"ename": "KeyError"}, {"error_code": "execution_time_exceeded"}),
    *({"traceback": TRACEBACK}, {"stderr": TRACEBACK}, {"statusCode": 500, "body": "gone"}),
    *(
        {"events": [{"type": "error", "data": "no"}]},
        {"outputs": [{"type": "error", "text": "no"}]},
    ),
    {"logs": {"stdout": [], "stderr": [TRACEBACK]}},
    {"messages": [{"msg_type": "execute_reply", "content": {"status": "error", "ename": "E"}}]},
    {"events": [{"type": "stdout", "text": "x"}, {"type": "exit", "code": 3}]},
    {"content": [{"type": "text", "text": "no"}], "structuredContent": {"exitCode": 2}},
]
"""What tells of a failure, in the words of many tools."""

WRAPPERS = ["result", "data", "output", "response", "properties", "run", "structuredContent"]


@thorough
@given(
    failure=st.sampled_from(FAILURES),
    wrappers=st.lists(st.sampled_from(WRAPPERS), max_size=3),
    as_text=st.booleans(),
)
def test_a_failure_is_never_ok(failure: dict[str, Any], wrappers: list[str], as_text: bool) -> None:
    """Where an answer tells that something failed, the cell fails, however deep it is told."""
    told: Any = {"stdout": "", **failure}
    for wrapper in wrappers:
        told = {wrapper: told}
    if as_text:
        told = {"result": json.dumps(told if wrappers else {"stdout": "", **told})}

    assert decode_result(told).error is not None, told
    assert decode_result({"requestId": "r-1", **told}).error is not None, told


@thorough
@given(
    names=st.lists(
        st.sampled_from(["notebook_path", "cell_index", "cmdId", "cwd", "execution_id", "tookMs"]),
        unique=True,
    ),
    value=st.one_of(st.integers(), st.just("/work/fit.ipynb")),
)
def test_book_keeping_alone_shows_nothing(names: list[str], value: Any) -> None:
    """Beside known fields, book-keeping adds nothing to the cell."""
    answer = {"stdout": "fitting\n", "exitCode": 0}

    decoded = decode_result(answer | dict.fromkeys(names, value))

    assert decoded == decode_result(answer)
