"""Kernels whose widgets are watched as a front end sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from home import Home
from kernel_driver import running
from magic_driver import magic_variables
from sandbox_server import RunningSandbox, running_sandbox
from widget_driver import WidgetKernel


@pytest.fixture
def quiet_server(chat_id: str) -> Iterator[RunningSandbox]:
    """A server of the test alone, where its chat's sandbox is being started for minutes."""
    with running_sandbox(provision_seconds={"compute": 300.0, "mount": 0.0}) as running:
        running.create(chat_id)
        yield running


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
                kernel = WidgetKernel(home, variables, kernel_name)
                started[kernel_name] = stack.enter_context(running(kernel))
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
    kernel = shared_kernels(request.param)
    kernel.attach(chat_id)
    return kernel


@pytest.fixture
def start_kernel(
    server: RunningSandbox,
    new_home: Callable[[], Home],
    chat_id: str,
    run_kernel: Callable[[WidgetKernel], WidgetKernel],
) -> Callable[..., WidgetKernel]:
    """Starts a fresh kernel on the test's chat."""

    def start(kernel_name: str, at: RunningSandbox = server, **more: str) -> WidgetKernel:
        variables = magic_variables(at, chat_id, **more)
        return run_kernel(WidgetKernel(new_home(), variables, kernel_name))

    return start
