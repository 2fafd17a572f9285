"""A clock that stands still until a test moves it, and an API that answers by it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

from ivy_kernel.status.model import SandboxStatus, State

EPOCH = datetime(2026, 11, 29, 12, 0, 0, tzinfo=timezone.utc)


class FakeTime:
    """Monotonic seconds, and a ``sleep`` that ends when the test has moved them far enough."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def clock(self) -> float:
        """The present moment."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """End when the clock has been moved by so much."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._order), future))
        await future

    async def settle(self) -> None:
        """Let everything run that can run without the clock."""
        for _ in range(30):
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        """Move the clock, stopping wherever a sleeper wakes up."""
        end = self.now + seconds
        await self.settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            due, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                self.now = max(self.now, due)
                future.set_result(None)
                await self.settle()
        self.now = end
        await self.settle()

    async def suspend(self, seconds: float) -> None:
        """Suspends, as a laptop does: the clock goes on, timers stand still."""
        self.now += seconds
        self._sleepers = [(due + seconds, order, f) for due, order, f in self._sleepers]
        heapq.heapify(self._sleepers)
        await self.settle()


class FakeApi:
    """Counts requests, and answers each with ``state``, or raises ``error``."""

    def __init__(self, time: FakeTime) -> None:
        self.time = time
        self.state: State = "active"
        self.error: Exception | None = None
        self.takes_seconds = 0.0
        self.fields: dict[str, object] = {}
        self.server_clock_ahead_seconds = 0.0
        self.asked_at: list[float] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.before_answer: Callable[[], None] = lambda: None

    def status(self, sent: float | None = None) -> SandboxStatus:
        """An answer of this moment."""
        sent = self.time.now if sent is None else sent
        middle = (sent + self.time.now) / 2
        return SandboxStatus(
            state=self.state,
            dialect="ivy",
            received_monotonic=self.time.now,
            described_monotonic=middle,
            server_time=EPOCH + timedelta(seconds=middle + self.server_clock_ahead_seconds),
            **self.fields,  # type: ignore[arg-type]  # each test names fields of its own
        )

    async def fetch(self) -> SandboxStatus:
        """One request."""
        sent = self.time.now
        self.asked_at.append(sent)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            if self.takes_seconds:
                await self.time.sleep(self.takes_seconds)
            self.before_answer()
            if self.error is not None:
                raise self.error
            return self.status(sent)
        finally:
            self.in_flight -= 1

    def times(self) -> list[float]:
        """The times of its requests, in seconds since the first."""
        return [round(moment - self.asked_at[0], 3) for moment in self.asked_at]
