"""Runs the cells of one kernel: takes each apart, and sends its parts to where they belong.

Imported with the first cell, or shortly after the kernel has said that it is ready: what is
imported here takes longer than all the rest of the start.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_data_dir
from traitlets.config import Config

from ivy_kernel.errors import IvyError, UsageError
from ivy_kernel.kernel.comms import Comms, LocalComms
from ivy_kernel.kernel.current_session import CurrentSession
from ivy_kernel.kernel.local import take_apart
from ivy_kernel.magics.cell import run_cell
from ivy_kernel.magics.commands import IvyCommand
from ivy_kernel.magics.options import HelpAskedError, parse_cell_options
from ivy_kernel.models import Cell, Json, Message, Outcome, Sink
from ivy_kernel.routes.base import LiveKernel
from ivy_kernel.routes.events import AgentLost, Event, KernelDied, KernelReady
from ivy_kernel.routes.outcomes import show_command_error, show_error, succeeded
from ivy_kernel.session.describe import event_sentence
from ivy_kernel.session.output import JUPYTER_SERVER_RATE, Pacer
from ivy_kernel.session.start_progress import blanked, is_progress
from ivy_kernel.status import SandboxStatus

Answer = Callable[[Message], Coroutine[Any, Any, None]]
"""Lets the user answer an ``input_request``."""


class CellSink:
    """All that is shown while a cell runs and belongs to it comes by here.

    Parameters
    ----------
    show
        Takes what is shown.
    answer
        Takes what is asked.
    """

    def __init__(self, show: Sink, answer: Answer) -> None:
        self._show = show
        self._answer = answer
        self._shown_of_the_cell = False
        self._questions: set[asyncio.Task[None]] = set()

    def __call__(self, message: Message) -> None:
        """Take one message."""
        if not is_progress(message):
            self._shown_of_the_cell = True
        elif message.msg_type == "clear_output" and self._shown_of_the_cell:
            message = blanked(message)  # what the cell has shown beside it stays
        if message.channel == "stdin":
            question = asyncio.ensure_future(self._answer(message))
            self._questions.add(question)
            question.add_done_callback(self._questions.discard)
        else:
            self._show(message)

    def end(self) -> None:
        """The cell is over, so nobody waits for answers."""
        for question in self._questions:
            question.cancel()


ANNOUNCEMENT = (
    "[A cell that was started before this kernel process is still running in the sandbox; what it "
    "shows follows. Interrupt to stop it; interrupt twice to stop waiting for it.]\n"
)


class EarlierCells:
    """Sends messages that belong to no cell of ours to the cell that shows them.

    Parameters
    ----------
    otherwise
        Takes those messages while there is no such cell.
    """

    def __init__(self, otherwise: Sink) -> None:
        self._otherwise = otherwise
        self._sink: Sink | None = None
        self._question: Message | None = None

    @contextmanager
    def shown_in(self, sink: Sink) -> Iterator[None]:
        """Show them in one cell for the time of the ``with`` block."""
        self._sink = sink
        try:
            question, self._question = self._question, None
            if question is not None:
                sink(question)
            yield
        finally:
            self._sink = None

    def take(self, message: Message) -> None:
        """Called with each message whose parent is no request of ours that is under way."""
        if message.channel == "stdin":
            self._take_question(message)
        elif message.channel != "iopub":
            return  # a reply that nobody waits for any more
        elif self._sink is None or message.msg_type.startswith("comm_"):
            self._otherwise(message)
        elif message.msg_type == "error":  # this cell has not failed, so it is no error of its own
            text = "\n".join(message.content.get("traceback", ()))
            self._sink(Message("stream", {"name": "stderr", "text": f"{text}\n"}))
        elif message.msg_type not in ("status", "execute_input"):
            self._sink(dataclasses.replace(message, parent_header=None))

    def _take_question(self, message: Message) -> None:
        if self._sink is None:
            self._question = message
        else:
            self._sink(message)


COMM_APART_SECONDS = 0.03
"""nbclient loses the reply's wake-up when it is busy answering a comm message at that moment."""

AskUser = Callable[[str, bool], Awaitable[str]]
"""Asks the user; the flag says whether the answer is secret."""
RunHere = Callable[[str, Cell], Outcome]


