"""The extension as Jupyter Server loads it: its REST routes and its stream of events."""

from __future__ import annotations

import json
from contextlib import suppress

from jupyter_server.auth.decorator import authorized
from jupyter_server.extension.application import ExtensionApp
from tornado import web
from tornado.iostream import StreamClosedError
from traitlets.config import Config

from ivy_kernel._version import __version__
from ivy_kernel.server_extension import chats
from ivy_kernel.server_extension.sandbox import Action
from ivy_kernel.server_extension.sandboxes import (
    REGISTRY,
    IvyHandler,
    Listener,
    SandboxRegistry,
)
from ivy_kernel.server_extension.targets import kernel_lookup
from ivy_kernel.settings.settings import Ivy


class SandboxesHandler(IvyHandler):
    """``GET /ivy/sandboxes``."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Send all sandboxes in use; with ``?fresh=1``, a user's reload, newly polled."""
        await self.registry.update(fresh=self.get_query_argument("fresh", "") == "1")
        self.answer(self.registry.to_json())


class SandboxHandler(IvyHandler):
    """``GET /ivy/sandboxes/{id}``."""

    @web.authenticated
    @authorized
    async def get(self, sandbox_id: str) -> None:
        """Send one of them."""
        await self.registry.update()
        self.answer(self.registry.sandbox_json(sandbox_id))


class ActionHandler(IvyHandler):
    """``POST /ivy/sandboxes/{id}/create``, ``…/terminate`` and ``…/reconnect``."""

    _track_activity = True  # a click, unlike polling, is activity

    @web.authenticated
    @authorized
    async def post(self, sandbox_id: str, action: Action) -> None:
        """Acts, then sends the sandbox as it is; create does not wait until it is ready."""
        await self.registry.act(sandbox_id, action)
        self.answer(self.registry.sandbox_json(sandbox_id))


class NothingHandler(IvyHandler):
    """Any other address below ``/ivy``."""

    @web.authenticated
    def get(self) -> None:
        """Answer 404 in the one shape of errors."""
        raise web.HTTPError(404)

    head = post = put = patch = delete = get


# Server-sent events -------------------------------------------------------------------------------
HEARTBEAT_SECONDS = 15.0
"""Proxies cut connections that are silent for a minute or so."""


class EventsHandler(IvyHandler):
    """``GET /ivy/events``: sends all sandboxes at each change, until one side ends."""

    _listener: Listener | None = None

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Send the event stream. A slow reader misses events that newer ones have replaced."""
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("Cache-Control", "no-cache")
        self.set_header("X-Accel-Buffering", "no")  # else nginx would collect the events
        registry = self.registry
        with registry.listen() as listener, suppress(StreamClosedError):
            self._listener = listener
            # At once, so that the client knows the stream works although the platform is slow.
            await self._send(": connected\n\n")
            await registry.update()
            has_news = True
            while not listener.ended:
                if has_news:
                    listener.mark_seen()  # before the JSON is made: a change meanwhile is sent next
                    await self._send(
                        f"event: sandboxes\ndata: {json.dumps(registry.to_json())}\n\n"
                    )
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


ROUTES = [
    (r"/ivy/sandboxes", SandboxesHandler),
    (r"/ivy/sandboxes/([^/]+)", SandboxHandler),
    (r"/ivy/sandboxes/([^/]+)/(create|terminate|reconnect)", ActionHandler),
    (r"/ivy/events", EventsHandler),
    *chats.ROUTES,
    (r"/ivy(?:/.*)?", NothingHandler),  # last: the first pattern that matches counts
]


class IvyServerExtension(ExtensionApp):
    """Shows the sandboxes in use to the panel, and acts on them for it."""

    name = "ivy_kernel"
    app_name = "Ivy Kernel"
    description = "Status and control of Ivy sandboxes for the panel in JupyterLab."
    version = __version__
    load_other_extensions = True
    classes = [*ExtensionApp.classes, Ivy]  # noqa: RUF012 - the way of traitlets applications

    def initialize_settings(self) -> None:
        """Called by Jupyter Server while it loads the extension."""
        assert self.serverapp is not None  # noqa: S101 - the loader sets it; for the type checker
        flags = Config({"Ivy": self.config.Ivy} if "Ivy" in self.config else {})
        self.settings[REGISTRY] = SandboxRegistry(flags, kernel_lookup(self.serverapp), self.log)

    def initialize_handlers(self) -> None:
        """Called by Jupyter Server likewise."""
        self.handlers.extend(ROUTES)

    async def stop_extension(self) -> None:
        """Called by Jupyter Server when it ends, before it ends its kernels."""
        try:
            await self.settings[REGISTRY].aclose()
        except Exception:
            # An error here must not keep the server from shutting down its kernels.
            self.log.exception("The Ivy server extension did not end in order.")
