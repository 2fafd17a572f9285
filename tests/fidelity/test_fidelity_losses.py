"""What is lost in the sandbox is noticed, told once, and never covered up."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from kernel_driver import KernelDriver, StartKernel
from sandbox_server import RunningSandbox, until

GONE = "The variables are gone"


@pytest.fixture
def start_kernel(start_kernel: StartKernel) -> StartKernel:
    """Starts kernels that restore nothing by themselves: losses alone are looked at here."""
    return partial(start_kernel, IVY_RESTORE="off")


@contextlib.contextmanager
def children_ended(pid: int) -> Iterator[None]:
    """Check that a process ends by itself after what is done in the block."""
    yield
    until(lambda: not Path(f"/proc/{pid}").exists() or _is_zombie(pid), f"the end of {pid}")


def _is_zombie(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    return True


def remote_pids(kernel: KernelDriver) -> tuple[int, int]:
    """The processes of the sandbox's kernel and of its parent, the agent."""
    run = kernel.run("import os\n(os.getpid(), os.getppid())")
    assert run.result is not None
    here, parent = run.result.strip("()").split(",")
    return int(here), int(parent)


def check_fresh(kernel: KernelDriver) -> None:
    """The kernel works again, with an empty namespace, and says nothing more of the loss."""
    run = kernel.run("'before' in globals()")
    assert run.result == "False"
    assert GONE not in run.text("stderr")


def test_restart_gives_a_fresh_namespace(start_kernel: StartKernel) -> None:
    """After a restart nothing of before is there, also when a cell was running."""
    kernel = start_kernel()
    kernel.run("before = 1")
    kernel.restart()
    check_fresh(kernel)
    kernel.run("before = 2")
    message_id = kernel.submit("print('on', flush=True)\nimport time\ntime.sleep(60)")
    kernel.until(message_id, lambda message: message["msg_type"] == "stream")
    kernel.restart()
    check_fresh(kernel)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import os\nos._exit(3)", "exit code 3"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "memory"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
    ],
    ids=["exit", "killed as when out of memory", "crash"],
)
def test_a_cell_that_ends_its_python_says_so(
    start_kernel: StartKernel, code: str, why: str
) -> None:
    """The cell fails and names the cause; the next one runs in a new, empty namespace."""
    kernel = start_kernel()
    kernel.run("before = 1")
    # What is still in the sockets of a process that is killed is lost, in a local kernel too.
    pause = "import time\ntime.sleep(0.3)"
    run = kernel.run(f"print('last words', flush=True)\n{pause}\n{code}")
    assert run.reply["status"] == "error"
    assert run.text() == "last words\n"
    assert GONE in run.error["evalue"]
    assert why in run.error["evalue"]
    check_fresh(kernel)


def test_a_python_killed_between_cells_is_told_before_the_next(start_kernel: StartKernel) -> None:
    """The next cell does not run in an empty namespace unasked: it says what happened first."""
    kernel = start_kernel()
    kernel.run("before = 1")
    pid, _ = remote_pids(kernel)
    with children_ended(pid):
        os.kill(pid, signal.SIGKILL)
    run = kernel.run("open('ran', 'w').close()\nbefore")
    assert run.reply["status"] == "error"
    assert GONE in run.error["evalue"]
    assert kernel.run("import os\nos.path.exists('ran')").result == "False"
    check_fresh(kernel)


def test_a_killed_agent_is_told_before_the_next_cell(start_kernel: StartKernel) -> None:
    """When the agent is killed its kernel ends too, and the next cell tells instead of running."""
    kernel = start_kernel()
    kernel.run("before = 1")
    pid, agent = remote_pids(kernel)
    with children_ended(pid):
        os.kill(agent, signal.SIGKILL)
    run = kernel.run("open('ran', 'w').close()\nbefore")
    assert run.reply["status"] == "error"
    assert GONE in run.error["evalue"]
    assert kernel.run("import os\nos.path.exists('ran')").result == "False"
    check_fresh(kernel)


def test_an_agent_killed_under_a_cell(start_kernel: StartKernel) -> None:
    """A cell under way when the agent is killed ends soon, and its fate is called unknown."""
    kernel = start_kernel()
    kernel.run("before = 1")
    _, agent = remote_pids(kernel)
    message_id = kernel.submit("print('on', flush=True)\nimport time\ntime.sleep(60)")
    earlier = kernel.until(message_id, lambda message: message["msg_type"] == "stream")
    os.kill(agent, signal.SIGKILL)
    began = time.monotonic()
    run = kernel.finish(message_id, earlier=earlier)
    assert time.monotonic() - began < 20
    assert run.error["ename"] == "SandboxLostError"
    assert "not known" in run.error["evalue"]
    check_fresh(kernel)


def test_a_sandbox_recreated_behind_our_back(
    start_kernel: StartKernel, server: RunningSandbox
) -> None:
    """A sandbox terminated and created again by others is not taken for the one of before."""
    kernel = start_kernel(chat_id="recreated")
    kernel.run("before = 1")
    assert server.call("POST", "/v1/sandbox/recreated/terminate")[0] == 200
    until(lambda: server.status("recreated")["status"] != "active", "the end of the sandbox")
    server.ready("recreated", "session-of-recreated", "campaign-of-recreated")
    run = kernel.run("open('ran', 'w').close()\nbefore")
    assert run.reply["status"] == "error"
    assert GONE in run.error["evalue"] or "gone" in run.error["evalue"]
    assert kernel.run("import os\nos.path.exists('ran')").result == "False"
    check_fresh(kernel)


def test_a_sandbox_terminated_behind_our_back(
    start_kernel: StartKernel, server: RunningSandbox
) -> None:
    """A sandbox terminated by others is called gone before anything runs in a new one."""
    kernel = start_kernel(chat_id="terminated")
    kernel.run("before = 1")
    assert server.call("POST", "/v1/sandbox/terminated/terminate")[0] == 200
    until(lambda: server.status("terminated")["status"] != "active", "the end of the sandbox")
    run = kernel.run("open('ran', 'w').close()\nbefore")
    assert run.reply["status"] == "error"
    assert "gone" in run.error["evalue"]
    assert kernel.run("import os\nos.path.exists('ran')").result == "False"
    check_fresh(kernel)


def test_shutdown_leaves_nothing(start_kernel: StartKernel) -> None:
    """Shutting the kernel down ends the sandbox's kernel and the agent soon."""
    kernel = start_kernel()
    pid, agent = remote_pids(kernel)
    with children_ended(pid), children_ended(agent):
        kernel.stop()
