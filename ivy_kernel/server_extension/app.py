"""The extension as Jupyter Server loads it."""

from __future__ import annotations

from jupyter_server.extension.application import ExtensionApp
from traitlets.config import Config

from ivy_kernel._version import __version__
from ivy_kernel.server_extension.handlers import (
    REGISTRY,
    ActionHandler,
    EventsHandler,
    NothingHandler,
    SandboxesHandler,
    SandboxHandler,
)
from ivy_kernel.server_extension.sandboxes import SandboxRegistry
from ivy_kernel.server_extension.targets import kernel_lookup
from ivy_kernel.settings.settings import Ivy

ROUTES = [
    (r"/ivy/sandboxes", SandboxesHandler),
    (r"/ivy/sandboxes/([^/]+)", SandboxHandler),
    (r"/ivy/sandboxes/([^/]+)/(create|terminate|reconnect)", ActionHandler),
    (r"/ivy/events", EventsHandler),
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
