"""What ``!command``, ``%magic``, ``%%magic`` and ``name?`` do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .completion import describe

IGNORED = ("matplotlib", "config", "load_ext", "reload_ext", "autoreload", "colors", "precision")
"""Magics that set up what the shell does anyway, or does not have."""

SHELL = "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"


class UsageError(Exception):
    """A magic that does not exist here, or does not understand its arguments."""


class Commands:
    """What a cell finds under the hidden name of :data:`.source.CALLEE`.

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
        """``!command``: run it, showing its output as it comes."""
        self._flush()
        code = subprocess.call([SHELL, "-c", self._expand(command)], stdin=subprocess.DEVNULL)
        self._namespace["_exit_code"] = code
        self._flush()

    def capture(self, command: str) -> list[str]:
        """``name = !command``: the lines of its output."""
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
        """``%name arguments``."""
        if name in IGNORED:
            return None
        method = getattr(self, "_line_" + name, None)
        if method is None:
            raise UsageError(
                f"The built-in shell has no %{name}. Installing ipykernel in the sandbox "
                "(%pip install ipykernel, then restart) brings all of IPython's magics."
            )
        return method(self._expand(arguments))

    def cell(self, name: str, arguments: str, body: str) -> Any:
        """``%%name arguments`` and the lines below it."""
        method = getattr(self, "_cell_" + name, None)
        if method is None:
            raise UsageError(
                f"The built-in shell has no %%{name}. Installing ipykernel in the sandbox "
                "(%pip install ipykernel, then restart) brings all of IPython's magics."
            )
        return method(arguments, body)

    def describe(self, name: str, detail: int) -> None:
        """``name?`` and ``name??``."""
        text = describe(self._namespace, name, with_source=detail > 1)
        sys.stdout.write((text or f"Object `{name}` not found.") + "\n")

    def _expand(self, text: str) -> str:
        """Put variables into ``{expression}`` and ``$name``; leave what is none of ours."""

        def value(match: re.Match[str]) -> str:
            try:
                return str(eval(match[1] or match[2], self._namespace))  # noqa: S307 - a user's cell
            except Exception:  # not ours: the command's own braces or variable
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
