"""The API operations, the error that each of their statuses becomes, their paths and bodies.

Source: ``ivy-sandbox`` and ``recoup-sandbox`` OpenAPI documents, one constant per operation.
"""

from __future__ import annotations

import json
import re
from binascii import b2a_base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import quote

import msgspec

from ivy_kernel.errors import (
    AnswerError,
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
    UnexpectedStatusError,
    UsageError,
)
from ivy_kernel.status.clock import parse_http_date, parse_retry_after

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


STATUS_LIMIT_BYTES = ERROR_LIMIT_BYTES = 1_000_000
"""The largest status, and how much of an error's body is read; a thousand times what they need."""


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
    response_limit_bytes
        The largest answer that makes sense; ``None`` where only the setting of that name limits it.
    runs_code
        Whether the answer holds what code of the user's has printed.
    """

    method: str
    template: str
    purpose: str
    meanings: Mapping[int, Meaning] = field(default_factory=dict)
    empty_ok: bool = False
    url_setting: str = "api_url"
    response_limit_bytes: int | None = None
    runs_code: bool = False

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
    response_limit_bytes=STATUS_LIMIT_BYTES,
)
STATUS = Operation(
    "GET",
    "/v1/sandbox/{chatId}/status",
    "read the sandbox status of chat {chat_id!r}",
    {401: _CREDENTIALS, 403: _FORBIDDEN, 429: _RATE},
    response_limit_bytes=STATUS_LIMIT_BYTES,
)
TOOL = Operation(
    "POST",
    "/v1/sandbox/{chatId}/tool/{toolName}",
    "run {tool} in the sandbox of chat {chat_id!r}",
    {
        400: (
            BadRequestError,
            "the platform does not know the tool, or refused its parameters; run "
            "`jupyter ivy doctor`, which tells which tools and fields it takes",
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
    runs_code=True,
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
    response_limit_bytes=STATUS_LIMIT_BYTES,
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
        401: (
            CredentialsError,
            "Recoup is in an outage, in which it says so of any key, or the key is missing, wrong "
            "or expired; if it stays so, correct the setting {key_setting} ({key_variable}, or "
            "jupyter_ivy_config.json, which is read again for the next call)",
        ),
        403: (
            ForbiddenError,
            "the key's account does not own session {session_id!r}; check the settings "
            "recoup_session_id and recoup_api_key",
        ),
        404: (
            NotFoundError,
            "Recoup is in an outage, in which it says so of any session, or there is no session "
            "{session_id!r}; if it stays so, check the setting recoup_session_id",
        ),
        429: _RATE,
    },
    url_setting="recoup_api_url",
    response_limit_bytes=STATUS_LIMIT_BYTES,
)


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """A successful HTTP response, decoded.

    Parameters
    ----------
    status_code
        The HTTP status, 200 to 299.
    body
        The decoded JSON.
    sent_monotonic, received_monotonic
        Our clock when the request went out and when the answer was complete, in seconds.
    server_date
        The answer's ``Date`` header; ``None`` when there was none.
    """

    status_code: int
    body: Any
    sent_monotonic: float
    received_monotonic: float
    server_date: datetime | None


# Bodies and error responses -----------------------------------------------------------------------
DETAIL_LIMIT_CHARACTERS = 300
RETRY_AFTER_LIMIT_SECONDS = 24 * 3600.0


def decode_json(body: bytes, operation: Operation) -> Any:
    """Return the JSON value in a body.

    Raises
    ------
    AnswerError
        When it holds none: describes what it holds instead.
    """
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        pass  # the standard library is more tolerant: NaN, lone surrogates
    for text in (body, body.decode("utf-8", "replace")):  # one bad byte must not hide the rest
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            pass
    raise AnswerError(
        f"The answer to {operation.name} is not JSON but {describe_body(body)}; check the "
        f"setting {operation.url_setting} and any proxy in between."
    )


def filled_path(operation: Operation, values: Mapping[str, str], purpose: str) -> str:
    """Return an operation's path with these values of its placeholders, quoted.

    Raises
    ------
    UsageError
        When one cannot be in a path; ``purpose`` begins the sentence.
    """
    path = operation.template
    for name, value in values.items():
        if value in ("", ".", ".."):  # would name another place
            raise UsageError(f"Could not {purpose}: {value!r} cannot be a {name}.")
        try:
            path = path.replace(f"{{{name}}}", quote(value, safe=""))
        except UnicodeEncodeError:
            raise UsageError(f"Could not {purpose}: {value!r} cannot be a {name}.") from None
    return path


def encoded(body: Mapping[str, Any], purpose: str) -> bytes:
    """Return a request's body.

    Raises
    ------
    UsageError
        When it cannot be written as JSON; ``purpose`` begins the sentence.
    """
    try:
        return encode_json(body)
    except (TypeError, ValueError, RecursionError) as exc:
        raise UsageError(
            f"Could not {purpose}: the request cannot be written as JSON ({exc})."
        ) from None


LONG_CHARS = 1 << 16


@dataclass(frozen=True, slots=True)
class Base64:
    """Bytes that a body's member holds in base64. Bytes by themselves are no JSON."""

    data: bytes


def _is_long(value: object) -> bool:
    """Whether a member is written by msgspec, which takes a quarter of the time and no copies."""
    if isinstance(value, str):
        return len(value) > LONG_CHARS and value.isascii()
    return isinstance(value, Base64)


def _member(value: object) -> object:
    """A member of a body with a long one: only what msgspec writes as Python does is left to it."""
    if isinstance(value, Base64):
        return msgspec.Raw(b'"%b"' % b2a_base64(value.data, newline=False))
    return value if _is_long(value) else msgspec.Raw(encode_json(value))


