"""The poll scheduler and the verdicts on failed calls, with a clock of the tests' own."""

from __future__ import annotations

import pytest

from ivy_kernel import errors
from ivy_kernel.routes.agent.failures import FailureStreak, is_final, provably_not_run
from ivy_kernel.routes.agent.frames import NoAgentError
from ivy_kernel.routes.agent.pacing import AgentOptions, PollScheduler


def api_error(status_code: int, after_seconds: float | None = None) -> errors.ApiError:
    """An error answer of the platform."""
    kinds: dict[int, type[errors.ApiError]] = {
        401: errors.CredentialsError,
        429: errors.RateLimitedError,
        502: errors.SandboxBrokenError,
        503: errors.NotReadyError,
        504: errors.ToolTimeoutError,
    }
    kind = kinds.get(status_code, errors.UnexpectedStatusError)
    return kind("x", status_code=status_code, retry_after_seconds=after_seconds)


def heard(scheduler: PollScheduler, now: float, **facts: bool) -> None:
    """A poll was answered."""
    usual = {
        "has_output": False,
        "was_active": True,
        "is_active": True,
        "may_send_background": False,
    }
    scheduler.answered(now, **{**usual, **facts})


def test_until_calls_may_overlap_one_poll_waits_a_second() -> None:
    """An interrupt must never queue behind a long wait."""
    scheduler = PollScheduler(AgentOptions(poll_wait_seconds=25))
    scheduler.submitted(0.0)
    assert scheduler.poll_wait_seconds(9.0) == 1.0
    assert scheduler.polls_wanted(5.0, is_active=True) == 1
    scheduler.may_overlap = False
    assert scheduler.poll_wait_seconds(9.0) == 1.0
    scheduler.may_overlap = True
    assert scheduler.poll_wait_seconds(9.0) == 25.0


def test_a_short_cell_has_one_poll_a_longer_one_two_a_chatty_one_three() -> None:
    """More polls are in flight only where they help."""
    scheduler = PollScheduler(AgentOptions(), may_overlap=True)
    scheduler.submitted(0.0)
    assert scheduler.polls_wanted(0.5, is_active=True) == 1
    assert scheduler.polls_wanted(1.5, is_active=True) == 2
    heard(scheduler, 2.0, has_output=True)
    assert scheduler.polls_wanted(2.0, is_active=True) == 3
    heard(scheduler, 3.0)
    assert scheduler.polls_wanted(3.0, is_active=True) == 2


def delays(gap_seconds: float, answers: int) -> list[float]:
    """The batching delay after each of a number of answers that come at even distances."""
    scheduler = PollScheduler(AgentOptions(), may_overlap=True)
    scheduler.submitted(0.0)
    found = [scheduler.batching_delay(0.0)]
    for number in range(1, answers + 1):
        heard(scheduler, number * gap_seconds, has_output=True)
        found.append(scheduler.batching_delay(number * gap_seconds))
    return found


def test_output_now_and_then_is_shown_at_once() -> None:
    """Ten lines a second are ten answers a second, for a while; then fewer, for the rate limit."""
    found = delays(0.1, 200)
    assert set(found[:60]) == {found[0]}
    assert found[0] < 0.01
    assert found[-1] == 0.25
    assert set(delays(1.0, 500)) == {found[0]}


def test_dense_output_is_collected_ever_longer() -> None:
    """Within bounds; the next cell starts anew."""
    found = delays(0.02, 30)
    assert sorted(found) == found
    assert found[0] < 0.01
    assert found[10] > 0.1
    assert found[-1] == 0.25
    scheduler = PollScheduler(AgentOptions(), may_overlap=True)
    for number in range(20):
        heard(scheduler, number * 0.02, has_output=True)
    scheduler.submitted(1.0)
    assert scheduler.batching_delay(1.0) == found[0]


def test_output_that_becomes_sparse_again_is_shown_at_once_again() -> None:
    """A burst in the middle of a long cell does not slow its later lines down."""
    scheduler = PollScheduler(AgentOptions(), may_overlap=True)
    scheduler.submitted(0.0)
    first = scheduler.batching_delay(0.0)
    for number in range(20):
        heard(scheduler, number * 0.02, has_output=True)
    for number in range(20):
        heard(scheduler, 10.0 + number, has_output=True)
    assert scheduler.batching_delay(31.0) == first


