"""Errors that an answer reports in fields of its own: strings, objects, lists, tracebacks."""

from __future__ import annotations

import re
from typing import Any

from ivy_kernel.routes.decode.fields import Fields

from ivy_kernel.routes.decode.tracebacks import Failure, failure_of_text, plain, traceback_lines
from ivy_kernel.routes.decode.values import is_empty, json_text, text_of

_ERROR_NAMES = ("error", "errors", "exception", "err", "failure")
_NAME_NAMES = ("ename", "error_name", "error_type", "exception_type", "exc_type")
_VALUE_NAMES = ("evalue", "error_value", "error_message", "exception_message")
_TRACEBACK_NAMES = ("traceback", "stack_trace", "stacktrace", "stack", "error_traceback", "tb")
_MESSAGE_NAMES = ("message", "detail", "reason", "error_description")
_WORD = re.compile(r"[A-Za-z_][\w.]*")


def take_failures(fields: Fields, *, is_bad: bool) -> list[Failure]:
    """The errors that an object of an answer reports.

    Parameters
    ----------
    fields
        The object; what tells of errors is taken from it.
    is_bad
        Whether the object says otherwise that it failed, so that a message is one of an error.
    """
    name = text_of(fields.peek(*_NAME_NAMES)) or ""
    value = text_of(fields.peek(*_VALUE_NAMES)) or ""
    lines = traceback_lines(fields.peek(*_TRACEBACK_NAMES))
    for names, is_used in ((_NAME_NAMES, name), (_VALUE_NAMES, value), (_TRACEBACK_NAMES, lines)):
        if is_used:
            fields.take(*names)
    failures: list[Failure] = []
    for key in _ERROR_NAMES:
        if key in fields:
            failures += _failures_of(fields.take(key))
    if failures and (name or value or lines):
        failures[-1] = _joined(failures[-1], _of_parts(name, value, lines))
    elif name or value or lines:
        failures = [_of_parts(name, value, lines)]
    message = fields.peek(*_MESSAGE_NAMES) if is_bad or failures else None
    if isinstance(message, str) and message.strip():
        fields.take(*_MESSAGE_NAMES)
        told = failure_of_text(message)
        failures = [*failures[:-1], _joined(failures[-1], told)] if failures else [told]
    return failures


def _failures_of(value: Any) -> list[Failure]:
    """The errors in the value of an error field."""
    if is_empty(value) or value is False or value == 0:
        return []
    if value is True:
        return [Failure()]
    text = text_of(value)
    if text is not None and not (isinstance(value, list) and len(value) > 1):
        return [failure_of_text(text)]
    if isinstance(value, list):
        return [failure for item in value for failure in _failures_of(item)]
    if isinstance(value, dict):
        return [_failure_of_object(value)]
    return [Failure("", json_text(value))]


def _failure_of_object(source: dict[str, Any]) -> Failure:
    fields = Fields(source)
    name = _take_text(fields, (*_NAME_NAMES, "name", "type", "class", "code", "kind"))
    value = _take_text(
        fields, (*_VALUE_NAMES, "value", "message", "msg", "text", "description", *_ERROR_NAMES)
    ) or _take_text(fields, _MESSAGE_NAMES)
    lines = traceback_lines(fields.take(*_TRACEBACK_NAMES))
    left = {key: item for key, item in fields.left().items() if not is_empty(item)}
    failure = _of_parts(name, value, lines)
    if not left:
        return failure
    more = json_text(left)
    if not (name or value or lines):
        return Failure("", more)
    shown = failure.output()["traceback"]
    return Failure(failure.name, failure.value, (*shown, more))


def _take_text(fields: Fields, names: tuple[str, ...]) -> str:
    for name in names:
        text = text_of(fields.peek(name))
        if text is not None and text.strip():
            fields.drop(name)
            return text
    return ""


def _of_parts(name: str, value: str, lines: tuple[str, ...]) -> Failure:
    """An error given in parts, any of which may be missing or hold another."""
    if lines and not (name and value):
        found = failure_of_text("\n".join(lines), name)
        return Failure(name or found.name, value or found.value, found.traceback or lines)
    if not lines and value:
        found = failure_of_text(value, name)
        return Failure(found.name, found.value, found.traceback)
    return Failure(name, value, lines)


def _joined(main: Failure, more: Failure) -> Failure:
    """One error told in two fields, with nothing of either lost."""
    if not main.name and _WORD.fullmatch(main.value) and not main.traceback and not more.name:
        main = Failure(main.value)  # {"error": "QuotaExceeded", "message": "…"}
    joined = Failure(
        main.name or more.name, main.value or more.value, more.traceback or main.traceback
    )
    told = [main.name, main.value, *main.traceback, more.name, more.value, *more.traceback]
    missing = list(dict.fromkeys(missing_lines(joined.text(), told)))
    if not missing:
        return joined
    return Failure(joined.name, joined.value, (*joined.output()["traceback"], *missing))


def missing_lines(text: str, lines: list[str]) -> list[str]:
    """Those of the lines that a text does not contain, colours and blank lines aside."""
    return [line for line in lines if plain(line).strip() not in text]
