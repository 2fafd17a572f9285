"""The wrapper kernel: receives Jupyter's requests and lets the session run the cells."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from ipykernel._version import kernel_protocol_version
from ipykernel.kernelbase import Kernel
from IPython.core.inputtransformer2 import TransformerManager
from jupyter_core.paths import jupyter_data_dir

from ivy_kernel._version import __version__
from ivy_kernel.connect import LiveSettings, identity, open_session
from ivy_kernel.errors import IvyError, UsageError
from ivy_kernel.ivy_command import IvyCommand
from ivy_kernel.kernel.history import History
from ivy_kernel.kernel.local_cells import take_apart
from ivy_kernel.kernel.local_shell import LocalShell
from ivy_kernel.kernel.questions import ask
from ivy_kernel.kernel.restart_mark import RestartMark
from ivy_kernel.models import Cell, Json, Message, Outcome, Sink
from ivy_kernel.pacing import JUPYTER_SERVER_RATE, Pacer
from ivy_kernel.routes.endings import show_error, show_ivy_error, succeeded
from ivy_kernel.session import Session

INTERRUPT_LATE_SECONDS = 0.1
"""An interrupt may overtake the cell that it is meant for by so much."""
CONTROL_WAIT_SECONDS = 5.0
SHUTDOWN_WAIT_SECONDS = 1.5
COMPLETION_SECONDS = 1.0

ANSWERED_BESIDE_A_CELL = frozenset(
    {
        "comm_info_request",
        "complete_request",
        "history_request",
        "inspect_request",
        "is_complete_request",
        "kernel_info_request",
    }
)


class IvyKernel(Kernel):
    """Runs each cell in the sandbox that the settings mean.

    It starts with nothing configured and talks to nobody before the first cell; what is wrong with
    the settings is told in that cell.
    """

    implementation = "ivy-sandbox"
    implementation_version = __version__
    banner = f"Ivy Sandbox {__version__}: cells run in the sandbox of an Ivy Biosciences chat."
    language_info: Json = {  # noqa: RUF012 - a traitlets-free class attribute of the base class
        "name": "python",
        "version": "3",
        "mimetype": "text/x-python",
        "file_extension": ".py",
        "codemirror_mode": {"name": "ipython", "version": 3},
        "pygments_lexer": "ipython3",
        "nbconvert_exporter": "python",
    }

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._live = LiveSettings(flags=getattr(self.parent, "cli_config", None))
        self._session: Session | None = None
        self._identity: tuple[object, ...] = ()
        self._history = History()
        self._transformer = TransformerManager()
        self._local_shell: LocalShell | None = None
        self._local_running = False
        self._cell_task: asyncio.Task[Any] | None = None
        self._closing: asyncio.Future[None] | None = None
        self._cell_parent: Json | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._mark = RestartMark(getattr(self.parent, "connection_file", ""))
        self._pacer = Pacer(
            self._publish,
            rate=JUPYTER_SERVER_RATE if "JPY_SESSION_NAME" in os.environ else None,
            limit_bytes=0,
            spill_directory=Path(jupyter_data_dir()) / "ivy" / "outputs",
        )

    # Start and messages ------------------------------------------------------------------------

    def start(self) -> None:
        """Called by the application once the sockets are open."""
        super().start()
        self.io_loop.add_callback(self._started)

    async def _started(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(
            signal.SIGINT, lambda: asyncio.ensure_future(self._interrupt())
        )

    def pre_handler_hook(self) -> None:
        """The base class would let SIGINT kill an asynchronous kernel; `_started` handles it."""

    def post_handler_hook(self) -> None:
        """See `pre_handler_hook`."""

    @property
    def kernel_info(self) -> Json:
        """Static, before any network (message spec, "Kernel info").

        The base class would advertise the debugger and subshells of this local process.
        """
        return {
            "protocol_version": kernel_protocol_version,
            "implementation": self.implementation,
            "implementation_version": self.implementation_version,
            "language_info": self.language_info,
            "banner": self.banner,
            "help_links": self.help_links,
            "supported_features": [],
        }

    async def shell_main(self, subshell_id: str | None, msg: Any) -> None:
        """Called by ipykernel for each message on the shell channel.

        While a cell runs, what needs no sandbox is answered beside it.
        """
        if self._cell_task is not None and self._message_type(msg) in ANSWERED_BESIDE_A_CELL:
            parent, ident = self.get_parent("shell"), self._parent_ident_of_shell()
            try:  # a task has a context of its own, so the cell keeps its parent
                await asyncio.create_task(self.dispatch_shell(msg, subshell_id=subshell_id))
            finally:
                self.set_parent(ident, parent, channel="shell")
                if self._cell_parent is not None:  # front ends show the last state they heard
                    self._publish_status("busy", "shell", parent=self._cell_parent)
            return
        await super().shell_main(subshell_id, msg)

    @property
    def _wire(self) -> Any:
        """jupyter_client's session, which signs and sends messages."""
        return self.session

    def _message_type(self, msg: Any) -> str:
        try:
            _, frames = self._wire.feed_identities(msg, copy=False)
            header = self._wire.deserialize(frames, content=False, copy=False)["header"]
        except Exception:  # the base class reports what is wrong with it
            return ""
        return str(header.get("msg_type", ""))

    def _publish(self, message: Message) -> None:
        parent = self._cell_parent
        if message.parent_header is not None:
            parent = {"header": message.parent_header}
        self._wire.send(
            self.iopub_socket,
            message.msg_type,
            message.content,
            parent=parent,
            ident=self._topic(message.msg_type),
            metadata=message.metadata,
            buffers=list(message.buffers) or None,
        )

    # Cells -------------------------------------------------------------------------------------

    async def do_execute(
        self,
        code: str,
        silent: bool,
        store_history: bool = True,
        user_expressions: dict[str, str] | None = None,
        allow_stdin: bool = False,
        *,
        cell_meta: Json | None = None,
        cell_id: str | None = None,
    ) -> Json:
        """Run one cell to its one end (message spec, "Execute"). Never raises."""
        parent = self.get_parent("shell")
        count = self.execution_count
        cell = Cell(
            code=code,
            execution_count=count,
            silent=silent,
            store_history=store_history and not silent,
            user_expressions=dict(user_expressions or {}),
            allow_stdin=allow_stdin,
            header=parent["header"],
        )
        if cell.store_history:
            self._history.add(count, code)
        elif not silent:
            self.execution_count -= 1  # hidden cells of front ends do not count
        self._cell_parent = parent
        self._cell_task = asyncio.current_task()
        sink: Sink = _drop if silent else self._pacer
        try:
            outcome = await self._run(cell, sink, self._parent_ident_of_shell())
            await self._pacer.finish()
        except BaseException as exc:  # whatever happens, the front end gets its one reply
            self.log.exception("A cell ended in a fault of the kernel")
            outcome = show_error(
                sink,
                type(exc).__name__,
                f"A fault of the Ivy Sandbox kernel ended this cell; what it did in the sandbox is "
                f"unknown, and it was not sent again. {exc}",
                "unknown",
            )
            with suppress(Exception):
                await self._pacer.finish()
        finally:
            self._cell_task = self._cell_parent = None
            self._pacer.idle()
        return {**outcome.reply, "execution_count": count}

    def _parent_ident_of_shell(self) -> Any:
        return self._get_shell_context_var(self._shell_parent_ident)

    async def _run(self, cell: Cell, sink: Sink, ident: Any) -> Outcome:
        try:
            parts = take_apart(cell.code)
            if parts.local_code is not None:
                return self._run_here(parts.local_code, cell)
            for line in parts.commands:
                await self._command(cell, ident).run(line, sink)
            if parts.commands and not parts.sandbox_code:
                return succeeded()
            self._pacer.limit_bytes(self._live.current().output_limit_bytes)
            session = self._session_for_cell()
            code = parts.sandbox_code if parts.commands else cell.code
            outcome = await session.execute(dataclasses.replace(cell, code=code), sink)
            if not session.fresh_wanted:
                self._mark.remove()
            return outcome
        except IvyError as exc:
            return show_ivy_error(sink, exc)
        except asyncio.CancelledError:
            return show_error(sink, "KeyboardInterrupt", "Interrupted.", "interrupted")

    def _session_for_cell(self) -> Session:
        """The session that the settings of the moment mean."""
        settings = self._live.current()
        now = identity(settings)
        if self._session is None or now != self._identity:
            if self._session is not None:
                self._closing = asyncio.ensure_future(self._session.aclose())
            self._session = open_session(self._live, fresh=self._mark.is_there())
            self._identity = now
        return self._session

    def _command(self, cell: Cell, ident: Any) -> IvyCommand:
        parent = self._cell_parent or {}

        async def confirm(question: str) -> bool:
            if not cell.allow_stdin:
                raise UsageError(f"{question} Nobody can be asked here: add --yes.")
            answer = await ask(
                self.session, self.stdin_socket, f"{question} [y/N] ", parent=parent, ident=ident
            )
            return answer.strip().lower() in ("y", "yes")

        return IvyCommand(self._live, self._session_for_cell, confirm)

    def _run_here(self, code: str, cell: Cell) -> Outcome:
        if self._local_shell is None:
            self._local_shell = LocalShell(self)
        self._local_running = True
        try:
            reply = self._local_shell.run(
                code,
                self._cell_parent or {},
                count=cell.execution_count,
                silent=cell.silent,
            )
        finally:
            self._local_running = False
        return Outcome("succeeded" if reply["status"] == "ok" else "failed", reply)

    # Questions about code ----------------------------------------------------------------------

    async def do_is_complete(self, code: str) -> Json:
        """Answered here (message spec, "Code completeness")."""
        status, indent = self._transformer.check_complete(code)
        reply: Json = {"status": status}
        if status == "incomplete":
            reply["indent"] = " " * (indent or 0)
        return reply

    async def do_complete(self, code: str, cursor_pos: int) -> Json:
        """Asks the sandbox, if it is there and idle, for a second at most; then nothing."""
        nothing = {
            "status": "ok",
            "matches": [],
            "cursor_start": cursor_pos,
            "cursor_end": cursor_pos,
            "metadata": {},
        }
        answer = await self._ask_sandbox(
            "complete_request", {"code": code, "cursor_pos": cursor_pos}
        )
        return answer or nothing

    async def do_inspect(
        self,
        code: str,
        cursor_pos: int,
        detail_level: int = 0,
        omit_sections: tuple[str, ...] = (),
    ) -> Json:
        """Asks the sandbox, if it is there and idle, for a second at most; then nothing."""
        nothing = {"status": "ok", "found": False, "data": {}, "metadata": {}}
        content = {"code": code, "cursor_pos": cursor_pos, "detail_level": detail_level}
        return await self._ask_sandbox("inspect_request", content) or nothing

    async def _ask_sandbox(self, msg_type: str, content: Json) -> Json | None:
        if self._session is None or self._cell_task is not None:
            return None
        with suppress(asyncio.TimeoutError, IvyError):
            return await asyncio.wait_for(self._session.ask(msg_type, content), COMPLETION_SECONDS)
        return None

    async def do_history(
        self,
        hist_access_type: str,
        output: bool,
        raw: bool,
        session: int | None = None,
        start: int | None = None,
        stop: int | None = None,
        n: int | None = None,
        pattern: str | None = None,
        unique: bool = False,
    ) -> Json:
        """The cells that were run in this kernel (message spec, "History")."""
        if hist_access_type == "tail":
            found = self._history.tail(n, output=output)
        elif hist_access_type == "range":
            ours = session in (None, 0, 1)
            found = self._history.range(start or 0, stop, output=output) if ours else []
        elif hist_access_type == "search":
            found = self._history.search(pattern or "*", n, output=output, unique=unique)
        else:
            found = []
        return {"status": "ok", "history": found}

    # Interrupt and shutdown (on the control thread) ---------------------------------------------

    async def interrupt_request(self, stream: Any, ident: Any, parent: Json) -> None:
        """Stop the running cell, and answer when that is under way (message spec, "Interrupt")."""
        content: Json = {"status": "ok"}
        if self._local_running:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        elif self._loop is not None:
            work = asyncio.run_coroutine_threadsafe(self._interrupt(), self._loop)
            try:
                await asyncio.wait_for(asyncio.wrap_future(work), CONTROL_WAIT_SECONDS)
            except Exception as exc:
                content = {
                    "status": "error",
                    "ename": type(exc).__name__,
                    "evalue": f"The cell could not be interrupted: {exc}",
                    "traceback": [],
                }
        self._wire.send(stream, "interrupt_reply", content, parent, ident=ident)

    async def _interrupt(self) -> None:
        deadline = asyncio.get_running_loop().time() + INTERRUPT_LATE_SECONDS
        while self._cell_task is None:
            if asyncio.get_running_loop().time() > deadline:
                return  # nothing runs: harmless
            await asyncio.sleep(0.01)
        if self._session is not None and self._session.busy:
            await self._session.interrupt()
        else:  # a question, or a command of ours
            self._cell_task.cancel()

    async def do_shutdown(self, restart: bool) -> Json:
        """Let go of the sandbox, within the 2.5 s that ipykernel allows."""
        if restart and self._session is not None:
            self._mark.leave()
        elif not restart:
            self._mark.remove()
        if self._loop is not None and self._session is not None:
            work = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
            with suppress(Exception):
                await asyncio.wait_for(asyncio.wrap_future(work), SHUTDOWN_WAIT_SECONDS)
        return {"status": "ok", "restart": restart}

    async def _end(self) -> None:
        if self._session is None:
            return
        if self._session.busy:
            await self._session.interrupt()
        await self._session.aclose()


def _drop(message: Message) -> None:
    """Takes the messages of a silent cell."""
