"""One request for the status: given up after a while, and never beside an earlier one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ivy_kernel.errors import NoAnswerError
from ivy_kernel.status.model import SandboxStatus

Fetch = Callable[[], Awaitable[SandboxStatus]]
"""Asks the API once. Raises an ``IvyError`` when there is no status to be had."""


class Request:
    """Asks for the status, one request at a time.

    Parameters
    ----------
    fetch
        Asks the API once.
    limit_seconds
        A request that takes longer is given up.
    sleep
        Waits for so many seconds.
    """

    def __init__(
        self,
        fetch: Fetch,
        *,
        limit_seconds: float,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._fetch = fetch
        self._limit_seconds = limit_seconds
        self._sleep = sleep
        self.task: asyncio.Future[SandboxStatus] | None = None
        """The latest request, which may still hang after it was given up."""

    async def send(self) -> SandboxStatus:
        """Ask once.

        Raises
        ------
        NoAnswerError
            There was no answer in time, or an earlier request that was given up still hangs.
        Exception
            Whatever ``fetch`` raises.
        """
        limit = self._limit_seconds
        too_late = NoAnswerError(
            f"The API gave no status of the sandbox within {limit:g} seconds; "
            "check the network, it is asked again."
        )
        if self.task is not None and not self.task.done():
            raise too_late
        task = self.task = asyncio.ensure_future(self._fetch())
        task.add_done_callback(_retrieve)
        timer = asyncio.ensure_future(self._sleep(limit))
        try:
            await asyncio.wait((task, timer), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise too_late
            if task.cancelled():
                raise NoAnswerError("The request for the status of the sandbox was cut off.")
            return task.result()
        finally:
            task.cancel()
            timer.cancel()


def _retrieve(task: asyncio.Future[SandboxStatus]) -> None:
    # A request that was given up may still fail; nobody is left to hear of it.
    if not task.cancelled():
        task.exception()
