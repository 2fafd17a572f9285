"""A start that is under way: which answers are believed, and how often they are asked for."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from typing import Any

import pytest
from api_calls import ivy
from scripted_server import Action, Request, ScriptedServer, json_answer

from ivy_kernel.errors import SandboxFailedError
from ivy_kernel.session import start_progress
from ivy_kernel.session.lifecycle import SHORTEST_POLL_SECONDS, Lifecycle

Json = dict[str, Any]

NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=timezone.utc)
STARTING: Json = {"status": "provisioning", "phase": "compute", "etaSeconds": 0}
NONE: Json = {"status": "none"}
ACTIVE: Json = {"status": "active", "phase": "ready"}
FAILED: Json = {"status": "failed", "errorMessage": "no capacity"}

_numbers = itertools.count(1)


def created(minutes_ago: float) -> Json:
    """The field that dates a sandbox."""
    return {"createdAt": (NOW - timedelta(minutes=minutes_ago)).isoformat()}


class Platform:
    """A platform whose status answers a test writes down; the last one stays.

    Parameters
    ----------
    answers
        What it answers to status requests, one after the other.
    create
        What it answers to create.
    """

    def __init__(self, *answers: Json, create: Json | None = None) -> None:
        self._answers = list(answers)
        self._create = STARTING if create is None else create
        self.asked_at: list[float] = []

    async def __call__(self, request: Request, writer: Any) -> bool:
        """Answer one request."""
        body: Json = {}
        if request.target.endswith("/create"):
            body = self._create
        elif request.target.endswith("/status"):
            self.asked_at.append(time.monotonic())
            body = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        answer: Action = json_answer(body, headers={"Date": format_datetime(NOW, usegmt=True)})
        return await answer(request, writer)


@asynccontextmanager
async def lifecycle_on(platform: Platform) -> AsyncIterator[Lifecycle]:
    """The lifecycle of a new chat there."""
    async with ScriptedServer(platform) as server, ivy(server.url) as client:

        async def connect() -> Any:
            return client

        yield Lifecycle(
            connect,
            chat_id=f"start-{next(_numbers)}",
            campaign_id="c",
            session_id="s",
            api_url=server.url,
        )


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> float:
    """What is not believed at once is believed soon."""
    monkeypatch.setattr(start_progress, "GRACE_SECONDS", 3.0)
    return 3.0


LATE = [
    [NONE],
    [NONE, NONE],
    [FAILED | created(9)],
    [FAILED | created(0.2)],
    [FAILED],
    [STARTING, NONE, STARTING],
    [STARTING | created(0), FAILED | created(9)],
]


@pytest.mark.parametrize("answers", LATE)
async def test_one_answer_from_before_the_create_ends_no_start(answers: list[Json]) -> None:
    """A server that has not heard of it yet says none, or tells of the failure before."""
    async with lifecycle_on(Platform(*answers, ACTIVE)) as lifecycle:
        await lifecycle.create()
        seen: list[str] = []
        status = await lifecycle.wait_until_ready(lambda status: seen.append(status.state))
    assert status.state == "active"
    assert set(seen) == {"provisioning"}


async def test_a_ready_answer_to_create_is_confirmed() -> None:
    """Its status may still be that of before, and is then no end either."""
    ready = {"status": "ready", "deduped": True}
    async with lifecycle_on(Platform(NONE, ACTIVE, create=ready)) as lifecycle:
        assert (await lifecycle.create()).state == "active"
        assert (await lifecycle.wait_until_ready()).state == "active"


async def test_whoever_looks_sees_the_start() -> None:
    """The panel's look is judged as the cell's is: it does not say that nothing was started."""
    async with lifecycle_on(Platform(NONE, FAILED | created(9), NONE)) as lifecycle:
        assert (await lifecycle.read_status()).state == "none"
        await lifecycle.create()
        shown = [await lifecycle.read_status(), await lifecycle.status()]
    assert [status.state for status in shown] == ["provisioning"] * 2


@pytest.mark.parametrize(
    "answers",
    [[FAILED | created(-0.05)], [STARTING, FAILED], [STARTING | created(1), FAILED | created(1)]],
)
async def test_the_failure_of_this_start_is_told_at_once(answers: list[Json]) -> None:
    """It is dated after the create, or followed the start that was seen."""
    platform = Platform(*answers)
    async with lifecycle_on(platform) as lifecycle:
        await lifecycle.create()
        with pytest.raises(SandboxFailedError, match="no capacity"):
            await lifecycle.wait_until_ready()
    assert len(platform.asked_at) == len(answers)


@pytest.mark.parametrize("answer", [NONE, FAILED | created(9)])
async def test_what_stays_so_is_believed(answer: Json, short_grace: float) -> None:
    """A start that came to nothing is not waited for without end."""
    platform = Platform(answer)
    async with lifecycle_on(platform) as lifecycle:
        await lifecycle.create()
        if answer is NONE:
            assert (await lifecycle.wait_until_ready()).state == "none"
        else:
            with pytest.raises(SandboxFailedError):
                await lifecycle.wait_until_ready()
    assert platform.asked_at[-1] - platform.asked_at[0] > short_grace - 2 * 1.5


async def test_after_a_terminate_of_ours_none_is_believed() -> None:
    """The user knows why it is gone."""
    async with lifecycle_on(Platform(STARTING, NONE)) as lifecycle:
        await lifecycle.create()
        assert (await lifecycle.status()).state == "provisioning"
        await lifecycle.terminate()
        assert (await lifecycle.status()).state == "none"


async def test_after_a_terminate_of_another_process_none_is_believed() -> None:
    """Panel or command line end a start that a cell waits for: it does not wait on."""
    async with lifecycle_on(Platform(STARTING, STARTING, NONE)) as waiting:
        other = Lifecycle(
            waiting.client,
            chat_id=waiting.chat_id,
            campaign_id="c",
            session_id="s",
            api_url=waiting.key[0],
        )
        await waiting.create()
        assert (await waiting.status()).state == "provisioning"
        assert (await other.status()).state == "provisioning"
        await other.terminate()
        assert (await other.status()).state == "none"
        assert (await waiting.status()).state == "none"


async def test_a_create_of_another_process_is_known() -> None:
    """A look by the panel from before a cell's create does not end the start for both."""
    async with lifecycle_on(Platform(NONE)) as cell:
        panel = Lifecycle(
            cell.client,
            chat_id=cell.chat_id,
            campaign_id="c",
            session_id="s",
            api_url=cell.key[0],
        )
        assert (await panel.read_status()).state == "none"
        await cell.create()
        assert (await panel.read_status()).state == "provisioning"
        assert (await cell.status()).state == "provisioning"


@pytest.mark.parametrize("eta", [{}, {"etaSeconds": 0}, {"etaSeconds": 1}, {"etaSeconds": 600}])
async def test_a_start_is_asked_for_once_in_one_to_two_seconds(eta: Json) -> None:
    """As the platform's documents want it, whatever the estimate says."""
    starting = {"status": "provisioning"} | eta
    platform = Platform(*[starting] * 4, ACTIVE)
    async with lifecycle_on(platform) as lifecycle:
        await lifecycle.create()
        await lifecycle.wait_until_ready()
    at = platform.asked_at
    gaps = [late - early for early, late in itertools.pairwise(at)]
    assert len(gaps) == 4
    assert min(gaps) > SHORTEST_POLL_SECONDS - 0.05
