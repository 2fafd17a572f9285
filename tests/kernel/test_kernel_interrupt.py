"""Interrupts: at once, never the end of the kernel, and never a lie about the sandbox."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kernel_driver import KernelDriver, StartKernel
from sandbox_server import RunningSandbox, until

USABLE_SECONDS = 10.0
"""Enough for a busy machine, and far less than the cells would take."""


def wait_for_call(server: RunningSandbox, kernel: KernelDriver) -> None:
    """Wait until a tool is running a call of the kernel's own sandbox, which is there."""
    own = server.create(kernel.variables["IVY_CHAT_ID"])["sandboxId"]

    def is_running() -> bool:
        sandboxes = server.control()["sandboxes"]
        return any(each["callsInFlight"] for each in sandboxes if each["sandboxId"] == own)

    until(is_running, "a call in flight")


@pytest.mark.parametrize(
    "code",
    [
        "import time\nopen('began', 'w').close()\ntime.sleep(30)",
        "open('began', 'w')\nwhile 1:\n  1",
    ],
    ids=["sleep", "tight-loop"],
)
def test_an_interrupt_stops_the_cell_in_the_sandbox(
    kernel: KernelDriver, server: RunningSandbox, code: str
) -> None:
    """Soon: KeyboardInterrupt as output and reply, from over there; same processes."""
    kernel.run("import os; kept = 5; open('began', 'w').close(); os.remove('began')")
    remote = kernel.run("os.getpid()").result
    mine = kernel.pid
    message_id = kernel.submit(code)
    until(lambda: list(server.root.glob("*/began")), "the cell is running")
    began = time.monotonic()
    assert kernel.interrupt() < USABLE_SECONDS
    cell = kernel.finish(message_id, began=began)
    assert cell.seconds < USABLE_SECONDS
    assert cell.reply["ename"] == "KeyboardInterrupt"
    # The sandbox's traceback, or its word: so it has stopped.
    said = "\n".join(cell.reply["traceback"])
    assert "Traceback" in said or "has confirmed" in said
    assert kernel.run("(kept, os.getpid())").result == f"(5, {remote})"
    assert kernel.pid == mine


def test_a_double_interrupt_is_one(kernel: KernelDriver, server: RunningSandbox) -> None:
    """Impatience harms nothing: one reply, and the next cell is not hit."""
    kernel.run("import time")
    message_id = kernel.submit("time.sleep(30)")
    wait_for_call(server, kernel)
    kernel.interrupt()
    kernel.interrupt()
    assert kernel.finish(message_id).reply["ename"] == "KeyboardInterrupt"
    assert kernel.no_further_reply()
    assert kernel.run("time.sleep(0.3); 'fine'").result == "'fine'"


def test_interrupts_of_an_idle_kernel_do_nothing(kernel: KernelDriver) -> None:
    """By message or by signal: same process, and the next cell runs."""
    mine = kernel.pid
    for number in range(3):
        kernel.interrupt()
        assert kernel.run(f"{number}").result == str(number)
        os.kill(mine, signal.SIGINT)
        kernel.ask("kernel_info")  # answered after the signal
        assert kernel.run(f"{number}").result == str(number)
    assert kernel.pid == mine


def test_a_signal_interrupts_like_a_message(kernel: KernelDriver, server: RunningSandbox) -> None:
    """SIGINT, which some tools send all the same, stops the cell and not the kernel."""
    mine = kernel.pid
    kernel.run("import time")
    message_id = kernel.submit("time.sleep(30)")
    wait_for_call(server, kernel)
    began = time.monotonic()
    os.kill(mine, signal.SIGINT)
    cell = kernel.finish(message_id, began=began)
    assert cell.reply["ename"] == "KeyboardInterrupt"
    assert cell.seconds < USABLE_SECONDS
    assert kernel.run("2").result == "2"
    assert kernel.pid == mine


