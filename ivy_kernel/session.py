"""Our hold on one sandbox: sees that it is there, chooses a route, and runs cells through it."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from ivy_kernel.errors import (
    IvyError,
    NetworkError,
    NoSandboxError,
    NotFoundError,
    NotReadyError,
    RouteError,
    SandboxBrokenError,
    SandboxFailedError,
    SandboxLostError,
)
from ivy_kernel.lifecycle import Lifecycle, failed_error
from ivy_kernel.models import Cell, Json, Message, Outcome, Sink
from ivy_kernel.progress import StartProgress
from ivy_kernel.routes.agent import AgentLost, Event, Unreachable
from ivy_kernel.routes.agent_cells import AgentCells
from ivy_kernel.routes.endings import show_error, show_ivy_error, succeeded
from ivy_kernel.routes.named_tool import NamedTool
from ivy_kernel.routes.notebook import NotebookRoute
from ivy_kernel.routes.route import Route
from ivy_kernel.routes.script import ScriptRoute
from ivy_kernel.routes.tools import SandboxTools
from ivy_kernel.status import CHANGING_STATES, SandboxStatus, monotonic_seconds

Result = TypeVar("Result")

CHECK_AFTER_SECONDS = 15.0
"""After so long without contact the sandbox is looked at before a cell runs."""

LOCAL_KEEP_ALIVE_SECONDS = 300.0
CLOUD_LIFETIME_SECONDS = 45 * 60.0
LOCAL_LIFETIME_SECONDS = 7 * 24 * 3600.0
"""The local sandbox costs nothing, so an open notebook keeps it, and its variables, overnight too.

