"""Recognises tool results by their field names, at any nesting depth."""

from __future__ import annotations

import re
from typing import Any

from ivy_kernel.routes.decode.items import has_data_or_place, is_item, take_count
from ivy_kernel.routes.decode.parts import ResultParts, stream
from ivy_kernel.routes.decode.values import (
    Fields,
    lines_text_of,
    parse_json,
    snake_case,
    text_of,
    without_noise,
)

DESCENT_LIMIT = 20
"""Answers wrapped in more objects and JSON strings than this are shown as JSON."""
EXIT_NAMES = ("exit_code", "exitcode", "return_code", "returncode", "exit_status")
STREAM_NAMES = {
    "stdout": ("stdout", "std_out", "standard_output"),
    "stderr": ("stderr", "std_err", "standard_error"),
}
TIMED_OUT_NAMES = ("timed_out", "timedout", "is_timeout", "timeout")
GOOD_STATES = frozenset(
    ["ok", "success", "succeeded", "successful", "complete", "completed", "done", "finished"]
)
BAD_STATES = frozenset(["error", "failed", "failure", "errored", "aborted", "crashed", "killed"])
TIMEOUT_STATES = frozenset(["timeout", "timed_out", "timedout"])
PICTURE_LISTS = ("images", "plots", "figures", "charts", "artifacts", "attachments", "files")
VALUE_NAMES = ("result", "return_value", "value", "execute_result")
TEXT_NAMES = ("output", "text", "data", "outputs", "results", "content", "logs")
WRAPPER_NAMES = ("response", "body", "payload", "notebook", "structured_content", "execution")
# Names that mark an object as an answer, whatever their value.
_KNOWN_BY_NAME = (
    *(*EXIT_NAMES, *STREAM_NAMES["stdout"], *STREAM_NAMES["stderr"]),
    *("result", "return_value", "output", "text", "outputs", "logs", "notebook"),
    *("success", "ok", "is_error", "error", "errors", "exception", "ename", "traceback"),
)
# Names that carry a reply's text: with a flag beside one of them, a JSON text is surely an answer.
_REPLY_TEXT_NAMES = frozenset(
    ["output", "text", "result", "error", "outputs", "results", "data", "content"]
)
_NOTEBOOK_NAMES = frozenset(["cells", "metadata", "nbformat", "nbformat_minor"])
# Names that mark an answer only where their value is a list; others use them for other things.
_KNOWN_AS_LIST = ("cells", "results", "content", *PICTURE_LISTS)


def is_known(value: Any, depth: int = 0) -> bool:
    """Return whether an object has a field by which one of the families is recognised.

    Parameters
    ----------
    value
        Any cleaned value.
    depth
        How many objects and JSON strings are around it.
    """
    if not isinstance(value, dict) or depth > DESCENT_LIMIT:
        return False
    fields = Fields(value)
    if any(name in fields for name in _KNOWN_BY_NAME):
        return True
    if any(isinstance(fields.peek(name), list) for name in _KNOWN_AS_LIST):
        return True
    if any(isinstance(fields.peek(name), str) for name in TEXT_NAMES):
        return True
    if any(are_named_pictures(fields.peek(name)) for name in PICTURE_LISTS):
        return True
    if any(fields.peek(name) is True for name in TIMED_OUT_NAMES) or state_of(fields):
        return True
    names = (*VALUE_NAMES, *TEXT_NAMES, *WRAPPER_NAMES)
    return any(is_answer(fields.peek(name), depth + 1) for name in names)


def is_answer(value: Any, depth: int) -> bool:
    """Return whether a value at any place is an answer of a known family."""
    if isinstance(value, str) and depth <= DESCENT_LIMIT:
        value = answer_in_text(value, depth)
    if isinstance(value, list):
        return bool(value) and all(is_item(item) for item in value)
    return is_item(value) or is_known(value, depth)


