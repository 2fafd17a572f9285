"""What both APIs say of one sandbox, joined to its one status; and Recoup's part beside Ivy's."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from fake_time import FakeTime

from ivy_kernel.errors import ApiError, CredentialsError, NoAnswerError, NotFoundError
from ivy_kernel.status.dialects import join
from ivy_kernel.status.model import SandboxStatus, State
from ivy_kernel.status.polling import DeadlineReader
from ivy_kernel.status.schedule import PollIntervals

CLOCK = datetime(2026, 11, 30, 12, 0, 0, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)


def ivy(state: State, **more: object) -> SandboxStatus:
    """What Ivy says at the moment 100, up for 43 minutes."""
    fields: dict[str, object] = {
        "state": state,
        "dialect": "ivy",
        "received_monotonic": 100.1,
        "described_monotonic": 100.0,
        "server_time": CLOCK,
        "raw_state": state,
        "created_at": CLOCK - 43 * MINUTE,
    }
    return SandboxStatus(**(fields | more))  # type: ignore[arg-type]  # any field


def recoup(state: State, **more: object) -> SandboxStatus:
    """What Recoup says at the moment 100, on a clock that is an hour behind Ivy's."""
    clock = CLOCK - 60 * MINUTE
    fields: dict[str, object] = {
        "state": state,
        "dialect": "recoup",
        "received_monotonic": 100.2,
        "described_monotonic": 100.0,
        "server_time": clock,
        "raw_state": state,
        "last_activity_at": clock - 4 * MINUTE,
        "hibernate_at": clock + MINUTE if state == "active" else None,
        "expires_at": clock + 20 * MINUTE if state == "active" else None,
        "resumable": state == "hibernated",
    }
    return SandboxStatus(**(fields | more))  # type: ignore[arg-type]  # any field


def test_uptime_and_deadlines_stand_side_by_side() -> None:
    """What one API knows does not hide what the other knows, each on its own server's clock."""
    shown = join(ivy("active"), recoup("active")).to_json(100.0)
    assert (shown["state"], shown["label"], shown["dialect"]) == ("active", "Active", "ivy+recoup")
    assert shown["uptime_ms"] == 43 * 60_000
    assert (shown["hibernates_in_ms"], shown["expires_in_ms"]) == (60_000, 1_200_000)
    assert (shown["idle_ms"], shown["unknown"]) == (240_000, [])


def test_a_start_has_ivys_estimate_and_recoups_word() -> None:
    """A restored sandbox is called so, and the estimate that only Ivy has is shown."""
    starting = ivy("provisioning", phase="mount", eta_seconds=30.0, created_at=None)
    shown = join(starting, recoup("restoring")).to_json(100.0)
    assert (shown["state"], shown["label"]) == ("restoring", "Resuming")
    assert (shown["phase"], shown["eta_ms"]) == ("mount", 30_000)


@pytest.mark.parametrize(
    ("said", "more", "state"),
    [
        ("none", "hibernated", "hibernated"),
        ("none", "hibernating", "hibernating"),
        ("none", "archived", "archived"),
        ("none", "expired", "expired"),
        ("none", "none", "none"),
        ("none", "provisioning", "none"),
        ("none", "active", "none"),
        ("provisioning", "none", "provisioning"),
        ("provisioning", "hibernated", "provisioning"),
        ("provisioning", "active", "provisioning"),
        ("active", "provisioning", "active"),
        ("active", "hibernating", "hibernating"),
        ("active", "hibernated", "active"),
        ("active", "archived", "active"),
        ("active", "none", "active"),
        ("active", "failed", "active"),
        ("failed", "active", "failed"),
        ("failed", "hibernated", "failed"),
        ("unknown", "active", "unknown"),
    ],
)
def test_ivy_says_what_its_sandbox_is(said: State, more: State, state: State) -> None:
    """Recoup's word counts where it says the same more finely, and nowhere else."""
    assert join(ivy(said), recoup(more)).state == state


