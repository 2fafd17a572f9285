"""The status of a sandbox: one vocabulary for both APIs, and the monitor that polls it.

::

    Ivy ────┐
            join ──SandboxStatus or error──→ Monitor ──StatusReading──→ watcher, watcher, …
    Recoup ─┘                                   ↑ refresh, refresh_soon, accept, hold_off, news

============ ======================================================================
module       contents
============ ======================================================================
`model`      ``SandboxStatus`` and ``StatusReading``: states, countdowns, JSON (pure)
`clock`      a monotonic clock that counts sleep; HTTP dates; ``RequestTiming``
`dialects`   the answers of both APIs → one ``SandboxStatus`` (pure)
`schedule`   when the next request is due; the pauses between tries of any call (pure)
`polling`    one request with a time limit, Recoup's part beside it, the task that sends them, and
             who hears of news
`monitor`    puts these together; one monitor for each sandbox in this process
============ ======================================================================

- While there is a watcher, or a caller awaits a refresh, one task polls; otherwise nothing is sent.
- At most one request is in flight, and ``PollIntervals.least_gap_seconds`` lies between two.
  ``Retry-After`` is never cut short.
- Watchers are called with news only: they count down by themselves.
- A monitor belongs to the event loop that it was made on: it polls and calls watchers there. Its
  plain methods may be called from any thread.
"""
