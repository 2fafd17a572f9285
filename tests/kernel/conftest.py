"""A kernel for each module that wants one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from home import Home
from kernel_driver import KernelDriver, kernel_variables, running_kernel
from sandbox_server import RunningSandbox


@pytest.fixture(scope="module")
def kernel(
    server: RunningSandbox,
    new_chat: Callable[[], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[KernelDriver]:
    """A kernel on the notebook route, for all tests of a module that need no fresh one."""
    home = Home(tmp_path_factory.mktemp("kernel"))
    with running_kernel(home, kernel_variables(server, new_chat())) as running:
        yield running


@pytest.fixture
def chats(server: RunningSandbox, new_chat: Callable[[], str]) -> tuple[str, str]:
    """Two chats whose sandboxes are there."""
    first, second = new_chat(), new_chat()
    for chat in (first, second):
        server.ready(chat, f"session-of-{chat}", f"campaign-of-{chat}")
    return first, second
