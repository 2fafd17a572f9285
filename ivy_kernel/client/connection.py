"""One keep-alive connection pool to one API: credentials, time limits, size limit.

httpx's exceptions are translated here, and only here, into `NotSentError` (nothing ran),
`NoAnswerError` (unknown whether it ran) and `AnswerError` (an answer that makes no sense).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from ivy_kernel._version import __version__
from ivy_kernel.client.answers import decode_json, error_from_answer
from ivy_kernel.client.operations import Operation
from ivy_kernel.errors import AnswerError, NetworkError, NoAnswerError, NotSentError, SettingError
from ivy_kernel.status import monotonic_seconds, parse_http_date
from ivy_kernel.web_address import check_url

KEEPALIVE_SECONDS = 300.0
"""How long an idle connection is kept; a cell after a pause then needs no new handshake."""

_NOT_SENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
    httpx.InvalidURL,
    httpx.LocalProtocolError,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """A successful answer.

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


@dataclass(frozen=True, slots=True)
class Credential:
    """How the key travels, and what the settings call it.

    Parameters
    ----------
    key
        Gives the key of the moment, so that a changed key works without a restart.
    header, prefix
        The header that carries it, and what stands before it there.
    setting, variable
        The names that an error message gives the user.
    """

    key: Callable[[], str]
    header: str = "Authorization"
    prefix: str = "Bearer "
    setting: str = "api_key"
    variable: str = "IVY_API_KEY"