def test_between_cells_only_what_can_speak_is_listened_to() -> None:
    """Not at once, because the next cell may follow; and as long as anything lives."""
    scheduler = PollScheduler(AgentOptions(), may_overlap=True)
    scheduler.submitted(0.0)
    heard(scheduler, 1.0, is_active=False, may_send_background=False)
    assert scheduler.polls_wanted(2.0, is_active=False) == 0
    heard(scheduler, 1.0, is_active=False, may_send_background=True)
    assert scheduler.polls_wanted(1.1, is_active=False) == 0
    assert scheduler.should_poll_later(1.1)
    assert scheduler.polls_wanted(1.5, is_active=False) == 1
    assert scheduler.polls_wanted(100_000.0, is_active=False) == 1
    heard(scheduler, 100_001.0, was_active=False, is_active=False)
    assert scheduler.polls_wanted(100_002.0, is_active=False) == 0


def calls_by_minute(*, may_overlap: bool, pause_seconds: float, minutes: int = 30) -> list[int]:
    """The calls of each minute after a cell whose thread prints a line in each pause."""
    scheduler = PollScheduler(AgentOptions(), may_overlap=may_overlap)
    scheduler.submitted(0.0)
    heard(scheduler, 0.1, is_active=False, may_send_background=True)
    calls = [0] * (minutes + 2)
    now = 0.1
    while now < minutes * 60:
        if scheduler.polls_wanted(now, is_active=False) == 0:
            now = scheduler.idle_start(now) + 0.001
            continue
        scheduler.idle_poll_sent(now)
        calls[int(now // 60)] += 1
        line_at = (now // pause_seconds + 1) * pause_seconds
        shown_at = line_at + scheduler.batching_delay(now, is_active=False)
        wait = scheduler.poll_wait_seconds(now, is_active=False)
        now = min(shown_at, now + wait) + 0.02
        heard(scheduler, now, was_active=False, is_active=False, may_send_background=True)
    return calls[:minutes]


@pytest.mark.parametrize("may_overlap", [True, False])
@pytest.mark.parametrize("pause_seconds", [0.1, 1.0, 10.0, 12.0, 40.0, 10_000.0])
def test_a_thread_that_speaks_for_ever_costs_six_calls_a_minute(
    may_overlap: bool, pause_seconds: float
) -> None:
    """After the first minutes; and in these not many."""
    calls = calls_by_minute(may_overlap=may_overlap, pause_seconds=pause_seconds)
    assert max(calls[4:]) <= 6
    assert min(calls) >= 1
    assert sum(calls[:4]) <= 200


def test_a_new_request_brings_background_output_at_once_again() -> None:
    """The user is back, so that output is no longer collected for long."""
    scheduler = PollScheduler(AgentOptions(), may_overlap=True)
    scheduler.submitted(0.0)
    assert scheduler.batching_delay(1_000.0, is_active=False) == 10.0
    scheduler.submitted(1_000.0)
    assert scheduler.batching_delay(1_000.1, is_active=False) < 0.05


def test_where_calls_are_queued_polls_between_cells_do_not_wait() -> None:
    """The next cell would queue behind one that waits."""
    scheduler = PollScheduler(AgentOptions(), may_overlap=False)
    scheduler.submitted(0.0)
    heard(scheduler, 1.0, is_active=False, may_send_background=True)
    assert scheduler.polls_wanted(5.0, is_active=False) == 1
    assert scheduler.poll_wait_seconds(5.0, is_active=False) == 0.0
    scheduler.idle_poll_sent(5.0)
    assert scheduler.polls_wanted(5.5, is_active=False) == 0
    assert scheduler.should_poll_later(5.5)
    assert scheduler.polls_wanted(6.1, is_active=False) == 1


def test_a_rate_limit_leaves_one_poll_in_flight() -> None:
    """After a 429 there is one poll, and output is collected for a second.

    Nothing else would tell of a cell whose poll is lost, so that it does not wait for long.
    """
    scheduler = PollScheduler(AgentOptions(), may_overlap=True)
    scheduler.submitted(0.0)
    heard(scheduler, 1.0, has_output=True)
    scheduler.failed(api_error(429), 2.0, asked=25, lasted=0.1)
    assert scheduler.polls_wanted(3.0, is_active=True) == 1
    assert scheduler.batching_delay(3.0) == 1.0
    assert scheduler.poll_wait_seconds(3.0) == 5.0
    assert scheduler.poll_wait_seconds(100.0) == 25.0
    assert scheduler.polls_wanted(100.0, is_active=True) == 3


def test_the_cap_of_a_tool_is_learnt_and_tried_again_later() -> None:
    """A poll that was ended early shortens the next ones; many whole waits lengthen them."""
    scheduler = PollScheduler(AgentOptions(poll_wait_seconds=25), may_overlap=True)
    scheduler.failed(api_error(504), 3.0, asked=25, lasted=3.0)
    shorter = scheduler.poll_wait_seconds(9.0)
    assert shorter < 3.0
    for _ in range(10):
        scheduler.waited(shorter)
    assert shorter < scheduler.poll_wait_seconds(9.0) <= 25
    longer = scheduler.poll_wait_seconds(9.0)
    scheduler.failed(errors.NoAnswerError("x"), 3.0, asked=25, lasted=2.0)
    assert scheduler.poll_wait_seconds(9.0) == longer


def test_queueing_is_believed_when_it_is_seen_twice() -> None:
    """One slow answer does not make a sandbox serial, and the verdict is looked into again."""
    scheduler = PollScheduler(AgentOptions())
    assert scheduler.wants_probe(0.0)
    scheduler.queueing_seen(1.0)
    assert scheduler.may_overlap is None
    scheduler.queueing_seen(2.0)
    assert scheduler.may_overlap is False
    assert not scheduler.wants_probe(3.0)
    assert scheduler.wants_probe(100.0)
    scheduler.overlap_seen()
    assert scheduler.may_overlap is True
    assert not scheduler.wants_probe(1000.0)
    assert not PollScheduler(AgentOptions(), may_overlap=False).wants_probe(1000.0)


@pytest.mark.parametrize("after_seconds", [0.5, 30.0])
def test_retry_after_is_the_pause(after_seconds: float) -> None:
    """What the platform asks for is what it gets."""
    assert FailureStreak().failed(api_error(429, after_seconds)) == after_seconds


def test_pauses_grow_and_end_with_a_success(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures in a row are paused for longer, at most a few seconds."""
    monkeypatch.setattr("ivy_kernel.routes.agent.failures.random.uniform", lambda low, high: 1.0)
    streak = FailureStreak()
    pauses = [streak.failed(errors.NoAnswerError("x")) for _ in range(30)]
    assert pauses[0] < 0.1 < pauses[8] < pauses[-1] <= 4.0
    streak.succeeded()
    assert streak.failed(errors.NoAnswerError("x")) < 0.1


@pytest.mark.parametrize(
    ("error", "is_certain"),
    [
        (errors.NotSentError("x"), True),
        (api_error(429), True),
        (api_error(503), True),
        (NoAgentError(111, "refused"), True),
        (errors.NoAnswerError("x"), False),
        (errors.AnswerError("x"), False),
        (api_error(500), False),
        (api_error(502), False),
        (api_error(504), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_certainly_not_run(error: Exception, is_certain: bool) -> None:
    """Only documented refusals count; anything else may have run."""
    assert provably_not_run(error) is is_certain


def test_one_refusal_is_not_believed() -> None:
    """A single 401 or 502 may come from one replica; several in a row are final."""
    assert not is_final(api_error(401), 1)
    assert is_final(api_error(401), 3)
    assert not is_final(api_error(502), 3)
    assert is_final(api_error(502), 8)
    assert not is_final(api_error(429), 100)
    assert not is_final(errors.NoAnswerError("x"), 100)


@pytest.mark.parametrize(
    "kind", [errors.SettingError, errors.MissingSettingError, errors.UsageError]
)
def test_a_call_that_was_not_made_has_not_run(kind: type[Exception]) -> None:
    """Settings that cannot be read at that moment stop a call before it is made."""
    assert provably_not_run(kind("x"))
