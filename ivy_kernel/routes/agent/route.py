"""The agent route: cells run in a kernel that our agent keeps in the sandbox."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import re
import secrets
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Literal

from ivy_kernel.agent import PROTOCOL_VERSION
from ivy_kernel.errors import NoAnswerError, SandboxError, SandboxLostError
from ivy_kernel.models import Cell, Channel, Json, Message, Outcome, Sink
from ivy_kernel.routes.agent.docket import Docket
from ivy_kernel.routes.agent.events import (
    AgentLost,
    AgentOpened,
    Event,
    ReachableAgain,
    Unreachable,
)
from ivy_kernel.routes.agent.exchange import NOTEBOOK_TOOL, Counters, Exchange, ToolCall
from ivy_kernel.routes.agent.ladder import RUNGS, Contact, Ladder, Rung
from ivy_kernel.routes.agent.link import Link
from ivy_kernel.routes.agent.outcomes import execute_content, fate_in_words, fate_of, told
from ivy_kernel.routes.agent.pacing import Pacing
from ivy_kernel.routes.agent.pending import EndedError, Pending

Interrupted = Literal["sent", "armed", "finished", "unreachable"]

RESTART_SECONDS = 60.0
READY_POLL_SECONDS = 0.02
SHUTDOWN_SECONDS = 4.0
COMM_SECONDS = 60.0
HELD_TIMES = 4
"""How much more than the agent keeps of its output may be held here: replies it keeps always."""


def directory_key(session_key: str) -> str:
    """The private directory's name part for a session; other protocol versions keep out of it."""
    plain = re.fullmatch(r"[A-Za-z0-9_-]{1,20}", session_key)
    key = session_key if plain else hashlib.sha256(session_key.encode()).hexdigest()[:16]
    return f"{key}.{PROTOCOL_VERSION}"


