"""Our hold on an agent: found or started when it is needed, lost and found again, let go."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable

from ivy_kernel.errors import NoAnswerError, SandboxError, SandboxLostError
from ivy_kernel.models import Json
from ivy_kernel.routes.agent.calls import (
    NOTEBOOK_TOOL,
    Carrier,
    Contact,
    Counters,
    Exchange,
    ToolCall,
)
from ivy_kernel.routes.agent.events import (
    AgentLost,
    AgentOpened,
    Event,
    ReachableAgain,
    Unreachable,
)
from ivy_kernel.routes.agent.failures import Health
from ivy_kernel.routes.agent.pacing import Pacing
from ivy_kernel.routes.agent.poller import Link
from ivy_kernel.routes.agent.requests import Docket
from ivy_kernel.routes.agent.start import Ladder


class Attachment:
    """Opens the link when it is first needed, and knows what became of earlier ones.

    Parameters
    ----------
    call
        Runs code by a tool; see ``AgentRoute``.
    ladder
        Finds or starts the agent.
    docket
        What is under way.
    counters
        Where calls are counted.
    on_event
        Takes events.
    on_failed_call
        Called after each failed call: what it carried may be known not to have arrived.
    wait_seconds, idle_poll_seconds, give_up_seconds, held_limit_bytes
        See ``AgentRoute``, `Pacing`, `Health` and `Link`.
    """

    def __init__(
        self,
        call: ToolCall,
        ladder: Ladder,
        docket: Docket,
        counters: Counters,
        *,
        on_event: Callable[[Event], None],
        on_failed_call: Callable[[], None],
        wait_seconds: float,
        idle_poll_seconds: float,
        give_up_seconds: float,
        held_limit_bytes: int,
    ) -> None:
        self._call = call
        self._ladder = ladder
        self._docket = docket
        self._counters = counters
        self._on_event = on_event
        self._on_failed_call = on_failed_call
        self._wait_seconds = wait_seconds
        self._idle_poll_seconds = idle_poll_seconds
        self._give_up_seconds = give_up_seconds
        self._held_limit_bytes = held_limit_bytes
        self._pacing: Pacing | None = None
        self._opening: asyncio.Task[Link] | None = None
        self._loss: SandboxLostError | None = None
        self._known: tuple[str, int] | None = None
        self._is_closed = False
        self.link: Link | None = None

    async def opened(self) -> Link:
        """The link, opened if need be; callers at the same time share one attempt.

        Raises
        ------
        RouteError, ApiError, NetworkError
            There is no agent, or no way to it.
        """
        self._refuse_when_closed()
        if self.link is not None:
            return self.link
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
            self._opening.add_done_callback(self._on_opening_done)
        link = await asyncio.shield(self._opening)
        self._refuse_when_closed()
        return link

    def open_link(self) -> Link:
        """The link, if there is one: what the user did not run starts nothing.

        Raises
        ------
        NoAnswerError
            There is none.
        """
        self._refuse_when_closed()
        if self.link is None:
            raise NoAnswerError("The sandbox's kernel is not connected; the next cell connects it.")
        return self.link

    def raise_loss(self) -> None:
        """Say that the variables are gone, once, instead of running a cell without them."""
        loss, self._loss = self._loss or self._docket.take_notice(), None
        if loss is not None:
            raise loss

    def forget_loss(self) -> None:
        """The user knows that the variables are gone: a restart was asked for."""
        self._loss = None
        self._docket.take_notice()

    def refuse(self) -> None:
        """Open nothing any more."""
        self._is_closed = True

    async def settled(self, seconds: float) -> None:
        """Return when an attempt to open has come to an end, or the time is up."""
        if self._opening is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(asyncio.shield(self._opening), seconds)

    def close(self) -> None:
        """Let go of the agent, which lives on; what is under way is called unknown."""
        self.refuse()
        if self._opening is not None:
            self._opening.cancel()
        if self.link is not None:
            self.link.close()
            self.link = None
        self._docket.end_all(SandboxError("This session was closed."))

    def describe(self) -> Json:
        """How the agent is reached, and how well."""
        link, pacing = self.link, self._pacing
        return {
            "is_open": link is not None,
            "rung": str(link.carrier.contact.rung) if link else "",
            "reasons": list(self._ladder.reasons),
            "directory": link.carrier.contact.directory if link else "",
            "calls_may_overlap": pacing.may_overlap if pacing else None,
            "wait_limit_seconds": pacing.wait_limit_seconds if pacing else None,
            "answer_limit_chars": link.portions.limit_chars if link else None,
            "unreadable_records": link.inbox.unreadable_records if link else 0,
            **vars(self._counters),
        }

    def _refuse_when_closed(self) -> None:
        if self._is_closed:
            raise SandboxError("This session is closed; restart the kernel to open it again.")

    def _on_opening_done(self, task: asyncio.Task[Link]) -> None:
        self._opening = None
        if not task.cancelled():
            task.exception()  # retrieved here, because perhaps nobody waits any more

    async def _open(self) -> Link:
        contact = await self._ladder.open(secrets.token_hex(16))
        is_notebook = contact.rung.speaker == NOTEBOOK_TOOL
        self._pacing = self._pacing or Pacing(
            wait_seconds=self._wait_seconds,
            idle_poll_seconds=self._idle_poll_seconds,
            may_overlap=False if is_notebook else None,
        )
        self._docket.expect_restart("")
        self._docket.generation = contact.header.get("generation") or 1
        self._compare(contact)
        link = self._link_to(contact, self._pacing)
        self.link = link
        running = tuple(str(i) for i in contact.header.get("under_way") or ())
        self._on_event(AgentOpened(contact.is_found, running))
        if contact.is_found:
            link.listen()
        return link

    def _compare(self, contact: Contact) -> None:
        """See whether the variables are where they were before calls were given up."""
        known, self._known = self._known, None
        generation = self._docket.generation
        if known == (contact.nonce, generation):
            return
        if known is not None:
            what = "kernel" if known[0] == contact.nonce else "agent"
            self._loss = SandboxLostError(
                f"The variables are gone, because the sandbox's {what} was started anew while it "
                f"could not be reached."
            )
        # What is about to be told is not to be told again when the log's old events are read.
        self._docket.used_generation = 0 if self._loss is None else generation

    def _link_to(self, contact: Contact, pacing: Pacing) -> Link:
        docket = self._docket
        exchange = Exchange(self._call, contact.rung.speaker, contact.directory, self._counters)
        return Link(
            Carrier(exchange, contact, on_failed_call=self._on_failed_call),
            pacing,
            Health(
                give_up_seconds=self._give_up_seconds,
                is_at_work=lambda: docket.is_at_work,
                on_reachable=self._on_reachable,
            ),
            is_active=lambda: docket.is_active,
            is_expecting=lambda: docket.is_expecting,
            on_record=docket.on_record,
            on_silence=docket.on_silence,
            on_over=self._on_over,
            on_failed_call=self._on_failed_call,
            held_limit_bytes=self._held_limit_bytes,
        )

    def _on_over(self, reason: Exception) -> None:
        link, self.link = self.link, None
        self._docket.kernel = None
        if link is not None and not isinstance(reason, SandboxLostError):
            self._known = (link.carrier.contact.nonce, self._docket.generation)
        is_told = self._docket.end_all(reason)
        if isinstance(reason, SandboxLostError):
            self._on_event(AgentLost(str(reason)))
            self._loss = None if is_told else reason

    def _on_reachable(self, error: Exception | None) -> None:
        self._on_event(ReachableAgain() if error is None else Unreachable(error))
