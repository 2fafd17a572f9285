"""The status monitor: one poller for a sandbox, and any number of watchers.

::

    fetch ──SandboxStatus or error──→ Monitor ──Reading──→ watcher, watcher, …
                                         ↑ poke, refresh, accept, hold_off

- While somebody watches, or waits for a refresh, one task asks; otherwise nothing is asked.
- At most one request is under way, and ``Pace.least_gap_seconds`` lies between two, whatever was
  asked for meanwhile. ``Retry-After`` is never cut short by anything.
- Watchers are told what is new. A reading they were told stays good until the next: they count
  down by themselves.
- The task sleeps in slices and looks at a clock that counts the machine's sleep, so a laptop that
  was suspended is noticed within a slice of waking up, and the status is asked for at once.

A monitor belongs to the event loop it was made on: it asks there, and calls watchers there. Its
plain methods may be called from any thread.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random as random_module
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace

from ivy_kernel.errors import NoAnswerError
from ivy_kernel.status.clock import monotonic_seconds
from ivy_kernel.status.model import Dialect, SandboxStatus, State
from ivy_kernel.status.pace import REFUSALS, Pace
from ivy_kernel.status.reading import Reading

Fetch = Callable[[], Awaitable[SandboxStatus]]
"""Asks the API once. Raises an ``IvyError`` when there is no status to be had."""

Watcher = Callable[[Reading], None]
"""Takes what is new; called on the monitor's loop, must not block."""

_log = logging.getLogger(__name__)

_SLICE_SECONDS = 5.0
_JUMP_SECONDS = 10.0
_CLOSE_SECONDS = 1.0
_DEFAULT_PACE = Pace()


