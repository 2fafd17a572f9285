"""``%ivy`` and ``%%ivy`` in any IPython, and the sessions that they use."""

from __future__ import annotations

import asyncio
import atexit
import secrets
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from IPython.core.magic import Magics, line_cell_magic, magics_class

from ivy_kernel.errors import IvyError, UsageError
from ivy_kernel.magics import SHELL_ATTRIBUTE
from ivy_kernel.magics.cell import run_cell
from ivy_kernel.magics.commands import run_command
from ivy_kernel.magics.options import CellOptions, HelpAskedError, parse_cell_options
from ivy_kernel.magics.output import NativeOutput, RemoteInterrupt, exception_for, shown_briefly
from ivy_kernel.magics.waiting import Post, ask_user, loop_thread, wait_in_cell
from ivy_kernel.models import Cell, Json, Message, Namespace, Outcome, Sink, sendable
from ivy_kernel.routes.events import AgentLost, Event, KeptCell, KernelDied, show_error
from ivy_kernel.session.chats import find_chat, note_use
from ivy_kernel.session.describe import event_sentence
from ivy_kernel.session.kernel_registry import KernelRegistration, kernel_id_of
from ivy_kernel.session.missing_files import NO_SUCH_FILE, missing_file_hint
from ivy_kernel.session.notebook_record import NotebookRecord, notebook_path
from ivy_kernel.session.open import identity, open_lifecycle, open_session
from ivy_kernel.session.output import front_end_throttle
from ivy_kernel.session.output_limit import OutputLimit
from ivy_kernel.session.session import Session
from ivy_kernel.session.start_progress import is_progress
from ivy_kernel.settings.live import LiveSettings
from ivy_kernel.status.model import SandboxStatus

CLOSE_SECONDS = 3.0
PARENTS_KEPT = 256
"""The number of cells whose background output is shown where it belongs."""
PLACED_TYPES = frozenset({"stream", "display_data", "update_display_data", "clear_output"})
"""Messages that front ends put under the cell that is their parent."""
OVERTAKING_SECONDS = 5.0
"""Time limit for an interrupt to wait for its cell to begin."""


