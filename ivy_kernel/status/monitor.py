"""The status monitor: polls one sandbox as often as it is useful, and notifies its watchers."""

from __future__ import annotations

import asyncio
import random as random_module
import threading
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from dataclasses import replace

from ivy_kernel.status.clock import monotonic_seconds
from ivy_kernel.status.model import Dialect, SandboxStatus, StatusReading
from ivy_kernel.status.polling import (
    SLICE_SECONDS,
    Fetch,
    KeyCheck,
    NewsSource,
    StatusPoller,
    StatusRequest,
    Watch,
    Watcher,
    Watchers,
)
from ivy_kernel.status.schedule import PollIntervals, StatusSchedule

_CLOSE_SECONDS = 1.0
_NEWS_SECONDS = 0.5
"""So often a watched monitor looks for what other processes have learned: one ``stat``."""
_DEFAULT_INTERVALS = PollIntervals()


class Monitor:
    """Polls the status of one sandbox as often as it is useful, and notifies its watchers.

    Parameters
    ----------
    fetch
        Sends one status request.
    dialect
        The API that ``fetch`` calls; shown until the first answer.
    intervals
        The times between requests.
    key_fingerprint
        Returns a value that is equal as long as the same credential and settings are in use. While
        the API refuses the key it is compared now and then, and a new key is tried at once. It is
        neither shown nor logged. ``None``: only ``refresh_soon`` makes a new key be tried.
    request_limit_seconds
        A request that takes longer is abandoned.
    news_source
        Tells what other processes have learned of the sandbox; ``None``: nothing does.
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
        intervals: PollIntervals = _DEFAULT_INTERVALS,
        key_fingerprint: Callable[[], object] | None = None,
        request_limit_seconds: float = 30.0,
        news_source: NewsSource | None = None,
        clock: Callable[[], float] = monotonic_seconds,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        """The event loop that it belongs to."""
        self._request_limit_seconds = request_limit_seconds
        self._clock = clock
        self._schedule = StatusSchedule(intervals, random)
        self._key_check = KeyCheck(key_fingerprint)
        self._request = StatusRequest(fetch, limit_seconds=request_limit_seconds, sleep=sleep)
        self._reading = StatusReading(dialect=dialect)
        self._watchers = Watchers(self._reading)
        self._refreshes: list[asyncio.Future[StatusReading]] = []
        self._news_source = news_source
        self._poller = StatusPoller(
            self._poll,
            due=self._due,
            after_wait=self._after_wait,
            clock=clock,
            sleep=sleep,
            slice_seconds=SLICE_SECONDS if news_source is None else _NEWS_SECONDS,
        )
        self._closed = False

    # For watchers -------------------------------------------------------------------------------
    @property
    def reading(self) -> StatusReading:
        """The newest reading, also when it was no news to the watchers."""
        return self._reading

    @property
    def closed(self) -> bool:
        """Whether it was closed, or the loop that it belongs to was."""
        return self._closed or self.loop.is_closed()

    def watch(self, callback: Watcher) -> Watch:
        """Register a callback: it gets the present reading soon, if any, and each later news."""
        self._require_open()
        watch = Watch(callback, self._leave)
        self._on_loop(self._add, watch)
        return watch

    # For code that acts on the sandbox ----------------------------------------------------------
    def refresh_soon(self) -> None:
        """Poll as soon as it is allowed, and often for a few seconds.

        Called after every action of our own that may have changed the sandbox: create, terminate,
        a cell that failed for want of one, a changed key. A request in flight does not count,
        because it may have been answered before the action.
        """
        self._on_loop(self._set_urgent)

    async def refresh(self, *, max_age_seconds: float = 0.0) -> StatusReading:
        """Return a reading that is newer than this call, with or without watchers.

        Parameters
        ----------
        max_age_seconds
            A good reading that is no older than this is returned without a request.

        Returns
        -------
        StatusReading
            With ``error`` set when there was no answer. While a ``Retry-After`` holds, the present
            reading is returned at once.
        """
        if asyncio.get_running_loop() is self.loop:
            return await self._refresh(max_age_seconds)
        elsewhere = asyncio.run_coroutine_threadsafe(self._refresh(max_age_seconds), self.loop)
        return await asyncio.wrap_future(elsewhere)

    def accept(self, status: SandboxStatus, *, is_polled: bool = False) -> None:
        """Take a status that came by another way, such as the answer to our own create.

        Parameters
        ----------
        status
            The status.
        is_polled
            Whether whoever brought it goes on asking as long as the sandbox changes.
        """
        self._on_loop(self._accept, status, is_polled)

    def hold_off(self, seconds: float) -> None:
        """Stop polling for a while: another request got a ``Retry-After`` of so many seconds."""
        self._on_loop(self._hold, seconds)

    async def aclose(self) -> None:
        """Close it: no requests and no notifications any more. Harmless when repeated.

        To be awaited on the monitor's own loop.
        """
        self._closed = True
        self._watchers.end()
        self._release_refreshes()
        ending = [
            future for future in (self._poller.task, self._request.task) if future is not None
        ]
        for future in ending:
            future.cancel()
        if ending:
            await asyncio.wait(ending, timeout=_CLOSE_SECONDS)
            await asyncio.sleep(0)  # lets the cancelled timers of the task end too

    # On the loop --------------------------------------------------------------------------------
    def _on_loop(self, function: Callable[..., None], *args: object) -> None:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self.loop:
            function(*args)
        else:
            with suppress(RuntimeError):  # the loop is closed: there is nothing left to do
                self.loop.call_soon_threadsafe(function, *args)

    def _require_open(self) -> None:
        if self.closed:
            raise RuntimeError("This status monitor has been closed.")

    def _add(self, watch: Watch) -> None:
        if self._closed:
            return
        self._watchers.add(watch)
        if self._reading.status is not None or self._reading.error is not None:
            # Not at once: `watch` must return first, so that the callback can use the watch.
            self.loop.call_soon(self._tell_present, watch)
        self._poller.wake()

    def _tell_present(self, watch: Watch) -> None:
        watch.notify(self._reading)

    def _leave(self, watch: Watch) -> None:
        self._on_loop(self._remove, watch)

    def _remove(self, watch: Watch) -> None:
        self._watchers.remove(watch)
        self._poller.wake()

    def _set_urgent(self) -> None:
        self._schedule.poll_soon()
        self._schedule.poll_often(self._clock())
        self._poller.wake()

    def _accept(self, status: SandboxStatus, is_polled: bool) -> None:
        # The action that brought it may have more effects, so polling goes on often for a while.
        self._schedule.poll_often(self._clock())
        self._answered(status, is_polled=is_polled)

    def _hold(self, seconds: float) -> None:
        now = self._clock()
        self._schedule.hold_off(seconds, now)
        self._release_held_off(now)

    async def _refresh(self, max_age_seconds: float) -> StatusReading:
        self._require_open()
        reading, now = self._reading, self._clock()
        if self._schedule.is_held_off(now):
            return reading
        if max_age_seconds > 0 and reading.good_age_seconds(now) <= max_age_seconds:
            return reading
        future: asyncio.Future[StatusReading] = self.loop.create_future()
        self._refreshes.append(future)
        self._poller.wake()
        try:
            return await future
        finally:
            if future in self._refreshes:  # the caller has given up
                self._refreshes.remove(future)
                self._poller.wake()

    def _release_held_off(self, now: float) -> None:
        """Release all refreshes while a ``Retry-After`` holds: it may last for minutes."""
        if self._schedule.is_held_off(now):
            self._release_refreshes()

    def _release_refreshes(self) -> None:
        waiting, self._refreshes = self._refreshes, []
        self._resolve(waiting)

    def _resolve(self, waiting: list[asyncio.Future[StatusReading]]) -> None:
        for future in waiting:
            if not future.done():
                future.set_result(self._reading)

    def _due(self) -> float | None:
        if not (self._watchers or self._refreshes):
            return None
        return self._schedule.due(is_awaited=bool(self._refreshes))

    def _after_wait(self, machine_slept: bool) -> None:
        if machine_slept or self._key_check.has_changed:
            self._schedule.poll_soon()
        news = None if self._news_source is None else self._news_source.news()
        if news is None:
            return
        if news.is_action:
            self._schedule.poll_often(self._clock())
        if news.status is None:
            self._schedule.poll_soon()
        else:
            self._answered(news.status, is_polled=not news.is_action)

    async def _poll(self) -> None:
        # Refreshes that come while the request is in flight must wait for the next one: this one
        # may be answered with what was true before they were called.
        waiting, self._refreshes = self._refreshes, []
        self._schedule.began()
        key = self._key_check.fingerprint()
        try:
            status = await self._request.send()
        except Exception as exc:
            self._failed(exc, key)
        else:
            self._answered(status)
        finally:
            self._schedule.ended(self._clock())
            # Also after aclose: a waiting refresh is not cancelled, it gets the present reading.
            self._resolve(waiting)

    def _answered(self, status: SandboxStatus, *, is_polled: bool = False) -> None:
        known, now = self._reading.status, self._clock()
        if known is not None and status.described_monotonic < known.described_monotonic:
            status = known  # an answer that describes a later moment came first
        self._key_check.answered()
        delay = self._schedule.answered(status, now, is_polled=is_polled)
        self._publish(
            StatusReading(
                status=status,
                # Two intervals and a time limit: a single poll that is late makes nothing stale.
                stale_after_seconds=2 * delay + self._request_limit_seconds,
                dialect=status.dialect,
            )
        )

    def _failed(self, error: Exception, key: object) -> None:
        now = self._clock()
        error.__traceback__ = None  # its frames hold the request with the key, kept for long
        self._key_check.failed(error, key)
        self._schedule.failed(error, now)
        self._publish(replace(self._reading, error=error))
        self._release_held_off(now)

    def _publish(self, reading: StatusReading) -> None:
        self._reading = reading
        self._poller.wake()
        self._watchers.publish(reading, self._clock())


# One monitor for each sandbox --------------------------------------------------------------------
_monitors: dict[Hashable, Monitor] = {}
_monitors_lock = threading.Lock()


def monitor_for(key: Hashable, factory: Callable[[], Monitor]) -> Monitor:
    """Return the one monitor of a sandbox in this process.

    Parameters
    ----------
    key
        Identifies the sandbox: API address and chat or session id. No credential: a changed key
        must lead to the same monitor.
    factory
        Makes the monitor when there is none yet, or the earlier one has been closed.
    """
    with _monitors_lock:
        monitor = _monitors.get(key)
        if monitor is None or monitor.closed:
            monitor = _monitors[key] = factory()
        return monitor
