"""The one task that asks, for as long as somebody wants to know."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ivy_kernel.errors import NoAnswerError
from ivy_kernel.status.model import SandboxStatus
from ivy_kernel.status.schedule import REFUSALS

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


_log = logging.getLogger(__name__)


class KeyCheck:
    """Compares the key in use with the one that was refused.

    Parameters
    ----------
    token
        Gives something that is equal as long as the same credential and settings are in use. It
        is neither shown nor logged. ``None``: a change is never noticed.
    """

    def __init__(self, token: Callable[[], object] | None) -> None:
        self._token = token
        self._sent: object = None
        self._is_refused = False

    def sending(self) -> object:
        """What stands for the key that the request sends which begins now."""
        if self._token is None:
            return None
        try:
            return self._token()
        except Exception as exc:
            # Only the type: what raised it handles credentials.
            _log.warning("The credential in use could not be read (%s).", type(exc).__name__)
            return self._sent  # counts as unchanged

    def answered(self) -> None:
        """The API has given a status: the key is well."""
        self._is_refused = False

    def failed(self, error: Exception, sent: object) -> None:
        """The request that sent this key has failed, perhaps because of it."""
        self._is_refused = isinstance(error, REFUSALS)
        self._sent = sent

    @property
    def has_changed(self) -> bool:
        """Whether the API refused a key, and another is in use by now."""
        return self._is_refused and self.sending() != self._sent


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
