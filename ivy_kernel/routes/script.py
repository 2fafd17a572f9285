"""The script route: each cell a fresh ``sandbox_python`` process, so variables do not persist.

Source: ``POST /v1/sandbox/{chatId}/tool/sandbox_python``, whose result shape is undocumented.
"""

from __future__ import annotations

import ast

from ivy_kernel.models import Cell, Json, Outcome, Sink
from ivy_kernel.routes.base import RouteName
from ivy_kernel.routes.one_call import PlainRoute, unanswered
from ivy_kernel.routes.tools import PYTHON_TOOL


class ScriptRoute(PlainRoute):
    """Runs each cell through ``sandbox_python``; the platform caps scripts at 120 s."""

    name: RouteName = "script"
    tool = PYTHON_TOOL
    variables_persist = False
    notice = (
        "This sandbox offers only scripts: each cell runs in a Python process of its own, so "
        "variables and imports do not persist from cell to cell (files do), magics do not work, "
        "and a cell may take 120 s at most."
    )

    async def check(self) -> None:
        """Does nothing: without variables, none can be lost."""

    async def execute(self, cell: Cell, sink: Sink) -> Outcome:
        """Runs one cell."""
        outcome = await self._run(show_last_value(cell.code), cell, sink)
        if outcome.fate == "succeeded" and cell.user_expressions:
            outcome.reply["user_expressions"] = unanswered(
                cell.user_expressions, "variables do not persist on the script route"
            )
        return outcome

    async def ask(self, msg_type: str, content: Json) -> Json | None:
        """Returns ``None``: between two scripts no Python is there to ask."""
        return None

    async def interrupt(self) -> None:
        """Stops waiting: the platform offers nothing that would stop a script."""
        self._call.stop()

    async def restart(self) -> None:
        """Does nothing: each cell has a fresh namespace anyway."""


def show_last_value(code: str) -> str:
    """Returns the code, made to print the value of its last line if that is an expression.

    A script shows no values; a cell does. Line numbers stay as they are, since the change is
    confined to the last expression, which is parenthesised where it stands.
    """
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code  # the sandbox's Python says what is wrong with it, in its own words
    if not body or not isinstance(body[-1], ast.Expr) or code.rstrip().endswith(";"):
        return code
    last = body[-1]
    lines = code.encode().split(b"\n")  # ast counts columns in bytes of UTF-8
    first, end = last.lineno - 1, (last.end_lineno or last.lineno) - 1
    if lines[first][: last.col_offset].strip():
        return code  # something stands before it on its line
    comment = lines[end][last.end_col_offset :]
    lines[end] = lines[end][: last.end_col_offset] + b")" + comment
    # The displayhook, not print: like a cell, it shows nothing for None.
    lines[first] = b"__import__('sys').displayhook(" + lines[first]
    return b"\n".join(lines).decode()
