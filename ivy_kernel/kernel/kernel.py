"""The wrapper kernel: receives Jupyter's requests, and has `cells` run the cells.

Only what a ``kernel_info_reply`` needs is imported at the top; see `cells`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import threading
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ipykernel._version import kernel_protocol_version
from ipykernel.kernelapp import IPKernelApp
from traitlets import Instance

from ivy_kernel._version import __version__
from ivy_kernel.errors import local_fault
from ivy_kernel.kernel.base import (
    SHELL_NUMBER,
    SOCKET_BYTES,
    SOCKET_MESSAGES,
    ZMQ_SOCKET_MESSAGES,
    BaseKernel,
    PatientSender,
)
from ivy_kernel.kernel.ports import HeldPorts
from ivy_kernel.kernel.requests import (
    CodeHelp,
    ControlRequests,
    History,
    ReceivedInterrupt,
    request_input,
)
from ivy_kernel.kernel.restart import (
    go_on_after,
    has_agents,
    is_kept_for_next_server,
    mark_unused,
)
from ivy_kernel.models import sendable
from ivy_kernel.settings.settings import take_keys

if TYPE_CHECKING:
    from ivy_kernel.kernel.cells import CellRunner
    from ivy_kernel.kernel.local import LocalShell
    from ivy_kernel.models import Cell, Fate, Json, Message, Outcome

INTERRUPT_WAIT_SECONDS = 1.0
"""The control channel is held up for no longer by an interrupt that takes its time."""
CODE_HELP_SECONDS = 20.0
"""Time limit for the sandbox to complete or inspect code; see `CodeHelp` for that of a reply."""
SHUTDOWN_WAIT_SECONDS = 1.5
"""Of the 2.5 s that ipykernel allows, the rest is for its own end."""
WARM_UP_DELAY_SECONDS = 0.05
"""Lets the first requests of a front end be answered before the imports slow them down."""


class IvyKernel(BaseKernel):
    """Runs each cell in the sandbox that the settings mean.

    It starts without any configuration, and uses no network before the first cell; errors in the
    settings are reported in that cell.

    Attributes
    ----------
    runner
        The runner of cells; ``None`` before the first one.
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
        control = ControlRequests(self)
        self.control_handlers["debug_request"] = control.debug_request
        self.control_handlers["usage_request"] = control.usage_request
        self._code_help = CodeHelp(self._ask_sandbox)
        self.runner: CellRunner | None = None
        self._history = History()
        self._local_shell: LocalShell | None = None
        self._local_running = False
        self._cell_lock = asyncio.Lock()
        self._cell_ident: Any = None
        self._cell_number: int | None = None
        self._early_interrupt: ReceivedInterrupt | None = None
        self._warming_up = False
        self._sandbox_counts = False
        self._reply_metadata: dict[str, Json] = {}  # of cells that have ended, by request

    # Kernel info -------------------------------------------------------------------------------
    @property
    def kernel_info(self) -> Json:
        """Static, without any network (message spec, "Kernel info").

        The base class would advertise the debugger and subshells of this local process.
        """
        return {
            "protocol_version": kernel_protocol_version,
            "implementation": self.implementation,
            "implementation_version": self.implementation_version,
            "language_info": self.language_info,
            "banner": self.banner,
            "help_links": self.help_links,
            "supported_features": self.runner.features if self.runner else [],
        }

    async def kernel_info_request(self, stream: Any, ident: Any, parent: Json) -> None:
        """Called by ipykernel; the kernel is idle afterwards, so the rest is imported then."""
        await super().kernel_info_request(stream, ident, parent)
        if not self._warming_up:
            self._warming_up = True
            asyncio.get_running_loop().call_later(
                WARM_UP_DELAY_SECONDS, threading.Thread(target=self._warm_up, daemon=True).start
            )

    def _warm_up(self) -> None:
        """Import what cells need, and have the session look for what was missed, if anything."""
        with suppress(Exception):  # the first cell does it again, and reports the error
            import_module("ivy_kernel.kernel.cells")
            is_expected = has_agents(getattr(self.parent, "connection_file", ""))
            if self.shown.path and is_expected and self.main_loop is not None:
                self.main_loop.call_soon_threadsafe(self._open_runner)

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
        parent, ident = self.get_parent(), self.parent_ident_here()
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
                cell_id=str((parent.get("metadata") or {}).get("cellId") or ""),
            )
            if store_history:
                self.shown.begin(code, cell.cell_id, parent, count)
            number = SHELL_NUMBER.get()
            outcome = await self.on_main_loop(self._run_alone(cell, parent, ident, number))
        except BaseException as exc:  # whatever happens, the front end gets its one reply
            self.log.exception("A cell ended in a fault of the kernel")
            outcome = self._faulted(exc, parent, silent=silent)
        # Front ends send hidden cells by themselves; the user's cells behind them stand alone.
        self.aborts_queue = store_history or silent or not outcome.was_refused
        self._reply_metadata[str(parent["header"].get("msg_id"))] = outcome.metadata
        reply: Json = sendable(outcome.reply)
        count = self._reply_count(count, outcome, store_history)
        self.shown.end(parent, outcome, count)
        return {**reply, "execution_count": count}

    def finish_metadata(self, parent: Json, metadata: Json, reply_content: Json) -> Json:
        """Called by ipykernel for the metadata of a cell's reply; adds what the sandbox says."""
        told = self._reply_metadata.pop(str(parent["header"].get("msg_id")), {})
        return {**super().finish_metadata(parent, metadata, reply_content), **told}

    async def _run_alone(self, cell: Cell, parent: Json, ident: Any, number: int | None) -> Outcome:
        """Run a cell after those that came before it, on whichever channel."""
        async with self._cell_lock:
            self.cell_parent, self._cell_ident, self._cell_number = parent, ident, number
            interrupt, self._early_interrupt = self._early_interrupt, None
            self._code_help.forget()
            try:
                if interrupt is not None and interrupt.is_for(parent, number):
                    return self._interrupted_before(parent, silent=cell.silent)
                return await self._open_runner().execute(cell)
            finally:
                self.cell_parent = None

    def _reply_count(self, count: int, outcome: Outcome, store_history: bool) -> int:
        """Return the cell's number: the sandbox's own where it counts, so that ``Out[n]`` fits.

        There, cells that ran elsewhere do not count.
        """
        sandbox_count = outcome.reply.get("execution_count")
        if isinstance(sandbox_count, int) and store_history:
            self._sandbox_counts = True
            self.execution_count = sandbox_count
            return sandbox_count
        if self._sandbox_counts and store_history:
            self.execution_count = count - 1  # the next cell gets the number again, as there
        return count

    def _faulted(self, exc: BaseException, parent: Json, *, silent: bool) -> Outcome:
        if self.runner is None or self.runner.session is None:
            sentence = f"Nothing of this cell was run: {local_fault(exc)}."
        else:
            sentence = (
                f"A fault of the Ivy Sandbox kernel ended this cell. What it did in the sandbox is "
                f"not known, and it was not sent again. {exc}"
            )
        return self._show_end(type(exc).__name__, sentence, "unknown", parent, silent=silent)

    def _interrupted_before(self, parent: Json, *, silent: bool) -> Outcome:
        sentence = "Interrupted before it began. Nothing of this cell was run."
        return self._show_end("KeyboardInterrupt", sentence, "interrupted", parent, silent=silent)

    def _show_end(
        self, name: str, sentence: str, fate: Fate, parent: Json, *, silent: bool
    ) -> Outcome:
        """End a cell that no runner has ended."""
        from ivy_kernel.routes.events import show_error

        def sink(message: Message) -> None:
            if not silent:
                self.publish(dataclasses.replace(message, parent_header=parent.get("header", {})))

        return show_error(sink, name, sentence, fate)

    def _open_runner(self) -> CellRunner:
        if self.runner is None:
            from ivy_kernel.kernel.cells import CellRunner

            self.runner = CellRunner(
                self,
                flags=getattr(self.parent, "cli_config", None),
                connection_file=getattr(self.parent, "connection_file", ""),
            )
        return self.runner

    async def ask_user(self, prompt: str, *, is_secret: bool) -> str:
        """Ask the client that has sent the running cell (see `CellHost`)."""
        return await request_input(
            self.wire,
            self.stdin_socket,
            prompt,
            parent=self.cell_parent or {},
            ident=self._cell_ident,
            password=is_secret,
        )

    def run_local(self, code: str, cell: Cell) -> Outcome:
        """Run the code of a ``%%local`` cell (see `CellHost`). Blocks the main loop."""
        from ivy_kernel.models import Outcome

        shell = self._open_local_shell()
        self._local_running = True
        try:
            reply = shell.run(
                code,
                self.cell_parent or {},
                count=cell.execution_count,
                silent=cell.silent,
            )
        finally:
            self._local_running = False
        return Outcome("succeeded" if reply["status"] == "ok" else "failed", reply)

    def local_namespace(self) -> Json:
        """Return the variables of ``%%local`` cells (see `CellHost`)."""
        return self._open_local_shell().namespace

    def _open_local_shell(self) -> LocalShell:
        if self._local_shell is None:
            from ivy_kernel.kernel.local import LocalShell

            self._local_shell = LocalShell(self)
        return self._local_shell

    # Widgets -----------------------------------------------------------------------------------
    async def _comm_message(self, stream: Any, ident: Any, parent: Json) -> None:
        """``comm_open``, ``comm_msg``, ``comm_close`` (message spec, "Custom messages").

        Returns when the kernel in the sandbox is done with it, because front ends drop a widget's
        callbacks at "idle".
        """
        comms = self.runner.comms if self.runner is not None else None
        if comms is None or comms.take_here(parent):
            return
        try:
            await comms.send(parent)
        except Exception as exc:  # the next cell reports it; a widget has no place for errors
            self.log.warning("A widget's message did not reach the sandbox: %s", exc)

    async def comm_info_request(self, stream: Any, ident: Any, parent: Json) -> None:
        """List the comms that are open in the sandbox and here (message spec, "Comm info")."""
        comms: Json = {}
        if self.runner is not None:
            comms = await self.on_main_loop(self.runner.comms.info(parent["content"]))
        content = {"status": "ok", "comms": comms}
        self.wire.send(stream, "comm_info_reply", content, parent, ident)

    def must_wait(self, msg_type: str) -> bool:
        """See `BaseKernel`. A page that is reloaded needs the list of all its widgets."""
        if msg_type != "comm_info_request" or self.runner is None:
            return False
        return self.runner.comms.must_ask

    # Code help and history ---------------------------------------------------------------------
    async def do_is_complete(self, code: str) -> Json:
        """See `CodeHelp`."""
        return self._code_help.is_complete(code)

    async def do_complete(self, code: str, cursor_pos: int) -> Json:
        """See `CodeHelp`."""
        return await self.on_main_loop(self._code_help.complete(code, cursor_pos))

    async def do_inspect(
        self,
        code: str,
        cursor_pos: int,
        detail_level: int = 0,
        omit_sections: tuple[str, ...] = (),
    ) -> Json:
        """See `CodeHelp`."""
        return await self.on_main_loop(self._code_help.inspect(code, cursor_pos, detail_level))

    async def _ask_sandbox(self, msg_type: str, content: Json) -> Json | None:
        if self.runner is None:
            return None
        return await self.runner.ask_sandbox(msg_type, content, seconds=CODE_HELP_SECONDS)

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
        """List the cells that were run in this kernel (message spec, "History")."""
        found = self._history.find(
            hist_access_type,
            output=output,
            session=session,
            start=start,
            stop=stop,
            count=n,
            pattern=pattern,
            unique=unique,
        )
        return {"status": "ok", "history": found}

    # Interrupt and shutdown (on the control thread) ---------------------------------------------
    async def interrupt_request(self, stream: Any, ident: Any, parent: Json) -> None:
        """Stop the running cell, and answer when that is under way (message spec, "Interrupt")."""
        content: Json = {"status": "ok"}
        if is_kept_for_next_server(getattr(self.parent, "connection_file", "")):
            pass  # jupyter_client interrupts whatever it shuts down
        elif self._local_running:  # it blocks the main loop, where only a signal reaches it
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        elif self.main_loop is not None:
            interrupt = ReceivedInterrupt(parent["header"], self.received, self.cell_parent)
            work = asyncio.wrap_future(
                asyncio.run_coroutine_threadsafe(self._interrupt(interrupt), self.main_loop)
            )
            # After that the channel is free for another interrupt or a shutdown; this one goes on.
            done, _ = await asyncio.wait({work}, timeout=INTERRUPT_WAIT_SECONDS)
            error = work.exception() if done else None
            if error is not None:
                content = {
                    "status": "error",
                    "ename": type(error).__name__,
                    "evalue": f"The cell could not be interrupted: {error}",
                    "traceback": [],
                }
        self.wire.send(stream, "interrupt_reply", content, parent, ident=ident)

    async def interrupt_cell(self) -> None:
        """Stop what runs; harmless when nothing does. Called on SIGINT."""
        if self.runner is not None and self.runner.interruptible:
            await self.runner.interrupt()

    async def _interrupt(self, interrupt: ReceivedInterrupt) -> None:
        """Stop what runs, or the cell that the message has overtaken on its way.

        A cell that was sent after it is never hit.
        """
        cell = self.cell_parent
        if cell is not None and not interrupt.is_for(cell, self._cell_number):
            return
        if self.runner is not None and self.runner.interruptible:
            await self.interrupt_cell()
        elif cell is None:  # perhaps one comes that was sent before; the next cell looks at it
            self._early_interrupt = interrupt

    async def do_shutdown(self, restart: bool) -> Json:
        """End what works for us in sandboxes, within the 2.5 s that ipykernel allows.

        An earlier process of this kernel, after whose end no cell was run, may have left some.
        """
        connection_file = getattr(self.parent, "connection_file", "")
        if not restart and is_kept_for_next_server(connection_file):
            return {"status": "ok", "restart": False}  # all of it goes on, for the next kernel
        if self.runner is not None:
            self.runner.before_shutdown(restart=restart)
        else:
            mark_unused(connection_file, restart=restart)
        if self.main_loop is not None and self.runner is not None:
            work = asyncio.run_coroutine_threadsafe(
                self.runner.shutdown(restart=restart), self.main_loop
            )
            with suppress(Exception):
                await asyncio.wait_for(asyncio.wrap_future(work), SHUTDOWN_WAIT_SECONDS)
        go_on_after(connection_file, getattr(self.parent, "cli_config", None), restart=restart)
        return {"status": "ok", "restart": restart}


