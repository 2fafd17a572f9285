"""The extension as Jupyter Server loads it: its REST routes and its stream of events."""

from __future__ import annotations

import json
import mimetypes
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar, cast

from jupyter_client.jsonutil import json_default
from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler, path_regex
from jupyter_server.extension.application import ExtensionApp
from jupyter_server.services.contents import handlers as contents
from jupyter_server.services.contents.fileio import FileManagerMixin
from jupyter_server.services.contents.handlers import validate_model
from jupyter_server.services.contents.manager import ContentsManager
from jupyter_server.utils import url_escape, url_path_join
from tornado import web
from tornado.iostream import StreamClosedError
from traitlets.config import Config

from ivy_kernel._version import __version__
from ivy_kernel.errors import NoSuchFileError, UsageError
from ivy_kernel.routes.files import FileEntry
from ivy_kernel.server_extension import chats, outputs
from ivy_kernel.server_extension.documents import DocumentWriter
from ivy_kernel.server_extension.files import DriveContents
from ivy_kernel.server_extension.outputs import JOURNALS, Journals
from ivy_kernel.server_extension.sandbox import Action
from ivy_kernel.server_extension.sandboxes import (
    REGISTRY,
    EventsHandler,
    IvyHandler,
    SandboxRegistry,
)
from ivy_kernel.server_extension.targets import kernel_lookup
from ivy_kernel.session.journal_reader import journal_file
from ivy_kernel.session.kernel_registry import RegistryReader
from ivy_kernel.settings.settings import Ivy

DRIVE = "ivy_sandbox_drive"
"""The key of the drive in the settings of the web application."""
SLICE_CHARACTERS = 500_000
"""Longer contents of files are sent in slices of this length."""


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


# The drive ----------------------------------------------------------------------------------------
Method = TypeVar("Method", bound=Callable[..., Any])


def authorized_for_ivy(method: Method) -> Method:
    """Decorate a method as Jupyter's `authorized` does, for "ivy" whatever its class says."""
    return cast("Method", authorized(resource="ivy")(method))


def drive_of(handler: IvyHandler) -> DriveContents:
    """Return the files of the sandboxes; 503 when the server is ending."""
    if handler.registry.closed:
        raise web.HTTPError(503)
    return cast("DriveContents", handler.settings[DRIVE])


class DriveHandler(IvyHandler):
    """Base class of the handlers of files."""

    # Jupyter's `authorized` keeps the resource of the first request that any subclass got, for all
    # its handlers of the process: below them it has to stay the one of Jupyter's own routes. So
    # each method here asks for "ivy" by name, and Jupyter's method for "contents" besides.
    auth_resource = "contents"

    @property
    def contents_manager(self) -> DriveContents:
        """The files of the sandboxes: what Jupyter's handlers then work on."""
        return drive_of(self)

    def error_body(
        self, error: BaseException | None, status_code: int
    ) -> tuple[int, dict[str, Any]]:
        """Return the one shape of errors, with the field that JupyterLab's dialogs show beside."""
        status_code, body = super().error_body(error, status_code)
        if isinstance(error, web.HTTPError) and error.log_message and status_code == 400:
            # Jupyter's own words about a path or a model that was sent.
            words = error.log_message % error.args if error.args else error.log_message
            body["error"]["message"] = " ".join(words.split())
        return status_code, {**body, "message": body["error"]["message"]}

    def location_url(self, path: str) -> str:
        """Called by Jupyter's handlers: the address of a file."""
        return url_path_join(self.base_url, "ivy/contents", url_escape(path))

    async def _finish_error(self, code: int, message: str) -> None:
        """Called by Jupyter's handlers before they raise the error, which is what is sent."""


