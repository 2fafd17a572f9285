"""Single behaviours of the decoder that a fixture would not make plain."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from decode_strategies import PNG, TRACEBACK

from ivy_kernel.routes.decode.result import UNKNOWN_HINT, decode_result


def data_of(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The MIME bundles of all outputs."""
    return [output["data"] for output in outputs if "data" in output]


def test_a_result_without_a_count_gets_the_given_one() -> None:
    """A result to which the answer gives no execution count gets that of the caller."""
    decoded = decode_result({"stdout": "", "result": "5"}, execution_count=8)

    assert decoded.outputs[0]["execution_count"] == 8


def test_a_result_keeps_the_count_of_the_answer() -> None:
    """The execution count of the answer wins over that of the caller."""
    decoded = decode_result({"stdout": "", "result": "5", "executionCount": 3}, execution_count=8)

    assert decoded.outputs[0]["execution_count"] == 3


@pytest.mark.parametrize("count", [-1, True, "7", 2.5, None, [1]])
def test_an_invalid_count_is_no_count(count: Any) -> None:
    """An execution count that nbformat does not allow is none."""
    answer = {"stdout": "", "result": "5", "execution_count": count}

    assert decode_result(answer, execution_count=8).outputs[0]["execution_count"] == 8


def test_streams_come_before_results_and_the_error_last() -> None:
    """Stdout comes first, then stderr, results, pictures, other fields, and the error."""
    decoded = decode_result(
        {
            "error": "late",
            "images": [PNG],
            "result": "5",
            "note": "unknown",
            "stderr": "warned\n",
            "stdout": "printed\n",
        }
    )

    kinds = [output.get("name") or output["output_type"] for output in decoded.outputs]
    assert kinds == ["stdout", "stderr", "execute_result", "display_data", "display_data", "error"]
    assert "unknown" in decoded.outputs[4]["data"]["text/plain"]


def test_a_traceback_is_shown_once() -> None:
    """A traceback that is on stderr and in the error is shown as the error alone."""
    decoded = decode_result(
        {"stderr": TRACEBACK, "exitCode": 1, "error": {"traceback": TRACEBACK.splitlines()}}
    )

    assert [output["output_type"] for output in decoded.outputs] == ["error"]
    assert decoded.error is not None
    assert decoded.error["ename"] == "ZeroDivisionError"


def test_a_traceback_without_an_exit_code_is_a_failure() -> None:
    """Stderr that ends in a traceback means failure when nothing says how it went."""
    assert decode_result({"stdout": "", "stderr": TRACEBACK}).error is not None


def test_a_traceback_that_was_handled_is_no_failure() -> None:
    """A traceback on stderr stays text when the process ended well."""
    assert decode_result({"stdout": "", "stderr": TRACEBACK, "exitCode": 0}).error is None


def test_an_exit_code_outweighs_success() -> None:
    """``success`` of the call does not hide that the process failed."""
    decoded = decode_result({"success": True, "result": {"stdout": "", "exitCode": 3}})

    assert decoded.error is not None
    assert decoded.error["ename"] == "ExitCodeError"
    assert "exit code 3" in decoded.error["evalue"]


def test_an_error_always_has_something_to_show() -> None:
    """An error that we make has a traceback, for front ends show nothing else."""
    decoded = decode_result({"success": False})

    assert decoded.error is not None
    assert decoded.error["traceback"]


def test_a_timeout_keeps_the_traceback_of_the_interrupt() -> None:
    """A timeout is named as such, and where the code was is shown too."""
    decoded = decode_result({"stdout": "", "stderr": TRACEBACK, "timed_out": True})

    assert decoded.error is not None
    assert decoded.error["ename"] == "TimeoutError"
    assert "ZeroDivisionError: division by zero" in decoded.error["traceback"]


def test_nothing_is_fetched_by_looking_at_a_picture_url() -> None:
    """A picture given by its URL becomes a link to click, with everything in it escaped."""
    url = 'https://example.org/"><img src=x onerror=alert(1)>.png'

    (data,) = data_of(decode_result({"images": [{"url": url, "name": "<b>"}]}).outputs)

    assert "<img" not in data["text/html"]
    assert "<b>" not in data["text/html"]
    assert url in data["text/plain"]


@pytest.mark.parametrize("url", ["javascript:alert(1)", "file:///etc/passwd", "//x/y", "http://["])
def test_only_web_addresses_become_links(url: str) -> None:
    """What is no http(s) address is shown as text."""
    (data,) = data_of(decode_result({"images": [{"url": url}]}).outputs)

    assert set(data) == {"text/plain"}
    assert url in data["text/plain"]


@pytest.mark.parametrize(
    "text",
    [f"data:image/png;base64,{PNG}", f" {PNG[:30]}\r\n{PNG[30:]}\n", f"data:;base64,{PNG}"],
)
def test_base64_is_cleaned(text: str) -> None:
    """Base64 of a picture loses its data-URI prefix and its white space."""
    (data,) = data_of(decode_result({"images": [{"data": text, "format": "png"}]}).outputs)

    assert data["image/png"] == PNG


def test_a_picture_type_with_other_text_keeps_the_text() -> None:
    """What stands where base64 should be is kept as it is."""
    outputs = [{"output_type": "display_data", "metadata": {}, "data": {"image/png": "not found"}}]

    assert data_of(decode_result({"outputs": outputs}).outputs) == [{"image/png": "not found"}]


