"""``%ivy`` and ``%%ivy`` in any IPython."""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from IPython.core.magic import Magics, line_cell_magic, magics_class
from jupyter_core.paths import jupyter_data_dir

from ivy_kernel.errors import IvyError, UsageError
from ivy_kernel.magics import SHELL_ATTRIBUTE
from ivy_kernel.magics.cell import run_cell
from ivy_kernel.magics.commands import IvyCommand
from ivy_kernel.magics.options import CellOptions, HelpAskedError, parse_cell_options
from ivy_kernel.magics.output import NativeOutput, RemoteInterrupt, exception_for, shown_briefly
from ivy_kernel.magics.sessions import MagicSessions
from ivy_kernel.magics.waiting import Post, ask, loop_thread, wait_in_cell
from ivy_kernel.models import Cell, Json, Message, Outcome
from ivy_kernel.session.kernel_registry import kernel_id_of
from ivy_kernel.session.output import JUPYTER_SERVER_RATE, Pacer
from ivy_kernel.session.session import Session

CLOSE_SECONDS = 3.0
OVERTAKING_SECONDS = 5.0
"""How long an interrupt waits for its cell to begin."""


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
        application = getattr(self._kernel, "parent", None)
        connection_file = getattr(application, "connection_file", "")
        self.sessions = MagicSessions(
            kernel_id=kernel_id_of(connection_file) if connection_file else "",
            on_background=NativeOutput(shell, is_alone=False).show,
        )
        atexit.register(self.close)

    def close(self) -> None:
        """Let go of the sandbox. Called when the kernel ends, or the extension is unloaded."""
        atexit.unregister(self.close)
        if self.thread.alive:
            closing = self.thread.submit(self.sessions.aclose())
            with suppress(Exception):  # what we cannot end, the sandbox ends by itself
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
        running: list[asyncio.Task[Any]] = []

        async def work(post: Post) -> bool:
            task = asyncio.current_task()
            running.extend([task] if task else [])

            async def confirm(question: str) -> bool:
                try:
                    answer = await ask(f"{question} [y/N] ", post)
                except Exception:
                    raise UsageError(f"{question} Nobody can be asked here: add --yes.") from None
                return answer.strip().lower() in ("y", "yes")

            command = IvyCommand(self.sessions.live, self.sessions.session, confirm)
            try:
                await command.run(line, post)
            except asyncio.CancelledError:
                return False
            return True

        async def stop() -> None:
            for task in running:
                task.cancel()

        done, _ = wait_in_cell(self._ipython, work, stop=stop, thread=self.thread, is_remote=False)
        if not done:
            raise RemoteInterrupt("Interrupted.", ("KeyboardInterrupt: Interrupted.",))

    def _run_cell(self, options: CellOptions, code: str) -> None:
        request = self._request()
        cell = Cell(
            code=code,
            execution_count=self._ipython.execution_count,
            store_history=bool(request.get("store_history", True)),
            allow_stdin=bool(request.get("allow_stdin", True)),
            header={"msg_id": uuid.uuid4().hex, "msg_type": "execute_request"},
        )

        running = _Running()

        async def work(post: Post) -> Outcome:
            return await self._in_sandbox(options, cell, post, running)

        outcome, output = wait_in_cell(
            self._ipython, work, stop=running.stop, thread=self.thread, is_remote=True
        )
        if outcome.reply["status"] == "error":
            raise exception_for(outcome.reply, outcome.fate) from None
        if options.out:
            self._ipython.user_ns[options.out] = output.kept()

    async def _in_sandbox(
        self, options: CellOptions, cell: Cell, post: Post, running: _Running
    ) -> Outcome:
        settings = self.sessions.settings_of(options.chat_id).current()
        session = running.session = self.sessions.session(options.chat_id)
        pacer = Pacer(
            post,
            rate=JUPYTER_SERVER_RATE if "JPY_SESSION_NAME" in os.environ else None,
            limit_bytes=settings.output_limit_bytes,
            spill_directory=Path(jupyter_data_dir()) / "ivy" / "outputs",
        )
        questions: set[asyncio.Task[None]] = set()

        def sink(message: Message) -> None:
            if message.channel != "stdin":
                pacer(message)
                return
            question = asyncio.ensure_future(_answer(session, message, post))
            questions.add(question)
            question.add_done_callback(questions.discard)

        self.sessions.cell_sink = pacer
        try:
            outcome = await run_cell(
                session, options, cell, sink, tool_seconds=settings.cell_timeout_seconds
            )
            await running.finish(pacer)
        finally:
            self.sessions.cell_sink = None
            for question in questions:  # the cell is over, so nobody waits for the answer
                question.cancel()
        return outcome

    def _request(self) -> Json:
        """The content of the ``execute_request`` that runs us; empty outside of Jupyter."""
        parent = self._kernel.get_parent() if self._kernel is not None else {}
        content: Json = (parent or {}).get("content") or {}
        return content


class _Running:
    """What an interrupt has to stop: the cell, or what is left to show of it."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self._finishing: asyncio.Future[None] | None = None

    async def finish(self, pacer: Pacer) -> None:
        """Let all that the cell has shown arrive."""
        self._finishing = asyncio.ensure_future(pacer.finish())
        await asyncio.wait({self._finishing})

    async def stop(self) -> None:
        """Called for the first Ctrl-C, which may overtake the cell that it is meant for."""
        deadline = time.monotonic() + OVERTAKING_SECONDS
        while time.monotonic() < deadline:
            if self._finishing is not None:
                self._finishing.cancel()
                return
            if self.session is not None and self.session.busy:
                await self.session.interrupt()
                return
            await asyncio.sleep(0.01)


async def _answer(session: Session, request: Message, post: Post) -> None:
    """Let the user answer an ``input_request`` of the sandbox."""
    content = request.content
    prompt, is_secret = str(content.get("prompt", "")), bool(content.get("password"))
    with suppress(asyncio.CancelledError, Exception):  # the cell is interrupted, and ends by that
        value = await ask(prompt, post, is_secret=is_secret)
        if session.live is not None:
            await session.live.answer_input(value, request)


def load(shell: Any) -> IvyMagics:
    """Add ``%ivy`` and ``%%ivy`` to a shell; a second time changes nothing."""
    magics: IvyMagics | None = getattr(shell, SHELL_ATTRIBUTE, None)
    if magics is None:
        magics = IvyMagics(shell)
        setattr(shell, SHELL_ATTRIBUTE, magics)
        shell.register_magics(magics)
    return magics


def unload(shell: Any) -> None:
    """Take them away again, and let go of the sandbox."""
    magics = getattr(shell, SHELL_ATTRIBUTE, None)
    if magics is not None:
        setattr(shell, SHELL_ATTRIBUTE, None)
        for kind in ("line", "cell"):
            shell.magics_manager.magics[kind].pop("ivy", None)
        magics.close()
