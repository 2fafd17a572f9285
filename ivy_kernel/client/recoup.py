"""Recoup's session sandbox status."""

from __future__ import annotations

from collections.abc import Callable

from ivy_kernel.api import operations
from ivy_kernel.api.auth import Credential
from ivy_kernel.api.connection import Answer, Connection


def recoup_credential(key: Callable[[], str]) -> Credential:
    """How Recoup's key travels: in ``x-api-key`` alone, since both forms at once get a 401."""
    return Credential(
        key, header="x-api-key", prefix="", setting="recoup_api_key", variable="RECOUP_API_KEY"
    )


class RecoupClient:
    """Typed access to Recoup's status endpoint.

    Parameters
    ----------
    connection
        A connection that was made with `recoup_credential`.
    request_seconds
        Limit for each request.
    """

    def __init__(self, connection: Connection, *, request_seconds: float = 30.0) -> None:
        self._connection = connection
        self._request_seconds = request_seconds

    async def aclose(self) -> None:
        """Close all connections."""
        await self._connection.aclose()

    async def status(self, session_id: str) -> Answer:
        """Read the state of the session's sandbox, once: the poller has its own rhythm.

        Source: ``GET /api/sandbox/status``.
        """
        return await self._connection.send(
            operations.RECOUP_STATUS,
            total_seconds=self._request_seconds,
            query={"sessionId": session_id},
            subject={"session_id": session_id},
        )
