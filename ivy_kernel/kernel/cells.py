"""Runs the cells of one kernel: takes each apart, and sends its parts to where they belong.

Imported with the first cell, or shortly after the kernel has said that it is ready: what is
imported here takes longer than all the rest of the start.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_data_dir
from traitlets.config import Config

from ivy_kernel.connect import LiveSettings, identity, open_session
from ivy_kernel.errors import IvyError, UsageError
from ivy_kernel.ivy_command import IvyCommand
from ivy_kernel.kernel.local_cells import take_apart
from ivy_kernel.kernel.restart_mark import RestartMark
from ivy_kernel.models import Cell, Json, Message, Outcome, Sink
from ivy_kernel.pacing import JUPYTER_SERVER_RATE, Pacer
from ivy_kernel.routes.endings import show_error, show_ivy_error, succeeded
from ivy_kernel.session import Session

QUESTION_SECONDS = 1.0
"""How long completion and inspection may take."""

AskUser = Callable[[str], Awaitable[str]]
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
        self._live = LiveSettings(flags=flags)
        self._mark = RestartMark(connection_file)
        self._run_here = run_here
        self._session: Session | None = None
        self._identity: tuple[object, ...] = ()
        self._task: asyncio.Task[Any] | None = None
        self._closing: asyncio.Future[None] | None = None
        self._pacer = Pacer(
            publish,
            rate=JUPYTER_SERVER_RATE if "JPY_SESSION_NAME" in os.environ else None,
            limit_bytes=0,
            spill_directory=Path(jupyter_data_dir()) / "ivy" / "outputs",
        )

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
        sink: Sink = _drop if cell.silent else self._pacer
        self._task = asyncio.current_task()
        try:
            outcome = await self._run(cell, sink, ask_user)
            await self._pacer.finish()
        finally:
            self._task = None
            self._pacer.idle()
        return outcome

    async def _run(self, cell: Cell, sink: Sink, ask_user: AskUser) -> Outcome:
        try:
            parts = take_apart(cell.code)
            if parts.local_code is not None:
                return self._run_here(parts.local_code, cell)
            for line in parts.commands:
                await self._command(cell, ask_user).run(line, sink)
            if parts.commands and not parts.sandbox_code:
                return succeeded()
            code = parts.sandbox_code if parts.commands else cell.code
            return await self._run_in_sandbox(dataclasses.replace(cell, code=code), sink)
        except IvyError as exc:
            return show_ivy_error(sink, exc)
        except asyncio.CancelledError:  # by `interrupt`, during a command or a question
            return show_error(sink, "KeyboardInterrupt", "Interrupted.", "interrupted")

    async def _run_in_sandbox(self, cell: Cell, sink: Sink) -> Outcome:
        self._pacer.limit_bytes(self._live.current().output_limit_bytes)
        session = self.session()
        outcome = await session.execute(cell, sink)
        if not session.fresh_wanted:
            self._mark.remove()
        return outcome

    def session(self) -> Session:
        """The session that the settings of the moment mean.

        Raises
        ------
        SettingError
            When they mean none: says why.
        """
        wanted = identity(self._live.current())
        if self._session is None or wanted != self._identity:
            if self._session is not None:
                self._closing = asyncio.ensure_future(self._session.aclose())
            self._session = open_session(self._live, fresh=self._mark.is_there())
            self._identity = wanted
        return self._session

    def _command(self, cell: Cell, ask_user: AskUser) -> IvyCommand:
        async def confirm(question: str) -> bool:
            if not cell.allow_stdin:
                raise UsageError(f"{question} Nobody can be asked here: add --yes.")
            answer = await ask_user(f"{question} [y/N] ")
            return answer.strip().lower() in ("y", "yes")

        return IvyCommand(self._live, self.session, confirm)

    async def ask_sandbox(self, msg_type: str, content: Json) -> Json | None:
        """A question about code; ``None`` when the sandbox is not there, busy, or too slow."""
        if self._session is None or self.busy:
            return None
        try:
            return await asyncio.wait_for(self._session.ask(msg_type, content), QUESTION_SECONDS)
        except (asyncio.TimeoutError, IvyError):
            return None

    async def interrupt(self) -> None:
        """Stop the running cell; harmless when none runs."""
        if self._session is not None and self._session.busy:
            await self._session.interrupt()
        elif self._task is not None:
            self._task.cancel()

    async def end(self, *, restart: bool) -> None:
        """Let go of the sandbox, because the kernel's process ends.

        Parameters
        ----------
        restart
            Whether another process takes its place, which must begin with an empty namespace.
        """
        if not restart:
            self._mark.remove()
        if self._session is None:
            return
        if restart:
            self._mark.leave()
        if self._session.busy:
            await self._session.interrupt()
        await self._session.aclose()


def _drop(message: Message) -> None:
    """Takes the messages of a silent cell."""
