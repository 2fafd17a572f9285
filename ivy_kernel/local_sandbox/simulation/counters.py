"""What the server counts, for tests and benchmarks."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

_LATEST = 10_000


class Counters:
    """Requests, calls and bytes since the start."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.statuses: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.call_ms: dict[str, deque[float]] = {}
        self.spawn_ms: deque[float] = deque(maxlen=_LATEST)
        self.bytes_in = 0
        self.bytes_out = 0

    def request(self, route: str, status_code: int, bytes_in: int) -> None:
        """Count a request that was answered."""
        self.requests[route] += 1
        self.statuses[str(status_code)] += 1
        self.bytes_in += bytes_in

    def call(self, tool: str, milliseconds: float) -> None:
        """Count a call of a tool and how long it took in all."""
        self.calls[tool] += 1
        self.call_ms.setdefault(tool, deque(maxlen=_LATEST)).append(round(milliseconds, 3))

    def spawn(self, milliseconds: float) -> None:
        """Count the start of a process, until it runs."""
        self.spawn_ms.append(round(milliseconds, 3))

    def shown(self) -> dict[str, Any]:
        """All counts as JSON."""
        return {
            "requests": dict(self.requests),
            "statuses": dict(self.statuses),
            "calls": dict(self.calls),
            "call_ms": {tool: list(times) for tool, times in self.call_ms.items()},
            "spawn_ms": list(self.spawn_ms),
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
        }
