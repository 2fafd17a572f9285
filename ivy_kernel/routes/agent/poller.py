"""Keeps polls in flight, so that what is submitted arrives once and what is said arrives soon."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ivy_kernel.models import Json
from ivy_kernel.routes.agent.calls import AgentCalls, Submission
from ivy_kernel.routes.agent.failures import Health, provably_not_run
from ivy_kernel.routes.agent.frames import (
    HELD_LIMIT_BYTES,
    Answer,
    ChangedError,
    Inbox,
    TruncatedError,
)
from ivy_kernel.routes.agent.pacing import FIRST_LIMIT_CHARS, PollScheduler, ResponseSizeLimit

_log = logging.getLogger(__name__)

POLLS_LIMIT = 6
TICK_SECONDS = 0.1
GAP_SECONDS = 0.3
OVERDUE_SECONDS = 2.0
PROBE_DELAY_SECONDS = 0.15


@dataclass(eq=False)
class Poll:
    """A poll in flight."""

    sent_at: float
    wait_seconds: float
    has_waited: bool = False

    def is_overdue(self, now: float) -> bool:
        """Whether it should have been answered by now; another is sent beside it."""
        return now > self.sent_at + self.wait_seconds + OVERDUE_SECONDS


class RequestsInFlight(Protocol):
    """What a poller must know of the requests in flight, and what it hands them."""

    @property
    def is_active(self) -> bool:
        """Whether anything of ours has been submitted and is under way."""
        ...

    @property
    def is_expecting(self) -> bool:
        """Whether a restarted kernel is awaited."""
        ...

    def on_record(self, record: Json) -> None:
        """Called with each record of the agent's log, in order."""
        ...

    def on_silence(self) -> None:
        """Called when the agent has nothing under way and everything it said has arrived."""
        ...


class PollerOwner(Protocol):
    """What has made a poller and hears how it fares."""

    def on_failed_call(self) -> None:
        """Called after each failed poll: what it carried may be known not to have arrived."""
        ...

    def on_over(self, reason: Exception) -> None:
        """Called once, when there will be no more polls, for the reason given."""
        ...


