"""Recoup's route ``GET /api/sandbox/status?sessionId=``, over the same sandboxes."""

from __future__ import annotations

from ivy_kernel.local_sandbox.handlers import Handler
from ivy_kernel.local_sandbox.refusal import Refusal


class SessionStatusHandler(Handler):
    """Lifecycle of the sandbox that is bound to a session; reading it is no activity."""

    route = "/api/sandbox/status"

    def authenticated_owner(self) -> str:
        """The owner by exactly one of ``x-api-key`` and ``Authorization``."""
        return self.parts.credentials.recoup_owner(self.request.headers)

    def error_body(self, refusal: Refusal) -> Json:
        """Errors as Recoup writes them."""
        return {"status": "error", "error": refusal.error}

    async def get(self) -> None:
        """Say how the sandbox of the session is."""
        await self.answer(self._status())

    async def _status(self) -> tuple[int, Json]:
        session_id = self.get_query_argument("sessionId", "", strip=False)
        if not session_id:
            raise Refusal(400, "the query parameter sessionId is missing", "MISSING_ID")
        return 200, self.parts.chats.session_status(session_id, self.owner)
