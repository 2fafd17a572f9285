"""What the server gives to its sandboxes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ivy_kernel.local_sandbox.clock import Clock
from ivy_kernel.local_sandbox.config import Config


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
