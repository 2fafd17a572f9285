"""Turns any error into an HTTP status and the one JSON shape of errors.

::

    {"error": {"kind": "CredentialsError", "message": "one sentence that the user can act on"}}

An error of the platform never gets status 401 or 403 here: those mean that *this* server does not
accept the browser, and front ends then ask for a new sign-in.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from tornado.web import HTTPError

from ivy_kernel.errors import (
    ApiError,
    FileExistsInSandboxError,
    IvyError,
    NetworkError,
    NoAnswerError,
    NoSuchFileError,
    NotReadyError,
    RateLimitedError,
    SandboxError,
    SettingError,
    ToolTimeoutError,
    UsageError,
)

_STATUSES: tuple[tuple[type[IvyError], HTTPStatus], ...] = (
    (NoSuchFileError, HTTPStatus.NOT_FOUND),
    (FileExistsInSandboxError, HTTPStatus.CONFLICT),
    (UsageError, HTTPStatus.BAD_REQUEST),
    (SettingError, HTTPStatus.CONFLICT),
    (SandboxError, HTTPStatus.CONFLICT),
    (RateLimitedError, HTTPStatus.TOO_MANY_REQUESTS),
    (NotReadyError, HTTPStatus.SERVICE_UNAVAILABLE),
    (ToolTimeoutError, HTTPStatus.GATEWAY_TIMEOUT),
    (NoAnswerError, HTTPStatus.GATEWAY_TIMEOUT),
    (ApiError, HTTPStatus.BAD_GATEWAY),
    (NetworkError, HTTPStatus.BAD_GATEWAY),
)
"""The first class that matches counts, so subclasses come before their base."""

_SENTENCES = {
    400: "The Jupyter server cannot make sense of this request.",
    403: "The Jupyter server refused this request: reload the page to sign in again, or send the "
    "server's token (with a cookie alone, the header X-XSRFToken too).",
    404: "There is nothing at this address.",
    405: "This address does not take this method.",
    503: "The Jupyter server is shutting down.",
}
_HERE = {"--force replaces it": "choose another name, or delete that one first"}
"""Options of commands, which a page has not → what can be done there."""

_FAULT = "The Jupyter server met with a fault; its log tells more."


class UnknownSandboxError(HTTPError):
    """404: no sandbox in use has this id (any more)."""

    def __init__(self) -> None:
        super().__init__(404)


class UnknownKernelError(HTTPError):
    """404: this server has no kernel with this id (any more)."""

    def __init__(self) -> None:
        super().__init__(404)


def error_response(
    error: BaseException | None, status_code: int = 500
) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status and the JSON body for an error.

    Parameters
    ----------
    error
        The exception; ``None`` when only the status is known.
    status_code
        The status for an error that has none of its own.
    """
    if isinstance(error, IvyError):
        status_code = next((s for kind, s in _STATUSES if isinstance(error, kind)), 500)
        words = " ".join(str(error).split())
        for option, here in _HERE.items():
            words = words.replace(option, here)
        return int(status_code), _body(type(error).__name__, words)
    # Before HTTPError, its base, whose 404 means an unknown address.
    if isinstance(error, UnknownSandboxError):
        return 404, _body(
            "UnknownSandboxError",
            "No sandbox in use has this id any more; load the list of sandboxes again.",
        )
    if isinstance(error, UnknownKernelError):
        return 404, _body(
            "UnknownKernelError",
            "This server has no kernel with this kernel_id any more; load its list of kernels "
            "again.",
        )
    if isinstance(error, HTTPError):
        status_code = error.status_code
    # The text of other errors is not shown: it may quote addresses and headers.
    return status_code, _body(_kind(status_code), _SENTENCES.get(status_code, _FAULT))


def _body(kind: str, message: str) -> dict[str, Any]:
    return {"error": {"kind": kind, "message": message}}


def _kind(status_code: int) -> str:
    """Return the name of a status, for example ``MethodNotAllowed``."""
    try:
        phrase = HTTPStatus(status_code).phrase
    except ValueError:
        return "HTTPError"
    return "".join(word.capitalize() for word in phrase.replace("-", " ").split())
