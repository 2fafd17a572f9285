"""Keeps the embedded local sandbox while a notebook is open on it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from ivy_kernel.errors import IvyError
from ivy_kernel.session.lifecycle import Lifecycle

LOCAL_KEEP_ALIVE_SECONDS = 300.0


class KeepAlive:
    """Lets the local sandbox's server know that somebody is still here.

    Nothing of the kind is done to a sandbox in the cloud, which would be kept from hibernating.

    Parameters
    ----------
    lifecycle
        The sandbox.
    """

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._task: asyncio.Future[None] | None = None

    def begin(self) -> None:
        """Called when cells can reach the sandbox; harmless when called again."""
        if self._lifecycle.local and self._task is None:
            self._task = asyncio.ensure_future(self._look())

    def end(self) -> None:
        """Called when the session is closed."""
        if self._task is not None:
            self._task.cancel()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOCAL_KEEP_ALIVE_SECONDS)
            with suppress(IvyError):
                await self._lifecycle.read_status()
