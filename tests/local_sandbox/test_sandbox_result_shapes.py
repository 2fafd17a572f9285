"""Every shape of results, each from a real run of a script and of a notebook cell."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from sandbox_server import Json, RunningSandbox, running_sandbox

from ivy_kernel.local_sandbox.results import Run
from ivy_kernel.local_sandbox.simulation.platforms import NESTINGS, SHAPES
from ivy_kernel.local_sandbox.tools import shaped

_PNG = base64.b64encode(b"\x89PNG\r\n\x1a\nrest").decode()
_SCRIPT = (
    "import base64, sys\nprint('out')\nprint('err', file=sys.stderr)\n"
    f"open('plot.png', 'wb').write(base64.b64decode('{_PNG}'))"
)
_CELL = (
    "import base64, sys\nfrom IPython.display import Image, HTML, display\nprint('out')\n"
    f"print('err', file=sys.stderr)\ndisplay(Image(base64.b64decode('{_PNG}')))\n"
    "HTML('<b>bold</b>')"
)
_FAIL = "print('before')\n1/0"


@pytest.fixture(scope="module")
def shapes_server() -> RunningSandbox:
    """A server whose result shape is changed by each test."""
    with running_sandbox() as server:
        server.ready("c")
        yield server


def _run(server: RunningSandbox, shape: str, tool: str, code: str) -> Json:
    server.control({"result_family": shape})
    return server.tool("c", f"sandbox_{tool}", code=code)


def _texts(value: Any) -> str:
    """All strings in a JSON value."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return "\n".join(_texts(item) for item in value.values())
    return "\n".join(_texts(item) for item in value) if isinstance(value, list) else ""


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("tool", "code"), [("python", _SCRIPT), ("notebook", _CELL)])
def test_success_is_told_in_every_shape(
    shapes_server: RunningSandbox, shape: str, tool: str, code: str
) -> None:
    """What was printed is in the result, and nothing in it speaks of failure."""
    result = _run(shapes_server, shape, tool, code)
    assert "out" in _texts(result)
    assert not result.get("error")
    assert not result.get("isError")
    assert result.get("success", True) is True
    assert result.get("exit_code", result.get("returncode", 0)) == 0
    assert "traceback" not in result


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tool", ["python", "notebook"])
def test_failure_is_told_in_every_shape(
    shapes_server: RunningSandbox, shape: str, tool: str
) -> None:
    """What was printed before is kept, and the error's name is in the result."""
    result = _run(shapes_server, shape, tool, _FAIL)
    assert "before" in _texts(result)
    assert "ZeroDivisionError" in _texts(result)


_CASES: list[tuple[str, str, str, Json]] = [
    ("process", "python", "print('a')", {"stdout": "a\n", "exit_code": 0, "timed_out": False}),
    ("process", "notebook", "print('a')\n2", {"stdout": "a\n2\n", "exit_code": 0}),
    ("process_returncode", "python", "raise SystemExit(3)", {"returncode": 3}),
    ("text", "python", "print('a')", {"output": "a\n", "success": True}),
    ("text", "notebook", "1/0", {"success": False, "error": "ZeroDivisionError: division by zero"}),
    ("text_result", "notebook", "1", {"result": "1\n", "ok": True}),
    ("text_text", "python", "print(1)", {"text": "1\n", "error": None}),
    (
        "nbformat",
        "python",
        "print('a')",
        {"outputs": [{"output_type": "stream", "name": "stdout", "text": "a\n"}]},
    ),
    (
        "nbformat_lines",
        "notebook",
        "print('a'); print('b')",
        {"outputs": [{"output_type": "stream", "name": "stdout", "text": ["a\n", "b\n"]}]},
    ),
    (
        "error_string",
        "python",
        "1/0",
        {"success": False, "stdout": "", "error": "ZeroDivisionError: division by zero"},
    ),
]


@pytest.mark.parametrize(("shape", "tool", "code", "expected"), _CASES)
def test_simple_shapes(
    shapes_server: RunningSandbox, shape: str, tool: str, code: str, expected: Json
) -> None:
    """Keys and values are as the table of shapes says."""
    result = _run(shapes_server, shape, tool, code)
    assert {key: result[key] for key in expected} == expected


def test_shapes_of_notebooks(shapes_server: RunningSandbox) -> None:
    """Cells and whole notebooks hold the outputs of nbformat."""
    cells = _run(shapes_server, "nbformat_cells", "notebook", "5")["cells"]
    assert cells[0]["cell_type"] == "code"
    assert cells[0]["outputs"][0]["data"]["text/plain"] == "5"
    notebook = _run(shapes_server, "nbformat_notebook", "notebook", "6")["notebook"]
    assert notebook["nbformat"] == 4
    assert notebook["cells"][0]["outputs"][0]["data"]["text/plain"] == "6"


