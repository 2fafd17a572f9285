"""What is not Python in a cell: ``!command``, ``%magic``, ``%%magic``, ``name?``."""

from __future__ import annotations

import io
import re
import tokenize

CALLEE = "__ivy__"
"""The name under which cells find the commands; see :mod:`.commands`."""

LINE = re.compile(r"^(?P<indent>\s*)(?P<target>[\w.,\s]+?=\s*)?(?P<mark>[!%])(?P<rest>[^=].*)$")
QUESTION = re.compile(r"^\s*(?:(\?\??)\s*([\w.]+)|([\w.]+)\s*(\?\??))\s*$")
CELL = re.compile(r"^\s*%%(\w+)[ \t]*(.*)$")


def to_python(cell: str) -> str:
    """The Python that a cell means; line numbers stay as they are."""
    first, _, body = cell.lstrip("\n").partition("\n")
    match = CELL.match(first)
    if match:
        name, arguments = match.groups()
        return f"{CALLEE}.cell({name!r}, {arguments!r}, {body!r})"
    if not any(mark in cell for mark in "!%?"):
        return cell
    lines: list[str] = []
    pending: list[str] = []
    for line in cell.split("\n"):
        if not pending:
            line = _line_to_python(line)  # the line in its other language
        pending.append(line)
        if not _is_open("\n".join(pending)):
            lines += pending
            pending = []
    return "\n".join(lines + pending)


def _line_to_python(line: str) -> str:
    question = QUESTION.match(line)
    if question:
        before, name, other_name, after = question.groups()
        return f"{CALLEE}.describe({name or other_name!r}, {len(before or after)})"
    match = LINE.match(line)
    if match is None:
        return line
    indent, target, rest = match["indent"], match["target"] or "", match["rest"]
    if match["mark"] == "!":
        method = "capture" if target else "system"
        return f"{indent}{target}{CALLEE}.{method}({rest.strip()!r})"
    name, _, arguments = rest.partition(" ")
    return f"{indent}{target}{CALLEE}.line({name!r}, {arguments.strip()!r})"


def _is_open(text: str) -> bool:
    """Whether the text ends within brackets, a triple-quoted string or a continued line."""
    if text.endswith("\\"):
        return True
    try:
        for _ in tokenize.generate_tokens(io.StringIO(text.lstrip() + "\n").readline):
            pass
    except tokenize.TokenError as error:
        return "EOF" in str(error) or "unterminated triple-quoted" in str(error)
    except SyntaxError:
        return False
    return False