class ContentsHandler(DriveHandler, contents.ContentsHandler):
    """``/ivy/contents/{chat}/{path}``: Jupyter's contents API, for the files of the sandboxes."""

    _large: dict[str, Any] | None = None

    def get_json_body(self) -> dict[str, Any] | None:
        """Return the model that was sent."""
        body = super().get_json_body()
        if not isinstance(body, dict | None):
            raise web.HTTPError(400, "The body must be a JSON object.")
        return body

    @web.authenticated
    @authorized_for_ivy
    async def get(self, path: str = "") -> None:
        """Send a model; with ``?fresh=1``, a user's reload, a listing of this moment."""
        if self.get_query_argument("fresh", "") == "1":
            await self.contents_manager.forget(path)
        await ensure_async(super().get(path))
        if self._large is not None:
            with suppress(StreamClosedError):  # the page is gone
                await self._send_large(self._large)

    def _finish_model(self, model: dict[str, Any], location: bool = True) -> None:
        """Called by Jupyter's methods with the answer; keeps a large one to send it in parts."""
        content = model["content"]
        if isinstance(content, str) and len(content) > SLICE_CHARACTERS:
            self._large = model
        else:
            super()._finish_model(model, location)  # type: ignore[no-untyped-call]  # not annotated

    async def _send_large(self, model: dict[str, Any]) -> None:
        """Send a model whose content is long, without a second copy of it in memory."""
        content = model.pop("content")
        self.set_header("Content-Type", "application/json")
        self.write('{"content": "')
        for at in range(0, len(content), SLICE_CHARACTERS):
            self.write(json.dumps(content[at : at + SLICE_CHARACTERS])[1:-1])
            await self.flush()
        self.write('", ' + json.dumps(model, default=json_default)[1:])
        await self.finish()

    @web.authenticated
    @authorized_for_ivy
    async def patch(self, path: str = "") -> None:
        """Rename or move."""
        self._track_activity = True
        await ensure_async(super().patch(path))

    @web.authenticated
    @authorized_for_ivy
    async def post(self, path: str = "") -> None:
        """Make a file or directory whose name the server chooses, or a copy."""
        self._track_activity = True
        await ensure_async(super().post(path))

    @web.authenticated
    @authorized_for_ivy
    async def put(self, path: str = "") -> None:
        """Save a file, or a chunk of it, in the place of what is there."""
        self._track_activity = True
        model = self.get_json_body()
        if not model:
            raise web.HTTPError(400, "There is no model to save.")
        if model.get("copy_from"):
            raise web.HTTPError(400, "Cannot copy with PUT, only POST.")
        if model.get("type") not in ("directory", "notebook"):
            model["type"] = "file"
        # Not by Jupyter's method, which looks first whether it is there: one more call for each
        # chunk, only to say 200 or 201.
        saved = await self.contents_manager.save(model, path)
        validate_model(saved)  # type: ignore[no-untyped-call]  # not annotated there
        self._finish_model(saved)

    @web.authenticated
    @authorized_for_ivy
    async def delete(self, path: str = "") -> None:
        """Delete a file, or a directory with all that is in it."""
        self._track_activity = True
        await ensure_async(super().delete(path))


class CheckpointsHandler(DriveHandler):
    """``/ivy/contents/{chat}/{path}/checkpoints``: there are none, which JupyterLab can live with.

    No request here is passed on to the sandbox.
    """

    @web.authenticated
    @authorized_for_ivy
    async def get(self, path: str = "") -> None:
        """Send the empty list."""
        self.finish(json.dumps([]))

    @web.authenticated
    @authorized_for_ivy
    async def post(self, path: str = "") -> None:
        """Answer as after a checkpoint, for JupyterLab makes one with each save."""
        self.set_status(201)
        now = datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")
        self.finish(json.dumps({"id": "none", "last_modified": now}))


class CheckpointHandler(DriveHandler):
    """``/ivy/contents/{chat}/{path}/checkpoints/{id}``."""

    @web.authenticated
    @authorized_for_ivy
    async def post(self, path: str, checkpoint_id: str) -> None:
        """Refuse."""
        raise UsageError(f"A sandbox keeps no checkpoints, so {path} cannot be restored.")

    @web.authenticated
    @authorized_for_ivy
    async def delete(self, path: str, checkpoint_id: str) -> None:
        """Delete nothing: it is not there."""
        self.set_status(204)
        self.finish()


