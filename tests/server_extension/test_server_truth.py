"""Panel, kernel and command line show one truth, with Recoup's status beside Ivy's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_server_driver import MARKED_KEY, Json, RunningJupyter, ServerHome, running_jupyter
from kernel_driver import KernelDriver, running
from sandbox_server import RunningSandbox, running_sandbox
from thoroughness import further

CHAT, SESSION, CAMPAIGN = "one-truth", "session-of-one-truth", "campaign-of-one-truth"
AWAKE: Json = {"hibernate_seconds": 200, "runtime_seconds": 900}


@pytest.fixture(scope="module")
def platform() -> Iterator[RunningSandbox]:
    """A server of both APIs, whose sandboxes have deadlines."""
    with running_sandbox(AWAKE, token=MARKED_KEY, hibernating_seconds=0.0) as found:
        yield found


@pytest.fixture(scope="module")
def variables(platform: RunningSandbox) -> dict[str, str]:
    """The settings of a user of both."""
    return {
        "IVY_API_KEY": MARKED_KEY,
        "IVY_API_URL": platform.url,
        "IVY_CHAT_ID": CHAT,
        "IVY_CAMPAIGN_ID": CAMPAIGN,
        "IVY_SESSION_ID": SESSION,
        "IVY_ROUTE": "notebook",
        "RECOUP_API_KEY": MARKED_KEY,
        "RECOUP_API_URL": platform.url.removesuffix("/api"),
        "RECOUP_SESSION_ID": SESSION,
    }


@pytest.fixture(scope="module")
def jupyter(
    variables: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningJupyter]:
    """A Jupyter server with these settings."""
    home = ServerHome(tmp_path_factory.mktemp("truth") / "home")
    with running_jupyter(home, variables) as found:
        yield found


class Commands:
    """The command line of the same user.

    Parameters
    ----------
    home, variables
        Directories and settings.
    """

    def __init__(self, home: ServerHome, variables: dict[str, str]) -> None:
        self._environment = home.environment(variables)

    def __call__(self, *arguments: str) -> str:
        """Run ``jupyter ivy …``; return what it printed."""
        answer = subprocess.run(
            [sys.executable, "-m", "ivy_kernel.cli", *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return answer.stdout + answer.stderr


@pytest.fixture
def ivy(
    platform: RunningSandbox, jupyter: RunningJupyter, variables: dict[str, str]
) -> Iterator[Commands]:
    """The command line; the sandbox is put away afterwards."""
    yield Commands(jupyter.home, variables)
    platform.control({**AWAKE, "recoup_server": "current", "recoup_error": 0})
    platform.control({"provision_seconds": {"compute": 0.6, "mount": 0.4}})
    platform.call("POST", f"/v1/sandbox/{CHAT}/terminate")


def status_of(found: list[Json]) -> Json:
    """The status of the default sandbox."""
    status: Json = found[0]["status"]
    return status


def test_a_start_by_the_command_line_has_its_estimate_in_the_panel(
    platform: RunningSandbox, jupyter: RunningJupyter, ivy: Commands
) -> None:
    """The panel, which asks for a settled sandbox once a minute, sees it begin, and end."""
    platform.control({"provision_seconds": {"compute": 4.0, "mount": 4.0}})
    with jupyter.events() as events:
        events.until(bool, "the first list came")
        assert status_of(events.sandboxes)["label"] in ("Not started", "Archived")
        assert "state: active" in ivy("create")
        _, starting = events.until(
            lambda found: status_of(found)["state"] == "provisioning", "the start was seen", 0.1
        )
        assert status_of(starting)["eta_ms"] > 0
        _, ready = events.until(lambda found: status_of(found)["state"] == "active", "its end")
    shown = status_of(ready)
    assert shown["uptime_ms"] is not None
    assert 190_000 < shown["hibernates_in_ms"] <= 200_000
    assert 880_000 < shown["expires_in_ms"] <= 900_000
    assert (shown["unknown"], shown["keeps_awake"]) == ([], True)


@pytest.mark.parametrize("recoup_server", ["current", further("older")])
def test_a_hibernated_sandbox_is_called_so_by_all(
    platform: RunningSandbox, jupyter: RunningJupyter, ivy: Commands, recoup_server: str
) -> None:
    """Recoup's server says active or no_sandbox then, and Ivy's none; we say one thing."""
    ivy("create")
    platform.control({"recoup_server": recoup_server, "hibernate_seconds": 0.3})
    with jupyter.events() as events:
        words = "It sleeps, and its variables are gone; the next cell resumes it, with its files."
        _, found = events.until(
            lambda found: status_of(found)["state"] == "hibernated", "it hibernated", 30
        )
        shown = status_of(found)
        assert (shown["label"], shown["hint"], shown["resumes"]) == ("Hibernated", words, True)
        assert (shown["hibernates_in_ms"], shown["expires_in_ms"]) == (None, None)
        told = ivy("status")
        assert f"state: hibernated\nthat means: {words}\n" in told
        watched = ivy("status", "--until", "gone")
        assert watched.startswith(f"Chat {CHAT}: hibernated")
        assert json.loads(ivy("status", "--json"))["status"]["state"] == "hibernated"
        assert "the sandbox is hibernated" in ivy("doctor", "--no-probe")
        platform.control({"hibernate_seconds": 200})
        platform.control({"restore_seconds": {"compute": 3.0, "mount": 1.0}})
        ivy("create")
        _, found = events.until(
            lambda found: status_of(found)["label"] == "Resuming", "its resumption was seen", 0.1
        )
        assert status_of(found)["eta_ms"] > 0


def test_a_terminate_by_a_cell_is_shown_by_all(
    platform: RunningSandbox, jupyter: RunningJupyter, ivy: Commands, variables: dict[str, str]
) -> None:
    """Panel and command line say what the cell's own status says, without waiting for a poll."""
    with running(KernelDriver(jupyter.home, variables)) as kernel, jupyter.events() as events:
        assert kernel.run("x = 1").reply["status"] == "ok"
        events.until(lambda found: status_of(found)["state"] == "active", "the start was seen")
        text = kernel.run("%ivy status").text()
        assert "hibernates in: 3 min" in text
        assert "up for: " in text
        kernel.run("%ivy terminate --yes")
        _, found = events.until(
            lambda found: status_of(found)["state"] == "archived", "the end was seen"
        )
        assert status_of(found)["label"] == "Archived"
        assert "state: archived" in kernel.run("%ivy status").text()
        assert "state: archived" in kernel.run("%ivy reconnect").text()
    assert "state: archived" in ivy("status")


