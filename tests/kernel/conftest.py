"""A sandbox server for all tests of the kernel, and a kernel for each module that wants one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest
from kernel_driver import (
    Home,
    KernelDriver,
    StartKernel,
    kernel_variables,
    running_kernel,
)
from sandbox_server import RunningSandbox, running_sandbox

_numbers = count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningSandbox]:
    """A server for all tests of a module; who changes its settings changes them back."""
    with running_sandbox() as running:
        yield running


@pytest.fixture
def changed(server: RunningSandbox) -> Iterator[Callable[..., None]]:
    """Changes settings of the server until the test's end."""
    config = server.control()["config"]
    names: set[str] = set()

    def change(**settings: object) -> None:
        names.update(settings)
        server.control(settings)

    yield change
    if names:
        server.control({name: config[name] for name in names})


@pytest.fixture
def new_home(tmp_path: Path) -> Callable[[], Home]:
    """Makes directories for one more kernel."""
    numbers = count(1)
    return lambda: Home(tmp_path / f"home-{next(numbers)}")


@pytest.fixture
def new_chat() -> Callable[[], str]:
    """Gives chat ids that nobody used yet."""
    return lambda: f"chat-{next(_numbers)}"


@pytest.fixture(scope="module")
def kernel(
    server: RunningSandbox, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KernelDriver]:
    """A kernel on the notebook route, for all tests of a module that need no fresh one."""
    home = Home(tmp_path_factory.mktemp("kernel"))
    variables = kernel_variables(server, f"shared-{next(_numbers)}")
    with running_kernel(home, variables) as running:
        yield running


@pytest.fixture
def start_kernel(
    server: RunningSandbox, new_home: Callable[[], Home], new_chat: Callable[[], str]
) -> Iterator[StartKernel]:
    """Starts a fresh kernel, by default on the notebook route of a chat of its own."""
    with ExitStack() as stack:

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
            started = running_kernel(home or new_home(), variables, arguments)
            return stack.enter_context(started)

        yield start