Nothing of the kind is done to a sandbox in the cloud, which would be kept from hibernating."""

NOT_READY_PAUSE_SECONDS = 0.5
"""Between tries, when the platform says "not ready" and not how long to wait."""

NOT_RUN = (
    "Interrupted before it was sent to the sandbox. Nothing of this cell was run. A sandbox that "
    "is starting goes on starting, and the next cell uses it when it is ready."
)


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
        self._wanted = route
        self._auto_create = auto_create
        self._cell_timeout_seconds = cell_timeout_seconds
        self._code_fields = dict(code_fields or {})
        self._fresh = fresh
        self._session_key = session_key or secrets.token_hex(8)
        self._on_background = on_background or _ignore
        self._on_event = on_event or _ignore
        self._route: Route | None = None
        self._candidates: list[Route] | None = None
        self._running: Route | None = None
        self._told: set[str] = set()
        self._refused: list[str] = []
        self._contact: float | None = None
        self._used = False
        self._preparing: asyncio.Future[Any] | None = None
        self._tool: NamedTool | None = None
        self._busy = False
        self._was_sent = False
        self._was_interrupted = False
        self._not_ready_until = math.inf
        self._keeper: asyncio.Future[None] | None = None
        self._lock = asyncio.Lock()

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
        return await self._in_turn(lambda: self._execute(cell, sink, on_ready or _nothing), sink)

    async def run_tool(self, tool: NamedTool, cell: Cell, sink: Sink) -> Outcome:
        """Run one of the platform's other tools, as `execute` runs a cell.

        Called by the magics for ``--lang`` and ``--tool``.
        """
        return await self._in_turn(lambda: self._run_tool(tool, cell, sink), sink)

    async def _in_turn(self, work: Callable[[], Awaitable[Outcome]], sink: Sink) -> Outcome:
        async with self._lock:
            self._busy, self._was_sent, self._was_interrupted = True, False, False
            self._not_ready_until = monotonic_seconds() + self.lifecycle.start_timeout_seconds
            try:
                return await work()
            except IvyError as error:
                self._note(error)
                return show_ivy_error(sink, error, was_sent=self._was_sent)
            finally:
                self._busy = False

    async def _run_tool(self, tool: NamedTool, cell: Cell, sink: Sink) -> Outcome:
        seen = await self._interruptible(self._see_sandbox(cell, sink), sink)
        if isinstance(seen, Outcome):
            return seen
        tools = self._sandbox_tools()
        while not self._is_interrupted():  # as it may be just when the preparation is done
            self._tool, self._was_sent = tool, True
            try:
                return await tool.execute(tools, cell, sink)
            except NotReadyError as error:  # it said that nothing ran
                self._was_sent = False
                if self._is_interrupted():
                    break
                waited = await self._interruptible(self._wait_after(error, sink), sink)
                if isinstance(waited, Outcome):
                    return waited
            except NotFoundError as error:
                self._was_sent = False  # there was nobody to run it
                raise await self._explained(error) from error
            finally:
                self._tool = None
        return show_error(sink, "KeyboardInterrupt", NOT_RUN, "interrupted")

    async def _execute(self, cell: Cell, sink: Sink, on_ready: Callable[[], None]) -> Outcome:
        if is_empty(cell.code):
            return succeeded()
        prepared = await self._interruptible(self._prepare(cell, sink), sink)
        if isinstance(prepared, Outcome):
            return prepared
        if not self._is_interrupted():
            on_ready()
        while not self._is_interrupted():  # as it may be just when the preparation is done
            self._running, self._was_sent = prepared, True
            try:
                outcome = await prepared.execute(cell, sink)
            except NotReadyError as error:  # it said that nothing ran
                self._was_sent = False
                if self._is_interrupted():
                    break
                waiting = self._wait_and_check(prepared, sink, error)
                waited = await self._interruptible(waiting, sink)
                if isinstance(waited, Outcome):
                    return waited
            except NotFoundError as error:
                self._was_sent = False  # there was nobody to run it
                raise await self._explained(error) from error
            else:
                if self._route is prepared:  # not terminated, by the user's own wish, meanwhile
                    in_contact = outcome.fate not in ("lost", "unknown")
                    self._contact = monotonic_seconds() if in_contact else None
                    self._used = outcome.fate != "lost"  # that loss has been told
                return outcome
            finally:
                self._running = None
        return show_error(sink, "KeyboardInterrupt", NOT_RUN, "interrupted")

    @property
    def busy(self) -> bool:
        """Whether a cell is under way."""
        return self._busy

    @property
    def fresh_wanted(self) -> bool:
        """Whether the next cell must still be given an empty namespace."""
        return self._fresh

    async def ask(self, msg_type: str, content: Json) -> Json | None:
        """A question about code, such as ``complete_request``; ``None`` when nobody answers.

        Never starts a sandbox, and never disturbs a cell.
        """
        if self._busy or self._route is None or self._contact is None:
            return None
        is_old = monotonic_seconds() - self._contact > CHECK_AFTER_SECONDS
        # Nobody ran anything, so a sandbox that sleeps must not be woken by a tool call.
        if is_old and (await self.lifecycle.read_status()).state != "active":
            return None
        async with self._lock:
            return None if self._route is None else await self._route.ask(msg_type, content)

    async def interrupt(self) -> None:
        """Stop what is under way: the start of the sandbox, or the cell. Harmless when idle."""
        self._was_interrupted = True
        route = self._running or self._route
        if self._preparing is not None:
            self._preparing.cancel()
        elif self._tool is not None:
            self._tool.stop()
        elif route is not None:
            await route.interrupt()

    async def create(self, sink: Sink) -> SandboxStatus:
        """Start the sandbox now and wait for it, with progress in ``sink``."""
        await self.lifecycle.create()
        return await self._wait(sink)

    async def terminate(self) -> None:
        """Shut the sandbox down; the variables are gone by the user's own wish."""
        await self.lifecycle.terminate()
        closing = [self.agent] if self.agent is not None else []
        if self._preparing is None:  # an interrupted start would go on, in the next sandbox
            closing += [one for one in self._candidates or [] if isinstance(one, AgentCells)]
        self.forget()
        for agent in closing:
            await agent.close(keep=True)  # its cell, if it has one, need not wait to be missed

    async def reconnect(self) -> SandboxStatus:
        """Drop the connections and look at the sandbox again; the variables stay.

        While a cell is under way its connections are left alone: its answer would be lost.
        """
        if not self._busy:
            self._contact = None
            await self.lifecycle.drop_connections()
        status = await self.lifecycle.status()
        self.lifecycle.poke()
        return status

    async def open_agent(self, status: SandboxStatus) -> None:
        """Attach to the agent, where an earlier process of this kernel may have left it working.

        Starts no sandbox, and does nothing where there is no such agent.

        Parameters
        ----------
        status
            The sandbox as it was seen just now.
        """
        if status.state != "active" or self._fresh or self._wanted not in ("auto", "agent"):
            return
        async with self._lock:
            await self.open_route()

    def forget(self) -> None:
        """The sandbox of before is gone and the user knows it."""
        self._route, self._contact, self._used = None, None, False
        self._candidates = None

    async def aclose(self, *, keep: bool = False) -> None:
        """Let go of the sandbox, which lives on.

        Parameters
        ----------
        keep
            Whether the variables are left for a later session with the same key.
        """
        if self._keeper is not None:
            self._keeper.cancel()
        routes = [self._route] if self._route is not None else self._candidates or []
        for route in routes:
            await route.close(keep=keep)
        await self.lifecycle.aclose()

    async def _keep_alive(self) -> None:
        """Let the local sandbox's server know that somebody is still here."""
        while True:
            await asyncio.sleep(LOCAL_KEEP_ALIVE_SECONDS)
            with suppress(IvyError):
                await self.lifecycle.read_status()

    @property
    def agent(self) -> AgentCells | None:
        """The agent route while it is the open one: for widgets, input and the debugger."""
        return self._route if isinstance(self._route, AgentCells) else None

    def describe(self) -> Json:
        """What is known of the way into the sandbox, for ``%ivy status`` and ``doctor``."""
        if self._route is None:
            return {"route": "none yet", "refused": list(self._refused)}
        return {**self._route.describe(), "refused": list(self._refused)}

    async def open_route(self) -> Route:
        """Choose a route, or keep the one that is open.

        Raises
        ------
        RouteError
            When none works; tells what each one met with.
        """
        if self._route is not None:
            return self._route
        if self._candidates is None:
            self._candidates = self._make_routes()
        self._refused = []
        for route in self._candidates:
            if self._wanted not in ("auto", route.name):
                continue
            try:
                await route.open()
            except RouteError as error:
                self._refused.append(f"{route.name}: {error}")
                continue
            self._route, self._candidates = route, None
            self._contact = monotonic_seconds()
            if self.lifecycle.local and self._keeper is None:
                self._keeper = asyncio.ensure_future(self._keep_alive())
            return route
        self._candidates = None
        raise RouteError(
            f"No way to run cells in {self.lifecycle.name}: {'; '.join(self._refused)}"
        )

    def _make_routes(self) -> list[Route]:
        """The routes, best first.

        They are kept until one is open: a start of the agent goes on when the cell that asked for
        it is interrupted, and a second one beside it would take the session over.
        """
        tools = self._sandbox_tools()
        seconds = self._cell_timeout_seconds
        return [
            AgentCells(
                tools,
                session_key=self._session_key,
                on_background=self._on_background,
                on_event=self._on_agent_event,
                idle_lifetime_seconds=(
                    LOCAL_LIFETIME_SECONDS if self.lifecycle.local else CLOUD_LIFETIME_SECONDS
                ),
            ),
            NotebookRoute(tools, cell_timeout_seconds=seconds),
            ScriptRoute(tools, cell_timeout_seconds=seconds),
        ]

    def _sandbox_tools(self) -> SandboxTools:
        return SandboxTools(self.lifecycle.client, self.lifecycle.chat_id, self._code_fields)

    async def _prepare(self, cell: Cell, sink: Sink) -> Route:
        """See that the sandbox, the route and the variables are there."""
        now = monotonic_seconds()
        if (
            self._route is None
            or self._contact is None
            or (now - self._contact > CHECK_AFTER_SECONDS and not self._route.notices_losses)
        ):
            await self._see_sandbox(cell, sink)
            if self._route is not None and self._used:
                await self._check(self._route, sink)
        route = await self._open_when_ready(sink)
        if self._fresh:
            await route.restart()
            self._fresh = False
        if route.notice and route.name not in self._told and not cell.silent:
            self._told.add(route.name)
            sink(Message("stream", {"name": "stderr", "text": f"{route.notice}\n"}))
        return route

    async def _see_sandbox(self, cell: Cell, sink: Sink) -> None:
        status = await self.lifecycle.status()
        name = self.lifecycle.name
        if status.state == "active":
            return
        if status.state in CHANGING_STATES:
            await self._wait(sink)
            return
        if self._used:
            self.forget()
            raise SandboxLostError(
                f"{name} is gone (its state is now {_word(status)}), and the variables with it. "
                f"Nothing of this cell was run. Run it again to start a new sandbox."
            )
        if status.state == "failed" and not cell.store_history:
            raise failed_error(name, status)
        if status.state == "unknown":
            return  # a word we do not know says nothing against trying
        if not cell.store_history:
            raise NoSandboxError(
                f"{name} has no sandbox running, and code that you did not run yourself does not "
                f"start one. Nothing was run."
            )
        if not self._auto_create:
            raise NoSandboxError(
                f"{name} has no sandbox running, and the setting auto_create forbids to start "
                f"one. Nothing was run. Run %ivy create, then this cell again."
            )
        await self.lifecycle.create()
        await self._wait(sink)

    async def _wait(self, sink: Sink) -> SandboxStatus:
        """Wait for a sandbox that starts, with progress in the cell."""
        progress = StartProgress(self.lifecycle.name, sink)
        try:
            status = await self.lifecycle.wait_until_ready(progress.show)
        finally:
            progress.clear()
        if status.state not in ("active", "unknown"):
            raise SandboxFailedError(
                f"{self.lifecycle.name} did not become ready: its state is now {_word(status)}. "
                f"Nothing of this cell was run. Run it again to start a new sandbox."
            )
        return status

    async def _wait_after(self, error: NotReadyError, sink: Sink) -> None:
        """Wait until the next try of what was "not ready", also if the status says that it is.

        Not for ever: after the time that a start may take, the error is the cell's end.
        """
        if monotonic_seconds() > self._not_ready_until:
            raise error
        await asyncio.sleep(error.retry_after_seconds or NOT_READY_PAUSE_SECONDS)
        await self._wait(sink)

    async def _wait_and_check(self, route: Route, sink: Sink, error: NotReadyError) -> None:
        await self._wait_after(error, sink)
        await self._check(route, sink)

    async def _open_when_ready(self, sink: Sink) -> Route:
        while True:
            try:
                return await self.open_route()
            except NotReadyError as error:
                await self._wait_after(error, sink)

    async def _check(self, route: Route, sink: Sink) -> None:
        while True:
            try:
                await route.check()
            except NotReadyError as error:
                await self._wait_after(error, sink)
            except NotFoundError as error:
                raise await self._explained(error) from error
            except RouteError as error:
                self.forget()
                raise SandboxLostError(
                    f"The sandbox no longer runs what it ran before, so the variables are taken "
                    f"for gone ({error}). Nothing of this cell was run."
                ) from error
            else:
                self._contact = monotonic_seconds()
                return

    async def _explained(self, error: NotFoundError) -> IvyError:
        """What a 404 means: one replica's mistake, or the end of the sandbox."""
        status = await self.lifecycle.status()
        if status.state in ("active", "unknown") or status.state in CHANGING_STATES:
            return error
        self.forget()
        return SandboxLostError(
            f"{self.lifecycle.name} is gone (its state is now {_word(status)}), and the variables "
            f"with it. Nothing of this cell was run. Run it again to start a new sandbox."
        )

    async def _interruptible(
        self, work: Coroutine[Any, Any, Result], sink: Sink
    ) -> Result | Outcome:
        """The work's result, or the outcome of a cell that was interrupted meanwhile."""
        self._preparing = task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task})
        finally:
            self._preparing = None
            if not task.done():  # we are being cancelled ourselves
                task.cancel()
        if task.cancelled():
            return show_error(sink, "KeyboardInterrupt", NOT_RUN, "interrupted")
        return task.result()

    def _is_interrupted(self) -> bool:
        """Whether the user has interrupted the cell that is under way."""
        return self._was_interrupted

    def _on_agent_event(self, event: Event) -> None:
        if isinstance(event, AgentLost | Unreachable):
            self._contact = None
        self._on_event(event)

    def _note(self, error: IvyError) -> None:
        """After an error the next cell looks at the sandbox first."""
        self._contact = None
        self.lifecycle.poke()
        if isinstance(error, SandboxBrokenError):
            self.forget()
        if isinstance(error, NetworkError):
            self._used = self._used or self._route is not None


def _ignore(_: object) -> None:
    """Takes what nobody asked for."""


def _nothing() -> None:
    """Nobody wants to be told."""


def is_empty(code: str) -> bool:
    """Whether a cell holds nothing to run: blank, or comments alone."""
    lines = (line.strip() for line in code.splitlines())
    return all(not line or line.startswith("#") for line in lines)


def _word(status: SandboxStatus) -> str:
    state = status.effective_state(monotonic_seconds())
    return repr(status.raw_state or state) if state == "unknown" else f"'{state}'"
