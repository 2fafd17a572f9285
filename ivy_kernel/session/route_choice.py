"""The choice of a route into a sandbox: the best one that works there; and a cell's run on it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ivy_kernel.errors import IvyError, NotFoundError, NotReadyError, RouteError, SandboxLostError
from ivy_kernel.models import Json, Namespace, Outcome, Sink
from ivy_kernel.routes.agent.pacing import AgentOptions
from ivy_kernel.routes.agent.route import AgentRoute
from ivy_kernel.routes.base import LiveKernel, Route, RouteListener, WorkOwner
from ivy_kernel.routes.events import INTERRUPTED_UNSENT, show_error
from ivy_kernel.routes.one_call import NamedTool, NotebookRoute, ScriptRoute
from ivy_kernel.routes.tools import PYTHON_TOOL, SandboxTools
from ivy_kernel.session.lifecycle import Lifecycle

if TYPE_CHECKING:
    from ivy_kernel.session.files import SandboxFiles

Result = TypeVar("Result")


class RouteChoice:
    """Opens the best route that works, and keeps it until the sandbox is gone.

    Parameters
    ----------
    lifecycle
        The sandbox.
    listener
        What the routes report to.
    wanted
        ``auto``, or the only route to try.
    cell_timeout_seconds
        Time budget of a tool call.
    code_fields
        Tool → field that carries its code.
    session_key
        Names our kernel in the sandbox on the agent route.
    agent_options
        Of the agent route; ``None``: the defaults.
    namespace
        The notebook's variables in this sandbox.
    work
        As in `AgentRoute`.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        listener: RouteListener,
        *,
        wanted: str,
        cell_timeout_seconds: float,
        code_fields: Mapping[str, str],
        session_key: str,
        agent_options: AgentOptions | None = None,
        namespace: Namespace,
        work: WorkOwner | None = None,
    ) -> None:
        self._namespace = namespace
        self._work = work
        self._lifecycle = lifecycle
        self._listener = listener
        self._wanted = wanted
        self._cell_timeout_seconds = cell_timeout_seconds
        self._code_fields = dict(code_fields)
        self._session_key = session_key
        self._agent_options = agent_options or AgentOptions()
        self._candidates: list[Route] | None = None
        self._refused: list[str] = []
        self.route: Route | None = None

    @property
    def live(self) -> LiveKernel | None:
        """The kernel behind the open route, where it has one."""
        return self.route.live if self.route is not None else None

    @property
    def may_be_live(self) -> bool:
        """Whether a route with a living kernel is open, or may be tried."""
        if self.route is not None:
            return self.route.live is not None
        return any(route.live is not None for route in self._wanted_routes())

    @property
    def starting(self) -> list[Route]:
        """Routes whose start may still go on, though no cell waits for it."""
        return list(self._candidates or [])

    def tools(self) -> SandboxTools:
        """The sandbox's tools, with what is configured of them."""
        return SandboxTools(self._lifecycle.client, self._lifecycle.chat_id, self._code_fields)

    def files(self) -> SandboxFiles:
        """The sandbox's files, by the Python that the open route speaks to."""
        from ivy_kernel.session.files import SandboxFiles  # no cell needs it

        known = self.describe().get("call_tool")
        return SandboxFiles(self._lifecycle, self.tools(), tool=str(known or PYTHON_TOOL))

    async def open(self) -> Route:
        """Choose a route, or keep the one that is open.

        Raises
        ------
        RouteError
            When none works; tells what each one met with.
        """
        if self.route is not None:
            return self.route
        self._refused = []
        for route in self._wanted_routes():
            try:
                await route.open()
            except RouteError as error:
                self._refused.append(f"{route.name}: {error}")
                continue
            self.route, self._candidates = route, None
            return route
        self._candidates = None
        raise RouteError(
            f"No way to run cells in {self._lifecycle.name}: {'; '.join(self._refused)}"
        )

    def _wanted_routes(self) -> list[Route]:
        """The routes to try, best first.

        They are kept until one is open: a start of the agent goes on when the cell that asked for
        it is interrupted, and a second one beside it would take the session over.
        """
        if self._candidates is None:
            tools = self.tools()
            seconds = self._cell_timeout_seconds
            self._candidates = [
                AgentRoute(
                    partial(tools.run, retry=False),
                    session_key=self._session_key,
                    listener=self._listener,
                    options=self._agent_options,
                    namespace=self._namespace,
                    work=self._work,
                ),
                NotebookRoute(tools, cell_timeout_seconds=seconds, namespace=self._namespace),
                ScriptRoute(tools, cell_timeout_seconds=seconds),
            ]
        return [route for route in self._candidates if self._wanted in ("auto", route.name)]

    def forget(self) -> None:
        """Begin anew with the next cell: the sandbox of before is gone."""
        self.route, self._candidates = None, None

    def describe(self) -> Json:
        """Return the open route, and why the others are not used."""
        if self.route is None:
            return {"route": "none yet", "refused": list(self._refused)}
        return {**self.route.describe(), "refused": list(self._refused)}

    async def aclose(self, *, keep: bool) -> None:
        """Let go of the far side.

        Parameters
        ----------
        keep
            As in `Route.close`.
        """
        for route in [self.route] if self.route is not None else self._candidates or []:
            await route.close(keep=keep)


class CellRun:
    """One cell under way: how far it has come, and what an interrupt has to stop.

    Parameters
    ----------
    sink
        Takes the cell's messages.
    explain
        Returns what a 404 means.

    Attributes
    ----------
    was_sent
        The cell itself has gone out, so it may have run.
    was_terminated
        The user has terminated the sandbox under it.
    keeps_variables
        Though it ends as lost, the variables are there: they were restored.
    """

    def __init__(self, sink: Sink, explain: Callable[[NotFoundError], Awaitable[IvyError]]) -> None:
        self._sink = sink
        self._explain = explain
        self._preparing: asyncio.Future[Any] | None = None
        self._sent_by: Route | NamedTool | None = None
        self._was_interrupted = False
        self.was_sent = False
        self.was_terminated = False
        self.keeps_variables = False

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
                raise await self._explain(error) from error
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
