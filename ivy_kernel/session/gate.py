"""The gate before each cell: a usable sandbox, route and namespace exist before it is sent."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from ivy_kernel.errors import (
    IvyError,
    NoSandboxError,
    NotFoundError,
    NotReadyError,
    RouteError,
    SandboxBrokenError,
    SandboxFailedError,
    SandboxLostError,
)
from ivy_kernel.models import Cell, Message, Namespace, Outcome, Resources, Sink
from ivy_kernel.routes.base import Route
from ivy_kernel.routes.events import (
    AgentLost,
    Disconnected,
    Event,
    MemoryLow,
    ResourcesRead,
    Unreachable,
)
from ivy_kernel.session.describe import state_words
from ivy_kernel.session.lifecycle import Lifecycle, failed_error
from ivy_kernel.session.route_choice import RouteChoice
from ivy_kernel.session.start_progress import StartProgress
from ivy_kernel.status.clock import monotonic_seconds
from ivy_kernel.status.model import END_STATES, STARTING_STATES, SandboxStatus

Result = TypeVar("Result")

CHECK_AFTER_SECONDS = 15.0
"""After so long without contact the sandbox is looked at before a cell runs."""

NOT_READY_PAUSE_SECONDS = 0.5
"""Between tries, when the platform says "not ready" and not how long to wait."""

END_LOOK_SECONDS = 5.0
"""Time that a cell with an unknown end may wait for a look at its sandbox."""

LOOK_TWICE_SECONDS = 0.3
"""An end that loses variables is believed when a second look, so much later, sees it too: one
replica of the platform may be wrong."""


MEMORY_WARNING_PARTS = (0.85, 0.95)
"""A memory as full as this is told in the cell that runs; again when it was emptier meanwhile."""

MEMORY_REARM_PART = 0.05

LOST_BY_HIDDEN_CODE = (
    "The variables are gone, because the sandbox or its Python ended while code ran there that no "
    "cell shows."
)


class SandboxGate:
    """Makes sure that a usable sandbox, route and namespace exist before a cell is sent.

    It is the one place that knows when the sandbox was last heard of, and what happens when it is
    gone; whether variables of earlier cells were in it is the namespace's to know.

    Parameters
    ----------
    lifecycle
        The sandbox.
    choice
        The way into it.
    auto_create
        Whether a user's cell may start a sandbox.
    auto_create_hidden
        Whether a hidden cell may do so too, since a runner sends all cells hidden.
    fresh
        Whether the first cell must find an empty namespace.
    namespace
        The notebook's variables in this sandbox.

    Attributes
    ----------
    fresh_wanted
        Whether the next cell must still be given an empty namespace.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        choice: RouteChoice,
        *,
        auto_create: bool,
        auto_create_hidden: bool,
        fresh: bool,
        namespace: Namespace,
    ) -> None:
        self._lifecycle = lifecycle
        self._choice = choice
        self._auto_create = auto_create
        self._auto_create_hidden = auto_create_hidden
        self._keep_alive = KeepAlive(lifecycle, self)
        self._namespace = namespace
        self._contact: float | None = None
        self._seen_active = -math.inf
        self._noticed_routes: set[str] = set()
        self._not_ready_until = math.inf
        self._resources = Resources()
        self._memory_told = 0.0
        self.fresh_wanted = fresh

    @property
    def in_contact(self) -> bool:
        """Whether the last that was heard of the sandbox was good."""
        return self._contact is not None

    @property
    def contact_is_old(self) -> bool:
        """Whether anything may have become of the sandbox since it was heard of."""
        return self._contact is None or monotonic_seconds() - self._contact > CHECK_AFTER_SECONDS

    async def require_active(self) -> None:
        """See that a question would wake no sandbox: the user has run nothing. Starts nothing.

        Raises
        ------
        NoSandboxError
            When it is not there, or sleeps.
        """
        last = max(self._seen_active, -math.inf if self._contact is None else self._contact)
        if monotonic_seconds() - last <= CHECK_AFTER_SECONDS:
            return
        if (await self._lifecycle.look()).state != "active":
            self.out_of_contact()
            raise NoSandboxError(f"{self._lifecycle.name} has no sandbox running to be asked.")
        self._seen_active = monotonic_seconds()

    def begin(self) -> None:
        """Called when a cell's run begins: what is "not ready" is waited for only so long."""
        self._not_ready_until = monotonic_seconds() + self._lifecycle.start_timeout_seconds

    # -- before a cell

    async def prepare(self, cell: Cell, sink: Sink) -> Route:
        """See that all is there, and return the route that the cell shall go.

        Raises
        ------
        IvyError
            When it is not: says why. Nothing of the cell was run.
        """
        self.raise_loss()
        route = self._choice.route
        must_look = route is None or self._contact is None
        if must_look or (self.contact_is_old and route is not None and not route.notices_losses):
            await self.require_sandbox(cell, sink)
            route = self._choice.route  # unless it was terminated meanwhile
            if route is not None and self._namespace.holder:
                await self.check(route, sink)
        is_new = self._choice.route is None
        route = await self._when_ready(self.open_route, sink)
        if is_new and self._namespace.holder:  # of an earlier session's route
            await self.check(route, sink)
        if self.fresh_wanted:
            await route.restart()
            self.fresh_wanted = False
        if route.notice and route.name not in self._noticed_routes and not cell.silent:
            self._noticed_routes.add(route.name)
            sink(Message("stream", {"name": "stderr", "text": f"{route.notice}\n"}))
        return route

    async def require_sandbox(self, cell: Cell, sink: Sink) -> None:
        """Look at the sandbox; start it where that is allowed; return when a cell may be tried.

        Parameters
        ----------
        cell, sink
            The cell that needs it, and what shows the progress of a start.

        Raises
        ------
        SandboxLostError
            When it is gone, and variables with it.
        NoSandboxError
            When it is not there, and this cell may not start it.
        SandboxFailedError
            When it did not become ready.
        """
        self.raise_loss()
        status = await self._lifecycle.status()
        name = self._lifecycle.name
        if self._namespace.holder and status.state in END_STATES:
            await asyncio.sleep(LOOK_TWICE_SECONDS)
            status = await self._lifecycle.status()
        if status.state == "active":
            return
        if status.state in STARTING_STATES:
            await self.wait_until_ready(sink)
            return
        if status.state == "hibernating":  # a create in the middle of it is not documented
            status = await self._lifecycle.wait_until_ready()
            if status.state == "active":
                return
        # A loss is told before anything else: a new sandbox would hide it from the user.
        if self._namespace.holder:
            raise self._lost(status)
        is_meant = cell.store_history or (self._auto_create_hidden and not cell.silent)
        if status.state == "failed" and not is_meant:
            raise failed_error(name, status)
        if status.state == "unknown":
            return  # a word we do not know says nothing against trying
        if not is_meant:
            raise NoSandboxError(
                f"{name} has no sandbox running, and neither %ivy pull nor code that you did not "
                f"run yourself starts one. Nothing was run. Run a cell first; for a runner that "
                f"sends cells hidden, as nbval does, set auto_create_hidden "
                f"(IVY_AUTO_CREATE_HIDDEN=true)."
            )
        if not self._auto_create:
            raise NoSandboxError(
                f"{name} has no sandbox running, and the setting auto_create forbids to start "
                f"one. Nothing was run. Run %ivy create, then this cell again."
            )
        await self._lifecycle.create()
        await self.wait_until_ready(sink)

    async def require_for_command(self, sink: Sink) -> None:
        """See that the sandbox is there, as `require_sandbox` does, for a command that needs it.

        Raises
        ------
        IvyError
            As `require_sandbox`.
        """
        cell = Cell("")  # a command is the user's own
        self.begin()
        try:
            await self.require_sandbox(cell, sink)
        except SandboxLostError as loss:
            self.told(cell, loss)
            raise

    async def wait_until_ready(self, sink: Sink) -> SandboxStatus:
        """Wait for a sandbox that starts, with progress in the cell.

        Raises
        ------
        SandboxFailedError
            When it did not become ready.
        """
        progress = StartProgress(self._lifecycle.name, sink)
        try:
            status = await self._lifecycle.wait_until_ready(progress.show)
        except SandboxFailedError:
            if self._namespace.holder:  # it has run cells, so this is no start that failed
                raise self._lost(await self._lifecycle.status()) from None
            raise
        finally:
            progress.clear()
        if status.state not in ("active", "unknown"):
            if self._namespace.holder:
                raise self._lost(status)
            raise SandboxFailedError(
                f"{self._lifecycle.name} did not become ready: its state is now "
                f"{_state_word(status)}. Nothing of this cell was run. {self._advice(status)}"
            )
        return status

    async def wait_after(self, error: NotReadyError, sink: Sink) -> None:
        """Wait until the next try of what was "not ready", also if the status says that it is.

        Not for ever: after the time that a start may take, the error is the cell's end.
        """
        if monotonic_seconds() > self._not_ready_until:
            raise error
        await asyncio.sleep(error.retry_after_seconds or NOT_READY_PAUSE_SECONDS)
        await self.wait_until_ready(sink)

    async def check(self, route: Route, sink: Sink) -> None:
        """See that the variables of earlier cells are there.

        Raises
        ------
        SandboxLostError
            When they are gone, or taken for gone.
        """
        try:
            await self._when_ready(route.check, sink)
        except NotFoundError as error:
            raise await self.explained(error) from error
        except RouteError as error:
            self._let_go()
            raise SandboxLostError(
                f"The sandbox no longer runs what it ran before, so the variables are taken "
                f"for gone ({str(error).rstrip('.')})."
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

    async def _when_ready(self, work: Callable[[], Awaitable[Result]], sink: Sink) -> Result:
        """The result of what may be "not ready" for a while, and runs nothing of the user's."""
        while True:
            try:
                return await work()
            except NotReadyError as error:
                await self.wait_after(error, sink)

    # -- what became of a cell, and of the sandbox

    def ended(self, route: Route, outcome: Outcome) -> None:
        """Called when a cell that was sent has ended."""
        if self._choice.route is not route:
            return  # terminated, by the user's own wish, meanwhile
        is_in_contact = outcome.fate not in ("lost", "unknown")
        self._contact = monotonic_seconds() if is_in_contact else None
        if outcome.fate != "lost":
            self._namespace.holder = route.holder

    def failed(self, error: Exception, *, may_have_run: bool) -> None:
        """Called after an error: the next cell looks at the sandbox first."""
        if isinstance(error, SandboxBrokenError):
            self._let_go()
        self._contact = None
        route = self._choice.route
        if may_have_run and route is not None:  # and left variables
            self._namespace.holder = self._namespace.holder or route.holder

    async def explained(self, error: NotFoundError) -> IvyError:
        """Return what a 404 means: one replica's mistake, or the end of the sandbox."""
        status = await self._lifecycle.status()
        if status.state in ("active", "unknown") or status.state in STARTING_STATES:
            return error
        return self._lost(status) if self._namespace.holder else error

    async def sandbox_end(self) -> SandboxLostError | None:
        """Look whether the sandbox has ended under a cell, or before it; ``None`` if unknown."""
        try:
            status = await asyncio.wait_for(self._look_for_an_end(), END_LOOK_SECONDS)
        except (asyncio.TimeoutError, IvyError):
            return None
        if status.state not in END_STATES | {"hibernating"}:
            return None
        if status.state == "failed" and not self._namespace.holder:
            return None  # it never ran anything
        return self._lost(status)

    async def _look_for_an_end(self) -> SandboxStatus:
        status = await self._lifecycle.look()
        if status.state in END_STATES:
            await asyncio.sleep(LOOK_TWICE_SECONDS)
            status = await self._lifecycle.look()
        return status

    @property
    def has_variables(self) -> bool:
        """Whether a cell may have left variables that are not known, and told, to be gone."""
        return bool(self._namespace.holder)

    def raise_loss(self) -> None:
        """Raise a loss that no cell has told: nothing runs before that.

        Raises
        ------
        SandboxLostError
            When there is one.
        """
        loss = self._namespace.take_loss()
        if loss is not None:
            raise loss

    def told(self, cell: Cell, loss: SandboxLostError | None = None) -> None:
        """Called when a cell has ended as lost: the user knows, unless the cell is hidden."""
        self._namespace.forget()
        if cell.silent or not cell.store_history:
            self._namespace.lose(loss or SandboxLostError(LOST_BY_HIDDEN_CODE))

    def heard(self, event: Event, *, is_running: bool) -> Event | None:
        """Keep what an event says of the sandbox; return what the notebook is to be told.

        Parameters
        ----------
        event
            As the route tells it.
        is_running
            Whether a cell runs, in which a warning can be shown.
        """
        if not isinstance(event, ResourcesRead):
            if isinstance(event, AgentLost | Disconnected | Unreachable):
                self.out_of_contact()
            return event
        self._resources = event.resources
        # In a thread, since a cell may be about to end, and a disk may be slow.
        file = self._lifecycle.resources
        asyncio.get_running_loop().run_in_executor(None, file.write, event.resources)
        return self._low_memory() if is_running else None

    def _low_memory(self) -> MemoryLow | None:
        memory = self._resources.memory
        part = memory.part if memory is not None else 0.0
        level = max([0.0, *(each for each in MEMORY_WARNING_PARTS if part >= each)])
        if memory is not None and level > self._memory_told:
            self._memory_told = level
            return MemoryLow(memory)
        if part < self._memory_told - MEMORY_REARM_PART:
            self._memory_told = level
        return None

    def out_of_contact(self) -> None:
        """Have the next cell look at the sandbox first."""
        self._contact = None

    def forget(self) -> None:
        """Forget the sandbox of before: it is gone, and the user knows it."""
        self._let_go()
        self._namespace.forget()

    def _let_go(self) -> None:
        """Begin anew with the next cell; whether variables were lost is still known."""
        self._choice.forget()
        self._contact, self._seen_active = None, -math.inf
        self._resources, self._memory_told = Resources(), 0.0

    def close(self) -> None:
        """No cell will be prepared any more."""
        self._keep_alive.end()

    def _lost(self, status: SandboxStatus) -> SandboxLostError:
        """Let go of a sandbox that has ended; return the error that tells it."""
        had_variables = self._namespace.holder != "script"
        last_words = self._resources.last_words
        self._let_go()
        what = "the variables" if had_variables else "all that its cells had started"
        return SandboxLostError(
            f"{self._lifecycle.name} is gone (its state is now {_state_word(status)}), and {what} "
            f"with it.{last_words}",
            advice=self._advice(status),
        )

    def _advice(self, status: SandboxStatus) -> str:
        if self._auto_create:
            return f"Run it again to {_start(status)}."
        return f"Run %ivy create to {_start(status)}, then this cell again."


def _state_word(status: SandboxStatus) -> str:
    return f"'{state_words(status, monotonic_seconds())}'"


def _start(status: SandboxStatus) -> str:
    resumes = status.resumes(monotonic_seconds())
    return "resume it, with its files" if resumes else "start a new sandbox"


class KeepAlive:
    """Keeps the embedded local sandbox's server running while a notebook is open on it.

    Nothing of the kind is done to a sandbox in the cloud, which would be kept from hibernating.
    """

    def __init__(self, lifecycle: Lifecycle, gate: SandboxGate) -> None:
        self._lifecycle = lifecycle
        self._gate = gate
        self._task: asyncio.Future[None] | None = None

    def begin(self) -> None:
        """Called when cells can reach the sandbox; harmless when called again."""
        if self._lifecycle.local and self._task is None:
            self._task = asyncio.ensure_future(self._look())

    def end(self) -> None:
        """Called when the session is closed."""
        if self._task is not None:
            self._task.cancel()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._lifecycle.keep_alive_seconds)
            with suppress(IvyError):
                # Ivy's own status: that of Recoup may be another server's, and keeps nothing here.
                if (await self._lifecycle.look()).state in END_STATES:
                    self._gate.out_of_contact()
