"""After Restart and after Shut down nothing of ours computes in any sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
from fault_proxy import FaultProxy, Faults
from home import Home
from kernel_driver import KernelDriver, StartKernel, agent_variables, running_kernel
from sandbox_server import RunningSandbox, until
from thoroughness import further
from waiting import all_ended

STUBBORN = """
import os, time
print(os.getpid(), os.getppid(), flush=True)
while True:
    try:
        while True:
            time.sleep(0.1)
    except KeyboardInterrupt:
        pass
"""
"""A cell that no interrupt stops."""

IN_THREAD = """
import os, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
print(os.getpid(), os.getppid(), flush=True)
"""
"""A cell that has ended, and left something that goes on."""


@contextlib.contextmanager
def proxy_to(server: RunningSandbox) -> Iterator[FaultProxy]:
    """Run a proxy to the sandbox server, on a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    proxy = FaultProxy(int(server.url.split(":")[2].split("/")[0]), Faults())
    running = proxy.running()

    def wait_for(coroutine: Any) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, loop).result(30)

    wait_for(running.__aenter__())
    try:
        yield proxy
    finally:
        wait_for(running.__aexit__(None, None, None))
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def url_through(proxy: FaultProxy, server: RunningSandbox) -> str:
    """The server's address behind the proxy."""
    return f"http://127.0.0.1:{proxy.port}/{server.url.split('/', 3)[3]}"


def begin(kernel: KernelDriver, code: str) -> list[psutil.Process]:
    """Begin a cell; return the processes in the sandbox that work for it."""
    message_id = kernel.submit(code)
    seen = kernel.until(message_id, lambda message: message["msg_type"] == "stream")
    return [psutil.Process(int(pid)) for pid in seen[-1]["content"]["text"].split()]


def attach(kernel: KernelDriver, chat: str) -> None:
    """Send the cells that follow to another chat."""
    assert kernel.run(f"%ivy attach {chat} --campaign campaign-of-{chat}").reply["status"] == "ok"


def crash(kernel: KernelDriver) -> None:
    """Kill the kernel's process, and start it anew as a Jupyter server does."""
    os.kill(kernel.pid, signal.SIGKILL)
    kernel.manager.restart_kernel(now=True)
    kernel.wait_until_ready()


def end(kernel: KernelDriver, how: str) -> None:
    """Restart the kernel, or shut it down."""
    kernel.restart() if how == "restart" else kernel.stop()


def check_nothing_left(kernel: KernelDriver, processes: list[psutil.Process]) -> None:
    """Check that the processes end soon, without a further cell, and all that noted them."""
    until(lambda: all_ended(processes), f"the end of {processes}", 20)
    until(lambda: not list(kernel.home.runtime.glob("ivy-agent-*")), "the end of the records", 20)


@pytest.mark.parametrize("how", ["restart", "shutdown"])
def test_a_cell_that_swallows_interrupts_is_ended(start_kernel: StartKernel, how: str) -> None:
    """By the end of its process, in the time that a restart takes."""
    kernel = start_kernel(IVY_ROUTE="agent")
    processes = begin(kernel, STUBBORN)
    end(kernel, how)
    check_nothing_left(kernel, processes)


@pytest.mark.parametrize("how", ["restart", "shutdown"])
def test_a_cell_of_the_notebook_tool_is_ended_too(
    start_kernel: StartKernel, server: RunningSandbox, how: str
) -> None:
    """By the end of that tool's process, if the cell does not stop otherwise."""
    kernel = start_kernel(IVY_ROUTE="notebook")
    kernel.run("kept = 1")
    process = psutil.Process(int(str(kernel.run("import os; os.getpid()").result)))
    kernel.submit("open('began', 'w').close()" + STUBBORN)
    until(lambda: list(server.root.glob("*/began")), "the cell runs")
    end(kernel, how)
    check_nothing_left(kernel, [process])


def test_a_process_of_the_notebook_tool_is_kept_where_its_cell_stops(
    start_kernel: StartKernel, server: RunningSandbox, chat_id: str
) -> None:
    """All notebooks of a chat share its variables there."""
    kernel, other = start_kernel(chat_id=chat_id), start_kernel(chat_id=chat_id)
    other.run("kept = 1; import os, time")
    kernel.submit("open('began', 'w').close(); time.sleep(60)")
    until(lambda: list(server.root.glob("*/began")), "the cell runs")
    kernel.stop()
    check_nothing_left(kernel, [])
    assert other.run("kept").result == "1"


@pytest.mark.parametrize("how", [further("restart"), "shutdown"])
def test_chats_attached_earlier_are_ended_too(
    start_kernel: StartKernel, chats: tuple[str, str], how: str
) -> None:
    """Not only the one that ran the last cell, and also those of a process that crashed."""
    first, second = chats
    kernel = start_kernel(chat_id=first, IVY_ROUTE="agent")
    processes = begin(kernel, IN_THREAD)
    attach(kernel, second)
    processes += begin(kernel, IN_THREAD)
    crash(kernel)
    assert not all_ended(processes[:2]), "a crash ends nothing"
    end(kernel, how)
    check_nothing_left(kernel, processes)