@pytest.mark.parametrize("word", ["hibernated", "archived", "none", "failed"])
def test_a_contradiction_is_told_and_looked_at_again(word: State) -> None:
    """Deadlines of something that is not this sandbox are not shown as its own."""
    sleeping = recoup(word, expires_at=CLOCK, hibernate_at=CLOCK)
    status = join(ivy("active"), sleeping)
    shown = status.to_json(100.0)
    assert (shown["hibernates_in_ms"], shown["expires_in_ms"]) == (None, None)
    (sentence,) = shown["unknown"]
    assert f"Recoup says '{word}' while Ivy says 'active'" in sentence
    assert "recoup_session_id" in sentence
    assert shown["keeps_awake"] is False
    assert PollIntervals().after_answer(status, 100.1) == 5.0


def test_what_recoup_said_before_its_outage_contradicts_nothing() -> None:
    """A sandbox that was resumed meanwhile: one sentence says what is unknown, and why."""
    joined = join(ivy("active"), recoup("hibernated"), reason="Recoup cannot be reached.")
    assert joined.state == "active"
    assert joined.unknown == (
        "When it hibernates and expires is not known: Recoup cannot be reached.",
    )


def test_the_last_seconds_before_the_expiry_are_no_contradiction() -> None:
    """Recoup calls a runtime active only until 10 s before; its expiry counts down to the end."""
    ending = recoup("expired", expires_at=CLOCK - 60 * MINUTE + timedelta(seconds=7))
    status = join(ivy("active"), ending)
    assert (status.effective_state(100.0), status.unknown) == ("active", ())
    assert status.to_json(100.0)["expires_in_ms"] == 7_000
    assert status.effective_state(107.0) == "expired"


def test_two_looks_at_the_same_are_no_news() -> None:
    """A date header has whole seconds, so the difference of the two clocks trembles."""
    first = join(ivy("active"), recoup("active"))
    later = join(
        ivy("active", described_monotonic=115.0, server_time=CLOCK + timedelta(seconds=15.8)),
        recoup(
            "active",
            described_monotonic=115.0,
            server_time=CLOCK - 60 * MINUTE + timedelta(seconds=15),
        ),
    )
    assert later.says_the_same_as(first, 115.1)


@pytest.mark.parametrize(
    ("status", "label", "hint", "resumes"),
    [
        (
            join(ivy("none"), recoup("hibernated")),
            "Hibernated",
            "It sleeps, and its variables are gone; the next cell resumes it, with its files.",
            True,
        ),
        (
            join(ivy("none"), recoup("archived")),
            "Archived",
            "It was put away, and its variables are gone; the next cell starts a new one.",
            False,
        ),
        (
            join(ivy("none"), recoup("hibernated", resumable=False)),
            "Hibernated",
            "It sleeps, and its variables are gone; the next cell starts a new one.",
            False,
        ),
        (ivy("none"), "Not started", "The first cell that needs the sandbox starts it.", False),
        (
            ivy("unknown", raw_state="paused"),
            "Unknown (paused)",
            "The platform gave a state that this version does not know.",
            False,
        ),
    ],
)
def test_resume_is_offered_only_where_it_brings_files_back(
    status: SandboxStatus, label: str, hint: str, resumes: bool
) -> None:
    """One word and one sentence for each state, and a promise only where it is kept."""
    shown = status.to_json(100.0)
    assert (shown["label"], shown["hint"], shown["resumes"]) == (label, hint, resumes)


@pytest.mark.parametrize(
    ("hibernates", "expires", "keeps"), [(1, 20, True), (20, 1, False), (None, 20, False)]
)
def test_a_cell_keeps_awake_only_what_hibernates_first(
    hibernates: int | None, expires: int, keeps: bool
) -> None:
    """Nothing puts an expiry off."""
    clock = CLOCK - 60 * MINUTE
    times = {
        "hibernate_at": None if hibernates is None else clock + hibernates * MINUTE,
        "expires_at": clock + expires * MINUTE,
    }
    assert join(ivy("active"), recoup("active", **times)).to_json(100.0)["keeps_awake"] is keeps


# Recoup's part beside Ivy's -----------------------------------------------------------------------
class Recoup:
    """Recoup's route, as the test wants it to answer."""

    def __init__(self, time: FakeTime) -> None:
        self.time = time
        self.error: Exception | None = None
        self.hangs = False
        self.asked_at: list[float] = []
        self.reader = DeadlineReader(self.fetch, clock=time.clock, random=lambda: 1.0)

    async def fetch(self) -> SandboxStatus:
        """Answer one request."""
        self.asked_at.append(self.time.now)
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        now = self.time.now
        return replace(recoup("active"), received_monotonic=now, described_monotonic=now)


