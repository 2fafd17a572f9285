"""Requests of ours that the sandbox's kernel has not finished."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from ivy_kernel.models import Fate, Message, Sink
from ivy_kernel.routes.agent.outbox import Submission

Result = TypeVar("Result")


class EndedError(Exception):
    """A request ended without a reply of the kernel.

    Parameters
    ----------
    fate
        What is known about it: ``lost``, ``unknown`` or ``interrupted``.
    cause
        Why, in an error whose words are for the user.
    has_not_run
        It provably never reached the kernel.
    """

    def __init__(self, fate: Fate, cause: Exception, *, has_not_run: bool = False) -> None:
        super().__init__(str(cause))
        self.fate = fate
        self.cause = cause
        self.has_not_run = has_not_run


class Pending:
    """One request, from its submission until its reply and the kernel's "idle" have come.

    Parameters
    ----------
    message_id
        Of the request.
    is_cell
        Whether it is an ``execute_request``.
    needs_reply
        Comm messages have none.
    needs_idle
        Whether the end is only reached at "idle".
    awaits_silence
        It ends when the kernel has nothing under way, and not by a reply.
    sink
        Takes the messages it causes; ``None`` for those that belong in the background.
    """

    def __init__(
        self,
        message_id: str,
        *,
        is_cell: bool = False,
        needs_reply: bool = True,
        needs_idle: bool = True,
        awaits_silence: bool = False,
        sink: Sink | None = None,
    ) -> None:
        self.message_id = message_id
        self.is_cell = is_cell
        self.awaits_silence = awaits_silence
        self.sink = sink
        self.submission: Submission | None = None
        self.was_interrupted = False
        self._needs_reply = needs_reply
        self._needs_idle = needs_idle
        self._reply: Message | None = None
        self._end: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()

    @property
    def is_done(self) -> bool:
        """Whether it has ended, one way or another."""
        return self._end.done()

    @property
    def has_not_run(self) -> bool:
        """Whether it provably never reached the kernel."""
        return self.submission is None or self.submission.has_not_run

    def replied(self, reply: Message) -> None:
        """The kernel's reply has come."""
        self._reply = reply
        self._needs_reply = False
        self._check()

    def idle(self) -> None:
        """The kernel is idle again after it."""
        self._needs_idle = False
        self._check()

    def silent(self) -> None:
        """The kernel has nothing under way any more."""
        self._needs_reply = self._needs_idle = False
        self._check()

    def end(self, error: EndedError) -> None:
        """There will be no reply."""
        if not self._end.done():
            self._end.set_exception(error)
            self._end.exception()  # retrieved here, because perhaps nobody waits any more

    async def wait(self) -> Message | None:
        """The reply, or ``None`` where there is none; raises EndedError."""
        return await asyncio.shield(self._end)

    async def unless_ended(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The work's result; raises EndedError as soon as this request has ended instead."""
        task = asyncio.ensure_future(work)
        task.add_done_callback(_retrieve)
        try:
            either: set[asyncio.Future[Any]] = {task, self._end}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self.is_done:
                await self.wait()
            return task.result()
        finally:
            task.cancel()

    def _check(self) -> None:
        if not (self._needs_reply or self._needs_idle or self._end.done()):
            self._end.set_result(self._reply)


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Look at a task's error, because perhaps nobody waits any more."""
    if not task.cancelled():
        task.exception()