# The application --------------------------------------------------------------------------------
CONTROL_END_SECONDS = 2.0
"""Time limit for the control thread to end at exit."""


class IvyKernelApp(IPKernelApp):
    """ipykernel's application with our kernel, and our settings as ``--Ivy.…`` flags.

    Our config files are read with the first cell, so that a mistake in them is reported there
    instead of ending the kernel at its start.
    """

    name = "ivy-kernel"
    description = "The Ivy Sandbox kernel: runs cells in the sandbox of an Ivy Biosciences chat."
    kernel_class = IvyKernel
    held_ports = Instance(HeldPorts, allow_none=True)

    def initialize(self, argv: Any = None) -> None:
        """Called by `launch_instance`, before anything of a notebook's author can run here."""
        take_keys()
        super().initialize(argv)

    def init_sockets(self) -> None:
        """Called by ``initialize``: binds the ports, which were held until now."""
        if self.held_ports is not None:
            self.held_ports.release()
        super().init_sockets()

    def init_path(self) -> None:
        """Called by ``initialize``: leaves the notebook's folder off the import path.

        Modules of ours that are imported later must not be looked for among the user's files.
        """

    def add_folder_to_path(self) -> None:
        """Put the notebook's folder on the import path, as ipykernel does (see `LocalShell`)."""
        super().init_path()

    def init_iopub(self, context: Any) -> None:
        """Called by `init_sockets`; opens the socket that outputs are published on."""
        # It counts for sockets that are made from now on, and can only be set before they bind.
        context.sndhwm, context.sndbuf = SOCKET_MESSAGES, SOCKET_BYTES
        super().init_iopub(context)
        context.sndhwm, context.sndbuf = ZMQ_SOCKET_MESSAGES, -1
        self._sender = PatientSender(self.iopub_thread)

    def init_kernel(self) -> None:
        """Called by ``initialize`` once the sockets are there."""
        super().init_kernel()
        self.kernel.sender = self._sender

    def start(self) -> None:
        """Called by `launch_instance`; returns when the kernel has been shut down."""
        super().start()
        # The control thread still flushes the output streams. Were their thread stopped first, at
        # exit, the flush would wait for it in vain and every shutdown would take seconds.
        if self.control_thread is not None and self.control_thread.is_alive():
            self.control_thread.join(CONTROL_END_SECONDS)
