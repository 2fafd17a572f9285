"""Other platforms' behaviour: the shapes of their results, and hostile ways to run a call.

The platform documents none, so that the local sandbox can speak all that are plausible. Any run,
of a script or of a notebook cell, can be put into any of them (setting ``result_family``):

=================== ========================================================================
shape               keys
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
mcp                 ``content`` with JSON text, and the same as ``structuredContent``
mcp_words           ``content`` with words, ``structuredContent`` with the streams
e2b                 as typed, each result with ``raw`` beside its formats
azure               ``properties`` with ``status``, the streams and ``result``
piston              ``run`` with the streams, ``output`` (both), ``code`` and ``signal``
gemini              ``codeExecutionResult`` with ``outcome`` and ``output``
events              ``events``: a list of what was written, shown and raised, and of the end
messages            ``messages``: the Jupyter messages of the run, in order
=================== ========================================================================

``result_case`` spells the keys (``exit_code`` or ``exitCode``; ``isError`` and ``mimeType`` are
fixed words of their shape and stay), ``result_nesting`` puts the result into ``result``, ``data``
or ``output``, as an object or (``…_json``) as JSON in a string.
"""

from __future__ import annotations

import functools
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from ivy_kernel.local_sandbox.config import ResultCase, ResultNesting, ResultShape
from ivy_kernel.local_sandbox.environment import Runner
from ivy_kernel.local_sandbox.results import (
    ANSI_COLOURS,
    Run,
    nbformat,
    nbformat_outputs,
    plain_text,
    process,
)
from ivy_kernel.local_sandbox.workspace import ChatPaths

_NAMESPACE_FLAGS = {
    "fresh_tmp": ("--mount",),
    "pid_namespace": ("--pid", "--fork", "--mount-proc", "--kill-child"),
}


@functools.cache
def _unshare(runner: str) -> tuple[str, ...]:
    """The ``unshare`` command that this machine allows for ``runner``; empty when none."""
    program = shutil.which("unshare")
    if program is None:
        return ()
    # root needs no user namespace; others become root in one, where the machine allows that.
    for extra in ((), ("--map-root-user",)):
        command = (program, *extra, *_NAMESPACE_FLAGS[runner])
        inner = "mount -t tmpfs none /tmp" if runner == "fresh_tmp" else "true"
        tried = subprocess.run(
            [*command, "/bin/sh", "-c", inner],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=10,
            check=False,
        )
        if tried.returncode == 0:
            return command
    return ()


class _KillDescendants(Runner):
    kills_descendants = True

    def unavailable(self) -> str:
        return "" if sys.platform == "linux" else "the runner kill_descendants needs Linux"


class _Namespace(Runner):
    def __init__(self, name: str) -> None:
        self._name = name

    def unavailable(self) -> str:
        if _unshare(self._name):
            return ""
        return f"the runner {self._name} needs Linux namespaces, which this machine does not allow"

    def command(self, argv: list[str], paths: ChatPaths, python: str) -> list[str]:
        return [*_unshare(self._name), *argv]


class _FreshTmp(_Namespace):
    # A sandbox with a new /tmp per call has no lasting runtime directory either.
    has_runtime_directory = False

    def command(self, argv: list[str], paths: ChatPaths, python: str) -> list[str]:
        tmp = Path("/tmp").resolve()  # noqa: S108 - this is the very directory that is replaced
        # The new /tmp is put together elsewhere first: what lies in the old one and must stay
        # visible can be bound into the new one only while the old one is still there.
        stage = paths.stage
        lines = ["set -e", f"mount -t tmpfs -o mode=1777 none {shlex.quote(str(stage))}"]
        prefixes = {Path(sys.prefix), Path(sys.base_prefix), Path(python).parent.parent}
        for path in [paths.directory, paths.state, *sorted(prefixes)]:
            kept = path.resolve()
            if kept.is_relative_to(tmp):
                target = shlex.quote(str(stage / kept.relative_to(tmp)))
                lines += [f"mkdir -p {target}", f"mount --bind {shlex.quote(str(kept))} {target}"]
        lines += [f"mount --rbind {shlex.quote(str(stage))} {tmp}", 'cd "$0"', 'exec "$@"']
        script = "\n".join(lines)
        return [*_unshare(self._name), "/bin/sh", "-c", script, str(paths.directory), *argv]


