"""The session: runs cells in one sandbox, one at a time, each to its one end."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ivy_kernel.errors import (
    IvyError,
    NotReadyError,
    NotSentError,
    SandboxError,
    SandboxLostError,
    UsageError,
    local_fault,
)
from ivy_kernel.models import Cell, Json, Message, Namespace, Outcome, Sink
from ivy_kernel.routes.agent.pacing import AgentOptions
from ivy_kernel.routes.base import LiveKernel, Route
from ivy_kernel.routes.events import (
    ENDED_UNDER_CELL,
    ERRORS_WHEN_SANDBOX_ENDS,
    TERMINATED,
    EndingCall,
    Event,
    MemoryLow,
    may_have_run,
    show_ivy_error,
    succeeded,
)
from ivy_kernel.routes.one_call import NamedTool
from ivy_kernel.session.gate import SandboxGate
from ivy_kernel.session.lifecycle import PATIENT_DEADLINES_SECONDS, Lifecycle
from ivy_kernel.session.route_choice import CellRun, RouteChoice
from ivy_kernel.status.model import SandboxStatus

if TYPE_CHECKING:
    from ivy_kernel.session.files import SandboxFiles
    from ivy_kernel.session.recovery import Recovery

CHECKPOINTS_OFF = (
    "Checkpoints are off (the setting checkpoints, IVY_CHECKPOINTS); set it to true, and the cells "
    "that follow are kept."
)


class Session:
    """Runs cells in one sandbox, one at a time.

    Parameters
    ----------
    lifecycle
        The sandbox.
    route
        ``auto``, or the only route to try.
    auto_create, auto_create_hidden
        Whether a user's cell may start a sandbox, and whether a hidden one may.
    cell_timeout_seconds
        Time budget of a tool call.
    code_fields
        Tool → field that carries its code.
    fresh
        Whether the first cell must find an empty namespace (after a restart of the kernel).
    session_key
        Names our kernel in the sandbox on the agent route; a later session with the same key finds
        the same variables. ``None`` for a key of its own.
    on_background
        Takes messages that belong to no cell under way: of widgets, and of threads.
    on_event
        Takes what the route tells beside messages.
    is_behind
        Tells whether so much waits to be shown that no more should be fetched for now.
    agent_options
        Of the agent route; ``None``: the defaults.
    namespace
        The notebook's variables in this sandbox, which outlive the session; ``None`` for new ones.
    recovery
        Keeps them beyond their sandbox; ``None`` where nothing does.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        *,
        route: str = "auto",
        auto_create: bool = True,
        auto_create_hidden: bool = False,
        cell_timeout_seconds: float = 300.0,
        code_fields: Mapping[str, str] | None = None,
        fresh: bool = False,
        session_key: str | None = None,
        on_background: Sink | None = None,
        on_event: Callable[[Event], None] | None = None,
        is_behind: Callable[[], bool] = bool,
        agent_options: AgentOptions | None = None,
        namespace: Namespace | None = None,
        recovery: Recovery | None = None,
    ) -> None:
        namespace = namespace or Namespace()
        self._namespace, self.recovery = namespace, recovery
        self.lifecycle = lifecycle
        self._show_background = on_background or _ignore
        self._tell = on_event or _ignore
        self._is_behind = is_behind
        self._choice = RouteChoice(
            lifecycle,
            self,
            wanted=route,
            cell_timeout_seconds=cell_timeout_seconds,
            code_fields=code_fields or {},
            session_key=session_key or secrets.token_hex(8),
            agent_options=agent_options,
            namespace=namespace,
            work=recovery,
        )
        self._gate = SandboxGate(
            lifecycle,
            self._choice,
            auto_create=auto_create,
            auto_create_hidden=auto_create_hidden,
            fresh=fresh,
            namespace=namespace,
        )
        self._run: CellRun | None = None
        self._asking: asyncio.Future[Json | None] | None = None
        self._lock = asyncio.Lock()
        self._terminating = asyncio.Lock()
        if recovery is not None:
            recovery.attach(self)

    # Cells -------------------------------------------------------------------------------------
    async def execute(
        self, cell: Cell, sink: Sink, *, on_ready: Callable[[], None] | None = None
    ) -> Outcome:
        """Run one cell to its one end; our own errors become its outcome and are never raised.

        Called by the kernel for each ``execute_request``, and by the magics.

        Parameters
        ----------
        cell, sink
            The cell, and what takes its messages.
        on_ready
            Called when the sandbox is ready and the cell is about to be sent.
        """
        work = partial(self._execute, cell=cell, sink=sink, on_ready=on_ready)
        return await self._run_alone(work, cell, sink)

    async def run_tool(self, tool: NamedTool, cell: Cell, sink: Sink) -> Outcome:
        """Run one of the platform's other tools, as `execute` runs a cell.

        Called by the magics for ``--lang`` and ``--tool``.
        """
        work = partial(self._run_tool, tool=tool, cell=cell, sink=sink)
        return await self._run_alone(work, cell, sink)

    async def _run_alone(
        self, work: Callable[[CellRun], Awaitable[Outcome]], cell: Cell, sink: Sink
    ) -> Outcome:
        async with self._lock:
            if self._asking is not None:  # the cell would wait for it
                self._asking.cancel()
            run = self._run = CellRun(sink, self._gate.explained)
            self._gate.begin()
            try:
                outcome = await work(run)
                if outcome.fate == "lost" and not run.keeps_variables:
                    self._gate.told(cell)
                    if self.recovery is not None and run.was_sent and not run.was_terminated:
                        self.recovery.lost(cell, sink)
                return outcome
            except IvyError as error:
                return await self._end_with_error(run, error, cell, sink)
            except Exception as error:
                if run.was_sent:
                    raise
                failure = NotSentError(f"Nothing of this cell was run: {local_fault(error)}.")
                return await self._end_with_error(run, failure, cell, sink)
            finally:
                self._run = None

    async def _end_with_error(
        self, run: CellRun, error: IvyError, cell: Cell, sink: Sink
    ) -> Outcome:
        """End a cell with an error of ours; it is told as a loss where the sandbox has ended."""
        may_run = may_have_run(error, was_sent=run.was_sent)
        is_general = isinstance(error, ERRORS_WHEN_SANDBOX_ENDS) or type(error) is SandboxError
        if is_general and not may_run and self._gate.has_variables:
            error = await self._gate.sandbox_end() or error
        self._gate.failed(error, may_have_run=may_run)
        if isinstance(error, SandboxLostError):
            self._gate.told(cell, error)
        # Widget and panel should not show for a whole interval what is no longer true.
        self.lifecycle.refresh_soon()
        return show_ivy_error(sink, error, was_sent=run.was_sent)

    async def _run_tool(self, run: CellRun, *, tool: NamedTool, cell: Cell, sink: Sink) -> Outcome:
        seen = await run.prepare(self._gate.require_sandbox(cell, sink))
        if isinstance(seen, Outcome):
            return seen
        tools = self._choice.tools()
        return await run.send(
            tool,
            lambda: self._to_its_end(run, tool.execute(tools, cell, sink)),
            lambda error: self._gate.wait_after(error, sink),
        )

    async def _execute(
        self, run: CellRun, *, cell: Cell, sink: Sink, on_ready: Callable[[], None] | None
    ) -> Outcome:
        if cell.is_empty:
            return succeeded()
        recovery = self.recovery
        if recovery is None:
            return await self._send(run, cell, sink, on_ready)
        loss = recovery.loss_before(cell)
        if loss is None:
            try:
                return await self._send_kept(recovery, run, cell, sink, on_ready)
            except SandboxLostError as error:  # nothing of it was run
                if not await recovery.is_for(cell, error):
                    raise
                loss, run.was_sent = error, False
        self._gate.told(cell)  # by what is shown of the recovery
        refused = await recovery.resume(run, cell, sink, loss)
        if refused is not None:
            return refused
        return await self._send_kept(recovery, run, cell, sink, on_ready)

    async def _send_kept(
        self,
        recovery: Recovery,
        run: CellRun,
        cell: Cell,
        sink: Sink,
        on_ready: Callable[[], None] | None,
    ) -> Outcome:
        """Send a cell, and have its recovery note how it ended."""
        try:
            outcome = await self._send(run, cell, sink, on_ready)
        finally:
            recovery.left()
        if not run.was_sent:
            return outcome
        recovery.hint(outcome, sink)
        return recovery.ended(cell, outcome)

    async def _send(
        self, run: CellRun, cell: Cell, sink: Sink, on_ready: Callable[[], None] | None
    ) -> Outcome:
        route = await run.prepare(self._gate.prepare(cell, sink))
        if isinstance(route, Outcome):
            return route
        if on_ready is not None and not run.is_interrupted():
            on_ready()
        if self.recovery is not None:
            self.recovery.sent(cell)

        async def wait_and_check(error: NotReadyError) -> None:
            await self._gate.wait_after(error, sink)
            await self._gate.check(route, sink)

        outcome = await run.send(
            route, lambda: self._to_its_end(run, route.execute(cell, sink)), wait_and_check
        )
        if run.was_sent:
            self._gate.ended(route, outcome)
        return outcome

    # -- as its recovery uses it (see `RecoveryHost`)

    async def restore(self, cell: Cell, sink: Sink, *, at: int | None, rerun: bool) -> Outcome:
        """Restore variables now, as the user wants. Called by ``%ivy restore``."""

        async def work(run: CellRun) -> Outcome:
            if self.recovery is None:
                raise UsageError(CHECKPOINTS_OFF)
            self._namespace.forget()  # a loss need not be told any more
            ended = await self.recovery.restore(run, cell, sink, at=at, rerun=rerun)
            return succeeded() if ended is None else ended

        return await self._run_alone(work, cell, sink)

    async def open_for(self, cell: Cell, sink: Sink) -> Route:
        """See that sandbox and route are there for a cell, which may start a sandbox."""
        return await self._gate.prepare(cell, sink)

    async def run_on(self, run: CellRun, route: Route, cell: Cell, sink: Sink) -> Outcome:
        """Run a cell of ours within the run of another one, to its end."""

        def show(message: Message) -> None:  # under the cell that runs, which is its only parent
            sink(message if message.channel == "stdin" else replace(message, parent_header=None))

        outcome = await run.send(
            route,
            lambda: self._to_its_end(run, route.execute(cell, show)),
            lambda error: self._gate.wait_after(error, sink),
        )
        self._gate.ended(route, outcome)
        return outcome

    def holds(self, holder: str) -> None:
        """Note that a kernel has variables now that must not be lost unnoticed."""
        self._namespace.holder = holder

    async def _to_its_end(self, run: CellRun, work: Awaitable[Outcome]) -> Outcome:
        """Return how a sent cell ended; an error is explained by the sandbox's end, if it ended."""
        try:
            return await work
        except (NotReadyError, SandboxLostError):
            raise  # these know that nothing of it ran, or why it ended
        except IvyError as error:
            # The answer to a terminate under way may come after the cell's error: wait for it.
            async with self._terminating:
                if run.was_terminated:
                    return run.lost(TERMINATED)
            is_general = isinstance(error, ERRORS_WHEN_SANDBOX_ENDS)
            if is_general and may_have_run(error, was_sent=run.was_sent):
                end = await self._gate.sandbox_end()
                if end is not None:
                    return run.lost(f"{end} {ENDED_UNDER_CELL}")
            raise

    @property
    def busy(self) -> bool:
        """Whether a cell is under way."""
        return self._run is not None

    @property
    def ending(self) -> EndingCall | None:
        """The call that ends the running cell in the sandbox, where there is one."""
        return self._choice.route.ending if self._choice.route is not None else None

    @property
    def fresh_wanted(self) -> bool:
        """Whether the next cell must still be given an empty namespace."""
        return self._gate.fresh_wanted

    async def interrupt(self) -> None:
        """Stop what is under way: the start of the sandbox, or the cell. Harmless when idle."""
        is_stopped = self._run is not None and await self._run.interrupt()
        if not is_stopped and self._choice.route is not None:
            await self._choice.route.interrupt()

    # Beside cells ------------------------------------------------------------------------------
    async def ask(self, msg_type: str, content: Json) -> Json | None:
        """Ask about code, as ``complete_request`` does; return ``None`` where nothing can answer.

        Never starts a sandbox, and never disturbs a cell.

        Raises
        ------
        NoSandboxError
            When there is none, or it sleeps.
        IvyError
            When it was asked, and did not answer.
        """
        if self._idle_route() is None:
            return None
        await self._gate.require_active()
        if not self._gate.in_contact:
            return None  # the next cell has to look first
        if (route := self._idle_route()) is None:
            return None
        if route.live is not None:  # its kernel takes questions beside cells
            return await route.ask(msg_type, content)
        asking = self._asking = asyncio.ensure_future(route.ask(msg_type, content))
        try:
            await asyncio.wait({asking})
        finally:
            asking.cancel()
        return None if asking.cancelled() else asking.result()

    def _idle_route(self) -> Route | None:
        """The open route, while no cell is on it."""
        return None if self.busy else self._choice.route

    async def open_route(self) -> Route:
        """Choose a route, or keep the one that is open.

        Raises
        ------
        RouteError
            When none works; tells what each one met with.
        """
        return await self._gate.open_route()

    async def open_live(self, status: SandboxStatus) -> None:
        """Attach to the living kernel that an earlier process of ours may have left working.

        Starts no sandbox, and does nothing where no route has such a kernel; ``status`` is the
        sandbox as it was seen just now.
        """
        if status.state != "active" or self.fresh_wanted or not self._choice.may_be_live:
            return
        async with self._lock:
            await self.open_route()

    @property
    def live(self) -> LiveKernel | None:
        """The kernel behind the open route, where it has one: for widgets, input, the debugger."""
        return self._choice.live

    def files(self) -> SandboxFiles:
        """Return the sandbox's files, for use beside cells."""
        return self._choice.files()

    def describe(self) -> Json:
        """Return what is known of the way into the sandbox, for ``%ivy status`` and ``doctor``."""
        return self._choice.describe()

    # The sandbox's life ------------------------------------------------------------------------
    async def create(self, sink: Sink) -> SandboxStatus:
        """Start the sandbox now and wait for it, with progress in ``sink``."""
        self._gate.out_of_contact()  # the next cell looks whether it is another one
        await self.lifecycle.create()
        return await self._gate.wait_until_ready(sink)

    async def prepare(self, sink: Sink) -> None:
        """See that the sandbox is there, as before a cell. Called by commands that fill it."""
        await self._gate.require_for_command(sink)

    async def terminate(self) -> None:
        """Shut the sandbox down; the user wants it, so the loss of the variables is not told."""
        async with self._terminating:
            await self.lifecycle.terminate()
            run = self._run
            closing = [self._choice.route] if self._choice.route is not None else []
            if run is None or not run.is_preparing:
                # Starts that no cell waits for would otherwise go on, in the next sandbox.
                closing += self._choice.starting
            self.forget()
            if self.recovery is not None:
                self.recovery.terminated()
            if run is not None:
                run.was_terminated = True
        for route in closing:
            # A cell under way on it need not find out by itself, which takes seconds.
            await route.end_with_sandbox()

    async def reconnect(self) -> SandboxStatus:
        """Drop the connections and look at the sandbox again; the variables stay.

        While a cell is under way its connections are left alone: its answer would be lost.
        """
        if not self.busy:
            self._gate.out_of_contact()
            await self.lifecycle.drop_connections()
        return await self.lifecycle.status(deadlines_seconds=PATIENT_DEADLINES_SECONDS)

    def forget(self) -> None:
        """Forget the sandbox of before: it is gone, and the user knows it."""
        self._gate.forget()

    async def aclose(self, *, keep: bool = False) -> None:
        """Let go of the sandbox, which lives on; ``keep`` the variables for a later session."""
        self._gate.close()
        if self.recovery is not None:
            self.recovery.close()
        await self._choice.aclose(keep=keep)
        await self.lifecycle.aclose()

    # What the routes report ---------------------------------------------------------------------
    def on_background(self, message: Message) -> None:
        """Take a message that belongs to no running cell."""
        self._show_background(message)

    def on_event(self, event: Event) -> None:
        """Take what a route tells beside messages."""
        told = self._gate.heard(event, is_running=self.busy)
        if self.recovery is not None and isinstance(told, MemoryLow):
            self.recovery.memory_low()
        if told is not None:
            self._tell(told)

    @property
    def is_behind(self) -> bool:
        """Whether so much waits to be shown that no more should be fetched for now."""
        return self._is_behind()

    async def sandbox_end(self) -> SandboxLostError | None:
        """Say that the sandbox has ended; ``None`` when that is not known."""
        return await self._gate.sandbox_end()


def _ignore(_: object) -> None:
    """Drop what has no taker."""
