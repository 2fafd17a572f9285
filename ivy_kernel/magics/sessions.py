"""The sessions of one notebook's magics: one for each chat that its cells have used."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass

from ivy_kernel.models import Message, Sink
from ivy_kernel.routes.events import AgentLost, Event, KernelDied
from ivy_kernel.session.describe import event_sentence
from ivy_kernel.session.kernel_registry import KernelRegistration
from ivy_kernel.session.open import LiveSettings, identity, open_session
from ivy_kernel.session.session import Session


@dataclass(slots=True)
class _Open:
    identity: tuple[object, ...]
    session: Session


class MagicSessions:
    """Opens sessions, and keeps them until the notebook's kernel ends. Lives on one event loop.

    Parameters
    ----------
    kernel_id
        The kernel, as its Jupyter server calls it; empty for none.
    on_background
        Takes what the sandbox shows while no cell of ours runs.
    """

    def __init__(self, *, kernel_id: str, on_background: Sink) -> None:
        self.live = LiveSettings()
        self._others: dict[str, LiveSettings] = {}
        self._open: dict[str, _Open] = {}
        self._key = secrets.token_hex(8)
        self._on_background = on_background
        self._registration = KernelRegistration(kernel_id, "magic") if kernel_id else None
        self._closing: set[asyncio.Future[None]] = set()
        self.cell_sink: Sink | None = None

    def session(self, chat_id: str | None = None) -> Session:
        """The session of a chat, or of the one that is attached.

        Raises
        ------
        SettingError
            When the settings mean none: says why.
        """
        live = self.settings_of(chat_id)
        wanted = identity(live.current())
        chat_id = live.current().chat_id
        known = self._open.get(chat_id)
        if known is None or (known.identity != wanted and not known.session.busy):
            if known is not None:  # the same chat by other settings: its variables stay
                self._close(known.session)
            opened = open_session(
                live,
                session_key=self._key,
                on_background=self._on_background,
                on_event=lambda event: self._on_event(event, chat_id),
            )
            known = self._open[chat_id] = _Open(wanted, opened)
        lifecycle = known.session.lifecycle
        if self._registration is not None:
            self._registration.register(**lifecycle.registry_fields)
        return known.session

    def settings_of(self, chat_id: str | None) -> LiveSettings:
        """The settings that a cell for a chat follows; ``None`` for the one that is attached.

        Raises
        ------
        SettingError
            When the chat's id cannot be used.
        """
        if chat_id is None or chat_id == self.live.current().chat_id:
            return self.live
        if chat_id not in self._others:
            live = LiveSettings()
            live.attach(chat_id)
            self._others[chat_id] = live
        return self._others[chat_id]

    def _on_event(self, event: Event, chat_id: str) -> None:
        """What the agent route tells beside messages."""
        if isinstance(event, AgentLost | KernelDied) and chat_id in self._open:
            self._open[chat_id].session.lifecycle.refresh_soon()
        sentence = event_sentence(event)
        if sentence and self.cell_sink is not None:
            self.cell_sink(Message("stream", {"name": "stderr", "text": f"[{sentence}]\n"}))

    def _close(self, session: Session) -> None:
        closing = asyncio.ensure_future(session.aclose(keep=True))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        """Let go of all sandboxes, which live on."""
        opened, self._open = list(self._open.values()), {}
        if self._registration is not None:
            self._registration.unregister()
        await asyncio.gather(*(one.session.aclose() for one in opened), return_exceptions=True)
