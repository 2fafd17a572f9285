"""What the server gives to its sandboxes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from ivy_kernel.local_sandbox.config import Config


class Clock:
    """Tells the time as the server's clients see it.

    Parameters
    ----------
    skew_ms
        Gives by how much the clock is off at the moment.
    """

    def __init__(self, skew_ms: Callable[[], int]) -> None:
        self._skew_ms = skew_ms

    @staticmethod
    def now() -> float:
        """A monotonic time in seconds, for durations and deadlines."""
        return time.monotonic()

    def epoch_ms(self, moment: float | None = None) -> int:
        """Epoch milliseconds of a monotonic moment; of now when ``None``."""
        moment = self.now() if moment is None else moment
        return round((time.time() + moment - self.now()) * 1000) + self._skew_ms()

    def iso(self, moment: float | None = None) -> str:
        """The same as an RFC 3339 date-time in UTC."""
        when = datetime.fromtimestamp(self.epoch_ms(moment) / 1000, timezone.utc)
        return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def http_date_seconds(self) -> float:
        """Epoch seconds for the ``Date`` header."""
        return time.time() + self._skew_ms() / 1000


@dataclass(frozen=True)
class Host:
    """The surroundings of every sandbox.

    Parameters
    ----------
    root
        The directory below which each chat has its own.
    config
        Gives the settings of the moment.
    clock
        The server's clock.
    secrets
        Gives the values that no process may see.
    note_spawn
        Told how many milliseconds the start of a process took.
    sweep_orphans
        Has the entry process kill what a killed keeper left to it.
    """

    root: Path
    config: Callable[[], Config]
    clock: Clock
    secrets: Callable[[], list[str]]
    note_spawn: Callable[[float], None]
    sweep_orphans: Callable[[], None]
