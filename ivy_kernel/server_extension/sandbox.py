"""One sandbox in the registry: its status, and the actions on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

from ivy_kernel.errors import IvyError, NoSandboxError, RateLimitedError, SettingError
from ivy_kernel.models import Json
from ivy_kernel.routes.tools import SandboxTools
from ivy_kernel.server_extension.folder import Folder
from ivy_kernel.server_extension.targets import SandboxTarget
from ivy_kernel.session import local_server
from ivy_kernel.session.files import SandboxFiles
from ivy_kernel.settings.settings import missing_sentence
from ivy_kernel.status.clock import monotonic_seconds
from ivy_kernel.status.model import END_STATES, SandboxStatus, State, StatusReading
from ivy_kernel.status.monitor import Monitor
from ivy_kernel.status.polling import Watch
from ivy_kernel.status.schedule import PollIntervals

Action = Literal["create", "terminate", "reconnect"]

FRESH_SECONDS = 1.5
"""A user's reload accepts a status of this age: double clicks cause one request."""
FIRST_READING_SECONDS = 3.0
"""A request of the panel waits so long for the platform, then gets the present reading."""
ACTION_READING_SECONDS = 10.0
"""Likewise, after an action."""
LATE_SECONDS = 2.0
"""A status may be so much older than its poll interval before it is refreshed."""
MIN_REFRESH_SECONDS = 10.0
"""At least so long lies between two refreshes that a kernel's activity causes."""

_INTERVALS = PollIntervals()

_WITHOUT_FILES: dict[State, str] = {
    # Ivy's API says no more of one that sleeps.
    "none": "is not running, so that its files cannot be shown. A cell, the panel or %ivy create "
    "starts it, with the files that the chat has",
    "provisioning": "is starting; its files are shown as soon as it is active",
    "restoring": "is resuming; its files are shown as soon as it is active",
    "hibernating": "is going to sleep; its files are kept, and are shown again once it is resumed",
    "failed": "could not be started, so that there are no files to show; a cell, the panel or "
    "%ivy create tries again",
}
_RESUMABLE = "{}; its files are kept. A cell, the panel or %ivy create resumes it"
_GONE = "{}, and its files with it. A cell, the panel or %ivy create starts a new one"
_END_WORDS: dict[State, str] = {
    "hibernated": "sleeps",
    "archived": "was put away",
    "expired": "has reached the end of its running time",
}


