"""Which cells, or parts of them, run in this process. Everything else goes to the sandbox.

The list is exact: ``%%local``, ``%%ivy``, leading ``%ivy`` lines, and ``%load_ext ivy_kernel``.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from IPython.core.inputtransformer2 import TransformerManager

from ivy_kernel.errors import UsageError

MISPLACED = (
    "%ivy runs here, the rest of a cell in the sandbox, so %ivy lines must come first in a cell "
    "or stand alone in one. Nothing of this cell was run."
)


@dataclass(frozen=True, slots=True)
class Parts:
    """A cell, taken apart.

    Parameters
    ----------
    commands
        The arguments of its ``%ivy`` lines, in order.
    local_code
        The body of a ``%%local`` cell; ``None`` for other cells.
    sandbox_code
        What goes to the sandbox; empty when nothing does. Line numbers are as in the cell.
    options
        What stands after ``%%ivy``; ``None`` for other cells.
    """

    commands: tuple[str, ...] = ()
    local_code: str | None = None
    sandbox_code: str = ""
    options: str | None = None


def take_apart(code: str) -> Parts:
    """See what of a cell runs where.

    Raises
    ------
    UsageError
        For a ``%ivy`` line after other code, and for options that ``%%local`` does not have.
    """
    lines = code.split("\n")
    first = next((index for index, line in enumerate(lines) if line.strip()), len(lines))
    head = lines[first].strip() if first < len(lines) else ""
    words = head.split()
    if words and words[0] == "%%local":
        if len(words) > 1:
            raise UsageError(f"%%local takes no options, but got {' '.join(words[1:])!r}.")
        blank = [""] * (first + 1)
        return Parts(local_code="\n".join(blank + lines[first + 1 :]))
    if words and words[0] == "%%ivy":
        body = [""] * (first + 1) + lines[first + 1 :]
        return Parts(options=head[len("%%ivy") :].strip(), sandbox_code="\n".join(body))
    commands = []
    for index, line in enumerate(lines):
        text = line.strip()
        if text and not text.startswith("#"):
            arguments = _ivy_arguments(text)
            if arguments is None:
                break
            commands.append(arguments)
            lines[index] = ""
    rest = "\n".join(lines)
    if _has_ivy_line(rest):
        raise UsageError(MISPLACED)
    return Parts(commands=tuple(commands), sandbox_code=rest if rest.strip() else "")


def _ivy_arguments(line: str) -> str | None:
    """The arguments of a line that is a command of ours."""
    if line == "%ivy" or line.startswith(("%ivy ", "%ivy\t")):
        return line[len("%ivy") :].strip()
    if line.split() == ["%load_ext", "ivy_kernel"] or line.split() == ["%reload_ext", "ivy_kernel"]:
        return "loaded"
    return None


def _has_ivy_line(code: str) -> bool:
    """Whether a statement of the cell is a ``%ivy`` line; text in strings does not count."""
    if "%ivy" not in code or code.lstrip().startswith("%%"):
        return False
    try:
        body = ast.parse(TransformerManager().transform_cell(code)).body
    except (SyntaxError, ValueError, RecursionError):
        return False  # the sandbox says what is wrong with it
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "run_line_magic"
        and bool(node.args)
        and isinstance(node.args[0], ast.Constant)
        and node.args[0].value == "ivy"
        for statement in body
        for node in ast.walk(statement)
    )
