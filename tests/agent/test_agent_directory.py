"""The private directories of agents: what ends is removed, what lives is not touched."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path

import pytest

from ivy_kernel.agent.daemon import (
    LEFTOVER_AGE_SECONDS,
    lock_directory,
    remove_directory,
    remove_leftovers,
)
from ivy_kernel.agent.start import lock_start


@pytest.fixture(autouse=True)
def _of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The temporary directory counts as one that no other machine sees."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def directory(parent: Path, key: str, *, age_seconds: float = LEFTOVER_AGE_SECONDS + 5) -> Path:
    """A directory as an agent has it, untouched for some time."""
    path = parent / f".ivy-{os.getuid()}-{key}.1"
    path.mkdir(mode=0o700)
    for name in ("lock", "start.lock", "s"):
        (path / name).touch()
    then = time.time() - age_seconds
    os.utime(path, (then, then))
    return path


def test_what_a_killed_agent_left_is_removed(tmp_path: Path) -> None:
    """The next agent of the same user tidies up beside its own directory."""
    ours, left = directory(tmp_path, "ours"), directory(tmp_path, "left")
    remove_leftovers(str(ours))
    assert ours.exists()
    assert not left.exists()


def hold(path: Path) -> int:
    """Hold a lock, as another process would."""
    descriptor = os.open(path, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


@pytest.mark.parametrize("held", ["lock", "start.lock"])
def test_what_lives_or_starts_is_not_touched(tmp_path: Path, held: str) -> None:
    """A directory whose lock is held has an agent, or is just getting one."""
    ours, other = directory(tmp_path, "ours"), directory(tmp_path, "other")
    descriptor = hold(other / held)
    remove_leftovers(str(ours))
    assert (other / "s").exists()
    os.close(descriptor)
    remove_leftovers(str(ours))
    assert not other.exists()


def test_what_is_new_or_none_of_ours_is_not_touched(tmp_path: Path) -> None:
    """Neither a directory that has just been made, nor a link, nor one of another name."""
    ours, new = directory(tmp_path, "ours"), directory(tmp_path, "new", age_seconds=1)
    target = tmp_path / "target"
    target.mkdir()
    (target / "lock").touch()
    link = tmp_path / f".ivy-{os.getuid()}-link.1"
    link.symlink_to(target)
    os.utime(link, (0, 0), follow_symlinks=False)
    remove_leftovers(str(ours))
    assert new.exists()
    assert (target / "lock").exists()


def test_where_other_machines_may_look_nothing_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home that two sandboxes share does not tell here which agents live there."""
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    ours, left = directory(tmp_path, "ours"), directory(tmp_path, "left")
    remove_leftovers(str(ours))
    assert left.exists()


def test_a_start_whose_directory_is_removed_makes_it_again(tmp_path: Path) -> None:
    """Waiting for the lock of a directory that then goes away, it does not start in nothing."""
    ours = directory(tmp_path, "ours")
    descriptor = hold(ours / "start.lock")
    with ThreadPoolExecutor() as threads:
        start = threads.submit(lock_start, str(ours))
        with pytest.raises(FutureTimeoutError):
            start.result(0.3)
        shutil.rmtree(ours)
        os.close(descriptor)
        lock = start.result(10)
    assert os.path.samestat(os.fstat(lock), (ours / "start.lock").stat())
    os.close(lock)


def test_an_end_leaves_a_directory_in_which_another_agent_starts(tmp_path: Path) -> None:
    """Only its socket goes; without such a start everything does."""
    ours = directory(tmp_path, "ours")
    descriptor = hold(ours / "start.lock")
    remove_directory(str(ours))
    assert ours.exists()
    assert not (ours / "s").exists()
    os.close(descriptor)
    remove_directory(str(ours))
    assert not ours.exists()


def test_the_next_agent_waits_for_the_end_of_the_one_before(tmp_path: Path) -> None:
    """One that can no longer be spoken to may still hold the lock: the next does not give way."""
    path = directory(tmp_path, "ours")
    descriptor = hold(path / "lock")
    assert lock_directory(str(path)) is None
    assert lock_directory(str(path), patience_seconds=0.1) is None
    ends = threading.Timer(0.5, os.close, [descriptor])
    ends.start()
    lock = lock_directory(str(path), patience_seconds=30.0)
    ends.join()
    assert lock is not None
    os.close(lock)
