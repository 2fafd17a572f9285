"""Our hold on one sandbox: runs cells in it, one at a time, each to its one end.

::

    session.py       which cell's turn it is, and what is asked of the sandbox beside cells
    turn.py          one cell under way: how far it has come, what an interrupt stops
    preparation.py   before a cell: sandbox, route and variables are there
    readiness.py     sees that the sandbox is there, starts it, and waits for it
    route_choice.py  finds the way into it: the best route that works
    keep_alive.py    keeps the local sandbox while a notebook is open on it
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from ivy_kernel.errors import (
    IvyError,
    NoAnswerError,
    NoSandboxError,
    NotFoundError,
    NotReadyError,
    SandboxBrokenError,
    SandboxLostError,
    UnexpectedStatusError,
)
from ivy_kernel.models import Cell, Json, Outcome, Sink
from ivy_kernel.routes.agent import AgentLost, Event, Unreachable
from ivy_kernel.routes.agent.route import TERMINATED, AgentCells
from ivy_kernel.routes.base import Route
from ivy_kernel.routes.one_call import NamedTool
from ivy_kernel.routes.outcomes import show_error, show_ivy_error, succeeded
from ivy_kernel.session.lifecycle import Lifecycle
from ivy_kernel.session.prepare import Preparation, Readiness
from ivy_kernel.session.route_choice import RouteChoice
from ivy_kernel.status import SandboxStatus

Result = TypeVar("Result")

NOT_RUN = (
    "Interrupted before it was sent to the sandbox. Nothing of this cell was run. A sandbox that "
    "is starting goes on starting, and the next cell uses it when it is ready."
)


class Turn:
    """From the moment when a cell is the session's next one, until it has ended.

    Parameters
    ----------
    sink
        Takes the cell's messages.
    readiness
        Of the sandbox; says what it means when a cell is refused.

    Attributes
    ----------
    was_sent
        Whether the cell itself has gone out, so that it may have run.
    was_terminated
        Whether the user has terminated the sandbox under it.
    """

    def __init__(self, sink: Sink, readiness: Readiness) -> None:
        self._sink = sink
        self._readiness = readiness
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

    async def preparation(self, work: Coroutine[Any, Any, Result]) -> Result | Outcome:
        """The work's result, or the outcome of a cell that was interrupted meanwhile."""
        self._preparing = task = asyncio.ensure_future(work)
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
        """Run what is prepared, as soon as the sandbox takes it; not if that was interrupted.

        Parameters
        ----------
        by
            What an interrupt is for meanwhile.
        run
            Sends the cell, and returns how it ended.
        wait_after
            Waits until it may be sent again after it was refused as "not ready".

        Raises
        ------
        IvyError
            As ``run`` and ``wait_after``; a 404 as what it means.
        """
        while not self.is_interrupted():  # as it may be just when the preparation is done
            self._sent_by, self.was_sent = by, True
            try:
                return await run()
            except NotReadyError as error:  # it said that nothing ran
                self.was_sent = False
                if self.is_interrupted():
                    break
                waited = await self.preparation(wait_after(error))
                if isinstance(waited, Outcome):
                    return waited
            except NotFoundError as error:
                self.was_sent = False  # there was nobody to run it
                raise await self._readiness.explained(error) from error
            finally:
                self._sent_by = None
        return self._not_run()

    def _not_run(self) -> Outcome:
        """The end of a cell that was interrupted before it was sent."""
        return show_error(self._sink, "KeyboardInterrupt", NOT_RUN, "interrupted")

    async def interrupt(self) -> bool:
        """Stop what is under way; whether there was anything."""
        self._was_interrupted = True
        if self._preparing is not None:
            self._preparing.cancel()
        elif isinstance(self._sent_by, NamedTool):
            self._sent_by.stop()
        elif self._sent_by is not None:
            await self._sent_by.interrupt()
        else:
            return False
        return True


MAY_BE_ITS_END = (NoAnswerError, SandboxBrokenError, UnexpectedStatusError)
"""How a call can fail whose sandbox ends under it."""


