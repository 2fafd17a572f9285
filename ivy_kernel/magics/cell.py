"""Runs one ``%%ivy`` cell in a session, according to its options."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from ivy_kernel.magics.options import LANGUAGES, CellOptions, tool_parameters
from ivy_kernel.models import Cell, Message, Outcome, Sink
from ivy_kernel.routes.events import show_error, succeeded
from ivy_kernel.routes.one_call import NamedTool
from ivy_kernel.session.session import Session

STOP_AGAIN_SECONDS = 5.0
"""Interval of the interrupts of a cell that goes on after its time is up."""


async def run_cell(
    session: Session, options: CellOptions, cell: Cell, sink: Sink, *, tool_seconds: float
) -> Outcome:
    """Run a cell to its one end; errors of ours end up in the outcome.

    Parameters
    ----------
    session
        The session to run it in.
    options
        The options of its ``%%ivy`` line.
    cell, sink
        The cell, and the sink of its messages.
    tool_seconds
        Time budget of a tool without ``--timeout``.

    Raises
    ------
    UsageError
        When the cell is not what ``--tool`` needs.
    """
    tool = options.tool or LANGUAGES[options.language]
    if not tool:
        return await _run_python(session, options.timeout_seconds, cell, sink)
    parameters = None
    if options.tool:
        parameters = tool_parameters(tool, cell.code)
        seconds = parameters.pop("timeout", tool_seconds)
        if isinstance(seconds, int | float) and not isinstance(seconds, bool):
            tool_seconds = float(seconds)
    elif cell.is_empty:
        return succeeded()
    named = NamedTool(
        tool, parameters=parameters, timeout_seconds=options.timeout_seconds or tool_seconds
    )
    return await session.run_tool(named, cell, sink)


async def _run_python(
    session: Session, timeout_seconds: float | None, cell: Cell, sink: Sink
) -> Outcome:
    if timeout_seconds is None:
        return await session.execute(cell, sink)
    limit = _TimeLimit(session, timeout_seconds, sink)
    try:
        # The start of a sandbox does not count, so the time begins when the cell is sent.
        outcome = await session.execute(cell, limit.sink, on_ready=limit.start)
    finally:
        limit.end()
    return limit.explained(outcome)


class _TimeLimit:
    """Interrupts a cell when its time is up, and makes that the reason of its end."""

    def __init__(self, session: Session, seconds: float, sink: Sink) -> None:
        self._session = session
        self._seconds = seconds
        self._sink = sink
        self._task: asyncio.Task[None] | None = None
        self._is_up = False

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._stop_in_time())

    def end(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _stop_in_time(self) -> None:
        await asyncio.sleep(self._seconds)
        self._is_up = True
        while True:
            with suppress(Exception):  # the cell's own end says what became of it
                await self._session.interrupt()
            await asyncio.sleep(STOP_AGAIN_SECONDS)

    def sink(self, message: Message) -> None:
        # The error of our own interrupt is left out: `explained` shows a better one.
        if not (self._is_up and message.msg_type == "error"):
            self._sink(message)

    def explained(self, outcome: Outcome) -> Outcome:
        if not self._is_up or outcome.reply["status"] != "error":
            return outcome
        # Without frames it is an error of ours, whose sentence says what is known of the stop.
        confirmed = outcome.reply["ename"] != "KeyboardInterrupt" or outcome.reply["traceback"][1:]
        sentence = f"The cell was stopped after {self._seconds:g} s (--timeout)."
        if not confirmed:
            sentence += f" {outcome.reply['evalue']}"
        where = "\n".join(outcome.reply["traceback"])
        return show_error(self._sink, "TimeoutError", sentence, outcome.fate, where)
