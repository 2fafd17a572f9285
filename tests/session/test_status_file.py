"""The file by which the user's processes on one machine tell each other of a sandbox's status."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from jupyter_core.paths import jupyter_runtime_dir

from ivy_kernel.session import kernel_registry
from ivy_kernel.session.kernel_registry import STATUS_LIMIT_BYTES, StatusFile
from ivy_kernel.status.clock import RequestTiming, monotonic_seconds
from ivy_kernel.status.dialects import parse_ivy_status
from ivy_kernel.status.model import SandboxStatus, StatusReading
from ivy_kernel.status.monitor import Monitor
from ivy_kernel.status.polling import News

CHAT = ("https://ivy.example", "chat")


def status(word: str = "active", **more: object) -> SandboxStatus:
    """A status of this moment."""
    now = monotonic_seconds()
    found = {"status": word, "createdAt": "2026-11-30T12:00:00Z"} | more
    return parse_ivy_status(found, RequestTiming(now - 0.1, now))


def only_file() -> Path:
    """The one file that was written."""
    (path,) = (Path(jupyter_runtime_dir()) / "ivy-status").glob("*.json")
    return path


def changed(**values: Any) -> None:
    """Change what stands in the file."""
    content = json.loads(only_file().read_text())
    only_file().write_text(json.dumps(content | values))


def test_another_process_gets_the_whole_status_once() -> None:
    """Every field arrives as it was, and what was read is no news any more."""
    here, there = StatusFile(*CHAT), StatusFile(*CHAT)
    assert there.news() is None
    told = status(phase="ready", etaSeconds=4)
    here.write(told, is_own_action=True)
    assert there.news() == News(told, is_action=True)
    assert there.news() is None
    assert here.news() is None, "its own words are no news"


def test_it_is_private_and_of_one_sandbox() -> None:
    """Only the user may read it; another chat, and another address, have files of their own."""
    here = StatusFile(*CHAT)
    others = [StatusFile("https://other.example", "chat"), StatusFile(CHAT[0], "other")]
    here.write(status(), is_own_action=False)
    assert [other.news() for other in others] == [None, None]
    assert only_file().stat().st_mode & 0o777 == 0o600
    assert only_file().parent.stat().st_mode & 0o777 == 0o700


def test_what_was_written_before_is_no_news() -> None:
    """Whoever begins to show a sandbox reads its status, and needs no old one."""
    StatusFile(*CHAT).write(status(), is_own_action=True)
    assert StatusFile(*CHAT).news() is None


@pytest.mark.parametrize("session_id", ["", "one"])
def test_other_recoup_settings_take_only_that_there_is_news(session_id: str) -> None:
    """A status joined with another session's deadlines is not theirs."""
    reader = StatusFile(*CHAT, session_id)
    StatusFile(*CHAT, "two").write(status(), is_own_action=True)
    assert reader.news() == News(None, is_action=True)


def test_of_another_machine_only_that_there_is_news_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its monotonic clock is another one; so its words lead to a look of our own."""
    here, there = StatusFile(*CHAT), StatusFile(*CHAT)
    monkeypatch.setattr(kernel_registry, "_machine", lambda: "another")
    here.write(status(), is_own_action=False)
    monkeypatch.undo()
    assert there.news() == News(None, is_action=False)


def test_a_moment_that_has_not_come_is_not_believed() -> None:
    """A container may have a clock of its own."""
    here, there = StatusFile(*CHAT), StatusFile(*CHAT)
    here.write(status(), is_own_action=False)
    content = json.loads(only_file().read_text())["status"]
    changed(status=content | {"received_monotonic": monotonic_seconds() + 9e6})
    assert there.news() == News(None, is_action=False)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"writer": 1}', "null", " " * (STATUS_LIMIT_BYTES + 1)]
)
def test_a_broken_file_is_no_news(content: str) -> None:
    """It is read by whoever shows a status, which must not fail for it."""
    here, there = StatusFile(*CHAT), StatusFile(*CHAT)
    here.write(status(), is_own_action=False)
    only_file().write_text(content)
    assert there.news() is None


@pytest.mark.parametrize(("name", "value"), [("status", {"state": "odd"}), ("machine", None)])
def test_odd_values_are_no_status(name: str, value: object) -> None:
    """A file of another version, or of another hand."""
    here, there = StatusFile(*CHAT), StatusFile(*CHAT)
    here.write(status(), is_own_action=False)
    changed(**{name: value})
    news = there.news()
    assert news is None or news.status is None


def test_a_file_that_others_can_read_is_not_read() -> None:
    """Others could have written it too."""
    here, there = StatusFile(*CHAT), StatusFile(*CHAT)
    here.write(status(), is_own_action=False)
    only_file().chmod(0o644)
    assert there.news() is None


def test_a_directory_that_cannot_be_made_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The others would find out by themselves."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "file"))
    StatusFile(*CHAT).write(status(), is_own_action=True)


async def test_a_watched_monitor_shows_what_another_process_told() -> None:
    """Without a request of its own: the countdowns of the other process hold here too."""
    asked = 0

    async def fetch() -> SandboxStatus:
        nonlocal asked
        asked += 1
        return status("none")

    writer, seen = StatusFile(*CHAT), asyncio.Queue[StatusReading]()
    monitor = Monitor(fetch, news_source=StatusFile(*CHAT))
    with monitor.watch(seen.put_nowait):
        first = await asyncio.wait_for(seen.get(), 30)
        told = status("provisioning", etaSeconds=500)
        writer.write(told, is_own_action=False)
        second = await asyncio.wait_for(seen.get(), 30)
    await monitor.aclose()
    assert first.status is not None
    assert (first.status.state, second.status) == ("none", told)
    assert asked == 1


async def test_news_without_a_status_leads_to_a_look() -> None:
    """After a terminate, and for a kernel on another machine."""
    words = iter(["active", *["none"] * 99])

    async def fetch() -> SandboxStatus:
        return status(next(words))

    writer, seen = StatusFile(*CHAT), asyncio.Queue[StatusReading]()
    monitor = Monitor(fetch, news_source=StatusFile(*CHAT))
    with monitor.watch(seen.put_nowait):
        await asyncio.wait_for(seen.get(), 30)
        writer.write(None, is_own_action=True)
        second = await asyncio.wait_for(seen.get(), 12)  # its own interval is 15 s
    await monitor.aclose()
    assert second.status is not None
    assert second.status.state == "none"


def test_the_machine_has_one_name() -> None:
    """The same for all of its processes."""
    assert kernel_registry._machine() == kernel_registry._machine() != ""
