"""The sandboxes in use: the default one, and those of this server's kernels.

While somebody looks (an open event stream, or a request a moment ago) the board looks each second
at what may have changed on this machine (settings, kernels, notebooks), and each sandbox's monitor
asks the platform at its own pace. While nobody looks, nothing is asked at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from logging import Logger

from traitlets.config import Config

from ivy_kernel.models import Json
from ivy_kernel.server_extension.errors import UnknownSandboxError
from ivy_kernel.server_extension.sandbox import Action, ShownSandbox
from ivy_kernel.server_extension.targets import (
    UNSET_ID,
    Attached,
    Kernels,
    Meaning,
    Meanings,
    id_of,
)
from ivy_kernel.session.kernel_registry import Use, UseReader
from ivy_kernel.status import monotonic_seconds

LOOK_SECONDS = 1.0
LINGER_SECONDS = 3.0
"""A front end that asks again within this time finds the monitors still running."""


class Listener:
    """Somebody who is told when something has changed."""

    def __init__(self) -> None:
        self._news = asyncio.Event()
        self.ended = False

    def tell(self) -> None:
        """Something has changed."""
        self._news.set()

    def is_up_to_date(self) -> None:
        """What is known by now need not be told again."""
        self._news.clear()

    def end(self) -> None:
        """There will be no more news."""
        self.ended = True
        self._news.set()

    async def wait(self, limit_seconds: float) -> bool:
        """Wait for news; ``False`` when there is none within the limit, or any more."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._news.wait(), limit_seconds)
        return self._news.is_set() and not self.ended


