"""Asks for the status of one sandbox as often as it is useful, and tells its watchers."""

from __future__ import annotations

import asyncio
import random as random_module
import threading
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from dataclasses import replace

from ivy_kernel.status.clock import monotonic_seconds
from ivy_kernel.status.model import Dialect, Reading, SandboxStatus
from ivy_kernel.status.polling import Fetch, KeyCheck, Poller, Request
from ivy_kernel.status.schedule import Pace, Schedule
from ivy_kernel.status.watchers import Audience, Watch, Watcher

_CLOSE_SECONDS = 1.0
_DEFAULT_PACE = Pace()


class Monitor:
    """Asks for the status of one sandbox as often as it is useful, and tells its watchers.

    Parameters
    ----------
    fetch
        Asks the API once.
    dialect
        The API that ``fetch`` asks; shown until the first answer.
    pace
        The times between requests.
    key_token
        Gives something that is equal as long as the same credential and settings are in use. While
        the API refuses us it is compared now and then, and a change is tried at once. It is
        neither shown nor logged. ``None``: only ``poke`` tells that a key has changed.
    request_limit_seconds
        A request that takes longer is given up.
    clock
        Monotonic seconds; the one that ``fetch`` stamps its answers with.
    sleep, random
        In place of ``asyncio.sleep`` and ``random.random``, for tests.
    """

    def __init__(
        self,
        fetch: Fetch,
        *,
        dialect: Dialect = "ivy",
        pace: Pace = _DEFAULT_PACE,
        key_token: Callable[[], object] | None = None,
        request_limit_seconds: float = 30.0,
        clock: Callable[[], float] = monotonic_seconds,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        """The event loop that it belongs to."""
        self._request_limit_seconds = request_limit_seconds
        self._clock = clock
        self._schedule = Schedule(pace, random)
        self._key_check = KeyCheck(key_token)
        self._request = Request(fetch, limit_seconds=request_limit_seconds, sleep=sleep)
        self._reading = Reading(dialect=dialect)
        self._audience = Audience(self._reading)
        self._refreshes: list[asyncio.Future[Reading]] = []
        self._poller = Poller(
            self._poll, due=self._due, after_wait=self._after_wait, clock=clock, sleep=sleep
        )
        self._closed = False

    # -- for watchers ---------------------------------------------------------------------------

    @property
    def reading(self) -> Reading:
        """The newest reading, also between the moments at which watchers are told."""
        return self._reading

    @property
    def closed(self) -> bool:
        """Whether it has ended, or the loop that it belongs to has."""
        return self._closed or self.loop.is_closed()

    def watch(self, callback: Watcher) -> Watch:
        """Tell a callback the present reading soon, if there is any, and all that is new later."""
        self._require_open()
        watch = Watch(callback, self._leave)
        self._on_loop(self._add, watch)
        return watch

    # -- for those who act on the sandbox -------------------------------------------------------

    def poke(self) -> None:
        """Ask as soon as it is allowed, and often for a few seconds.

        Called after everything of our own that may have changed the sandbox: create, terminate,
        a cell that failed for want of one, a changed key. A request under way counts for nothing,
        because it may have been answered before.
        """
        self._on_loop(self._set_poked)

    async def refresh(self, *, max_age_seconds: float = 0.0) -> Reading:
        """A reading that is newer than this call, whether or not anybody watches.

        Parameters
        ----------
        max_age_seconds
            A good reading that is no older than this will do, and nothing is asked.

        Returns
        -------
        Reading
            With ``error`` set when there was no answer. While the server has asked not to be
            asked, the present reading is returned at once.
        """
        if asyncio.get_running_loop() is self.loop:
            return await self._refresh(max_age_seconds)
        elsewhere = asyncio.run_coroutine_threadsafe(self._refresh(max_age_seconds), self.loop)
        return await asyncio.wrap_future(elsewhere)

    def accept(self, status: SandboxStatus) -> None:
        """Take a status that came by another way, such as the answer to our own create."""
        self._on_loop(self._accept, status)

    def hold_off(self, seconds: float) -> None:
        """Ask nothing for a while: another request got a ``Retry-After`` of this many seconds."""
        self._on_loop(self._hold, seconds)

    async def aclose(self) -> None:
        """End it: nothing is asked and nobody is told any more. Harmless when repeated.

        To be awaited on the monitor's own loop.
        """
        self._closed = True
        self._audience.end()
        self._release_refreshes()
        ending = [
            future for future in (self._poller.task, self._request.task) if future is not None
        ]
        for future in ending:
            future.cancel()
        if ending:
            await asyncio.wait(ending, timeout=_CLOSE_SECONDS)
            await asyncio.sleep(0)  # lets the timers of the task take notice of their end

    # -- on the loop ----------------------------------------------------------------------------

    def _on_loop(self, function: Callable[..., None], *args: object) -> None:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self.loop:
            function(*args)
        else:
            with suppress(RuntimeError):  # the loop has ended, and all that it would do
                self.loop.call_soon_threadsafe(function, *args)

    def _require_open(self) -> None:
        if self.closed:
            raise RuntimeError("This status monitor has been closed.")

    def _add(self, watch: Watch) -> None:
        if self._closed:
            return
        self._audience.add(watch)
        if self._reading.status is not None or self._reading.error is not None:
            self.loop.call_soon(self._tell_present, watch)
        self._poller.wake()

    def _tell_present(self, watch: Watch) -> None:
        watch.tell(self._reading)

    def _leave(self, watch: Watch) -> None:
        self._on_loop(self._remove, watch)

    def _remove(self, watch: Watch) -> None:
        self._audience.remove(watch)
        self._poller.wake()

    def _set_poked(self) -> None:
        self._schedule.hurry()
        self._schedule.attend(self._clock())
        self._poller.wake()

    def _accept(self, status: SandboxStatus) -> None:
        self._schedule.attend(self._clock())
        self._answered(status)

    def _hold(self, seconds: float) -> None:
        now = self._clock()
        self._schedule.hold_off(seconds, now)
        self._release_held_off(now)

    async def _refresh(self, max_age_seconds: float) -> Reading:
        self._require_open()
        reading, now = self._reading, self._clock()
        if self._schedule.is_held_off(now):
            return reading
        if max_age_seconds > 0 and reading.good_age_seconds(now) <= max_age_seconds:
            return reading
        future: asyncio.Future[Reading] = self.loop.create_future()
        self._refreshes.append(future)
        self._poller.wake()
        try:
            return await future
        finally:
            if future in self._refreshes:  # the caller has given up
                self._refreshes.remove(future)
                self._poller.wake()

    def _release_held_off(self, now: float) -> None:
        """Nobody is kept waiting for minutes: the present reading is what there is."""
        if self._schedule.is_held_off(now):
            self._release_refreshes()

    def _release_refreshes(self) -> None:
        waiting, self._refreshes = self._refreshes, []
        self._resolve(waiting)

    def _resolve(self, waiting: list[asyncio.Future[Reading]]) -> None:
        for future in waiting:
            if not future.done():
                future.set_result(self._reading)

    def _due(self) -> float | None:
        if not (self._audience or self._refreshes):
            return None
        return self._schedule.due(is_awaited=bool(self._refreshes))

    def _after_wait(self, machine_slept: bool) -> None:
        if machine_slept or self._key_check.has_changed:
            self._schedule.hurry()

    async def _poll(self) -> None:
        waiting, self._refreshes = self._refreshes, []
        self._schedule.began()
        key = self._key_check.sending()
        try:
            status = await self._request.send()
        except Exception as exc:
            self._failed(exc, key)
        else:
            self._answered(status)
        finally:
            self._schedule.ended(self._clock())
            # When we are closed, too: who waits is not cancelled, only not told anything newer.
            self._resolve(waiting)

    def _answered(self, status: SandboxStatus) -> None:
        known, now = self._reading.status, self._clock()
        if known is not None and status.described_monotonic < known.described_monotonic:
            status = known  # overtaken by an answer that knows more
        self._key_check.answered()
        delay = self._schedule.answered(status, now)
        self._publish(
            Reading(
                status=status,
                stale_after_seconds=2 * delay + self._request_limit_seconds,
                dialect=status.dialect,
            )
        )

    def _failed(self, error: Exception, key: object) -> None:
        now = self._clock()
        error.__traceback__ = None  # its frames hold the request, and would be kept for long
        self._key_check.failed(error, key)
        self._schedule.failed(error, now)
        self._publish(replace(self._reading, error=error))
        self._release_held_off(now)

    def _publish(self, reading: Reading) -> None:
        self._reading = reading
        self._poller.wake()
        self._audience.publish(reading, self._clock())


_monitors: dict[Hashable, Monitor] = {}
_monitors_lock = threading.Lock()


def monitor_for(key: Hashable, factory: Callable[[], Monitor]) -> Monitor:
    """The one monitor of a sandbox in this process.

    Parameters
    ----------
    key
        What tells sandboxes apart: API address and chat or session id. No credential: a key that
        changes must lead to the same monitor.
    factory
        Makes the monitor when there is none yet, or the earlier one has been closed.
    """
    with _monitors_lock:
        monitor = _monitors.get(key)
        if monitor is None or monitor.closed:
            monitor = _monitors[key] = factory()
        return monitor
