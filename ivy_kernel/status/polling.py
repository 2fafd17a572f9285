"""One status request with a time limit, the check for a new key, and the task that polls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ivy_kernel.errors import NoAnswerError
from ivy_kernel.status.model import SandboxStatus
from ivy_kernel.status.schedule import PERMANENT_ERRORS

Fetch = Callable[[], Awaitable[SandboxStatus]]
"""Sends one status request. Raises an ``IvyError`` when it brings no status."""


class StatusRequest:
    """Sends status requests, one at a time, each with a time limit.

    Parameters
    ----------
    fetch
        Sends one request.
    limit_seconds
        A request that takes longer is abandoned.
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
        """The latest request, which may still hang after it was abandoned."""

    async def send(self) -> SandboxStatus:
        """Sends one request.

        Raises
        ------
        NoAnswerError
            There was no answer in time, or an earlier request that was abandoned still hangs.
        Exception
            Any error of ``fetch``.
        """
        limit = self._limit_seconds
        too_late = NoAnswerError(
            f"The API gave no status of the sandbox within {limit:g} seconds; "
            "check the network, it is asked again."
        )
        # A fetch that ignores its cancellation must not pile up a second request beside it.
        if self.task is not None and not self.task.done():
            raise too_late
        task = self.task = asyncio.ensure_future(self._fetch())
        task.add_done_callback(_retrieve)
        # Not asyncio.wait_for: the limit must follow the injected sleep, and a request that does
        # not end on cancellation must not be waited for.
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
    # An abandoned request may still fail; unretrieved, asyncio would log its exception.
    if not task.cancelled():
        task.exception()


# A new key after a refusal ------------------------------------------------------------------------

_log = logging.getLogger(__name__)


class KeyCheck:
    """Detects that a key which the API refused has been replaced.

    Parameters
    ----------
    key_fingerprint
        Returns a value that is equal as long as the same credential and settings are in use. It is
        neither shown nor logged. ``None``: a change is never detected.
    """

    def __init__(self, key_fingerprint: Callable[[], object] | None) -> None:
        self._key_fingerprint = key_fingerprint
        self._sent: object = None
        self._is_refused = False

    def fingerprint(self) -> object:
        """Returns the fingerprint of the key used by the request being sent."""
        if self._key_fingerprint is None:
            return None
        try:
            return self._key_fingerprint()
        except Exception as exc:
            # Only the type: the text of an error in code that handles credentials may hold one.
            _log.warning("The credential in use could not be read (%s).", type(exc).__name__)
            return self._sent  # counts as unchanged

    def answered(self) -> None:
        """Notes that the API has given a status, so the key is accepted."""
        self._is_refused = False

    def failed(self, error: Exception, sent: object) -> None:
        """Notes that the request with this fingerprint has failed, perhaps because of its key."""
        self._is_refused = isinstance(error, PERMANENT_ERRORS)
        self._sent = sent

    @property
    def has_changed(self) -> bool:
        """Whether the API refused a key and another one is in use by now."""
        return self._is_refused and self.fingerprint() != self._sent


# The polling task ---------------------------------------------------------------------------------

_SLICE_SECONDS = 5.0
"""The longest single sleep: timers stand still while the machine sleeps, so a long one would end
late; after each slice the clock, which counts that time, is read again."""
_SUSPENDED_SECONDS = 10.0
"""A slice that lasted so much longer than asked means that the machine slept."""


class StatusPoller:
    """Runs one task that waits until a request is due, sends it, and begins again.

    Parameters
    ----------
    poll
        Sends the request.
    due
        Returns the moment of the next request; ``None`` while none is wanted. Called again after
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
        """The polling task; ``None`` while no request is wanted."""

    def wake(self) -> None:
        """Recomputes when the next request is due; to be called on the loop."""
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
        """Waits for the next request; ``False`` when none is wanted any more."""
        while (due := self._due()) is not None:
            wait_seconds = due - self._clock()
            if wait_seconds <= 0:
                return True
            await self._wait(min(wait_seconds, _SLICE_SECONDS))
        return False

    async def _wait(self, seconds: float) -> None:
        before = self._clock()
        # No await lies between the reading of `due` and this line, so that no wake-up is lost.
        self._woken.clear()
        sleep = asyncio.ensure_future(self._sleep(seconds))
        woken = asyncio.ensure_future(self._woken.wait())
        try:
            await asyncio.wait((sleep, woken), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleep.cancel()
            woken.cancel()
        self._after_wait(self._clock() - before > seconds + _SUSPENDED_SECONDS)