def test_shape_of_typed_results(shapes_server: RunningSandbox) -> None:
    """Results by type, logs by stream, the error with a text traceback."""
    result = _run(shapes_server, "typed", "notebook", _CELL)
    assert result["logs"] == {"stdout": ["out\n"], "stderr": ["err\n"]}
    picture, main = result["results"]
    assert picture["png"].replace("\n", "") == _PNG
    assert main["html"] == "<b>bold</b>"
    assert main["is_main_result"] is True
    assert result["error"] is None
    error = _run(shapes_server, "typed", "notebook", _FAIL)["error"]
    assert error["name"] == "ZeroDivisionError"
    assert isinstance(error["traceback"], str)


def test_shape_of_content_parts(shapes_server: RunningSandbox) -> None:
    """Text and pictures as parts in the order in which they came."""
    result = _run(shapes_server, "content", "notebook", _CELL)
    kinds = [part["type"] for part in result["content"]]
    assert "image" in kinds
    image = next(part for part in result["content"] if part["type"] == "image")
    assert image["mimeType"] == "image/png"
    assert image["data"].replace("\n", "") == _PNG
    assert _run(shapes_server, "content", "python", _FAIL)["isError"] is True


@pytest.mark.parametrize(("tool", "code"), [("python", _SCRIPT), ("notebook", _CELL)])
def test_shape_of_artifacts_and_images(shapes_server: RunningSandbox, tool: str, code: str) -> None:
    """Pictures that a cell showed, and picture files that a script wrote, come along."""
    artifact = _run(shapes_server, "artifacts", tool, code)["artifacts"][0]
    assert artifact["mimeType"] == "image/png"
    assert artifact["data"].replace("\n", "") == _PNG
    image = _run(shapes_server, "images", tool, code)["images"][0]
    assert image["format"] == "png"
    assert image["base64"].replace("\n", "") == _PNG


def test_shape_of_error_objects(shapes_server: RunningSandbox) -> None:
    """Name, message and traceback in an object, or the traceback as plain text."""
    error = _run(shapes_server, "error_object", "python", _FAIL)["error"]
    assert (error["name"], error["message"]) == ("ZeroDivisionError", "division by zero")
    assert error["traceback"][0] == "Traceback (most recent call last):"
    plain = _run(shapes_server, "error_traceback", "notebook", _FAIL)["traceback"]
    assert "ZeroDivisionError" in plain
    assert "\x1b" not in plain


def test_an_exit_without_a_traceback_is_an_error_too(shapes_server: RunningSandbox) -> None:
    """A script that only exits has an error that names its exit code."""
    outputs = _run(shapes_server, "nbformat", "python", "raise SystemExit(4)")["outputs"]
    assert (outputs[0]["ename"], outputs[0]["evalue"]) == ("ExitError", "exit code 4")


def test_keys_can_be_in_camel_case_and_nested(shapes_server: RunningSandbox) -> None:
    """Spelling and nesting go with every shape."""
    shapes_server.control({"result_family": "process", "result_case": "camel"})
    try:
        for nesting in NESTINGS:
            shapes_server.control({"result_nesting": nesting})
            result = shapes_server.tool("c", "sandbox_python", code="print(1)")
            if nesting:
                key, _, how = nesting.partition("_")
                assert result["success"] is True
                result = json.loads(result[key]) if how == "json" else result[key]
            assert result == {"stdout": "1\n", "stderr": "", "exitCode": 0, "timedOut": False}
    finally:
        shapes_server.control({"result_case": "snake", "result_nesting": ""})


def test_nbformat_keeps_its_own_spelling_inside() -> None:
    """Camel case changes the answer's keys, not those of the outputs."""
    run = Run([{"output_type": "stream", "name": "stdout", "text": "a"}], execution_count=3)
    result = shaped(run, "nbformat", "camel")
    assert result["executionCount"] == 3
    assert result["outputs"][0]["output_type"] == "stream"


@pytest.mark.parametrize("tool", ["python", "notebook"])
def test_long_text_is_cut_with_a_note(shapes_server: RunningSandbox, tool: str) -> None:
    """stdout_limit_chars cuts every text and says how much is missing."""
    shapes_server.control({"stdout_limit_chars": 100, "result_family": "process"})
    try:
        result = shapes_server.tool("c", f"sandbox_{tool}", code="print('x' * 250)")
        assert result["stdout"].startswith("x" * 100 + "\n... [151 characters truncated]")
        short = shapes_server.tool("c", f"sandbox_{tool}", code="print('y')")
        assert short["stdout"] == "y\n"
    finally:
        shapes_server.control({"stdout_limit_chars": 0})