def test_an_interrupt_on_the_heels_of_its_cell_hits_it(kernel: KernelDriver) -> None:
    """An interrupt that comes before the cell has begun still ends it."""
    kernel.run("import time")
    message_id = kernel.submit("time.sleep(30)")
    began = time.monotonic()
    kernel.interrupt()
    cell = kernel.finish(message_id, began=began)
    assert cell.reply["ename"] == "KeyboardInterrupt"
    assert cell.seconds < USABLE_SECONDS
    assert kernel.run("3").result == "3"


def wait_for_interrupt(kernel: KernelDriver) -> None:
    """Wait until the kernel handles an interrupt that another client has sent."""
    while kernel.client.get_iopub_msg(timeout=30)["parent_header"]["msg_type"] != (
        "interrupt_request"
    ):
        pass


def test_an_interrupt_of_an_idle_kernel_never_hits_the_next_cell(kernel: KernelDriver) -> None:
    """However soon that is sent, by the client that sent the interrupt or by another."""
    kernel.run("import time")
    for number in range(10):
        sent = kernel.send_interrupt()
        assert kernel.run(f"time.sleep(0.05); {number}").result == str(number)
        kernel.interrupt_replied(sent)
    for number in range(5):  # as a Jupyter server sends it, in a session of its own
        kernel.manager.interrupt_kernel()
        wait_for_interrupt(kernel)
        assert kernel.run(f"time.sleep(0.05); {number}").result == str(number)


def test_an_interrupt_by_a_server_on_the_heels_of_its_cell_hits_it(kernel: KernelDriver) -> None:
    """Its clock and its connection are others than the client's, so the order of arrival tells."""
    kernel.run("import time")
    for _ in range(3):
        message_id = kernel.submit("time.sleep(60)")
        kernel.manager.interrupt_kernel()
        assert kernel.finish(message_id).reply["ename"] == "KeyboardInterrupt"
    assert kernel.run("3").result == "3"


def test_an_interrupt_aborts_cells_in_the_queue(
    kernel: KernelDriver, server: RunningSandbox
) -> None:
    """Cells that were sent behind an interrupted one do not run, as in any notebook."""
    kernel.run("import time; later = 0")
    first = kernel.submit("time.sleep(30)")
    wait_for_call(server, kernel)
    second = kernel.submit("later = 1")
    kernel.interrupt()
    assert kernel.finish(first).reply["status"] == "error"
    assert kernel.reply(second)["content"]["status"] == "aborted"
    assert kernel.run("later").result == "0"


def test_a_cell_that_ignores_the_signal_is_called_not_confirmed(
    kernel: KernelDriver, server: RunningSandbox
) -> None:
    """The prompt comes back long before; the words say that the cell may be running still."""
    message_id = kernel.submit(
        "import signal, time\n"
        "old = signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "open('deaf', 'w').close()\n"
        "time.sleep(10)\n"
        "_ = signal.signal(signal.SIGINT, old)"
    )
    until(lambda: list(server.root.glob("*/deaf")), "the cell is running")
    began = time.monotonic()
    kernel.interrupt()
    cell = kernel.finish(message_id, began=began)
    assert cell.seconds < 6
    assert cell.reply["ename"] == "KeyboardInterrupt"
    assert "did not confirm" in cell.reply["evalue"]
    assert "still running" in cell.reply["evalue"]
    assert "Traceback" not in "\n".join(cell.reply["traceback"])
    assert kernel.run("'after'").result == "'after'"


def test_an_interrupt_on_the_script_route_is_honest(
    start_kernel: StartKernel, server: RunningSandbox
) -> None:
    """Nothing can stop a script there, and the words say so; the kernel goes on."""
    kernel = start_kernel(IVY_ROUTE="script")
    kernel.run("1")
    mine = kernel.pid
    message_id = kernel.submit("import time; time.sleep(30)")
    wait_for_call(server, kernel)
    began = time.monotonic()
    kernel.interrupt()
    cell = kernel.finish(message_id, began=began)
    assert cell.seconds < USABLE_SECONDS
    assert cell.reply["ename"] == "KeyboardInterrupt"
    assert "did not confirm" in cell.reply["evalue"]
    assert kernel.run("40 + 2").text() + str(kernel.run("40 + 2").result) != ""
    assert kernel.pid == mine