@magics_class
class IvyMagics(Magics):
    """The magics of one IPython shell, and its hold on the sandbox.

    Parameters
    ----------
    shell
        IPython's shell.
    """

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self._ipython = shell
        self._kernel = getattr(shell, "kernel", None)
        self.thread = loop_thread()
        self._background = NativeOutput(shell, is_alone=False)
        self._parents: dict[str, Json] = {}  # the request of the notebook's cell, by our own id
        application = getattr(self._kernel, "parent", None)
        connection_file = getattr(application, "connection_file", "")
        self.sessions = MagicSessions(
            kernel_id=kernel_id_of(connection_file) if connection_file else "",
            on_background=self._show_background,
        )
        atexit.register(self.close)

    def close(self) -> None:
        """Let go of the sandbox. Called when the kernel ends, or the extension is unloaded."""
        atexit.unregister(self.close)
        if self.thread.alive:
            closing = self.thread.submit(self.sessions.aclose())
            with suppress(Exception):  # what we cannot end in time, the sandbox ends by itself
                closing.result(CLOSE_SECONDS)

    @line_cell_magic
    def ivy(self, line: str, cell: str | None = None) -> None:
        """Run a cell in the sandbox (%%ivy), or a command about the sandbox (%ivy).

        %%ivy --help and %ivy --help tell more.
        """
        try:
            if cell is None:
                self._run_command(line)
            else:
                self._run_cell(parse_cell_options(line), cell)
        except HelpAskedError as asked:
            sys.stdout.write(str(asked))
        except IvyError as error:
            raise shown_briefly(error) from None

    def _run_command(self, line: str) -> None:
        work = _CommandWork(self.sessions, line, self._ipython.user_ns)
        done, _ = wait_in_cell(self._ipython, work, thread=self.thread, is_remote=False)
        if not done:
            raise RemoteInterrupt("Interrupted.", ("KeyboardInterrupt: Interrupted.",))

    def _run_cell(self, options: CellOptions, code: str) -> None:
        request = self._request()
        cell = Cell(
            code=code,
            execution_count=self._ipython.execution_count,
            store_history=bool(request.get("store_history", True)),
            allow_stdin=bool(request.get("allow_stdin", True)),
            # Not the header of the request that runs us, of which there may be none, or which
            # may run several of these cells.
            header={"msg_id": uuid.uuid4().hex, "msg_type": "execute_request"},
        )
        if self._kernel is not None:
            self._parents[cell.header["msg_id"]] = self._kernel.get_parent()
            while len(self._parents) > PARENTS_KEPT:
                del self._parents[next(iter(self._parents))]
        work = _MagicCell(self.sessions, options, cell, self._ipython.user_ns)
        outcome, _ = wait_in_cell(self._ipython, work, thread=self.thread, is_remote=True)
        if outcome.reply["status"] == "error":
            raise exception_for(outcome.reply, outcome.fate) from None

    def _show_background(self, message: Message) -> None:
        """Show a message of no running cell, under the cell that has caused it, as ipykernel does.

        Called in the loop thread, whose own prints would go under the cell that has started it.
        """
        parent, kernel = self._parents.get(message.parent_id), self._kernel
        if parent is None or kernel is None or message.msg_type not in PLACED_TYPES:
            self._background.show(message)
            return
        kernel.session.send(
            kernel.iopub_socket,
            message.msg_type,
            sendable(message.content),
            parent=parent,
            ident=message.msg_type.encode(),
        )

    def _request(self) -> Json:
        """Return the content of the ``execute_request`` that runs us; empty outside of Jupyter."""
        parent = self._kernel.get_parent() if self._kernel is not None else {}
        content: Json = (parent or {}).get("content") or {}
        return content


def load(shell: Any) -> IvyMagics:
    """Add ``%ivy`` and ``%%ivy`` to a shell; a second time changes nothing."""
    magics: IvyMagics | None = getattr(shell, SHELL_ATTRIBUTE, None)
    if magics is None:
        magics = IvyMagics(shell)
        setattr(shell, SHELL_ATTRIBUTE, magics)
        shell.register_magics(magics)
    return magics


def unload(shell: Any) -> None:
    """Remove the magics from a shell, and let go of the sandbox."""
    magics = getattr(shell, SHELL_ATTRIBUTE, None)
    if magics is not None:
        setattr(shell, SHELL_ATTRIBUTE, None)
        for kind in ("line", "cell"):
            shell.magics_manager.magics[kind].pop("ivy", None)
        magics.close()


# Commands and cells, as work on the loop thread --------------------------------------------------
class _CommandWork:
    """One ``%ivy`` line, as work on the loop thread."""

    def __init__(self, sessions: MagicSessions, line: str, namespace: Json) -> None:
        self._sessions = sessions
        self._line = line
        self._namespace = namespace
        self._task: asyncio.Task[Any] | None = None

    async def run(self, post: Post) -> bool:
        """Run the command; false when it was interrupted."""
        self._task = asyncio.current_task()
        try:
            await run_command(
                self._line, post, _CommandOwner(self._sessions, post, self._namespace)
            )
        except asyncio.CancelledError:
            return False
        return True

    async def stop(self) -> None:
        """Interrupt the command."""
        if self._task is not None:
            self._task.cancel()


