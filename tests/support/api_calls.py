"""Every operation of both APIs as a call, and the error that each status stands for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any

from scripted_server import KEY

from ivy_kernel.api import operations
from ivy_kernel.api.auth import Credential
from ivy_kernel.api.clients import IvyClient, RecoupClient, recoup_credential
from ivy_kernel.api.connection import Connection
from ivy_kernel.errors import (
    ApiError,
    BadRequestError,
    CreationFailedError,
    CredentialsError,
    ForbiddenError,
    NotFoundError,
    NotReadyError,
    RateLimitedError,
    SandboxBrokenError,
    ToolTimeoutError,
)

CHAT = "chat-17"
SESSION = "session-17"

OPERATIONS = {
    "create": operations.CREATE,
    "status": operations.STATUS,
    "tool": operations.TOOL,
    "terminate": operations.TERMINATE,
    "manifest": operations.MANIFEST,
    "recoup": operations.RECOUP_STATUS,
}

_SHARED: dict[int, type[ApiError]] = {
    401: CredentialsError,
    403: ForbiddenError,
    429: RateLimitedError,
}
DOCUMENTED: dict[str, dict[int, type[ApiError]]] = {
    "create": {**_SHARED, 400: BadRequestError, 500: CreationFailedError, 503: NotReadyError},
    "status": _SHARED,
    "tool": {
        **_SHARED,
        400: BadRequestError,
        404: NotFoundError,
        502: SandboxBrokenError,
        503: NotReadyError,
        504: ToolTimeoutError,
    },
    "terminate": {**_SHARED, 404: NotFoundError},
    "manifest": {**_SHARED, 404: NotFoundError},
    "recoup": {**_SHARED, 400: BadRequestError, 404: NotFoundError},
}

CALLS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "create": lambda c: c.create(session_id=SESSION, chat_id=CHAT, campaign_id="campaign-17"),
    "status": lambda c: c.status(CHAT),
    "tool": lambda c: c.run_tool(CHAT, "sandbox_python", {"code": "1"}, timeout_seconds=5),
    "terminate": lambda c: c.terminate(CHAT),
    "manifest": lambda c: c.manifest(CHAT),
    "recoup": lambda c: c.status(SESSION),
}


def ivy(
    url: str,
    *,
    key: str | Callable[[], str] = KEY,
    request_seconds: float = 5.0,
    retry_seconds: float = 0.0,
    **connection: Any,
) -> AbstractAsyncContextManager[IvyClient]:
    """A client of the Ivy platform for the time of the ``async with`` block."""
    give = key if callable(key) else lambda: key
    return aclosing(
        IvyClient(
            Connection(url, Credential(give), **connection),
            request_seconds=request_seconds,
            retry_seconds=retry_seconds,
        )
    )


def recoup(url: str, **connection: Any) -> AbstractAsyncContextManager[RecoupClient]:
    """A client of Recoup for the time of the ``async with`` block."""
    return aclosing(
        RecoupClient(
            Connection(url, recoup_credential(lambda: KEY), **connection), request_seconds=5.0
        )
    )


def client_for(operation: str, url: str, **more: Any) -> AbstractAsyncContextManager[Any]:
    """The client that has this operation."""
    return recoup(url, **more) if operation == "recoup" else ivy(url, **more)
