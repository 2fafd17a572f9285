"""The session that a kernel's settings mean at the moment, and its end at shutdown or restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from traitlets.config import Config

from ivy_kernel.kernel.comms import RemoteComms
from ivy_kernel.kernel.restart import Chat, RestartMark, session_key_of
from ivy_kernel.models import Sink
from ivy_kernel.routes.events import Event
from ivy_kernel.session.kernel_registry import KernelRegistration, kernel_id_of
from ivy_kernel.session.open import identity, open_lifecycle, open_session
from ivy_kernel.session.session import Session
from ivy_kernel.settings.live import LiveSettings


class CurrentSession:
    """Opens the session, and another one when the settings or ``%ivy attach`` lead elsewhere.

    Parameters
    ----------
    flags
        The settings from the kernel's command line.
    connection_file
        The kernel's connection file.
    on_background, on_event, is_behind
        As in `Session`.

    Attributes
    ----------
    live
        The settings.
    session
        The session; ``None`` while none was needed.
    comms
        The open comms of its kernel.
    """

    def __init__(
        self,
        *,
        flags: Config | None,
        connection_file: str,
        on_background: Sink,
        on_event: Callable[[Event], None],
        is_behind: Callable[[], bool],
    ) -> None:
        self.live = LiveSettings(flags=flags)
        self.session: Session | None = None
        self.comms = RemoteComms()
        self._on_background = on_background
        self._on_event = on_event
        self._is_behind = is_behind
        self._mark = RestartMark(connection_file)
        self._registration = KernelRegistration(kernel_id_of(connection_file))
        self._session_key = session_key_of(connection_file)
        self._identity: tuple[object, ...] = ()
        self._chat: Chat = ()
        self._chats: set[Chat] = set()
        self._must_empty = False
        self._closing: set[asyncio.Future[None]] = set()

    def wanted(self) -> Session:
        """Return the session that the settings of the moment mean.

        Raises
        ------
        SettingError
            When they mean none: says why.
        """
        wanted = identity(self.live.current())
        if self.session is not None and self.session.busy:
            return self.session  # changed settings are for the next cell
        if self.session is None or wanted != self._identity:
            if self.session is not None:
                # The variables stay for when the settings, or %ivy attach, lead back.
                closing = asyncio.ensure_future(self.session.aclose(keep=True))
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
            self.session = self._open()
            self._identity = wanted
            self._registration.register(**self.session.lifecycle.registry_fields)
        return self.session

    def _open(self) -> Session:
        chat = open_lifecycle(self.live).key[:2]
        must_empty = self._mark.is_set(chat)
        comms = RemoteComms()  # those of before end for us with their session

        def on_event(event: Event) -> None:
            comms.on_event(event)
            self._on_event(event)

        session = open_session(
            self.live,
            fresh=must_empty,
            session_key=self._session_key,
            on_background=self._on_background,
            on_event=on_event,
            is_behind=self._is_behind,
        )
        self._chat, self._must_empty, self.comms = chat, must_empty, comms
        self._chats.add(chat)
        return session

    def cell_ended(self) -> None:
        """Called after each cell: the first one of a chat since a restart has emptied it."""
        # Only when that is known: a cell may end before its namespace was emptied.
        if self._must_empty and self.session is not None and not self.session.fresh_wanted:
            self._must_empty = False
            self._mark.remove(self._chat)

    def before_shutdown(self, *, restart: bool) -> None:
        """See `CellRunner.before_shutdown`."""
        self._registration.unregister()
        if restart:
            self._mark.set(self._chats)
        else:
            self._mark.remove_all()

    async def shutdown(self, *, restart: bool) -> None:
        """Let go of the sandbox, because the kernel's process ends."""
        if self.session is None:
            return
        if self.session.busy:
            await self.session.interrupt()
        await self.session.aclose(keep=restart)
