"""What a sandbox uses, as the panel gets it: from the notebooks' own calls, never by another."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from jupyter_server_driver import Json, RunningJupyter
from sandbox_server import RunningSandbox, until
from test_server_kernels import Notebook

WATCHED_SECONDS = 2.5
SETTLED_SECONDS = 4.0


def settle(platform: RunningSandbox) -> None:
    """Wait until the copy of the checkpoint was fetched, which follows a cell and no watcher."""
    seen: list[Any] = [None, 0.0]

    def is_settled() -> bool:
        calls, now = platform.counters()["calls"], time.monotonic()
        if calls != seen[0]:
            seen[:] = [calls, now]
        return now - seen[1] > SETTLED_SECONDS

    until(is_settled, "no calls follow the cell any more", 60)


@pytest.fixture
def notebook(jupyter: RunningJupyter) -> Iterator[Notebook]:
    """An open notebook."""
    opened = Notebook(jupyter, "uses.ipynb")
    yield opened
    opened.close()


def resources_of(sandboxes: list[Json]) -> Json:
    """What the default sandbox uses; empty when that is not known."""
    return sandboxes[0]["resources"] or {}


def test_what_a_sandbox_uses_is_pushed_and_costs_no_request(
    jupyter: RunningJupyter, platform: RunningSandbox, notebook: Notebook, chat_id: str
) -> None:
    """It comes with a cell's answer, is watched for nothing, and ends with the sandbox."""
    settings = {"chat_id": chat_id, "campaign_id": f"campaign-of-{chat_id}"}
    with jupyter.events() as events:
        assert notebook.run("1")["status"] == "ok"
        assert resources_of(jupyter.sandboxes()) == {}, "no agent, no figures"
        jupyter.home.configure({**settings, "route": "agent"})
        for _ in range(2):
            assert notebook.run("1")["status"] == "ok"
        _, found = events.until(lambda found: resources_of(found).get("memory"), "it came", 20)
        uses = resources_of(found)
        assert set(uses) == {"memory", "cpu", "disk", "gpus", "age_seconds"}
        assert 0 < uses["memory"]["used_bytes"] < uses["memory"]["limit_bytes"]
        assert isinstance(uses["gpus"], list)
        assert 0 <= uses["age_seconds"] < 20

        settle(platform)
        calls, watched_until = platform.counters()["calls"], time.monotonic() + WATCHED_SECONDS
        until(
            lambda: jupyter.sandboxes() and time.monotonic() > watched_until,
            "it was watched for a while",
        )
        assert platform.counters()["calls"] == calls
        assert resources_of(jupyter.sandboxes())["age_seconds"] >= WATCHED_SECONDS - 0.5

        jupyter.act("terminate")
        until(lambda: resources_of(events.sandboxes) == {}, "the figures went with it", 20)
