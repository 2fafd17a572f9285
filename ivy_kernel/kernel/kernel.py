"""The wrapper kernel: receives Jupyter's requests, and lets `cells` run the cells.

Only what is needed to say "ready" is imported at the top; see `cells`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import threading
from collections.abc import Coroutine
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from ipykernel._version import kernel_protocol_version
from ipykernel.kernelbase import Kernel
from IPython.core.inputtransformer2 import TransformerManager

from ivy_kernel._version import __version__
from ivy_kernel.kernel.history import History
from ivy_kernel.kernel.restart_mark import RestartMark
from ivy_kernel.sendable_text import sendable

if TYPE_CHECKING:
    from ivy_kernel.kernel.cells import CellRunner
    from ivy_kernel.kernel.local_shell import LocalShell
    from ivy_kernel.models import Cell, Json, Message, Outcome

Result = TypeVar("Result")

INTERRUPT_LATE_SECONDS = 0.1
"""An interrupt may overtake the cell that it is meant for by so much."""
INTERRUPT_WAIT_SECONDS = 1.0
USAGE_SECONDS = 1.0
DEBUG_SECONDS = 30.0
QUESTION_SECONDS = 1.0
COMM_INFO_SECONDS = 5.0
SHUTDOWN_WAIT_SECONDS = 1.5
WARM_UP_DELAY_SECONDS = 0.05

ANSWERED_BESIDE_A_CELL = frozenset(
    {
        "comm_close",
        "comm_info_request",
        "comm_msg",
        "comm_open",
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
    language_info: Json = {  # noqa: RUF012 - declared so by the base class
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
        for msg_type in ("comm_open", "comm_msg", "comm_close"):
            self.shell_handlers[msg_type] = self._comm_message
        self._runner: CellRunner | None = None
        self._history = History()
        self._transformer = TransformerManager()
        self._local_shell: LocalShell | None = None
        self._local_running = False
        self._cell_parent: Json | None = None
        self._turn = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._answering: set[asyncio.Future[None]] = set()
        self._warm = False
        self._counted_there = False

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
            "supported_features": self._runner.features if self._runner else [],
        }

    async def kernel_info_request(self, stream: Any, ident: Any, parent: Json) -> None:
        """Called by ipykernel; afterwards there is time to import the rest."""
        await super().kernel_info_request(stream, ident, parent)
        if not self._warm:
            self._warm = True
            asyncio.get_running_loop().call_later(
                WARM_UP_DELAY_SECONDS, threading.Thread(target=_import_cells, daemon=True).start
            )

    async def shell_main(self, subshell_id: str | None, msg: Any) -> None:
        """Called by ipykernel for each message on the shell channel.

        While a cell runs, what needs no sandbox is answered beside it.
        """
        if self._cell_parent is None or not self._is_answered_beside_a_cell(msg):
            await super().shell_main(subshell_id, msg)
            return
        parent, ident = self.get_parent("shell"), self._shell_ident()
        try:  # a task has a context of its own, so the cell keeps its parent
            await asyncio.create_task(self.dispatch_shell(msg, subshell_id=subshell_id))
        finally:
            self.set_parent(ident, parent, channel="shell")
            if self._cell_parent is not None:  # front ends show the last state they heard
                self._publish_status("busy", "shell", parent=self._cell_parent)

    def _is_answered_beside_a_cell(self, msg: Any) -> bool:
        msg_type = self._message_type(msg)
        if msg_type == "comm_info_request" and self._runner is not None and self._runner.agent:
            return False  # the sandbox must be asked, or a reloaded page would lose its widgets
        return msg_type in ANSWERED_BESIDE_A_CELL

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

    def _shell_ident(self) -> Any:
        return self._get_shell_context_var(self._shell_parent_ident)

    def _parent_ident_here(self) -> Any:
        """Who sent the request of `get_parent`, on the channel that this thread serves."""
        if threading.current_thread() is self.control_thread:
            return self._control_parent_ident
        return self._shell_ident()

    def _publish(self, message: Message) -> None:
        parent = self._cell_parent
        if message.parent_header is not None:
            parent = {"header": message.parent_header}
        options = {
            "parent": parent,
            "ident": self._topic(message.msg_type),
            "metadata": message.metadata,
            "buffers": list(message.buffers) or None,
        }
        try:
            self._wire.send(self.iopub_socket, message.msg_type, message.content, **options)
        except Exception:  # jupyter_client raises several kinds for text that is not Unicode
            content = sendable(message.content)
            self._wire.send(self.iopub_socket, message.msg_type, content, **options)

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
        count = self.execution_count
        store_history = store_history and not silent
        if store_history:
            self._history.add(count, code)
        elif not silent:
            self.execution_count -= 1  # hidden cells of front ends do not count
        parent, ident = self.get_parent(), self._parent_ident_here()
        try:
            from ivy_kernel.models import Cell

            cell = Cell(
                code=code,
                execution_count=count,
                silent=silent,
                store_history=store_history,
                user_expressions=dict(user_expressions or {}),
                allow_stdin=allow_stdin,
                header=parent["header"],
            )
            outcome = await self._on_main_loop(self._run_in_turn(cell, parent, ident))
        except BaseException as exc:  # whatever happens, the front end gets its one reply
            self.log.exception("A cell ended in a fault of the kernel")
            outcome = self._faulted(exc, parent, silent=silent)
        reply: Json = sendable(outcome.reply)
        return {**reply, "execution_count": self._numbered(count, outcome, store_history)}

    async def _run_in_turn(self, cell: Cell, parent: Json, ident: Any) -> Outcome:
        """Run a cell after those that came before it, on whichever channel."""
        async with self._turn:
            self._cell_parent = parent
            try:
                return await self._cells().execute(
                    cell, lambda text, secret: self._ask(text, secret, parent, ident)
                )
            finally:
                self._cell_parent = None

    async def _on_main_loop(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Await what belongs to the main loop, also for requests on the control channel.

        Those, and subshells, have threads and loops of their own.
        """
        if self._loop is None or asyncio.get_running_loop() is self._loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _numbered(self, count: int, outcome: Outcome, store_history: bool) -> int:
        """The cell's number: the sandbox's own where it counts, so that ``Out[n]`` is what it says.

        There, cells that ran elsewhere do not count.
        """
        theirs = outcome.reply.get("execution_count")
        if isinstance(theirs, int) and store_history:
            self._counted_there = True
            self.execution_count = theirs
            return theirs
        if self._counted_there and store_history:
            self.execution_count = count - 1
        return count

    def _faulted(self, exc: BaseException, parent: Json, *, silent: bool) -> Outcome:
        from ivy_kernel.routes.endings import show_error

        sentence = (
            f"A fault of the Ivy Sandbox kernel ended this cell. What it did in the sandbox is not "
            f"known, and it was not sent again. {exc}"
        )

        def sink(message: Message) -> None:
            if not silent:
                self._publish(dataclasses.replace(message, parent_header=parent.get("header", {})))

        return show_error(sink, type(exc).__name__, sentence, "unknown")

    def _cells(self) -> CellRunner:
        if self._runner is None:
            from ivy_kernel.kernel.cells import CellRunner

            self._runner = CellRunner(
                flags=getattr(self.parent, "cli_config", None),
                connection_file=getattr(self.parent, "connection_file", ""),
                publish=self._publish,
                run_here=self._run_here,
            )
        return self._runner

    async def _ask(self, text: str, secret: bool, parent: Json, ident: Any) -> str:
        from ivy_kernel.kernel.questions import ask

        return await ask(
            self.session, self.stdin_socket, text, parent=parent, ident=ident, password=secret
        )

    def _run_here(self, code: str, cell: Cell) -> Outcome:
        from ivy_kernel.kernel.local_shell import LocalShell
        from ivy_kernel.models import Outcome

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

    # Widgets and the debugger --------------------------------------------------------------------

    async def _comm_message(self, stream: Any, ident: Any, parent: Json) -> None:
        """``comm_open``, ``comm_msg``, ``comm_close`` (message spec, "Custom messages").

        Returns when the kernel in the sandbox is done with it, because front ends drop a widget's
        callbacks at "idle".
        """
        if self._runner is not None and self._runner.local_comms.take(parent):
            return
        runner = self._runner
        agent = runner.agent if runner is not None else None
        if runner is None or agent is None:
            return
        buffers = tuple(bytes(buffer) for buffer in parent.get("buffers", ()))
        try:
            await agent.send_comm(
                parent["header"], parent["content"], parent.get("metadata", {}), buffers
            )
            await runner.flush()
        except Exception as exc:  # told by the next cell; a widget has no place for it
            self.log.warning("A widget's message did not reach the sandbox: %s", exc)

    async def comm_info_request(self, stream: Any, ident: Any, parent: Json) -> None:
        """The comms that are open in the sandbox and here (message spec, "Comm info")."""
        answer = await self._ask_sandbox("comm_info_request", parent["content"], COMM_INFO_SECONDS)
        content = answer or {"status": "ok", "comms": {}}
        if self._runner is not None:
            target_name = parent["content"].get("target_name")
            local = self._runner.local_comms.info(target_name)
            content = {**content, "comms": {**content.get("comms", {}), **local}}
        self._wire.send(stream, "comm_info_reply", content, parent, ident)

    async def debug_request(self, stream: Any, ident: Any, parent: Json) -> None:
        """On the control thread: the debugger of the kernel in the sandbox."""
        self._beside(self._debug(stream, ident, parent))

    async def _debug(self, stream: Any, ident: Any, parent: Json) -> None:
        has_one = self._runner is not None and "debugger" in self._runner.features
        content = await self._forward_control(parent, DEBUG_SECONDS) if has_one else None
        if not content:
            from ivy_kernel.kernel.no_debugger import answer_without_debugger

            content = answer_without_debugger(parent["content"])
        self._wire.send(stream, "debug_reply", content, parent, ident)

    async def usage_request(self, stream: Any, ident: Any, parent: Json) -> None:
        """On the control thread: memory and processor of the kernel in the sandbox, or of this."""
        self._beside(self._usage(stream, ident, parent))

    async def _usage(self, stream: Any, ident: Any, parent: Json) -> None:
        content = await self._forward_control(parent, USAGE_SECONDS)
        if content is None:
            await super().usage_request(stream, ident, parent)
        else:
            self._wire.send(stream, "usage_reply", content, parent, ident)

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Answer later, without holding up the channel: a shutdown may be the next message."""
        task = asyncio.ensure_future(work)
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _forward_control(self, parent: Json, seconds: float) -> Json | None:
        """The sandbox's answer to a request of the control channel; ``None`` without one."""
        agent = self._runner.agent if self._runner is not None else None
        if agent is None or self._loop is None:
            return None
        work = asyncio.run_coroutine_threadsafe(
            agent.control(parent["header"], parent["content"]), self._loop
        )
        with suppress(Exception):
            return await asyncio.wait_for(asyncio.wrap_future(work), seconds)
        return None

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
        content = {"code": code, "cursor_pos": cursor_pos}
        return await self._ask_sandbox("complete_request", content) or nothing

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

    async def _ask_sandbox(
        self, msg_type: str, content: Json, seconds: float = QUESTION_SECONDS
    ) -> Json | None:
        if self._runner is None:
            return None
        question = self._runner.ask_sandbox(msg_type, content, seconds=seconds)
        return await self._on_main_loop(question)

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
            work = asyncio.wrap_future(
                asyncio.run_coroutine_threadsafe(self._interrupt(), self._loop)
            )
            # Then the channel is given back, for another interrupt or a shutdown; this one goes on.
            done, _ = await asyncio.wait({work}, timeout=INTERRUPT_WAIT_SECONDS)
            error = work.exception() if done else None
            if error is not None:
                content = {
                    "status": "error",
                    "ename": type(error).__name__,
                    "evalue": f"The cell could not be interrupted: {error}",
                    "traceback": [],
                }
        self._wire.send(stream, "interrupt_reply", content, parent, ident=ident)

    async def _interrupt(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + INTERRUPT_LATE_SECONDS
        while self._runner is None or not self._runner.interruptible:
            if loop.time() > deadline:
                return  # nothing runs: harmless
            await asyncio.sleep(0.01)
        await self._runner.interrupt()

    async def do_shutdown(self, restart: bool) -> Json:
        """Let go of the sandbox, within the 2.5 s that ipykernel allows."""
        if self._runner is not None:
            self._runner.begin_end(restart=restart)
        elif not restart:
            RestartMark(getattr(self.parent, "connection_file", "")).remove()
        if self._loop is not None and self._runner is not None:
            work = asyncio.run_coroutine_threadsafe(self._runner.end(restart=restart), self._loop)
            with suppress(Exception):
                await asyncio.wait_for(asyncio.wrap_future(work), SHUTDOWN_WAIT_SECONDS)
        return {"status": "ok", "restart": restart}


def _import_cells() -> None:
    with suppress(Exception):  # told by the first cell, which imports it again
        import_module("ivy_kernel.kernel.cells")