@pytest.fixture
def api() -> Recoup:
    """A Recoup that answers well."""
    return Recoup(FakeTime())


NOT_FOUND = NotFoundError("There is no session 's'.", status_code=404)
UNAUTHORIZED = CredentialsError("Wrong key.", status_code=401)


@pytest.mark.parametrize("error", [NOT_FOUND, UNAUTHORIZED])
async def test_an_outage_of_recoup_is_no_mistake_of_the_user(api: Recoup, error: ApiError) -> None:
    """What was accepted a moment ago is not called wrong; it is asked again, and then is right."""
    api.reader.begin()
    assert (await api.reader.result(1.0)).reason == ""
    api.error = error
    api.reader.begin()
    known = await api.reader.result(1.0)
    assert f"HTTP {error.status_code}" in known.reason
    assert "outage" in known.reason
    assert str(error) not in known.reason
    assert known.status is not None, "the last answer stands in"
    assert known.retry_seconds == 2.0
    api.error = None
    await api.time.advance(2.0)
    api.reader.begin()
    assert (await api.reader.result(1.0)).reason == ""


async def test_a_mistake_is_asked_for_more_and_more_slowly(api: Recoup) -> None:
    """Requests that keep failing do not come at the pace of Ivy's polls."""
    api.error = NOT_FOUND
    for _ in range(300):
        api.reader.begin()
        await api.reader.result(1.0)
        await api.time.advance(1.0)
    gaps = [late - early for early, late in zip(api.asked_at, api.asked_at[1:], strict=False)]
    assert gaps[:5] == [2.0, 4.0, 8.0, 16.0, 32.0]
    assert set(gaps[5:]) == {60.0}
    known = await api.reader.result(1.0)
    assert known.reason == str(NOT_FOUND), "it was never right"


async def test_old_deadlines_are_forgotten(api: Recoup) -> None:
    """Activity moves them, so that after a minute without an answer they are not known."""
    api.reader.begin()
    await api.reader.result(1.0)
    api.error = NoAnswerError("No answer.")
    await api.time.advance(59.0)
    api.reader.begin()
    assert (await api.reader.result(1.0)).status is not None
    await api.time.advance(2.0)
    known = await api.reader.result(1.0)
    assert (known.status, known.reason) == (None, "No answer.")


async def test_ivy_does_not_wait_for_recoup(api: Recoup) -> None:
    """A request that hangs costs no more than the time that was granted, and is not repeated."""
    api.hangs = True
    for _ in range(3):
        api.reader.begin()
        known = await asyncio.wait_for(api.reader.result(0.01), 30)
        assert "has not answered yet" in known.reason
    assert len(api.asked_at) == 1
    await api.reader.aclose()


async def test_of_the_local_sandbox_a_missing_session_is_nothing_to_tell(api: Recoup) -> None:
    """Before its first start it has none."""
    reader = DeadlineReader(api.fetch, is_optional=True, clock=api.time.clock)
    api.error = NOT_FOUND
    reader.begin()
    known = await reader.result(1.0)
    assert (known.status, known.reason, known.retry_seconds) == (None, "", None)


def test_what_is_missing_is_named() -> None:
    """A missing deadline of a running sandbox, a missing snapshot of one that is not there."""
    reason = "Recoup does not answer."
    running = join(ivy("active"), None, reason=reason, retry_seconds=8.0)
    gone = join(ivy("none"), None, reason=reason, retry_seconds=8.0)
    old = join(ivy("active"), recoup("active"), reason=reason, retry_seconds=8.0)
    assert running.unknown == (f"When it hibernates and expires is not known: {reason}",)
    assert gone.unknown == (f"Whether its files can be resumed is not known: {reason}",)
    assert old.unknown == (f"When it hibernates and expires is as Recoup last said: {reason}",)
    assert PollIntervals().after_answer(running, 100.1) == 8.0
    assert PollIntervals().after_answer(gone, 100.1) == 8.0