class Board:
    """The sandboxes in use, kept up to date while somebody looks.

    Parameters
    ----------
    flags
        The section ``Ivy`` of this server's own configuration.
    kernels
        Gives this server's kernels.
    log
        Takes faults of our own.
    """

    def __init__(self, flags: Config, kernels: Kernels, log: Logger) -> None:
        self._meanings = Meanings(flags)
        self._kernels = kernels
        self._log = log
        self._reader = UseReader()
        self._shown: dict[str, ShownSandbox] = {}
        self._default_id = UNSET_ID
        self._sessions: dict[str, list[Json]] = {}
        self._activity: dict[str, str | None] = {}
        self._seen: tuple[object, tuple[Use, ...]] | None = None
        self._listeners: set[Listener] = set()
        self._lingers_until = float("-inf")
        self._task: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._fault = ""
        self.closed = False

    # For the handlers ---------------------------------------------------------------------------

    @contextmanager
    def listen(self) -> Iterator[Listener]:
        """Somebody who looks, for the time of the ``with`` block."""
        listener = Listener()
        if self.closed:
            listener.end()
        self._listeners.add(listener)
        self._wake()
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    async def read(self, *, fresh: bool = False) -> None:
        """Bring everything up to date, as far as the platform answers in time.

        Parameters
        ----------
        fresh
            A person asked for it, so an answer of a moment ago is not enough.
        """
        self._lingers_until = monotonic_seconds() + LINGER_SECONDS
        self._wake()
        await self._look()
        await asyncio.gather(*(shown.known(fresh=fresh) for shown in list(self._shown.values())))

    def to_json(self) -> Json:
        """All sandboxes as they are known now, the default one first."""
        others = sorted(key for key in self._shown if key != self._default_id)
        return {"sandboxes": [self.sandbox_json(key) for key in (self._default_id, *others)]}

    def sandbox_json(self, sandbox_id: str) -> Json:
        """One sandbox as it is known now.

        Raises
        ------
        UnknownSandboxError
            When no sandbox in use has this id.
        """
        return self._find(sandbox_id).to_json(
            self._sessions.get(sandbox_id, []), default=sandbox_id == self._default_id
        )

    async def act(self, sandbox_id: str, action: Action) -> None:
        """Do something with a sandbox.

        Raises
        ------
        UnknownSandboxError
            When no sandbox in use has this id.
        IvyError
            When it failed.
        """
        self._lingers_until = monotonic_seconds() + LINGER_SECONDS
        self._wake()
        await self._look()
        await self._find(sandbox_id).act(action)

    async def aclose(self) -> None:
        """End everything: listeners, monitors, connections. The sandboxes live on."""
        self.closed = True
        for listener in list(self._listeners):
            listener.end()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        async with self._lock:
            shown, self._shown = list(self._shown.values()), {}
            await asyncio.gather(*(one.aclose() for one in shown))

    def _find(self, sandbox_id: str) -> ShownSandbox:
        try:
            return self._shown[sandbox_id]
        except KeyError:
            raise UnknownSandboxError from None

    def _tell(self) -> None:
        for listener in list(self._listeners):
            listener.tell()

    # While somebody looks -----------------------------------------------------------------------

    def _is_looked_at(self) -> bool:
        return bool(self._listeners) or monotonic_seconds() < self._lingers_until

    def _wake(self) -> None:
        if self._task is None and not self.closed:
            self._task = asyncio.ensure_future(self._keep())

    async def _keep(self) -> None:
        try:
            while self._is_looked_at():
                try:
                    await self._look()
                except Exception as exc:
                    # The panel must live on; the same fault is not logged each second.
                    if repr(exc) != self._fault:
                        self._fault = repr(exc)
                        self._log.exception("The sandboxes in use could not be found out.")
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            self._task = None
            for shown in self._shown.values():
                shown.unwatch()

    async def _look(self) -> None:
        """Notice what has changed on this machine."""
        async with self._lock:
            if self.closed:
                return
            uses = self._reader.current()
            kernels = await self._kernels() if uses else {}
            # A note of a kernel that is not ours belongs on another server's board.
            uses = tuple(use for use in uses if use.kernel_id in kernels)
            seen = (self._meanings.token(), uses)
            changed = seen != self._seen
            if changed:
                await self._resolve(uses)
                self._seen = seen
            if self._is_looked_at():
                for shown in self._shown.values():
                    shown.watch()
            sessions = _sessions(uses, kernels)
            self._refresh_soon(uses, kernels)
            if changed or sessions != self._sessions:
                self._sessions = sessions
                self._tell()

    async def _resolve(self, uses: tuple[Use, ...]) -> None:
        default = self._meanings.of_settings(self._default_id)
        wanted: dict[str, Meaning] = {default.sandbox_id: default}
        for use in uses:
            meaning = wanted.get(id_of(use.api_url, use.chat_id))
            if meaning is None:
                meaning = self._meanings.of_use(use)
                wanted[meaning.sandbox_id] = meaning
            elif meaning.lifecycle is not None and not meaning.lifecycle.campaign_id:
                meaning.lifecycle.campaign_id = use.campaign_id
        settings_changed = self._seen is None or self._seen[0] != self._meanings.token()
        for sandbox_id, meaning in wanted.items():
            shown = self._shown.get(sandbox_id)
            if shown is None:
                self._shown[sandbox_id] = ShownSandbox(meaning, self._tell)
            elif settings_changed:
                await shown.mean(meaning)
        self._default_id = default.sandbox_id
        for sandbox_id in [key for key in self._shown if key not in wanted]:
            await self._shown.pop(sandbox_id).aclose()

    def _refresh_soon(self, uses: tuple[Use, ...], kernels: Mapping[str, Attached]) -> None:
        """A kernel that was active may have started its sandbox, which was thought settled."""
        seen = self._activity
        self._activity = {use.kernel_id: kernels[use.kernel_id].last_activity for use in uses}
        for use in uses:
            before = seen.get(use.kernel_id)
            if self._activity[use.kernel_id] != before:
                shown = self._shown.get(id_of(use.api_url, use.chat_id))
                if shown is not None and shown.is_settled and not shown.refresh_soon():
                    self._activity[use.kernel_id] = before  # it was too soon: next time


def _sessions(uses: tuple[Use, ...], kernels: Mapping[str, Attached]) -> dict[str, list[Json]]:
    """Sandbox id → what is attached to it."""
    found: dict[str, list[Json]] = {}
    for use in uses:
        paths: tuple[str | None, ...] = kernels[use.kernel_id].notebook_paths or (None,)
        rows = found.setdefault(id_of(use.api_url, use.chat_id), [])
        for path in paths:
            row = {"kernel_id": use.kernel_id, "notebook_path": path, "kind": use.kind}
            if row not in rows:
                rows.append(row)
    return found
