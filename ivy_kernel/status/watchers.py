"""The watchers of one sandbox's status, and which readings are news to them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager

from ivy_kernel.status.model import State, StatusReading

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
        """Ends the watch; the callback is not called again. Harmless when repeated."""
        # Set here and not on the loop, so that no call starts after it, from whatever thread.
        self.closed = True
        self._leave(self)

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def notify(self, reading: StatusReading) -> None:
        """Calls the callback, unless the watch is closed or the reading is the last one again."""
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
        """Adds one watch."""
        self._watches[watch] = None

    def remove(self, watch: Watch) -> None:
        """Removes one watch; harmless when it is not there."""
        self._watches.pop(watch, None)

    def publish(self, reading: StatusReading, now_monotonic: float) -> None:
        """Notifies all watchers of a reading, if it is news."""
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
        """Closes every watch."""
        for watch in self._watches:
            watch.closed = True
        self._watches.clear()
