"""Typed clients of the two APIs, one method per operation; which failed calls are sent again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ivy_kernel.api import operations
from ivy_kernel.api.auth import Credential
from ivy_kernel.api.connection import Connection
from ivy_kernel.api.operations import ApiResponse
from ivy_kernel.errors import (
    AnswerError,
    ApiError,
    CreationFailedError,
    IvyError,
    NetworkError,
    NotReadyError,
    NotSentError,
    RateLimitedError,
    UntrustedServerError,
)
from ivy_kernel.status.clock import monotonic_seconds
from ivy_kernel.status.schedule import Backoff

# Retries -----------------------------------------------------------------------------------------
BACKOFF = Backoff(first_seconds=0.25, longest_seconds=5.0)
_SPREAD = 0.1
"""Share of the backoff that is added to ``Retry-After``: the server told many clients the same."""


def may_repeat(error: IvyError, *, idempotent: bool) -> bool:
    """Return whether a call that ended in this error may be sent again and might then succeed."""
    if isinstance(error, UntrustedServerError):
        return False  # provably not sent, but the certificate will be the same next time
    if isinstance(error, NotSentError | RateLimitedError):
        return True
    if not idempotent:
        return False
    if isinstance(error, ApiError):
        return error.status_code >= 500
    return isinstance(error, NetworkError)


def pause_seconds(attempt: int, error: IvyError, random_unit: float) -> float:
    """Return how long to pause before attempt number ``attempt`` (the first repetition is 1).

    Never less than the platform asked for.

    Parameters
    ----------
    attempt
        Number of the repetition, from 1.
    error
        What the last attempt ended in; its ``retry_after_seconds`` is honoured.
    random_unit
        A random number in [0, 1).
    """
    pause = BACKOFF.pause_seconds(attempt, random_unit)
    asked = BACKOFF.asked_seconds(error)
    return pause if asked is None else max(pause, asked + pause * _SPREAD)


async def with_retries(
    call: Callable[[], Awaitable[ApiResponse]],
    *,
    idempotent: bool,
    deadline_seconds: float,
    also: type[CreationFailedError | NotReadyError] | None = None,
) -> ApiResponse:
    """Call until it succeeds, may not be repeated, or the deadline would be passed.

    Parameters
    ----------
    call
        Sends the request once.
    idempotent
        Whether it may be sent again after an unknown outcome.
    deadline_seconds
        No repetition starts later than this after the first call; 0 for no repetition.
    also
        One more kind of error after which this call is safe to repeat.

    Raises
    ------
    IvyError
        The last attempt's error.
    """
    start = monotonic_seconds()
    attempt = 0
    while True:
        try:
            return await call()
        except IvyError as error:
            attempt += 1
            repeatable = may_repeat(error, idempotent=idempotent) or (
                also is not None and isinstance(error, also)
            )
            # A repetition that would begin after the deadline is not waited for at all.
            pause = pause_seconds(attempt, error, random.random())  # noqa: S311 - jitter only
            if not repeatable or monotonic_seconds() - start + pause > deadline_seconds:
                raise
        await asyncio.sleep(pause)


# The clients -------------------------------------------------------------------------------------
def recoup_credential(key: Callable[[], str]) -> Credential:
    """Return Recoup's credential: a key as ``x-api-key``, a session token (JWT) as ``Bearer``."""
    return Credential(
        key, key_header="x-api-key", setting="recoup_api_key", variable="RECOUP_API_KEY"
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

    async def status(self, session_id: str) -> ApiResponse:
        """Read the state of the session's sandbox, without retries: the poller has its own rhythm.

        Source: ``GET /api/sandbox/status``.
        """
        return await self._connection.send(
            operations.RECOUP_STATUS,
            total_seconds=self._request_seconds,
            query={"sessionId": session_id},
            subject={"session_id": session_id},
        )


RETRY_SECONDS = 20.0
"""Time for which a failed call is sent again, where that is safe."""
ANSWER_MARGIN_SECONDS = 20.0
"""Added to a tool's own budget: the time the platform may take to notice its end and answer."""


class IvyClient:
    """Typed access to the platform.

    Parameters
    ----------
    connection
        The connection pool; closed by `aclose`.
    request_seconds
        Limit for each request that runs nothing.
    retry_seconds
        How long a request may be repeated, where repeating is safe.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        request_seconds: float = 30.0,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._connection = connection
        self._request_seconds = request_seconds
        self._retry_seconds = retry_seconds

    @property
    def connection(self) -> Connection:
        """The connection pool."""
        return self._connection

    async def aclose(self) -> None:
        """Close all connections."""
        await self._connection.aclose()

    async def create(self, *, session_id: str, chat_id: str, campaign_id: str) -> ApiResponse:
        """Start the chat's sandbox, or join a start that is under way.

        Repeated only when it was not sent, or on 429 and 503, which the platform documents as
        passing. Source: ``POST /v1/sandbox/create``.
        """
        return await self._call(
            operations.CREATE,
            body={"sessionId": session_id, "chatId": chat_id, "campaignId": campaign_id},
            subject={"chat_id": chat_id, "campaign_id": campaign_id},
            also=NotReadyError,
        )

    async def status(self, chat_id: str, *, retry: bool = True) -> ApiResponse:
        """Read the sandbox's state. Source: ``GET /v1/sandbox/{chatId}/status``.

        Parameters
        ----------
        chat_id
            The chat.
        retry
            Whether to repeat on failure; a poller that has its own rhythm says no.
        """
        return await self._call(
            operations.STATUS,
            path={"chatId": chat_id},
            subject={"chat_id": chat_id},
            idempotent=True,
            retry=retry,
        )

    async def run_tool(
        self,
        chat_id: str,
        tool: str,
        parameters: Mapping[str, Any],
        *,
        timeout_seconds: float,
        retry: bool = True,
    ) -> Any:
        """Run a tool and return its own JSON result, whatever its shape.

        Sent again only when it provably never arrived or was refused unread (429). A 503 is the
        caller's to wait for, because the user should see the sandbox starting meanwhile.
        Source: ``POST /v1/sandbox/{chatId}/tool/{toolName}``.

        Parameters
        ----------
        chat_id, tool
            Where, and which tool.
        parameters
            The tool's own parameters.
        timeout_seconds
            Time budget, sent as it is: the platform's caps are the caller's business.
        retry
            Whether to repeat where that is safe; a caller with its own rhythm says no.

        Raises
        ------
        NoAnswerError, AnswerError
            It may have run; the outcome is unknown.
        """
        answer = await self._call(
            operations.TOOL,
            path={"chatId": chat_id, "toolName": tool},
            body={**parameters, "timeout": timeout_seconds},
            subject={"chat_id": chat_id, "tool": tool, "timeout_seconds": timeout_seconds},
            total_seconds=timeout_seconds + ANSWER_MARGIN_SECONDS,
            retry=retry,
        )
        return answer.body

    async def terminate(self, chat_id: str) -> ApiResponse:
        """Shut the chat's sandbox down. Source: ``POST /v1/sandbox/{chatId}/terminate``."""
        return await self._call(
            operations.TERMINATE, path={"chatId": chat_id}, body={}, subject={"chat_id": chat_id}
        )

    async def manifest(self, chat_id: str) -> list[dict[str, Any]]:
        """List the chat's files, oldest first; unknown fields are kept.

        The body is undocumented: a list, or an object with the list under any name.
        Source: ``GET /v1/sandbox/{chatId}/manifest``.
        """
        answer = await self._call(
            operations.MANIFEST,
            path={"chatId": chat_id},
            subject={"chat_id": chat_id},
            idempotent=True,
        )
        body = answer.body
        # The documents give no name for the list, so the first list of the object is taken.
        lists = [body] if isinstance(body, list) else []
        if isinstance(body, dict):
            lists = [value for value in body.values() if isinstance(value, list)]
        if not lists:
            raise AnswerError(f"The answer to {operations.MANIFEST.name} holds no list of files.")
        return [entry for entry in lists[0] if isinstance(entry, dict)]

    async def _call(
        self,
        operation: operations.Operation,
        *,
        path: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        subject: Mapping[str, Any],
        total_seconds: float | None = None,
        idempotent: bool = False,
        retry: bool = True,
        also: type[NotReadyError] | None = None,
    ) -> ApiResponse:
        return await with_retries(
            lambda: self._connection.send(
                operation,
                total_seconds=total_seconds or self._request_seconds,
                path=path,
                body=body,
                subject=subject,
            ),
            idempotent=idempotent,
            deadline_seconds=self._retry_seconds if retry else 0.0,
            also=also,
        )
