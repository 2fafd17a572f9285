"""One keep-alive connection pool to one API: credentials, time limits, size limit.

httpx's exceptions are translated here, and only here, into `NotSentError` (nothing ran),
`NoAnswerError` (unknown whether it ran) and `AnswerError` (an answer that makes no sense).
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from ivy_kernel._version import __version__
from ivy_kernel.api.auth import Credential, KeyAuth
from ivy_kernel.api.operations import Operation, decode_json, encode_json, error_from_response, fill
from ivy_kernel.errors import (
    AnswerError,
    IvyError,
    NetworkError,
    NoAnswerError,
    NotSentError,
    SettingError,
    UsageError,
)
from ivy_kernel.settings.urls import check_url, is_loopback
from ivy_kernel.status.clock import monotonic_seconds, parse_http_date

KEEPALIVE_SECONDS = 300.0
"""Time that an idle connection is kept, so that a cell after a pause needs no new handshake."""

# The request was not written, or not whole: nothing can have run. All other errors of httpx count
# as "may have run", timeouts while writing included.
_NOT_SENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
    httpx.InvalidURL,
    httpx.LocalProtocolError,
)


class UntrustedServerError(NotSentError):
    """The server's certificate is not trusted; a retry would not change that."""


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


class Connection:
    """A keep-alive connection pool to one API.

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
            self._host = httpx.URL(self._base_url).host
        except (ValueError, httpx.InvalidURL) as exc:
            shown = "(not shown)" if "@" in base_url else repr(base_url)  # it may hold a password
            raise SettingError(f"The URL {shown} cannot be used: {exc}.") from None
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
        """Build the pool (20 ms, mostly CA certificates); callable from any thread."""
        if self._client is None:
            self._client = self._build()
        return self._client

    def _build(self) -> httpx.AsyncClient:
        verify = self._trust()
        try:
            return httpx.AsyncClient(
                auth=KeyAuth(self._credential),
                verify=verify,
                # A proxy elsewhere cannot reach this machine, and must not see its token.
                trust_env=not is_loopback(self._host),
                follow_redirects=False,
                # A session cookie would be a second credential beside the key.
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
                limits=httpx.Limits(
                    max_connections=32,
                    max_keepalive_connections=16,
                    keepalive_expiry=KEEPALIVE_SECONDS,
                ),
                headers={
                    "User-Agent": f"ivy-kernel/{__version__}",
                    "Accept": "application/json",
                    # Fixed: httpx's own value depends on which optional decoders are installed.
                    "Accept-Encoding": "gzip, deflate",
                },
            )
        except ImportError:
            reason = "a SOCKS proxy needs the package httpx[socks]"
        except (ValueError, httpx.InvalidURL):
            reason = "it must be a URL such as http://proxy.example:3128"
        # Neither named nor chained: a proxy's URL may hold a password.
        raise SettingError(
            f"A proxy that the environment names (HTTPS_PROXY, ALL_PROXY, NO_PROXY) cannot be "
            f"used: {reason}."
        )

    def _trust(self) -> ssl.SSLContext:
        """The certificates that we trust."""
        if self._base_url.startswith("http://"):  # unused; loading certificates would cost 20 ms
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            if self._ca_bundle:
                return ssl.create_default_context(cafile=self._ca_bundle)
            return httpx.create_ssl_context()
        except OSError as exc:  # ssl.SSLError is one
            bundle = self._ca_bundle or os.environ.get("SSL_CERT_FILE", "")
            name = "setting ca_bundle" if self._ca_bundle else "variable SSL_CERT_FILE"
            raise SettingError(
                f"The {name} cannot be {bundle!r}: it must name a file of PEM certificates "
                f"({exc}).",
                setting="ca_bundle",
            ) from None

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
    ) -> ApiResponse:
        """Send one request, once, and return its response.

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
        UsageError
            When the request cannot be written down; nothing was sent.
        SettingError
            When key, certificates or proxy cannot be used; nothing was sent.
        """
        client = self.warm_up()
        purpose = fill(operation.purpose, subject or {})
        request = client.build_request(
            operation.method,
            self._base_url + _filled_path(operation, path or {}, purpose),
            params=query,
            content=None if body is None else _encoded(body, purpose),
            headers={} if body is None else {"Content-Type": "application/json"},
            timeout=httpx.Timeout(total_seconds, connect=self._connect_timeout_seconds),
        )
        # httpx's own limits are per read: a response that drips would never reach them.
        limit_seconds = total_seconds + self._connect_timeout_seconds
        failure: IvyError
        try:
            return await asyncio.wait_for(
                self._send_once(client, request, operation, purpose, subject or {}), limit_seconds
            )
        except asyncio.TimeoutError:
            failure = NoAnswerError(
                f"Could not {purpose}: no whole answer within {limit_seconds:g} s."
            )
        except httpx.HTTPError as exc:
            failure = self._translate(exc, purpose, operation)
        except IvyError as exc:
            failure = exc
        # Raised from here and unchained: the local variables of what it called hold the key, and
        # some tools print them with tracebacks.
        failure.__context__ = None
        raise failure.with_traceback(None)

    async def _send_once(
        self,
        client: httpx.AsyncClient,
        request: httpx.Request,
        operation: Operation,
        purpose: str,
        subject: Mapping[str, Any],
    ) -> ApiResponse:
        sent = monotonic_seconds()
        response, raw = await self._received(client, request, purpose)
        received = monotonic_seconds()
        if not response.is_success:
            names = {
                "key_setting": self._credential.setting,
                "key_variable": self._credential.variable,
                **subject,
            }
            raise error_from_response(
                operation,
                response.status_code,
                response.headers,
                raw,
                names,
                masked=self._credential.masked,
            )
        return ApiResponse(
            status_code=response.status_code,
            body=decode_json(raw, operation) if raw.strip() or not operation.empty_ok else {},
            sent_monotonic=sent,
            received_monotonic=received,
            server_date=parse_http_date(response.headers.get("date", "")),
        )

    async def _received(
        self, client: httpx.AsyncClient, request: httpx.Request, purpose: str
    ) -> tuple[httpx.Response, bytes]:
        response = await client.send(request, stream=True)
        chunks: list[bytes] = []
        size_bytes = 0
        try:
            # Counted after decompression: a small body may unpack to gigabytes.
            async for chunk in response.aiter_bytes():
                size_bytes += len(chunk)
                if size_bytes > self._response_limit_bytes:
                    raise AnswerError(
                        f"Could not {purpose}: the answer is larger than "
                        f"{self._response_limit_bytes} bytes; let the cell print less, or raise "
                        f"the setting response_limit_bytes."
                    )
                chunks.append(chunk)
        finally:
            await response.aclose()
        return response, b"".join(chunks)

    def _translate(self, exc: httpx.HTTPError, purpose: str, operation: Operation) -> NetworkError:
        host = urlsplit(self._base_url).netloc
        said = self._credential.masked(str(exc))
        reason = f"{type(exc).__name__}: {said}" if said else type(exc).__name__
        if isinstance(exc, _NOT_SENT):
            if "CERTIFICATE" in reason.upper():
                return UntrustedServerError(
                    f"Could not {purpose}: {host} cannot be trusted ({reason}); set ca_bundle to a "
                    f"file with your organisation's CA certificates."
                )
            return NotSentError(
                f"Could not {purpose}: {host} cannot be reached ({reason}); check the network, "
                f"the proxy and the setting {operation.url_setting}."
            )
        if isinstance(exc, httpx.DecodingError):
            return AnswerError(f"Could not {purpose}: the answer's compression is broken.")
        return NoAnswerError(
            f"Could not {purpose}: the connection to {host} broke before the answer was complete "
            f"({reason})."
        )


def _filled_path(operation: Operation, values: Mapping[str, str], purpose: str) -> str:
    path = operation.template
    for name, value in values.items():
        if value in ("", ".", ".."):  # would name another place
            raise UsageError(f"Could not {purpose}: {value!r} cannot be a {name}.")
        try:
            path = path.replace(f"{{{name}}}", quote(value, safe=""))
        except UnicodeEncodeError:
            raise UsageError(f"Could not {purpose}: {value!r} cannot be a {name}.") from None
    return path


def _encoded(body: Mapping[str, Any], purpose: str) -> bytes:
    try:
        return encode_json(body)
    except (TypeError, ValueError, RecursionError) as exc:
        raise UsageError(
            f"Could not {purpose}: the request cannot be written as JSON ({exc})."
        ) from None