class SandboxEntry:
    """One sandbox in use: its target, its monitor, and the actions under way.

    Parameters
    ----------
    target
        The sandbox.
    on_change
        Called when anything about it has changed.
    """

    def __init__(self, target: SandboxTarget, on_change: Callable[[], None]) -> None:
        self._target = target
        self._lifecycle = target.lifecycle
        self._on_change = on_change
        self._watch: Watch | None = None
        self._has_reading = asyncio.Event()
        self._acting: dict[Action, asyncio.Task[None]] = {}
        self._refreshed_monotonic = float("-inf")
        self._watched_since = float("-inf")
        self._files: SandboxFiles | None = None
        self.folder = Folder(self)
        """Its folder in the drive."""
        self.activity = ""
        """Changes whenever a kernel that is attached to it has been active."""
        self.is_busy = False
        """Whether such a kernel runs a cell."""

    # Status -------------------------------------------------------------------------------------
    async def retarget(self, target: SandboxTarget) -> None:
        """Take over a new target for the same sandbox, after the settings have changed."""
        before, now = self._lifecycle, target.lifecycle
        self._target = target
        if now is None:
            return  # the settings are broken for now: the last reading is shown, with the reason
        if before is not None and before.key == now.key:
            # The old lifecycle stays, since its monitor has the watch and the last reading.
            before.campaign_id, before.session_id = now.campaign_id, now.session_id
            await before.aclose()  # time limits, certificates and the like may have changed
            before.refresh_soon()
            self._files = None  # the settings of its tools may have changed too
            return
        await self.aclose()
        self._lifecycle = now

    def watch(self) -> None:
        """Start watching the status, so that it is polled; harmless when repeated."""
        if self._lifecycle is not None and (self._watch is None or self._watch.closed):
            self._watch = self._lifecycle.monitor().watch(self._on_reading)
            self._watched_since = monotonic_seconds()

    def unwatch(self) -> None:
        """Stop watching the status."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def refresh_soon(self) -> bool:
        """Poll soon, because something may have changed without our doing.

        Returns whether a refresh was requested; ``False`` if the last one was too recent.
        """
        now = monotonic_seconds()
        if self._lifecycle is None or now - self._refreshed_monotonic <= MIN_REFRESH_SECONDS:
            return False
        self._refreshed_monotonic = now
        self._lifecycle.refresh_soon()
        return True

    @property
    def is_settled(self) -> bool:
        """Whether only an action changes its state, so that it is polled rarely."""
        status = self._reading().status
        return status is not None and status.effective_state(monotonic_seconds()) in END_STATES

    def _on_reading(self, reading: StatusReading) -> None:
        self._has_reading.set()
        self._on_change()

    def _monitor(self) -> Monitor | None:
        return None if self._lifecycle is None else self._lifecycle.monitor()

    def _reading(self) -> StatusReading:
        monitor = self._monitor()
        return StatusReading() if monitor is None else monitor.reading

    async def update(self, *, fresh: bool = False, is_poll: bool = False) -> None:
        """Waits, within limits, until the status is as fresh as polling keeps it.

        The first caller after a pause gets a new one. After an error there is no wait: the
        monitor's backoff counts.

        Parameters
        ----------
        fresh
            Whether only an answer of the last moments is good enough.
        is_poll
            Whether a front end asks that comes again every few seconds: it is content with a status
            from before the watching began.
        """
        monitor = self._monitor()
        if monitor is not None and fresh:
            with suppress(asyncio.TimeoutError, RuntimeError):  # closed meanwhile
                refresh = monitor.refresh(max_age_seconds=FRESH_SECONDS)
                await asyncio.wait_for(refresh, FIRST_READING_SECONDS)
            return
        if monitor is None or monitor.reading.error is not None:
            return
        status = monitor.reading.status
        with suppress(asyncio.TimeoutError, RuntimeError):  # closed meanwhile
            if status is None:
                await asyncio.wait_for(self._has_reading.wait(), FIRST_READING_SECONDS)
            else:
                age_seconds = (
                    _INTERVALS.after_answer(status, status.received_monotonic) + LATE_SECONDS
                )
                # From before the watching began: the sandbox was not polled for a while.
                is_older = not is_poll and status.received_monotonic < self._watched_since
                refresh = monitor.refresh(max_age_seconds=0.0 if is_older else age_seconds)
                await asyncio.wait_for(refresh, FIRST_READING_SECONDS)

    def to_json(self, attachments: list[Json], *, default: bool) -> Json:
        """Return the sandbox as the front end receives it."""
        target, lifecycle = self._target, self._lifecycle
        status = self._status_json()
        missing = target.missing
        usable = lifecycle is not None and missing is None
        has_campaign = lifecycle is not None and bool(lifecycle.campaign_id)
        if usable and not has_campaign and status["state"] in END_STATES:
            missing = missing_sentence("campaign_id")
        return {
            "id": target.sandbox_id,
            "name": self.name,
            "local": target.local if lifecycle is None else lifecycle.local,
            "chat_id": self.chat_id,
            "default": default,
            "account": target.account,
            "missing": missing,
            "can_create": usable and has_campaign,
            "can_terminate": usable,
            "sessions": attachments,
            "status": status,
            "resources": self._resources_json(),
        }

    @property
    def has_new_resources(self) -> bool:
        """Whether some kernel has told since the last look what the sandbox uses."""
        return self._lifecycle is not None and self._lifecycle.resources.has_news

    def _resources_json(self) -> Json | None:
        if self._lifecycle is None:
            return None
        known = self._lifecycle.resources.read(self._reading().status, monotonic_seconds())
        if known is None:
            return None
        return {**known[0].to_json(), "age_seconds": round(known[1], 1)}

    def _status_json(self) -> dict[str, Any]:
        now = monotonic_seconds()
        if self._lifecycle is not None:
            return self._reading().to_json(now)
        status = SandboxStatus(
            state="none" if self._target.state == "none" else "unknown",
            dialect="ivy",
            received_monotonic=now,
            described_monotonic=now,
        )
        return {**status.to_json(now), "age_ms": None}

    # Files --------------------------------------------------------------------------------------
    def files(self) -> SandboxFiles:
        """Return the files of the sandbox, if it was active when its status was last read.

        Raises
        ------
        NoSandboxError
            When it is not active; nothing is sent to the platform then.
        IvyError
            When the settings mean no sandbox, or its status could not be read.
        """
        lifecycle, reading = self._lifecycle, self._reading()
        if lifecycle is None or self._target.missing is not None:
            raise SettingError(self._target.missing or "The settings mean no sandbox.")
        sentence = self.without_files(reading)
        if sentence is not None:
            if reading.status is None and isinstance(reading.error, IvyError):
                raise reading.error
            raise NoSandboxError(sentence)
        if self._files is None:
            fields = dict(self._target.code_fields)
            tools = SandboxTools(lifecycle.client, lifecycle.chat_id, fields)
            self._files = SandboxFiles(lifecycle, tools)
        return self._files

    def without_files(self, reading: StatusReading | None = None) -> str | None:
        """Return the sentence that says why no files can be shown; ``None`` while it is active."""
        now = monotonic_seconds()
        reading = self._reading() if reading is None else reading
        status = reading.status
        if status is None:
            return self._target.missing or reading.stale_reason(now)
        state = status.effective_state(now)
        if state == "active":
            return None
        words = _WITHOUT_FILES.get(state)
        if words is None:
            pattern = _RESUMABLE if status.resumes(now) else _GONE
            words = pattern.format(_END_WORDS.get(state, "is in a state that is not known"))
        return f"{self.name} {words}."

    @property
    def name(self) -> str:
        """Its name."""
        return self._target.name if self._lifecycle is None else self._lifecycle.name

    @property
    def chat_id(self) -> str:
        """The chat; empty when unknown."""
        return self._target.chat_id if self._lifecycle is None else self._lifecycle.chat_id

    async def _close_files(self) -> None:
        folder, self.folder = self.folder, Folder(self)
        await folder.aclose()
        files, self._files = self._files, None
        if files is not None:
            await files.aclose()

    # Actions ------------------------------------------------------------------------------------
    async def act(self, action: Action) -> None:
        """Act on the sandbox, or joins the same action if it is under way.

        The action goes on to its end even if the caller is cancelled: a tab that is closed must not
        break it off for the others.

        Raises
        ------
        IvyError
            When it failed.
        """
        task = self._acting.get(action)
        if task is None:
            task = self._acting[action] = asyncio.ensure_future(self._act(action))
            task.add_done_callback(lambda done: self._ended(action, done))
        await asyncio.shield(task)

    def _ended(self, action: Action, task: asyncio.Task[None]) -> None:
        self._acting.pop(action, None)
        if not task.cancelled():
            task.exception()  # retrieved, else asyncio logs it when all callers have gone
        self._on_change()

    async def _act(self, action: Action) -> None:
        try:
            await self._do(action)
        except RateLimitedError as exc:
            monitor = self._monitor()
            if monitor is not None:  # the limit is for the key, so polling must pause too
                monitor.hold_off(exc.retry_after_seconds or 0.0)
            raise

    async def _do(self, action: Action) -> None:
        lifecycle, monitor = self._lifecycle, self._monitor()
        if action == "reconnect":
            if lifecycle is not None and monitor is not None:
                # Frees a request that hangs on a dead connection, too.
                await lifecycle.aclose()
                await self._refresh(monitor)
            return
        if lifecycle is None or monitor is None or self._target.missing is not None:
            raise SettingError(self._target.missing or "The settings mean no sandbox.")
        if action == "create":
            await lifecycle.create()
        # A local sandbox whose server does not run is terminated already; do not start it for that.
        elif not lifecycle.local or local_server.find() is not None:
            await lifecycle.terminate()
            await self._refresh(monitor)

    async def _refresh(self, monitor: Monitor) -> None:
        with suppress(asyncio.TimeoutError, RuntimeError):  # closed meanwhile
            await asyncio.wait_for(monitor.refresh(), ACTION_READING_SECONDS)

    async def aclose(self) -> None:
        """Close monitor and connections; the sandbox lives on."""
        await self._close_files()
        self.unwatch()
        self._has_reading.clear()
        for task in list(self._acting.values()):
            task.cancel()
        lifecycle, self._lifecycle = self._lifecycle, None
        if lifecycle is not None:
            await lifecycle.monitor().aclose()
            await lifecycle.aclose()
