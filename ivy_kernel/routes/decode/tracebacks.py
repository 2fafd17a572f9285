"""Tracebacks and other error texts: found in streams, taken apart into name, value and lines."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import Any

from ivy_kernel.routes.decode.values import Fields, is_empty, json_text, text_of

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# CPython's header, and IPython's, which begins with the exception's name and spaces. Before either,
# a server may say which of its tools it was: "Error executing tool run: Traceback …".
_HEADER = re.compile(
    r"(?:[^\n]*:\s+)?(?P<name>[A-Za-z_]\w*(?:\.\w+)*)?\s*(?:\+ )?(?:Exception Group )?"
    r"Traceback \(most recent call last\):?\s*"
)
# The dashes above a traceback of IPython.
_RULE = re.compile(r"-{20,}\s*")
_CHAINED = (
    "During handling of the above exception, another exception occurred",
    "The above exception was the direct cause of the following exception",
)
_NAMED = re.compile(r"(?P<name>[A-Za-z_]\w*(?:\.\w+)*)(?::(?:\s+(?P<value>.*))?)?", re.DOTALL)
# The members of an exception group are set in behind bars.
_GROUP_BAR = re.compile(r"^\s*\|\s+(?=[A-Za-z_])")
# Only such a name before a colon makes "name: words" an error; "Note: …" is none.
_ERROR_NAME = re.compile(
    r"(?:[A-Za-z_]\w*\.)*"
    r"(?:\w*(?:Error|Exception|Warning|Interrupt|Timeout|Exit|Group)|StopIteration|StopAsyncIteration)"
)
_SYNTAX_LOCATION = re.compile(r'\s*File ".*", line \d+')

# Words before an error's own name: "Error executing tool run: ", "Cell failed: ", "Error: ".
_PREFIX = re.compile(
    r"(?:[^\n:]{0,80}?\b)?(?:error|exception|failure|failed|raised|toolerror)\b[^\n:]{0,80}:\s+",
    re.IGNORECASE,
)
_GENERAL_NAMES = frozenset(["Error", "ToolError", "ExecutionError"])
"""Names that servers give to the error of any code."""

_TIMEOUT_WORDS = re.compile(
    r"time[ _-]?out\b|timed[ _-]?out\b|time[ _-]?limit|deadline[ _-]exceeded|too long"
    r"|time[ _-](?:was[ _-])?exceeded|exceeded [\w ]{0,40}time\b",
    re.IGNORECASE,
)

TOOL_ERROR = "ToolError"
"""The name of an error that the tool reports without naming it."""

EXIT_ERROR = "ExitCodeError"
"""The name of the error of a process that ended with a non-zero exit code and named none."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One error: its name, its message and its traceback, as far as they are known.

    Parameters
    ----------
    name
        The exception's name; empty when none is known.
    value
        The exception's message.
    traceback
        The lines to show, ANSI colours included; empty when there is no traceback.
    """

    name: str = ""
    value: str = ""
    traceback: tuple[str, ...] = ()

    def output(self) -> dict[str, Any]:
        """Return the nbformat error output."""
        name = self.name or TOOL_ERROR
        words = f"{name}: {self.value}" if self.value else name
        lines = list(self.traceback) or words.split("\n")
        return {
            "output_type": "error",
            "ename": name,
            "evalue": self.value,
            "traceback": lines,
        }

    def text(self) -> str:
        """Return all that it says, without colours."""
        return plain("\n".join((self.name, self.value, *self.traceback)))


def tells_timeout(words: str) -> bool:
    """Return whether words of a tool say that time ran out."""
    return _TIMEOUT_WORDS.search(words) is not None


def is_timeout(failure: Failure) -> bool:
    """Return whether an error that a tool reports is no exception of the code, but a timeout."""
    if failure.traceback and split_traceback("\n".join(failure.traceback)):
        return False
    if _is_exception_name(failure.name):
        return failure.name == "TimeoutError"
    return tells_timeout(f"{failure.name}\n{failure.value}")


def _is_exception_name(name: str) -> bool:
    return bool(_ERROR_NAME.fullmatch(name)) and name not in (*_GENERAL_NAMES, EXIT_ERROR)


def plain(text: str) -> str:
    """Return a text without ANSI escape sequences."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def split_traceback(text: str) -> tuple[str, Failure] | None:
    """Split a text that ends in a Python traceback into what is before it and the traceback.

    Understands plain and coloured tracebacks of CPython and IPython, chained exceptions,
    exception groups, and the report of a syntax error in a script, which has no header.

    Returns
    -------
    tuple[str, Failure] | None
        ``None`` when the text does not end in a traceback.
    """
    # A cheap test first: most texts are long outputs without any traceback.
    if "Traceback (most recent" not in text and "Error" not in text:
        return None
    lines = text.rstrip().split("\n")
    bare = [plain(line) for line in lines]
    headers = [number for number, line in enumerate(bare) if _HEADER.fullmatch(line)]
    if not headers:
        return _split_syntax_error(lines, bare)
    start = _chain_start(bare, headers)
    match = _HEADER.fullmatch(bare[headers[-1]])
    named = _exception_line(bare, headers[-1] + 1, match["name"] if match else None)
    if named is None and len(headers) > 1:  # the last header is that of a member of a group
        named = _exception_line(bare, start + 1, None)
    if named is None:
        return None
    name, value = named
    return "\n".join([*lines[:start], ""]) if start else "", Failure(
        name, value, tuple(lines[start:])
    )


