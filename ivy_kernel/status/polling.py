"""One status request with a time limit, the task that polls, and the watchers that hear of news.

And `DeadlineReader`, which reads Recoup's part of a status beside Ivy's.
"""

from __future__ import annotations

import asyncio
import logging
import random as random_module
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from ivy_kernel.errors import (
    ApiError,
    CredentialsError,
    ForbiddenError,
    NoAnswerError,
    NotFoundError,
)
from ivy_kernel.status.clock import monotonic_seconds
from ivy_kernel.status.model import SandboxStatus, State, StatusReading, describe_error
from ivy_kernel.status.schedule import PERMANENT_ERRORS, Backoff

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
        """Send one request.

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


@dataclass(frozen=True, slots=True)
class News:
    """What another process has learned of the sandbox.

    Parameters
    ----------
    status
        The status; ``None`` when only that it may have changed is known.
    is_action
        Whether it has changed the sandbox, so that more may follow.
    """

    status: SandboxStatus | None
    is_action: bool


class NewsSource(Protocol):
    """What tells a monitor of what other processes have learned."""

    def news(self) -> News | None:
        """Return what has come since the last call; ``None`` when nothing. Called every second."""


# Recoup's part of a status ------------------------------------------------------------------------
KEPT_SECONDS = 60.0
"""While Recoup gives no answer its last one stands in, for so long: activity moves deadlines."""
_BACKOFF = Backoff(first_seconds=2.0, longest_seconds=60.0, longest_asked_seconds=900.0)
_LATE = "Recoup has not answered yet; it is asked again."


@dataclass(frozen=True, slots=True)
class Deadlines:
    """What is known of Recoup's part of a status.

    Parameters
    ----------
    status
        Its newest answer that still counts; ``None`` when there is none.
    reason
        Why there is no answer of this moment, as a sentence; empty when there is one.
    retry_seconds
        After so long another request may be answered; ``None`` when nothing is missing.
    """

    status: SandboxStatus | None = None
    reason: str = ""
    retry_seconds: float | None = None


class DeadlineReader:
    """Reads Recoup's part of a status, for which Ivy's part neither waits nor fails.

    In an outage Recoup's server answers "no such session" or "wrong key" to what was right a moment
    ago, so neither is taken at its word: it is asked again, with growing pauses.

    Parameters
    ----------
    fetch
        Sends one request.
    is_optional
        Whether "no such session" means no more than that nothing is to be told, as of the local
        sandbox before its first start.
    clock
        Monotonic seconds; the one that ``fetch`` stamps its answers with.
    random
        In place of ``random.random``, for tests.
    """

    def __init__(
        self,
        fetch: Fetch,
        *,
        is_optional: bool = False,
        clock: Callable[[], float] = monotonic_seconds,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        self._fetch = fetch
        self._is_optional = is_optional
        self._clock = clock
        self._random = random
        self._known: SandboxStatus | None = None
        self._reason = ""
        self._failures = 0
        self._not_before = float("-inf")
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Send a request, unless one is in flight or the pause after a failure is not over."""
        if self._task is None and self._clock() >= self._not_before:
            self._task = asyncio.ensure_future(self._read())

    async def result(self, wait_seconds: float) -> Deadlines:
        """Return what is known, after waiting at most so long for the request in flight."""
        task = self._task
        if task is not None:
            await asyncio.wait({task}, timeout=wait_seconds)
            if not task.done():
                return Deadlines(self._kept(), _LATE, 1.0)
        if not self._reason:
            return Deadlines(self._known)
        return Deadlines(self._kept(), self._reason, max(1.0, self._not_before - self._clock()))

    def ask_again(self) -> None:
        """Forget the pause: settings or the sandbox have changed, or the user wants to know."""
        self._not_before, self._failures = float("-inf"), 0

    async def aclose(self) -> None:
        """Break off the request in flight."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    def _kept(self) -> SandboxStatus | None:
        known = self._known
        return known if known and known.age_seconds(self._clock()) <= KEPT_SECONDS else None

    async def _read(self) -> None:
        try:
            status = await self._fetch()
        except NotFoundError as error:
            if self._is_optional:
                self._known, self._reason, self._failures = None, "", 0
            else:
                self._failed(error)
        except Exception as error:
            self._failed(error)
        else:
            self._known, self._reason, self._failures = status, "", 0
        finally:
            if self._task is asyncio.current_task():
                self._task = None

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        pause = _BACKOFF.pause_seconds(self._failures, self._random())
        asked = _BACKOFF.asked_seconds(error)
        self._not_before = self._clock() + max(pause, asked or 0.0)
        self._reason = self._explained(error)

    def _explained(self, error: Exception) -> str:
        was_right = self._known is not None and isinstance(
            error, CredentialsError | ForbiddenError | NotFoundError
        )
        if was_right and isinstance(error, ApiError):
            return (
                f"Recoup answers HTTP {error.status_code} to what it accepted before, so it seems "
                f"to be in an outage; it is asked again."
            )
        return describe_error(error)


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
        """Return the fingerprint of the key used by the request being sent."""
        if self._key_fingerprint is None:
            return None
        try:
            return self._key_fingerprint()
        except Exception as exc:
            # Only the type: the text of an error in code that handles credentials may hold one.
            _log.warning("The credential in use could not be read (%s).", type(exc).__name__)
            return self._sent  # counts as unchanged

    def answered(self) -> None:
        """Note that the API has given a status, so the key is accepted."""
        self._is_refused = False

    def failed(self, error: Exception, sent: object) -> None:
        """Note that the request with this fingerprint has failed, perhaps because of its key."""
        self._is_refused = isinstance(error, PERMANENT_ERRORS)
        self._sent = sent

    @property
    def has_changed(self) -> bool:
        """Whether the API refused a key and another one is in use by now."""
        return self._is_refused and self.fingerprint() != self._sent


# The polling task ---------------------------------------------------------------------------------
SLICE_SECONDS = 5.0
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
    slice_seconds
        The longest single wait.
    """

    def __init__(
        self,
        poll: Callable[[], Awaitable[None]],
        *,
        due: Callable[[], float | None],
        after_wait: Callable[[bool], None],
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        slice_seconds: float = SLICE_SECONDS,
    ) -> None:
        self._poll = poll
        self._slice_seconds = slice_seconds
        self._due = due
        self._after_wait = after_wait
        self._clock = clock
        self._sleep = sleep
        self._woken = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        """The polling task; ``None`` while no request is wanted."""

    def wake(self) -> None:
        """Recompute when the next request is due; to be called on the loop."""
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
        """Wait for the next request; ``False`` when none is wanted any more."""
        while (due := self._due()) is not None:
            wait_seconds = due - self._clock()
            if wait_seconds <= 0:
                return True
            await self._wait(min(wait_seconds, self._slice_seconds))
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


