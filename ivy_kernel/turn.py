"""One cell's turn in a session: how far it has come, and what an interrupt has to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from ivy_kernel.errors import NotFoundError, NotReadyError
from ivy_kernel.models import Outcome, Sink
from ivy_kernel.routes.base import Route
from ivy_kernel.routes.one_call import NamedTool
from ivy_kernel.routes.outcomes import show_error
from ivy_kernel.session.prepare import Readiness

Result = TypeVar("Result")

NOT_RUN = (
    "Interrupted before it was sent to the sandbox. Nothing of this cell was run. A sandbox that "
    "is starting goes on starting, and the next cell uses it when it is ready."
)


class Turn:
    """From the moment when a cell is the session's next one, until it has ended.

    Parameters
    ----------
    sink
        Takes the cell's messages.
    readiness
        Of the sandbox; says what it means when a cell is refused.

    Attributes
    ----------
    was_sent
        Whether the cell itself has gone out, so that it may have run.
    was_terminated
        Whether the user has terminated the sandbox under it.
    """

    def __init__(self, sink: Sink, readiness: Readiness) -> None:
        self._sink = sink
        self._readiness = readiness
        self._preparing: asyncio.Future[Any] | None = None
        self._sent_by: Route | NamedTool | None = None
        self._was_interrupted = False
        self.was_sent = False
        self.was_terminated = False

    def is_interrupted(self) -> bool:
        """Whether the user has interrupted it."""
        return self._was_interrupted

    @property
    def is_preparing(self) -> bool:
        """Whether something is done for the cell before it can be sent."""
        return self._preparing is not None

    async def preparation(self, work: Coroutine[Any, Any, Result]) -> Result | Outcome:
        """The work's result, or the outcome of a cell that was interrupted meanwhile."""
        self._preparing = task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task})
        finally:
            self._preparing = None
            if not task.done():  # we are being cancelled ourselves
                task.cancel()
        return self._not_run() if task.cancelled() else task.result()

    async def send(
        self,
        by: Route | NamedTool,
        run: Callable[[], Awaitable[Outcome]],
        wait_after: Callable[[NotReadyError], Coroutine[Any, Any, None]],
    ) -> Outcome:
        """Run what is prepared, as soon as the sandbox takes it; not if that was interrupted.

        Parameters
        ----------
        by
            What an interrupt is for meanwhile.
        run
            Sends the cell, and returns how it ended.
        wait_after
            Waits until it may be sent again after it was refused as "not ready".

        Raises
        ------
        IvyError
            As ``run`` and ``wait_after``; a 404 as what it means.
        """
        while not self.is_interrupted():  # as it may be just when the preparation is done
            self._sent_by, self.was_sent = by, True
            try:
                return await run()
            except NotReadyError as error:  # it said that nothing ran
                self.was_sent = False
                if self.is_interrupted():
                    break
                waited = await self.preparation(wait_after(error))
                if isinstance(waited, Outcome):
                    return waited
            except NotFoundError as error:
                self.was_sent = False  # there was nobody to run it
                raise await self._readiness.explained(error) from error
            finally:
                self._sent_by = None
        return self._not_run()

    def _not_run(self) -> Outcome:
        """The end of a cell that was interrupted before it was sent."""
        return show_error(self._sink, "KeyboardInterrupt", NOT_RUN, "interrupted")

    async def interrupt(self) -> bool:
        """Stop what is under way; whether there was anything."""
        self._was_interrupted = True
        if self._preparing is not None:
            self._preparing.cancel()
        elif isinstance(self._sent_by, NamedTool):
            self._sent_by.stop()
        elif self._sent_by is not None:
            await self._sent_by.interrupt()
        else:
            return False
        return True