class _KeyAuth(httpx.Auth):
    """Adds the key at the last moment, so that it is in no request that we keep or print."""

    def __init__(self, credential: Credential) -> None:
        self._credential = credential

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Called by httpx for each request."""
        if self._credential.key():
            request.headers[self._credential.header] = (
                self._credential.prefix + self._credential.key()
            )
        yield request


class Connection:
    """Sends requests to one API.

    Parameters
    ----------
    base_url
        The API's base URL.
    credential
        How the key travels.
    ca_bundle
        File of CA certificates; ``None`` for the usual ones (``SSL_CERT_FILE`` is honoured).
    connect_timeout_seconds
        Limit for establishing a connection.
    response_limit_bytes
        Largest body accepted, after decompression.
    """

    def __init__(
        self,
        base_url: str,
        credential: Credential,
        *,
        ca_bundle: str | None = None,
        connect_timeout_seconds: float = 10.0,
        response_limit_bytes: int = 268_435_456,
    ) -> None:
        try:
            self._base_url = check_url(base_url)
        except ValueError as exc:
            raise SettingError(f"The URL {base_url!r} cannot be used: {exc}.") from None
        self._credential = credential
        self._ca_bundle = ca_bundle
        self._connect_timeout_seconds = connect_timeout_seconds
        self._response_limit_bytes = response_limit_bytes
        self._client: httpx.AsyncClient | None = None

    def __repr__(self) -> str:
        return f"Connection({self._base_url!r})"

    @property
    def base_url(self) -> str:
        """The API's base URL, without a trailing slash."""
        return self._base_url

    def warm_up(self) -> httpx.AsyncClient:
        """Build the pool now (20 ms, mostly CA certificates); callable from any thread."""
        if self._client is None:
            self._client = self._build()
        return self._client

    def _build(self) -> httpx.AsyncClient:
        verify: ssl.SSLContext | bool = True
        if self._ca_bundle:
            try:
                verify = ssl.create_default_context(cafile=self._ca_bundle)
            except (OSError, ssl.SSLError) as exc:
                raise SettingError(
                    f"The setting ca_bundle cannot be {self._ca_bundle!r}: {exc}.",
                    setting="ca_bundle",
                ) from None
        return httpx.AsyncClient(
            auth=_KeyAuth(self._credential),
            verify=verify,
            follow_redirects=False,
            limits=httpx.Limits(
                max_connections=32,
                max_keepalive_connections=16,
                keepalive_expiry=KEEPALIVE_SECONDS,
            ),
            headers={"User-Agent": f"ivy-kernel/{__version__}", "Accept": "application/json"},
        )

    async def aclose(self) -> None:
        """Close all connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def send(
        self,
        operation: Operation,
        *,
        total_seconds: float,
        path: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        subject: Mapping[str, Any] | None = None,
    ) -> Answer:
        """Send one request, once, and return its answer.

        Parameters
        ----------
        operation
            What to ask for.
        total_seconds
            Limit for the whole exchange, connecting apart; also against an answer that drips.
        path, query, body
            Values of the path's placeholders (quoted here), query and JSON body.
        subject
            Names for error sentences.

        Raises
        ------
        NotSentError, NoAnswerError, AnswerError, ApiError
            See `ivy_kernel.errors`.
        """
        client = self.warm_up()
        template = operation.template
        for name, value in (path or {}).items():
            template = template.replace(f"{{{name}}}", quote(value, safe=""))
        timeout = httpx.Timeout(total_seconds, connect=self._connect_timeout_seconds)
        try:
            request = client.build_request(
                operation.method,
                self._base_url + template,
                params=query,
                json=body,
                timeout=timeout,
            )
        except (TypeError, ValueError, httpx.InvalidURL) as exc:
            raise NotSentError(
                f"Could not {_named(operation, subject)}: the request cannot be written as JSON "
                f"({exc})."
            ) from None
        limit_seconds = total_seconds + self._connect_timeout_seconds
        sent = monotonic_seconds()
        try:
            response, raw = await asyncio.wait_for(self._exchange(client, request), limit_seconds)
        except asyncio.TimeoutError:
            raise NoAnswerError(
                f"Could not {_named(operation, subject)}: no whole answer within "
                f"{limit_seconds:.0f} s."
            ) from None
        except httpx.HTTPError as exc:
            raise self._translate(exc, operation, subject) from None
        received = monotonic_seconds()
        if not response.is_success:
            names = {
                "key_setting": self._credential.setting,
                "key_variable": self._credential.variable,
                **(subject or {}),
            }
            raise error_from_answer(operation, response.status_code, response.headers, raw, names)
        return Answer(
            status_code=response.status_code,
            body=decode_json(raw, operation) if raw.strip() or not operation.empty_ok else {},
            sent_monotonic=sent,
            received_monotonic=received,
            server_date=parse_http_date(response.headers.get("date", "")),
        )

    async def _exchange(
        self, client: httpx.AsyncClient, request: httpx.Request
    ) -> tuple[httpx.Response, bytes]:
        response = await client.send(request, stream=True)
        chunks: list[bytes] = []
        size_bytes = 0
        try:
            async for chunk in response.aiter_bytes():
                size_bytes += len(chunk)
                if size_bytes > self._response_limit_bytes:
                    raise AnswerError(
                        f"The answer is larger than {self._response_limit_bytes} bytes; let the "
                        f"cell print less, or raise the setting response_limit_bytes."
                    )
                chunks.append(chunk)
        finally:
            await response.aclose()
        return response, b"".join(chunks)

    def _translate(
        self, exc: httpx.HTTPError, operation: Operation, subject: Mapping[str, Any] | None
    ) -> NetworkError:
        purpose = _named(operation, subject)
        host = urlsplit(self._base_url).netloc
        reason = f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__
        if isinstance(exc, _NOT_SENT):
            advice = "check the network, proxy and the setting api_url"
            if "CERTIFICATE" in reason.upper():
                advice = "set ca_bundle to your organisation's CA certificates"
            return NotSentError(
                f"Could not {purpose}: {host} cannot be reached ({reason}); {advice}."
            )
        if isinstance(exc, httpx.DecodingError):
            return AnswerError(f"Could not {purpose}: the answer's compression is broken.")
        return NoAnswerError(
            f"Could not {purpose}: the connection to {host} broke before the answer was complete "
            f"({reason})."
        )


def _named(operation: Operation, subject: Mapping[str, Any] | None) -> str:
    try:
        return operation.purpose.format_map(dict(subject or {}))
    except KeyError:
        return operation.name