class CellRunner:
    """Runs cells, one at a time.

    Parameters
    ----------
    flags
        The settings from the kernel's command line.
    connection_file
        The kernel's connection file.
    publish
        Hands one message to the front end.
    run_here
        Runs the code of a ``%%local`` cell.
    """

    def __init__(
        self, *, flags: Config | None, connection_file: str, publish: Sink, run_here: RunHere
    ) -> None:
        self._run_here = run_here
        self._task: asyncio.Task[Any] | None = None
        self._sink: CellSink | None = None
        self._comm_published = 0.0
        self._publish = publish
        local = LocalComms(self._show_at_once)
        self._earlier = EarlierCells(self._show)
        self._current = CurrentSession(
            flags=flags,
            connection_file=connection_file,
            on_background=self._earlier.take,
            on_event=self._on_event,
        )
        self._following = False
        self.features: list[str] = []
        self._pacer = Pacer(
            publish,
            rate=JUPYTER_SERVER_RATE if "JPY_SESSION_NAME" in os.environ else None,
            limit_bytes=0,
            spill_directory=Path(jupyter_data_dir()) / "ivy" / "outputs",
        )
        self.comms = Comms(local, self._current, is_busy=lambda: self.busy, flush=self._pacer.flush)

    @property
    def busy(self) -> bool:
        """Whether a cell is under way."""
        return self._task is not None

    async def execute(self, cell: Cell, ask_user: AskUser) -> Outcome:
        """Run one cell to its one end; what it shows has been sent when this returns.

        Parameters
        ----------
        cell
            The cell.
        ask_user
            Asks the user a question while the cell runs.
        """
        self._task = asyncio.current_task()
        show = self._note_comm if cell.silent else self._show
        sink = self._sink = CellSink(show, lambda request: self._answer(request, ask_user))
        try:
            outcome = await self._run(cell, sink, ask_user)
            self._current.cell_ended()
            await self._finish_showing()
        finally:
            self._task = self._sink = None
            self._pacer.idle()
            sink.end()
        return outcome

    async def _finish_showing(self) -> None:
        """Return when all is shown. An interrupt now only drops what is not: the cell has ended."""
        with suppress(asyncio.CancelledError):
            await self._pacer.finish()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(self._comm_published + COMM_APART_SECONDS - time.monotonic())

    def _show(self, message: Message) -> None:
        """Show a message, of the running cell or of none; widgets' messages count as shown now."""
        if message.msg_type.startswith("comm_"):
            self._comm_published = time.monotonic()
            self._note_comm(message)
        self._pacer(message)

    def _note_comm(self, message: Message) -> None:
        self._current.comms.told(message)

    def _show_at_once(self, message: Message) -> None:
        """Show a message of a widget of this process, before what local code shows after it."""
        self._comm_published = time.monotonic()
        self._publish(message)

    async def _answer(self, request: Message, ask_user: AskUser) -> None:
        """Let the user answer an ``input_request`` of the sandbox."""
        content = request.content
        prompt, secret = str(content.get("prompt", "")), bool(content.get("password"))
        try:
            value = await ask_user(prompt, secret)
            if self.live is not None:
                await self.live.answer_input(value, request)
        except Exception as exc:  # or the cell would wait at its input() for ever
            self._note(f"The answer did not reach the sandbox ({type(exc).__name__}).")
            if self._current.session is not None:
                await self._current.session.interrupt()

    def _on_event(self, event: Event) -> None:
        """What the agent route tells beside messages."""
        if isinstance(event, KernelReady):
            self.features = [name for name in event.features if name == "debugger"]
        elif isinstance(event, AgentLost | KernelDied) and self._current.session is not None:
            self._current.session.lifecycle.refresh_soon()
        sentence = event_sentence(event)
        if sentence:
            self._note(sentence)

    def _note(self, sentence: str) -> None:
        if self._sink is not None:  # told as the running cell's own, or its progress would clear it
            self._sink(Message("stream", {"name": "stderr", "text": f"[{sentence}]\n"}))

    async def _run(self, cell: Cell, sink: Sink, ask_user: AskUser) -> Outcome:
        try:
            parts = take_apart(cell.code)
            if parts.local_code is not None:
                return self._run_here(parts.local_code, cell)
            if parts.options is not None:
                cell = dataclasses.replace(cell, code=parts.sandbox_code)
                return await self._run_with_options(parts.options, cell, sink)
            for line in parts.commands:
                await self._command(cell, ask_user).run(line, sink)
            if parts.commands and not parts.sandbox_code:
                return succeeded()
            code = parts.sandbox_code if parts.commands else cell.code
            return await self._run_in_sandbox(dataclasses.replace(cell, code=code), sink)
        except IvyError as exc:
            return show_command_error(sink, exc)
        except asyncio.CancelledError:  # by `interrupt`, during a command or a question
            return show_error(sink, "KeyboardInterrupt", "Interrupted.", "interrupted")

    async def _run_with_options(self, line: str, cell: Cell, sink: Sink) -> Outcome:
        """A cell with ``%%ivy``, which notebooks of other Python kernels may have brought."""
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
        if options.out:
            raise UsageError(
                "%%ivy --out is for other Python kernels; in this one the variables are in the "
                "sandbox already. Nothing was run."
            )
        settings = self._current.live.current()
        self._pacer.limit_bytes(settings.output_limit_bytes)
        seconds = settings.cell_timeout_seconds
        return await run_cell(self._current.wanted(), options, cell, sink, tool_seconds=seconds)

    async def _run_in_sandbox(self, cell: Cell, sink: Sink) -> Outcome:
        self._pacer.limit_bytes(self._current.live.current().output_limit_bytes)
        return await self._current.wanted().execute(cell, sink)

    def _command(self, cell: Cell, ask_user: AskUser) -> IvyCommand:
        async def confirm(question: str) -> bool:
            if not cell.allow_stdin:
                raise UsageError(f"{question} Nobody can be asked here: add --yes.")
            answer = await ask_user(f"{question} [y/N] ", False)
            return answer.strip().lower() in ("y", "yes")

        return IvyCommand(self._current.live, self._current.wanted, confirm, self._follow)

    async def _follow(self, status: SandboxStatus, sink: Sink) -> None:
        """Show what an earlier process of this kernel has left running, until that has ended."""
        session = self._current.wanted()
        self._following = True
        try:
            with self._earlier.shown_in(sink):
                await session.open_live(status)
                if session.live is not None:
                    if session.live.earlier_runs:
                        sink(Message("stream", {"name": "stderr", "text": ANNOUNCEMENT}))
                    await session.live.follow()
        finally:
            self._following = False

    async def ask_sandbox(self, msg_type: str, content: Json, *, seconds: float) -> Json | None:
        """A question about code; ``None`` when the sandbox is not there, busy, or too slow."""
        if self._current.session is None or self.busy:
            return None
        try:
            return await asyncio.wait_for(self._current.session.ask(msg_type, content), seconds)
        except (asyncio.TimeoutError, IvyError):
            return None

    @property
    def live(self) -> LiveKernel | None:
        """The kernel behind the open route, where it has one."""
        return self._current.session.live if self._current.session is not None else None

    @property
    def interruptible(self) -> bool:
        """Whether anything is under way that an interrupt could be meant for."""
        agent = self.live
        return self.busy or (agent is not None and (agent.running_comms or agent.earlier_runs))

    async def interrupt(self) -> None:
        """Stop the running cell, or a widget's callback; harmless when nothing runs."""
        session = self._current.session
        if self._following and self.live is not None and self.live.earlier_runs:
            self._following = False  # a second interrupt ends the waiting
            await self.live.interrupt()
        elif session is not None and (session.busy or self._task is None):
            await session.interrupt()
        elif self._task is not None:
            self._task.cancel()

    def begin_end(self, *, restart: bool) -> None:
        """Do what must be done even if the event loop is stuck, because the process ends.

        Called on the control thread, before `end`.

        Parameters
        ----------
        restart
            Whether another process takes its place, which must begin with an empty namespace.
        """
        self._current.begin_end(restart=restart)

    async def end(self, *, restart: bool) -> None:
        """Let go of the sandbox, because the kernel's process ends."""
        await self._current.end(restart=restart)