class Watch(AbstractContextManager["Watch"]):
    """One watcher's hold on a monitor; ``close`` it, or use it in a ``with`` statement."""

    def __init__(
        self, monitor: Monitor, callback: Watcher, on_end: Callable[[], None] | None = None
    ) -> None:
        self._monitor = monitor
        self._callback = callback
        self._on_end = on_end
        self._told: Reading | None = None
        self.closed = False

    def close(self) -> None:
        """End it; the callback is not called again. Harmless when repeated."""
        self.closed = True
        self._monitor._on_loop(self._monitor._remove, self)

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _tell(self, reading: Reading) -> None:
        if self.closed or reading is self._told:
            return
        self._told = reading
        try:
            self._callback(reading)
        except Exception:
            # The others' news must not depend on this one.
            _log.exception("A watcher of the sandbox status raised an exception.")


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
        self._loop = asyncio.get_running_loop()
        self._fetch = fetch
        self._pace = pace
        self._key_token = key_token
        self._request_limit_seconds = request_limit_seconds
        self._clock = clock
        self._sleep = sleep
        self._random = random

        self._reading = Reading(dialect=dialect)
        self._published = self._reading
        self._published_state: State | None = None
        self._watches: dict[Watch, None] = {}  # a dict for its order
        self._refreshes: list[asyncio.Future[Reading]] = []
        self._task: asyncio.Task[None] | None = None
        self._request: asyncio.Future[SandboxStatus] | None = None
        self._woken = asyncio.Event()
        self._closed = False

        self._failures = 0
        self._refused_token: object = None
        self._is_refused = False
        self._poked = False
        self._alert_until = -math.inf
        self._last_ended = -math.inf
        self._scheduled = -math.inf
        self._held_until = -math.inf

    # -- for watchers ---------------------------------------------------------------------------

    @property
    def reading(self) -> Reading:
        """The newest reading, also between the moments at which watchers are told."""
        return self._reading

    @property
    def closed(self) -> bool:
        """Whether it has ended, or the loop that it belongs to has."""
        return self._closed or self._loop.is_closed()

    def watch(self, callback: Watcher) -> Watch:
        """Tell a callback the present reading soon, if there is any, and all that is new later."""
        return self._start_watch(Watch(self, callback))

    async def readings(self) -> AsyncGenerator[Reading, None]:
        """The readings that a watcher is told, until the monitor is closed.

        A slow consumer misses readings that newer ones have replaced. To be used on the monitor's
        own loop.
        """
        latest: list[Reading] = []
        news = asyncio.Event()

        def keep(reading: Reading) -> None:
            latest[:] = [reading]
            news.set()

        with self._start_watch(Watch(self, keep, on_end=news.set)) as watch:
            while not watch.closed or latest:
                if latest:
                    yield latest.pop()
                else:
                    news.clear()
                    await news.wait()

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
        if asyncio.get_running_loop() is self._loop:
            return await self._refresh(max_age_seconds)
        elsewhere = asyncio.run_coroutine_threadsafe(self._refresh(max_age_seconds), self._loop)
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
        watches = list(self._watches)
        self._watches.clear()
        for watch in watches:
            watch.closed = True
            if watch._on_end is not None:
                watch._on_end()
        self._release_refreshes()
        ending = [future for future in (self._task, self._request) if future is not None]
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
        if running is self._loop:
            function(*args)
        else:
            with suppress(RuntimeError):  # the loop has ended, and all that it would do
                self._loop.call_soon_threadsafe(function, *args)

    def _start_watch(self, watch: Watch) -> Watch:
        self._require_open()
        self._on_loop(self._add, watch)
        return watch

    def _require_open(self) -> None:
        if self.closed:
            raise RuntimeError("This status monitor has been closed.")

    def _add(self, watch: Watch) -> None:
        if self._closed:
            return
        self._watches[watch] = None
        if self._reading.status is not None or self._reading.error is not None:
            self._loop.call_soon(self._tell_present, watch)
        self._wake()

    def _tell_present(self, watch: Watch) -> None:
        watch._tell(self._reading)

    def _remove(self, watch: Watch) -> None:
        self._watches.pop(watch, None)
        self._woken.set()

    def _set_poked(self) -> None:
        self._poked = True
        self._alert_until = self._clock() + self._pace.alert_seconds
        self._wake()

    def _accept(self, status: SandboxStatus) -> None:
        self._alert_until = self._clock() + self._pace.alert_seconds
        self._answered(status)

    def _hold(self, seconds: float) -> None:
        if seconds > 0:
            seconds = min(seconds, self._pace.longest_retry_after_seconds)
            self._held_until = max(self._held_until, self._clock() + seconds)
            # Nobody is kept waiting for minutes: the present reading is what there is.
            self._release_refreshes()

    async def _refresh(self, max_age_seconds: float) -> Reading:
        self._require_open()
        reading, now = self._reading, self._clock()
        if self._held_until > now:
            return reading
        if max_age_seconds > 0 and reading.good_age_seconds(now) <= max_age_seconds:
            return reading
        future: asyncio.Future[Reading] = self._loop.create_future()
        self._refreshes.append(future)
        self._wake()
        try:
            return await future
        finally:
            if future in self._refreshes:  # the caller has given up
                self._refreshes.remove(future)
                self._woken.set()

    def _release_refreshes(self) -> None:
        waiting, self._refreshes = self._refreshes, []
        self._resolve(waiting)

    def _resolve(self, waiting: list[asyncio.Future[Reading]]) -> None:
        for future in waiting:
            if not future.done():
                future.set_result(self._reading)

    def _wake(self) -> None:
        self._woken.set()
        if self._task is None and self._is_wanted():
            self._task = self._loop.create_task(self._run())

    def _is_wanted(self) -> bool:
        return bool(self._watches or self._refreshes)

    async def _run(self) -> None:
        try:
            while await self._wait_until_due():
                await self._poll()
        finally:
            self._task = None

    async def _wait_until_due(self) -> bool:
        """Whether to ask now; ``False`` when nobody wants it any more."""
        while self._is_wanted():
            wait_seconds = self._due() - self._clock()
            if wait_seconds <= 0:
                return True
            await self._nap(min(wait_seconds, _SLICE_SECONDS))
        return False

    def _due(self) -> float:
        due = self._last_ended + self._pace.least_gap_seconds
        if not (self._poked or self._refreshes):
            due = max(due, self._scheduled)
        return max(due, self._held_until)

    async def _nap(self, seconds: float) -> None:
        before = self._clock()
        self._woken.clear()
        sleep = asyncio.ensure_future(self._sleep(seconds))
        woken = asyncio.ensure_future(self._woken.wait())
        try:
            await asyncio.wait((sleep, woken), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleep.cancel()
            woken.cancel()
        if self._clock() - before > seconds + _JUMP_SECONDS:
            self._poked = True  # the machine slept: what we know is from before
        elif self._is_refused and self._read_key_token() != self._refused_token:
            self._poked = True

    def _read_key_token(self) -> object:
        if self._key_token is None:
            return None
        try:
            return self._key_token()
        except Exception as exc:
            # Only the type: what raised it handles credentials.
            _log.warning("The credential in use could not be read (%s).", type(exc).__name__)
            return self._refused_token

    async def _poll(self) -> None:
        waiting, self._refreshes = self._refreshes, []
        self._poked = False
        token = self._read_key_token()
        try:
            status = await self._ask()
        except Exception as exc:
            self._failed(exc, token)
        else:
            self._answered(status)
        finally:
            self._last_ended = self._clock()
            # When we are closed, too: who waits is not cancelled, only not told anything newer.
            self._resolve(waiting)

    async def _ask(self) -> SandboxStatus:
        """One request, given up after a while; never beside an earlier one that still hangs."""
        limit = self._request_limit_seconds
        too_late = NoAnswerError(
            f"The API gave no status of the sandbox within {limit:g} seconds; "
            "check the network, it is asked again."
        )
        if self._request is not None and not self._request.done():
            raise too_late
        request = self._request = asyncio.ensure_future(self._fetch())
        request.add_done_callback(_retrieve)
        timer = asyncio.ensure_future(self._sleep(limit))
        try:
            await asyncio.wait((request, timer), return_when=asyncio.FIRST_COMPLETED)
            if not request.done():
                raise too_late
            if request.cancelled():
                raise NoAnswerError("The request for the status of the sandbox was cut off.")
            return request.result()
        finally:
            request.cancel()
            timer.cancel()

    def _answered(self, status: SandboxStatus) -> None:
        known, now = self._reading.status, self._clock()
        if known is not None and status.described_monotonic < known.described_monotonic:
            status = known  # overtaken by an answer that knows more
        delay = self._pace.after_answer(status, now)
        if now < self._alert_until:
            delay = min(delay, self._pace.changing_seconds)
        self._failures = 0
        self._is_refused = False
        self._scheduled = now + delay
        self._publish(
            Reading(
                status=status,
                stale_after_seconds=2 * delay + self._request_limit_seconds,
                dialect=status.dialect,
            )
        )

    def _failed(self, error: Exception, token: object) -> None:
        now = self._clock()
        error.__traceback__ = None  # its frames hold the request, and would be kept for long
        self._failures += 1
        self._is_refused = isinstance(error, REFUSALS)
        self._refused_token = token
        self._scheduled = now + self._pace.after_error(error, self._failures, self._random)
        hold_seconds = self._pace.hold_seconds(error)
        self._publish(replace(self._reading, error=error))
        if hold_seconds is not None:
            self._hold(hold_seconds)

    def _publish(self, reading: Reading) -> None:
        self._reading = reading
        self._wake()
        now = self._clock()
        state = None if reading.status is None else reading.status.effective_state(now)
        # The state is compared with what was told then: a sandbox that has expired between two
        # answers is news.
        if state == self._published_state and reading.says_the_same_as(self._published, now):
            return
        self._published, self._published_state = reading, state
        for watch in list(self._watches):
            watch._tell(reading)


def _retrieve(request: asyncio.Future[SandboxStatus]) -> None:
    # A request that was given up may still fail; nobody is left to hear of it.
    if not request.cancelled():
        request.exception()


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


async def close_monitors() -> None:
    """Close every monitor that belongs to the running loop, and forget those that are closed."""
    loop = asyncio.get_running_loop()
    with _monitors_lock:
        mine = [monitor for monitor in _monitors.values() if monitor._loop is loop]
    for monitor in mine:
        await monitor.aclose()
    with _monitors_lock:
        for key in [key for key, monitor in _monitors.items() if monitor.closed]:
            del _monitors[key]