class _Serial(Runner):
    one_call_at_a_time = True


class _PythonDashC(Runner):
    code_as_argument = True


RUNNERS: dict[str, Runner] = {
    "normal": Runner(),
    "kill_descendants": _KillDescendants(),
    "fresh_tmp": _FreshTmp("fresh_tmp"),
    "pid_namespace": _Namespace("pid_namespace"),
    "serial": _Serial(),
    "python_dash_c": _PythonDashC(),
}


def unavailable(runner: str) -> str:
    """The reason why ``runner`` cannot be used on this machine; empty when it can."""
    return RUNNERS[runner].unavailable()


Json = dict[str, Any]

CASES: tuple[ResultCase, ...] = get_args(ResultCase)
NESTINGS: tuple[ResultNesting, ...] = get_args(ResultNesting)

# Shapes of results -------------------------------------------------------------------------------
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


def _sentence(run: Run) -> str | None:
    error = run.error
    if error is None:
        return None
    return f"{error['name']}: {error['value']}" if error["value"] else str(error["name"])


def _process_returncode(run: Run) -> Json:
    return {"stdout": run.output_text, "stderr": run.error_text, "returncode": run.exit_code}


def _text(run: Run) -> Json:
    shape: Json = {"output": run.output_text + run.error_text, "success": run.exit_code == 0}
    return shape if run.exit_code == 0 else {**shape, "error": _sentence(run)}


def _text_result(run: Run) -> Json:
    shape: Json = {"result": run.output_text + run.error_text, "ok": run.exit_code == 0}
    return shape if run.exit_code == 0 else {**shape, "error": _sentence(run)}


def _text_text(run: Run) -> Json:
    return {"text": run.output_text + run.error_text, "error": _sentence(run)}


def _lines(value: Any) -> Any:
    return value.splitlines(keepends=True) if isinstance(value, str) else value


def _nbformat_lines(run: Run) -> Json:
    outputs = []
    for out in nbformat_outputs(run):
        copy = dict(out)
        if "text" in copy:
            copy["text"] = _lines(copy["text"])
        if "data" in copy:
            copy["data"] = {mime: _lines(value) for mime, value in copy["data"].items()}
        outputs.append(copy)
    return {"outputs": outputs, "execution_count": run.execution_count}


def _cell(run: Run) -> Json:
    return {"cell_type": "code", "metadata": {}, "source": "", **nbformat(run)}


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
            parts.append({"type": "text", "text": plain_text(out)})
        else:
            parts.append(
                {"type": "text", "text": ANSI_COLOURS.sub("", "\n".join(out["traceback"]))}
            )
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
        "stdout": run.output_text,
        "stderr": run.error_text,
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
    shape: Json = {"success": run.exit_code == 0, "stdout": run.output_text}
    return shape if run.exit_code == 0 else {**shape, "error": _sentence(run)}


def _error_object(run: Run) -> Json:
    shape: Json = {"success": run.exit_code == 0, "stdout": run.output_text}
    error = run.error
    if error is None:
        return shape
    about = {"name": error["name"], "message": error["value"], "traceback": error["traceback"]}
    return {**shape, "error": about}


def _error_traceback(run: Run) -> Json:
    shape: Json = {"stdout": run.output_text}
    return (
        shape
        if run.exit_code == 0
        else {**shape, "error": _sentence(run), "traceback": run.error_text}
    )


# The shapes of public platforms, each in the platform's own spelling -----------------------------
def _mcp(run: Run) -> Json:
    told = process(run)
    parts = [{"type": "text", "text": json.dumps(told, indent=2)}]
    return {"content": parts, "structuredContent": told, "isError": run.exit_code != 0}


def _mcp_words(run: Run) -> Json:
    content = _content(run)["content"]
    words = [part for part in content if part["type"] == "text" and part["text"]]
    structured = {"stdout": run.output_text, "stderr": run.error_text, "exitCode": run.exit_code}
    return {"content": words, "structuredContent": structured, "isError": run.exit_code != 0}


