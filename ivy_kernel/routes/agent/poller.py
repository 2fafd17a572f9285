"""Keeps long polls to the agent in flight.

The agent keeps all that the kernel sends in one log, and holds ("parks") each poll until there is
more of the log than the poll has asked from, or its wait is over. Every poll also carries the
submissions that are not acknowledged, so that a short cell costs one call. Responses may come late,
twice, out of order, or never; `Inbox` puts the slices in order, and a gap that lasts is asked for
again (``rewind``).
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ivy_kernel.errors import IvyError, NoAnswerError
from ivy_kernel.models import Json
from ivy_kernel.routes.agent.calls import AgentCalls, Submission
from ivy_kernel.routes.agent.failures import (
    ConnectionListener,
    Health,
    UnknownAgentError,
    provably_not_run,
)
from ivy_kernel.routes.agent.frames import (
    AgentResponse,
    AgentUnresponsiveError,
    CorruptedError,
    Inbox,
    NoAgentError,
    TruncatedError,
    to_kept_cells,
    to_resources,
)
from ivy_kernel.routes.agent.pacing import FIRST_LIMIT_CHARS, PollScheduler, ResponseSizeLimit
from ivy_kernel.routes.agent.requests import RequestTable
from ivy_kernel.routes.events import KeptCell, ResourcesRead

_log = logging.getLogger(__name__)

MAX_POLLS_IN_FLIGHT = 6
TICK_SECONDS = 0.1
"""The interval of the check for polls that are due, while anything is in flight."""

GAP_SECONDS = 0.3
"""A slice that is missing for longer is asked for again; a slow response may bring it sooner."""

OVERDUE_SECONDS = 2.0
"""A response so late after its poll's wait may be lost: another poll is sent beside it."""

OVERTAKEN_SECONDS = 0.5
"""A response that is missing so long after that of a later poll is late, or lost with its
connection: the agent answers the oldest poll first."""

SETTLE_SECONDS = 2.0
"""When the connection is over, calls under way end within this time, or are given up."""

BEHIND_FOR_SECONDS = 10.0
BEHIND_ROOM_BYTES = 1 << 21
"""For a while after more was waiting than can be shown, no answer brings more than this."""

KEPT_SLICE_BYTES = 4 << 20
KEPT_ATTEMPTS = 6
ASKING_ERRORS = (IvyError, NoAgentError, AgentUnresponsiveError, UnknownAgentError)
KEPT_PAUSE_SECONDS = 1.0
"""What an agent keeps is asked for in slices of this size, and so often, with a pause between."""

PROBE_DELAY_SECONDS = 0.15
"""The head start of a poll before its probe, so that it can be parked by then."""


@dataclass(eq=False)
class Poll:
    """A poll in flight, with the number of the last submission that it carries."""

    sent_at: float
    poll_wait_seconds: float
    last_sequence_number: int
    has_waited: bool = False
    overtaken_at: float = math.inf

    def is_overdue(self, now: float) -> bool:
        """Whether it should have been answered by now."""
        due = self.sent_at + self.poll_wait_seconds + OVERDUE_SECONDS
        return now > min(due, self.overtaken_at + OVERTAKEN_SECONDS)


