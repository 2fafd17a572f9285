"""``GET /ivy/events``: a server-sent event with all sandboxes whenever something has changed."""

from __future__ import annotations

import json
from contextlib import suppress

from jupyter_server.auth.decorator import authorized
from tornado import web
from tornado.iostream import StreamClosedError

from ivy_kernel.server_extension.handlers import IvyHandler
from ivy_kernel.server_extension.sandboxes import Listener

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
