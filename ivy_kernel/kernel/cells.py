"""Runs the cells of one kernel: splits each, and sends its parts to where they run.

Imported with the first cell, or shortly after the kernel has said that it is ready: the imports of
this module take longer than all the rest of the start.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from traitlets.config import Config

from ivy_kernel.errors import IvyError, UsageError
from ivy_kernel.kernel.comms import Comms, LocalComms, RemoteComms
from ivy_kernel.kernel.current_session import CurrentSession, EarlierCells
from ivy_kernel.kernel.local import marked_proposals, runs_locally, split_cell
from ivy_kernel.magics.cell import run_cell
from ivy_kernel.magics.commands import run_command
from ivy_kernel.magics.options import HelpAskedError, parse_cell_options
from ivy_kernel.models import Cell, Json, Message, Outcome, Sink
from ivy_kernel.routes.base import LiveKernel
from ivy_kernel.routes.events import (
    AgentLost,
    Event,
    KeptCell,
    KernelDied,
    KernelReady,
    show_command_error,
    show_error,
    succeeded,
)
from ivy_kernel.session.describe import event_sentence
from ivy_kernel.session.missing_files import NO_SUCH_FILE, missing_file_hint
from ivy_kernel.session.output import front_end_throttle
from ivy_kernel.session.output_limit import OutputLimit
from ivy_kernel.session.session import Session
from ivy_kernel.session.start_progress import blanked, is_progress
from ivy_kernel.status.model import SandboxStatus

# Sinks of messages ------------------------------------------------------------------------------
InputReplier = Callable[[Message], Coroutine[Any, Any, None]]
"""Has the user reply to an ``input_request`` of the sandbox."""

PROGRESS_TYPES = frozenset({"display_data", "update_display_data", "clear_output"})
"""Types of the messages that can show the start of a sandbox."""


class CellSink:
    """Takes all messages that are shown as a cell's own while it runs.

    Parameters
    ----------
    show
        Takes the messages for the front end.
    reply_to_input
        Takes each ``input_request``.
    shows_progress
        Whether the start of a sandbox is shown. A runner such as nbval compares all that a hidden
        cell shows with the saved notebook, where no progress is.

    Attributes
    ----------
    complaints
        Texts that the cell has printed about files that are not there.
    """

    def __init__(
        self, show: Sink, reply_to_input: InputReplier, *, shows_progress: bool = True
    ) -> None:
        self._show = show
        self._shows_progress = shows_progress
        self._reply_to_input = reply_to_input
        self._has_shown = False
        self._replying: set[asyncio.Task[None]] = set()
        self.complaints: list[str] = []

    def __call__(self, message: Message) -> None:
        """Take one message."""
        if message.msg_type not in PROGRESS_TYPES or not is_progress(message):
            self._has_shown = True
        elif not self._shows_progress:
            return
        elif message.msg_type == "clear_output" and self._has_shown:
            # It would clear the whole cell, so only the progress's own display is emptied.
            message = blanked(message)
        if message.msg_type == "stream" and NO_SUCH_FILE in message.content["text"]:
            self.complaints = [*self.complaints[-9:], message.content["text"]]
        if message.channel == "stdin":
            replying = asyncio.ensure_future(self._reply_to_input(message))
            self._replying.add(replying)
            replying.add_done_callback(self._replying.discard)
        else:
            self._show(message)

    def close(self) -> None:
        """Stop waiting for input, because the cell has ended."""
        for replying in self._replying:
            replying.cancel()


EARLIER_CELL_NOTICE = (
    "[A cell that was started before this kernel process is still running in the sandbox; what it "
    "shows follows. Interrupt to stop it; interrupt twice to stop waiting for it.]\n"
)


# The runner -------------------------------------------------------------------------------------
COMM_APART_SECONDS = 0.03
"""Pause between a comm message and a cell's reply.

nbclient loses the reply's wake-up when it is busy answering a comm message at that moment.
"""

LAST_WORDS_SECONDS = 0.3
"""Part of a shutdown's time in which the end of background output is shown."""