class AgentRoute:
    """Runs cells through the agent. Not thread-safe: everything happens on one event loop.

    Parameters
    ----------
    call
        ``await call(tool_name, code, timeout_seconds)`` runs code by one of the platform's tools
        and returns its decoded JSON. It raises the errors of ``ivy_kernel.errors`` and never
        repeats a call by itself.
    session_key
        Names the session in the sandbox: another route with the same key attaches to the same
        living kernel, and takes over from this one.
    on_background
        Takes messages whose parent is no running cell of this route: of threads, of widgets'
        callbacks, of a cell of an earlier client.
    on_event
        Takes :data:`ivy_kernel.routes.agent.events.Event`.
    rungs, directories
        How and where to start the agent; the defaults try everything.
    kernel
        ``auto``, ``ipykernel`` or ``shell`` (the built-in one).
    environment
        Set for the agent, its kernel and all cells.
    wait_seconds
        The longest time that a call waits for output.
    idle_poll_seconds
        How long after the last activity widgets and threads are listened to between cells.
    idle_lifetime_seconds
        After how long without contact the agent ends itself and the kernel.
    log_limit_bytes
        How much output is kept in the sandbox for a reader that does not come.
    open_limit_seconds
        How long calls may fail while the agent is looked for.
    give_up_seconds
        How long calls may fail before the outcome of what is running is called unknown.
    """

    def __init__(
        self,
        call: ToolCall,
        *,
        session_key: str,
        on_background: Callable[[Message], None] | None = None,
        on_event: Callable[[Event], None] | None = None,
        rungs: tuple[Rung, ...] = RUNGS,
        directories: tuple[str, ...] = (),
        kernel: str = "auto",
        environment: dict[str, str] | None = None,
        wait_seconds: float = 25.0,
        idle_poll_seconds: float = 300.0,
        idle_lifetime_seconds: float = 45 * 60.0,
        log_limit_bytes: int = 64 << 20,
        open_limit_seconds: float = 90.0,
        give_up_seconds: float = 900.0,
    ) -> None:
        self._call = call
        self._on_event = on_event or _ignore
        self._on_background = on_background or _ignore
        self._give_up_seconds = give_up_seconds
        self._held_limit_bytes = HELD_TIMES * log_limit_bytes
        self._wait_seconds = wait_seconds
        self._idle_poll_seconds = idle_poll_seconds
        self._counters = Counters()
        self._ladder = Ladder(
            call,
            directory_key(session_key),
            self._counters,
            rungs=rungs,
            directories=directories,
            environment=environment,
            give_up_seconds=open_limit_seconds,
            options={
                "kernel": kernel,
                "idle_lifetime_seconds": idle_lifetime_seconds,
                "log_limit_bytes": log_limit_bytes,
            },
        )
        self._pacing: Pacing | None = None
        self._docket = Docket(self._on_background, self._on_event)
        self._link: Link | None = None
        self._opening: asyncio.Task[Link] | None = None
        self._loss: Exception | None = None
        self._known: tuple[str, int] | None = None
        self._is_closed = False

    # -- the agent's life

    async def open(self) -> None:
        """Find or start the agent. Runs no cell; callers at the same time share one attempt.

        Raises
        ------
        RouteError
            No agent can live in this sandbox; the words give the reasons.
        ApiError, NetworkError
            The platform refuses the calls or cannot be reached.
        """
        await self._opened()

    async def restart(self) -> None:
        """Replace the kernel by a new one with an empty namespace.

        Raises
        ------
        NoAnswerError
            The new kernel has not come up, or nobody could be asked.
        """
        link = await self._opened()
        self._loss = None
        self._docket.take_notice()
        restart_id = secrets.token_hex(8)
        self._docket.expect_restart(restart_id)
        link.submit({"do": "restart", "id": restart_id})
        deadline = asyncio.get_running_loop().time() + RESTART_SECONDS
        while self._docket.is_expecting:
            if self._link is not link or asyncio.get_running_loop().time() > deadline:
                self._docket.expect_restart("")
                raise NoAnswerError("The sandbox's kernel did not come up after the restart.")
            await asyncio.sleep(READY_POLL_SECONDS)

    async def shutdown(self) -> None:
        """End the agent and its kernel, as far as they can be reached within a few seconds."""
        self._is_closed = True
        if self._opening is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(asyncio.shield(self._opening), SHUTDOWN_SECONDS)
        link = self._link
        if link is not None:
            await link.ask({"shutdown": True}, deadline_seconds=SHUTDOWN_SECONDS)
        self._close()

    async def detach(self) -> None:
        """Leave the agent and its kernel living, for a later route with the same key."""
        self._is_closed = True
        self._close()

    # -- cells

    async def execute(self, cell: Cell, sink: Sink) -> Outcome:
        """Run a cell and return how it ended. It is submitted once and never again.

        The cell's messages go to ``sink`` as they are, but for ``status`` and ``execute_input``,
        which a front end gets from its own kernel. A cell whose end was not told gets an ``error``
        message that says the same as the outcome.

        Raises
        ------
        SandboxLostError
            Noticed before the cell ran: the variables of earlier cells are gone. Said once.
        RouteError, ApiError, NetworkError
            The cell has not run, because there is no agent or no way to it.
        """
        header = self._header("execute_request", cell.header)
        pending = Pending(str(header["msg_id"]), is_cell=True, sink=sink)
        self._docket.add(pending)
        try:
            link = self._link
            if link is None:
                link = await pending.unless_ended(self._opened())
            self._raise_loss()
            self._docket.used_generation = self._docket.generation
            self._submit(link, pending, "shell", header, execute_content(cell), {}, ())
            reply = await pending.wait()
        except EndedError as ended:
            if ended.fate == "interrupted":
                return told(sink, "interrupted", str(ended.cause))
            if ended.has_not_run:
                raise ended.cause from None
            return told(sink, ended.fate, fate_in_words(ended))
        finally:
            self._docket.remove(pending)
        content = dict(reply.content) if reply is not None else {}
        return Outcome(fate_of(content, was_interrupted=pending.was_interrupted), content)

    async def interrupt(self, msg_id: str, *, deadline_seconds: float = 20.0) -> Interrupted:
        """Interrupt one cell, or one widget's message, wherever it is on its way.

        What has provably not reached the agent is taken back, now or as soon as that is known.

        Returns
        -------
        str
            ``sent``: it was running and the kernel has been signalled. ``armed``: it has not begun,
            and will be stopped when it does. ``finished``: there is nothing to stop, or no longer.
            ``unreachable``: nobody could be asked in time; later calls go on asking.
        """
        pending = self._docket.get(msg_id)
        if pending is not None:
            pending.was_interrupted = True
            self._withdraw(pending)
        link = self._link
        if link is None or (pending is not None and pending.is_done):
            return "finished"
        said = await link.interrupt(
            msg_id,
            deadline_seconds=deadline_seconds,
            is_moot=lambda: pending is not None and pending.is_done,
        )
        for word in ("sent", "armed", "finished"):
            if said == word:
                return word
        return "finished" if pending is not None and pending.is_done else "unreachable"

    def give_up(self, msg_id: str) -> None:
        """Stop waiting for a cell: its outcome is called unknown, or "not run" where that is so.

        Called by the kernel when the user interrupts a second time and nobody can be reached.
        """
        pending = self._docket.get(msg_id)
        if pending is None or self._withdraw(pending):
            return
        pending.end(EndedError("unknown", SandboxError("Given up while it was running.")))
        self._docket.remove(pending)

    async def follow(self) -> None:
        """Return when the kernel has nothing under way, and all that it said has arrived.

        Called after attaching to a kernel that was still working for an earlier client, whose
        messages go to ``on_background`` meanwhile.

        Raises
        ------
        SandboxLostError
            The kernel, or the agent, has ended meanwhile.
        """
        pending = Pending(secrets.token_hex(16), awaits_silence=True)
        self._docket.add(pending)
        try:
            link = await self._opened()
            pending.submission = link.submit({"do": "nothing"})
            await pending.wait()
        except EndedError as ended:
            raise ended.cause from None
        finally:
            self._docket.remove(pending)

    async def answer_input(self, value: str, *, request: Message | None = None) -> None:
        """Answer an ``input_request`` (message spec, "Messages on the stdin channel").

        Raises
        ------
        NoAnswerError
            The agent that asked is gone.
        """
        link = self._open_link()
        parent = (request.header if request is not None else None) or {}
        body = self._body("stdin", self._header("input_reply"), {"value": value, "status": "ok"})
        body["p"] = parent
        link.submit(body)

    # -- everything else

    async def request(
        self,
        msg_type: str,
        content: Json,
        *,
        header: Json | None = None,
        channel: Channel = "shell",
        timeout_seconds: float,
        metadata: Json | None = None,
        buffers: tuple[bytes, ...] = (),
    ) -> Message:
        """Ask the kernel something and return its reply: completion, inspection, history, ….

        Never looks for an agent, nor starts one: that is for cells alone.

        Raises
        ------
        NoAnswerError
            No reply came within ``timeout_seconds``, or no agent is known.
        SandboxLostError
            The kernel that was asked is gone.
        """
        header = self._header(msg_type, header)
        pending = Pending(str(header["msg_id"]), needs_idle=False)
        reply = await self._await(
            pending, channel, header, content, metadata or {}, buffers, timeout_seconds
        )
        if reply is None:
            raise NoAnswerError(f"The sandbox's kernel did not reply to {msg_type}.")
        return reply

    async def send_comm(
        self,
        header: Json,
        content: Json,
        metadata: Json | None = None,
        buffers: tuple[bytes, ...] = (),
        *,
        timeout_seconds: float = COMM_SECONDS,
    ) -> None:
        """Hand a ``comm_open``, ``comm_msg`` or ``comm_close`` over; returns at the remote "idle".

        Front ends drop a widget's callbacks at "idle", so it must not be told too early.

        Raises
        ------
        NoAnswerError
            No agent is known; none is looked for.
        """
        self._open_link()
        header = self._header(str(header.get("msg_type", "comm_msg")), header)
        pending = Pending(str(header["msg_id"]), needs_reply=False)
        with contextlib.suppress(NoAnswerError):
            await self._await(
                pending, "shell", header, content, metadata or {}, buffers, timeout_seconds
            )

    def describe(self) -> Json:
        """The route as it stands, for ``doctor`` and ``%ivy status``."""
        link, kernel = self._link, self._docket.kernel
        return {
            "route": "agent",
            "is_open": link is not None,
            "rung": str(link.contact.rung) if link else "",
            "reasons": list(self._ladder.reasons),
            "directory": link.contact.directory if link else "",
            "calls_may_overlap": self._pacing.may_overlap if self._pacing else None,
            "wait_limit_seconds": self._pacing.wait_limit_seconds if self._pacing else None,
            "answer_limit_chars": link.portions.limit_chars if link else None,
            "kernel_kind": kernel.kind if kernel else "",
            "kernel_features": list(kernel.features) if kernel else [],
            "python_version": kernel.python_version if kernel else "",
            "generation": self._docket.generation,
            "dropped_messages": self._docket.dropped_messages,
            "unreadable_records": link.inbox.unreadable_records if link else 0,
            **vars(self._counters),
        }

    # -- inside

    async def _opened(self) -> Link:
        self._refuse_when_closed()
        if self._link is not None:
            return self._link
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
            self._opening.add_done_callback(self._on_opening_done)
        link = await asyncio.shield(self._opening)
        self._refuse_when_closed()
        return link

    def _open_link(self) -> Link:
        """The link, if there is one: what the user did not run starts nothing."""
        self._refuse_when_closed()
        if self._link is None:
            raise NoAnswerError("The sandbox's kernel is not connected; the next cell connects it.")
        return self._link

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
        self._link = link
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
        return Link(
            Exchange(self._call, contact.rung.speaker, contact.directory, self._counters),
            contact,
            pacing,
            is_active=lambda: self._docket.is_active,
            is_expecting=lambda: self._docket.is_expecting,
            is_at_work=lambda: self._docket.is_at_work,
            on_record=self._docket.on_record,
            on_silence=self._docket.on_silence,
            on_over=self._on_over,
            on_reachable=self._on_reachable,
            on_failed_call=self._withdraw_unwanted,
            give_up_seconds=self._give_up_seconds,
            held_limit_bytes=self._held_limit_bytes,
        )

    def _on_over(self, reason: Exception) -> None:
        link, self._link = self._link, None
        self._docket.kernel = None
        is_loss = isinstance(reason, SandboxLostError)
        if link is not None and not is_loss:
            self._known = (link.contact.nonce, self._docket.generation)
        is_told = self._docket.end_all(reason)
        if is_loss:
            self._on_event(AgentLost(str(reason)))
            self._loss = None if is_told else reason

    def _withdraw(self, pending: Pending) -> bool:
        """Take back what has provably not reached the agent; whether that was so."""
        submission, link = pending.submission, self._link
        if submission is not None and not (link is not None and link.outbox.withdraw(submission)):
            return False
        pending.end(EndedError("interrupted", SandboxError("Interrupted before it ran.")))
        self._docket.remove(pending)
        return True

    def _withdraw_unwanted(self) -> None:
        for pending in self._docket.unwanted:
            self._withdraw(pending)

    def _on_reachable(self, error: Exception | None) -> None:
        self._on_event(ReachableAgain() if error is None else Unreachable(error))

    def _raise_loss(self) -> None:
        """Say that the variables are gone, once, instead of running a cell without them."""
        loss, self._loss = self._loss or self._docket.take_notice(), None
        if loss is not None:
            raise loss

    def _close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        if self._link is not None:
            self._link.close()
            self._link = None
        self._docket.end_all(SandboxError("This session was closed."))

    async def _await(
        self,
        pending: Pending,
        channel: Channel,
        header: Json,
        content: Json,
        metadata: Json,
        buffers: tuple[bytes, ...],
        timeout_seconds: float,
    ) -> Message | None:
        self._docket.add(pending)
        try:
            ask = self._submitted(pending, channel, header, content, metadata, buffers)
            return await asyncio.wait_for(ask, timeout_seconds)
        except asyncio.TimeoutError:
            raise NoAnswerError(
                f"The sandbox's kernel did not reply within {timeout_seconds:g} s."
            ) from None
        except EndedError as ended:
            raise ended.cause from None
        finally:
            self._docket.remove(pending)

    async def _submitted(
        self,
        pending: Pending,
        channel: Channel,
        header: Json,
        content: Json,
        metadata: Json,
        buffers: tuple[bytes, ...],
    ) -> Message | None:
        self._submit(self._open_link(), pending, channel, header, content, metadata, buffers)
        return await pending.wait()

    def _submit(
        self,
        link: Link,
        pending: Pending,
        channel: Channel,
        header: Json,
        content: Json,
        metadata: Json,
        buffers: tuple[bytes, ...],
    ) -> None:
        body = self._body(channel, header, content)
        body["m"] = metadata
        if buffers:
            body["b"] = [base64.b64encode(buffer).decode("ascii") for buffer in buffers]
        pending.submission = link.submit(body)

    def _body(self, channel: Channel, header: Json, content: Json) -> Json:
        return {"c": channel, "h": header, "d": content, "g": self._docket.generation}

    @staticmethod
    def _header(msg_type: str, header: Json | None = None) -> Json:
        """A message header; the front end's own where there is one, without its subshell."""
        made = {
            "msg_id": secrets.token_hex(16),
            "msg_type": msg_type,
            "username": "ivy",
            "session": "ivy",
            "date": datetime.now(timezone.utc).isoformat(),
            "version": "5.3",
        }
        made.update(header or {})
        made.pop("subshell_id", None)
        return made


def _ignore(_: object) -> None:
    """Take something nobody asked for."""
