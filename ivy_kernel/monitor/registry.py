"""The one monitor of each sandbox in this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable

from ivy_kernel.status.monitor import Monitor

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
        mine = [monitor for monitor in _monitors.values() if monitor.loop is loop]
    for monitor in mine:
        await monitor.aclose()
    with _monitors_lock:
        for key in [key for key, monitor in _monitors.items() if monitor.closed]:
            del _monitors[key]
