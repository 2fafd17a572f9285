"""The routes below ``/ivy`` under the server's base URL; all authenticated and authorized."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, cast

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.extension.handler import ExtensionHandlerMixin
from tornado import web
from tornado.iostream import StreamClosedError

from ivy_kernel.errors import IvyError, RateLimitedError
from ivy_kernel.server_extension.errors import refuse
from ivy_kernel.server_extension.sandbox import Action
from ivy_kernel.server_extension.sandboxes import Board, Listener

BOARD = "ivy_board"
"""Under this name the web application's settings hold the board."""


class IvyHandler(ExtensionHandlerMixin, APIHandler):
    """Base of all: where the board is, and the shape of errors."""

    auth_resource = "ivy"
    # A panel that asks by itself must not keep an idle server from being culled.
    _track_activity = False

    @property
    def board(self) -> Board:
        """The sandboxes in use."""
        board = cast("Board", self.settings[BOARD])
        if board.closed:
            raise web.HTTPError(503)
        return board

    def answer(self, value: dict[str, Any]) -> None:
        """Send a JSON value."""
        self.set_header("Cache-Control", "no-store")
        self.finish(json.dumps(value))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Called by tornado for whatever was raised: sends the one shape of errors."""
        error = (kwargs.get("exc_info") or (None, None, None))[1]
        status_code, body = refuse(error, status_code)
        self.set_status(status_code)
        if isinstance(error, RateLimitedError) and error.retry_after_seconds:
            self.set_header("Retry-After", f"{error.retry_after_seconds:.0f}")
        self.answer(body)

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        """Called by tornado for whatever was raised; our own errors say all in one line."""
        if isinstance(value, IvyError):
            self.log.warning("%s %s: %s", self.request.method, self.request.path, value)
        else:
            super().log_exception(typ, value, tb)


class SandboxesHandler(IvyHandler):
    """``GET /ivy/sandboxes``."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """All sandboxes in use; with ``?fresh=1``, because a person asked, newly looked at."""
        await self.board.read(fresh=self.get_query_argument("fresh", "") == "1")
        self.answer(self.board.to_json())


class SandboxHandler(IvyHandler):
    """``GET /ivy/sandboxes/{id}``."""

    @web.authenticated
    @authorized
    async def get(self, sandbox_id: str) -> None:
        """One of them."""
        await self.board.read()
        self.answer(self.board.sandbox_json(sandbox_id))


class ActionHandler(IvyHandler):
    """``POST /ivy/sandboxes/{id}/create``, ``…/terminate`` and ``…/reconnect``."""

    _track_activity = True

    @web.authenticated
    @authorized
    async def post(self, sandbox_id: str, action: Action) -> None:
        """Do it, and answer with the sandbox as it is then; create does not wait until ready."""
        await self.board.act(sandbox_id, action)
        self.answer(self.board.sandbox_json(sandbox_id))


class NothingHandler(IvyHandler):
    """Any other address below ``/ivy``."""

    @web.authenticated
    def get(self) -> None:
        """Nothing."""
        raise web.HTTPError(404)

    head = post = put = patch = delete = get


HEARTBEAT_SECONDS = 15.0
"""Proxies cut connections that are silent for a minute or so."""


class EventsHandler(IvyHandler):
    """Sends events until the client goes away or the server ends."""

    _listener: Listener | None = None

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """The stream. A slow reader misses what newer events have replaced."""
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("Cache-Control", "no-cache")
        self.set_header("X-Accel-Buffering", "no")
        board = self.board
        with board.listen() as listener, suppress(StreamClosedError):
            self._listener = listener
            await self._send(": connected\n\n")
            await board.read()
            has_news = True
            while not listener.ended:
                if has_news:
                    listener.is_up_to_date()
                    await self._send(f"event: sandboxes\ndata: {json.dumps(board.to_json())}\n\n")
                else:
                    await self._send(": alive\n\n")
                has_news = await listener.wait(HEARTBEAT_SECONDS)

    async def _send(self, text: str) -> None:
        self.write(text)
        await self.flush()

    def on_connection_close(self) -> None:
        """Called by tornado when the client goes away."""
        if self._listener is not None:
            self._listener.end()
