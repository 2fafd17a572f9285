"""What a tool's result means when the user has interrupted its cell."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ivy_kernel.models import Cell, Message
from ivy_kernel.routes.plain_tool import InterruptibleCall

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