class _CommandOwner:
    """The notebook, as its ``%ivy`` lines see it; see `ivy_kernel.magics.commands`."""

    def __init__(self, sessions: MagicSessions, post: Post, namespace: Json) -> None:
        self._post = post
        self._namespace = namespace
        self.live = sessions.live
        self.session = sessions.session

    def namespace(self) -> Json:
        return self._namespace

    @property
    def directory(self) -> Path:
        try:
            return Path.cwd()
        except OSError:
            raise UsageError("This directory is not there any more. Nothing was moved.") from None

    async def confirm(self, question: str) -> bool:
        try:
            answer = await ask_user(f"{question} [y/N] ", self._post)
        except Exception:
            raise UsageError(f"{question} Nobody can be asked here: add --yes.") from None
        return answer.strip().lower() in ("y", "yes")

    @property
    def number(self) -> int:
        raise UsageError(
            "%ivy detach works in notebooks of the Ivy Sandbox kernel alone: the cells of this one "
            "run on this machine. Nothing was run."
        )

    def expect(self, cells: Sequence[KeptCell]) -> None:
        """Keep nothing; see `number`."""

    async def follow(self, status: SandboxStatus, sink: Sink) -> None:
        """Show nothing: a cell of such a notebook does not outlive the notebook's process."""


class _MagicCell:
    """One ``%%ivy`` cell, as work on the loop thread."""

    def __init__(
        self, sessions: MagicSessions, options: CellOptions, cell: Cell, namespace: Json
    ) -> None:
        self._sessions = sessions
        self._namespace = namespace
        self._options = options
        self._cell = cell
        self._session: Session | None = None
        self._finishing: asyncio.Future[None] | None = None
        self._task: asyncio.Task[Any] | None = None

    async def run(self, post: Post) -> Outcome:
        """Run the cell to its one end; all that it shows has been posted then."""
        chat_id = self._options.chat_id
        settings = self._sessions.settings_of(chat_id).current()
        session = self._session = self._sessions.session(chat_id)
        if session.recovery is not None:
            session.recovery.ask = _CommandOwner(self._sessions, post, self._namespace).confirm
        throttle = front_end_throttle(post, limit=OutputLimit(settings.output_limit_bytes))
        replying: set[asyncio.Task[None]] = set()

        complaints: list[str] = []

        def sink(message: Message) -> None:
            if not self._cell.store_history and is_progress(message):
                return  # a runner compares a hidden cell with the notebook, where no progress is
            if message.msg_type == "stream" and NO_SUCH_FILE in message.content["text"]:
                complaints[:] = [*complaints[-9:], message.content["text"]]
            if message.channel != "stdin":
                throttle(message)
                return
            task = asyncio.ensure_future(_reply_to_input(session, message, post))
            replying.add(task)
            task.add_done_callback(replying.discard)

        self._sessions.cell_sink = throttle
        try:
            has_variables = bool(self._options.ins or self._options.outs)
            self._task = asyncio.current_task() if has_variables else None
            try:
                outcome = await run_cell(
                    session,
                    self._options,
                    self._cell,
                    sink,
                    (lambda: self._namespace) if has_variables else None,
                    tool_seconds=settings.cell_timeout_seconds,
                )
            except asyncio.CancelledError:  # while a variable was moved
                outcome = show_error(sink, "KeyboardInterrupt", "Interrupted.", "interrupted")
            self._task = None
            with suppress(OSError):  # the working directory may have been removed
                is_local, here = settings.is_local, Path.cwd()
                hint = missing_file_hint(outcome.reply, complaints, here, is_local=is_local)
                if hint:
                    throttle(Message("stream", {"name": "stderr", "text": f"[{hint}]\n"}))
            # In a task of its own, which `stop` can cancel without losing the outcome.
            self._finishing = asyncio.ensure_future(throttle.finish())
            await asyncio.wait({self._finishing})
        finally:
            self._sessions.cell_sink = None
            for task in replying:  # the cell has ended, so it reads no input any more
                task.cancel()
        return outcome

    async def stop(self) -> None:
        """Interrupt the cell, or drop what is left to show of it."""
        # The interrupt may overtake the cell that it is meant for, hence the deadline.
        deadline = time.monotonic() + OVERTAKING_SECONDS
        while time.monotonic() < deadline:
            if self._finishing is not None:
                self._finishing.cancel()
                return
            if self._session is not None and self._session.busy:
                await self._session.interrupt()
                return
            if self._task is not None:  # a variable is moved, beside cells
                self._task.cancel()
                return
            await asyncio.sleep(0.01)