def test_an_interrupt_while_the_sandbox_starts(
    start_kernel: StartKernel,
    server: RunningSandbox,
    changed: Callable[..., None],
    new_chat: Callable[[], str],
) -> None:
    """The cell ends and says that nothing ran; the start goes on, and the next cell uses it."""
    changed(provision_seconds={"compute": 5.0, "mount": 0.5})
    kernel = start_kernel(chat_id=new_chat())
    creates = server.counters()["requests"].get("POST /v1/sandbox/create", 0)
    message_id = kernel.submit("open('ran', 'w').close()")
    seen = kernel.until(message_id, lambda message: message["msg_type"] == "display_data")
    assert "starting" in seen[-1]["content"]["data"]["text/plain"]
    began = time.monotonic()
    kernel.interrupt()
    cell = kernel.finish(message_id, began=began, earlier=seen)
    assert cell.seconds < USABLE_SECONDS
    assert cell.reply["ename"] == "KeyboardInterrupt"
    assert "Nothing of this cell was run" in cell.reply["evalue"]
    # The progress bar has been taken away, before the error.
    assert [m["msg_type"] for m in cell.outputs][-2:] == ["clear_output", "error"]
    assert kernel.run("import os; os.path.exists('ran')").result == "False"
    assert server.counters()["requests"]["POST /v1/sandbox/create"] == creates + 1


def test_an_interrupt_of_a_local_cell_stops_it(kernel: KernelDriver) -> None:
    """``%%local`` runs in the kernel's own process, and is interruptible like any other."""
    message_id = kernel.submit("%%local\nimport time\nprint('on', flush=True)\ntime.sleep(30)")
    seen = kernel.until(message_id, lambda message: message["msg_type"] == "stream")
    began = time.monotonic()
    kernel.interrupt()
    cell = kernel.finish(message_id, began=began, earlier=seen)
    assert cell.reply["ename"] == "KeyboardInterrupt"
    assert cell.seconds < USABLE_SECONDS
    assert kernel.run("%%local\n5").result == "5"


def test_completion_answers_while_a_cell_runs(kernel: KernelDriver, server: RunningSandbox) -> None:
    """What needs no sandbox does not wait behind a running cell."""
    kernel.run("import time")
    message_id = kernel.submit("time.sleep(20)")
    wait_for_call(server, kernel)
    began = time.monotonic()
    assert kernel.ask("complete", "imp", 3)["status"] == "ok"
    assert kernel.ask("is_complete", "for x in y:")["status"] == "incomplete"
    assert kernel.ask("history", hist_access_type="tail", n=1)["status"] == "ok"
    assert kernel.ask("kernel_info")["implementation"] == "ivy-sandbox"
    assert time.monotonic() - began < 10
    kernel.interrupt()
    assert kernel.finish(message_id, beside=True).reply["ename"] == "KeyboardInterrupt"


def test_interrupts_at_any_moment_never_lose_a_reply(kernel: KernelDriver) -> None:
    """Sent at many moments of short cells, each cell has one end and the kernel stays usable."""
    sent: list[str] = []
    for pause in (0.0, 0.01, 0.02, 0.04, 0.08):
        message_id = kernel.submit("1 + 1")
        timer = threading.Timer(pause, lambda: sent.append(kernel.send_interrupt()))
        timer.start()
        cell = kernel.finish(message_id)
        timer.join()
        kernel.interrupt_replied(sent.pop())
        assert cell.result == "2" or cell.reply.get("ename") == "KeyboardInterrupt", cell
    assert kernel.run("'usable'").result == "'usable'"


def test_a_cell_that_closes_its_stdout_does_not_hang_the_kernel(
    start_kernel: StartKernel, tmp_path: Path
) -> None:
    """Neither here nor, where the kernel there flushes it, in the sandbox."""
    kernel = start_kernel(IVY_ROUTE="agent")
    code = "import sys\nsys.stdout = f = open({!r}, 'w')\nprint('x')\nf.close()"
    for head in ("%%local\n", ""):
        cell = kernel.run(head + code.format(str(tmp_path / "log")))
        assert cell.reply["status"] == "ok"
        assert kernel.run(f"{head}print('heard')").text() == "heard\n"
