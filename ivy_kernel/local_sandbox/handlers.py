"""The routes of both APIs, and what all routes have in common.

Source: ``POST /v1/sandbox/create``, ``GET /v1/sandbox/{chatId}/status``,
``POST /v1/sandbox/{chatId}/tool/{toolName}``, ``…/exec``, ``…/terminate``, ``GET …/manifest`` of
Ivy; ``GET /api/sandbox/status`` of Recoup.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Any, NoReturn

import msgspec
from tornado import web
from tornado.httputil import format_timestamp

from ivy_kernel.local_sandbox.access import Chats, Credentials, RateLimit
from ivy_kernel.local_sandbox.environment import Clock, ServerContext
from ivy_kernel.local_sandbox.results import ApiError
from ivy_kernel.local_sandbox.tools import TOOLS, run_tool

Json = dict[str, Any]

log = logging.getLogger("ivy_kernel.local_sandbox")

_METHODS = ("GET", "POST")
_LONG_BODY_BYTES = 1 << 16
_HOSTS = ("127.0.0.1", "localhost", "[::1]")


@dataclass
class ServerState:
    """The state that the handlers work with.

    Parameters
    ----------
    context
        The state that the sandboxes share too.
    credentials, rate_limit, chats
        Who may ask, how often, and for which chats.
    last_request_at
        The monotonic time at which an accepted request last began or ended.
    url
        The base URL, known when the server listens.
    open_requests
        The number of accepted requests that are not answered yet.
    """

    context: ServerContext
    credentials: Credentials
    rate_limit: RateLimit
    chats: Chats
    last_request_at: float
    url: str = ""
    open_requests: int = 0


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


def json_bytes(value: Json) -> bytes:
    """Valid JSON: NaN and infinity, which JSON does not have, become null."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:  # a lone surrogate, which JSON can only escape
        return json.dumps(_finite(value), allow_nan=False).encode()


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


