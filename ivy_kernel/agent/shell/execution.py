"""Runs one cell: commands, magics, last value, top-level await, errors; completes, inspects."""

from __future__ import annotations

import ast
import builtins
import inspect
import io
import linecache
import os
import pydoc
import re
import rlcompleter
import subprocess
import sys
import time
import tokenize
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .output import mime_bundle

# -- commands and magics

IGNORED_MAGICS = (
    "matplotlib",
    "config",
    "load_ext",
    "reload_ext",
    "autoreload",
    "colors",
    "precision",
)
"""Magics that set up what the shell does anyway, or does not have."""

SHELL = "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"


class UsageError(Exception):
    """A magic that does not exist here, or does not understand its arguments."""


class Commands:
    """The functions behind ``!``, ``%`` and ``?``, which cells find as :data:`COMMANDS_NAME`.

    Parameters
    ----------
    namespace
        The user's variables.
    flush
        Sends what has been written so far.
    run_python
        Runs Python source as a cell would, for ``%time`` and ``%%time``.
    """

    def __init__(
        self,
        namespace: dict[str, Any],
        flush: Callable[[], None],
        run_python: Callable[[str], Any],
    ) -> None:
        self._namespace = namespace
        self._flush = flush
        self._run_python = run_python

    def system(self, command: str) -> None:
        """Run ``!command``, showing its output as it comes."""
        self._flush()
        # Not from stdin: there is no terminal, and a command that reads would wait for ever.
        code = subprocess.call([SHELL, "-c", self._expand(command)], stdin=subprocess.DEVNULL)
        self._namespace["_exit_code"] = code
        self._flush()

    def capture(self, command: str) -> list[str]:
        """Run ``name = !command`` and return the lines of its output."""
        self._flush()
        done = subprocess.run(
            [SHELL, "-c", self._expand(command)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=False,
        )
        self._namespace["_exit_code"] = done.returncode
        return done.stdout.decode("utf-8", "replace").splitlines()

    def line(self, name: str, arguments: str) -> Any:
        """Run ``%name arguments``."""
        if name in IGNORED_MAGICS:
            return None
        method = getattr(self, "_line_" + name, None)
        if method is None:
            raise UsageError(
                f"The built-in shell has no %{name}. Installing ipykernel in the sandbox "
                "(%pip install ipykernel, then restart) brings all of IPython's magics."
            )
        return method(self._expand(arguments))

    def cell(self, name: str, arguments: str, body: str) -> Any:
        """Run ``%%name arguments`` with the lines below it."""
        method = getattr(self, "_cell_" + name, None)
        if method is None:
            raise UsageError(
                f"The built-in shell has no %%{name}. Installing ipykernel in the sandbox "
                "(%pip install ipykernel, then restart) brings all of IPython's magics."
            )
        return method(arguments, body)

    def describe(self, name: str, detail: int) -> None:
        """Show what is known of ``name?``, with its source for ``name??``."""
        text = describe(self._namespace, name, with_source=detail > 1)
        sys.stdout.write((text or f"Object `{name}` not found.") + "\n")

    def _expand(self, text: str) -> str:
        """Put values into ``{expression}`` and ``$name``; leave what is no variable of Python."""

        def value(match: re.Match[str]) -> str:
            try:
                return str(eval(match[1] or match[2], self._namespace))  # noqa: S307 - a user's cell
            except Exception:  # the command's own braces or variable
                return match[0]

        return re.sub(r"\{([^{}]+)\}|\$(\w+)", value, text)

    def _line_pip(self, arguments: str) -> None:
        self.system(f"{sys.executable} -m pip {arguments}")

    def _line_cd(self, arguments: str) -> str:
        os.chdir(Path(arguments or "~").expanduser())
        return str(Path.cwd())

    def _line_pwd(self, _: str) -> str:
        return str(Path.cwd())

    def _line_env(self, arguments: str) -> Any:
        if "=" in arguments:
            name, _, value = arguments.partition("=")
            os.environ[name.strip()] = value.strip()
            return None
        return os.environ.get(arguments) if arguments else dict(os.environ)

    def _line_time(self, arguments: str) -> Any:
        started, used = time.perf_counter(), time.process_time()
        try:
            return self._run_python(arguments)
        finally:
            wall, cpu = time.perf_counter() - started, time.process_time() - used
            sys.stdout.write(f"CPU time: {cpu:.3g} s, wall time: {wall:.3g} s\n")

    def _cell_time(self, _: str, body: str) -> Any:
        return self._line_time(body)

    def _cell_bash(self, arguments: str, body: str) -> None:
        self._flush()
        code = subprocess.call([SHELL, "-c", body], stdin=subprocess.DEVNULL)
        self._flush()
        if code:
            raise subprocess.CalledProcessError(code, f"%%bash {arguments}".strip())

    _cell_sh = _cell_bash

    def _cell_writefile(self, arguments: str, body: str) -> None:
        append = arguments.startswith("-a ")
        name = Path(arguments[3:].strip() if append else arguments.strip()).expanduser()
        with name.open("a" if append else "w", encoding="utf-8") as file:
            file.write(body)
        sys.stdout.write(f"{'Appending to' if append else 'Writing'} {name}\n")


# -- from a cell's language to Python

COMMANDS_NAME = "__ivy__"
"""The name under which cells find :class:`Commands`."""

LINE = re.compile(r"^(?P<indent>\s*)(?P<target>[\w.,\s]+?=\s*)?(?P<mark>[!%])(?P<rest>[^=].*)$")
QUESTION = re.compile(r"^\s*(?:(\?\??)\s*([\w.]+)|([\w.]+)\s*(\?\??))\s*$")
CELL = re.compile(r"^\s*%%(\w+)[ \t]*(.*)$")


def to_python(cell: str) -> str:
    """Translate a cell to Python; line numbers stay as they are."""
    first, _, body = cell.lstrip("\n").partition("\n")
    match = CELL.match(first)
    if match:
        name, arguments = match.groups()
        return f"{COMMANDS_NAME}.cell({name!r}, {arguments!r}, {body!r})"
    if not any(mark in cell for mark in "!%?"):
        return cell
    lines: list[str] = []
    pending: list[str] = []
    for line in cell.split("\n"):
        # Only where a statement may begin: within a string or brackets these signs are Python.
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
        return f"{COMMANDS_NAME}.describe({name or other_name!r}, {len(before or after)})"
    match = LINE.match(line)
    if match is None:
        return line
    indent, target, rest = match["indent"], match["target"] or "", match["rest"]
    if match["mark"] == "!":
        method = "capture" if target else "system"
        return f"{indent}{target}{COMMANDS_NAME}.{method}({rest.strip()!r})"
    name, _, arguments = rest.partition(" ")
    return f"{indent}{target}{COMMANDS_NAME}.line({name!r}, {arguments.strip()!r})"


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


# -- running

FILE_PREFIX = "Cell In["
"""Of the file names in tracebacks, as IPython has them."""


class Execution:
    """The user's namespace, in which cells run.

    Parameters
    ----------
    flush
        Sends what has been written so far.
    """

    def __init__(self, flush: Callable[[], None]) -> None:
        # A module of its own as __main__: pickle finds the classes of cells by that name.
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        self.namespace = main.__dict__
        self.namespace["__builtins__"] = builtins
        self.namespace[COMMANDS_NAME] = Commands(self.namespace, flush, self._run_source)
        self._loop: Any = None
        self._file = FILE_PREFIX + "0]"

    def run(self, code: str, number: int) -> Any:
        """Run a cell; return its last expression's value, ``None`` when nothing is to be shown."""
        source = to_python(code)
        self._file = f"{FILE_PREFIX}{number}]"
        # Tracebacks and inspect.getsource read a cell's lines from here; there is no such file.
        linecache.cache[self._file] = (len(source), None, source.splitlines(True), self._file)
        value = self._run_source(source)
        if value is None or source.rstrip().endswith(";"):
            return None
        self.namespace["_"] = value
        return value

    def evaluate(self, expression: str) -> dict[str, Any]:
        """Return one entry of a reply's ``user_expressions``."""
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

        # One loop for all cells: what a cell has scheduled goes on in the next that awaits.
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
    """Return name, value and traceback of an error, without the frames of this shell."""
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


# Completion and inspection (message spec) ---------------------------------------------------------
MATCHES_LIMIT = 500


def complete(namespace: dict[str, Any], code: str, cursor: int) -> dict[str, Any]:
    """Return the content of a ``complete_reply``."""
    word = _name_before(code[:cursor])
    completer = rlcompleter.Completer(namespace)
    matches = set()
    # Without a word everything would match.
    for number in range(MATCHES_LIMIT if word else 0):
        match = completer.complete(word, number)
        if match is None:
            break
        matches.add(match.rstrip("(): "))
    return {
        "status": "ok",
        "matches": sorted(matches),
        "cursor_start": cursor - len(word),
        "cursor_end": cursor,
        "metadata": {},
    }


def inspect_at(namespace: dict[str, Any], code: str, cursor: int, detail: int) -> dict[str, Any]:
    """Return the content of an ``inspect_reply``."""
    before, after = code[:cursor], code[cursor:]
    end = re.match(r"\w*", after)
    name = _name_before(before) + (end.group(0) if end else "")
    text = describe(namespace, name, with_source=detail > 0) if name else None
    if text is None:  # within the arguments of a call: the function is meant
        call = re.search(r"([A-Za-z_][\w.]*)\([^()]*$", before)
        text = describe(namespace, call.group(1), with_source=False) if call else None
    data = {} if text is None else {"text/plain": text}
    return {"status": "ok", "found": text is not None, "data": data, "metadata": {}}


def describe(namespace: dict[str, Any], name: str, *, with_source: bool) -> str | None:
    """Return signature, type, documentation and perhaps source of the object of this name."""
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", name):
        return None
    try:
        value = eval(name, namespace)  # noqa: S307 - a dotted name, checked above
    except Exception:  # there is no such thing, whatever a property raised
        return None
    lines = []
    try:
        lines.append(f"Signature: {name}{inspect.signature(value)}")
    except (TypeError, ValueError):
        lines.append(f"Value:     {pydoc.plain(repr(value))[:1000]}")
    lines.append(f"Type:      {type(value).__name__}")
    if with_source:
        try:
            lines.append("Source:\n" + inspect.getsource(value))
        except (TypeError, OSError):
            lines.append("Source:    not available")
    lines.append("Docstring:\n" + (inspect.getdoc(value) or "none"))
    return "\n".join(lines)


def _name_before(text: str) -> str:
    match = re.search(r"[A-Za-z_][\w.]*$", text)
    return match.group(0) if match else ""
