"""What the local sandbox says in any of its shapes, the decoder understands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from decode_strategies import PNG, TRACEBACK

from ivy_kernel.local_sandbox.results import Run
from ivy_kernel.local_sandbox.simulation.platforms import CASES, NESTINGS, SHAPES
from ivy_kernel.local_sandbox.tools import shaped
from ivy_kernel.routes.decode.result import UNKNOWN_HINT, DecodedResult, decode_result

WITHOUT_PICTURES = ("process", "text", "error", "mcp", "azure", "piston", "gemini")

every_family = pytest.mark.parametrize("family", SHAPES)


def decoded_in_all_spellings(run: Run, family: str) -> Iterator[DecodedResult]:
    """What is decoded from a run told in a family, in both cases and all nestings."""
    for case in CASES:
        for nesting in NESTINGS:
            yield decode_result(shaped(run, family, case, nesting))


def text_of(outputs: list[dict[str, Any]]) -> str:
    """All text of the streams and results."""
    return "".join(
        output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in outputs
    )


@every_family
def test_a_success_is_a_success(family: str) -> None:
    """Text, value and picture of a run that succeeded are shown, with neither error nor hint."""
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": "Grüße\n1\n"},
        {
            "output_type": "display_data",
            "data": {"image/png": PNG, "text/plain": "<Figure>"},
            "metadata": {},
        },
        {
            "output_type": "execute_result",
            "data": {"text/plain": "42"},
            "metadata": {},
            "execution_count": 3,
        },
    ]

    for decoded in decoded_in_all_spellings(Run(outputs, execution_count=3), family):
        assert decoded.error is None
        shown = text_of(decoded.outputs)
        assert UNKNOWN_HINT not in shown
        assert "Grüße\n1\n" in shown
        assert "42" in shown
        assert '"' not in shown, "shown as JSON"
        bundles = [output.get("data", {}) for output in decoded.outputs]
        pictures = [bundle["image/png"] for bundle in bundles if "image/png" in bundle]
        assert pictures == ([] if family.startswith(WITHOUT_PICTURES) else [PNG])


@every_family
def test_a_failed_cell_fails_with_its_name(family: str) -> None:
    """A cell that raised gives one error with its name and value, and what it printed before."""
    lines = ["\x1b[31mTraceback (most recent call last):\x1b[39m", *TRACEBACK.split("\n")[1:-1]]
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": "before\n"},
        {
            "output_type": "error",
            "ename": "ZeroDivisionError",
            "evalue": "division by zero",
            "traceback": lines,
        },
    ]

    for decoded in decoded_in_all_spellings(Run(outputs, 1, 3), family):
        assert [output["output_type"] for output in decoded.outputs] == ["stream", "error"]
        assert decoded.outputs[0]["text"].strip() == "before"
        assert decoded.error is not None
        assert decoded.error["ename"] == "ZeroDivisionError"
        assert decoded.error["evalue"] == "division by zero"


@every_family
def test_a_failed_script_fails_with_its_name(family: str) -> None:
    """A script whose traceback is text on stderr gives the same error."""
    outputs = [{"output_type": "stream", "name": "stderr", "text": f"careful\n{TRACEBACK}"}]

    for decoded in decoded_in_all_spellings(Run(outputs, 1), family):
        assert decoded.error is not None
        assert decoded.error["ename"] == "ZeroDivisionError"
        assert decoded.error["evalue"] == "division by zero"


@every_family
def test_a_run_that_shows_nothing_shows_nothing(family: str) -> None:
    """A run that succeeded in silence gives no output at all."""
    for decoded in decoded_in_all_spellings(Run([], execution_count=1), family):
        assert decoded.outputs == []
