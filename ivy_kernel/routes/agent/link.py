"""Keeps polls in flight, so that what is submitted arrives once and what is said arrives soon."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ivy_kernel.errors import AnswerError, IvyError, SandboxError, SandboxLostError
from ivy_kernel.models import Json
from ivy_kernel.routes.agent.exchange import Exchange
from ivy_kernel.routes.agent.frames import Answer, NoAgentError, TruncatedError
from ivy_kernel.routes.agent.inbox import HELD_LIMIT_BYTES, Inbox, InboxFullError
from ivy_kernel.routes.agent.ladder import Contact
from ivy_kernel.routes.agent.outbox import Outbox, Submission
from ivy_kernel.routes.agent.pacing import Pacing
from ivy_kernel.routes.agent.portions import Portions
from ivy_kernel.routes.agent.retrying import Backoff, is_final, provably_not_run

_log = logging.getLogger(__name__)

POLLS_LIMIT = 6
TICK_SECONDS = 0.1
GAP_SECONDS = 0.3
OVERDUE_SECONDS = 2.0
PROBE_DELAY_SECONDS = 0.15
UNREACHABLE_AFTER_SECONDS = 5.0
ABSENCES_BELIEVED = 3
UNREADABLE_BELIEVED = 6
REFUSED_SECONDS = 20.0
"""How long refusals must last while something runs: a key may be changed just then, or a replica
may be wrong, and the cell works on all the same."""


class StrangerError(Exception):
    """Another agent answered than the one we know; nothing was handed over."""


class TakenOverError(SandboxError):
    """A newer client speaks to the agent now."""


@dataclass(eq=False)
class Poll:
    """A poll in flight."""

    sent_at: float
    wait_seconds: float
    has_waited: bool = False

    def is_overdue(self, now: float) -> bool:
        """Whether it should have been answered by now; another is sent beside it."""
        return now > self.sent_at + self.wait_seconds + OVERDUE_SECONDS


class Link:
    """The conversation with one agent, until one of the two is gone.

    Parameters
    ----------
    exchange
        Makes the calls.
    contact
        The agent.
    pacing
        Decides when to poll.
    is_active
        Whether anything of ours is under way.
    on_record
        Takes the records of the log in order.
    is_expecting
        Whether something else is awaited: the next kernel.
    is_at_work
        Whether something of ours may be running in the sandbox.
    on_silence
        Called when the agent has nothing under way and everything it said has arrived.
    on_over
        Called once, when the conversation is over for the reason given.
    on_reachable
        Called with an error when calls have failed for some seconds, and with ``None`` when one
        gets through again.
    on_failed_call
        Called after each failed call: what it carried may be known not to have arrived.
    give_up_seconds
        How long calls may fail before the conversation is over.
    held_limit_bytes
        How much may be held of what the agent said and cannot be read yet.
    """

    def __init__(
        self,
        exchange: Exchange,
        contact: Contact,
        pacing: Pacing,
        *,
        is_active: Callable[[], bool],
        is_expecting: Callable[[], bool],
        is_at_work: Callable[[], bool],
        on_record: Callable[[Json], None],
        on_silence: Callable[[], None],
        on_over: Callable[[Exception], None],
        on_reachable: Callable[[Exception | None], None],
        on_failed_call: Callable[[], None],
        give_up_seconds: float,
        held_limit_bytes: int = HELD_LIMIT_BYTES,
    ) -> None:
        self.contact = contact
        self.outbox = Outbox()
        self.inbox = Inbox(contact.header.get("base", 0), held_limit_bytes=held_limit_bytes)
        self.pacing = pacing
        self.portions = Portions()
        self._exchange = exchange
        self._is_active = is_active
        self._is_expecting = is_expecting
        self._is_at_work = is_at_work
        self._on_record = on_record
        self._on_silence = on_silence
        self._on_over = on_over
        self._on_reachable = on_reachable
        self._on_failed_call = on_failed_call
        self._give_up_seconds = give_up_seconds
        self._loop = asyncio.get_running_loop()
        self._polls: set[Poll] = set()
        self._wishes: dict[str, Json] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False
        self._must_rewind = True
        self._gap: tuple[int, float] | None = None
        self._is_probing = False
        self._polls_of_activity = 0
        self._backoff = Backoff()
        self._not_before = 0.0
        self._failing_since: float | None = None
        self._is_unreachable = False

    # -- what the route asks

    def submit(self, body: Json) -> Submission:
        """Hand something over for the agent to do exactly once, after all that came before."""
        submission = self.outbox.add(body)
        self.pacing.submitted(self._loop.time())
        self._polls_of_activity = 0
        self._top_up()
        return submission

    def listen(self) -> None:
        """Poll although nothing was submitted: after attaching to an agent that was living."""
        self.pacing.listen(self._loop.time())
        self._top_up()

    async def interrupt(
        self, target: str, *, deadline_seconds: float, is_moot: Callable[[], bool]
    ) -> str:
        """Have the agent interrupt a request; its answer, empty when none came in time.

        The wish is kept then, and every later call carries it until one gets through.
        """
        wish = {"id": secrets.token_hex(8), "target": target}
        self._wishes[target] = wish
        answer = await self.ask(
            {"interrupt": wish}, deadline_seconds=deadline_seconds, is_moot=is_moot
        )
        self._top_up()
        return str(answer.header.get("interrupt")) if answer is not None else ""

    async def ask(
        self,
        request: Json,
        *,
        deadline_seconds: float,
        is_moot: Callable[[], bool] = lambda: False,
    ) -> Answer | None:
        """Ask something beside the polls; ``None`` when no answer could be had in time.

        It is not asked again once ``is_moot`` says that nobody needs it any more.
        """
        backoff = Backoff()
        deadline = self._loop.time() + deadline_seconds
        while not (self._is_over or is_moot()):
            try:
                rest = max(0.0, deadline - self._loop.time())
                carry = self._carry(request, self.outbox.take(), 0.0)
                return await asyncio.wait_for(carry, rest)
            except asyncio.TimeoutError:
                return None
            except (StrangerError, TakenOverError):
                return None
            except Exception as error:
                pause_seconds = backoff.failed(error)
                times = backoff.same_failures
                self._on_failed_call()
                is_gone = isinstance(error, NoAgentError) and times > 1
                if is_gone or is_final(error, times):
                    return None
                if is_moot() or self._loop.time() + pause_seconds > deadline:
                    return None
                await asyncio.sleep(pause_seconds)
        return None

    def close(self) -> None:
        """Stop polling; the agent lives on."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
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
        return self._is_active() or len(self.outbox) > 0 or bool(self._wishes)

    def _wants_poll(self, now: float) -> bool:
        if now < self._not_before or len(self._polls) >= POLLS_LIMIT:
            return False
        if self.outbox.has_unsent:
            return True
        current = [poll for poll in self._polls if not poll.is_overdue(now)]
        if self._has_lasting_gap(now):
            self._must_rewind = True
            self._gap = None
            return True
        is_active = self._has_work or self._is_expecting()
        return len(current) < self.pacing.polls_wanted(now, is_active=is_active)

    def _has_lasting_gap(self, now: float) -> bool:
        return self._gap is not None and (now - self._gap[1] > GAP_SECONDS or not self._polls)

    def _set_timer(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        is_active = self._has_work or self._is_expecting()
        if is_active or self._gap is not None:
            pause = self._not_before - now if self._not_before > now else TICK_SECONDS
            self._timer = self._loop.call_later(pause, self._top_up)
        elif self.pacing.should_listen_later(now) or self._not_before > now:
            at = max(self.pacing.idle_start, self._not_before)
            self._timer = self._loop.call_at(at + 0.001, self._top_up)

    def _send_poll(self, now: float) -> None:
        is_active = self._has_work
        wait_seconds = self.pacing.wait_seconds()
        wish: Json = {
            "since": self.inbox.offset,
            "rewind": self._must_rewind,
            "wait": wait_seconds,
            "grace": round(self.pacing.grace(now), 3),
            "limit": self.portions.limit_chars,
            "plain": self.portions.may_be_plain,
            "keep": max(1, self.pacing.polls_wanted(now, is_active=is_active)),
            "idle": not is_active,
        }
        self._must_rewind = False
        poll = Poll(now, wait_seconds)
        self._polls.add(poll)
        self._start(self._poll(poll, {"poll": wish}, self.outbox.take()))
        self._polls_of_activity += 1
        may_probe = self.pacing.wants_probe(now) and not self._is_probing
        if may_probe and (self._polls_of_activity > 1 or not is_active):
            self._is_probing = True
            self._start(self._probe(poll))

    def _start(self, coroutine: Any) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _poll(self, poll: Poll, request: Json, carried: list[Submission]) -> None:
        try:
            answer = await self._carry(request, carried, poll.wait_seconds)
            self._polls.discard(poll)
            self._succeeded(poll, answer)
        except Exception as error:
            self._polls.discard(poll)
            self._failed(poll, error)
        self._top_up()

    async def _carry(self, request: Json, carried: list[Submission], wait_seconds: float) -> Answer:
        """One call, with everything that is unacknowledged in it."""
        wish: Json = request.get("interrupt") or next(iter(self._wishes.values()), {})
        request = {
            **request,
            **({"interrupt": wish} if wish else {}),
            "nonce": self.contact.nonce,
            "session": self.contact.session,
            "submit": [[submission.number, submission.body] for submission in carried],
        }
        not_applied = False
        try:
            answer = await self._exchange.ask(request, wait_seconds=wait_seconds)
            error = answer.header.get("error")
            if error == "taken over":
                not_applied = True
                raise TakenOverError(
                    "Another notebook or a restarted kernel has taken over this session."
                )
            if error in ("nonce", "version"):
                not_applied = True
                raise StrangerError
            if error is not None or "fragment" in answer.header:
                raise AnswerError(f"The agent could not read a request: {answer.header.get('why')}")
        except Exception as failure:
            not_applied = not_applied or provably_not_run(failure)
            raise
        finally:
            self.outbox.put_down(carried, provably_not_applied=not_applied)
        self.outbox.acknowledge(answer.header.get("acknowledged", 0))
        if wish and self._wishes.get(wish["target"]) is wish:
            del self._wishes[wish["target"]]
        return answer

    # -- what becomes of a poll

    def _succeeded(self, poll: Poll, answer: Answer) -> None:
        now = self._loop.time()
        self._backoff.succeeded()
        self._not_before = 0.0
        self._failing_since = None
        if self._is_unreachable:
            self._is_unreachable = False
            self._on_reachable(None)
        self.portions.arrived(answer.size_chars)
        header = answer.header
        if header.get("parked_seconds", 0.0) >= poll.wait_seconds:
            poll.has_waited = True
            self.pacing.waited(poll.wait_seconds)
        was_active = self._is_active()
        offset = header.get("offset", 0)
        for record in self.inbox.add(offset, answer.body):
            self._hand_on(record)
        self._look_for_gap(offset, now)
        self._look_for_silence(header)
        is_active = self._is_active()
        if not is_active:
            self._polls_of_activity = 0
        self.pacing.answered(
            now,
            has_output=bool(answer.body),
            was_active=was_active,
            is_active=is_active,
            can_speak=any(header.get(name) for name in ("comms", "threads", "pending")),
        )

    def _hand_on(self, record: Json) -> None:
        try:
            self._on_record(record)
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
            and header.get("acknowledged") == self.outbox.last_number
            and header.get("end") == self.inbox.offset
        )
        if has_everything:
            self._on_silence()

    def _failed(self, poll: Poll, error: Exception) -> None:
        if self._is_over:
            return
        now = self._loop.time()
        self._must_rewind = True
        self._exchange.counters.failed_calls += 1
        if isinstance(error, TruncatedError):
            self._exchange.counters.truncated_answers += 1
            self.portions.truncated(error.size_chars)
        elif not provably_not_run(error):
            self.portions.failed()
        self._on_failed_call()
        self.pacing.failed(error, now, asked=poll.wait_seconds, lasted=now - poll.sent_at)
        pause_seconds = self._backoff.failed(error)
        self._not_before = now + pause_seconds
        if self._failing_since is None:
            self._failing_since = now
        verdict = self._verdict(error, now)
        if verdict is not None:
            self._finish(verdict)
        elif now - self._failing_since > UNREACHABLE_AFTER_SECONDS and not self._is_unreachable:
            self._is_unreachable = True
            self._on_reachable(error)

    def _verdict(self, error: Exception, now: float) -> Exception | None:
        """Why the conversation is over, if this failure means that."""
        times = self._backoff.same_failures
        failed_seconds = now - self._failing_since if self._failing_since is not None else 0.0
        if isinstance(error, TakenOverError | InboxFullError):
            return error
        if is_final(error, times) and (failed_seconds > REFUSED_SECONDS or not self._is_at_work()):
            return error
        if isinstance(error, StrangerError):
            return SandboxLostError("The variables are gone, because the sandbox was started anew.")
        if isinstance(error, NoAgentError) and times >= ABSENCES_BELIEVED:
            return SandboxLostError(
                "The variables are gone, because the sandbox's agent has ended "
                f"(the sandbox was recycled, or its memory ran out: {error})."
            )
        if isinstance(error, AnswerError) and times >= UNREADABLE_BELIEVED:
            return error if failed_seconds > 30.0 else None
        if failed_seconds > self._give_up_seconds:
            return error if isinstance(error, IvyError) else AnswerError(str(error))
        return None

    def _finish(self, reason: Exception) -> None:
        self._is_over = True
        current = asyncio.current_task()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            if task is not current:
                task.cancel()
        self._on_over(reason)

    # -- whether calls may overlap

    async def _probe(self, poll: Poll) -> None:
        """Ask something while a poll is parked: its answer tells whether the poll was there."""
        try:
            await asyncio.sleep(PROBE_DELAY_SECONDS)
            if poll not in self._polls:
                return
            answer = await self._carry({"ping": secrets.token_hex(4)}, self.outbox.take(), 0.0)
        except Exception:  # its failure says nothing; a later poll is probed instead
            return
        finally:
            self._is_probing = False
        if answer.header.get("parked", 0) > 0:
            self.pacing.overlap_seen()
        elif poll.has_waited:
            self.pacing.queueing_seen(self._loop.time())
        self._top_up()