class CellHost(Protocol):
    """The kernel process that cells are run for: its front end, and its own Python."""

    def publish(self, message: Message) -> None:
        """Send one message to the front end."""

    @property
    def is_full(self) -> bool:
        """Whether the front end takes no more messages for now, because many wait for it."""

    async def settle(self) -> None:
        """Return when a front end that reads slowly should have read what was published."""

    async def ask_user(self, prompt: str, *, is_secret: bool) -> str:
        """Ask the user for a line of text, on behalf of the running cell."""

    def run_local(self, code: str, cell: Cell) -> Outcome:
        """Run the code of a ``%%local`` cell in this process."""

    def local_namespace(self) -> dict[str, Any]:
        """Return the variables of ``%%local`` cells."""


class CellRunner:
    """Runs cells, one at a time.

    Parameters
    ----------
    host
        The kernel process.
    flags
        The settings from the kernel's command line.
    connection_file
        The kernel's connection file.

    Attributes
    ----------
    features
        Features of the sandbox's kernel that this kernel offers too (message spec, "Kernel info").
    comms
        The comms of this process and of the sandbox.
    """

    def __init__(self, host: CellHost, *, flags: Config | None, connection_file: str) -> None:
        self._host = host
        self._task: asyncio.Task[Any] | None = None
        self._sink: CellSink | None = None
        self._comm_published = 0.0  # monotonic time of the last comm message
        self._earlier = EarlierCells(self._show_background)
        self._current = CurrentSession(
            flags=flags,
            connection_file=connection_file,
            on_background=self._earlier.take,
            on_event=self._on_event,
            is_behind=lambda: self._throttle.is_behind,
        )
        self._following = False
        self._directory = ""  # Jupyter starts kernels in the notebook's
        with suppress(OSError):  # it may have been removed, and local cells may change it later
            self._directory = str(Path.cwd())
        self.features: list[str] = []
        self._throttle = front_end_throttle(  # each cell sets its own limit
            host.publish, limit=OutputLimit(0), is_full=lambda: host.is_full
        )
        self.comms = Comms(LocalComms(self._show_at_once), self)

    @property
    def busy(self) -> bool:
        """Whether a cell is under way."""
        return self._task is not None

    @property
    def session(self) -> Session | None:
        """The session; ``None`` while none was needed."""
        return self._current.session

    @property
    def remote_comms(self) -> RemoteComms:
        """The comms of the session's kernel."""
        return self._current.comms

    @property
    def live(self) -> LiveKernel | None:
        """The kernel behind the session's open route, where it has one."""
        return self.session.live if self.session is not None else None

    # One cell ----------------------------------------------------------------------------------
    async def execute(self, cell: Cell) -> Outcome:
        """Run one cell to its one end; what it shows has been sent when this returns."""
        self._task = asyncio.current_task()
        # A silent cell shows nothing, but the comms that it opens and closes must be known.
        show = self._note_comm if cell.silent else self._show
        sink = CellSink(show, self._reply_to_input, shows_progress=cell.store_history)
        self._sink = sink
        try:
            outcome = await self._run(cell, sink)
            is_amiss = sink.complaints or outcome.reply["status"] == "error"
            if is_amiss and self._directory and not runs_locally(cell.code):
                self._hint_at_files_here(outcome, sink)
            self._current.cell_ended()
            await self._finish_showing()
        finally:
            self._task = self._sink = None
            self._throttle.idle()
            sink.close()
        payload = marked_proposals(outcome.reply.get("payload") or ())
        return dataclasses.replace(outcome, reply={**outcome.reply, "payload": payload})

    async def _run(self, cell: Cell, sink: Sink) -> Outcome:
        try:
            parts = split_cell(cell.code)
            if parts.local_code is not None:
                self._check_local_allowed()
                return self._host.run_local(parts.local_code, cell)
            if parts.options is not None:
                cell = dataclasses.replace(cell, code=parts.sandbox_code)
                return await self._run_with_options(parts.options, cell, sink)
            for line in parts.commands:
                await run_command(line, sink, _CommandOwner(self, cell))
            if parts.commands and not parts.sandbox_code:
                return succeeded()
            code = parts.sandbox_code if parts.commands else cell.code
            return await self._run_in_sandbox(dataclasses.replace(cell, code=code), sink)
        except IvyError as exc:
            return show_command_error(sink, exc)
        except asyncio.CancelledError:  # by `interrupt`, during a command or its question
            return show_error(sink, "KeyboardInterrupt", "Interrupted.", "interrupted")

    def _hint_at_files_here(self, outcome: Outcome, sink: CellSink) -> None:
        """Say so when the cell has missed a file that is beside the notebook."""
        with suppress(IvyError, OSError):  # settings that cannot be read are told elsewhere
            is_local, here = self._current.live.current().is_local, Path(self._directory)
            hint = missing_file_hint(outcome.reply, sink.complaints, here, is_local=is_local)
            if hint:
                self._show_note(hint)

    def _check_local_allowed(self) -> None:
        settings = self._current.live.current()
        if not settings.allow_local:
            raise UsageError(
                f"%%local cells run on this machine, and allow_local is false (set by "
                f"{settings.sources['allow_local']}). Nothing of this cell was run."
            )

    async def _run_with_options(self, line: str, cell: Cell, sink: Sink) -> Outcome:
        """Run a cell with ``%%ivy``, which notebooks of other Python kernels may have brought."""
        try:
            options = parse_cell_options(line)
        except HelpAskedError as asked:
            sink(Message("stream", {"name": "stdout", "text": str(asked)}))
            return succeeded()
        if options.chat_id is not None:
            raise UsageError(
                "%%ivy --chat is for other Python kernels; in this one, %ivy attach CHAT sends the "
                "cells that follow to another chat. Nothing was run."
            )
        settings = self._current.live.current()
        self._throttle.set_limit(OutputLimit(settings.output_limit_bytes))
        session, seconds = self._current.wanted(), settings.cell_timeout_seconds
        namespace = self._host.local_namespace if options.ins or options.outs else None
        return await run_cell(session, options, cell, sink, namespace, tool_seconds=seconds)

    async def _run_in_sandbox(self, cell: Cell, sink: Sink) -> Outcome:
        self._throttle.set_limit(OutputLimit(self._current.live.current().output_limit_bytes))
        session = self._current.wanted()
        if session.recovery is not None:
            session.recovery.ask = _CommandOwner(self, cell).confirm
        note = self._current.note() if cell.store_history else ""
        if note:
            self._show_note(note)
        for sentence in self._current.not_ended():
            sink(Message("stream", {"name": "stderr", "text": f"[{sentence}]\n"}))
        return await session.execute(cell, sink)

    async def _reply_to_input(self, request: Message) -> None:
        """Have the user reply to an ``input_request`` of the sandbox."""
        content = request.content
        prompt, is_secret = str(content.get("prompt", "")), bool(content.get("password"))
        try:
            value = await self._host.ask_user(prompt, is_secret=is_secret)
            if self.live is not None:
                await self.live.answer_input(value, request)
        except Exception as exc:  # or the cell would wait at its input() for ever
            self._show_note(f"The answer did not reach the sandbox ({type(exc).__name__}).")
            if self.session is not None:
                await self.session.interrupt()

    async def follow(self, status: SandboxStatus, sink: Sink) -> None:
        """Show the cell that an earlier process of this kernel has left running, to its end."""
        session = self._current.wanted()
        self._following = True
        try:
            with self._earlier.shown_in(sink):
                await session.open_live(status)
                if session.live is not None:
                    if session.live.earlier_runs:
                        notice = {"name": "stderr", "text": EARLIER_CELL_NOTICE}
                        sink(Message("stream", notice))
                    await session.live.follow()
        finally:
            self._following = False

    # What is shown -----------------------------------------------------------------------------
    def _show(self, message: Message) -> None:
        """Show a message of the running cell; widgets' messages count as shown now."""
        if message.msg_type.startswith("comm_"):
            self._comm_published = time.monotonic()
            self._note_comm(message)
        self._throttle(message)

    def _show_background(self, message: Message) -> None:
        """Show a message of no running cell; widgets' messages count as shown now."""
        if message.msg_type.startswith("comm_"):
            self._comm_published = time.monotonic()
            self._note_comm(message)
        self._throttle.background(message)

    def _note_comm(self, message: Message) -> None:
        self.remote_comms.on_message(message)

    def _show_at_once(self, message: Message) -> None:
        """Show a message of a widget of this process, before what local code shows after it."""
        self._comm_published = time.monotonic()
        self._host.publish(message)

    async def flush(self) -> None:
        """Return when all that the sandbox has said so far is shown."""
        await self._throttle.flush()

    async def _finish_showing(self) -> None:
        """Return when all is shown. An interrupt now only drops what is not: the cell has ended."""
        with suppress(asyncio.CancelledError):
            await self._throttle.finish()
            await self._host.settle()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(self._comm_published + COMM_APART_SECONDS - time.monotonic())

    def _on_event(self, event: Event) -> None:
        """Take an event that the agent route reports beside messages."""
        if isinstance(event, KernelReady):
            self.features = [name for name in event.features if name == "debugger"]
        elif isinstance(event, AgentLost | KernelDied) and self.session is not None:
            self.session.lifecycle.refresh_soon()
        sentence = event_sentence(event)
        if sentence:
            self._show_note(sentence)

    def _show_note(self, sentence: str) -> None:
        # Through the cell's sink, so that it counts as the cell's own: the end of a sandbox's
        # start would clear it otherwise.
        if self._sink is not None:
            self._sink(Message("stream", {"name": "stderr", "text": f"[{sentence}]\n"}))

    # Beside cells ------------------------------------------------------------------------------
    async def ask_sandbox(self, msg_type: str, content: Json, *, seconds: float) -> Json | None:
        """Make a request about code; ``None`` when the sandbox is not there, busy, or too slow."""
        if self.session is None or self.busy:
            return None
        try:
            return await asyncio.wait_for(self.session.ask(msg_type, content), seconds)
        except (asyncio.TimeoutError, IvyError):
            return None

    @property
    def interruptible(self) -> bool:
        """Whether anything is under way that an interrupt could be meant for."""
        live = self.live
        return self.busy or (live is not None and (live.running_comms or live.earlier_runs))

    async def interrupt(self) -> None:
        """Stop the running cell, or a widget's callback; harmless when nothing runs."""
        session = self.session
        if self._following and self.live is not None and self.live.earlier_runs:
            self._following = False  # a second interrupt ends the waiting
            await self.live.interrupt()
        elif session is not None and (session.busy or self._task is None):
            if self._task is not None:
                self._throttle.interrupted()
            await session.interrupt()
        elif self._task is not None:  # a command, which the session knows nothing of
            self._task.cancel()

    def before_shutdown(self, *, restart: bool) -> None:
        """Do what must be done even if the event loop is stuck, because the process ends.

        Called on the control thread, before `shutdown`.

        Parameters
        ----------
        restart
            Whether another process takes its place, which must begin with an empty namespace.
        """
        self._current.before_shutdown(restart=restart)

    async def shutdown(self, *, restart: bool) -> None:
        """Let go of the sandbox, because the kernel's process ends."""
        self._throttle.end_background()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.flush(), LAST_WORDS_SECONDS)
        await self._current.shutdown(restart=restart)


class _CommandOwner:
    """The running cell, as its ``%ivy`` lines see it; see `ivy_kernel.magics.commands`."""

    def __init__(self, runner: CellRunner, cell: Cell) -> None:
        self._runner = runner
        self._cell = cell
        self.live = runner._current.live

    def session(self) -> Session:
        return self._runner._current.wanted()

    def namespace(self) -> dict[str, Any]:
        return self._runner._host.local_namespace()

    @property
    def directory(self) -> Path:
        if not self._runner._directory:
            raise UsageError("The notebook's directory is not there any more. Nothing was moved.")
        return Path(self._runner._directory)

    async def confirm(self, question: str) -> bool:
        if not self._cell.allow_stdin:
            raise UsageError(f"{question} Nobody can be asked here: add --yes.")
        answer = await self._runner._host.ask_user(f"{question} [y/N] ", is_secret=False)
        return answer.strip().lower() in ("y", "yes")

    async def follow(self, status: SandboxStatus, sink: Sink) -> None:
        await self._runner.follow(status, sink)

    @property
    def number(self) -> int:
        return self._cell.execution_count - (0 if self._cell.store_history else 1)

    def expect(self, cells: Sequence[KeptCell]) -> None:
        self._runner._current.expect(cells)
