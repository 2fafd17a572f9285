"""The choice of a route into a sandbox: the best one that works there, found once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from ivy_kernel.errors import RouteError
from ivy_kernel.models import Json, Namespace
from ivy_kernel.routes.agent.pacing import AgentOptions
from ivy_kernel.routes.agent.route import AgentRoute
from ivy_kernel.routes.base import LiveKernel, Route, RouteListener, WorkOwner
from ivy_kernel.routes.one_call import NotebookRoute, ScriptRoute
from ivy_kernel.routes.tools import PYTHON_TOOL, SandboxTools
from ivy_kernel.session.lifecycle import Lifecycle

if TYPE_CHECKING:
    from ivy_kernel.session.files import SandboxFiles


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
