"""Kernels with the magics loaded, plain ones unless a test asks for others."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from home import Home
from kernel_driver import running
from magic_driver import MagicKernel, magic_variables
from sandbox_server import RunningSandbox


@pytest.fixture(scope="module")
def kernel(
    server: RunningSandbox,
    new_chat: Callable[[], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[MagicKernel]:
    """A plain kernel with the magics, for all tests of a module that need no fresh one."""
    home = Home(tmp_path_factory.mktemp("plain"))
    with running(MagicKernel(home, magic_variables(server, new_chat()))) as kernel:
        yield kernel


@pytest.fixture
def slow_start(changed: Callable[..., None]) -> None:
    """Sandboxes take seconds to start, until the test's end."""
    changed(provision_seconds={"compute": 1.5, "mount": 1.0})


@pytest.fixture
def fresh_chat(kernel: MagicKernel, chat_id: str) -> Iterator[str]:
    """A chat without a sandbox, which the module's kernel uses until the test's end."""
    kernel.attach(chat_id)
    yield chat_id
    kernel.run(f"%ivy attach {kernel.variables['IVY_CHAT_ID']}")


@pytest.fixture
def start_kernel(
    server: RunningSandbox,
    new_home: Callable[[], Home],
    new_chat: Callable[[], str],
    run_kernel: Callable[[MagicKernel], MagicKernel],
) -> Callable[..., MagicKernel]:
    """Starts a fresh kernel, by default a plain one on a chat of its own."""

    def start(
        chat_id: str = "",
        kernel_name: str = "python3",
        at: RunningSandbox = server,
        **more: str,
    ) -> MagicKernel:
        variables = magic_variables(at, chat_id or new_chat(), **more)
        return run_kernel(MagicKernel(new_home(), variables, kernel_name))

    return start
