"""The one task that asks, for as long as somebody wants to know."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

_SLICE_SECONDS = 5.0
_JUMP_SECONDS = 10.0


class Poller:
    """Waits until a request is due, makes it, and begins again.

    Parameters
    ----------
    poll
        Makes the request.
    due
        The moment of the next request; ``None`` while nobody wants one. It is asked again after
        every wait.
    after_wait
        Called after every wait, with whether the machine slept meanwhile.
    clock
        Monotonic seconds that count the machine's sleep.
    sleep
        Waits for so many seconds, those that the machine sleeps not counted.
    """

    def __init__(
        self,
        poll: Callable[[], Awaitable[None]],
        *,
        due: Callable[[], float | None],
        after_wait: Callable[[bool], None],
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._poll = poll
        self._due = due
        self._after_wait = after_wait
        self._clock = clock
        self._sleep = sleep
        self._woken = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        """What waits and asks; ``None`` while nobody wants it."""

    def wake(self) -> None:
        """Look again at when the next request is due; to be called on the loop."""
        self._woken.set()
        if self.task is None and self._due() is not None:
            self.task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while await self._wait_until_due():
                await self._poll()
        finally:
            self.task = None

    async def _wait_until_due(self) -> bool:
        """Whether to ask now; ``False`` when nobody wants it any more."""
        while (due := self._due()) is not None:
            wait_seconds = due - self._clock()
            if wait_seconds <= 0:
                return True
            await self._wait(min(wait_seconds, _SLICE_SECONDS))
        return False

    async def _wait(self, seconds: float) -> None:
        before = self._clock()
        self._woken.clear()
        sleep = asyncio.ensure_future(self._sleep(seconds))
        woken = asyncio.ensure_future(self._woken.wait())
        try:
            await asyncio.wait((sleep, woken), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleep.cancel()
            woken.cancel()
        self._after_wait(self._clock() - before > seconds + _JUMP_SECONDS)
