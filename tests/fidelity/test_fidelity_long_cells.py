"""Cells that are longer than any tool call may be."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from kernel_driver import StartKernel
from sandbox_server import RunningSandbox, running_sandbox

CAP_SECONDS = 2.0


@pytest.fixture(scope="module")
def capped() -> Iterator[RunningSandbox]:
    """A sandbox whose tool calls end after two seconds."""
    with running_sandbox(cap_seconds={"script": CAP_SECONDS, "notebook": CAP_SECONDS}) as server:
        yield server


def test_a_cell_longer_than_the_cap_streams_to_its_end(
    start_kernel: StartKernel, capped: RunningSandbox
) -> None:
    """Ten times the cap: every tick is seen about when it is printed, and the result at the end."""
    kernel = start_kernel(sandbox=capped)
    kernel.run("1")
    message_id = kernel.submit(
        "import sys, time\nfor n in range(20):\n"
        "    written = sys.stdout.write(f'tick {n} {time.time()}\\n')\n"
        "    sys.stdout.flush()\n    time.sleep(1)\n'the end'"
    )
    messages, lags = [], list[float]()
    while not any(m["content"].get("execution_state") == "idle" for m in messages):
        messages.append(kernel.next_message(message_id, time.monotonic() + 15))
        if messages[-1]["msg_type"] == "stream":
            lines = messages[-1]["content"]["text"].splitlines()
            lags += [time.time() - float(line.split()[2]) for line in lines]
    run = kernel.finish(message_id, earlier=messages)
    assert run.result == "'the end'"
    assert [line.split()[1] for line in run.text().splitlines()] == [str(n) for n in range(20)]
    assert sorted(lags)[len(lags) // 2] < 1.0
    assert max(lags) < 5.0


def test_an_interrupt_stops_it_beyond_the_cap(
    start_kernel: StartKernel, capped: RunningSandbox
) -> None:
    """After several times the cap an interrupt still reaches the cell, and variables stay."""
    kernel = start_kernel(sandbox=capped)
    kernel.run("kept = 7")
    message_id = kernel.submit(
        "import time\nbegan = time.monotonic()\nwhile True:\n"
        "    time.sleep(0.5)\n    print(int(time.monotonic() - began), flush=True)"
    )
    earlier = kernel.until(
        message_id, lambda message: message["content"].get("text", "").strip() >= "5"
    )
    kernel.interrupt()
    run = kernel.finish(message_id, earlier=earlier, timeout_seconds=20)
    assert run.error["ename"] == "KeyboardInterrupt"
    assert kernel.run("kept").result == "7"
