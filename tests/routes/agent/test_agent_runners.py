"""Hostile tool runners: where the agent ends up living, or why it cannot."""

from __future__ import annotations

import os
from typing import Any

import pytest
from far_side import route_to
from sandbox_server import running_sandbox
from waiting import eventually

from ivy_kernel.errors import RouteError
from ivy_kernel.local_sandbox.simulation.platforms import unavailable
from ivy_kernel.routes.agent.calls import LaunchMethod

PYTHON, NOTEBOOK = "sandbox_python", "sandbox_notebook"

CODE = "n = globals().get('n', 0) + 1\nopen('ran.txt', 'a').write('x')\nn"


def only_where_possible(runner: str) -> None:
    """Skip where this machine cannot play that runner."""
    reason = unavailable(runner)
    if reason:
        pytest.skip(reason)


@pytest.mark.parametrize(
    ("runner", "launch_method"),
    [
        ("normal", LaunchMethod(PYTHON, PYTHON)),
        ("serial", LaunchMethod(PYTHON, PYTHON)),
        ("python_dash_c", LaunchMethod(PYTHON, PYTHON)),
        ("kill_descendants", LaunchMethod(NOTEBOOK, PYTHON)),
        ("pid_namespace", LaunchMethod(NOTEBOOK, PYTHON)),
    ],
)
async def test_the_launch_method_that_works(runner: str, launch_method: LaunchMethod) -> None:
    """Each runner ends with the best launch method that works there, and no cell runs twice."""
    only_where_possible(runner)
    with running_sandbox(runner=runner) as server:
        async with route_to(server, kernel="shell") as far:
            counts = [(await far.run(CODE)).result for _ in range(3)]
            assert counts == ["1", "2", "3"]
            assert far.route.describe()["launch_method"] == str(launch_method)
            assert (await far.run("len(open('ran.txt').read())")).result == "3"


async def test_a_fresh_tmp_means_another_directory() -> None:
    """Where /tmp is not shared between calls the agent moves to a directory that is."""
    only_where_possible("fresh_tmp")
    unusable = {"HOME": "/nonexistent", "XDG_RUNTIME_DIR": ""}
    with running_sandbox(runner="fresh_tmp", environment=unusable) as server:
        async with route_to(server, directory="", kernel="shell") as far:
            assert [(await far.run(CODE)).result for _ in range(2)] == ["1", "2"]
            description = far.route.describe()
        assert description["directory"].startswith(str(server.root))
        assert any("not shared between calls" in reason for reason in description["reasons"])


@pytest.mark.parametrize(
    "settings",
    [
        {"stdout_limit_chars": 30_000},
        {"runner": "python_dash_c", "stdout_limit_chars": 5_000},
        {"result_family": {"script": "text"}},
        {"result_family": {"script": "content"}, "result_nesting": "data_json"},
    ],
    ids=str,
)
async def test_limits_and_shapes_that_do_not_matter(settings: dict[str, Any]) -> None:
    """Short outputs, small arguments and odd result shapes cost calls but no output."""
    with running_sandbox(settings) as server:
        async with route_to(server, kernel="shell") as far:
            ran = await far.run("import random\nprint(random.Random(1).randbytes(150_000).hex())")
            assert len(ran.text) == 300_001
            large = os.urandom(120_000).hex()
            assert (await far.run(f"len({large!r})")).result == "240000"


async def test_the_notebook_tool_alone_carries_everything() -> None:
    """Where only the notebook tool keeps processes, it starts the agent and makes all calls."""
    with running_sandbox() as server:
        launch_methods = (LaunchMethod(NOTEBOOK, NOTEBOOK),)
        async with route_to(server, kernel="shell", launch_methods=launch_methods) as far:
            assert [(await far.run(CODE)).result for _ in range(2)] == ["1", "2"]
            assert far.route.describe()["calls_may_overlap"] is False


async def test_no_launch_method_works() -> None:
    """Where nothing survives a call the route says why, for each method, and runs no cell."""
    only_where_possible("kill_descendants")
    with running_sandbox(runner="kill_descendants") as server:
        launch_methods = (LaunchMethod(PYTHON, PYTHON),)
        async with route_to(server, kernel="shell", launch_methods=launch_methods) as far:
            with pytest.raises(RouteError, match="does not survive") as refusal:
                await far.run(CODE)
            assert str(launch_methods[0]) in str(refusal.value)
        assert not list(server.root.rglob("ran.txt"))


async def test_serial_calls_are_noticed_and_an_interrupt_still_comes_through() -> None:
    """Where calls are queued, polls wait a second at most, so an interrupt waits no longer."""
    with running_sandbox(runner="serial") as server:
        async with route_to(server, kernel="shell") as far:
            running = far.begin("import time\nfor i in range(600): time.sleep(0.1)")
            await eventually(
                lambda: far.route.describe()["calls_may_overlap"] is False, "noticing it", 45
            )
            assert await far.route.interrupt_request(running.message_id) == "sent"
            ran = await running.end()
            assert ran.fate == "interrupted"
            waits = [float(lasted) for _, _, lasted in far.tools.log]
            assert max(waits) < 15.0
