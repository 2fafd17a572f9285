"""What a tool's result means when the user has interrupted its cell."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ivy_kernel.models import Cell, Message
from ivy_kernel.routes.one_call import InterruptibleCall, NotebookRoute
from ivy_kernel.routes.tools import Probe

NOTICE = {"output_type": "stream", "name": "stderr", "text": "\nKeyboardInterrupt\n\n"}
PRINT = {"output_type": "stream", "name": "stdout", "text": "KeyboardInterrupt\n"}


async def outcome_of(outputs: list[Any], *, interrupted: bool) -> tuple[str, list[Message]]:
    """The fate and the messages of a cell whose tool answers with these outputs."""
    call, messages = InterruptibleCall(), list[Message]()
    answered = asyncio.Event()

    async def tool() -> object:
        await answered.wait()
        return {"outputs": outputs}

    showing = asyncio.ensure_future(call.show(tool(), Cell("x"), messages.append))
    await asyncio.sleep(0)
    if interrupted:
        call.stop()
        await asyncio.sleep(0)
    answered.set()
    outcome = await showing
    return outcome.fate, messages


async def test_a_notice_of_the_interrupt_is_the_cells_end() -> None:
    """IPython, hit while it shows something, calls the cell "ok"; Run All must stop even so."""
    fate, messages = await outcome_of([NOTICE], interrupted=True)
    assert fate == "interrupted"
    assert messages[-1].msg_type == "error"
    assert messages[-1].content["ename"] == "KeyboardInterrupt"


@pytest.mark.parametrize(
    ("outputs", "interrupted"), [([NOTICE], False), ([PRINT], True), ([], True)]
)
async def test_anything_else_stays_what_it_is(outputs: list[Any], *, interrupted: bool) -> None:
    """Words alone interrupt nothing, nor does an interrupt that came too late."""
    fate, _ = await outcome_of(outputs, interrupted=interrupted)
    assert fate == "succeeded"


class SlowSignals:
    """A sandbox where the script that sends a signal is slow, as seen by the notebook route."""

    def __init__(self) -> None:
        self.found_fields: dict[str, str] = {}
        self.events: list[str] = []
        self.first_runs = asyncio.Event()
        self.first_ends = asyncio.Event()
        self.signal_goes = asyncio.Event()

    async def probe(self, tool: str) -> Probe:
        """Always the same Python."""
        return Probe(tool, 1, "1", "3.12")

    async def run(self, tool: str, code: str, seconds: float, *, retry: bool = True) -> object:
        """Run a cell, or a script that signals the Python of the cells."""
        if tool == "sandbox_python":
            await self.signal_goes.wait()
            self.events.append("signal")
            return {}
        self.events.append(code.splitlines()[-1])
        if self.events == ["first"]:
            self.first_runs.set()
            await self.first_ends.wait()
        return {"outputs": [NOTICE] if code.endswith("first") else []}


async def test_a_late_signal_never_hits_the_next_cell() -> None:
    """The next cell is sent when the signal for the one before has been, however late that is."""
    sandbox = SlowSignals()
    route = NotebookRoute(sandbox, cell_timeout_seconds=60)  # type: ignore[arg-type]
    await route.open()
    first = asyncio.ensure_future(route.execute(Cell("first"), lambda _: None))
    await sandbox.first_runs.wait()
    await route.interrupt()  # returns although nobody knows whether the signal was sent
    sandbox.first_ends.set()
    assert (await first).fate == "interrupted"
    second = asyncio.ensure_future(route.execute(Cell("second"), lambda _: None))
    await asyncio.sleep(0.2)
    assert sandbox.events == ["first"]
    sandbox.signal_goes.set()
    assert (await second).fate == "succeeded"
    assert sandbox.events == ["first", "signal", "second"]
