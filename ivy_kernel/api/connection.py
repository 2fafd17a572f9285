"""One keep-alive connection pool to one API: credentials, time limits, size limit.

httpx's exceptions are translated here, and only here, into `NotSentError` (nothing ran),
`NoAnswerError` (unknown whether it ran) and `AnswerError` (an answer that makes no sense).
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any
from urllib.parse import urlsplit

import httpx

from ivy_kernel._version import __version__
from ivy_kernel.api.auth import Credential, KeyAuth, is_of_this_user, mask_logs
from ivy_kernel.api.operations import (
    ERROR_LIMIT_BYTES,
    ApiResponse,
    Operation,
    decode_json,
    encoded,
    error_from_response,
    fill,
    filled_path,
    one_line,
    too_large,
)
from ivy_kernel.errors import (
    AnswerError,
    IvyError,
    NetworkError,
    NoAnswerError,
    NotSentError,
    SettingError,
    UntrustedServerError,
    is_out_of_files,
    local_fault,
)
from ivy_kernel.settings.urls import check_url, is_loopback
from ivy_kernel.status.clock import monotonic_seconds, parse_http_date

KEEPALIVE_SECONDS = 15.0
"""Time that an idle connection is kept: shorter than any that we know of after which a router or
balancer forgets one and drops, without a word, what is sent over it."""

SILENCE_SECONDS = 2.0
"""After so long without a sign of life a connection that is used again may have been forgotten."""

DOUBT_SECONDS = 0.9
"""An answer that takes longer, after silence, makes the next requests take new connections. A poll
beside a young cell, which brings its output all the same, comes after that."""

REPEAT_READ_SECONDS = 3.0
"""After silence, a read that is not answered within this is made again over a new connection."""

PROBE_SECONDS = 15
"""Between TCP's own probes of a connection on which nothing happens, such as during a long call:
routers and balancers do not forget it then, and a dead one is noticed after four of them."""

DEAD_SECONDS = 60
"""After so long without an acknowledgement, TCP takes a connection for dead (Linux)."""

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


_SOCKET_OPTIONS = tuple(
    (level, getattr(socket, name), value)
    for level, name, value in (
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", PROBE_SECONDS),
        (socket.IPPROTO_TCP, "TCP_KEEPALIVE", PROBE_SECONDS),  # macOS's name for the same
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", PROBE_SECONDS),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", 4),
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", DEAD_SECONDS * 1000),
    )
    if hasattr(socket, name)
)

Request = dict[str, Any]
"""Arguments for httpx, from which each pool builds a request with its own headers."""


@dataclass(eq=False)
class _Pool:
    """An httpx client, and whether its idle connections can be relied on.

    Parameters
    ----------
    client
        The client.
    heard_monotonic
        When an answer last began, in seconds; ``None`` before the first one.
    exchanges
        The number of those under way.
    """

    client: httpx.AsyncClient
    heard_monotonic: float | None = None
    exchanges: int = 0

    @property
    def was_silent(self) -> bool:
        """Whether its idle connections may have been forgotten on the way."""
        heard = self.heard_monotonic
        return heard is not None and monotonic_seconds() - heard > SILENCE_SECONDS


class _Exchange:
    """One request over one pool, and what is known of its connection.

    Parameters
    ----------
    pool
        The pool.
    by_socket
        Whether connections are to a unix socket.
    """

    def __init__(self, pool: _Pool, *, by_socket: bool) -> None:
        self.pool = pool
        self._by_socket = by_socket
        self._may_be_forgotten = pool.was_silent and not by_socket
        self._is_answered = False

    @property
    def is_doubtful(self) -> bool:
        """Whether it waits for an answer on a connection that may have been forgotten."""
        return self._may_be_forgotten and not self._is_answered

    def answered(self) -> None:
        """Note that an answer has begun."""
        self._is_answered = True
        self.pool.heard_monotonic = monotonic_seconds()

    async def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Called by httpx with what happens to the connection (its request extension "trace").

        Raises
        ------
        NotSentError
            When the server at the other end of a unix socket is another user's.
        """
        if event.endswith((".connect_tcp.complete", ".connect_unix_socket.complete")):
            self._may_be_forgotten = False  # it is a new one
            connection: socket.socket = info["return_value"].get_extra_info("socket")
            if not self._by_socket:
                for option in _SOCKET_OPTIONS:
                    with suppress(OSError):  # it works without, only less well
                        connection.setsockopt(*option)
            elif not is_of_this_user(connection):
                await info["return_value"].aclose()
                raise NotSentError(
                    "The local sandbox's socket belongs to another user of this machine; nothing "
                    "was sent to it. Run the cell again to start a local sandbox of your own."
                )


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
    socket_path
        The unix socket that is connected to in place of the URL's host; it must be served by a
        process of this user. ``None`` to connect to the host.
    """

    def __init__(
        self,
        base_url: str,
        credential: Credential,
        *,
        ca_bundle: str | None = None,
        connect_timeout_seconds: float = 10.0,
        response_limit_bytes: int = 268_435_456,
        socket_path: str | None = None,
    ) -> None:
        try:
            self._base_url = check_url(base_url)
            self._host = httpx.URL(self._base_url).host
        except (ValueError, httpx.InvalidURL) as exc:
            shown = "(not shown)" if "@" in base_url else repr(base_url)  # it may hold a password
            raise SettingError(f"The URL {shown} cannot be used: {exc}.") from None
        self._credential = credential
        mask_logs(self, credential)
        self._ca_bundle = ca_bundle
        self._connect_timeout_seconds = connect_timeout_seconds
        self._response_limit_bytes = response_limit_bytes
        self._socket_path = socket_path
        self._trusted: ssl.SSLContext | None = None
        self._pool: _Pool | None = None
        self._retired: set[_Pool] = set()
        self._closing: set[asyncio.Future[None]] = set()

    def __repr__(self) -> str:
        return f"Connection({self._base_url!r})"

    @property
    def base_url(self) -> str:
        """The API's base URL, without a trailing slash."""
        return self._base_url

    def warm_up(self) -> httpx.AsyncClient:
        """Build the pool (20 ms, mostly CA certificates); callable from any thread."""
        return self._open_pool().client

    def _open_pool(self) -> _Pool:
        try:
            self._pool = self._pool or _Pool(self._build())
        except OSError as error:
            raise NotSentError(f"Nothing was sent: {local_fault(error)}.") from None
        return self._pool

    def _build(self) -> httpx.AsyncClient:
        if self._trusted is None:
            self._trusted = self._trust()
        limits = httpx.Limits(
            max_connections=32, max_keepalive_connections=16, keepalive_expiry=KEEPALIVE_SECONDS
        )
        transport = None
        if self._socket_path is not None:
            transport = httpx.AsyncHTTPTransport(uds=self._socket_path, limits=limits)
        try:
            return httpx.AsyncClient(
                auth=KeyAuth(self._credential),
                verify=self._trusted,
                transport=transport,
                # A proxy elsewhere cannot reach this machine, and must not see its token.
                trust_env=not is_loopback(self._host),
                follow_redirects=False,
                # A session cookie would be a second credential beside the key.
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
                limits=limits,
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
            if is_out_of_files(exc):
                raise
            bundle = self._ca_bundle or os.environ.get("SSL_CERT_FILE", "")
            name = "setting ca_bundle" if self._ca_bundle else "variable SSL_CERT_FILE"
            raise SettingError(
                f"The {name} cannot be {bundle!r}: it must name a file of PEM certificates "
                f"({exc}).",
                setting="ca_bundle",
            ) from None

    async def aclose(self) -> None:
        """Close all connections."""
        pools = {*self._retired, *([self._pool] if self._pool is not None else [])}
        self._pool, self._trusted = None, None
        self._retired.clear()
        for pool in pools:
            await pool.client.aclose()

    def _doubt(self, exchange: _Exchange) -> bool:
        """Have the next requests take new connections if this one may have been forgotten."""
        if exchange.is_doubtful and self._pool is exchange.pool:
            self._pool = None
            self._retired.add(exchange.pool)
        return exchange.is_doubtful

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
        self.warm_up()
        purpose = fill(operation.purpose, subject or {})
        request = {
            "method": operation.method,
            "url": self._base_url + filled_path(operation, path or {}, purpose),
            "params": query,
            "content": None if body is None else encoded(body, purpose),
            "headers": {} if body is None else {"Content-Type": "application/json"},
            "timeout": httpx.Timeout(total_seconds, connect=self._connect_timeout_seconds),
        }
        make = self._read if operation.method == "GET" else self._call
        # httpx's own limits are per read: a response that drips would never reach them.
        limit_seconds = total_seconds + self._connect_timeout_seconds
        failure: IvyError
        try:
            return await asyncio.wait_for(
                make(request, operation, purpose, subject or {}), limit_seconds
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

    @contextmanager
    def _exchange(self) -> Iterator[_Exchange]:
        """One exchange over the pool of the moment, which is closed after it if it is retired."""
        pool = self._open_pool()
        pool.exchanges += 1
        try:
            yield _Exchange(pool, by_socket=self._socket_path is not None)
        finally:
            pool.exchanges -= 1
            if pool in self._retired and not pool.exchanges:
                self._retired.discard(pool)
                closing = asyncio.ensure_future(pool.client.aclose())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)

    async def _call(self, request: Request, *names: Any) -> ApiResponse:
        """Make a request that may do something: once, whatever becomes of it."""
        with self._exchange() as exchange:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(DOUBT_SECONDS, self._doubt, exchange)
            try:
                return await self._send_once(exchange, request, *names)
            finally:
                timer.cancel()

    async def _read(self, request: Request, *names: Any) -> ApiResponse:
        """Make a request that only reads; again over a new connection if the first may be dead."""
        with self._exchange() as exchange:
            first = asyncio.ensure_future(self._send_once(exchange, request, *names))
            reads = {first}
            try:
                await asyncio.wait(reads, timeout=REPEAT_READ_SECONDS)
                if first.done() or not self._doubt(exchange):
                    return await first
                with self._exchange() as again:
                    reads.add(asyncio.ensure_future(self._send_once(again, request, *names)))
                    done, _ = await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
                    # The first one may fail at last while the second is on its way.
                    good = [read for read in done if read.exception() is None]
                    return await (good[0] if good else (reads - {first}).pop())
            finally:
                for read in reads:
                    read.cancel()
                await asyncio.gather(*reads, return_exceptions=True)

    async def _send_once(
        self,
        exchange: _Exchange,
        request: Request,
        operation: Operation,
        purpose: str,
        subject: Mapping[str, Any],
    ) -> ApiResponse:
        sent = monotonic_seconds()
        response, raw = await self._received(exchange, request, operation, purpose)
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
        body = decode_json(raw, operation) if raw.strip() or not operation.empty_ok else {}
        return ApiResponse(
            status_code=response.status_code,
            body=self._credential.without_key(body, raw, keep_parts=operation.runs_code),
            sent_monotonic=sent,
            received_monotonic=received,
            server_date=parse_http_date(response.headers.get("date", "")),
        )

    async def _received(
        self, exchange: _Exchange, request: Request, operation: Operation, purpose: str
    ) -> tuple[httpx.Response, bytes]:
        client = exchange.pool.client
        built = client.build_request(**request, extensions={"trace": exchange.trace})
        response = await client.send(built, stream=True)
        exchange.answered()
        own = operation.response_limit_bytes if response.is_success else ERROR_LIMIT_BYTES
        limit_bytes = min(own or self._response_limit_bytes, self._response_limit_bytes)
        chunks: list[bytes] = []
        size_bytes = 0
        try:  # counted after decompression: a small body may unpack to gigabytes
            async for chunk in response.aiter_bytes():
                size_bytes += len(chunk)
                if size_bytes > limit_bytes:
                    if not response.is_success:
                        break  # the status says what is wrong; the rest is only its words
                    raise too_large(operation, purpose, limit_bytes)
                chunks.append(chunk)
        finally:
            await response.aclose()
            response.stream = httpx.ByteStream(b"")  # ends a circle that keeps the request's body
        return response, b"".join(chunks)

    def _translate(self, exc: httpx.HTTPError, purpose: str, operation: Operation) -> NetworkError:
        host = urlsplit(self._base_url).netloc
        said = one_line(self._credential.masked(str(exc)))
        reason = f"{type(exc).__name__}: {said}" if said else type(exc).__name__
        if isinstance(exc, _NOT_SENT):
            if "CERTIFICATE" in reason.upper():
                return UntrustedServerError(
                    f"Could not {purpose}: {host} cannot be trusted ({reason}); set ca_bundle to a "
                    f"file with your organisation's CA certificates."
                )
            if is_out_of_files(exc):
                return NotSentError(f"Could not {purpose}: {local_fault(exc)}.")
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
