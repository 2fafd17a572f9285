"""Fixtures of several directories: a sandbox server for each module, chats, homes and kernels.

A directory's own ``conftest.py`` says what is different there; it may build on these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from home import Home
from sandbox_server import RunningSandbox, running_sandbox

if TYPE_CHECKING:
    from kernel_driver import KernelDriver, StartKernel

_numbers = count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningSandbox]:
    """A sandbox server for all tests of a module; `changed` changes its settings."""
    # Starting one takes 0.4 s of CPU time. A longer life would let modules see each other's files.
    with running_sandbox() as running:
        yield running


@pytest.fixture
def changed(server: RunningSandbox) -> Iterator[Callable[..., None]]:
    """Changes settings of the server until the end of the test."""
    before = server.control()["config"]
    names: set[str] = set()

    def change(**settings: object) -> None:
        names.update(settings)
        server.control(settings)

    yield change
    if not names:
        return
    now = server.control()["config"]
    for name in names:
        if isinstance(now[name], dict) and isinstance(before[name], dict):
            # Objects are merged: what was added must be taken away.
            before[name] |= dict.fromkeys(set(now[name]) - set(before[name]))
    server.control({name: before[name] for name in names})


@pytest.fixture(scope="session")
def new_chat() -> Callable[[], str]:
    """Returns a chat id that was not used before."""
    return lambda: f"chat-{next(_numbers)}"


@pytest.fixture
def chat_id(new_chat: Callable[[], str]) -> str:
    """The id of a chat that was not used before."""
    return new_chat()


@pytest.fixture
def new_home(tmp_path: Path) -> Callable[[], Home]:
    """Makes directories for one more process."""
    numbers = count(1)
    return lambda: Home(tmp_path / f"home-{next(numbers)}")


@pytest.fixture
def run_kernel() -> Iterator[Callable[[KernelDriver], KernelDriver]]:
    """Starts a kernel, which ends with the test."""
    from kernel_driver import running

    with ExitStack() as stack:
        yield lambda kernel: stack.enter_context(running(kernel))


@pytest.fixture
def start_kernel(
    server: RunningSandbox,
    new_home: Callable[[], Home],
    new_chat: Callable[[], str],
    run_kernel: Callable[[KernelDriver], KernelDriver],
) -> StartKernel:
    """Starts an "Ivy Sandbox" kernel, by default on the notebook route of a chat of its own."""
    from kernel_driver import KernelDriver, kernel_variables

    def start(
        *,
        chat_id: str | None = None,
        home: Home | None = None,
        arguments: list[str] | None = None,
        variables: dict[str, str] | None = None,
        **more: str,
    ) -> KernelDriver:
        if variables is None:
            variables = kernel_variables(server, chat_id or new_chat(), **more)
        return run_kernel(KernelDriver(home or new_home(), variables, arguments))

    return start
