"""Kernels whose widgets are watched as a front end sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest
from magic_driver import Home, magic_variables
from sandbox_server import RunningSandbox, running_sandbox
from widget_driver import WidgetKernel, running_widget_kernel

_numbers = count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningSandbox]:
    """A server for all tests of a module."""
    with running_sandbox() as running:
        yield running


@pytest.fixture
def quiet_server(chat_id: str) -> Iterator[RunningSandbox]:
    """A server that nobody else asks, where the test's sandbox is being started for long."""
    with running_sandbox(provision_seconds={"compute": 300.0, "mount": 0.0}) as running:
        running.create(chat_id)
        yield running


@pytest.fixture
def chat_id() -> str:
    """A chat that nobody used yet."""
    return f"widget-{next(_numbers)}"


@pytest.fixture(scope="module")
def shared_kernels(
    server: RunningSandbox, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], WidgetKernel]]:
    """The module's kernel of each name, started when it is first asked for."""
    started: dict[str, WidgetKernel] = {}
    with ExitStack() as stack:

        def get(kernel_name: str) -> WidgetKernel:
            if kernel_name not in started:
                home = Home(tmp_path_factory.mktemp(kernel_name))
                variables = magic_variables(server, f"own-{kernel_name}")
                running = running_widget_kernel(home, variables, kernel_name)
                started[kernel_name] = stack.enter_context(running)
            return started[kernel_name]

        yield get


@pytest.fixture(params=["python3", "ivy-sandbox"])
def kernel(
    request: pytest.FixtureRequest,
    shared_kernels: Callable[[str], WidgetKernel],
    server: RunningSandbox,
    chat_id: str,
) -> WidgetKernel:
    """Both kinds of kernel, on the test's chat."""
    running = shared_kernels(request.param)
    attach = f"%ivy attach {chat_id} --campaign campaign-of-{chat_id} --session s-{chat_id}"
    assert running.run(attach).reply["status"] == "ok"
    return running


@pytest.fixture
def start_kernel(
    server: RunningSandbox, tmp_path: Path, chat_id: str
) -> Iterator[Callable[..., WidgetKernel]]:
    """Starts a kernel on the test's chat."""
    homes = count(1)
    with ExitStack() as stack:

        def start(kernel_name: str, at: RunningSandbox = server, **more: str) -> WidgetKernel:
            home = Home(tmp_path / f"home-{next(homes)}")
            variables = magic_variables(at, chat_id, **more)
            return stack.enter_context(running_widget_kernel(home, variables, kernel_name))

        yield start
