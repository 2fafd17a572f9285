"""Runs ``jupyter ivy`` as a process of its own, in directories of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from kernel_driver import Home, kernel_variables
from sandbox_server import RunningSandbox, running_sandbox

_numbers = count(1)


@dataclass
class CommandLine:
    """``jupyter ivy`` with one home and one environment.

    Parameters
    ----------
    home
        Its directories; commands run in ``home.work``.
    variables
        Further variables of its environment.
    """

    home: Home
    variables: dict[str, str]

    def __call__(
        self, *arguments: str, stdin: str = "", timeout_seconds: float = 90, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; ``more`` are further variables."""
        return subprocess.run(
            [sys.executable, "-m", "ivy_kernel.cli", *arguments],
            env=self.home.environment({**self.variables, **more}),
            cwd=self.home.work,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )


@pytest.fixture(scope="module")
def server() -> Iterator[RunningSandbox]:
    """A server for all tests of a module."""
    with running_sandbox() as running:
        yield running


@pytest.fixture
def chat() -> str:
    """A chat id that nobody used yet."""
    return f"cli-{next(_numbers)}"


@pytest.fixture
def ivy(server: RunningSandbox, tmp_path: Path, chat: str) -> CommandLine:
    """The command line, on a chat of the test server."""
    return CommandLine(Home(tmp_path / "home"), kernel_variables(server, chat))


@pytest.fixture
def new_ivy(tmp_path: Path) -> Callable[..., CommandLine]:
    """Makes a command line with an environment of its own."""
    numbers = count(1)
    return lambda **variables: CommandLine(
        Home(tmp_path / f"home-{next(numbers)}"), dict(variables)
    )