class DownloadHandler(DriveHandler):
    """``GET /ivy/files/{chat}/{path}``: streams a file; a download, or shown with ``?inline=1``."""

    @property
    def content_security_policy(self) -> str:
        """As Jupyter's own: scripts of a page that is shown cannot reach the server."""
        # Not the one of APIHandler, which forbids a page its images.
        return super(APIHandler, self).content_security_policy + "; sandbox allow-scripts"

    @web.authenticated
    @authorized_for_ivy
    async def head(self, path: str) -> None:
        """Send the headers."""
        self._describe(*(await self.contents_manager.open_file(path))[:1])
        await self.flush()
        await self.finish()

    @web.authenticated
    @authorized_for_ivy
    async def get(self, path: str) -> None:
        """Send the file, in constant memory; a fault breaks the connection off."""
        self.check_xsrf_cookie()  # no other site may embed it
        entry, parts = await self.contents_manager.open_file(path)
        sent_bytes = 0
        try:
            async for data in parts:
                if not sent_bytes:
                    self._describe(entry)
                sent_bytes += len(data)
                self.write(data)
                await self.flush()
            if not sent_bytes:
                self._describe(entry)
            await self.flush()
            await self.finish()
        except StreamClosedError:
            self.log.info("The download of %r was broken off.", path)
        except Exception as exc:
            if not sent_bytes:
                raise  # nothing was sent yet, so that it can be told
            self.log.warning("The download of %r failed: %s", path, type(exc).__name__)
            # Without it the browser would take the part for the whole.
            self.detach().close()
        finally:
            await parts.aclose()

    def _describe(self, entry: FileEntry) -> None:
        """Set the headers."""
        self.set_attachment_header(entry.name)
        if self.get_query_argument("inline", "") == "1":
            disposition = self._headers["Content-Disposition"]
            self.set_header("Content-Disposition", disposition.replace("attachment", "inline", 1))
        kind, encoding = mimetypes.guess_type(entry.name)
        if encoding is not None or kind is None:
            kind = "application/octet-stream"
        elif kind == "text/plain":
            kind = "text/plain; charset=UTF-8"
        self.set_header("Content-Type", kind)
        self.set_header("Content-Length", str(entry.size_bytes))
        self.set_header("Cache-Control", "no-store")
        self.set_header("Accept-Ranges", "none")


class ManifestHandler(IvyHandler):
    """``GET /ivy/manifest/{chat}``."""

    @web.authenticated
    @authorized
    async def get(self, name: str) -> None:
        """Send what the platform says of the chat's files."""
        folder, _ = await drive_of(self).find(name)
        self.answer({"entries": await folder.manifest()})


class SendHandler(IvyHandler):
    """``POST /ivy/send``: copies a file or directory of this server into a sandbox."""

    _track_activity = True

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Answer when it is there."""
        user = self.current_user
        # It reads the server's own files, so who may not do that may not send them either.
        if not await ensure_async(self.authorizer.is_authorized(self, user, "read", "contents")):
            raise web.HTTPError(403)
        body = self.get_json_body()
        if not isinstance(body, dict):
            raise web.HTTPError(400)
        path, to = body.get("path"), body.get("to")
        if not (isinstance(path, str) and isinstance(to, str)):
            raise UsageError("A request to send needs a path and the directory that it goes to.")
        result = await drive_of(self).send(
            await _local_file(self.contents_manager, path),
            to,
            overwrite=body.get("overwrite") is True,
            with_hidden=self.contents_manager.allow_hidden,
        )
        self.answer({"files": result.files, "bytes": result.total_bytes})


async def _local_file(manager: ContentsManager, path: str) -> Path:
    """Return a file or directory of the server, if its own rules show it."""
    untyped: Any = manager  # its methods are not annotated
    try:
        if not manager.allow_hidden and await ensure_async(untyped.is_hidden(path)):
            raise web.HTTPError(404)
        await ensure_async(untyped.get(path, content=False))
    except web.HTTPError as exc:
        if exc.status_code != 404:
            raise
        raise NoSuchFileError(f"There is no {path} among the files of this server.") from exc
    if not isinstance(manager, FileManagerMixin):
        raise UsageError(
            "This server does not keep its files in a directory, so they cannot be sent: download "
            "the file, and drop it onto the sandbox's folder."
        )
    return Path(untyped._get_os_path(path.strip("/")))


class TransfersHandler(IvyHandler):
    """``GET /ivy/transfers``."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Send the transfers under way, and those that ended a moment ago."""
        self.answer(drive_of(self).transfers.to_json())


