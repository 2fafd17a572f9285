"""Kernels on the agent route, with a real sandbox server behind them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from home import Home
from kernel_driver import KernelDriver, StartKernel, agent_variables, running_kernel
from sandbox_server import RunningSandbox

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


@pytest.fixture(scope="module")
def kernel(
    server: RunningSandbox,
    new_chat: Callable[[], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[KernelDriver]:
    """A kernel on the agent route, for all tests of a module that need no fresh one."""
    home = Home(tmp_path_factory.mktemp("kernel"))
    with running_kernel(home, agent_variables(server, new_chat())) as running:
        yield running


@pytest.fixture
def start_kernel(
    server: RunningSandbox, new_chat: Callable[[], str], start_kernel: StartKernel
) -> StartKernel:
    """Starts a fresh kernel on the agent route, by default in a chat of its own."""

    def start(
        *, chat_id: str | None = None, sandbox: RunningSandbox | None = None, **variables: str
    ) -> KernelDriver:
        chat_id = chat_id or new_chat()
        return start_kernel(variables=agent_variables(sandbox or server, chat_id, **variables))

    return start
