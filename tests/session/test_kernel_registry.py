"""The registry of kernels and their sandboxes: private, exact, and gone with their process."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sandbox_server import REPOSITORY

from ivy_kernel.session.kernel_registry import (
    KernelEntry,
    KernelRegistration,
    RegistryReader,
    kernel_id_of,
    registry_directory,
)

PROGRAM = """
import os, sys
from ivy_kernel.session.kernel_registry import KernelRegistration
registration = KernelRegistration("a-kernel")
registration.register(api_url="local", chat_id="a-chat")
{end}
"""


def run(end: str) -> None:
    """Let another process register and end."""
    subprocess.run(
        [sys.executable, "-c", PROGRAM.format(end=end)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        check=False,
        timeout=30,
    )


def files() -> list[Path]:
    """All files in the directory of the registry."""
    directory = registry_directory()
    return sorted(directory.iterdir()) if directory.is_dir() else []


def test_an_entry_tells_a_reader_all_of_it() -> None:
    """What was written is what is read, and only this user can read it."""
    registration = KernelRegistration("a-kernel", "magic")
    registration.register(api_url="https://api.example", chat_id="a-chat", campaign_id="a-campaign")
    entry = KernelEntry(
        "a-kernel", os.getpid(), "magic", "https://api.example", "a-chat", "a-campaign"
    )
    assert RegistryReader().current() == (entry,)
    assert stat.S_IMODE(registry_directory().stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in files()] == [0o600]
    registration.unregister()
    assert files() == []


def test_a_reader_follows_every_change() -> None:
    """However fast they follow each other, changes are seen at the next look."""
    reader, registration, other = (
        RegistryReader(),
        KernelRegistration("one"),
        KernelRegistration("other"),
    )
    assert reader.current() == ()
    for number in range(20):
        registration.register(api_url="local", chat_id=f"chat-{number}")
        assert [entry.chat_id for entry in reader.current()] == [f"chat-{number}"]
    other.register(api_url="local", chat_id="another")
    assert {entry.kernel_id for entry in reader.current()} == {"one", "other"}
    registration.unregister()
    assert [entry.kernel_id for entry in reader.current()] == ["other"]
    other.unregister()
    other.unregister()  # harmless
    assert reader.current() == ()


def test_a_quiet_directory_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking costs one look at the directory while nothing has changed in it."""
    registration, reader = KernelRegistration("a-kernel"), RegistryReader()
    registration.register(api_url="local", chat_id="a-chat")
    os.utime(registry_directory(), (1.0, 1.0))  # long ago
    first = reader.current()
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: pytest.fail("read again"))
    assert reader.current() == first
    monkeypatch.undo()
    registration.unregister()


@pytest.mark.parametrize(
    "end", ["", "sys.exit(3)", "raise ValueError", "registration.unregister()"]
)
def test_a_process_that_ends_in_order_leaves_no_entry(end: str) -> None:
    """The entry goes when its process does."""
    run(end)
    assert files() == []


def test_the_entry_of_a_process_that_was_killed_is_ignored_and_removed() -> None:
    """Nobody is shown who is not there, and nothing is left to gather dust."""
    run("os._exit(1)")
    assert len(files()) == 1
    assert RegistryReader().current() == ()
    assert files() == []


def test_the_next_writer_removes_what_the_dead_have_left() -> None:
    """Without any Jupyter server entries do not pile up either."""
    run("os._exit(1)")
    run("os._exit(1)")
    assert len(files()) == 1


def test_a_forked_process_leaves_the_entry_alone() -> None:
    """A child that ends, even in order, does not take its parent's entry with it."""
    run("pid = os.fork()\nif not pid: sys.exit()\nos.waitpid(pid, 0)\nos._exit(0)")
    assert len(files()) == 1


def valid() -> dict[str, object]:
    """The fields of a sound entry."""
    entry: dict[str, object] = {"kernel_id": "k", "process_id": os.getpid(), "kind": "kernel"}
    return {**entry, "api_url": "local", "chat_id": "c", "campaign_id": ""}


def plant(text: str, mode: int = 0o600) -> Path:
    """Write a file that looks like an entry."""
    directory = registry_directory()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / "1-1.json"
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        json.dumps({**valid(), "kind": "other"}),
        json.dumps({**valid(), "kind": ["kernel"]}),
        json.dumps({**valid(), "process_id": "1"}),
        json.dumps({**valid(), "process_id": -1}),
        json.dumps({**valid(), "process_id": True}),
        json.dumps({**valid(), "chat_id": 7}),
        json.dumps({**valid(), "key": "value"}),
        json.dumps({**valid(), "chat_id": "c" * 200_000}),
    ],
)
def test_a_file_that_is_no_entry_is_ignored(text: str) -> None:
    """Whatever lies in the directory, the reader goes on."""
    plant(text)
    assert RegistryReader().current() == ()


def test_a_sound_file_is_read() -> None:
    """The counterpart of the tests about unsound ones."""
    plant(json.dumps(valid()))
    assert [entry.chat_id for entry in RegistryReader().current()] == ["c"]


def _readable_by_all(path: Path) -> None:
    path.chmod(0o644)


def _a_link(path: Path) -> None:
    target = path.with_name("elsewhere")
    path.rename(target)
    path.symlink_to(target)


def _in_an_open_directory(path: Path) -> None:
    path.parent.chmod(0o777)


@pytest.mark.parametrize("spoil", [_readable_by_all, _a_link, _in_an_open_directory])
def test_an_entry_that_others_could_have_made_is_ignored(spoil: Callable[[Path], None]) -> None:
    """Only private files in a private directory count."""
    spoil(plant(json.dumps(valid())))
    assert RegistryReader().current() == ()
    registry_directory().chmod(0o700)


def test_an_entry_that_cannot_be_written_hurts_nobody() -> None:
    """A cell runs all the same when the runtime directory is of no use."""
    registry_directory().parent.mkdir(exist_ok=True, parents=True)
    registry_directory().write_text("a file in the place of the directory")
    registration = KernelRegistration("a-kernel")
    registration.register(api_url="local", chat_id="a-chat")
    registration.unregister()
    assert RegistryReader().current() == ()


@pytest.mark.parametrize(
    ("connection_file", "kernel_id"),
    [
        ("/run/user/1/jupyter/kernel-3f2a-77.json", "3f2a-77"),
        ("kernel-3f2a-77.json", "3f2a-77"),
        ("elsewhere.json", "elsewhere"),
        ("", ""),
    ],
)
def test_the_kernel_id_is_read_from_the_connection_file(
    connection_file: str, kernel_id: str
) -> None:
    """Jupyter servers name connection files after the kernel's id."""
    assert kernel_id_of(connection_file) == kernel_id
