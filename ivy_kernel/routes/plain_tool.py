"""One tool call a cell: waited for as long as the user wants to, and its result shown."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from ivy_kernel.decode import decode_result
from ivy_kernel.models import Cell, Message, Outcome, Sink
from ivy_kernel.routes.endings import failed, show_error, succeeded

INTERRUPT_WAIT_SECONDS = 0.7
"""How long after an interrupt the tool may still bring the cell's real end; IPython may take half
of it for its first traceback."""

STOPPED = "Interrupted in the sandbox, which has confirmed it."

NOT_CONFIRMED = (
    "Stopped waiting for the cell. The sandbox did not confirm that it stopped there, so it may be "
    "still running, and the next cell may have to wait for it; %ivy terminate ends it for sure."
)


def show_result(
    result: object, cell: Cell, sink: Sink, *, was_interrupted: bool = False
) -> Outcome:
    """Show a tool's result as the cell's outputs."""
    decoded = decode_result(result, execution_count=cell.execution_count)
    for output in decoded.outputs:
        content = dict(output)
        msg_type = content.pop("output_type")
        if msg_type == "execute_result":
            content["execution_count"] = cell.execution_count
        sink(Message(msg_type, content))
    if decoded.error is None and was_interrupted and _says_interrupted(decoded.outputs):
        return show_error(sink, "KeyboardInterrupt", STOPPED, "interrupted")
    if decoded.error is None:
        return succeeded()
    interrupted = decoded.error["ename"] == "KeyboardInterrupt"
    return failed(decoded.error, "interrupted" if interrupted else "failed")


def _says_interrupted(outputs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether IPython was hit while it showed something: it says so here, and nowhere else."""
    last: Mapping[str, Any] = outputs[-1] if outputs else {}
    is_stderr = last.get("output_type") == "stream" and last.get("name") == "stderr"
    return is_stderr and str(last.get("text", "")).rstrip().endswith("KeyboardInterrupt")


class InterruptibleCall:
    """Waits for one tool call, but not longer than the user wants to."""

    def __init__(self) -> None:
        self._task: asyncio.Future[object] | None = None
        self._stop: asyncio.Event | None = None

    @property
    def running(self) -> bool:
        """Whether a call is under way."""
        return self._task is not None

    def stop(self) -> None:
        """Stop waiting soon; harmless when nothing is waited for."""
        if self._stop is not None:
            self._stop.set()

    async def show(self, call: Awaitable[object], cell: Cell, sink: Sink) -> Outcome:
        """Run a call to its end, or until shortly after `stop`, and show what came of it."""
        self._stop = asyncio.Event()
        task = self._task = asyncio.ensure_future(call)
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                await asyncio.wait({task}, timeout=INTERRUPT_WAIT_SECONDS)
            if not task.done():
                return show_error(sink, "KeyboardInterrupt", NOT_CONFIRMED, "interrupted")
            return show_result(task.result(), cell, sink, was_interrupted=stopped.done())
        finally:
            self._task = self._stop = None
            for future in (task, stopped):
                future.cancel()
            await asyncio.gather(task, stopped, return_exceptions=True)
