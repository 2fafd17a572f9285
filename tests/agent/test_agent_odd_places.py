"""Agents start where the home or the working directory cannot be used."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from far_side import BareRunner, route_over

WITHOUT_PRIVILEGES = """
import ctypes, os, sys
for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
os.execv(sys.executable, [sys.executable, '-'])
"""
"""Runs a program from stdin so that closed directories are closed to it, also as root."""


@pytest.fixture
def closed_home(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home below a directory that may not be searched."""
    above = place / "above"
    home = above / "home"
    home.mkdir(parents=True)
    above.chmod(0)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    yield home
    above.chmod(0o700)


@pytest.mark.parametrize("kernel", ["shell", "ipykernel"])
async def test_a_home_that_may_not_be_looked_at_is_passed_over(
    closed_home: Path, place: Path, kernel: str
) -> None:
    """Neither the search for a place nor the kernel needs it."""
    runner = BareRunner(sys.executable, ("-c", WITHOUT_PRIVILEGES), place)
    # Without directories of the test's own: the standard ones, of which the home is one.
    async with route_over(runner, "", kernel=kernel) as far:
        assert (await far.run("40 + 2")).result == "42"
        denied = await far.run(f"open({str(closed_home / 'file')!r})")
        assert denied.outcome.reply["ename"] == "PermissionError"


async def test_a_working_directory_that_is_gone(place: Path) -> None:
    """The agent starts; cells run in the home instead."""
    gone = place / "gone"
    gone.mkdir()
    remove = f"import os, shutil, sys; shutil.rmtree({str(gone)!r}, True); exec(sys.stdin.read())"
    runner = BareRunner(sys.executable, ("-c", remove), gone)

    async def call(tool: str, code: str, timeout_seconds: float) -> object:
        gone.mkdir(exist_ok=True)
        return await runner(tool, code, timeout_seconds)

    call.calls, call.aclose = 0, runner.aclose  # type: ignore[attr-defined]
    async with route_over(call, place) as far:
        assert (await far.run("import os; os.getcwd()")).result == repr(os.environ["HOME"])


async def test_a_working_directory_that_is_removed_before_a_restart(place: Path) -> None:
    """The next kernel starts in the home, instead of not starting at all."""
    work = place / "work"
    work.mkdir()
    enter = f"import os, sys; os.path.isdir({str(work)!r}) and os.chdir({str(work)!r})"
    runner = BareRunner(sys.executable, ("-c", f"{enter}; exec(sys.stdin.read())"), place)
    async with route_over(runner, place) as far:
        assert (await far.run("import os; os.getcwd()")).result == repr(str(work))
        work.rmdir()
        await far.route.restart_kernel()
        assert (await far.run("import os; os.getcwd()")).result == repr(os.environ["HOME"])
