"""The registry of the sandboxes in use: the default one, and those of this server's kernels.

While there is a viewer (an open event stream, or a request a moment ago) the registry scans each
second what may have changed on this machine (settings, kernels, notebooks), and each sandbox's
monitor polls the platform at its own intervals. Without a viewer nothing is polled at all.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from logging import Logger
from typing import Any, cast
from urllib.parse import quote

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.extension.handler import ExtensionHandlerMixin
from tornado import web
from tornado.iostream import StreamClosedError
from traitlets.config import Config

from ivy_kernel.errors import IvyError, RateLimitedError
from ivy_kernel.models import Json
from ivy_kernel.server_extension.errors import UnknownSandboxError, error_response
from ivy_kernel.server_extension.sandbox import Action, SandboxEntry
from ivy_kernel.server_extension.targets import (
    UNSET_ID,
    AttachedKernel,
    KernelLookup,
    SandboxTarget,
    TargetResolver,
    sandbox_id_of,
)
from ivy_kernel.session.kernel_registry import KernelEntry, RegistryReader
from ivy_kernel.settings.live import LiveSettings
from ivy_kernel.status.clock import monotonic_seconds

SCAN_SECONDS = 1.0
LINGER_SECONDS = 3.0
"""Monitors run on for so long after a request, for a front end that polls instead of listening."""


class Listener:
    """One event stream's flag for changes; many changes before it is read coalesce into one."""

    def __init__(self) -> None:
        self._news = asyncio.Event()
        self.ended = False

    def notify(self) -> None:
        """Set the flag: something has changed."""
        self._news.set()

    def mark_seen(self) -> None:
        """Clear the flag: all changes until now are being sent."""
        self._news.clear()

    def end(self) -> None:
        """End the stream: there will be no more changes."""
        self.ended = True
        self._news.set()

    async def wait(self, limit_seconds: float) -> bool:
        """Wait for a change; ``False`` when there is none within the limit, or after the end."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._news.wait(), limit_seconds)
        return self._news.is_set() and not self.ended


class SandboxRegistry:
    """The sandboxes in use, kept up to date while there is a viewer.

    Parameters
    ----------
    flags
        The section ``Ivy`` of this server's own configuration.
    lookup_kernels
        Returns this server's kernels.
    log
        Gets errors of our own.
    """

    def __init__(self, flags: Config, lookup_kernels: KernelLookup, log: Logger) -> None:
        self._resolver = TargetResolver(flags)
        self._lookup_kernels = lookup_kernels
        self._log = log
        self._reader = RegistryReader()
        self._entries: dict[str, SandboxEntry] = {}
        self._default_id = UNSET_ID
        self._attachments: dict[str, list[Json]] = {}
        self._activity: dict[str, str | None] = {}
        self._scanned: tuple[object, tuple[KernelEntry, ...]] | None = None
        self._listeners: set[Listener] = set()
        self._lingers_until = float("-inf")
        self._task: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._fault = ""
        self.closed = False

    # For the handlers ---------------------------------------------------------------------------
    @property
    def live(self) -> LiveSettings:
        """The settings of this server."""
        return self._resolver.live

    async def settings_changed(self) -> None:
        """Apply settings that were just saved, without waiting for the next scan."""
        await self._scan()

    @contextmanager
    def listen(self) -> Iterator[Listener]:
        """Add a viewer for the time of the ``with`` block."""
        listener = Listener()
        if self.closed:
            listener.end()
        self._listeners.add(listener)
        self._start_scanning()
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    async def update(self, *, fresh: bool = False) -> None:
        """Bring everything up to date, as far as the platform answers in time.

        Parameters
        ----------
        fresh
            A user asked for it, so an answer of a moment ago is not enough.
        """
        self._lingers_until = monotonic_seconds() + LINGER_SECONDS
        self._start_scanning()
        await self._scan()
        await asyncio.gather(*(entry.update(fresh=fresh) for entry in list(self._entries.values())))

    def to_json(self) -> Json:
        """Return all sandboxes as they are known now, the default one first."""
        others = sorted(key for key in self._entries if key != self._default_id)
        return {"sandboxes": [self.sandbox_json(key) for key in (self._default_id, *others)]}

    def sandbox_json(self, sandbox_id: str) -> Json:
        """Return one sandbox as it is known now.

        Raises
        ------
        UnknownSandboxError
            When no sandbox in use has this id.
        """
        return self._find(sandbox_id).to_json(
            self._attachments.get(sandbox_id, []), default=sandbox_id == self._default_id
        )

    async def act(self, sandbox_id: str, action: Action) -> None:
        """Perform an action on a sandbox.

        Raises
        ------
        UnknownSandboxError
            When no sandbox in use has this id.
        IvyError
            When it failed.
        """
        self._lingers_until = monotonic_seconds() + LINGER_SECONDS
        self._start_scanning()
        await self._scan()
        await self._find(sandbox_id).act(action)

    # For the drive ------------------------------------------------------------------------------
    async def folders(self) -> dict[str, tuple[str, SandboxEntry]]:
        """Return the sandboxes that have a chat: the name of their folder → id and entry.

        Of several sandboxes with the same chat, at different addresses, the default one, else the
        first by id, has the plain name.
        """
        self._lingers_until = monotonic_seconds() + LINGER_SECONDS
        self._start_scanning()
        await self._scan()
        found: dict[str, tuple[str, SandboxEntry]] = {}
        others = sorted(key for key in self._entries if key != self._default_id)
        for sandbox_id in (self._default_id, *others):
            entry = self._entries.get(sandbox_id)
            if entry is not None and entry.chat_id:
                name = folder_name(entry.chat_id)
                found[f"{name}@{sandbox_id[:8]}" if name in found else name] = (sandbox_id, entry)
        return found

    async def aclose(self) -> None:
        """End listeners, monitors and connections. The sandboxes live on."""
        self.closed = True
        for listener in list(self._listeners):
            listener.end()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        async with self._lock:
            entries, self._entries = list(self._entries.values()), {}
            await asyncio.gather(*(entry.aclose() for entry in entries))

    def _find(self, sandbox_id: str) -> SandboxEntry:
        try:
            return self._entries[sandbox_id]
        except KeyError:
            raise UnknownSandboxError from None

    def _notify(self) -> None:
        for listener in list(self._listeners):
            listener.notify()

    # While there is a viewer --------------------------------------------------------------------
    def _is_watched(self) -> bool:
        return bool(self._listeners) or monotonic_seconds() < self._lingers_until

    def _start_scanning(self) -> None:
        if self._task is None and not self.closed:
            self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        try:
            while self._is_watched():
                try:
                    await self._scan()
                except Exception as exc:
                    # The panel must live on; the same fault is not logged each second.
                    if repr(exc) != self._fault:
                        self._fault = repr(exc)
                        self._log.exception("The sandboxes in use could not be found out.")
                await asyncio.sleep(SCAN_SECONDS)
        finally:
            self._task = None
            for entry in self._entries.values():
                entry.unwatch()

    async def _scan(self) -> None:
        """Apply what has changed on this machine."""
        # Requests scan too, beside the task: two scans at once would make the same entry twice.
        async with self._lock:
            if self.closed:
                return
            registered = self._reader.current()
            kernels = await self._lookup_kernels() if registered else {}
            # The user may run several Jupyter servers; each shows its own kernels only.
            settings = self._resolver.settings_fingerprint()
            registered = tuple(
                self._resolver.next_entry(kernel)
                for kernel in registered
                if kernel.kernel_id in kernels
            )
            scanned = (settings, registered)
            changed = scanned != self._scanned
            if changed:
                await self._update_entries(registered)
                self._scanned = scanned
            if self._is_watched():
                for entry in self._entries.values():
                    entry.watch()
            attachments = _attachments(registered, kernels)
            self._refresh_after_activity(registered, kernels)
            self._note_use(registered, kernels)
            has_news = [entry.has_new_resources for entry in self._entries.values()]
            if changed or attachments != self._attachments or any(has_news):
                self._attachments = attachments
                self._notify()

    def _note_use(
        self, registered: tuple[KernelEntry, ...], kernels: Mapping[str, AttachedKernel]
    ) -> None:
        """Tell each sandbox whether its kernels are in use."""
        used: dict[str, list[AttachedKernel]] = {}
        for kernel in registered:
            sandbox_id = sandbox_id_of(kernel.api_url, kernel.chat_id)
            used.setdefault(sandbox_id, []).append(kernels[kernel.kernel_id])
        for sandbox_id, entry in self._entries.items():
            attached = used.get(sandbox_id, [])
            entry.activity = " ".join(kernel.last_activity for kernel in attached)
            entry.is_busy = any(kernel.is_busy for kernel in attached)

    async def _update_entries(self, registered: tuple[KernelEntry, ...]) -> None:
        """Adds, retargets and removes entries, by the settings and the registered kernels."""
        default = self._resolver.default_target(self._default_id)
        wanted: dict[str, SandboxTarget] = {default.sandbox_id: default}
        for kernel in registered:
            target = wanted.get(sandbox_id_of(kernel.api_url, kernel.chat_id))
            if target is None:
                target = self._resolver.kernel_target(kernel)
                wanted[target.sandbox_id] = target
            # A kernel may know the campaign that the settings do not name; create needs it.
            elif target.lifecycle is not None and not target.lifecycle.campaign_id:
                target.lifecycle.campaign_id = kernel.campaign_id
        settings_changed = (
            self._scanned is None or self._scanned[0] != self._resolver.settings_fingerprint()
        )
        for sandbox_id, target in wanted.items():
            entry = self._entries.get(sandbox_id)
            if entry is None:
                self._entries[sandbox_id] = SandboxEntry(target, self._notify)
            elif settings_changed:
                await entry.retarget(target)
        self._default_id = default.sandbox_id
        for sandbox_id in [key for key in self._entries if key not in wanted]:
            await self._entries.pop(sandbox_id).aclose()

    def _refresh_after_activity(
        self, registered: tuple[KernelEntry, ...], kernels: Mapping[str, AttachedKernel]
    ) -> None:
        """Refresh settled sandboxes whose kernel was active: a cell may have started them."""
        earlier = self._activity
        self._activity = {
            kernel.kernel_id: kernels[kernel.kernel_id].last_activity for kernel in registered
        }
        for kernel in registered:
            before = earlier.get(kernel.kernel_id)
            if self._activity[kernel.kernel_id] != before:
                entry = self._entries.get(sandbox_id_of(kernel.api_url, kernel.chat_id))
                if entry is not None and entry.is_settled and not entry.refresh_soon():
                    # Too soon after the last refresh: as if unseen, to be tried at the next scan.
                    self._activity[kernel.kernel_id] = before


def folder_name(chat_id: str) -> str:
    """Return the name of a chat's folder in the drive: the chat's id, where a name can hold it."""
    if chat_id in (".", ".."):
        return chat_id.replace(".", "%2E")
    return "".join(
        quote(character, safe="", errors="surrogatepass")
        if character in "%/\\" or not character.isprintable()
        else character
        for character in chat_id
    )


def _attachments(
    registered: tuple[KernelEntry, ...], kernels: Mapping[str, AttachedKernel]
) -> dict[str, list[Json]]:
    """Return sandbox id → the kernels attached to it, a row for each of their notebooks."""
    found: dict[str, list[Json]] = {}
    for kernel in registered:
        paths: tuple[str | None, ...] = kernels[kernel.kernel_id].notebook_paths or (None,)
        rows = found.setdefault(sandbox_id_of(kernel.api_url, kernel.chat_id), [])
        for path in paths:
            row = {"kernel_id": kernel.kernel_id, "notebook_path": path, "kind": kernel.kind}
            if row not in rows:
                rows.append(row)
    return found


# For the handlers: the way to the registry --------------------------------------------------------
REGISTRY = "ivy_sandbox_registry"
"""The key of the registry in the settings of the web application."""


class IvyHandler(ExtensionHandlerMixin, APIHandler):
    """Base class of all handlers: access to the registry, and the JSON shape of errors."""

    auth_resource = "ivy"
    # A panel that asks by itself must not keep an idle server from being culled.
    _track_activity = False

    @property
    def registry(self) -> SandboxRegistry:
        """The sandboxes in use."""
        registry = cast("SandboxRegistry", self.settings[REGISTRY])
        if registry.closed:
            raise web.HTTPError(503)
        return registry

    def answer(self, value: dict[str, Any]) -> None:
        """Send a JSON value."""
        self.set_header("Cache-Control", "no-store")
        self.finish(json.dumps(value))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Called by tornado for any exception: sends it in the one shape of errors."""
        error = (kwargs.get("exc_info") or (None, None, None))[1]
        status_code, body = self.error_body(error, status_code)
        self.set_status(status_code)
        if isinstance(error, RateLimitedError) and error.retry_after_seconds:
            self.set_header("Retry-After", f"{error.retry_after_seconds:.0f}")
        self.answer(body)

    def error_body(
        self, error: BaseException | None, status_code: int
    ) -> tuple[int, dict[str, Any]]:
        """Return the status and the JSON body for an error."""
        return error_response(error, status_code)

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        """Called by tornado for any exception; our own errors are logged as one line."""
        if isinstance(value, IvyError):
            self.log.warning("%s %s: %s", self.request.method, self.request.path, value)
        else:
            super().log_exception(typ, value, tb)


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