@pytest.mark.parametrize("error", [404, further(401)])
def test_an_outage_of_recoup_hides_only_what_recoup_knows(
    platform: RunningSandbox, jupyter: RunningJupyter, ivy: Commands, error: int
) -> None:
    """State and uptime stay fresh, the outage is told as one, and it is over when it is over."""
    ivy("create")
    with jupyter.events() as events:
        events.until(lambda found: status_of(found)["expires_in_ms"], "deadlines were shown")
        platform.control({"recoup_error": error})
        jupyter.call("GET", "ivy/sandboxes?fresh=1")
        _, found = events.until(
            lambda found: status_of(found)["unknown"], "the outage was told", 30
        )
        shown = status_of(found)
        (sentence,) = shown["unknown"]
        assert f"HTTP {error}" in sentence
        assert "outage" in sentence
        assert (shown["state"], shown["stale"]) == ("active", False)
        assert shown["uptime_ms"] is not None
        told = ivy("status")
        assert "state: active" in told
        assert "unknown: When it hibernates and expires is not known" in told
        before = len(events.lists)
        platform.control({"recoup_error": 0})
        events.until(
            lambda found: (
                found in [one for _, one in events.lists[before:]]
                and not status_of(found)["unknown"]
            ),
            "the outage was over",
            40,
        )
        assert status_of(events.sandboxes)["expires_in_ms"] is not None


def test_without_an_account_of_recoup_what_is_missing_is_said(
    platform: RunningSandbox, tmp_path: Path, variables: dict[str, str]
) -> None:
    """The settings that would show countdowns are named, once, and nothing is stale."""
    alone = {name: value for name, value in variables.items() if not name.startswith("RECOUP_")}
    told = Commands(ServerHome(tmp_path / "home"), alone)("create")
    assert "state: active" in told
    assert "up for: " in told
    assert "recoup_session_id and recoup_api_key" in told
