"""The result families: answers as they come, and what is shown for each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest

from ivy_kernel.routes.decode.result import decode_result

FAMILIES = ("nbformat", "typed", "content", "process", "artifacts", "text", "error")
FIXTURES = Path(__file__).parent / "fixtures"
PATHS = sorted(FIXTURES.glob("*/*.json"))


def fixture_id(path: Path) -> str:
    """The family and the name of a fixture."""
    return f"{path.parent.name}-{path.stem}"


def names_are_shown(path: Path) -> bool:
    """Whether a fixture shows names of fields, so that other names give other outputs."""
    return path.parent.name == "unknown" or path.stem == "unknown_fields"


def read(path: Path) -> Any:
    """The content of a fixture."""
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", PATHS, ids=fixture_id)
def test_an_answer_gives_the_expected_outputs(path: Path) -> None:
    """An answer gives exactly the outputs and the error of its fixture."""
    fixture = read(path)

    decoded = decode_result(fixture["wire"])

    assert decoded.outputs == fixture["outputs"]
    assert decoded.error == fixture["error"]


def test_expected_outputs_make_a_valid_notebook() -> None:
    """The outputs of all fixtures pass nbformat's validator."""
    cells = [nbformat.v4.new_code_cell(outputs=read(path)["outputs"]) for path in PATHS]

    nbformat.validate(nbformat.v4.new_notebook(cells=cells))


def test_every_family_has_fixtures() -> None:
    """Every family is shown by at least five answers."""
    counts = {family: len(list((FIXTURES / family).glob("*.json"))) for family in FAMILIES}

    assert min(counts.values()) >= 5, counts


@pytest.mark.parametrize(
    "path", [path for path in PATHS if not names_are_shown(path)], ids=fixture_id
)
def test_an_answer_in_a_wrapper_gives_the_same(path: Path) -> None:
    """An answer is understood inside ``result``, ``data`` or ``output`` as it is at the top."""
    fixture = read(path)

    for wrapper in ("result", "data", "output"):
        decoded = decode_result({"success": True, "requestId": "r-1", wrapper: fixture["wire"]})

        assert decoded.outputs == fixture["outputs"]
        assert decoded.error == fixture["error"]


@pytest.mark.parametrize(
    "path", [path for path in PATHS if not names_are_shown(path)], ids=fixture_id
)
def test_an_answer_with_its_names_in_the_other_case_gives_the_same(path: Path) -> None:
    """Field names in camelCase and in snake_case mean the same."""
    fixture = read(path)

    decoded = decode_result(in_other_case(fixture["wire"]))

    assert decoded.outputs == fixture["outputs"]


def in_other_case(value: Any) -> Any:
    """A value with the names that the families know changed to the other case."""
    names = {
        "exitCode": "exit_code",
        "timedOut": "timed_out",
        "isError": "is_error",
        "isMainResult": "is_main_result",
        "mimeType": "mime_type",
        "structuredContent": "structured_content",
        "executionCount": "execution_count",
        "outputType": "output_type",
    }
    names |= {snake: camel for camel, snake in names.items()}
    if isinstance(value, list):
        return [in_other_case(item) for item in value]
    if isinstance(value, dict):
        return {names.get(key, key): in_other_case(item) for key, item in value.items()}
    return value
