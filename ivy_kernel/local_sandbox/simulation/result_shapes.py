"""The shapes in which the tools that run code answer.

The platform documents none, so that the local sandbox can speak all that are plausible. Any run,
of a script or of a notebook cell, can be told in any of them:

=================== ========================================================================
family              keys
=================== ========================================================================
process             ``stdout``, ``stderr``, ``exit_code``, ``timed_out``
process_returncode  ``stdout``, ``stderr``, ``returncode``
text                ``output`` (all text), ``success``, ``error`` when it failed
text_result         ``result`` (all text), ``ok``, ``error`` when it failed
text_text           ``text`` (all text), ``error`` (a string or null)
nbformat            ``outputs``, ``execution_count``
nbformat_lines      the same, multi-line strings as lists of lines
nbformat_cells      ``cells`` with one code cell
nbformat_notebook   ``notebook`` with ``cells``, as in a notebook file
typed               ``results`` (``text``, ``html``, ``png``, …), ``logs``, ``error``
content             ``content`` (parts of type text and image), ``isError``
artifacts           ``stdout``, ``stderr``, ``exit_code``, ``artifacts`` (``mimeType``, ``data``)
images              ``output``, ``success``, ``images`` (``format``, ``base64``)
error_string        ``success``, ``stdout``, ``error`` as one line of text
error_object        ``success``, ``stdout``, ``error`` as an object with a traceback list
error_traceback     ``stdout``, ``error``, ``traceback`` as plain text
=================== ========================================================================

``result_case`` spells the keys (``exit_code`` or ``exitCode``; ``isError`` and ``mimeType`` are
fixed words of their family and stay), ``result_nesting`` puts the result into ``result``, ``data``
or ``output``, as an object or (``…_json``) as JSON in a string.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

CASES = ("snake", "camel")
NESTINGS = ("", "result", "data", "output", "result_json", "data_json", "output_json")

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_TYPED_NAMES = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "text/latex": "latex",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "application/json": "json",
    "application/javascript": "javascript",
}


@dataclass(frozen=True)
class Run:
    """What running some code gave, before it is put into a shape.

    Parameters
    ----------
    outputs
        Outputs as in nbformat 4, strings whole.
    exit_code
        The exit code of the process; 1 for a cell that raised.
    execution_count
        The number of the cell; ``None`` for a script.
    timed_out
        Whether it was stopped because its time was up.
    pictures
        Picture files that it made: ``mimeType``, ``data`` (base64) and ``path``.
    """

    outputs: list[Json]
    exit_code: int = 0
    execution_count: int | None = None
    timed_out: bool = False
    pictures: list[Json] = field(default_factory=list)

    def stream(self, name: str) -> str:
        """All text of one stream."""
        return "".join(out["text"] for out in self.outputs if out.get("name") == name)

    @property
    def values(self) -> list[Json]:
        """The outputs that carry a MIME bundle."""
        kinds = ("display_data", "execute_result")
        return [out for out in self.outputs if out["output_type"] in kinds]

    @property
    def error(self) -> Json | None:
        """Name, value and traceback of the error that ended it; ``None`` when it succeeded."""
        for out in self.outputs:
            if out["output_type"] == "error":
                return {
                    "name": out["ename"],
                    "value": out["evalue"],
                    "traceback": list(out["traceback"]),
                }
        if self.exit_code == 0:
            return None
        # A script's traceback is text on stderr; its last line holds name and value.
        stderr = self.stream("stderr")
        last = stderr.rstrip().rpartition("\n")[2]
        name, _, value = last.partition(": ")
        if "Traceback (most recent call last)" in stderr and re.fullmatch(r"[\w.]+", name):
            return {"name": name, "value": value, "traceback": stderr.rstrip().split("\n")}
        return {"name": "ExitError", "value": f"exit code {self.exit_code}", "traceback": []}

    @property
    def printed(self) -> str:
        """The text of stdout, and of values that would be shown after it."""
        parts = []
        for out in self.outputs:
            if out.get("name") == "stdout":
                parts.append(out["text"])
            elif "data" in out:
                parts.append(_plain(out) + "\n")
        return "".join(parts)

    @property
    def complaint(self) -> str:
        """The text of stderr and of the traceback, without colours."""
        parts = [self.stream("stderr")]
        parts += [
            "\n".join(out["traceback"]) + "\n"
            for out in self.outputs
            if out["output_type"] == "error"
        ]
        return _ANSI.sub("", "".join(parts))


def _plain(output: Json) -> str:
    data = output["data"]
    return str(data.get("text/plain", f"[{', '.join(data)}]"))


def _sentence(run: Run) -> str | None:
    error = run.error
    if error is None:
        return None
    return f"{error['name']}: {error['value']}" if error["value"] else str(error["name"])


def _process(run: Run) -> Json:
    return {
        "stdout": run.printed,
        "stderr": run.complaint,
        "exit_code": run.exit_code,
        "timed_out": run.timed_out,
    }


def _process_returncode(run: Run) -> Json:
    return {"stdout": run.printed, "stderr": run.complaint, "returncode": run.exit_code}


def _text(run: Run) -> Json:
    shape: Json = {"output": run.printed + run.complaint, "success": run.exit_code == 0}
    return shape if run.exit_code == 0 else {**shape, "error": _sentence(run)}


def _text_result(run: Run) -> Json:
    shape: Json = {"result": run.printed + run.complaint, "ok": run.exit_code == 0}
    return shape if run.exit_code == 0 else {**shape, "error": _sentence(run)}


def _text_text(run: Run) -> Json:
    return {"text": run.printed + run.complaint, "error": _sentence(run)}


def _nbformat_outputs(run: Run) -> list[Json]:
    outputs = list(run.outputs)
    if run.exit_code and not any(out["output_type"] == "error" for out in outputs):
        error = run.error
        assert error is not None  # noqa: S101 - for the type checker: exit_code is not 0
        outputs.append(
            {
                "output_type": "error",
                "ename": error["name"],
                "evalue": error["value"],
                "traceback": error["traceback"],
            }
        )
    return outputs


def _nbformat(run: Run) -> Json:
    return {"outputs": _nbformat_outputs(run), "execution_count": run.execution_count}


def _lines(value: Any) -> Any:
    return value.splitlines(keepends=True) if isinstance(value, str) else value


def _nbformat_lines(run: Run) -> Json:
    outputs = []
    for out in _nbformat_outputs(run):
        copy = dict(out)
        if "text" in copy:
            copy["text"] = _lines(copy["text"])
        if "data" in copy:
            copy["data"] = {mime: _lines(value) for mime, value in copy["data"].items()}
        outputs.append(copy)
    return {"outputs": outputs, "execution_count": run.execution_count}


def _cell(run: Run) -> Json:
    return {"cell_type": "code", "metadata": {}, "source": "", **_nbformat(run)}


def _nbformat_cells(run: Run) -> Json:
    return {"cells": [_cell(run)]}


def _nbformat_notebook(run: Run) -> Json:
    return {"notebook": {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [_cell(run)]}}


def _typed(run: Run) -> Json:
    results = []
    for out in run.values:
        named = {
            _TYPED_NAMES[mime]: out["data"][mime] for mime in out["data"] if mime in _TYPED_NAMES
        }
        extra = {mime: out["data"][mime] for mime in out["data"] if mime not in _TYPED_NAMES}
        result = {**named, "is_main_result": out["output_type"] == "execute_result"}
        results.append({**result, "extra": extra} if extra else result)
    streams = {name: run.stream(name) for name in ("stdout", "stderr")}
    error = run.error
    return {
        "results": results,
        "logs": {name: [text] if text else [] for name, text in streams.items()},
        "error": error and {**error, "traceback": "\n".join(error["traceback"])},
        "execution_count": run.execution_count,
    }


def _content(run: Run) -> Json:
    parts: list[Json] = []
    for out in run.outputs:
        if out["output_type"] == "stream":
            parts.append({"type": "text", "text": out["text"]})
        elif "data" in out:
            for mime, data in out["data"].items():
                if mime in ("image/png", "image/jpeg"):
                    parts.append({"type": "image", "data": data, "mimeType": mime})
            parts.append({"type": "text", "text": _plain(out)})
        else:
            parts.append({"type": "text", "text": _ANSI.sub("", "\n".join(out["traceback"]))})
    return {"content": parts, "isError": run.exit_code != 0}


def _pictures(run: Run) -> list[Json]:
    shown = [
        {"mimeType": mime, "data": out["data"][mime]}
        for out in run.values
        for mime in ("image/png", "image/jpeg", "image/svg+xml")
        if mime in out["data"]
    ]
    return shown + run.pictures


def _artifacts(run: Run) -> Json:
    return {
        "stdout": run.printed,
        "stderr": run.complaint,
        "exit_code": run.exit_code,
        "artifacts": _pictures(run),
    }


def _images(run: Run) -> Json:
    images = []
    for picture in _pictures(run):
        form = picture["mimeType"].partition("/")[2].partition("+")[0]
        images.append({"format": form, "base64": picture["data"]})
    return {**_text(run), "images": images}


def _error_string(run: Run) -> Json:
    shape: Json = {"success": run.exit_code == 0, "stdout": run.printed}
    return shape if run.exit_code == 0 else {**shape, "error": _sentence(run)}


def _error_object(run: Run) -> Json:
    shape: Json = {"success": run.exit_code == 0, "stdout": run.printed}
    error = run.error
    if error is None:
        return shape
    about = {"name": error["name"], "message": error["value"], "traceback": error["traceback"]}
    return {**shape, "error": about}


def _error_traceback(run: Run) -> Json:
    shape: Json = {"stdout": run.printed}
    return (
        shape
        if run.exit_code == 0
        else {**shape, "error": _sentence(run), "traceback": run.complaint}
    )


FAMILIES: dict[str, Callable[[Run], Json]] = {
    "process": _process,
    "process_returncode": _process_returncode,
    "text": _text,
    "text_result": _text_result,
    "text_text": _text_text,
    "nbformat": _nbformat,
    "nbformat_lines": _nbformat_lines,
    "nbformat_cells": _nbformat_cells,
    "nbformat_notebook": _nbformat_notebook,
    "typed": _typed,
    "content": _content,
    "artifacts": _artifacts,
    "images": _images,
    "error_string": _error_string,
    "error_object": _error_object,
    "error_traceback": _error_traceback,
}


def _camel(key: str) -> str:
    head, *rest = key.split("_")
    return head + "".join(word.capitalize() for word in rest)


def shaped(run: Run, family: str, case: str = "snake", nesting: str = "") -> Json:
    """A run as the tool's answer, in the given family, spelling and nesting."""
    shape = FAMILIES[family](run)
    if case == "camel":
        # Only the answer's own keys: the inside of nbformat has its own spelling.
        shape = {_camel(key): value for key, value in shape.items()}
    if not nesting:
        return shape
    key, _, how = nesting.partition("_")
    ok = {"success": run.exit_code == 0}
    return {**ok, key: json.dumps(shape) if how == "json" else shape}
