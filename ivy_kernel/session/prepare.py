"""Sees that a sandbox is there before a cell goes, starts it where that is allowed, and waits."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ivy_kernel.errors import (
    IvyError,
    NoSandboxError,
    NotFoundError,
    NotReadyError,
    SandboxFailedError,
    SandboxLostError,
)
from ivy_kernel.models import Cell, Sink
from ivy_kernel.session.lifecycle import Lifecycle, failed_error
from ivy_kernel.session.start_progress import StartProgress
from ivy_kernel.status import CHANGING_STATES, END_STATES, SandboxStatus, monotonic_seconds

Result = TypeVar("Result")

NOT_READY_PAUSE_SECONDS = 0.5
"""Between tries, when the platform says "not ready" and not how long to wait."""

END_LOOK_SECONDS = 2.0
"""How long a cell that has ended, nobody knows how, may wait for a look at its sandbox."""


class Readiness:
    """Whether one sandbox can take cells.

    Parameters
    ----------
    lifecycle
        The sandbox.
    auto_create
        Whether a user's cell may start it.
    has_variables
        Whether cells have run there, so that their variables are lost when it is gone.
    on_gone
        Told when it turns out to be gone.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        *,
        auto_create: bool,
        has_variables: Callable[[], bool],
        on_gone: Callable[[], None],
    ) -> None:
        self._lifecycle = lifecycle
        self._auto_create = auto_create
        self._has_variables = has_variables
        self._on_gone = on_gone
        self._not_ready_until = math.inf

    def begin(self) -> None:
        """Called when a cell's turn begins, whose waiting has an end."""
        self._not_ready_until = monotonic_seconds() + self._lifecycle.start_timeout_seconds

    async def see(self, cell: Cell, sink: Sink) -> None:
        """Look at the sandbox; return when a cell may be tried in it.

        Parameters
        ----------
        cell, sink
            The cell that needs it, and what shows the progress of a start.

        Raises
        ------
        SandboxLostError
            When it is gone, and variables with it.
        NoSandboxError
            When it is not there, and this cell may not start it.
        SandboxFailedError
            When it did not become ready.
        """
        status = await self._lifecycle.status()
        name = self._lifecycle.name
        if status.state == "active":
            return
        if status.state in CHANGING_STATES:
            await self.wait(sink)
            return
        if self._has_variables():
            self._on_gone()
            raise self._gone_error(status)
        if status.state == "failed" and not cell.store_history:
            raise failed_error(name, status)
        if status.state == "unknown":
            return  # a word we do not know says nothing against trying
        if not cell.store_history:
            raise NoSandboxError(
                f"{name} has no sandbox running, and code that you did not run yourself does not "
                f"start one. Nothing was run."
            )
        if not self._auto_create:
            raise NoSandboxError(
                f"{name} has no sandbox running, and the setting auto_create forbids to start "
                f"one. Nothing was run. Run %ivy create, then this cell again."
            )
        await self._lifecycle.create()
        await self.wait(sink)

    async def wait(self, sink: Sink) -> SandboxStatus:
        """Wait for a sandbox that starts, with progress in the cell.

        Raises
        ------
        SandboxFailedError
            When it did not become ready.
        """
        progress = StartProgress(self._lifecycle.name, sink)
        try:
            status = await self._lifecycle.wait_until_ready(progress.show)
        finally:
            progress.clear()
        if status.state not in ("active", "unknown"):
            raise SandboxFailedError(
                f"{self._lifecycle.name} did not become ready: its state is now {_word(status)}. "
                f"Nothing of this cell was run. Run it again to start a new sandbox."
            )
        return status

    async def wait_after(self, error: NotReadyError, sink: Sink) -> None:
        """Wait until the next try of what was "not ready", also if the status says that it is.

        Not for ever: after the time that a start may take, the error is the cell's end.
        """
        if monotonic_seconds() > self._not_ready_until:
            raise error
        await asyncio.sleep(error.retry_after_seconds or NOT_READY_PAUSE_SECONDS)
        await self.wait(sink)

    async def when_ready(self, work: Callable[[], Awaitable[Result]], sink: Sink) -> Result:
        """The result of what may be "not ready" for a while, and runs nothing of the user's."""
        while True:
            try:
                return await work()
            except NotReadyError as error:
                await self.wait_after(error, sink)

    async def explained(self, error: NotFoundError) -> IvyError:
        """What a 404 means: one replica's mistake, or the end of the sandbox."""
        status = await self._lifecycle.status()
        if status.state in ("active", "unknown") or status.state in CHANGING_STATES:
            return error
        self._on_gone()
        return self._gone_error(status)

    async def end_in_words(self) -> str:
        """Why a cell has no known end, where that is the end of its sandbox; empty where not."""
        try:
            looking = self._lifecycle.status(retry=False)
            status = await asyncio.wait_for(looking, END_LOOK_SECONDS)
        except (asyncio.TimeoutError, IvyError):
            return ""
        if status.state not in END_STATES:
            return ""
        if status.state == "failed" and not self._has_variables():
            return ""  # it never ran anything
        self._on_gone()
        return (
            f"{self._lifecycle.name} is gone (its state is now {_word(status)}), and the variables "
            f"with it. It ended while this cell was running; how far that had come is not known."
        )

    def _gone_error(self, status: SandboxStatus) -> SandboxLostError:
        return SandboxLostError(
            f"{self._lifecycle.name} is gone (its state is now {_word(status)}), and the variables "
            f"with it. Nothing of this cell was run. Run it again to start a new sandbox."
        )


def _word(status: SandboxStatus) -> str:
    state = status.effective_state(monotonic_seconds())
    return repr(status.raw_state or state) if state == "unknown" else f"'{state}'"
