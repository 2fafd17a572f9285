"""Runs ``jupyter ivy`` as a process of its own, in directories of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from home import Home
from kernel_driver import kernel_variables
from sandbox_server import RunningSandbox


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


@pytest.fixture
def chat(chat_id: str) -> str:
    """The id of the chat that `ivy` is set to."""
    return chat_id


@pytest.fixture
def ivy(server: RunningSandbox, new_home: Callable[[], Home], chat: str) -> CommandLine:
    """The command line, on a chat of the test server."""
    return CommandLine(new_home(), kernel_variables(server, chat))


@pytest.fixture
def new_ivy(new_home: Callable[[], Home]) -> Callable[..., CommandLine]:
    """Makes a command line with an environment of its own."""
    return lambda **variables: CommandLine(new_home(), dict(variables))
