"""``/_control``: settings and counters at run time, for tests; only with ``--control``."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

from ivy_kernel.local_sandbox.access import LOCAL_OWNER
from ivy_kernel.local_sandbox.config import ConfigError
from ivy_kernel.local_sandbox.environment import Observer
from ivy_kernel.local_sandbox.handlers import Handler
from ivy_kernel.local_sandbox.results import ApiError
from ivy_kernel.local_sandbox.script import runner_of

Json = dict[str, Any]

_MAX_TIMES = 10_000


class Counters(Observer):
    """Requests, calls and bytes since the start, and the latest durations."""

    def __init__(self) -> None:
        self._requests: Counter[str] = Counter()
        self._statuses: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self._call_ms: dict[str, deque[float]] = {}
        self._spawn_ms: deque[float] = deque(maxlen=_MAX_TIMES)
        self._bytes_in = 0
        self._bytes_out = 0

    def on_request(self, route: str, status_code: int, bytes_in: int, bytes_out: int) -> None:
        """Count a request that was answered."""
        self._requests[route] += 1
        self._statuses[str(status_code)] += 1
        self._bytes_in += bytes_in
        self._bytes_out += bytes_out

    def on_call(self, tool: str, milliseconds: float) -> None:
        """Count a call of a tool and note its duration."""
        self._calls[tool] += 1
        self._call_ms.setdefault(tool, deque(maxlen=_MAX_TIMES)).append(round(milliseconds, 3))

    def on_spawn(self, milliseconds: float) -> None:
        """Note how long the start of a process took."""
        self._spawn_ms.append(round(milliseconds, 3))

    def shown(self) -> Json:
        """All counts as JSON."""
        return {
            "requests": dict(self._requests),
            "statuses": dict(self._statuses),
            "calls": dict(self._calls),
            "call_ms": {tool: list(times) for tool, times in self._call_ms.items()},
            "spawn_ms": list(self._spawn_ms),
            "bytes_in": self._bytes_in,
            "bytes_out": self._bytes_out,
        }


class ControlHandler(Handler):
    """GET: settings, counters and sandboxes. POST: settings to change, as a JSON object."""

    route = "/_control"

    def authenticated_owner(self) -> str:
        """The local owner; every other one is refused."""
        owner = super().authenticated_owner()
        if owner != LOCAL_OWNER:
            raise ApiError(403, "only the server's own token may do this", "FORBIDDEN")
        return owner

    async def get(self) -> None:
        """Show settings and counters."""
        await self.answer(self._shown())

    async def post(self) -> None:
        """Change settings."""
        await self.answer(self._change())

    async def _shown(self) -> tuple[int, Json]:
        context = self.state.context
        assert isinstance(context.observer, Counters)  # noqa: S101 - it came with this handler
        sandboxes = [
            {
                "sandboxId": sandbox.sandbox_id,
                "state": sandbox.state,
                "callsInFlight": sandbox.calls_in_flight,
                "pids": sandbox.pids,
            }
            for sandbox in self.state.chats.sandboxes
        ]
        return 200, {
            "config": context.config.shown(),
            "counters": context.observer.shown(),
            "sandboxes": sandboxes,
        }

    async def _change(self) -> tuple[int, Json]:
        try:
            config = self.state.context.config.merged(self.body_object())
        except ConfigError as error:
            raise ApiError(400, str(error), "BAD_SETTING") from None
        if why := runner_of(config).unavailable():
            raise ApiError(400, why, "RUNNER_UNAVAILABLE")
        self.state.context.config = config
        for sandbox in self.state.chats.sandboxes:
            sandbox.advance()  # new deadlines may be nearer than the old ones
        return await self._shown()
