"""The messages of cells that an earlier process of this kernel had started.

A front end has forgotten those cells when the process ended, so what they still say is shown by
``%ivy reconnect``, for as long as it runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

from ivy_kernel.models import Message, Sink

ANNOUNCEMENT = (
    "[A cell that was started before this kernel process is still running in the sandbox; what it "
    "shows follows. Interrupt to stop it; interrupt twice to stop waiting for it.]\n"
)


class EarlierCells:
    """Sends messages that belong to no cell of ours to the cell that shows them.

    Parameters
    ----------
    otherwise
        Takes those messages while there is no such cell.
    """

    def __init__(self, otherwise: Sink) -> None:
        self._otherwise = otherwise
        self._sink: Sink | None = None
        self._question: Message | None = None

    @contextmanager
    def shown_in(self, sink: Sink) -> Iterator[None]:
        """Show them in one cell for the time of the ``with`` block."""
        self._sink = sink
        try:
            question, self._question = self._question, None
            if question is not None:
                sink(question)
            yield
        finally:
            self._sink = None

    def take(self, message: Message) -> None:
        """Called with each message whose parent is no request of ours that is under way."""
        if message.channel == "stdin":
            self._take_question(message)
        elif message.channel != "iopub":
            return  # a reply that nobody waits for any more
        elif self._sink is None or message.msg_type.startswith("comm_"):
            self._otherwise(message)
        elif message.msg_type == "error":  # this cell has not failed, so it is no error of its own
            text = "\n".join(message.content.get("traceback", ()))
            self._sink(Message("stream", {"name": "stderr", "text": f"{text}\n"}))
        elif message.msg_type not in ("status", "execute_input"):
            self._sink(dataclasses.replace(message, parent_header=None))

    def _take_question(self, message: Message) -> None:
        if self._sink is None:
            self._question = message
        else:
            self._sink(message)
