"""The session: runs cells in one sandbox, one at a time, each to its one end."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ivy_kernel.errors import (
    IvyError,
    NotFoundError,
    NotReadyError,
    NotSentError,
    SandboxError,
    SandboxLostError,
    local_fault,
)
from ivy_kernel.models import Cell, Json, Message, Namespace, Outcome, Sink
from ivy_kernel.routes.agent.pacing import AgentOptions
from ivy_kernel.routes.base import LiveKernel, Route
from ivy_kernel.routes.events import (
    ENDED_UNDER_CELL,
    ERRORS_WHEN_SANDBOX_ENDS,
    INTERRUPTED_UNSENT,
    TERMINATED,
    EndingCall,
    Event,
    may_have_run,
    show_error,
    show_ivy_error,
    succeeded,
)
from ivy_kernel.routes.one_call import NamedTool
from ivy_kernel.session.gate import SandboxGate
from ivy_kernel.session.lifecycle import PATIENT_DEADLINES_SECONDS, Lifecycle
from ivy_kernel.session.route_choice import RouteChoice
from ivy_kernel.status.model import SandboxStatus

if TYPE_CHECKING:
    from ivy_kernel.session.files import SandboxFiles

Result = TypeVar("Result")


class _CellRun:
    """One cell under way: how far it has come, and what an interrupt has to stop.

    ``was_sent``: the cell itself has gone out, so it may have run. ``was_terminated``: the user has
    terminated the sandbox under it.
    """

    def __init__(self, sink: Sink, gate: SandboxGate) -> None:
        self._sink = sink
        self._gate = gate
        self._preparing: asyncio.Future[Any] | None = None
        self._sent_by: Route | NamedTool | None = None
        self._was_interrupted = False
        self.was_sent = False
        self.was_terminated = False

    def is_interrupted(self) -> bool:
        """Whether the user has interrupted it."""
        return self._was_interrupted

    @property
    def is_preparing(self) -> bool:
        """Whether something is done for the cell before it can be sent."""
        return self._preparing is not None

    async def prepare(self, work: Coroutine[Any, Any, Result]) -> Result | Outcome:
        """Return the work's result, or the outcome of a cell that was interrupted meanwhile."""
        self._preparing = task = asyncio.ensure_future(work)
        # A task of its own: an interrupt cancels the preparation and not the cell, which still
        # has to tell how it ended.
        try:
            await asyncio.wait({task})
        finally:
            self._preparing = None
            if not task.done():  # we are being cancelled ourselves
                task.cancel()
        return self._not_run() if task.cancelled() else task.result()

    async def send(
        self,
        by: Route | NamedTool,
        run: Callable[[], Awaitable[Outcome]],
        wait_after: Callable[[NotReadyError], Coroutine[Any, Any, None]],
    ) -> Outcome:
        """Send the cell as soon as the sandbox takes it, unless it was interrupted before.

        Parameters
        ----------
        by
            The route or tool that an interrupt is passed on to meanwhile.
        run
            Sends the cell, and returns how it ended.
        wait_after
            Waits until it may be sent again after it was refused as "not ready".

        Raises
        ------
        IvyError
            As ``run`` and ``wait_after``; a 404 as what it means.
        """
        # Asked each time: an interrupt may come just when a preparation is done.
        while not self.is_interrupted():
            self._sent_by, self.was_sent = by, True
            try:
                return await run()
            except NotReadyError as error:  # 503: nothing ran, so it may be sent again
                self.was_sent = False
                if self.is_interrupted():
                    break
                waited = await self.prepare(wait_after(error))
                if isinstance(waited, Outcome):
                    return waited
            except NotFoundError as error:
                self.was_sent = False  # 404: nothing was there that could have run it
                raise await self._gate.explained(error) from error
            finally:
                self._sent_by = None
        return self._not_run()

    def _not_run(self) -> Outcome:
        """Return the outcome of a cell that was interrupted before it was sent."""
        return show_error(self._sink, "KeyboardInterrupt", INTERRUPTED_UNSENT, "interrupted")

    def lost(self, sentence: str) -> Outcome:
        """Return the outcome of a cell whose sandbox has ended under it."""
        return show_error(self._sink, SandboxLostError.__name__, sentence, "lost")

    async def interrupt(self) -> bool:
        """Stop what is under way; return whether there was anything."""
        self._was_interrupted = True
        if self._preparing is not None:
            self._preparing.cancel()
        elif self._sent_by is not None:
            await self._sent_by.interrupt()
        else:
            return False
        return True


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
    ) -> None:
        namespace = namespace or Namespace()
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
        )
        self._gate = SandboxGate(
            lifecycle,
            self._choice,
            auto_create=auto_create,
            auto_create_hidden=auto_create_hidden,
            fresh=fresh,
            namespace=namespace,
        )
        self._run: _CellRun | None = None
        self._asking: asyncio.Future[Json | None] | None = None
        self._lock = asyncio.Lock()
        self._terminating = asyncio.Lock()

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
        self, work: Callable[[_CellRun], Awaitable[Outcome]], cell: Cell, sink: Sink
    ) -> Outcome:
        async with self._lock:
            if self._asking is not None:  # the cell would wait for it
                self._asking.cancel()
            run = self._run = _CellRun(sink, self._gate)
            self._gate.begin()
            try:
                outcome = await work(run)
                if outcome.fate == "lost":
                    self._gate.told(cell)
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
        self, run: _CellRun, error: IvyError, cell: Cell, sink: Sink
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

    async def _run_tool(self, run: _CellRun, *, tool: NamedTool, cell: Cell, sink: Sink) -> Outcome:
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
        self, run: _CellRun, *, cell: Cell, sink: Sink, on_ready: Callable[[], None] | None
    ) -> Outcome:
        if cell.is_empty:
            return succeeded()
        route = await run.prepare(self._gate.prepare(cell, sink))
        if isinstance(route, Outcome):
            return route
        if on_ready is not None and not run.is_interrupted():
            on_ready()

        async def wait_and_check(error: NotReadyError) -> None:
            await self._gate.wait_after(error, sink)
            await self._gate.check(route, sink)

        outcome = await run.send(
            route, lambda: self._to_its_end(run, route.execute(cell, sink)), wait_and_check
        )
        if run.was_sent:
            self._gate.ended(route, outcome)
        return outcome

    async def _to_its_end(self, run: _CellRun, work: Awaitable[Outcome]) -> Outcome:
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
        await self._choice.aclose(keep=keep)
        await self.lifecycle.aclose()

    # What the routes report ---------------------------------------------------------------------
    def on_background(self, message: Message) -> None:
        """Take a message that belongs to no running cell."""
        self._show_background(message)

    def on_event(self, event: Event) -> None:
        """Take what a route tells beside messages."""
        told = self._gate.heard(event, is_running=self.busy)
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