def encode_json(value: object) -> bytes:
    """Return a request's body, of which members may be `Base64`.

    Raises
    ------
    TypeError, ValueError, RecursionError
        When it cannot be written as JSON.
    """
    if isinstance(value, dict) and any(map(_is_long, value.values())):
        return msgspec.json.encode({name: _member(each) for name, each in value.items()})
    compact = (",", ":")
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=compact)
        return text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON can say as an escape only
        return json.dumps(value, allow_nan=False, separators=compact).encode()


def too_large(operation: Operation, purpose: str, limit_bytes: int) -> AnswerError:
    """Return the error for an answer that is larger than its limit."""
    fix = "let the cell print less, or raise the setting response_limit_bytes"
    if operation.response_limit_bytes is not None:  # no answer of the API itself is so large
        fix = f"check the setting {operation.url_setting} and any proxy in between"
    return AnswerError(
        f"Could not {purpose}: the answer is larger than {limit_bytes} bytes; {fix}."
    )


def describe_body(body: bytes) -> str:
    """Return a description of a body that should have been JSON."""
    start = body[:200].lstrip().lower()
    if not body.strip():
        return "empty"
    if start.startswith((b"<!doctype html", b"<html")):
        return "an HTML page"
    if start[:1] in (b"{", b"["):
        return f"broken or cut-off JSON of {len(body)} bytes"
    return f"{len(body)} bytes of something else"


def error_from_response(
    operation: Operation,
    status_code: int,
    headers: Mapping[str, str],
    body: bytes,
    subject: Mapping[str, Any],
    *,
    masked: Callable[[str], str] = str,
) -> ApiError:
    """Return the error for a response with an error status.

    Parameters
    ----------
    operation
        The operation that was called.
    status_code, headers, body
        The answer; header names in lower case.
    subject
        What the sentence names: ``chat_id``, ``tool``, ``key_setting``, …
    masked
        Takes the key out of what the platform says, which may well quote it.
    """
    retry_after_seconds = retry_after(headers)
    detail, code = (one_line(masked(text)) for text in _details(body))
    known = operation.meanings.get(status_code)
    if known is None:
        error_class: type[ApiError] = UnexpectedStatusError
        advice = _unexpected(operation, status_code, headers, masked)
    else:
        error_class, template = known
        advice = fill(template, {"retry_after": _wait_words(retry_after_seconds), **subject})
    # Last, in brackets: our sentence must be whole without it.
    said = f" (the platform says: {detail})" if detail else ""
    return error_class(
        f"Could not {fill(operation.purpose, subject)}: HTTP {status_code}, {advice}{said}.",
        status_code=status_code,
        operation=operation.name,
        detail=detail,
        code=code,
        retry_after_seconds=retry_after_seconds,
    )


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that ``Retry-After`` asks for, at most a day; ``None`` without one."""
    asked = parse_retry_after(headers.get("retry-after"), parse_http_date(headers.get("date")))
    return None if asked is None else min(asked, RETRY_AFTER_LIMIT_SECONDS)


def fill(sentence: str, names: Mapping[str, Any]) -> str:
    """Put names into one of our own sentences, never into words that came from outside."""
    shown = {k: f"{v:g}" if isinstance(v, float) else v for k, v in names.items()}
    return sentence.format_map(_Unnamed(shown))


class _Unnamed(dict[str, Any]):
    """Leaves a placeholder readable when a caller has no name for it."""

    def __missing__(self, key: str) -> str:
        return f"(no {key})"


def _wait_words(seconds: float | None) -> str:
    return "a moment" if seconds is None else f"{seconds:.0f} s"


def _unexpected(
    operation: Operation,
    status_code: int,
    headers: Mapping[str, str],
    masked: Callable[[str], str],
) -> str:
    if 300 <= status_code < 400:
        address = one_line(masked(headers.get("location", "nowhere")))
        return (
            f"a redirect to {address!r}, which is not followed so that the key stays here; set "
            f"{operation.url_setting} to the final address"
        )
    # A GET changes nothing; after anything else, a fault leaves open whether it was done.
    if status_code >= 500 and operation.method == "GET":
        return "a fault on the platform's side; try again later"
    if status_code >= 500:
        return (
            "a fault on the platform's side, which leaves unknown whether it was done; look "
            "before you try again"
        )
    return f"which this operation does not document; check the setting {operation.url_setting}"


def _details(body: bytes) -> tuple[str, str]:
    """Return the platform's own words and its error code, from any plausible error body."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return "", ""
    if not isinstance(value, dict):
        return "", ""
    # The platform, Recoup and the gateways before them agree on no shape: the words stand at the
    # top or below "error", under any of these names.
    nested = value.get("error")
    scopes = [value, nested] if isinstance(nested, dict) else [value]
    words = codes = ""
    for scope in scopes:
        for name in ("message", "error", "errorMessage", "error_message", "detail", "reason"):
            if not words and isinstance(scope.get(name), str):
                words = scope[name]
        if not codes and isinstance(scope.get("code"), str):
            codes = scope["code"]
    return words, codes


def one_line(text: str) -> str:
    """Return text from outside, made safe for one line: no control characters, shortened."""
    text = re.sub(r"\s+", " ", text)
    text = "".join(character for character in text if character.isprintable()).strip(" .")
    if len(text) > DETAIL_LIMIT_CHARACTERS:
        text = text[: DETAIL_LIMIT_CHARACTERS - 1] + "…"
    return text
