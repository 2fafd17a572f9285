"""One sandbox on the board: what is known of it, and what can be done with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

from ivy_kernel.errors import RateLimitedError, SettingError
from ivy_kernel.models import Json
from ivy_kernel.server_extension.targets import Meaning
from ivy_kernel.session import local_server
from ivy_kernel.session.lifecycle import Lifecycle
from ivy_kernel.settings.settings import missing_sentence
from ivy_kernel.status import END_STATES, Monitor, Watch, monotonic_seconds
from ivy_kernel.status.model import SandboxStatus, StatusReading
from ivy_kernel.status.schedule import PollIntervals

Action = Literal["create", "terminate", "reconnect"]

FRESH_SECONDS = 1.5
FIRST_READING_SECONDS = 3.0
"""For so long an answer waits for the platform; then it says what is known."""
ACTION_READING_SECONDS = 10.0
"""Likewise, after an action."""
LATE_SECONDS = 2.0
"""How late the monitor may be before a status counts as older than it should be."""
POKE_SECONDS = 10.0

_INTERVALS = PollIntervals()


class ShownSandbox:
    """A sandbox in use.

    Parameters
    ----------
    meaning
        Which one.
    on_news
        Called when anything about it has changed.
    """

    def __init__(self, meaning: Meaning, on_news: Callable[[], None]) -> None:
        self._meaning = meaning
        self._lifecycle = meaning.lifecycle
        self._on_news = on_news
        self._watch: Watch | None = None
        self._told = asyncio.Event()
        self._acting: dict[Action, asyncio.Task[None]] = {}
        self._poked_monotonic = float("-inf")
        self._watched_since = float("-inf")

    @property
    def lifecycle(self) -> Lifecycle | None:
        """Our hold on it; ``None`` while the settings do not allow for one."""
        return self._lifecycle

    # What is known ------------------------------------------------------------------------------

    async def mean(self, meaning: Meaning) -> None:
        """Take what the settings say now about the same sandbox."""
        before, now = self._lifecycle, meaning.lifecycle
        self._meaning = meaning
        if now is None:
            return  # the settings are broken for now: what was known is shown, with the reason
        if before is not None and before.key == now.key:
            before.campaign_id, before.session_id = now.campaign_id, now.session_id
            await before.aclose()  # time limits, certificates and the like may have changed
            before.refresh_soon()
            return
        await self.aclose()
        self._lifecycle = now

    def watch(self) -> None:
        """Have the status asked for regularly, if it is not already."""
        if self._lifecycle is not None and (self._watch is None or self._watch.closed):
            self._watch = self._lifecycle.monitor().watch(self._notice)
            self._watched_since = monotonic_seconds()

    def unwatch(self) -> None:
        """Let the status rest."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def refresh_soon(self) -> bool:
        """Something may have changed without us: look soon. Not more often than sensible.

        Whether it was looked; if not, the caller should try again later.
        """
        now = monotonic_seconds()
        if self._lifecycle is None or now - self._poked_monotonic <= POKE_SECONDS:
            return False
        self._poked_monotonic = now
        self._lifecycle.refresh_soon()
        return True

    @property
    def is_settled(self) -> bool:
        """Whether only somebody's action changes its state, so that it is rarely asked for."""
        status = self._reading().status
        return status is not None and status.effective_state(monotonic_seconds()) in END_STATES

    def _notice(self, reading: StatusReading) -> None:
        self._told.set()
        self._on_news()

    def _monitor(self) -> Monitor | None:
        return None if self._lifecycle is None else self._lifecycle.monitor()

    def _reading(self) -> StatusReading:
        monitor = self._monitor()
        return StatusReading() if monitor is None else monitor.reading

    async def known(self, *, fresh: bool = False) -> None:
        """Wait until the status is as fresh as it is kept while somebody watches.

        Parameters
        ----------
        fresh
            Whether only an answer of the last moments will do.

        Who is the first to look after a while gets a new one. After an error the monitor's own
        patience counts, not that of the caller.
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
                await asyncio.wait_for(self._told.wait(), FIRST_READING_SECONDS)
            else:
                age_seconds = (
                    _INTERVALS.after_answer(status, status.received_monotonic) + LATE_SECONDS
                )
                is_older = status.received_monotonic < self._watched_since
                refresh = monitor.refresh(max_age_seconds=0.0 if is_older else age_seconds)
                await asyncio.wait_for(refresh, FIRST_READING_SECONDS)

    def to_json(self, sessions: list[Json], *, default: bool) -> Json:
        """The sandbox as the front end receives it."""
        meaning, lifecycle = self._meaning, self._lifecycle
        status = self._status_json()
        missing = meaning.missing
        usable = lifecycle is not None and missing is None
        has_campaign = lifecycle is not None and bool(lifecycle.campaign_id)
        if usable and not has_campaign and status["state"] in END_STATES:
            missing = missing_sentence("campaign_id")
        return {
            "id": meaning.sandbox_id,
            "name": meaning.name if lifecycle is None else lifecycle.name,
            "local": meaning.local if lifecycle is None else lifecycle.local,
            "chat_id": meaning.chat_id if lifecycle is None else lifecycle.chat_id,
            "default": default,
            "account": meaning.account,
            "missing": missing,
            "can_create": usable and has_campaign,
            "can_terminate": usable,
            "sessions": sessions,
            "status": status,
        }

    def _status_json(self) -> dict[str, Any]:
        now = monotonic_seconds()
        if self._lifecycle is not None:
            return self._reading().to_json(now)
        status = SandboxStatus(
            state="none" if self._meaning.state == "none" else "unknown",
            dialect="ivy",
            received_monotonic=now,
            described_monotonic=now,
        )
        return {**status.to_json(now), "age_ms": None}

    # What can be done ---------------------------------------------------------------------------

    async def act(self, action: Action) -> None:
        """Do it, or join the same action if it is under way.

        It goes on to its end even if the caller does not wait for it.

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
            task.exception()  # retrieved, though nobody may be left to hear of it
        self._on_news()

    async def _act(self, action: Action) -> None:
        try:
            await self._do(action)
        except RateLimitedError as exc:
            monitor = self._monitor()
            if monitor is not None:
                monitor.hold_off(exc.retry_after_seconds or 0.0)
            raise

    async def _do(self, action: Action) -> None:
        lifecycle, monitor = self._lifecycle, self._monitor()
        if action == "reconnect":
            if lifecycle is not None and monitor is not None:
                await lifecycle.aclose()
                await self._refresh(monitor)
            return
        if lifecycle is None or monitor is None or self._meaning.missing is not None:
            raise SettingError(self._meaning.missing or "The settings mean no sandbox.")
        if action == "create":
            await lifecycle.create()
        elif not lifecycle.local or local_server.find() is not None:
            await lifecycle.terminate()
            await self._refresh(monitor)

    async def _refresh(self, monitor: Monitor) -> None:
        with suppress(asyncio.TimeoutError, RuntimeError):  # closed meanwhile
            await asyncio.wait_for(monitor.refresh(), ACTION_READING_SECONDS)

    async def aclose(self) -> None:
        """Let go of it; it lives on."""
        self.unwatch()
        self._told.clear()
        for task in list(self._acting.values()):
            task.cancel()
        lifecycle, self._lifecycle = self._lifecycle, None
        if lifecycle is not None:
            await lifecycle.monitor().aclose()
            await lifecycle.aclose()
