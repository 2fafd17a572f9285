"""Recognises tool results by their field names, at any nesting depth."""

from __future__ import annotations

import re
import signal
from typing import Any

from ivy_kernel.routes.decode.files import has_data_or_place, is_picture_name
from ivy_kernel.routes.decode.items import are_events, event_kind_of, is_item, take_count
from ivy_kernel.routes.decode.parts import ResultParts, stream
from ivy_kernel.routes.decode.tracebacks import tells_timeout
from ivy_kernel.routes.decode.values import (
    Fields,
    json_text,
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
TIMED_OUT_NAMES = (
    *("timed_out", "timedout", "is_timed_out", "is_timeout", "timeout", "timeout_exceeded"),
    *("timeout_reached", "hit_timeout", "killed_by_timeout", "deadline_exceeded"),
)
STATE_NAMES = (
    *("status", "state", "outcome", "execution_status", "execution_state", "run_status"),
    *("output_status", "result_status", "verdict"),
)
_GOOD_STATES = frozenset(
    [
        *("ok", "success", "succeeded", "successful", "complete", "completed", "done", "finished"),
        *("passed", "accepted"),
    ]
)
_BAD_WORDS = frozenset(
    [
        *("error", "errored", "failed", "failure", "exception", "aborted", "crashed", "killed"),
        *("cancelled", "canceled", "interrupted", "terminated", "rejected", "exceeded", "oom"),
    ]
)
_NEGATIONS = frozenset(["no", "not", "non", "never", "without"])
# The short words of judges and of Piston, which are written in capitals.
_SHORT_STATES = {
    **dict.fromkeys(["TO", "TLE"], "timeout"),
    **dict.fromkeys(["RE", "SG", "OL", "EL", "XX", "CE", "MLE"], "error"),
}
_GOOD_FLAGS = ("success", "ok", "succeeded", "successful", "is_success")
_BAD_FLAGS = (
    *("is_error", "failed", "has_error", "errored", "is_failure", "crashed", "killed", "oom"),
    *("oom_killed", "out_of_memory", "aborted", "cancelled", "canceled", "interrupted"),
)
VALUE_NAMES = ("result", "return_value", "value", "execute_result", "execution_result")
TEXT_NAMES = ("output", "text", "data", "outputs", "results", "content", "logs")
WRAPPER_NAMES = (
    "response",
    "body",
    "payload",
    "notebook",
    "structured_content",
    "execution",
    "code_execution_result",
)
"""Names under which an answer may be."""

NAMES_OF_RUNS = (
    *("properties", "run", "compile", "raw_result", "code_interpreter", "parts", "candidates"),
    *("events", "messages"),
)
"""Names under which an answer is that is one by itself; others use them for other things."""
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
_KNOWN_AS_LIST = ("cells", "results", "content")
_NAMES_OF_FAILURES = frozenset(["type", "error_code", "error_type", "error_message", "message"])


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
    if isinstance(fields.peek("error_code"), str) and set(fields.names()) <= _NAMES_OF_FAILURES:
        return True
    for name in filter(is_picture_name, fields.names()):
        pictures = fields.peek(name)
        if isinstance(pictures, list) or (name.endswith("s") and are_named_pictures(pictures)):
            return True
    if any(fields.peek(name) is True for name in TIMED_OUT_NAMES) or _has_plain_state(fields):
        return True
    if isinstance(fields.peek("body"), str) and isinstance(fields.peek("status_code"), int):
        return True
    if any(is_run(fields.peek(name), depth + 1) for name in NAMES_OF_RUNS):
        return True
    names = (*VALUE_NAMES, *TEXT_NAMES, *WRAPPER_NAMES)
    return any(is_answer(fields.peek(name), depth + 1) for name in names)


def _has_plain_state(fields: Fields) -> bool:
    """Return whether a status is one plain word; longer ones may be of a user's own value."""
    for name in ("status", "state", "outcome"):
        word = fields.peek(name)
        is_plain = isinstance(word, str) and (
            snake_case(word.strip()) in _PLAIN_STATES or word.startswith("OUTCOME_")
        )
        if is_plain and (name != "outcome" or word.startswith("OUTCOME_")):
            return True
    return False


_PLAIN_STATES = frozenset(
    [
        *("ok", "success", "succeeded", "successful", "complete", "completed", "done", "finished"),
        *("error", "failed", "failure", "errored", "aborted", "crashed", "killed", "cancelled"),
        *("canceled", "timeout", "timed_out", "timedout", "time_limit_exceeded"),
    ]
)


def holds_answer(value: dict[str, Any]) -> bool:
    """Return whether an object has an answer under a name that no family knows."""
    return any(is_answer_by_itself(item, 1) for item in value.values())


def is_answer(value: Any, depth: int) -> bool:
    """Return whether a value at any place is an answer of a known family."""
    if isinstance(value, str) and depth <= DESCENT_LIMIT:
        value = answer_in_text(value, depth)
    if isinstance(value, list):
        return _are_items(value)
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
        return value if _are_items(value) else None
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
    if len(names) == 1 and names <= {*WRAPPER_NAMES, *NAMES_OF_RUNS}:
        return is_run(next(iter(value.values())), depth + 1)
    fields = Fields(value)
    if isinstance(fields.peek("run"), dict) and is_process(fields.peek("run")):
        return True
    is_flagged = any(
        isinstance(value[key], bool) and snake_case(key) in ("success", "ok", "is_error")
        for key in value
    )
    has_text = bool(names & _REPLY_TEXT_NAMES)
    return has_text and (is_flagged or ("error" in names and len(names) == 2))


def _are_items(value: Any, *, surely: bool = True) -> bool:
    """Return whether a value is a list of nothing but outputs, content parts or events."""
    if not isinstance(value, list) or not value:
        return False
    return all(is_item(item) for item in value) or are_events(value, surely=surely)


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
        return _are_items(value) or any(_has_code_result(item) for item in value)
    if not isinstance(value, dict):
        return False
    has_items = _are_items(value.get("outputs"), surely=False) or any(
        _are_items(value.get(name)) for name in ("content", "results")
    )
    has_outcome = {"outcome", "output"} <= set(Fields(value).names())
    return is_item(value) or is_process(value) or has_items or has_outcome


def is_run(value: Any, depth: int) -> bool:
    """Return whether what stands under a name of a run is an answer, or holds one."""
    if is_answer_by_itself(value, depth):
        return True
    if isinstance(value, list):
        return bool(value) and all(event_kind_of(item) for item in value)
    return (
        isinstance(value, dict)
        and depth <= DESCENT_LIMIT
        and any(isinstance(item, dict) and is_run(item, depth + 1) for item in value.values())
    )


def _has_code_result(item: Any) -> bool:
    """Return whether an element of a list is, or holds, a result as Gemini has it."""
    if not isinstance(item, dict):
        return False
    content = item.get("content")
    inner = content.get("parts") if isinstance(content, dict) else None
    return "code_execution_result" in Fields(item) or (
        isinstance(inner, list) and any(_has_code_result(part) for part in inner)
    )


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


def verdict_of(word: object) -> str:
    """Return what a status word means: ``good``, ``bad``, ``timeout``; empty for any other."""
    if isinstance(word, dict):  # {"id": 11, "description": "Runtime Error (NZEC)"}
        word = Fields(word).peek("description", "name", "code", "value")
    if not isinstance(word, str):
        return ""
    if word in _SHORT_STATES:
        return "timeout" if _SHORT_STATES[word] == "timeout" else "bad"
    words = re.findall(r"[a-z]+", snake_case(word.strip()))
    if words[:1] in (["outcome"], ["status"], ["state"]):
        words = words[1:]
    if not words or len(words) > _STATE_WORDS_LIMIT or _NEGATIONS & set(words):
        return ""
    if tells_timeout("_".join(words)):
        return "timeout"
    if _BAD_WORDS & set(words):
        return "bad"
    return "good" if len(words) == 1 and words[0] in _GOOD_STATES else ""


_STATE_WORDS_LIMIT = 5


def states_of(fields: Fields) -> dict[str, str]:
    """Return the fields that hold a known status word, and what it means."""
    found = {name: verdict_of(fields.peek(name)) for name in STATE_NAMES if name in fields}
    return {name: verdict for name, verdict in found.items() if verdict}


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
    for name in (*_GOOD_FLAGS, *_BAD_FLAGS):
        flag = fields.peek(name)
        if isinstance(flag, bool):
            fields.drop(name)
            is_good = flag is not (name in _BAD_FLAGS)
            is_bad = is_bad or not is_good
            # That nothing was cancelled says no more than that.
            if is_good and name in (*_GOOD_FLAGS, "is_error", "failed", "has_error"):
                parts.has_succeeded = True
            if not is_good and name not in (*_GOOD_FLAGS, "is_error", "failed"):
                parts.reported.append(name)
    for name in TIMED_OUT_NAMES:  # a number under such a name is a limit, not a verdict
        if isinstance(fields.peek(name), bool):
            parts.timed_out = fields.take(name) or parts.timed_out
    for name in _CUT_NAMES:
        if isinstance(fields.peek(name), bool) and fields.take(name):
            parts.notes.append("The platform cut this output short.")
    is_bad = _take_states(fields, parts) or is_bad
    status_code = fields.peek("status_code")
    # Beside a body it is that of a proxy; elsewhere it may be of what the code has fetched.
    if isinstance(status_code, int) and status_code in range(100, 600) and "body" in fields:
        fields.drop("status_code")
        if status_code >= _FIRST_BAD_STATUS:
            is_bad = True
            parts.reported.append(f"status code {status_code}")
    parts.has_failed = parts.has_failed or is_bad
    # Without streams beside it, "code" may be anything: an error's code, or the cell's source.
    names = (*EXIT_NAMES, "code", "status") if has_streams else EXIT_NAMES
    for name in names:
        exit_code = _integer(fields.peek(name))
        if exit_code is not None:
            fields.drop(name)
            parts.exit_code = exit_code if parts.exit_code in (None, 0) else parts.exit_code
    if has_streams:
        _take_signal(fields, parts)
    return is_bad or parts.exit_code not in (None, 0) or parts.timed_out


_FIRST_BAD_STATUS = 400


def _take_signal(fields: Fields, parts: ResultParts) -> None:
    """Take the signal that ended a process, where no exit code tells it."""
    name = fields.peek("signal")
    number = _integer(name)
    if isinstance(name, str) and number is None:
        known = signal.Signals.__members__.get(name.strip().upper())
        number = None if known is None else int(known)
    if number is not None and number >= 0:
        fields.drop("signal")
        if number and parts.exit_code in (None, 0):
            parts.exit_code = -number


def _take_states(fields: Fields, parts: ResultParts) -> bool:
    """Take the status words that are known; return whether one of them is bad."""
    is_bad = False
    for name, verdict in states_of(fields).items():
        word = fields.take(name)
        parts.has_succeeded = parts.has_succeeded or verdict == "good"
        parts.timed_out = parts.timed_out or verdict == "timeout"
        if verdict == "bad":
            is_bad = True
            if isinstance(word, str) and snake_case(word) not in ("error", "failed", "failure"):
                parts.reported.append(f"{name} {word!r}")
            elif isinstance(word, dict):
                parts.reported.append(f"{name} {word.get('description') or json_text(word)!r}")
    return is_bad


def _integer(value: Any) -> int | None:
    if isinstance(value, bool):  # Python counts True among the integers
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,9}", value.strip(), re.ASCII):
        return int(value)
    return value if isinstance(value, int) else None