class Session:
    """Runs cells in one sandbox, one at a time.

    Parameters
    ----------
    lifecycle
        The sandbox.
    route
        ``auto``, or the only route to try.
    auto_create
        Whether a user's cell may start a sandbox.
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
        Takes what the agent route tells beside messages.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        *,
        route: str = "auto",
        auto_create: bool = True,
        cell_timeout_seconds: float = 300.0,
        code_fields: Mapping[str, str] | None = None,
        fresh: bool = False,
        session_key: str | None = None,
        on_background: Sink | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        self.lifecycle = lifecycle
        self._on_event = on_event or _ignore
        self._choice = RouteChoice(
            lifecycle,
            wanted=route,
            cell_timeout_seconds=cell_timeout_seconds,
            code_fields=code_fields or {},
            session_key=session_key or secrets.token_hex(8),
            on_background=on_background or _ignore,
            on_event=self._on_agent_event,
            sandbox_end=lambda: self._readiness.end_in_words(),
        )
        self._preparation = Preparation(
            lifecycle, self._choice, auto_create=auto_create, fresh=fresh
        )
        self._readiness = self._preparation.readiness
        self._turn: Turn | None = None
        self._lock = asyncio.Lock()
        self._terminating = asyncio.Lock()

    # Cells -------------------------------------------------------------------------------------

    async def execute(
        self, cell: Cell, sink: Sink, *, on_ready: Callable[[], None] | None = None
    ) -> Outcome:
        """Run one cell to its one end; errors of ours end up in the outcome, never raised.

        Called by the kernel for each ``execute_request``, and by the magics.

        Parameters
        ----------
        cell, sink
            The cell, and what takes its messages.
        on_ready
            Told when the sandbox is there and the cell is about to go.
        """
        return await self._in_turn(lambda turn: self._execute(turn, cell, sink, on_ready), sink)

    async def run_tool(self, tool: NamedTool, cell: Cell, sink: Sink) -> Outcome:
        """Run one of the platform's other tools, as `execute` runs a cell.

        Called by the magics for ``--lang`` and ``--tool``.
        """
        return await self._in_turn(lambda turn: self._run_tool(turn, tool, cell, sink), sink)

    async def _in_turn(self, work: Callable[[Turn], Awaitable[Outcome]], sink: Sink) -> Outcome:
        async with self._lock:
            turn = self._turn = Turn(sink, self._readiness)
            self._readiness.begin()
            try:
                return await work(turn)
            except IvyError as error:
                self._preparation.failed(error)
                self.lifecycle.refresh_soon()
                return show_ivy_error(sink, error, was_sent=turn.was_sent)
            finally:
                self._turn = None

    async def _run_tool(self, turn: Turn, tool: NamedTool, cell: Cell, sink: Sink) -> Outcome:
        seen = await turn.preparation(self._readiness.see(cell, sink))
        if isinstance(seen, Outcome):
            return seen
        tools = self._choice.tools()
        return await turn.send(
            tool,
            lambda: self._run(turn, tool.execute(tools, cell, sink)),
            lambda error: self._readiness.wait_after(error, sink),
        )

    async def _execute(
        self, turn: Turn, cell: Cell, sink: Sink, on_ready: Callable[[], None] | None
    ) -> Outcome:
        if is_empty(cell.code):
            return succeeded()
        route = await turn.preparation(self._preparation.prepare(cell, sink))
        if isinstance(route, Outcome):
            return route
        if on_ready is not None and not turn.is_interrupted():
            on_ready()

        async def wait_and_check(error: NotReadyError) -> None:
            await self._readiness.wait_after(error, sink)
            await self._preparation.check(route, sink)

        outcome = await turn.send(
            route, lambda: self._run(turn, route.execute(cell, sink)), wait_and_check
        )
        if turn.was_sent:
            self._preparation.ended(route, outcome)
        return outcome

    async def _run(self, turn: Turn, work: Awaitable[Outcome]) -> Outcome:
        """A cell's end; where the sandbox was terminated under it, that is what ended it."""
        try:
            return await work
        except (NotReadyError, SandboxLostError):
            raise  # these know that nothing of it ran, or why it ended
        except IvyError as error:
            async with self._terminating:  # whose answer may come after the cell's
                if turn.was_terminated:
                    raise SandboxLostError(TERMINATED) from error
            if turn.was_sent and isinstance(error, MAY_BE_ITS_END):
                words = await self._readiness.end_in_words()
                if words:
                    raise SandboxLostError(words) from error
            raise

    @property
    def busy(self) -> bool:
        """Whether a cell is under way."""
        return self._turn is not None

    @property
    def fresh_wanted(self) -> bool:
        """Whether the next cell must still be given an empty namespace."""
        return self._preparation.fresh_wanted

    async def interrupt(self) -> None:
        """Stop what is under way: the start of the sandbox, or the cell. Harmless when idle."""
        is_stopped = self._turn is not None and await self._turn.interrupt()
        if not is_stopped and self._choice.route is not None:
            await self._choice.route.interrupt()

    # Beside cells ------------------------------------------------------------------------------

    async def ask(self, msg_type: str, content: Json) -> Json | None:
        """A question about code, such as ``complete_request``; ``None`` when nobody answers.

        Never starts a sandbox, and never disturbs a cell.

        Raises
        ------
        NoSandboxError
            When there is none, or it sleeps.
        IvyError
            When it was asked, and did not answer.
        """
        if self.busy or self._choice.route is None:
            return None
        if self._preparation.contact_is_old:
            # Nobody ran anything, so a sandbox that sleeps must not be woken by a tool call.
            if (await self.lifecycle.read_status()).state != "active":
                raise NoSandboxError(f"{self.lifecycle.name} has no sandbox running to be asked.")
            if not self._preparation.in_contact:
                return None
        async with self._lock:
            route = self._choice.route
            return None if route is None else await route.ask(msg_type, content)

    async def open_route(self) -> Route:
        """Choose a route, or keep the one that is open.

        Raises
        ------
        RouteError
            When none works; tells what each one met with.
        """
        return await self._preparation.open_route()

    async def open_agent(self, status: SandboxStatus) -> None:
        """Attach to the agent, where an earlier process of this kernel may have left it working.

        Starts no sandbox, and does nothing where there is no such agent.

        Parameters
        ----------
        status
            The sandbox as it was seen just now.
        """
        if status.state != "active" or self.fresh_wanted or not self._choice.may_be_agent:
            return
        async with self._lock:
            await self.open_route()

    @property
    def agent(self) -> AgentCells | None:
        """The agent route while it is the open one: for widgets, input and the debugger."""
        return self._choice.agent

    def describe(self) -> Json:
        """What is known of the way into the sandbox, for ``%ivy status`` and ``doctor``."""
        return self._choice.describe()

    # The sandbox's life ------------------------------------------------------------------------

    async def create(self, sink: Sink) -> SandboxStatus:
        """Start the sandbox now and wait for it, with progress in ``sink``."""
        await self.lifecycle.create()
        return await self._readiness.wait(sink)

    async def terminate(self) -> None:
        """Shut the sandbox down; the variables are gone by the user's own wish."""
        async with self._terminating:
            await self.lifecycle.terminate()
            turn = self._turn
            closing = [self.agent] if self.agent is not None else []
            if turn is None or not turn.is_preparing:
                closing += self._choice.beginning_agents  # or they go on, in the next sandbox
            self.forget()
            if turn is not None:
                turn.was_terminated = True
        for agent in closing:
            await agent.end_with_sandbox()  # its cell, if it has one, need not wait to be missed

    async def reconnect(self) -> SandboxStatus:
        """Drop the connections and look at the sandbox again; the variables stay.

        While a cell is under way its connections are left alone: its answer would be lost.
        """
        if not self.busy:
            self._preparation.out_of_contact()
            await self.lifecycle.drop_connections()
        status = await self.lifecycle.status()
        self.lifecycle.refresh_soon()
        return status

    def forget(self) -> None:
        """The sandbox of before is gone and the user knows it."""
        self._preparation.forget()

    async def aclose(self, *, keep: bool = False) -> None:
        """Let go of the sandbox, which lives on.

        Parameters
        ----------
        keep
            Whether the variables are left for a later session with the same key.
        """
        self._preparation.close()
        await self._choice.aclose(keep=keep)
        await self.lifecycle.aclose()

    def _on_agent_event(self, event: Event) -> None:
        if isinstance(event, AgentLost | Unreachable):
            self._preparation.out_of_contact()
        self._on_event(event)


def _ignore(_: object) -> None:
    """Takes what nobody asked for."""


def is_empty(code: str) -> bool:
    """Whether a cell holds nothing to run: blank, or comments alone."""
    lines = (line.strip() for line in code.splitlines())
    return all(not line or line.startswith("#") for line in lines)
