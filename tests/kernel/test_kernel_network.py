"""What the kernel sends while nothing runs, and what a network does to idle connections."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
from far_side import port_of
from fault_proxy import forgetful_relay
from kernel_driver import KernelDriver, StartKernel, agent_variables, kernel_variables
from sandbox_server import RunningSandbox


@pytest.mark.parametrize(("route", "pause_seconds"), [("agent", 3.0), ("notebook", 16.0)])
def test_a_connection_that_is_forgotten_on_the_way_costs_no_cell(
    server: RunningSandbox,
    start_kernel: StartKernel,
    new_chat: Callable[[], str],
    route: str,
    pause_seconds: float,
) -> None:
    """By a router or balancer, while the kernel is idle: nothing fails, and each cell runs once.

    The pauses are what it is about: on the notebook route a call cannot be made again, so that none
    takes a connection that was idle for so long.
    """
    chat = new_chat()
    server.ready(chat)
    with forgetful_relay(port_of(server)) as relay:
        url = f"http://127.0.0.1:{relay.port}/api"
        variables = {**kernel_variables(server, chat, IVY_ROUTE=route), "IVY_API_URL": url}
        kernel = start_kernel(variables=variables)
        assert kernel.run("n = 0").reply["status"] == "ok"
        for number in (1, 2):
            time.sleep(pause_seconds)
            relay.forget()
            cell = kernel.run("n += 1; n")
            assert cell.result == str(number)
            assert cell.seconds < 8  # far below any time limit of ours
            late = kernel.run("import time\nfor i in range(3): time.sleep(1); print(i)")
            assert late.text() == "0\n1\n2\n"
            assert late.seconds < 11


def ask_on_control(kernel: KernelDriver, msg_type: str, content: dict[str, Any]) -> dict[str, Any]:
    """The content of the reply to a request on the control channel."""
    message = kernel.client.session.msg(msg_type, content)
    kernel.client.control_channel.send(message)
    while True:
        reply = kernel.client.get_control_msg(timeout=30)
        if reply["parent_header"]["msg_id"] == message["header"]["msg_id"]:
            return dict(reply["content"])


def usage(kernel: KernelDriver) -> dict[str, Any]:
    """The content of a ``usage_reply``."""
    return ask_on_control(kernel, "usage_request", {})


def debug(kernel: KernelDriver, command: str, **arguments: Any) -> dict[str, Any]:
    """The content of a ``debug_reply``."""
    content = {"type": "request", "seq": 1, "command": command, "arguments": arguments}
    return ask_on_control(kernel, "debug_request", content)


def test_questions_that_front_ends_ask_by_themselves_leave_the_sandbox_alone(
    server: RunningSandbox, start_kernel: StartKernel, new_chat: Callable[[], str]
) -> None:
    """Usage and the debugger's state: no call while no cell runs; in a cell, the sandbox's own."""
    kernel = start_kernel(variables=agent_variables(server, new_chat()))
    mine = usage(kernel)["pid"]
    assert mine == kernel.pid
    theirs = int(kernel.run("import os; os.getpid()").result or 0)
    assert kernel.ask("kernel_info")["supported_features"] == ["debugger"]
    time.sleep(1.5)  # for what the end of a cell brings with it
    before = server.counters()["calls"]
    for _ in range(5):
        assert usage(kernel)["pid"] == mine
        about = debug(kernel, "debugInfo")
        assert (about["success"], about["body"]["isStarted"]) == (True, False)
    assert server.counters()["calls"] == before
    cell = kernel.submit("import time; time.sleep(3)")
    kernel.until(cell, lambda message: message["msg_type"] == "execute_input")
    deadline = time.monotonic() + 20
    while usage(kernel)["pid"] != theirs:
        assert time.monotonic() < deadline
    kernel.finish(cell, earlier=[{"msg_type": "status", "content": {"execution_state": "busy"}}])
    time.sleep(1.5)
    before = server.counters()["calls"]
    assert usage(kernel)["pid"] == theirs  # as it was in that cell
    assert server.counters()["calls"] == before


@pytest.mark.skipif(sys.platform != "linux", reason="sets a limit of another process")
@pytest.mark.parametrize("route", ["notebook", "agent"])
@pytest.mark.parametrize("free_descriptors", [0, 1])
def test_a_kernel_that_may_open_no_more_files_says_that_nothing_ran(
    server: RunningSandbox,
    start_kernel: StartKernel,
    new_chat: Callable[[], str],
    route: str,
    free_descriptors: int,
) -> None:
    """Where it cannot send the cell; and once it may open files again, the cell runs, once."""
    chat = new_chat()
    server.ready(chat)
    kernel = start_kernel(variables=kernel_variables(server, chat, IVY_ROUTE=route))
    kernel.run("%ivy config")
    usual = set_file_limit(kernel.pid, free_descriptors)
    cell = kernel.run("ran = globals().get('ran', 0) + 1; ran")
    resource.prlimit(kernel.pid, resource.RLIMIT_NOFILE, usual)
    if cell.reply["status"] == "error":
        assert cell.reply["ename"] == "NotSentError"
        assert "may not open another file or connection" in cell.reply["evalue"]
        assert "ulimit -n" in cell.reply["evalue"]
        assert "not known" not in cell.reply["evalue"]
        cell = kernel.run("ran = globals().get('ran', 0) + 1; ran")
    else:
        assert free_descriptors > 0
    assert cell.result == "1"


def set_file_limit(process_id: int, free_descriptors: int) -> tuple[int, int]:
    """Leave a process so many descriptors to open; return its limits of before."""
    used = {int(entry.name) for entry in Path(f"/proc/{process_id}/fd").iterdir()}
    free = (number for number in count() if number not in used)
    limit = next(islice(free, free_descriptors, None))
    before = resource.prlimit(process_id, resource.RLIMIT_NOFILE)
    resource.prlimit(process_id, resource.RLIMIT_NOFILE, (limit, before[1]))
    return before
