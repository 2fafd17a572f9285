"""The watchers of one sandbox's status, and what they have been told."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager

from ivy_kernel.status.model import Reading, State

Watcher = Callable[[Reading], None]
"""Takes what is new; called on the monitor's loop, must not block."""

_log = logging.getLogger(__name__)


class Watch(AbstractContextManager["Watch"]):
    """One watcher's hold on a monitor; ``close`` it, or use it in a ``with`` statement.

    Parameters
    ----------
    callback
        Takes what is new.
    leave
        Called by `close`, to be told nothing any more.
    """

    def __init__(self, callback: Watcher, leave: Callable[[Watch], None]) -> None:
        self._callback = callback
        self._leave = leave
        self._told: Reading | None = None
        self.closed = False

    def close(self) -> None:
        """End it; the callback is not called again. Harmless when repeated."""
        self.closed = True
        self._leave(self)

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def tell(self, reading: Reading) -> None:
        """Tell it a reading, unless it is closed, or has been told this one already."""
        if self.closed or reading is self._told:
            return
        self._told = reading
        try:
            self._callback(reading)
        except Exception:
            # The others' news must not depend on this one.
            _log.exception("A watcher of the sandbox status raised an exception.")


class Audience:
    """All watchers, who are told what is new.

    Parameters
    ----------
    reading
        What is known before anything was asked; it is no news.
    """

    def __init__(self, reading: Reading) -> None:
        self._watches: dict[Watch, None] = {}  # a dict for its order
        self._published = reading
        self._published_state: State | None = None

    def __bool__(self) -> bool:
        return bool(self._watches)

    def add(self, watch: Watch) -> None:
        """Let one more watch."""
        self._watches[watch] = None

    def remove(self, watch: Watch) -> None:
        """Let one go; harmless when it has gone."""
        self._watches.pop(watch, None)

    def publish(self, reading: Reading, now_monotonic: float) -> None:
        """Tell all watchers a reading, if it says anything new."""
        state = None if reading.status is None else reading.status.effective_state(now_monotonic)
        # The state is compared with what was told then: a sandbox that has expired between two
        # answers is news.
        if state == self._published_state and reading.says_the_same_as(
            self._published, now_monotonic
        ):
            return
        self._published, self._published_state = reading, state
        for watch in list(self._watches):
            watch.tell(reading)

    def end(self) -> None:
        """Close every watch."""
        for watch in self._watches:
            watch.closed = True
        self._watches.clear()
