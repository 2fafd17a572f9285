"""The interfaces of a route: what the session asks of it, and what it reports to."""

from __future__ import annotations

from typing import Literal, Protocol

from ivy_kernel.errors import SandboxLostError
from ivy_kernel.models import Cell, Json, Message, Outcome, Sink
from ivy_kernel.routes.events import EndingCall, Event

RouteName = Literal["agent", "notebook", "script"]


class BackgroundListener(Protocol):
    """Takes what a sandbox's kernel sends beside the messages of running cells."""

    def on_background(self, message: Message) -> None:
        """Called with each message that belongs to no running cell: of widgets, and of threads."""

    def on_event(self, event: Event) -> None:
        """Called with each event; see `ivy_kernel.routes.events`."""

    @property
    def is_behind(self) -> bool:
        """Whether so much waits to be shown that no more should be fetched for now."""


class RouteListener(BackgroundListener, Protocol):
    """Takes what a route reports while cells run and between them; the session is one."""

    async def sandbox_end(self) -> SandboxLostError | None:
        """Called for a cell whose end the route does not know, or whose calls are refused.

        Returns
        -------
        SandboxLostError | None
            Says that the sandbox has ended; ``None`` when that is not known.
        """


class WorkOwner(Protocol):
    """Wants work to be done beside cells in a sandbox's kernel; the session's recovery is one."""

    def configuration(self) -> Json | None:
        """Return what a new kernel is to be told with its first cell; ``None`` for nothing.

        Called by the agent route before a cell is sent to a kernel for the first time. It may hold
        a key: it goes to the sandbox alone.
        """

    def configured(self, holder: str, reply: Json | None, why: str) -> None:
        """Called with the kernel's reply to that, before the cell's own messages come.

        Parameters
        ----------
        holder
            The kernel, as in `Namespace`.
        reply
            The reply's content; ``None`` where the kernel cannot do such work.
        why
            Why not.
        """


class LiveKernel(Protocol):
    """A kernel behind a route that takes requests at any time, beside cells.

    Its methods raise `NoAnswerError` where the kernel is not connected, and `SandboxLostError`
    where it is gone; none of them starts a sandbox or a kernel.
    """

    @property
    def running_comms(self) -> bool:
        """Whether the kernel is working on a widget's message."""

    @property
    def earlier_runs(self) -> bool:
        """Whether the kernel is still working for an earlier client with the same key."""

    async def queue(self, request: Json) -> Json:
        """Ask about a run of cells that needs no client; return its record.

        Called by `ivy_kernel.session.runs`.

        Parameters
        ----------
        request
            ``{"queue": the run}``, ``{"look": its id}`` or ``{"cancel": its id}``. Repeated, it
            does nothing again.

        Raises
        ------
        WorkError
            When that is refused; says why.
        """

    async def follow(self) -> None:
        """Return when the earlier client's work is done, and its messages were shown as background.

        Called by the kernel after a reconnection.
        """

    async def control(self, header: Json, content: Json) -> Json:
        """Make a request on the control channel, such as ``debug_request``; the reply's content.

        Called by the kernel for requests that the sandbox's kernel must answer (message spec,
        "Debug request").
        """

    async def configure(self) -> None:
        """Have the kernel told, before any cell, what its `WorkOwner` wants; return when it is.

        Called by the session before it restores variables. It opens the route where need be.

        Raises
        ------
        WorkError
            When it cannot do such work.
        """

    async def work(self, content: Json, *, timeout_seconds: float = 60.0) -> Json:
        """Have the kernel's process do something beside cells, after those that it was given.

        Called by the session for checkpoints, packages and receipts. It is an ``ivy_work_request``
        on the shell channel (docs/agent-protocol.md, "Work beside cells").

        Parameters
        ----------
        content
            ``do`` names what to do; the rest depends on it.
        timeout_seconds
            For the reply, which waits behind a running cell.

        Returns
        -------
        Json
            The content of the reply.

        Raises
        ------
        WorkError
            When it was refused, or failed there.
        """

    async def send_comm(
        self, header: Json, content: Json, metadata: Json, buffers: tuple[bytes, ...]
    ) -> None:
        """Send a widget's message; return when the kernel is done with it.

        Called by the kernel for ``comm_open``, ``comm_msg`` and ``comm_close``.
        """

    async def interrupt(self) -> None:
        """Interrupt what the kernel is working on; see `Route.interrupt`."""

    async def answer_input(self, value: str, request: Message) -> None:
        """Answer an ``input_request``. Called by kernel and magics when the user has answered."""


class Route(Protocol):
    """A way of running cells in one sandbox through the platform's tools."""

    @property
    def name(self) -> RouteName:
        """The route's name, as in the settings."""

    @property
    def notice(self) -> str:
        """A notice about this route that the user sees once; empty for none."""

    @property
    def notices_losses(self) -> bool:
        """Whether `execute` notices by itself that variables are gone, before anything runs.

        If not, the session calls `check` after a while without contact.
        """

    @property
    def holder(self) -> str:
        """The Python that the last cell was sent to, as in `Namespace`."""

    @property
    def ending(self) -> EndingCall | None:
        """The call that ends the running cell in the sandbox; ``None`` where there is none."""

    @property
    def live(self) -> LiveKernel | None:
        """The kernel behind this route; ``None`` where cells are all that it can run."""

    async def open(self) -> None:
        """Get ready for cells. Runs nothing of the user's.

        Called by the session before the first cell, and again after `close` or a loss.

        Raises
        ------
        RouteError
            When this route cannot work in this sandbox; the session then tries the next one.
        """

    async def check(self) -> None:
        """Check that the variables of earlier cells are still there. Runs nothing of the user's.

        Called by the session before a cell, when the sandbox has not been heard of for a while.

        Raises
        ------
        SandboxLostError
            When they are gone; says why, as far as that is known.
        """

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

    async def ask(self, msg_type: str, content: Json) -> Json | None:
        """Answer a question about code, ``None`` when this route cannot.

        Called by the session while no cell runs, for ``complete_request`` and
        ``inspect_request`` (message spec, "Completion", "Introspection").
        """

    async def interrupt(self) -> None:
        """Ask for the running cell to stop; `execute` then ends soon, and says how it ended.

        Called by the session at any time; harmless when nothing runs.
        """

    async def restart(self) -> None:
        """Give the next cell a fresh namespace.

        Called by the session before the first cell after a restart of the kernel.
        """

    async def close(self, *, keep: bool) -> None:
        """Close the route. Called by the session at shutdown; must be quick.

        Parameters
        ----------
        keep
            Whether the variables are left for a later process, as at a restart of the kernel.
        """

    async def end_with_sandbox(self) -> None:
        """Close the route without calls, because its sandbox is gone; end the running cell.

        Called by the session when the user has terminated the sandbox.
        """

    def describe(self) -> Json:
        """Return what was found out about the sandbox, for ``doctor`` and ``%ivy status``."""