class Handler(web.RequestHandler):
    """Base of all routes: authentication, rate limit, and errors as JSON without internals."""

    route = ""
    state: ServerState

    def initialize(self, state: ServerState) -> None:
        """Take the server's state (tornado calls this)."""
        self.state = state
        self.owner = ""
        self._accepted = False
        self._work: asyncio.Task[Any] | None = None
        self._bytes_out = 0

    def set_default_headers(self) -> None:
        """Set the headers of every answer; the date is the server's own clock's."""
        # tornado calls this before `initialize`, so that only the application is there to ask.
        clock: Clock = self.application.settings["clock"]
        self.set_header("Server", "ivy-local-sandbox")
        self.set_header("Content-Type", "application/json")
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Date", format_timestamp(clock.http_date_seconds()))

    def compute_etag(self) -> None:
        """Do nothing: no entity tags, an answer is always whole."""

    def prepare(self) -> None:
        """Authenticate and count the request, or refuse it."""
        try:
            self._refuse_foreign_hosts()
            self.owner = self.authenticated_owner()
            self._accepted = True
            self.state.open_requests += 1
            self.state.last_request_at = self.state.context.clock.now()
            self.state.rate_limit.count(self.owner)
        except ApiError as error:
            self.respond_error(error)

    def _refuse_foreign_hosts(self) -> None:
        # DNS rebinding: a web page whose name was made to point at 127.0.0.1 still sends its own
        # name as Host.
        host = self.request.host.lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name not in _HOSTS:
            raise ApiError(403, "the Host header is not that of this machine", "FORBIDDEN_HOST")

    def authenticated_owner(self) -> str:
        """The owner by Ivy's credentials."""
        return self.state.credentials.ivy_owner(
            self.request.headers, self.get_cookie("__session") or "", bearer_only=False
        )

    def body_object(self) -> Json:
        """The body as a JSON object.

        Raises
        ------
        ApiError
            400 when it is none.
        """
        limit = self.state.context.config.max_request_bytes
        if len(self.request.body) > limit:
            text = f"the body has {len(self.request.body)} bytes; {limit} are allowed"
            raise ApiError(400, text, "REQUEST_TOO_LARGE")
        if len(self.request.body) > _LONG_BODY_BYTES:  # msgspec takes half the time
            with suppress(msgspec.DecodeError, RecursionError):
                return msgspec.json.decode(self.request.body, type=dict[str, Any])
        # Python's parser takes NaN and Infinity, which are no JSON, and gives up on deep nesting
        # with a RecursionError.
        try:
            body = json.loads(self.request.body, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            raise ApiError(400, "the body is not a JSON object", "BAD_BODY")
        return body

    async def answer(self, work: Coroutine[Any, Any, tuple[int, Json]]) -> None:
        """Do the work and answer with its status and object, or with its error."""
        self._work = asyncio.ensure_future(work)
        try:
            status_code, body = await self._work
        except asyncio.CancelledError:
            # The client went away and no one reads the answer, or the server ends.
            self.respond_error(ApiError(502, "the call was cancelled", "CANCELLED"))
        except ApiError as error:
            self.respond_error(error)
        else:
            self.respond(status_code, body)

    def on_connection_close(self) -> None:
        """Stop the work of a client that went away, if so configured (tornado calls this)."""
        if self.state.context.config.cancel_on_disconnect and self._work is not None:
            self._work.cancel()

    def respond(self, status_code: int, body: Json) -> None:
        """Finish with a JSON object."""
        self.set_status(status_code)
        content = json_bytes(body)
        self._bytes_out = len(content)
        self.finish(content)

    def respond_error(self, error: ApiError) -> None:
        """Finish with an error."""
        if error.retry_after:
            self.set_header("Retry-After", error.retry_after)
        self.respond(error.status_code, self.error_body(error))

    def error_body(self, error: ApiError) -> Json:
        """The JSON object of an error."""
        return {"error": error.error, "code": error.code}

    def write_error(self, status_code: int, **_: Any) -> None:
        """Finish with an error of tornado's own, or with an unexpected one (tornado calls this)."""
        words = "internal error; the server's log says more"
        if status_code != HTTPStatus.INTERNAL_SERVER_ERROR:
            words = HTTPStatus(status_code).phrase.lower()
        if status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            self.set_header("Allow", ", ".join(self._methods()))
        code = HTTPStatus(status_code).name
        self.respond_error(ApiError(status_code, words, code))

    def _methods(self) -> list[str]:
        own = type(self)  # tornado's base class has a method for every verb
        return [name for name in _METHODS if name.lower() in own.__dict__]

    def log_exception(
        self,
        typ: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Log unexpected errors, without headers and query: those may hold secrets."""
        if value is not None and not isinstance(value, web.HTTPError):
            where = f"{self.request.method} {self.request.path}"
            log.error("unexpected error in %s", where, exc_info=value)

    def on_finish(self) -> None:
        """Count and log the request (tornado calls this)."""
        if self._accepted:
            self.state.open_requests -= 1
            self.state.last_request_at = self.state.context.clock.now()
        method = self.request.method if self.request.method in _METHODS else "(other)"
        status_code = self.get_status()
        self.state.context.observer.on_request(
            f"{method} {self.route}", status_code, len(self.request.body or b""), self._bytes_out
        )
        took_ms = self.request.request_time() * 1000
        log.info("%s %s %d %.1f ms", method, self.request.path, status_code, took_ms)


class CreateHandler(Handler):
    """``POST /v1/sandbox/create``."""

    route = "/v1/sandbox/create"

    def authenticated_owner(self) -> str:
        """The owner by ``Authorization`` alone, as this route demands."""
        return self.state.credentials.ivy_owner(self.request.headers, "", bearer_only=True)

    async def post(self) -> None:
        """Create the sandbox of a chat."""
        await self.answer(self._create())

    async def _create(self) -> tuple[int, Json]:
        return await self.state.chats.create(self.owner, self.body_object(), self.state.url)


class StatusHandler(Handler):
    """``GET /v1/sandbox/{chatId}/status``."""

    route = "/v1/sandbox/{chatId}/status"

    async def get(self, chat_id: str) -> None:
        """Answer with the sandbox's status."""
        await self.answer(self._status(chat_id))

    async def _status(self, chat_id: str) -> tuple[int, Json]:
        self.state.chats.admit(chat_id, self.owner)
        sandbox = self.state.chats.sandbox(chat_id)
        return 200, {"status": "none"} if sandbox is None else sandbox.ivy_status()


class ToolHandler(Handler):
    """``POST /v1/sandbox/{chatId}/tool/{toolName}``."""

    route = "/v1/sandbox/{chatId}/tool/{toolName}"

    async def post(self, chat_id: str, tool: str) -> None:
        """Run a tool."""
        await self.answer(self._run(chat_id, tool))

    async def _run(self, chat_id: str, tool: str) -> tuple[int, Json]:
        self.state.chats.admit(chat_id, self.owner)
        if tool not in TOOLS:
            text = f"there is no tool {tool!r}; there are: {', '.join(TOOLS)}"
            raise ApiError(400, text, "UNKNOWN_TOOL")
        body = self.body_object()
        sandbox = self.state.chats.sandbox_for_tools(chat_id)
        began = time.perf_counter()
        # Failed calls count as well.
        try:
            async with sandbox.in_use() as box:
                return 200, await run_tool(tool, self.state.context.config, box, body)
        finally:
            self.state.context.observer.on_call(tool, (time.perf_counter() - began) * 1000)


class ExecHandler(ToolHandler):
    """``POST /v1/sandbox/{chatId}/exec``: the same as the tool ``sandbox_exec``."""

    route = "/v1/sandbox/{chatId}/exec"

    async def post(self, chat_id: str) -> None:  # type: ignore[override]  # one path argument less
        """Run a shell command."""
        await self.answer(self._run(chat_id, "sandbox_exec"))


class TerminateHandler(Handler):
    """``POST /v1/sandbox/{chatId}/terminate``."""

    route = "/v1/sandbox/{chatId}/terminate"

    async def post(self, chat_id: str) -> None:
        """End the sandbox."""
        await self.answer(self._terminate(chat_id))

    async def _terminate(self, chat_id: str) -> tuple[int, Json]:
        self.state.chats.admit(chat_id, self.owner)
        sandbox = self.state.chats.sandbox(chat_id)
        terminated = sandbox is not None and await sandbox.terminate()
        return 200, {"success": True, "status": "none", "terminated": terminated}


class ManifestHandler(Handler):
    """``GET /v1/sandbox/{chatId}/manifest``."""

    route = "/v1/sandbox/{chatId}/manifest"

    async def get(self, chat_id: str) -> None:
        """List the registered files."""
        await self.answer(self._manifest(chat_id))

    async def _manifest(self, chat_id: str) -> tuple[int, Json]:
        self.state.chats.admit(chat_id, self.owner)
        return 200, self.state.chats.manifest(chat_id)


class UnknownHandler(Handler):
    """Every other path."""

    route = "(unknown)"

    def prepare(self) -> None:
        """Answer 404, with or without credentials."""
        self.respond_error(ApiError(404, "there is no such route", "NOT_FOUND"))


class SessionStatusHandler(Handler):
    """Recoup's ``GET /api/sandbox/status``: lifecycle of a session's sandbox, read passively.

    Reading it is no activity: it does not put hibernation off.
    """

    route = "/api/sandbox/status"

    def authenticated_owner(self) -> str:
        """The owner by exactly one of ``x-api-key`` and ``Authorization``."""
        if self.state.context.config.recoup_error == 401:
            raise ApiError(401, "Unauthorized", "UNAUTHORIZED")
        return self.state.credentials.recoup_owner(self.request.headers)

    def error_body(self, error: ApiError) -> Json:
        """The JSON object of an error as Recoup writes it."""
        # The 401 of its server has another field than its documents name.
        is_outage = self.state.context.config.recoup_error == error.status_code
        words = "message" if is_outage and error.status_code == 401 else "error"
        return {"status": "error", words: error.error}

    async def get(self) -> None:
        """Answer with the status of the session's sandbox."""
        await self.answer(self._status())

    async def _status(self) -> tuple[int, Json]:
        if self.state.context.config.recoup_error == 404:
            raise ApiError(404, "Session not found", "SESSION_NOT_FOUND")
        session_id = self.get_query_argument("sessionId", "", strip=False)
        if not session_id:
            raise ApiError(400, "the query parameter sessionId is missing", "MISSING_ID")
        return 200, self.state.chats.session_status(session_id, self.owner)
