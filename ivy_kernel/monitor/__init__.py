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

`schedule` says when to ask, `poller` waits for that moment, `request` asks once, `key_check`
notices that a refused key has been replaced, `audience` tells the watchers, `monitor` puts these
together, and `registry` has the one monitor of each sandbox.
"""

from ivy_kernel.monitor.registry import close_monitors, monitor_for
from ivy_kernel.monitor.request import Fetch
from ivy_kernel.status.monitor import Monitor
from ivy_kernel.status.watchers import Watch, Watcher

__all__ = ["Fetch", "Monitor", "Watch", "Watcher", "close_monitors", "monitor_for"]
