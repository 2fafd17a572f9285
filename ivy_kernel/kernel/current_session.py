"""The session that a kernel's settings mean at the moment, and its end at shutdown or restart."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from traitlets.config import Config

from ivy_kernel.errors import IvyError, SettingError
from ivy_kernel.kernel.base import shown_cells
from ivy_kernel.kernel.comms import RemoteComms
from ivy_kernel.kernel.restart import (
    AgentRecords,
    Chat,
    RestartMark,
    end_agents,
    not_ended_sentence,
    session_key_of,
)
from ivy_kernel.models import Message, Namespace, Sink
from ivy_kernel.routes.events import AgentOpened, Event, KeptCell
from ivy_kernel.session import local_server
from ivy_kernel.session.kernel_registry import KernelRegistration, kernel_id_of
from ivy_kernel.session.notebook_record import NotebookRecord, notebook_path
from ivy_kernel.session.open import identity, open_lifecycle, open_session
from ivy_kernel.session.output_limit import OutputLimit
from ivy_kernel.session.session import Session
from ivy_kernel.settings.live import LiveSettings

if TYPE_CHECKING:
    from ivy_kernel.kernel.missed_outputs import MissedOutputs
    from ivy_kernel.session.files import SandboxFiles

INTERRUPT_SECONDS = 0.5
"""Of the time for a shutdown: for the running cell to hear of it."""


class EarlierCells:
    """Takes messages of cells that an earlier process of this kernel had started.

    Parameters
    ----------
    otherwise
        Takes those messages while no cell shows them.
    """

    def __init__(self, otherwise: Sink) -> None:
        self._otherwise = otherwise
        self._sink: Sink | None = None
        self._input_request: Message | None = None

    @contextmanager
    def shown_in(self, sink: Sink) -> Iterator[None]:
        """Show them in one cell for the time of the ``with`` block."""
        self._sink = sink
        try:
            # The earlier cell waits at its input() and would not send the request again.
            request, self._input_request = self._input_request, None
            if request is not None:
                sink(request)
            yield
        finally:
            self._sink = None

    def take(self, message: Message) -> None:
        """Called with each message whose parent is no request of ours that is under way."""
        if message.channel == "stdin":
            self._take_input_request(message)
        elif message.channel != "iopub":
            return  # a reply whose request was given up
        elif self._sink is None or message.msg_type.startswith("comm_"):
            self._otherwise(message)
        elif message.msg_type == "error":  # as text, since the cell that shows it has not failed
            text = "\n".join(message.content.get("traceback", ()))
            self._sink(Message("stream", {"name": "stderr", "text": f"{text}\n"}))
        elif message.msg_type not in ("status", "execute_input"):
            self._sink(dataclasses.replace(message, parent_header=None))

    def _take_input_request(self, message: Message) -> None:
        if self._sink is None:
            self._input_request = message
        else:
            self._sink(message)


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
        self._flags = flags
        self._is_behind = is_behind
        self._mark = RestartMark(connection_file)
        self._agents = AgentRecords(connection_file)
        # What an earlier process has left, which may not have been reached at its end.
        self._earlier_agents = {record.call_id for record in self._agents.all()}
        self._registration = KernelRegistration(kernel_id_of(connection_file))
        self._session_key = session_key_of(connection_file)
        self._identity: tuple[object, ...] = ()
        self._chat: Chat = ()
        self._chats: dict[Chat, tuple[Namespace, RemoteComms]] = {}
        self._must_empty = False
        self._closing: set[asyncio.Future[None]] = set()
        self._shown = shown_cells(connection_file)
        self._missed: MissedOutputs | None = None
        self._looking: asyncio.Task[None] | None = None
        if self._shown.path and self._earlier_agents:
            self._looking = asyncio.ensure_future(self._look_for_missed())
        self._to_attach = self._mark.attached()
        self._attached_before = ""
        with suppress(SettingError):  # the first cell reports it, and tries again
            self._attach_again()

    def _attach_again(self) -> None:
        """Use the chat again that an earlier process of this kernel was attached to."""
        ids = self._to_attach
        if not ids:
            return
        self.live.attach(
            ids["chat_id"],
            campaign_id=ids.get("campaign_id"),
            session_id=ids.get("session_id") or None,
        )
        self._to_attach, self._attached_before = {}, ids["chat_id"]

    async def _look_for_missed(self) -> None:
        """Find an agent that an earlier kernel of the notebook has left, and what was missed.

        No sandbox is started or woken for that.
        """
        with suppress(IvyError):  # the first cell tells what is wrong
            session = self.wanted()
            if session.lifecycle.local and local_server.find() is None:
                return
            await session.open_live(await session.lifecycle.status(retry=False))

    def _hear(self, message: Message) -> None:
        if self._missed is not None:
            self._missed.heard(message)
        self._on_background(message)

    def _tell_missed(self, event: Event, open_files: Callable[[], SandboxFiles]) -> None:
        """Have what was missed brought into the journal, when an agent is found again."""
        if isinstance(event, AgentOpened):
            self._listen_for_missed()
        if self._missed is not None:
            self._missed.on_event(event, open_files)

    def _listen_for_missed(self) -> MissedOutputs | None:
        if self._missed is None and self._shown.path:
            # Not on a warm cell's way: only here.
            from ivy_kernel.kernel.missed_outputs import MissedOutputs

            self._missed = MissedOutputs(self._shown, self._output_limit)
        return self._missed

    def expect(self, cells: Sequence[KeptCell]) -> None:
        """Have what cells of a run say that was handed over brought into the journal."""
        missed = self._listen_for_missed()
        if missed is not None:
            missed.expect(cells)

    def _output_limit(self) -> OutputLimit:
        return OutputLimit(self.live.current().output_limit_bytes)

    def note(self) -> str:
        """Return, once, what the user's first cell has to say; empty for nothing."""
        chat_id, self._attached_before = self._attached_before, ""
        if not chat_id or self.live.attached.get("chat_id") != chat_id:
            return ""
        return (
            f"Chat {chat_id} is still attached, as before the restart of the kernel; "
            f"%ivy attach leads elsewhere."
        )

    def wanted(self) -> Session:
        """Return the session that the settings of the moment mean.

        Raises
        ------
        SettingError
            When they mean none: says why.
        """
        self._attach_again()
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
            self._mark.keep_attached(self.live.attached)
            fields = self.session.lifecycle.registry_fields
            self._registration.register(**fields)
            with suppress(OSError):  # the import too opens files, of which there may be too many
                from ivy_kernel.session.chats import note_use  # not on a warm cell's way

                note_use(**fields)
        return self.session

    def _open(self) -> Session:
        lifecycle = open_lifecycle(self.live)
        chat, campaign_id = lifecycle.key[:2], lifecycle.campaign_id
        must_empty = self._mark.is_set(chat)
        # The same for each session on a chat: they know what was lost, shown and opened there.
        if chat not in self._chats:
            self._chats[chat] = Namespace(), RemoteComms(lambda: self._comms_beside(chat))
        namespace, comms = self._chats[chat]

        def on_event(event: Event) -> None:
            if isinstance(event, AgentOpened) and event.ending is not None:
                self._agents.add(chat, campaign_id, event.ending)
            comms.on_event(event)
            self._on_event(event)
            self._tell_missed(event, session.files)

        session = open_session(
            self.live,
            fresh=must_empty,
            session_key=self._session_key,
            on_background=self._hear,
            on_event=on_event,
            namespace=namespace,
            is_behind=self._is_behind,
            record=NotebookRecord(notebook_path(), kernel=self._session_key),
        )
        self._chat, self._must_empty, self.comms = chat, must_empty, comms
        return session

    def _comms_beside(self, chat: Chat) -> list[RemoteComms]:
        return [comms for other, (_, comms) in self._chats.items() if other != chat]

    def cell_ended(self) -> None:
        """Called after each cell: the first one of a chat since a restart has emptied it."""
        # Only when that is known: a cell may end before its namespace was emptied.
        if self._must_empty and self.session is not None and not self.session.fresh_wanted:
            self._must_empty = False
            self._mark.remove(self._chat)

    def not_ended(self) -> list[str]:
        """Tell, once, what an earlier process of this kernel could not end in other chats.

        Of this chat it is not told: the cell reaches its sandbox, and ends it, or tells why not.
        """
        if not self._earlier_agents:
            return []
        left = [each for each in self._agents.all() if each.call_id in self._earlier_agents]
        failed = [record for record in left if record.failure]
        self._earlier_agents = {each.call_id for each in left if not each.failure}
        return [not_ended_sentence(record) for record in failed if record.chat != self._chat]

    def before_shutdown(self, *, restart: bool) -> None:
        """See `CellRunner.before_shutdown`."""
        self._registration.unregister()
        if restart:
            self._mark.set({*self._chats, *(record.chat for record in self._agents.all())})
        else:
            self._mark.remove_all()

    async def shutdown(self, *, restart: bool) -> None:
        """End all that works for us in sandboxes, because the kernel's process ends.

        What is not reached in time is left to `go_on_after`.
        """
        if self.session is not None:
            if self.session.busy:
                ending = self.session.ending
                if ending is not None:
                    campaign_id = self.session.lifecycle.campaign_id
                    self._agents.add(self._chat, campaign_id, ending)
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self.session.interrupt(), INTERRUPT_SECONDS)
            # An agent on record is ended below; one that is being started just now, here.
            is_on_record = any(record.chat == self._chat for record in self._agents.all())
            await self.session.aclose(keep=restart or is_on_record)
        await end_agents(self._agents, self._flags)
