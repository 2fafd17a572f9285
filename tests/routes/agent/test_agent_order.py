"""Submissions once and in order; polls and interrupts at the right moment. With a clock of ours."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ivy_kernel.agent.inflight import (
    ARMING_SECONDS,
    INTERRUPTED_GRACE_SECONDS,
    LONGEST_ARMING_SECONDS,
    PROBE_SECONDS,
    REPLY_GRACE_SECONDS,
    InFlightRequests,
    SubmissionSequence,
    TakenOverError,
)
from ivy_kernel.agent.message_log import LongPoll, LongPolls, MessageLog
from ivy_kernel.routes.agent.calls import Outbox


@given(st.integers(1, 30), st.randoms(use_true_random=False))
def test_any_delivery_applies_each_number_once_in_order(count: int, dice: random.Random) -> None:
    """Calls that overtake each other, repeat and get lost still apply 1, 2, 3, … once each."""
    calls = []
    for start in range(1, count + 1):
        calls += [[(n, n) for n in range(max(1, start - dice.randint(0, 3)), start + 1)]]
    calls += dice.sample(calls, len(calls) // 2)
    dice.shuffle(calls)
    calls.append([(n, n) for n in range(1, count + 1)])
    submissions = SubmissionSequence()
    submissions.attach("t")
    assert [n for call in calls for n in submissions.take(call)] == list(range(1, count + 1))
    assert submissions.applied == count
    assert not submissions.is_holding


def test_a_newer_client_takes_over_and_an_older_one_cannot_return() -> None:
    """A repeated attach is the same client; a late one of the older client changes nothing."""
    submissions = SubmissionSequence()
    assert submissions.attach("a") == submissions.attach("a") == 1
    assert submissions.attach("b") == 2
    with pytest.raises(TakenOverError):
        submissions.attach("a")
    with pytest.raises(TakenOverError):
        submissions.check(1)
    submissions.check(2)


def test_a_new_client_numbers_from_one_again() -> None:
    """Submissions of the older client that were held are forgotten."""
    submissions = SubmissionSequence()
    submissions.attach("a")
    assert list(submissions.take([(1, "x"), (3, "late")])) == ["x"]
    submissions.attach("b")
    assert list(submissions.take([(1, "y"), (2, "z"), (3, "w")])) == ["y", "z", "w"]


def test_a_submission_is_withdrawn_only_while_it_provably_has_not_run() -> None:
    """What a call has carried to an unknown end can no longer be taken back."""
    outbox = Outbox()
    submission = outbox.add({"c": "shell"})
    submissions = outbox.take()
    assert not outbox.withdraw(submission)
    outbox.release(submissions, provably_not_applied=True)
    assert outbox.withdraw(submission)
    assert submission.body == {"do": "nothing"}
    other = outbox.add({"c": "shell"})
    outbox.release(outbox.take(), provably_not_applied=False)
    assert not outbox.withdraw(other)


class Parked:
    """A log, polls on it, and what they were answered."""

    def __init__(self) -> None:
        self.log = MessageLog(1 << 20)
        self.answers: list[tuple[str, int, bytes]] = []
        self.dead: set[str] = set()
        self.polls = LongPolls(self.log, self._answer)

    def _answer(self, poll: LongPoll, offset: int, data: bytes) -> int:
        data = data[: poll.limit_chars]
        self.answers.append((poll.connection, offset, data))
        return 0 if poll.connection in self.dead else len(data)

    def park(self, name: str, now: float, **options: Any) -> None:
        """Park a poll with usual options."""
        options = {"since": 0, "wait": 10.0, "grace": 0.02, "keep": 3, **options}
        self.polls.park(LongPoll(name, options, now), now)

    def say(self, text: bytes, now: float, *, at_once: bool = False) -> None:
        """Something worth showing."""
        self.log.append(text)
        self.polls.notify(now, at_once=at_once)


def test_the_first_output_waits_for_company() -> None:
    """A poll is answered a grace after the first output, with all that came meanwhile."""
    parked = Parked()
    parked.park("a", 0.0)
    parked.say(b"1\n", 1.0)
    parked.polls.run(1.01, running=True)
    assert parked.answers == []
    assert parked.polls.next_time(running=True) == pytest.approx(1.02)
    parked.say(b"2\n", 1.015)
    parked.polls.run(1.021, running=True)
    assert parked.answers == [("a", 0, b"1\n2\n")]


def test_the_end_of_a_cell_is_told_at_once() -> None:
    """No grace when the awaited thing is there."""
    parked = Parked()
    parked.park("a", 0.0)
    parked.say(b"end\n", 1.0, at_once=True)
    parked.polls.run(1.0, running=False)
    assert parked.answers == [("a", 0, b"end\n")]


def test_output_waits_longer_where_the_end_seems_near() -> None:
    """A short cell is one call even for a reader who wants sparse output at once."""
    parked = Parked()
    parked.park("a", 0.0, grace=0.005)
    parked.log.append(b"42\n")
    parked.polls.notify(1.0, least_delay=0.02)
    parked.polls.run(1.01, running=True)
    assert parked.answers == []
    parked.say(b"end\n", 1.011, at_once=True)
    parked.polls.run(1.011, running=False)
    assert parked.answers == [("a", 0, b"42\nend\n")]


def test_each_poll_gets_the_next_slice() -> None:
    """With several polls parked each output goes to the oldest, without repetition."""
    parked = Parked()
    parked.park("a", 0.0)
    parked.park("b", 0.1)
    parked.say(b"1\n", 1.0)
    parked.polls.run(1.03, running=True)
    parked.say(b"2\n", 2.0)
    parked.polls.run(2.03, running=True)
    assert parked.answers == [("a", 0, b"1\n"), ("b", 2, b"2\n")]


def test_a_rewind_reads_again_what_was_lost() -> None:
    """A client that missed an answer gets it from the offset that it names."""
    parked = Parked()
    parked.park("a", 0.0)
    parked.say(b"1\n", 1.0, at_once=True)
    parked.polls.run(1.0, running=True)
    parked.park("b", 2.0, since=0, rewind=True)
    parked.polls.run(2.03, running=True)
    assert parked.answers[-1] == ("b", 0, b"1\n")


def test_a_dead_connection_takes_no_slice_with_it() -> None:
    """When an answer cannot be delivered the next poll gets it."""
    parked = Parked()
    parked.dead.add("a")
    parked.park("a", 0.0)
    parked.park("b", 0.0)
    parked.say(b"1\n", 1.0, at_once=True)
    parked.polls.run(1.0, running=True)
    assert parked.answers == [("a", 0, b"1\n"), ("b", 0, b"1\n")]


def test_more_polls_than_kept_are_answered() -> None:
    """A newer request supersedes the oldest ones."""
    parked = Parked()
    for name in "abc":
        parked.park(name, 0.0, keep=2)
    assert [name for name, _, _ in parked.answers] == ["a"]


def test_a_poll_with_nothing_running_goes_home_unless_it_listens() -> None:
    """Between cells only polls that were sent to listen stay."""
    parked = Parked()
    parked.park("active", 0.0)
    parked.park("listening", 0.0, idle=True)
    parked.polls.run(0.1, running=False)
    assert [name for name, _, _ in parked.answers] == ["active"]
    parked.polls.run(10.1, running=False)
    assert [name for name, _, _ in parked.answers] == ["active", "listening"]


def test_a_truncated_answer_is_read_again_in_smaller_slices() -> None:
    """A smaller limit cuts the log into more slices, which together are the log."""
    parked = Parked()
    noise = random.Random(1).randbytes(50_000).hex().encode() + b"\n"
    parked.say(noise, 0.0)
    number = 0
    while parked.polls.cursor < parked.log.end:
        parked.park(str(number), 1.0, limit=10_000, since=parked.polls.cursor)
        parked.polls.run(2.0, running=True)
        number += 1
    assert number > 5
    assert b"".join(data for _, _, data in parked.answers) == noise


def test_an_interrupt_waits_until_the_kernel_listens() -> None:
    """A kernel that has just said "busy" is signalled a moment later."""
    requests = InFlightRequests()
    requests.add("m", "execute_request", 0.0)
    requests.busy("m", 1.0)
    assert requests.interrupt({"id": "i", "target": "m"}, 1.01) == "sent"
    assert not requests.take_signal(1.02)
    assert requests.take_signal(1.0 + ARMING_SECONDS)
    assert not requests.take_signal(9.0)


def test_an_interrupt_waits_while_a_young_cell_ignores_it() -> None:
    """It is signalled once it listens; a cell that goes on ignoring it has its way."""
    requests = InFlightRequests()
    requests.add("m", "execute_request", 0.0)
    requests.busy("m", 1.0)
    requests.interrupt({"id": "1", "target": "m"}, 1.1)
    assert not requests.take_signal(1.1, is_ignored=lambda: True)
    assert requests.signal_at == 1.1 + ARMING_SECONDS
    assert not requests.take_signal(2.0, is_ignored=lambda: True)
    assert requests.take_signal(3.0, is_ignored=lambda: False)
    assert requests.signal_at is None
    requests.interrupt({"id": "2", "target": "m"}, 4.0)
    assert requests.take_signal(1.1 + LONGEST_ARMING_SECONDS, is_ignored=lambda: True)


def test_an_interrupt_asked_twice_signals_once() -> None:
    """A repeated request, known by its id, gets the same answer and sends nothing."""
    requests = InFlightRequests()
    requests.add("m", "execute_request", 0.0)
    requests.busy("m", 0.0)
    interrupt = {"id": "i", "target": "m"}
    assert requests.interrupt(interrupt, 1.0) == "sent"
    assert requests.take_signal(1.0)
    assert requests.interrupt(interrupt, 1.1) == "sent"
    assert not requests.take_signal(2.0)


def test_a_queued_cell_is_armed_and_a_finished_one_left_alone() -> None:
    """The interrupt strikes its own cell when that begins, and no other."""
    requests = InFlightRequests()
    requests.add("m", "execute_request", 0.0)
    assert requests.interrupt({"id": "1", "target": "m"}, 0.0) == "armed"
    assert requests.interrupt({"id": "2", "target": "gone"}, 0.0) == "finished"
    requests.busy("m", 1.0)
    assert requests.take_signal(1.0 + ARMING_SECONDS)


def test_an_end_needs_reply_and_idle() -> None:
    """A request has ended when both have come; a comm message has no reply."""
    requests = InFlightRequests()
    requests.add("m", "execute_request", 0.0)
    assert not requests.idle("m", 0.0)
    assert requests.replied("m")
    requests.add("c", "comm_msg", 0.0)
    assert requests.idle("c", 0.0)


def test_a_reply_that_never_comes_is_given_up() -> None:
    """That is noticed after a grace, and sooner when an interrupt in a bad moment may cost it."""
    requests = InFlightRequests()
    requests.add("m", "execute_request", 0.0)
    requests.idle("m", 1.0)
    assert requests.take_unanswered(1.5) == []
    assert requests.take_unanswered(1.1 + INTERRUPTED_GRACE_SECONDS) == []
    assert requests.take_unanswered(1.1 + REPLY_GRACE_SECONDS) == ["m"]
    assert len(requests) == 0
    requests.add("n", "execute_request", 0.0)
    requests.busy("n", 10.0)
    requests.interrupt({"id": "i", "target": "n"}, 11.0)
    assert requests.take_signal(11.0)
    requests.idle("n", 12.0)
    assert requests.take_unanswered(12.1 + INTERRUPTED_GRACE_SECONDS) == ["n"]


def test_a_kernel_that_has_answered_what_came_later_is_done() -> None:
    """Its end is given up after a while without output; where the kernel says it runs, not."""
    requests = InFlightRequests()
    requests.add("m", "execute_request", 0.0)
    requests.add("c", "debug_request", 0.0, channel="control")
    requests.busy("m", 0.0)
    assert not requests.take_probe(PROBE_SECONDS - 0.1, ())
    assert requests.take_probe(PROBE_SECONDS, ())
    assert not requests.take_probe(50.0, ()), "one at a time"
    requests.probe_answered(50.0, is_running=True)
    assert not requests.take_unanswered(60.0)
    assert requests.take_probe(60.0, ())
    requests.add("later", "execute_request", 60.5)
    requests.probe_answered(61.0, is_running=False)
    requests.heard("m", 63.0)
    assert not requests.take_unanswered(63.0 + REPLY_GRACE_SECONDS)
    assert requests.take_unanswered(63.1 + REPLY_GRACE_SECONDS) == ["m"]
    assert requests.ids == ["c", "later"]
