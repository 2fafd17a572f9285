"""A sandbox server for each module of tests, and kernels that use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest
from magic_driver import (
    Home,
    MagicKernel,
    magic_variables,
    running_magic_kernel,
)
from sandbox_server import RunningSandbox, running_sandbox

_numbers = count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningSandbox]:
    """A server for all tests of a module."""
    with running_sandbox() as running:
        yield running


@pytest.fixture
def new_chat() -> Callable[[], str]:
    """Gives chat ids that nobody used yet."""
    return lambda: f"magic-{next(_numbers)}"


@pytest.fixture(scope="module")
def kernel(
    server: RunningSandbox, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MagicKernel]:
    """A plain kernel with the magics, for all tests of a module that need no fresh one."""
    home = Home(tmp_path_factory.mktemp("plain"))
    with running_magic_kernel(home, magic_variables(server, f"shared-{next(_numbers)}")) as running:
        yield running


@pytest.fixture
def slow_start(server: RunningSandbox) -> Iterator[None]:
    """Sandboxes take seconds to start, until the test's end."""
    server.control({"provision_seconds": {"compute": 1.5, "mount": 1.0}})
    yield
    server.control({"provision_seconds": {"compute": 0, "mount": 0}})


@pytest.fixture
def fresh_chat(kernel: MagicKernel, new_chat: Callable[[], str]) -> Iterator[str]:
    """A chat without a sandbox, which the module's kernel uses until the test's end."""
    chat_id = new_chat()
    kernel.run(f"%ivy attach {chat_id} --campaign campaign-of-{chat_id} --session s-{chat_id}")
    yield chat_id
    kernel.run(f"%ivy attach {kernel.variables['IVY_CHAT_ID']}")


@pytest.fixture
def start_kernel(
    server: RunningSandbox, tmp_path: Path, new_chat: Callable[[], str]
) -> Iterator[Callable[..., MagicKernel]]:
    """Starts a fresh kernel, by default a plain one on a chat of its own."""
    homes = count(1)
    with ExitStack() as stack:

        def start(
            chat_id: str = "",
            kernel_name: str = "python3",
            at: RunningSandbox = server,
            **more: str,
        ) -> MagicKernel:
            home = Home(tmp_path / f"home-{next(homes)}")
            variables = magic_variables(at, chat_id or new_chat(), **more)
            return stack.enter_context(running_magic_kernel(home, variables, kernel_name))

        yield start