async def _reply_to_input(session: Session, request: Message, post: Post) -> None:
    """Have the user reply to an ``input_request`` of the sandbox."""
    content = request.content
    prompt, is_secret = str(content.get("prompt", "")), bool(content.get("password"))
    with suppress(asyncio.CancelledError, Exception):  # the cell is interrupted, and ends by that
        value = await ask_user(prompt, post, is_secret=is_secret)
        if session.live is not None:
            await session.live.answer_input(value, request)


# Sessions ----------------------------------------------------------------------------------------
@dataclass(slots=True)
class _Open:
    """A session, and what its settings were."""

    identity: tuple[object, ...]
    session: Session


class MagicSessions:
    """Opens sessions, and keeps them until the notebook's kernel ends. Lives on one event loop.

    Parameters
    ----------
    kernel_id
        The kernel, as its Jupyter server calls it; empty for none.
    on_background
        Takes the messages of the sandbox that belong to no running cell.

    Attributes
    ----------
    live
        The settings, as ``%ivy attach`` leaves them.
    cell_sink
        Takes notes beside the output of the running cell; ``None`` while none runs.
    """

    def __init__(self, *, kernel_id: str, on_background: Sink) -> None:
        self.live = LiveSettings()
        self._others: dict[str, LiveSettings] = {}
        self._open: dict[str, _Open] = {}
        self._namespaces: dict[tuple[str, ...], Namespace] = {}
        self._key = secrets.token_hex(8)
        self._on_background = on_background
        self._registration = KernelRegistration(kernel_id, "magic") if kernel_id else None
        self._closing: set[asyncio.Future[None]] = set()
        self.cell_sink: Sink | None = None

    def session(self, chat_id: str | None = None) -> Session:
        """Return the session of a chat, or of the one that is attached.

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
            if known is not None:  # the same chat with changed settings; its variables stay
                self._close(known.session)
            opened = open_session(
                live,
                session_key=self._key,
                on_background=self._on_background,
                on_event=lambda event: self._on_event(event, chat_id),
                namespace=self._namespaces.setdefault(open_lifecycle(live).key[:2], Namespace()),
                record=NotebookRecord(notebook_path(), kernel=self._key),
            )
            known = self._open[chat_id] = _Open(wanted, opened)
            note_use(**opened.lifecycle.registry_fields)
        lifecycle = known.session.lifecycle
        if self._registration is not None:
            self._registration.register(**lifecycle.registry_fields)
        return known.session

    def settings_of(self, chat_id: str | None) -> LiveSettings:
        """Return the settings of a cell for a chat; ``None`` for the one that is attached.

        Parameters
        ----------
        chat_id
            The chat's id, or the name that the user gave it.

        Raises
        ------
        SettingError
            When the chat's id cannot be used.
        """
        if chat_id is None or chat_id == self.live.current().chat_id:
            return self.live
        if chat_id not in self._others:
            own = LiveSettings()
            chat = find_chat(own.current(), chat_id)
            if chat is not None and chat.chat_id != chat_id:  # a name, which may change
                return self.settings_of(chat.chat_id)
            own.attach(chat_id, campaign_id=(chat and chat.campaign_id) or None)
            self._others[chat_id] = own
        return self._others[chat_id]

    def _on_event(self, event: Event, chat_id: str) -> None:
        """Take an event that the agent route reports beside messages."""
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
        """Let go of all sandboxes; they go on running."""
        opened, self._open = list(self._open.values()), {}  # a second call finds none
        if self._registration is not None:
            self._registration.unregister()
        await asyncio.gather(*(one.session.aclose() for one in opened), return_exceptions=True)
