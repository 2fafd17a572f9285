"""What must be so before a cell goes: sandbox, route and variables are there."""

from __future__ import annotations

from ivy_kernel.errors import (
    NetworkError,
    NotFoundError,
    RouteError,
    SandboxBrokenError,
    SandboxLostError,
)
from ivy_kernel.keep_alive import KeepAlive
from ivy_kernel.models import Cell, Message, Outcome, Sink
from ivy_kernel.routes.base import Route
from ivy_kernel.session.lifecycle import Lifecycle
from ivy_kernel.session.prepare import Readiness
from ivy_kernel.session.route_choice import RouteChoice
from ivy_kernel.status import monotonic_seconds

CHECK_AFTER_SECONDS = 15.0
"""After so long without contact the sandbox is looked at before a cell runs."""


class Preparation:
    """Prepares cells, and remembers for the next one how the last one left the sandbox.

    Parameters
    ----------
    lifecycle
        The sandbox.
    choice
        The way into it.
    auto_create
        Whether a user's cell may start a sandbox.
    fresh
        Whether the first cell must find an empty namespace.

    Attributes
    ----------
    readiness
        Whether the sandbox can take cells.
    fresh_wanted
        Whether the next cell must still be given an empty namespace.
    """

    def __init__(
        self, lifecycle: Lifecycle, choice: RouteChoice, *, auto_create: bool, fresh: bool
    ) -> None:
        self._choice = choice
        self._keep_alive = KeepAlive(lifecycle)
        self._contact: float | None = None
        self._used = False
        self._told: set[str] = set()
        self.fresh_wanted = fresh
        self.readiness = Readiness(
            lifecycle,
            auto_create=auto_create,
            has_variables=lambda: self._used,
            on_gone=self.forget,
        )

    @property
    def in_contact(self) -> bool:
        """Whether the last that was heard of the sandbox was good."""
        return self._contact is not None

    @property
    def contact_is_old(self) -> bool:
        """Whether anything may have become of the sandbox since it was heard of."""
        return self._contact is None or monotonic_seconds() - self._contact > CHECK_AFTER_SECONDS

    async def prepare(self, cell: Cell, sink: Sink) -> Route:
        """See that all is there, and return the route that the cell shall go.

        Raises
        ------
        IvyError
            When it is not: says why. Nothing of the cell was run.
        """
        route = self._choice.route
        must_look = route is None or self._contact is None
        if must_look or (self.contact_is_old and route is not None and not route.notices_losses):
            await self.readiness.see(cell, sink)
            route = self._choice.route  # unless it was terminated meanwhile
            if route is not None and self._used:
                await self.check(route, sink)
        route = await self.readiness.when_ready(self.open_route, sink)
        if self.fresh_wanted:
            await route.restart()
            self.fresh_wanted = False
        if route.notice and route.name not in self._told and not cell.silent:
            self._told.add(route.name)
            sink(Message("stream", {"name": "stderr", "text": f"{route.notice}\n"}))
        return route

    async def check(self, route: Route, sink: Sink) -> None:
        """See that the variables of earlier cells are there.

        Raises
        ------
        SandboxLostError
            When they are gone, or taken for gone.
        """
        try:
            await self.readiness.when_ready(route.check, sink)
        except NotFoundError as error:
            raise await self.readiness.explained(error) from error
        except RouteError as error:
            self.forget()
            raise SandboxLostError(
                f"The sandbox no longer runs what it ran before, so the variables are taken "
                f"for gone ({error}). Nothing of this cell was run."
            ) from error
        self._contact = monotonic_seconds()

    async def open_route(self) -> Route:
        """Choose a route, or keep the one that is open.

        Raises
        ------
        RouteError
            When none works; tells what each one met with.
        """
        is_new = self._choice.route is None
        route = await self._choice.open()
        if is_new:
            self._contact = monotonic_seconds()
            self._keep_alive.begin()
        return route

    def ended(self, route: Route, outcome: Outcome) -> None:
        """Called when a cell that was sent has ended."""
        if self._choice.route is not route:
            return  # terminated, by the user's own wish, meanwhile
        is_in_contact = outcome.fate not in ("lost", "unknown")
        self._contact = monotonic_seconds() if is_in_contact else None
        self._used = outcome.fate != "lost"  # that loss has been told

    def failed(self, error: Exception) -> None:
        """Called after an error: the next cell looks at the sandbox first."""
        if isinstance(error, SandboxBrokenError):
            self.forget()
        self._contact = None
        if isinstance(error, NetworkError):
            self._used = self._used or self._choice.route is not None

    def out_of_contact(self) -> None:
        """The next cell looks at the sandbox first."""
        self._contact = None

    def forget(self) -> None:
        """The sandbox of before is gone and the user knows it."""
        self._choice.forget()
        self._contact, self._used = None, False

    def close(self) -> None:
        """No cell will be prepared any more."""
        self._keep_alive.end()
