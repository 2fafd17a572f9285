"""Which way cells reach a sandbox: the best route that works there, found once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from ivy_kernel.errors import RouteError
from ivy_kernel.models import Json, Sink
from ivy_kernel.routes.agent import Event
from ivy_kernel.routes.agent.route import AgentCells
from ivy_kernel.routes.base import Route
from ivy_kernel.routes.notebook import NotebookRoute
from ivy_kernel.routes.script import ScriptRoute
from ivy_kernel.routes.tools import SandboxTools
from ivy_kernel.session.lifecycle import Lifecycle

CLOUD_LIFETIME_SECONDS = 45 * 60.0
LOCAL_LIFETIME_SECONDS = 7 * 24 * 3600.0
"""The local sandbox costs nothing, so an open notebook keeps it, and its variables, overnight too.

Nothing of the kind is done to a sandbox in the cloud, which would be kept from hibernating."""


class RouteChoice:
    """The route that is open, or those that may be tried.

    Parameters
    ----------
    lifecycle
        The sandbox.
    wanted
        ``auto``, or the only route to try.
    cell_timeout_seconds
        Time budget of a tool call.
    code_fields
        Tool → field that carries its code.
    session_key
        Names our kernel in the sandbox on the agent route.
    on_background, on_event, sandbox_end
        As in `AgentCells`.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        *,
        wanted: str,
        cell_timeout_seconds: float,
        code_fields: Mapping[str, str],
        session_key: str,
        on_background: Sink,
        on_event: Callable[[Event], None],
        sandbox_end: Callable[[], Awaitable[str]],
    ) -> None:
        self._lifecycle = lifecycle
        self._wanted = wanted
        self._cell_timeout_seconds = cell_timeout_seconds
        self._code_fields = dict(code_fields)
        self._session_key = session_key
        self._on_background = on_background
        self._on_event = on_event
        self._sandbox_end = sandbox_end
        self._candidates: list[Route] | None = None
        self._refused: list[str] = []
        self.route: Route | None = None

    @property
    def agent(self) -> AgentCells | None:
        """The agent route while it is the open one."""
        return self.route if isinstance(self.route, AgentCells) else None

    @property
    def may_be_agent(self) -> bool:
        """Whether the agent route may be tried here."""
        return self._wanted in ("auto", "agent")

    @property
    def beginning_agents(self) -> list[AgentCells]:
        """Agent routes whose start may still go on, though no cell waits for it."""
        return [one for one in self._candidates or [] if isinstance(one, AgentCells)]

    def tools(self) -> SandboxTools:
        """The sandbox's tools, with what is configured of them."""
        return SandboxTools(self._lifecycle.client, self._lifecycle.chat_id, self._code_fields)

    async def open(self) -> Route:
        """Choose a route, or keep the one that is open.

        Raises
        ------
        RouteError
            When none works; tells what each one met with.
        """
        if self.route is not None:
            return self.route
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
            self.route, self._candidates = route, None
            return route
        self._candidates = None
        raise RouteError(
            f"No way to run cells in {self._lifecycle.name}: {'; '.join(self._refused)}"
        )

    def _make_routes(self) -> list[Route]:
        """The routes, best first.

        They are kept until one is open: a start of the agent goes on when the cell that asked for
        it is interrupted, and a second one beside it would take the session over.
        """
        tools = self.tools()
        seconds = self._cell_timeout_seconds
        return [
            AgentCells(
                tools,
                session_key=self._session_key,
                on_background=self._on_background,
                on_event=self._on_event,
                sandbox_end=self._sandbox_end,
                idle_lifetime_seconds=(
                    LOCAL_LIFETIME_SECONDS if self._lifecycle.local else CLOUD_LIFETIME_SECONDS
                ),
            ),
            NotebookRoute(tools, cell_timeout_seconds=seconds),
            ScriptRoute(tools, cell_timeout_seconds=seconds),
        ]

    def forget(self) -> None:
        """Begin anew with the next cell: the sandbox of before is gone."""
        self.route, self._candidates = None, None

    def describe(self) -> Json:
        """The open route, and why others are not it."""
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