class TransferHandler(IvyHandler):
    """``DELETE /ivy/transfers/{id}``."""

    @web.authenticated
    @authorized
    async def delete(self, transfer_id: str) -> None:
        """Cancel it."""
        if not drive_of(self).transfers.cancel(transfer_id):
            raise web.HTTPError(404)
        self.set_status(204)
        self.finish()


ROUTES = [
    (r"/ivy/sandboxes", SandboxesHandler),
    (r"/ivy/sandboxes/([^/]+)", SandboxHandler),
    (r"/ivy/sandboxes/([^/]+)/(create|terminate|reconnect)", ActionHandler),
    (r"/ivy/events", EventsHandler),
    (rf"/ivy/contents{path_regex}/checkpoints", CheckpointsHandler),
    (rf"/ivy/contents{path_regex}/checkpoints/(?P<checkpoint_id>[\w-]+)", CheckpointHandler),
    (rf"/ivy/contents{path_regex}", ContentsHandler),
    (r"/ivy/files/(.+)", DownloadHandler),
    (r"/ivy/manifest/([^/]+)", ManifestHandler),
    (r"/ivy/send", SendHandler),
    (r"/ivy/transfers", TransfersHandler),
    (r"/ivy/transfers/([^/]+)", TransferHandler),
    *chats.ROUTES,
    *outputs.ROUTES,
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
        registry = SandboxRegistry(flags, kernel_lookup(self.serverapp), self.log)
        self.settings[REGISTRY] = registry
        # Not yet: the manager's notary opens its data base when it is first asked for.
        local = self.serverapp.contents_manager
        self.settings[DRIVE] = DriveContents(registry, lambda: local.notary)
        journals = Journals(self.serverapp)
        self.settings[JOURNALS] = journals
        self._writer = DocumentWriter(self.serverapp, journals, self.log)
        self.serverapp.io_loop.add_callback(self._writer.start)

    def initialize_handlers(self) -> None:
        """Called by Jupyter Server likewise."""
        self.handlers.extend(ROUTES)

    async def stop_extension(self) -> None:
        """Called by Jupyter Server when it ends, before it ends its kernels."""
        for name, step in (
            ("outputs that wait", self._writer.aclose),
            ("kernels that stay", self._keep_kernels),
            ("files", self.settings[DRIVE].aclose),
            ("sandboxes", self.settings[REGISTRY].aclose),
        ):
            try:
                await step()
            except Exception:
                # An error here must not keep the server from shutting down its kernels.
                self.log.exception("The Ivy server extension did not end in order: %s.", name)

    async def _keep_kernels(self) -> None:
        """Have the agents of this server's kernels stay, for a server that comes after it."""
        # Not with the extension: a server that runs has no use for it.
        from ivy_kernel.kernel.restart import keep_for_next_server

        assert self.serverapp is not None  # noqa: S101 - the loader sets it; for the type checker
        kernel_ids = set(self.serverapp.kernel_manager.list_kernel_ids())
        known = {entry.kernel_id for entry in RegistryReader().current()}
        known |= {kernel_id for kernel_id in kernel_ids if journal_file(kernel_id).exists()}
        keep_for_next_server(sorted(kernel_ids & known))