def answer_in_text(text: str, depth: int) -> Any:
    """Return the answer that a string holds as JSON; ``None`` for a text of the user's own.

    A user may print JSON, for example the answer of a web service: only what looks like nothing
    but a tool's answer is taken for one, and never a text with a line end after it.
    """
    if depth > DESCENT_LIMIT or text[:1] not in ("{", "[") or text.endswith("\n"):
        return None
    value = parse_json(text)
    if isinstance(value, list):
        return value if value and all(is_item(item) for item in value) else None
    return value if isinstance(value, dict) and _is_surely_answer(value, depth) else None


def _is_surely_answer(value: dict[str, Any], depth: int) -> bool:
    """Return whether an object has several fields of one family, so that it is hardly chance."""
    names = {snake_case(key) for key in value}
    if names & {"stdout", "stderr"} or {"results", "logs"} <= names or is_item(value):
        return True
    if names == {"outputs", "execution_count"} or (names <= _NOTEBOOK_NAMES and "cells" in names):
        return True
    if any(_are_items(value.get(name)) for name in ("outputs", "content", "results")):
        return True
    if len(names) == 1 and names <= {"result", "data", "output", "notebook"}:
        (inner,) = value.values()
        return isinstance(inner, (dict, str)) and is_answer(inner, depth + 1)
    is_flagged = any(
        isinstance(value[key], bool) and snake_case(key) in ("success", "ok", "is_error")
        for key in value
    )
    has_text = bool(names & _REPLY_TEXT_NAMES)
    return has_text and (is_flagged or ("error" in names and len(names) == 2))


