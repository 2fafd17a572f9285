"""What a sandbox uses, as the user's processes tell each other, and as the user reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jupyter_core.paths import jupyter_runtime_dir
from waiting import eventually

from ivy_kernel.models import Gpu, Meter, Namespace, Resources
from ivy_kernel.routes.events import Disconnected, Event, MemoryLow, ResourcesRead
from ivy_kernel.session.describe import event_sentence, status_lines
from ivy_kernel.session.gate import SandboxGate
from ivy_kernel.session.kernel_registry import ResourcesFile
from ivy_kernel.session.lifecycle import Lifecycle
from ivy_kernel.session.session import Session
from ivy_kernel.status.clock import RequestTiming, monotonic_seconds
from ivy_kernel.status.dialects import parse_ivy_status
from ivy_kernel.status.model import SandboxStatus

GIB = 1 << 30
CHAT = ("https://ivy.example", "chat")
USED = Resources(
    memory=Meter(3.1 * GIB, 16 * GIB),
    cpu=Meter(140.0, 4),
    disk=Meter(12 * GIB, 50 * GIB),
    gpus=(Gpu("T4", 30, Meter(512 << 20, 16 * GIB)),),
)
WORDS = "memory 3.1 of 16 GB, CPU 140 % of 4 cores, disk 12 of 50 GB, T4 30 %, 0.5 of 16 GB"


def status(word: str = "active", **more: object) -> SandboxStatus:
    """A status of this moment."""
    now = monotonic_seconds()
    return parse_ivy_status({"status": word} | more, RequestTiming(now - 0.1, now))


def only_file() -> Path:
    """The one file that was written."""
    (path,) = (Path(jupyter_runtime_dir()) / "ivy-resources").glob("*.json")
    return path


def changed(**values: Any) -> None:
    """Change what stands in the file."""
    content = json.loads(only_file().read_text())
    only_file().write_text(json.dumps(content | values))


def test_another_process_reads_what_was_told_and_how_long_ago() -> None:
    """All of it, privately; asked twice whether there is news, there is some once."""
    here, there = ResourcesFile(*CHAT), ResourcesFile(*CHAT)
    assert not there.has_news
    assert there.read(status(), monotonic_seconds()) is None
    here.write(USED)
    assert [there.has_news, there.has_news] == [True, False]
    found = there.read(status(), monotonic_seconds() + 70)
    assert found is not None
    assert found[0] == USED
    assert 70 <= found[1] < 130
    assert ResourcesFile(CHAT[0], "other").read(status(), monotonic_seconds()) is None
    assert only_file().stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("word", ["none", "hibernated", "provisioning", "expired"])
def test_of_a_sandbox_that_is_not_up_nothing_is_said(word: str) -> None:
    """What it used before it went to sleep is no longer true."""
    file = ResourcesFile(*CHAT)
    file.write(USED)
    assert file.read(status(word), monotonic_seconds()) is None
    assert file.read(None, monotonic_seconds()) is None


def test_of_a_new_sandbox_the_old_ones_figures_are_not_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sandbox that was started after the figures were told is another one."""
    file = ResourcesFile(*CHAT)
    file.write(USED)
    now = monotonic_seconds() + 30
    up = status()
    monkeypatch.setattr(SandboxStatus, "uptime_seconds", lambda self, now: 20.0)
    assert file.read(up, now) is None
    assert file.read(up, now - 20) is not None


@pytest.mark.parametrize(
    "change",
    [
        {"machine": "another"},
        {"resources": {"memory": {"used": "all"}}},
        {"told_monotonic": "now"},
        {"told_monotonic": 1e12},
    ],
)
def test_a_file_that_makes_no_sense_here_says_nothing(change: dict[str, Any]) -> None:
    """Of another machine, of another version, or of a clock that is not ours."""
    file = ResourcesFile(*CHAT)
    file.write(USED)
    changed(**change)
    assert file.read(status(), monotonic_seconds()) is None
    only_file().write_text("no JSON")
    assert file.read(status(), monotonic_seconds()) is None


def test_a_sandbox_that_tells_without_end_is_not_written_each_time() -> None:
    """The sandbox's side is not trusted to be sparing."""
    file = ResourcesFile(*CHAT)
    file.write(USED)
    written = only_file().stat().st_mtime_ns
    for _ in range(100):
        file.write(Resources(memory=Meter(1, 2)))
    assert only_file().stat().st_mtime_ns == written