def _chain_start(bare: list[str], headers: list[int]) -> int:
    """Return the first line of the chained tracebacks that the last header belongs to."""
    start = headers[-1]
    for header in reversed(headers[:-1]):
        between = bare[header + 1 : start]
        is_chained = any(line.strip(" |").startswith(_CHAINED) for line in between)
        is_member = bare[start][:1].isspace() and any("+-" in line for line in between)
        if not (is_chained or is_member):
            break
        start = header
    if start and _RULE.fullmatch(bare[start - 1]):
        start -= 1
    return start


def _exception_line(bare: list[str], start: int, name: str | None) -> tuple[str, str] | None:
    """Return name and value of the exception whose frames begin at a line."""
    for number in range(start, len(bare)):
        line = _GROUP_BAR.sub("", bare[number])
        if not line[:1].strip():
            continue
        match = _NAMED.fullmatch(line)
        if match is None or (name is not None and match["name"].rpartition(".")[2] != name):
            continue
        is_bare_word = match["value"] is None and not _ERROR_NAME.fullmatch(match["name"])
        if name is None and is_bare_word and number < len(bare) - 1:
            continue
        first = match["value"] or ""
        value = "\n".join([first, *bare[number + 1 :]]) if line == bare[number] else first
        return match["name"].rpartition(".")[2], value.rstrip()
    return None


def _split_syntax_error(lines: list[str], bare: list[str]) -> tuple[str, Failure] | None:
    match = _NAMED.fullmatch(bare[-1])
    if match is None or match["name"] not in ("SyntaxError", "IndentationError", "TabError"):
        return None
    for start in range(len(bare) - 2, max(-1, len(bare) - 8), -1):
        if _SYNTAX_LOCATION.fullmatch(bare[start]):
            before = "\n".join([*lines[:start], ""]) if start else ""
            return before, Failure(match["name"], match["value"] or "", tuple(lines[start:]))
    return None


