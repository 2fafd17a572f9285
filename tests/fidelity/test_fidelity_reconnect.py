"""A kernel process that ends and comes back while a cell goes on in the sandbox."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

from kernel_driver import KernelDriver, StartKernel
from sandbox_server import RunningSandbox, until


def crash(kernel: KernelDriver) -> None:
    """Kill the kernel's process and start it anew behind the same connection file."""
    before = kernel.pid
    os.kill(before, signal.SIGKILL)
    kernel.manager.restart_kernel(now=True)
    kernel.client.wait_for_ready(timeout=30)
    assert kernel.pid != before


def leave_running(kernel: KernelDriver, code: str) -> None:
    """Start a cell, wait for its first output, and crash the kernel."""
    message_id = kernel.submit(code)
    kernel.until(message_id, lambda message: message["msg_type"] == "stream")
    crash(kernel)


TICKING = """
import os, time
for number in range(400):
    print("tick", number, flush=True)
    if os.path.exists(FILE):
        break
    time.sleep(0.2)
print("all done")
"""


def test_reconnect_shows_the_cell_that_went_on(start_kernel: StartKernel, tmp_path: Path) -> None:
    """After a crash `%ivy reconnect` shows the rest of the running cell and ends with it."""
    kernel = start_kernel()
    kernel.run("kept = 'still here'")
    leave_running(kernel, TICKING.replace("FILE", repr(str(tmp_path / "announced"))))
    message_id = kernel.submit("%ivy reconnect")
    earlier = kernel.until(
        message_id,
        lambda message: "is still running in the sandbox" in message["content"].get("text", ""),
    )
    (tmp_path / "announced").touch()
    run = kernel.finish(message_id, earlier=earlier)
    assert run.reply["status"] == "ok"
    assert re.search(r"tick \d+\nall done\n", run.text())
    assert "is still running in the sandbox" in run.text("stderr")
    assert kernel.run("kept").result == "'still here'"


def test_reconnect_shows_a_cell_that_ended_meanwhile(
    start_kernel: StartKernel, server: RunningSandbox
) -> None:
    """What a cell said while there was no kernel process is not lost, its error included."""
    kernel = start_kernel()
    leave_running(
        kernel,
        "import time, pathlib\nprint('on', flush=True)\ntime.sleep(1)\n"
        "print('after the crash')\npathlib.Path('it-has-ended').touch()\n[][1]",
    )
    until(lambda: list(server.root.rglob("it-has-ended")), "the end of the cell")
    run = kernel.run("%ivy reconnect")
    assert run.reply["status"] == "ok", "the command has not failed, the earlier cell has"
    assert "after the crash\n" in run.text()
    assert "IndexError" in run.text("stderr")
    again = kernel.run("%ivy reconnect")
    assert "after the crash" not in again.text()


def test_interrupt_stops_the_cell_that_went_on(start_kernel: StartKernel) -> None:
    """An interrupt of `%ivy reconnect` reaches the earlier cell, and both end."""
    kernel = start_kernel()
    leave_running(kernel, "print('on', flush=True)\nimport time\ntime.sleep(120)")
    message_id = kernel.submit("%ivy reconnect")
    earlier = kernel.until(message_id, lambda message: message["msg_type"] == "stream")
    kernel.interrupt()
    run = kernel.finish(message_id, earlier=earlier, timeout_seconds=20)
    assert run.reply["status"] == "ok"
    assert "KeyboardInterrupt" in run.text("stderr")
    assert kernel.run("1 + 1").result == "2"


def test_second_interrupt_leaves_the_cell_running(start_kernel: StartKernel) -> None:
    """A cell that ignores interrupts can be left: the second one ends the waiting."""
    kernel = start_kernel()
    stubborn = (
        "import time\nend = time.monotonic() + 60\nprint('on', flush=True)\n"
        "while time.monotonic() < end:\n"
        "    try:\n        time.sleep(5)\n    except KeyboardInterrupt:\n        print('no')\n"
    )
    leave_running(kernel, stubborn)
    message_id = kernel.submit("%ivy reconnect")
    earlier = kernel.until(message_id, lambda message: message["msg_type"] == "stream")
    kernel.interrupt()
    kernel.interrupt()
    run = kernel.finish(message_id, earlier=earlier)
    assert run.reply["status"] == "error"
    assert run.error["ename"] == "KeyboardInterrupt"


def test_next_cell_waits_behind_the_earlier_one(start_kernel: StartKernel) -> None:
    """Without `%ivy reconnect` the next cell runs after the earlier one, in the same namespace."""
    kernel = start_kernel()
    leave_running(kernel, "print('on', flush=True)\nimport time\ntime.sleep(2)\nmade = 5")
    assert kernel.run("made").result == "5"


def test_earlier_cell_asks_under_reconnect(start_kernel: StartKernel) -> None:
    """A question of the earlier cell is put to the user of `%ivy reconnect`."""
    kernel = start_kernel()
    message_id = kernel.submit(
        "print('on', flush=True)\nimport time\ntime.sleep(2)\nprint('so', input('who? '))",
        allow_stdin=True,
    )
    kernel.until(message_id, lambda message: message["msg_type"] == "stream")
    crash(kernel)
    message_id = kernel.submit("%ivy reconnect", allow_stdin=True)
    question = kernel.client.get_stdin_msg(timeout=20)
    assert question["content"]["prompt"] == "who? "
    kernel.client.input("me")
    assert "so me\n" in kernel.finish(message_id).text()


def test_reconnect_with_nothing_running_ends_at_once(kernel: KernelDriver) -> None:
    """`%ivy reconnect` only tells the status where nothing went on."""
    kernel.run("1")
    until(lambda: kernel.run("%ivy reconnect").seconds < 3, "a quick reconnect", 30)