@pytest.mark.parametrize(
    "printed",
    [
        '{"genes": ["TP53"], "output": null, "cells": []}',
        '{"status": "error", "data": "no such gene"}',
        '{"success": false, "error": "no such gene"}',
        '{"stdout": "", "stderr": "", "exitCode": 1}\n',
        '[{"output_type": "error", "ename": "E", "evalue": "v", "traceback": []}]\n',
    ],
)
def test_printed_json_is_not_taken_for_an_answer(printed: str) -> None:
    """JSON that the user prints is shown as printed."""
    decoded = decode_result({"success": True, "output": printed})

    assert decoded.outputs == [{"output_type": "stream", "name": "stdout", "text": printed}]
    assert decoded.error is None


@pytest.mark.parametrize(
    "value",
    [
        {"outcome": "rejected", "p": 0.02},
        {"status": "3 failed reads", "reads": 12},
        {"error_type": "type I", "alpha": 0.05},
        {"status_code": 404, "url": "https://example.org"},
        {"image": "python:3.12", "layers": 7},
        {"run": {"loss": 0.1}},
        {"properties": {"length": 393}},
        [{"type": "start", "position": 5}, {"type": "end", "position": 9}],
        [{"type": "error", "message": "frame shift"}, {"type": "result", "value": "stop"}],
        {"messages": [{"role": "user", "content": "hello"}]},
    ],
    ids=str,
)
def test_a_value_of_the_users_own_is_not_taken_for_an_answer(value: Any) -> None:
    """A value is shown as it is, whatever words it uses, and fails nothing."""
    decoded = decode_result({"stdout": "", "exitCode": 0, "result": value})

    assert decoded.error is None
    assert [output["output_type"] for output in decoded.outputs] == ["execute_result"]
    assert decoded.outputs[0]["data"]["application/json"] == value


@pytest.mark.parametrize("text", [f"{PNG}\n", f"data:image/png;base64,{PNG}\n", "data:,0", PNG])
def test_printed_base64_is_not_taken_for_a_picture(text: str) -> None:
    """Base64 and data URIs that the user prints are shown as printed."""
    decoded = decode_result({"success": True, "output": text})

    assert decoded.outputs == [{"output_type": "stream", "name": "stdout", "text": text}]


def test_a_named_text_keeps_its_text() -> None:
    """A text given as a data URI under a name is shown with the name."""
    decoded = decode_result({"files": {"note.txt": "data:text/plain;base64,Z3LDvMOfZQ=="}})

    assert data_of(decoded.outputs) == [{"text/plain": "note.txt\ngrüße"}]


def test_an_update_changes_the_display_that_it_names() -> None:
    """An update of a display replaces it, as in a running notebook."""
    first = {"data": {"text/plain": "1 %"}, "metadata": {}, "transient": {"display_id": "bar"}}
    last = {"data": {"text/plain": "99 %"}, "metadata": {}, "transient": {"display_id": "bar"}}

    decoded = decode_result(
        {
            "outputs": [
                {"output_type": "display_data", **first},
                {"output_type": "stream", "name": "stdout", "text": "working\n"},
                {"output_type": "update_display_data", **last},
            ]
        }
    )

    assert data_of(decoded.outputs) == [{"text/plain": "99 %"}]
    assert len(decoded.outputs) == 2


def test_book_keeping_is_not_shown_unless_it_is_long() -> None:
    """Short book-keeping is left out, a long text under such a name is not."""
    assert decode_result({"stdout": "x", "requestId": "r-1", "tookMs": 3}).outputs[1:] == []

    (data,) = data_of(decode_result({"stdout": "x", "requestId": "two\nlines"}).outputs)
    assert "two" in data["text/plain"]


def test_words_that_differ_from_the_streams_in_their_spaces_are_shown() -> None:
    """Only words that repeat a stream line by line are left out."""
    decoded = decode_result({"stdout": "12\n", "output": "1 2", "exitCode": 0})

    assert [output["text"] for output in decoded.outputs] == ["12\n", "1 2"]


def test_an_unknown_shape_is_shown_in_full_with_a_hint() -> None:
    """An answer of no known shape is shown as JSON, with a sentence that says why."""
    decoded = decode_result({"id": "kept", "rows": [{"gene": "TP53"}], "elapsed": 3})

    assert decoded.outputs[0]["text"] == f"{UNKNOWN_HINT}\n"
    (data,) = data_of(decoded.outputs)
    assert json.loads(data["text/plain"]) == {
        "id": "kept",
        "rows": [{"gene": "TP53"}],
        "elapsed": 3,
    }


@pytest.mark.parametrize("value", [None, {}, [], "", {"outputs": []}, {"result": {"data": None}}])
def test_an_empty_answer_shows_nothing(value: Any) -> None:
    """An answer that says nothing gives no output and no error."""
    decoded = decode_result(value)

    assert decoded.outputs == []
    assert decoded.error is None


def test_numbers_that_json_does_not_have_are_shown() -> None:
    """NaN, infinity and integers of thousands of digits are shown, in words of their own."""
    decoded = decode_result({"rows": [float("nan"), float("-inf"), 1 << 20_000]})

    (data,) = data_of(decoded.outputs)
    assert json.loads(data["text/plain"])["rows"] == ["NaN", "-Infinity", hex(1 << 20_000)]


def test_surrogates_become_text_that_utf8_can_carry() -> None:
    """Surrogate pairs are joined, lone surrogates are written out."""
    (output,) = decode_result({"stdout": "\ud83e\uddec \udc80"}).outputs

    assert output["text"] == "\U0001f9ec \\udc80"


def test_large_answers_are_decoded_quickly() -> None:
    """Ten megabytes of text and as much of a picture take no noticeable time."""
    large = "ACGT" * 2_500_000
    answer = {
        "stdout": large,
        "stderr": "Error\n" * 200_000,
        "exitCode": 1,
        "images": [PNG + large],
    }

    begin = time.perf_counter()
    decoded = decode_result(answer)

    assert time.perf_counter() - begin < 5
    assert decoded.outputs[0]["text"] == large