class Poller:
    """Keeps long polls to one agent in flight, until it is closed or the connection is lost.

    Parameters
    ----------
    calls
        Makes the calls.
    scheduler
        Decides when to poll, and for how long.
    health
        Judges the calls that fail.
    table
        The requests in flight; takes the records of the agent's log.
    listener
        Told of failed polls, and of the end.
    held_limit_bytes
        How much of the log may be held that cannot be read yet.
    start
        The offset up to which the log was read by an earlier connection; 0 when by none.
    """

    def __init__(
        self,
        calls: AgentCalls,
        scheduler: PollScheduler,
        health: Health,
        table: RequestTable,
        listener: ConnectionListener,
        *,
        held_limit_bytes: int,
        start: int = 0,
    ) -> None:
        # Never beyond the log's end, whatever the agent says of it.
        base: int = calls.agent.header.get("base", 0)
        start = min(start, calls.agent.header.get("end", 0))
        self.inbox = Inbox(max(base, start), held_limit_bytes=held_limit_bytes)
        self.log = str(calls.agent.nonce)
        self.scheduler = scheduler
        self.size_limit = ResponseSizeLimit()
        self.calls = calls
        self._health = health
        self._outbox = calls.outbox
        self._table = table
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._polls: set[Poll] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._must_rewind = True  # the agent's cursor is where an earlier client left it
        self._gap: tuple[int, float] | None = None
        self._is_probing = False
        self._polls_of_activity = 0
        self._backlog_bytes = 0
        self._behind_at = float("-inf")

    # -- what the route asks

    def submit(self, body: Json) -> Submission:
        """Hand over an instruction, which the agent carries out once, after all earlier ones."""
        submission = self._outbox.add(body)
        self.scheduler.submitted(self._loop.time())
        self._polls_of_activity = 0
        self._schedule_polls()
        return submission

    def poll_for_background(self) -> None:
        """Poll although nothing was submitted: after attaching to an agent that was alive."""
        self.scheduler.expect_background(self._loop.time())
        self._schedule_polls()

    async def interrupt(
        self, target: str, *, deadline_seconds: float, is_moot: Callable[[], bool]
    ) -> str:
        """Have the agent interrupt a request; see `AgentCalls.interrupt`."""
        result = await self.calls.interrupt(
            target, deadline_seconds=deadline_seconds, is_moot=is_moot
        )
        self._schedule_polls()
        return result

    async def kept_cells(self) -> tuple[list[KeptCell], int]:
        """See `KeptOutputs.kept_cells`."""
        header = (await self._asked({"cells": True})).header
        return to_kept_cells(header.get("cells")), header.get("end", 0)

    async def read_kept(self, offset: int) -> tuple[int, bytes]:
        """See `KeptOutputs.read_kept`."""
        response = await self._asked({"read": [offset, KEPT_SLICE_BYTES]})
        return response.header.get("offset", offset), response.body

    async def _asked(self, request: Json) -> AgentResponse:
        """Ask for something beside the polls, in an answer of the size that gets through."""
        for is_last in (False,) * (KEPT_ATTEMPTS - 1) + (True,):
            limits = {"limit": self.size_limit.limit_chars, "plain": self.size_limit.may_be_plain}
            try:
                return await self.calls.send({**request, **limits}, self._outbox.take())
            except TruncatedError as error:
                self._take_size(error)
            except ASKING_ERRORS as error:
                if is_last or self._is_closed:
                    raise NoAnswerError(f"The sandbox did not answer: {error}") from error
                await asyncio.sleep(KEPT_PAUSE_SECONDS)
        raise NoAnswerError("No answer of the sandbox came through whole.")

    def _take_size(self, error: TruncatedError) -> None:
        """Learn from an answer that was cut off, or changed, on its way."""
        self.calls.counters.truncated_answers += 1
        if isinstance(error, CorruptedError):
            self.size_limit.corrupted(error.size_chars, was_plain=error.was_plain)
        else:
            self.size_limit.truncated(error.size_chars)

    def close(self) -> None:
        """Stop polling; the agent lives on."""
        self._is_closed = True
        self.calls.close()
        # A poll that has found out that the connection is lost must live to report it.
        current = asyncio.current_task()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            if task is not current:
                task.cancel()

    async def settle(self, limit_seconds: float = SETTLE_SECONDS) -> None:
        """Send no more polls, and let those under way end: it is known then what has arrived."""
        self._is_closed = True
        self.calls.close()
        tasks = self._tasks - {asyncio.current_task()}
        if tasks:
            await asyncio.wait(tasks, timeout=limit_seconds)

    # -- polls

    def _schedule_polls(self) -> None:
        """Send the polls that are due, and set the timer for the next ones."""
        if self._is_closed:
            return
        now = self._loop.time()
        while self._wants_poll(now):
            self._send_poll(now)
        self._set_timer(now)

    @property
    def _has_work(self) -> bool:
        """Whether a request of ours is in flight, or anything is on its way to the agent."""
        return self._table.is_active or self.calls.has_outgoing

    def _wants_poll(self, now: float) -> bool:
        if now < self._health.retry_at or len(self._polls) >= MAX_POLLS_IN_FLIGHT:
            return False
        if self._outbox.has_unsent:
            return True  # even beside a parked poll, which carries nothing any more
        if self._table.listener.is_behind:
            self._behind_at = now
            return False
        current = [poll for poll in self._polls if not poll.is_overdue(now)]
        if self._has_lasting_gap(now):
            self._must_rewind = True
            self._gap = None
            return True
        if self._outbox:  # an earlier poll would not bring what is unacknowledged to the agent
            last = self._outbox.last_sequence_number
            current = [poll for poll in current if poll.last_sequence_number == last]
        is_active = self._has_work or self._table.is_restarting
        wanted = self.scheduler.polls_wanted(now, is_active=is_active)
        # One at a time while all fail: each then tells what has arrived.
        return len(current) < (min(1, wanted) if self._health.is_failing else wanted)

    def _has_lasting_gap(self, now: float) -> bool:
        return self._gap is not None and (now - self._gap[1] > GAP_SECONDS or not self._polls)

    def _set_timer(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        is_active = self._has_work or self._table.is_restarting
        if is_active or self._gap is not None or self._table.listener.is_behind:
            pause = self._health.retry_at - now if self._health.retry_at > now else TICK_SECONDS
            self._timer = self._loop.call_later(pause, self._schedule_polls)
        elif self.scheduler.should_poll_later(now) or self._health.retry_at > now:
            at = max(self.scheduler.idle_start(now), self._health.retry_at)
            self._timer = self._loop.call_at(at + 0.001, self._schedule_polls)

    def _send_poll(self, now: float) -> None:
        is_active = self._has_work
        poll_wait_seconds = self.scheduler.poll_wait_seconds(now, is_active=is_active)
        poll_options: Json = {
            "since": self.inbox.offset,
            "rewind": self._must_rewind,
            "wait": poll_wait_seconds,
            "grace": round(self.scheduler.batching_delay(now, is_active=is_active), 3),
            "limit": self.size_limit.limit_chars,
            "plain": self.size_limit.may_be_plain,
            "keep": max(1, self.scheduler.polls_wanted(now, is_active=is_active)),
            "idle": not is_active,
        }
        if now - self._behind_at < BEHIND_FOR_SECONDS:
            poll_options["room"] = BEHIND_ROOM_BYTES
        # Once is enough: of polls that are sent together only the first may move the agent's cursor
        # back, or all of them would bring the same slice.
        self._must_rewind = False
        if not is_active:
            self.scheduler.idle_poll_sent(now)
        poll = Poll(now, poll_wait_seconds, self._outbox.last_sequence_number)
        self._polls.add(poll)
        self._start(self._poll(poll, {"poll": poll_options}, self._outbox.take()))
        self._polls_of_activity += 1
        # A cell's first poll is not probed: most cells end with it, and a probe is a call more.
        may_probe = self.scheduler.wants_probe(now) and not self._is_probing
        if may_probe and (self._polls_of_activity > 1 or not is_active):
            self._is_probing = True
            self._start(self._probe(poll))

    def _start(self, coroutine: Any) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _poll(self, poll: Poll, request: Json, submissions: list[Submission]) -> None:
        try:
            response = await self.calls.send(request, submissions, poll.poll_wait_seconds)
            self._polls.discard(poll)
            self._succeeded(poll, response)
        except Exception as error:  # of any kind: a poll that ended unnoticed would end polling
            self._polls.discard(poll)
            self._failed(poll, error)
        self._schedule_polls()

    # -- what becomes of a poll

    def _succeeded(self, poll: Poll, response: AgentResponse) -> None:
        now = self._loop.time()
        self._health.succeeded()
        for other in self._polls:
            if other.sent_at < poll.sent_at:
                other.overtaken_at = min(other.overtaken_at, now)
        header = response.header
        parked_seconds = header.get("parked_seconds", 0.0)
        # What is left is the time that the response itself took: the line's speed.
        self.size_limit.accepted(response.size_chars, now - poll.sent_at - parked_seconds)
        if parked_seconds >= poll.poll_wait_seconds:
            poll.has_waited = True
            self.scheduler.waited(poll.poll_wait_seconds)
        resources = to_resources(header.get("resources"))
        if resources is not None:
            self._health.resources = resources
            self._table.listener.on_event(ResourcesRead(resources))
        was_active = self._table.is_active  # before the records, which may end requests
        offset = header.get("offset", 0)
        for record in self.inbox.add(offset, response.body):
            self._hand_on(record)
        self._backlog_bytes = header.get("end", 0) - self.inbox.offset
        self._look_for_gap(offset, now)
        self._look_for_drain(header)
        is_active = self._table.is_active
        if not is_active:
            self._polls_of_activity = 0
        self.scheduler.answered(
            now,
            has_output=bool(response.body),
            was_active=was_active,
            is_active=is_active,
            may_send_background=bool(header.get("background") or header.get("pending")),
        )

    def _hand_on(self, record: Json) -> None:
        try:
            self._table.on_record(record)
        except Exception:  # one message that cannot be shown must not cost the following ones
            _log.exception("A message from the sandbox could not be handed on.")

    def _look_for_gap(self, offset: int, now: float) -> None:
        """Notice a slice that is missing: the response that brings it is late, or lost."""
        if offset <= self.inbox.offset and not self.inbox.has_gap:
            self._gap = None
        elif self._gap is None or self._gap[0] != self.inbox.offset:
            self._gap = (self.inbox.offset, now)

    def _look_for_drain(self, header: Json) -> None:
        """Notice that the agent has nothing pending and that all of its log has been read.

        Only then may a request without an end be given up: its reply can be in no later slice, and
        no submission of ours can still be on its way.
        """
        has_everything = (
            header.get("pending") == 0
            and header.get("acknowledged") == self._outbox.last_sequence_number
            and header.get("end") == self.inbox.offset
        )
        if has_everything:
            self._table.on_drained()

    def _failed(self, poll: Poll, error: Exception) -> None:
        if self._is_closed:
            return
        now = self._loop.time()
        # The agent may have written a slice into the response that is lost: ask for it again.
        self._must_rewind = True
        self.calls.counters.failed_calls += 1
        if isinstance(error, TruncatedError):
            self._take_size(error)
        elif self._backlog_bytes > FIRST_LIMIT_CHARS and not provably_not_run(error):
            self.size_limit.failed()
        # First, because what is withdrawn here is no reason to be patient below.
        self._listener.on_failed_call(error)
        self.scheduler.failed(error, now, asked=poll.poll_wait_seconds, lasted=now - poll.sent_at)
        verdict = self._health.failed(error, now, may_be_running=self._table.may_be_running)
        if verdict is not None and self._polls:
            self._start(self._end(verdict))
        elif verdict is not None:
            self.close()
            self._listener.on_connection_lost(verdict)

    async def _end(self, verdict: Exception) -> None:
        """End when the other polls have ended: what they carry may have arrived until then."""
        await self.settle()
        self.close()
        self._listener.on_connection_lost(verdict)

    # -- whether calls may overlap

    async def _probe(self, poll: Poll) -> None:
        """Find out whether calls may overlap: ask while a poll should be parked how many are.

        Where the platform queues calls, this one comes through after the poll has ended.
        """
        try:
            await asyncio.sleep(PROBE_DELAY_SECONDS)
            if poll not in self._polls:
                return
            response = await self.calls.send({"ping": secrets.token_hex(4)}, self._outbox.take())
        except Exception:  # its failure says nothing; a later poll is probed instead
            return
        finally:
            self._is_probing = False
        if response.header.get("parked", 0) > 0:
            self.scheduler.overlap_seen()
        elif poll.has_waited:
            self.scheduler.queueing_seen(self._loop.time())
        self._schedule_polls()
