"""Takes the messages of one cell: questions go to the user, the rest to the front end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ivy_kernel.models import Message, Sink
from ivy_kernel.progress import blanked, is_progress

Answer = Callable[[Message], Coroutine[Any, Any, None]]
"""Lets the user answer an ``input_request``."""


class CellSink:
    """All that is shown while a cell runs and belongs to it comes by here.

    Parameters
    ----------
    show
        Takes what is shown.
    answer
        Takes what is asked.
    """

    def __init__(self, show: Sink, answer: Answer) -> None:
        self._show = show
        self._answer = answer
        self._shown_of_the_cell = False
        self._questions: set[asyncio.Task[None]] = set()

    def __call__(self, message: Message) -> None:
        """Take one message."""
        if not is_progress(message):
            self._shown_of_the_cell = True
        elif message.msg_type == "clear_output" and self._shown_of_the_cell:
            message = blanked(message)  # what the cell has shown beside it stays
        if message.channel == "stdin":
            question = asyncio.ensure_future(self._answer(message))
            self._questions.add(question)
            question.add_done_callback(self._questions.discard)
        else:
            self._show(message)

    def end(self) -> None:
        """The cell is over, so nobody waits for answers."""
        for question in self._questions:
            question.cancel()
