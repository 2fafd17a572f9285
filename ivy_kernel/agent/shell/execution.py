"""Runs one cell: syntax, the last expression's value, top-level await, errors."""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

from .commands import Commands
from .display import mime_bundle
from .source import CALLEE, to_python

FILE_PREFIX = "Cell In["


class Execution:
    """The user's namespace, and how cells run in it.

    Parameters
    ----------
    flush
        Sends what has been written so far.
    """

    def __init__(self, flush: Callable[[], None]) -> None:
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        self.namespace = main.__dict__
        self.namespace["__builtins__"] = builtins
        self.namespace[CALLEE] = Commands(self.namespace, flush, self._run_source)
        self._loop: Any = None
        self._file = FILE_PREFIX + "0]"

    def run(self, code: str, number: int) -> Any:
        """Run a cell; the value of its last expression, or ``None`` when nothing is to be shown."""
        source = to_python(code)
        self._file = f"{FILE_PREFIX}{number}]"
        linecache.cache[self._file] = (len(source), None, source.splitlines(True), self._file)
        value = self._run_source(source)
        if value is None or source.rstrip().endswith(";"):
            return None
        self.namespace["_"] = value
        return value

    def evaluate(self, expression: str) -> dict[str, Any]:
        """One entry of a reply's ``user_expressions``."""
        try:
            data, metadata = mime_bundle(eval(expression, self.namespace))  # noqa: S307 - its purpose
        except Exception as error:  # the user's error, which the entry reports
            return {"status": "error", **describe_error(error)}
        return {"status": "ok", "data": data, "metadata": metadata}

    def _run_source(self, source: str) -> Any:
        tree = ast.parse(source, self._file)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        self._execute(tree, "exec")
        return (
            self._execute(ast.Expression(last.value), "eval")
            if isinstance(last, ast.Expr)
            else None
        )

    def _execute(self, tree: ast.Module | ast.Expression, mode: str) -> Any:
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(tree, self._file, mode, flags=flags, dont_inherit=True)
        result = eval(code, self.namespace)  # noqa: S307 - running the user's code is its purpose
        if code.co_flags & inspect.CO_COROUTINE:
            return self._await(result)
        return result

    def _await(self, coroutine: Any) -> Any:
        import asyncio  # most cells never need it, and it takes long to import

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        task = self._loop.create_task(coroutine)
        try:
            return self._loop.run_until_complete(task)
        except KeyboardInterrupt:
            task.cancel()
            raise


def describe_error(error: BaseException) -> dict[str, Any]:
    """Name, value and traceback of an error, without the frames of this shell."""
    position = error.__traceback__
    while position is not None:
        if position.tb_frame.f_code.co_filename.startswith(FILE_PREFIX):
            break
        position = position.tb_next
    if position is None:
        lines = traceback.format_exception_only(type(error), error)
    else:
        lines = traceback.format_exception(type(error), error, position)
    try:
        value = str(error)
    except Exception:  # a user's broken __str__ must not cost the whole report
        value = "<str() raised>"
    return {
        "ename": type(error).__name__,
        "evalue": value,
        "traceback": [line.rstrip("\n") for line in lines],
    }
