"""The API operations, and what each of their error statuses means to a user.

Source: ``ivy-sandbox`` and ``recoup-sandbox`` OpenAPI documents, one constant per operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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

Meaning = tuple[type[ApiError], str]
"""The error a status becomes, and what to do about it (the end of the user's sentence)."""

_CREDENTIALS: Meaning = (
    CredentialsError,
    "the key is missing, wrong or expired; correct the setting {key_setting} "
    "({key_variable}, or jupyter_ivy_config.json, which is read again for the next call)",
)
_FORBIDDEN: Meaning = (
    ForbiddenError,
    "the chat {chat_id!r} is not yours, or the key's project scope excludes it; check the "
    "settings chat_id and api_key",
)
_RATE: Meaning = (RateLimitedError, "too many requests; wait {retry_after} and try again")


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of an API.

    Parameters
    ----------
    method, template
        HTTP method, and path below the base URL with ``{placeholders}``.
    purpose
        What it does, to complete "Could not …".
    meanings
        Documented error status → what it means.
    empty_ok
        Whether an empty body is an answer too, where the body is undocumented.
    url_setting
        The setting that holds the API's base URL.
    """

    method: str
    template: str
    purpose: str
    meanings: Mapping[int, Meaning] = field(default_factory=dict)
    empty_ok: bool = False
    url_setting: str = "api_url"

    @property
    def name(self) -> str:
        """Method and path template, as the API's documents write it."""
        return f"{self.method} {self.template}"


CREATE = Operation(
    "POST",
    "/v1/sandbox/create",
    "create a sandbox for chat {chat_id!r}",
    {
        400: (
            BadRequestError,
            "an id is missing, or campaign {campaign_id!r} is not the campaign of chat "
            "{chat_id!r}; check the settings chat_id and campaign_id",
        ),
        401: _CREDENTIALS,
        403: _FORBIDDEN,
        429: _RATE,
        500: (
            CreationFailedError,
            "the platform failed to create it; look at its status with %ivy status, then try again",
        ),
        503: (NotReadyError, "creation failed for the moment; try again shortly"),
    },
)
STATUS = Operation(
    "GET",
    "/v1/sandbox/{chatId}/status",
    "read the sandbox status of chat {chat_id!r}",
    {401: _CREDENTIALS, 403: _FORBIDDEN, 429: _RATE},
)
TOOL = Operation(
    "POST",
    "/v1/sandbox/{chatId}/tool/{toolName}",
    "run {tool} in the sandbox of chat {chat_id!r}",
    {
        400: (
            BadRequestError,
            "the platform does not know the tool, or refused its parameters; `jupyter ivy doctor` "
            "tells which tools and fields it takes",
        ),
        401: _CREDENTIALS,
        403: _FORBIDDEN,
        404: (NotFoundError, "there is no such chat or sandbox; look with %ivy status"),
        429: _RATE,
        502: (
            SandboxBrokenError,
            "the sandbox failed to start and will not recover; run %ivy terminate, then "
            "%ivy create",
        ),
        503: (NotReadyError, "the sandbox is still starting; try again shortly"),
        504: (
            ToolTimeoutError,
            "it did not finish within its time budget of {timeout_seconds} s; split the work, "
            "or let it go on in the background",
        ),
    },
)
EXEC = Operation(
    "POST",
    "/v1/sandbox/{chatId}/exec",
    "run a command in the sandbox of chat {chat_id!r}",
    TOOL.meanings,
)
TERMINATE = Operation(
    "POST",
    "/v1/sandbox/{chatId}/terminate",
    "terminate the sandbox of chat {chat_id!r}",
    {
        401: _CREDENTIALS,
        403: _FORBIDDEN,
        404: (NotFoundError, "there is no such chat or sandbox; check the setting chat_id"),
        429: _RATE,
    },
    empty_ok=True,
)
MANIFEST = Operation(
    "GET",
    "/v1/sandbox/{chatId}/manifest",
    "list the files of chat {chat_id!r}",
    {
        401: _CREDENTIALS,
        403: _FORBIDDEN,
        404: (NotFoundError, "there is no such chat; check the setting chat_id"),
        429: _RATE,
    },
)
RECOUP_STATUS = Operation(
    "GET",
    "/api/sandbox/status",
    "read the sandbox status of Recoup session {session_id!r}",
    {
        400: (BadRequestError, "the session id is missing; set recoup_session_id"),
        401: _CREDENTIALS,
        403: (
            ForbiddenError,
            "the key's account does not own session {session_id!r}; check the settings "
            "recoup_session_id and recoup_api_key",
        ),
        404: (
            NotFoundError,
            "no session {session_id!r} exists; check the setting recoup_session_id",
        ),
        429: _RATE,
    },
    url_setting="recoup_api_url",
)