def lifecycle() -> Lifecycle:
    """A lifecycle that is never connected."""

    async def connect() -> Any:
        raise AssertionError

    return Lifecycle(connect, chat_id=CHAT[1], campaign_id="", session_id="", api_url=CHAT[0])


def test_the_status_has_a_line_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As %ivy status and jupyter ivy status print it; old figures with their age."""
    sandbox = lifecycle()
    sandbox.resources.write(USED)
    now = monotonic_seconds()
    assert f"uses: {WORDS}" in status_lines(sandbox, status(), now)
    assert f"uses: {WORDS} (2 min 05 s ago)" in status_lines(sandbox, status(), now + 125)
    assert not any("uses" in line for line in status_lines(sandbox, status("none"), now))


@pytest.mark.parametrize(
    ("meter", "words"),
    [
        (Meter(15.9 * GIB, 16 * GIB), "15.9 of 16 GB"),
        (Meter(512 << 20, 2 * GIB), "0.5 of 2 GB"),
        (Meter(100 << 20, 512 << 20), "100 of 512 MB"),
        (Meter(0, 1.5 * 1024 * GIB), "0 of 1.5 TB"),
        (Meter(1 << 10, 1 << 11), "0 of 0 MB"),
    ],
)
def test_bytes_are_in_the_unit_of_their_limit(meter: Meter, words: str) -> None:
    """One unit for both, as JupyterLab counts files."""
    assert meter.words == words


class Choice:
    """Stands for the choice of a route; none is open."""

    route = None

    def forget(self) -> None:
        """Nothing is kept."""


def gate() -> SandboxGate:
    """A gate to a sandbox that nobody asks."""
    options = {"auto_create": True, "auto_create_hidden": False, "fresh": False}
    return SandboxGate(lifecycle(), Choice(), namespace=used_namespace(), **options)  # type: ignore[arg-type]  # no route is chosen here


def used_namespace() -> Namespace:
    """A namespace in which a cell has run."""
    namespace = Namespace()
    namespace.holder = "agent:a/1"
    return namespace


async def test_a_memory_that_fills_is_told_once_a_level_and_while_a_cell_runs() -> None:
    """At 85 and at 95 percent; again only when it was clearly emptier in between."""
    found = gate()

    def told(percent: float, *, is_running: bool = True) -> bool:
        event = ResourcesRead(Resources(memory=Meter(percent, 100)))
        return found.heard(event, is_running=is_running) is not None

    seen = [(84, True), (86, False), (86, True), (90, True), (84, True), (96, True), (96, True)]
    assert [told(percent, is_running=runs) for percent, runs in seen] == [
        *(False, False, True, False, False, True, False)
    ]
    assert [told(percent) for percent in (89, 79, 86)] == [False, False, True]
    other = Disconnected(ValueError("x"))
    assert found.heard(other, is_running=True) is other


def test_the_warning_says_how_full_it_is_and_what_that_means() -> None:
    """One sentence in the cell that fills it."""
    sentence = event_sentence(MemoryLow(Meter(13.6 * GIB, 16 * GIB)))
    assert sentence is not None
    assert sentence.startswith("The sandbox's memory is 85 % full: 13.6 of 16 GB are in use.")


async def test_a_sandbox_that_ends_with_a_full_memory_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last that was heard of it stands beside its loss, and not beside the next one's."""
    found = gate()

    async def look() -> SandboxStatus:
        return status("none")

    monkeypatch.setattr(found._lifecycle, "look", look)
    full = Meter(15.9 * GIB, 16 * GIB)
    found.heard(ResourcesRead(Resources(memory=full)), is_running=True)
    assert "Memory was at 15.9 of 16 GB when it was last heard of." in str(
        await found.sandbox_end()
    )
    assert "Memory was" not in str(await found.sandbox_end())


async def test_a_session_warns_while_its_cell_runs_and_tells_no_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kernels are told of what is alarming only; the rest is written down."""
    told: list[Event] = []
    session = Session(lifecycle(), on_event=told.append)
    monkeypatch.setattr(Session, "busy", True)
    for percent in (50, 90):
        session.on_event(ResourcesRead(Resources(memory=Meter(percent, 100))))
    assert told == [MemoryLow(Meter(90, 100))]
    await eventually(lambda: ResourcesFile(*CHAT).has_news, "the figures are in the file")
