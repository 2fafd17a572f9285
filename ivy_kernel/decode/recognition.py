"""By what an answer, or a part of one, is recognised wherever it stands."""

from __future__ import annotations

from typing import Any

from ivy_kernel.decode.fields import Fields, snake_case
from ivy_kernel.decode.items import is_item
from ivy_kernel.decode.pictures import has_data_or_place
from ivy_kernel.decode.values import parse_json

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
_KNOWN_BY_NAME = (
    *(*EXIT_NAMES, *STREAM_NAMES["stdout"], *STREAM_NAMES["stderr"]),
    *("result", "return_value", "output", "text", "outputs", "logs", "notebook"),
    *("success", "ok", "is_error", "error", "errors", "exception", "ename", "traceback"),
)
_KNOWN_AS_LIST = ("cells", "results", "content", *PICTURE_LISTS)


def is_known(value: Any, depth: int = 0) -> bool:
    """Whether an object has a field by which one of the families is recognised.

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
    """Whether a value, wherever it stands, is an answer of a known family."""
    if isinstance(value, str) and depth <= DESCENT_LIMIT:
        value = answer_in_text(value, depth)
    if isinstance(value, list):
        return bool(value) and all(is_item(item) for item in value)
    return is_item(value) or is_known(value, depth)


def answer_in_text(text: str, depth: int) -> Any:
    """The answer that a string holds as JSON; ``None`` when it is a text of the user's own.

    A user may print JSON: only what looks like nothing but a tool's answer is taken for one.
    """
    if depth > DESCENT_LIMIT or not text[:200].lstrip().startswith(("{", "[")):
        return None
    value = parse_json(text)
    if isinstance(value, list):
        return value if value and all(is_item(item) for item in value) else None
    if not isinstance(value, dict):
        return None
    names = {snake_case(key) for key in value}
    is_process = bool(names & {"stdout", "stderr"}) and len(names) > 1
    is_reply = bool(names & {"success", "ok", "is_error", "error", "status"}) and bool(
        names & {"output", "text", "result", "error", "outputs", "results", "data", "content"}
    )
    is_list = any(
        isinstance(value.get(name), list) and value[name] and all(map(is_item, value[name]))
        for name in ("outputs", "content", "results")
    )
    is_wrapper = len(names) == 1 and any(
        isinstance(value.get(name), (dict, str)) and is_answer(value[name], depth + 1)
        for name in ("result", "data", "output", "notebook")
    )
    return value if is_process or is_reply or is_list or is_wrapper or is_item(value) else None


def is_answer_by_itself(value: Any, depth: int) -> bool:
    """Whether a value under a name that no family knows is an answer nevertheless."""
    if isinstance(value, str):
        return answer_in_text(value, depth) is not None
    if isinstance(value, list):
        return bool(value) and all(is_item(item) for item in value)
    return isinstance(value, dict) and (is_item(value) or is_process(value))


def is_process(item: dict[str, Any]) -> bool:
    """Whether an object has the streams or the exit code of a process."""
    fields = Fields(item)
    names = (*EXIT_NAMES, *STREAM_NAMES["stdout"], *STREAM_NAMES["stderr"])
    return any(name in fields for name in names)


def are_named_pictures(value: Any) -> bool:
    """Whether an object holds pictures or files under their names."""
    return (
        isinstance(value, dict)
        and bool(value)
        and all(
            isinstance(item, str) or (isinstance(item, dict) and has_data_or_place(Fields(item)))
            for item in value.values()
        )
    )


def state_of(fields: Fields) -> str | None:
    """The word of ``status`` or ``state``; ``None`` when it is none that is known."""
    word = fields.peek("status", "state")
    word = snake_case(word.strip()) if isinstance(word, str) else None
    return word if word in GOOD_STATES | BAD_STATES | TIMEOUT_STATES else None