def test_a_shutdown_after_a_restart_needs_no_cell_in_between(start_kernel: StartKernel) -> None:
    """Restarted and shut down: what ran before is gone for good."""
    kernel = start_kernel(IVY_ROUTE="agent")
    processes = begin(kernel, STUBBORN)
    kernel.restart()
    kernel.stop()
    check_nothing_left(kernel, processes)


def test_a_crash_and_a_restart_give_an_empty_namespace(start_kernel: StartKernel) -> None:
    """Though the process that is restarted has run no cell."""
    kernel = start_kernel(IVY_ROUTE="agent")
    kernel.run("kept = 1")
    crash(kernel)
    kernel.restart()
    assert kernel.run("'kept' in globals()").result == "False"


@pytest.mark.parametrize("how", ["restart", further("shutdown")])
def test_a_sandbox_that_is_not_reached_in_time_is_ended_after_the_kernel(
    start_kernel: StartKernel, server: RunningSandbox, how: str
) -> None:
    """The process has no time to wait for it, so that another goes on after it."""
    with proxy_to(server) as proxy:
        kernel = start_kernel(IVY_ROUTE="agent", IVY_API_URL=url_through(proxy, server))
        processes = begin(kernel, STUBBORN)
        proxy.is_out = True
        end(kernel, how)
        assert not all_ended(processes)
        proxy.is_out = False
        check_nothing_left(kernel, processes)


def test_a_sandbox_that_cannot_be_reached_is_told_by_the_next_process(
    start_kernel: StartKernel, server: RunningSandbox, chats: tuple[str, str]
) -> None:
    """Once, in the next cell; and it is ended when it can be reached again."""
    first, second = chats
    with proxy_to(server) as proxy:
        url = url_through(proxy, server)
        kernel = start_kernel(chat_id=first, IVY_ROUTE="agent", IVY_API_URL=url)
        processes = begin(kernel, IN_THREAD)
        proxy.is_out = True
        kernel.restart()

        def is_known() -> bool:
            records = kernel.home.runtime.glob("ivy-agent-*")
            return any(json.loads(path.read_text())["failure"] for path in records)

        until(is_known, "the failure is known", 60)
        proxy.is_out = False
        attach(kernel, second)
        said = kernel.run("1").text("stderr")
        assert f"chat {first} could not be reached" in said
        assert kernel.run("1").text("stderr") == ""
        until(lambda: all_ended(processes), f"the end of {processes}", 20)


DEAF = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
kernel = get_ipython().kernel
parent = kernel.get_parent()
def reply(msg_type, content):
    stream = kernel.shell_channel_thread.manager.get_subshell_to_shell_channel_socket(None)
    kernel.session.send(stream, msg_type, content, parent, kernel._shell_parent_ident.get())
print('on', flush=True)
"""

HOSTILE = {
    "an unknown reply": "reply('evil_reply', {'status': 'ok'})",
    "a reply without a status": "reply('execute_reply', {})",
    "a reply that is no object": "reply('execute_reply', bytes([91, 93]))",
    "an error without text": "reply('execute_reply', {'status': 'error', 'ename': 1})",
    "a deep reply": "reply('execute_reply', {'status': 'ok', 'x': eval('[' * 90 + ']' * 90)})",
    "a flood of text": "while True: print('x' * 1000, flush=True)",
    "a flood of displays": "while True: display(1)",
}


@pytest.fixture(scope="module")
def hostile_kernel(
    server: RunningSandbox,
    new_chat: Callable[[], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[KernelDriver]:
    """One kernel on the agent route; each test that uses it ends with a restart."""
    home = Home(tmp_path_factory.mktemp("hostile"))
    with running_kernel(home, agent_variables(server, new_chat())) as kernel:
        yield kernel


@pytest.mark.parametrize("what", HOSTILE)
def test_the_second_interrupt_frees_the_kernel(hostile_kernel: KernelDriver, what: str) -> None:
    """Whatever code in the sandbox does or forges; what is said of the cell is true."""
    kernel = hostile_kernel
    kernel.run("1", timeout_seconds=90)
    code = f"{DEAF}{HOSTILE[what]}\nwhile True: pass"
    message_id = kernel.submit(code)
    seen = kernel.until(message_id, lambda message: message["msg_type"] == "stream", 90)
    kernel.interrupt()
    kernel.interrupt()
    cell = kernel.finish(message_id, earlier=seen, timeout_seconds=120)
    assert cell.reply["status"] == "error"
    assert "restarting the kernel ends it" in cell.reply["evalue"]
    assert kernel.run("%ivy status", timeout_seconds=90).reply["status"] == "ok"
    kernel.restart()
    assert kernel.run("'kernel' in globals()", timeout_seconds=90).result == "False"