class Poller:
    """Keeps long polls to one agent in flight, until one of the two is gone.

    Parameters
    ----------
    calls
        Makes the calls.
    scheduler
        Decides when to poll, and for how long.
    health
        Judges the calls that fail.
    requests
        The requests in flight, which take what the agent says.
    owner
        Told of failed polls, and of the end.
    held_limit_bytes
        How much may be held of what the agent said and cannot be read yet.
    """

    def __init__(
        self,
        calls: AgentCalls,
        scheduler: PollScheduler,
        health: Health,
        requests: RequestsInFlight,
        owner: PollerOwner,
        *,
        held_limit_bytes: int = HELD_LIMIT_BYTES,
    ) -> None:
        base: int = calls.agent.header.get("base", 0)
        self.inbox = Inbox(base, held_limit_bytes=held_limit_bytes)
        self.scheduler = scheduler
        self.size_limit = ResponseSizeLimit()
        self.calls = calls
        self._health = health
        self._outbox = calls.outbox
        self._requests = requests
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._polls: set[Poll] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False
        self._must_rewind = True
        self._gap: tuple[int, float] | None = None
        self._is_probing = False
        self._polls_of_activity = 0
        self._backlog_bytes = 0

    # -- what the route asks

    def submit(self, body: Json) -> Submission:
        """Hand something over for the agent to do exactly once, after all that came before."""
        submission = self._outbox.add(body)
        self.scheduler.submitted(self._loop.time())
        self._polls_of_activity = 0
        self._top_up()
        return submission

    def listen(self) -> None:
        """Poll although nothing was submitted: after attaching to an agent that was living."""
        self.scheduler.listen(self._loop.time())
        self._top_up()

    async def interrupt(
        self, target: str, *, deadline_seconds: float, is_moot: Callable[[], bool]
    ) -> str:
        """Have the agent interrupt a request; see `AgentCalls.interrupt`."""
        said = await self.calls.interrupt(
            target, deadline_seconds=deadline_seconds, is_moot=is_moot
        )
        self._top_up()
        return said

    def close(self) -> None:
        """Stop polling; the agent lives on."""
        self._end()

    def _end(self) -> None:
        self._is_over = True
        self.calls.close()
        current = asyncio.current_task()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            if task is not current:
                task.cancel()

    # -- polls

    def _top_up(self) -> None:
        """Send the polls that are wanted now, and look again when that may change."""
        if self._is_over:
            return
        now = self._loop.time()
        while self._wants_poll(now):
            self._send_poll(now)
        self._set_timer(now)

    @property
    def _has_work(self) -> bool:
        """Whether anything of ours is under way, or on its way to the agent."""
        return self._requests.is_active or self.calls.has_load

    def _wants_poll(self, now: float) -> bool:
        if now < self._health.not_before or len(self._polls) >= POLLS_LIMIT:
            return False
        if self._outbox.has_unsent:
            return True
        current = [poll for poll in self._polls if not poll.is_overdue(now)]
        if self._has_lasting_gap(now):
            self._must_rewind = True
            self._gap = None
            return True
        is_active = self._has_work or self._requests.is_expecting
        return len(current) < self.scheduler.polls_wanted(now, is_active=is_active)

    def _has_lasting_gap(self, now: float) -> bool:
        return self._gap is not None and (now - self._gap[1] > GAP_SECONDS or not self._polls)

    def _set_timer(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        is_active = self._has_work or self._requests.is_expecting
        if is_active or self._gap is not None:
            pause = self._health.not_before - now if self._health.not_before > now else TICK_SECONDS
            self._timer = self._loop.call_later(pause, self._top_up)
        elif self.scheduler.should_listen_later(now) or self._health.not_before > now:
            at = max(self.scheduler.idle_start, self._health.not_before)
            self._timer = self._loop.call_at(at + 0.001, self._top_up)

    def _send_poll(self, now: float) -> None:
        is_active = self._has_work
        wait_seconds = self.scheduler.wait_seconds(now)
        poll_options: Json = {
            "since": self.inbox.offset,
            "rewind": self._must_rewind,
            "wait": wait_seconds,
            "grace": round(self.scheduler.batching_delay(now), 3),
            "limit": self.size_limit.limit_chars,
            "plain": self.size_limit.may_be_plain,
            "keep": max(1, self.scheduler.polls_wanted(now, is_active=is_active)),
            "idle": not is_active,
        }
        self._must_rewind = False
        poll = Poll(now, wait_seconds)
        self._polls.add(poll)
        self._start(self._poll(poll, {"poll": poll_options}, self._outbox.take()))
        self._polls_of_activity += 1
        may_probe = self.scheduler.wants_probe(now) and not self._is_probing
        if may_probe and (self._polls_of_activity > 1 or not is_active):
            self._is_probing = True
            self._start(self._probe(poll))

    def _start(self, coroutine: Any) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _poll(self, poll: Poll, request: Json, carried: list[Submission]) -> None:
        try:
            answer = await self.calls.send(request, carried, poll.wait_seconds)
            self._polls.discard(poll)
            self._succeeded(poll, answer)
        except Exception as error:
            self._polls.discard(poll)
            self._failed(poll, error)
        self._top_up()

    # -- what becomes of a poll

    def _succeeded(self, poll: Poll, answer: Answer) -> None:
        now = self._loop.time()
        self._health.succeeded()
        header = answer.header
        parked_seconds = header.get("parked_seconds", 0.0)
        self.size_limit.accepted(answer.size_chars, now - poll.sent_at - parked_seconds)
        if parked_seconds >= poll.wait_seconds:
            poll.has_waited = True
            self.scheduler.waited(poll.wait_seconds)
        was_active = self._requests.is_active
        offset = header.get("offset", 0)
        for record in self.inbox.add(offset, answer.body):
            self._hand_on(record)
        self._backlog_bytes = header.get("end", 0) - self.inbox.offset
        self._look_for_gap(offset, now)
        self._look_for_silence(header)
        is_active = self._requests.is_active
        if not is_active:
            self._polls_of_activity = 0
        self.scheduler.answered(
            now,
            has_output=bool(answer.body),
            was_active=was_active,
            is_active=is_active,
            can_speak=any(header.get(name) for name in ("comms", "threads", "pending")),
        )

    def _hand_on(self, record: Json) -> None:
        try:
            self._requests.on_record(record)
        except Exception:
            _log.exception("A message from the sandbox could not be handed on.")

    def _look_for_gap(self, offset: int, now: float) -> None:
        """Notice what was handed to a call whose answer is late or lost: what lies before this."""
        if offset <= self.inbox.offset and not self.inbox.has_gap:
            self._gap = None
        elif self._gap is None or self._gap[0] != self.inbox.offset:
            self._gap = (self.inbox.offset, now)

    def _look_for_silence(self, header: Json) -> None:
        """Notice that the agent has nothing under way any more and all it said has arrived."""
        has_everything = (
            header.get("pending") == 0
            and header.get("acknowledged") == self._outbox.last_number
            and header.get("end") == self.inbox.offset
        )
        if has_everything:
            self._requests.on_silence()

    def _failed(self, poll: Poll, error: Exception) -> None:
        if self._is_over:
            return
        now = self._loop.time()
        self._must_rewind = True
        self.calls.counters.failed_calls += 1
        if isinstance(error, TruncatedError):
            self.calls.counters.truncated_answers += 1
            if isinstance(error, ChangedError):
                self.size_limit.corrupted(error.size_chars, was_plain=error.was_plain)
            else:
                self.size_limit.truncated(error.size_chars)
        elif self._backlog_bytes > FIRST_LIMIT_CHARS and not provably_not_run(error):
            self.size_limit.failed()
        self._owner.on_failed_call()
        self.scheduler.failed(error, now, asked=poll.wait_seconds, lasted=now - poll.sent_at)
        verdict = self._health.failed(error, now)
        if verdict is not None:
            self._end()
            self._owner.on_over(verdict)

    # -- whether calls may overlap

    async def _probe(self, poll: Poll) -> None:
        """Ask something while a poll is parked: its answer tells whether the poll was there."""
        try:
            await asyncio.sleep(PROBE_DELAY_SECONDS)
            if poll not in self._polls:
                return
            answer = await self.calls.send({"ping": secrets.token_hex(4)}, self._outbox.take())
        except Exception:  # its failure says nothing; a later poll is probed instead
            return
        finally:
            self._is_probing = False
        if answer.header.get("parked", 0) > 0:
            self.scheduler.overlap_seen()
        elif poll.has_waited:
            self.scheduler.queueing_seen(self._loop.time())
        self._top_up()
