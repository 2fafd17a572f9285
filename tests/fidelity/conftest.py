"""Kernels on the agent route, with a real sandbox server behind them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import count
from pathlib import Path

import pytest
from kernel_driver import (
    Home,
    KernelDriver,
    kernel_variables,
    running_kernel,
)
from sandbox_server import RunningSandbox, running_sandbox

_numbers = count(1)

StartKernel = Callable[..., KernelDriver]

THOROUGH = bool(os.environ.get("IVY_TEST_THOROUGH"))
"""Whether the tests that take minutes run too."""


def pytest_configure(config: pytest.Config) -> None:
    """Declare our marker."""
    config.addinivalue_line("markers", "thorough: takes minutes; runs with IVY_TEST_THOROUGH=1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what takes minutes, unless it is asked for."""
    for item in items:
        if item.get_closest_marker("thorough") and not THOROUGH:
            item.add_marker(pytest.mark.skip(reason="takes minutes: set IVY_TEST_THOROUGH=1"))


@contextmanager
def sandbox_as_in_use(**settings: object) -> Iterator[RunningSandbox]:
    """A server that knows nothing of pytest, under which ipykernel ignores child processes."""
    name = "PYTEST_CURRENT_TEST"
    hidden = os.environ.pop(name, "")
    with ExitStack() as stack:
        try:
            running = stack.enter_context(running_sandbox(**settings))
        finally:
            os.environ[name] = hidden
        yield running


@pytest.fixture(scope="module")
def server() -> Iterator[RunningSandbox]:
    """A server for all tests of a module."""
    with sandbox_as_in_use() as running:
        yield running


@pytest.fixture
def new_home(tmp_path: Path) -> Callable[[], Home]:
    """Makes directories for one more kernel."""
    numbers = count(1)
    return lambda: Home(tmp_path / f"home-{next(numbers)}")


def agent_kernel(
    server: RunningSandbox, home: Home, chat_id: str, **variables: str
) -> AbstractContextManager[KernelDriver]:
    """A kernel on the agent route of a sandbox that is there."""
    server.ready(chat_id, f"session-of-{chat_id}", f"campaign-of-{chat_id}")
    variables = {"IVY_ROUTE": "agent", **variables}
    return running_kernel(home, kernel_variables(server, chat_id, **variables))


@pytest.fixture(scope="module")
def kernel(
    server: RunningSandbox, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KernelDriver]:
    """A kernel on the agent route, for all tests of a module that need no fresh one."""
    home = Home(tmp_path_factory.mktemp("kernel"))
    with agent_kernel(server, home, f"shared-{next(_numbers)}") as running:
        yield running


@pytest.fixture
def start_kernel(server: RunningSandbox, new_home: Callable[[], Home]) -> Iterator[StartKernel]:
    """Starts a fresh kernel on the agent route, by default in a chat of its own."""
    with ExitStack() as stack:

        def start(
            *,
            chat_id: str | None = None,
            sandbox: RunningSandbox | None = None,
            **variables: str,
        ) -> KernelDriver:
            chat = chat_id or f"chat-{next(_numbers)}"
            started = agent_kernel(sandbox or server, new_home(), chat, **variables)
            return stack.enter_context(started)

        yield start
