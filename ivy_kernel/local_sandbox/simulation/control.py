"""``/_control``: settings and counters at run time, for tests; only with ``--control``."""

from __future__ import annotations

from typing import Any

from ivy_kernel.local_sandbox.config import ConfigError
from ivy_kernel.local_sandbox.credentials import LOCAL_OWNER
from ivy_kernel.local_sandbox.errors import Refusal
from ivy_kernel.local_sandbox.handlers import Handler
from ivy_kernel.local_sandbox.simulation import runners

Json = dict[str, Any]


class ControlHandler(Handler):
    """GET: settings, counters and sandboxes. POST: settings to change, as a JSON object."""

    route = "/_control"

    def authenticated_owner(self) -> str:
        """The local owner, and nobody else."""
        owner = super().authenticated_owner()
        if owner != LOCAL_OWNER:
            raise Refusal(403, "only the server's own token may do this", "FORBIDDEN")
        return owner

    async def get(self) -> None:
        """Show settings and counters."""
        await self.answer(self._shown())

    async def post(self) -> None:
        """Change settings."""
        await self.answer(self._change())

    async def _shown(self) -> tuple[int, Json]:
        sandboxes = [
            {
                "sandboxId": sandbox.sandbox_id,
                "state": sandbox.state,
                "callsInFlight": sandbox.calls_in_flight,
                "pids": sandbox.pids,
            }
            for sandbox in self.parts.chats.sandboxes
        ]
        return 200, {
            "config": self.parts.config.shown(),
            "counters": self.parts.counters.shown(),
            "sandboxes": sandboxes,
        }

    async def _change(self) -> tuple[int, Json]:
        try:
            config = self.parts.config.merged(self.body_object())
        except ConfigError as error:
            raise Refusal(400, str(error), "BAD_SETTING") from None
        if why := runners.unavailable(config.runner):
            raise Refusal(400, why, "RUNNER_UNAVAILABLE")
        self.parts.config = config
        for sandbox in self.parts.chats.sandboxes:
            sandbox.advance()  # new deadlines may be nearer than the old ones
        return await self._shown()