Watcher = Callable[[StatusReading], None]
"""Called with each reading that is news, on the monitor's loop; must not block."""

_log = logging.getLogger(__name__)


class Watch(AbstractContextManager["Watch"]):
    """One watcher's registration at a monitor; ``close`` it, or use it in a ``with`` statement.

    Parameters
    ----------
    callback
        Called with each reading that is news.
    leave
        Called by `close`; removes the watch from the monitor.
    """

    def __init__(self, callback: Watcher, leave: Callable[[Watch], None]) -> None:
        self._callback = callback
        self._leave = leave
        self._last: StatusReading | None = None
        self.closed = False

    def close(self) -> None:
        """End the watch; the callback is not called again. Harmless when repeated."""
        # Set here and not on the loop, so that no call starts after it, from whatever thread.
        self.closed = True
        self._leave(self)

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def notify(self, reading: StatusReading) -> None:
        """Call the callback, unless the watch is closed or the reading is the last one again."""
        # A new watch gets the present reading soon after it was added, and a publish may be sooner.
        if self.closed or reading is self._last:
            return
        self._last = reading
        try:
            self._callback(reading)
        except Exception:
            # The other watchers' news must not depend on this one.
            _log.exception("A watcher of the sandbox status raised an exception.")


class Watchers:
    """All watchers of one status. True while there is at least one.

    Parameters
    ----------
    reading
        The reading before the first request; it is no news.
    """

    def __init__(self, reading: StatusReading) -> None:
        self._watches: dict[Watch, None] = {}  # a dict for its order
        self._published = reading
        self._published_state: State | None = None

    def __bool__(self) -> bool:
        return bool(self._watches)

    def add(self, watch: Watch) -> None:
        """Add one watch."""
        self._watches[watch] = None

    def remove(self, watch: Watch) -> None:
        """Remove one watch; harmless when it is not there."""
        self._watches.pop(watch, None)

    def publish(self, reading: StatusReading, now_monotonic: float) -> None:
        """Notify all watchers of a reading, if it is news."""
        state = None if reading.status is None else reading.status.effective_state(now_monotonic)
        # The state is compared with the one that was published then, not with what the old reading
        # would say now: a sandbox that has expired between two answers is news.
        if state == self._published_state and reading.says_the_same_as(
            self._published, now_monotonic
        ):
            return
        self._published, self._published_state = reading, state
        for watch in list(self._watches):  # a copy: a callback may close watches
            watch.notify(reading)

    def end(self) -> None:
        """Close every watch."""
        for watch in self._watches:
            watch.closed = True
        self._watches.clear()