def _e2b(run: Run) -> Json:
    shape = _typed(run)
    for result, out in zip(shape["results"], run.values, strict=True):
        result["isMainResult"] = result.pop("is_main_result")
        result["raw"] = dict(out["data"])
    return {**shape, "executionCount": shape.pop("execution_count")}


def _azure(run: Run) -> Json:
    results = [out for out in run.outputs if out["output_type"] == "execute_result"]
    return {
        "properties": {
            "status": "Success" if run.exit_code == 0 else "Failure",
            "stdout": run.output_text if not results else run.stream("stdout"),
            "stderr": run.error_text,
            "result": plain_text(results[-1]) if results else "",
            "executionTimeInMilliseconds": 12,
        }
    }


def _piston(run: Run) -> Json:
    told = {
        "stdout": run.output_text,
        "stderr": run.error_text,
        "output": run.output_text + run.error_text,
        "code": run.exit_code,
        "signal": None,
    }
    return {"language": "python", "version": "3.12.0", "run": told}


def _gemini(run: Run) -> Json:
    outcome = "OUTCOME_OK" if run.exit_code == 0 else "OUTCOME_FAILED"
    told = {"outcome": outcome, "output": run.output_text + run.error_text}
    return {"codeExecutionResult": told}


def _events(run: Run) -> Json:
    events: list[Json] = [{"type": "start", "timestamp": 1}]
    for out in nbformat_outputs(run):
        if out["output_type"] == "stream":
            events.append({"type": out["name"], "text": out["text"], "timestamp": 2})
        elif "data" in out:
            named = {_TYPED_NAMES.get(mime, mime): out["data"][mime] for mime in out["data"]}
            is_main = out["output_type"] == "execute_result"
            events.append({"type": "result", **named, "is_main_result": is_main})
        else:
            error = {"name": out["ename"], "value": out["evalue"]}
            told = ANSI_COLOURS.sub("", "\n".join(out["traceback"]))
            events.append({"type": "error", **error, "traceback": told})
    events.append({"type": "number_of_executions", "execution_count": run.execution_count})
    return {"events": [*events, {"type": "end_of_execution"}]}


def _messages(run: Run) -> Json:
    def message(kind: str, content: Json, channel: str = "iopub") -> Json:
        header = {"msg_type": kind, "msg_id": f"{kind}-1", "version": "5.3"}
        envelope = {"header": header, "parent_header": {}, "metadata": {}, "channel": channel}
        return {**envelope, "content": content}

    messages = [message("status", {"execution_state": "busy"})]
    for out in nbformat_outputs(run):
        content = {key: value for key, value in out.items() if key != "output_type"}
        messages.append(message(out["output_type"], content))
    reply: Json = {"status": "ok", "execution_count": run.execution_count, "payload": []}
    if (error := run.error) is not None:
        named = {"ename": error["name"], "evalue": error["value"]}
        reply |= {"status": "error", **named, "traceback": error["traceback"]}
    messages.append(message("execute_reply", reply, "shell"))
    return {"messages": [*messages, message("status", {"execution_state": "idle"})]}


SHAPES: dict[ResultShape, Callable[[Run], Json]] = {
    "process": process,
    "process_returncode": _process_returncode,
    "text": _text,
    "text_result": _text_result,
    "text_text": _text_text,
    "nbformat": nbformat,
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
    "mcp": _mcp,
    "mcp_words": _mcp_words,
    "e2b": _e2b,
    "azure": _azure,
    "piston": _piston,
    "gemini": _gemini,
    "events": _events,
    "messages": _messages,
}


def _camel(key: str) -> str:
    head, *rest = key.split("_")
    return head + "".join(word.capitalize() for word in rest)


def shaped(run: Run, shape: ResultShape, case: ResultCase, nesting: ResultNesting) -> Json:
    """A run as the tool's answer, in the given shape, spelling and nesting."""
    result = SHAPES[shape](run)
    if case == "camel":
        # Only the answer's own keys: the inside of nbformat has its own spelling.
        result = {_camel(key): value for key, value in result.items()}
    if not nesting:
        return result
    key, _, how = nesting.partition("_")
    ok = {"success": run.exit_code == 0}
    return {**ok, key: json.dumps(result) if how == "json" else result}
