"""Kernels on the agent route, with a real sandbox server behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from home import Home
from kernel_driver import KernelDriver, StartKernel, agent_variables, running_kernel
from sandbox_server import RunningSandbox


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
