"""What every route offers to the session."""

from __future__ import annotations

from typing import Literal, Protocol

from ivy_kernel.models import Cell, Json, Outcome, Sink

RouteName = Literal["agent", "notebook", "script"]


class Route(Protocol):
    """A way of running cells in one sandbox through the platform's tools."""

    @property
    def name(self) -> RouteName:
        """Which route it is."""
        ...

    @property
    def notice(self) -> str:
        """What the user must know about this route, told once; empty when nothing."""
        ...

    @property
    def notices_losses(self) -> bool:
        """Whether `execute` finds out by itself that variables are gone, before anything runs.

        If not, the session calls `check` after a while without contact.
        """
        ...

    async def open(self) -> None:
        """Make ready. Runs nothing of the user's.

        Called by the session before the first cell, and again after `close` or a loss.

        Raises
        ------
        RouteError
            When this route cannot work in this sandbox; the session then tries the next one.
        """
        ...

    async def check(self) -> None:
        """See whether the variables of earlier cells are still there. Runs nothing of the user's.

        Called by the session before a cell, when the sandbox has not been heard of for a while.

        Raises
        ------
        SandboxLostError
            When they are gone; says why, as far as that is known.
        """
        ...

    async def execute(self, cell: Cell, sink: Sink) -> Outcome:
        """Run one cell; every message of it goes to ``sink``, in order, before this returns.

        Called by the session, one cell at a time.

        Raises
        ------
        NotReadyError
            503: nothing ran; the session waits and calls again.
        IvyError
            Nothing is known to have run, or the outcome is unknown; never repeated by the route.
        """
        ...

    async def ask(self, msg_type: str, content: Json) -> Json | None:
        """Answer a question about code, ``None`` when this route cannot.

        Called by the session while no cell runs, for ``complete_request`` and
        ``inspect_request`` (message spec, "Completion", "Introspection").
        """
        ...

    async def interrupt(self) -> None:
        """Ask for the running cell to stop; `execute` then ends soon, and says how it ended.

        Called by the session at any time; harmless when nothing runs.
        """
        ...

    async def restart(self) -> None:
        """Give the next cell a fresh namespace.

        Called by the session before the first cell after a restart of the kernel.
        """
        ...

    async def close(self, *, keep: bool) -> None:
        """Let go of the far side. Called by the session at shutdown; must be quick.

        Parameters
        ----------
        keep
            Whether the variables are left for a later process, as at a restart of the kernel.
        """
        ...

    def describe(self) -> Json:
        """What was found out about the sandbox, for ``doctor`` and ``%ivy status``."""
        ...