def failure_of_text(text: str, name: str = "") -> Failure:
    """Return the error that a text tells of.

    Parameters
    ----------
    text
        A traceback, ``Name: message``, or any other words.
    name
        The error's name where the answer gives it apart; it wins over one in the text, unless the
        text names an exception and this is none.
    """
    split = split_traceback(text)
    if split is not None:
        before, found = split
        lines = (*before.rstrip("\n").split("\n"), *found.traceback) if before else found.traceback
        return _renamed(Failure(found.name, found.value, lines), name)
    stripped = plain(text).strip()
    named = _named_error(stripped)
    found = Failure(name, stripped) if named is None else _renamed(named, name)
    if named is not None and found.name != named.name:
        found = Failure(name, stripped)  # the name in the text is a part of the message
    is_whole = text.strip() in (found.value, f"{found.name}: {found.value}", found.name)
    lines = found.traceback or (() if is_whole else tuple(text.rstrip().split("\n")))
    return Failure(found.name, found.value, lines)


def _named_error(text: str) -> Failure | None:
    """Return the error in ``Name: message``, also behind words of the tool; else ``None``."""
    match = _NAMED.fullmatch(text)
    named = None
    if match is not None and _ERROR_NAME.fullmatch(match["name"]):
        named = Failure(match["name"].rpartition(".")[2], match["value"] or "")
        if _is_exception_name(named.name):
            return named
    prefix = _PREFIX.match(text)
    behind = _named_error(text[prefix.end() :]) if prefix is not None else None
    return behind if behind is not None and _is_exception_name(behind.name) else named


def _renamed(found: Failure, name: str) -> Failure:
    """Return an error that was found in a text with the name that the answer gives it apart.

    A general name, or a code, hides no exception: it is shown beside its real name.
    """
    if not name or name == found.name:
        return found
    if _is_exception_name(name) or not _is_exception_name(found.name):
        return Failure(name, found.value, found.traceback)
    lines = found.traceback or (f"{found.name}: {found.value}",)
    if name.title() == "Error" or name in _GENERAL_NAMES:
        return Failure(found.name, found.value, lines)
    return Failure(found.name, found.value, (f"{name}:", *lines))


def traceback_lines(value: object) -> tuple[str, ...]:
    """Return the lines of a traceback given as text, as list of texts, or as list of frames."""
    if isinstance(value, str):
        return tuple(value.rstrip().split("\n")) if value.strip() else ()
    if isinstance(value, list):
        return tuple(item if isinstance(item, str) else json_text(item) for item in value)
    return () if value is None else (json_text(value),)


def exit_text(exit_code: int) -> str:
    """Return the end of a process in words: ``exit code 137: ended by SIGKILL, …``."""
    # Python tells a signal as a negative code, a shell as 128 + its number.
    number = -exit_code if exit_code < 0 else exit_code - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"exit code {exit_code}"
    why = ", often because memory ran out" if name == "SIGKILL" else ""
    return f"exit code {exit_code}: ended by {name}{why}"


_ERROR_NAMES = ("error", "errors", "exception", "err", "failure")
_NAME_NAMES = (
    *("ename", "error_name", "error_type", "error_class", "exception_type", "exception_name"),
    *("exc_type", "error_code"),
)
_VALUE_NAMES = ("evalue", "error_value", "error_message", "exception_message")
_TRACEBACK_NAMES = ("traceback", "stack_trace", "stacktrace", "stack", "error_traceback", "tb")
_MESSAGE_NAMES = ("message", "detail", "reason", "error_description")
_WORD = re.compile(r"[A-Za-z_][\w.]*")


def take_failures(fields: Fields, *, is_bad: bool) -> list[Failure]:
    """Take the errors that an object of an answer reports.

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
    """Return the errors in the value of an error field."""
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
    """Return the error given in parts, any of which may be missing or hold another."""
    if lines and not (_is_exception_name(name) and value):
        found = failure_of_text("\n".join(lines), name)
        return Failure(found.name, value or found.value, found.traceback or lines)
    if not lines and value:
        return failure_of_text(value, name)
    return Failure(name, value, lines)


def _joined(main: Failure, more: Failure) -> Failure:
    """Return one error that was told in two fields, with nothing of either lost."""
    if _is_exception_name(more.name) and not _is_exception_name(main.name):
        main, more = more, main
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
    """Return those of the lines that a text does not contain, colours aside."""
    return [line for line in lines if plain(line).strip() not in text]