def _are_items(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(is_item(item) for item in value)


def says_that_it_failed(value: Any) -> bool:
    """Return whether an answer says at its top that something failed."""
    if not isinstance(value, dict):
        return False
    fields = Fields(value)
    return (
        fields.peek("success") is False
        or fields.peek("ok") is False
        or fields.peek("is_error") is True
        or bool(fields.peek("error"))
    )


def is_answer_by_itself(value: Any, depth: int) -> bool:
    """Return whether a value under a name that no family knows is an answer nevertheless."""
    if isinstance(value, str):
        return answer_in_text(value, depth) is not None
    if isinstance(value, list):
        return bool(value) and all(is_item(item) for item in value)
    return isinstance(value, dict) and (is_item(value) or is_process(value))


def is_process(item: dict[str, Any]) -> bool:
    """Return whether an object has the streams or the exit code of a process."""
    fields = Fields(item)
    names = (*EXIT_NAMES, *STREAM_NAMES["stdout"], *STREAM_NAMES["stderr"])
    return any(name in fields for name in names)


def are_named_pictures(value: Any) -> bool:
    """Return whether an object holds pictures or files under their names."""
    return (
        isinstance(value, dict)
        and bool(value)
        and all(
            isinstance(item, str) or (isinstance(item, dict) and has_data_or_place(Fields(item)))
            for item in value.values()
        )
    )


def state_of(fields: Fields) -> str | None:
    """Return the word of ``status`` or ``state``; ``None`` when it is none that is known."""
    word = fields.peek("status", "state")
    word = snake_case(word.strip()) if isinstance(word, str) else None
    return word if word in GOOD_STATES | BAD_STATES | TIMEOUT_STATES else None


def take_streams(fields: Fields, parts: ResultParts) -> None:
    """Take ``stdout``, ``stderr`` and ``logs`` from an object of the answer.

    The texts of streams that the answer holds apart go before all other outputs; log entries, which
    have an order of their own, keep it.
    """
    for name, spellings in STREAM_NAMES.items():
        for spelling in spellings:
            text = lines_text_of(fields.peek(spelling))
            if text is not None:
                fields.drop(spelling)
                _add_stream_text(name, text, parts)
    logs = fields.peek("logs")
    if isinstance(logs, dict):
        _take_log_streams(fields, logs, parts)
    elif isinstance(logs, list) and logs and all(isinstance(item, dict) for item in logs):
        fields.drop("logs")
        for item in logs:
            _add_log_entry(item, parts)


def _add_stream_text(name: str, text: str, parts: ResultParts) -> None:
    if text:
        (parts.stdout if name == "stdout" else parts.stderr).append(text)


def _take_log_streams(fields: Fields, logs: dict[str, Any], parts: ResultParts) -> None:
    fields.drop("logs")
    entries = Fields(logs)
    for name in ("stdout", "stderr"):
        text = text_of(entries.peek(name))  # pieces as they were written, not lines
        if text is not None:
            entries.drop(name)
            _add_stream_text(name, text, parts)
    for key, value in without_noise(entries.left()).items():
        parts.add_other(f"logs.{key}", value)


def _add_log_entry(entry: dict[str, Any], parts: ResultParts) -> None:
    fields = Fields(entry)
    name = fields.peek("stream", "name", "source", "fd", "type", "level")
    text = text_of(fields.peek("text", "line", "data", "message", "content"))
    if text is None:
        parts.add_other("logs", entry)
        return
    fields.take("text", "line", "data", "message", "content")
    is_stderr = isinstance(name, str) and name.lower() in ("stderr", "error", "err")
    if isinstance(name, str):
        fields.take("stream", "name", "source", "fd", "type", "level")
    line = text if text.endswith("\n") or not text else f"{text}\n"
    if line:
        parts.shown.append(stream("stderr" if is_stderr else "stdout", line))
    for key, value in without_noise(fields.left()).items():
        parts.add_other(f"logs.{key}", value)


_CUT_NAMES = ("truncated", "output_truncated", "stdout_truncated", "stderr_truncated")


def take_flags(fields: Fields, parts: ResultParts, *, has_streams: bool) -> bool:
    """Take the flags: the fields that tell success, failure, timeout and exit code.

    Parameters
    ----------
    fields
        An object of the answer.
    parts
        Takes what they say.
    has_streams
        Whether it is a process with streams, so that ``code`` and ``status`` may be its exit code.

    Returns
    -------
    bool
        Whether the object says that something failed.
    """
    count = take_count(fields)
    if count is not None:
        parts.execution_count = count
    is_bad = False
    for name in ("success", "ok", "succeeded", "is_error", "failed"):
        flag = fields.peek(name)
        if isinstance(flag, bool):
            fields.drop(name)
            is_good = flag is not (name in ("is_error", "failed"))
            is_bad = is_bad or not is_good
            parts.has_succeeded = parts.has_succeeded or is_good
    for name in TIMED_OUT_NAMES:  # a number under such a name is a limit, not a verdict
        if isinstance(fields.peek(name), bool):
            parts.timed_out = fields.take(name) or parts.timed_out
    for name in _CUT_NAMES:
        if isinstance(fields.peek(name), bool) and fields.take(name):
            parts.notes.append("The platform cut this output short.")
    is_bad = _take_state(fields, parts) or is_bad
    parts.has_failed = parts.has_failed or is_bad
    # Without streams beside it, "code" may be anything: an error's code, or the cell's source.
    names = (*EXIT_NAMES, "code", "status") if has_streams else EXIT_NAMES
    for name in names:
        exit_code = _integer(fields.peek(name))
        if exit_code is not None:
            fields.drop(name)
            parts.exit_code = exit_code if parts.exit_code in (None, 0) else parts.exit_code
    return is_bad or parts.exit_code not in (None, 0) or parts.timed_out


def _take_state(fields: Fields, parts: ResultParts) -> bool:
    """Take ``status`` or ``state`` where its word is known; return whether it is a bad one."""
    word = state_of(fields)
    if word is None:
        return False
    fields.take("status", "state")
    parts.has_succeeded = parts.has_succeeded or word in GOOD_STATES
    parts.timed_out = parts.timed_out or word in TIMEOUT_STATES
    return word in BAD_STATES


def _integer(value: Any) -> int | None:
    if isinstance(value, bool):  # Python counts True among the integers
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,9}", value.strip(), re.ASCII):
        return int(value)
    return value if isinstance(value, int) else None
