"""What a folder of the drive asks the sandbox, and when it answers from memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import cast

import pytest
from fake_time import FakeTime

from ivy_kernel.errors import NoSandboxError, NoSuchFileError
from ivy_kernel.routes.files import FileEntry, Listing
from ivy_kernel.server_extension import folder as folder_module
from ivy_kernel.server_extension.folder import Folder
from ivy_kernel.session.files import ManifestEntry, SandboxFiles

ROOT = FileEntry("", "directory", 0, 0.0)
POLL_SECONDS = 10.0
"""As JupyterLab's file browser."""


@dataclass
class CountedFiles:
    """The edge of the network: one directory, and how often the sandbox was asked for what."""

    asked: list[str] = field(default_factory=list)
    is_there: bool = True

    async def stat(self, path: str) -> FileEntry:
        """The directory."""
        self.asked.append("stat")
        return ROOT

    async def list(self, path: str, *, limit: int) -> Listing:
        """Its one file."""
        self.asked.append("list")
        if not self.is_there:
            raise NoSuchFileError("It is gone.")
        return Listing((FileEntry("file", "file", 1, 0.0),))

    async def manifest(self) -> tuple[ManifestEntry, ...]:
        """Nothing."""
        self.asked.append("manifest")
        return ()


@dataclass
class Owner:
    """A sandbox that a test puts to sleep, and whose kernels it moves."""

    counted: CountedFiles = field(default_factory=CountedFiles)
    activity: str = ""
    is_busy: bool = False
    is_active: bool = True

    def files(self) -> SandboxFiles:
        """Its files."""
        if not self.is_active:
            raise NoSandboxError("It sleeps.")
        return cast("SandboxFiles", self.counted)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    """A clock that the test moves."""
    clock = FakeTime()
    monkeypatch.setattr(folder_module, "monotonic_seconds", clock.clock)
    return clock


async def poll(folder: Folder, time: FakeTime, count: int) -> None:
    """Ask for the listing as an open page does."""
    for _ in range(count):
        time.now += POLL_SECONDS
        await folder.list("")


async def test_a_page_that_is_only_open_lets_the_sandbox_sleep(time: FakeTime) -> None:
    """Polls reach the sandbox for a minute after the last use, and never again then."""
    owner = Owner()
    folder = Folder(owner)
    await folder.list("")
    await poll(folder, time, 3)
    assert owner.counted.asked.count("list") == 4
    await poll(folder, time, 10)
    asked = list(owner.counted.asked)
    assert asked.count("list") <= 7
    assert asked.count("manifest") <= 3
    assert asked.count("stat") == 1
    await poll(folder, time, 100)
    assert owner.counted.asked == asked


@pytest.mark.parametrize("use", ["cell", "busy", "save", "reload", "other"])
async def test_use_makes_polls_reach_the_sandbox_again(time: FakeTime, use: str) -> None:
    """A cell of a kernel there, a save, a reload, or another directory: the next poll is fresh."""
    owner = Owner()
    folder = Folder(owner)
    await folder.list("")
    await poll(folder, time, 20)
    before = owner.counted.asked.count("list")
    if use == "cell":
        owner.activity = "later"
    elif use == "busy":
        owner.is_busy = True
    elif use in ("save", "reload"):
        folder.changed()
    else:
        await folder.list("other")
        before += 1
    await poll(folder, time, 1)
    assert owner.counted.asked.count("list") == before + 1


async def test_views_that_ask_at_once_cause_one_question(time: FakeTime) -> None:
    """Several tabs share one listing."""
    owner = Owner()
    folder = Folder(owner)
    await asyncio.gather(*(folder.list("") for _ in range(5)))
    await folder.list("")
    assert owner.counted.asked == ["stat", "list", "manifest"]


async def test_nothing_is_answered_from_memory_once_it_sleeps(time: FakeTime) -> None:
    """A remembered listing is not shown as if it were there."""
    owner = Owner()
    folder = Folder(owner)
    await folder.list("")
    owner.is_active = False
    with pytest.raises(NoSandboxError):
        await folder.list("")


async def test_a_directory_that_is_gone_is_forgotten(time: FakeTime) -> None:
    """Its old listing does not come back when the page is idle."""
    owner = Owner()
    folder = Folder(owner)
    await folder.list("")
    owner.counted.is_there = False
    time.now += POLL_SECONDS
    with pytest.raises(NoSuchFileError):
        await folder.list("")
    time.now += 1000
    with pytest.raises(NoSuchFileError):
        await folder.list("")
