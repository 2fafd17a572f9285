"""A sandbox whose disk is full: told as what it is, and no variable is lost."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from kernel_driver import Home, kernel_variables, running_kernel
from sandbox_server import running_sandbox

FILL = "with open('fill', 'wb', buffering=0) as file:\n    while True: file.write(b'x' * 100_000)"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount a small disk")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_disk_is_the_cells_own_error_and_costs_no_variable(
    small_disk: Path, tmp_path: Path
) -> None:
    """The cell fails with the real error; variables, output and a new kernel work on."""
    with running_sandbox({}, root=small_disk) as server:
        variables = kernel_variables(server, "full-disk", IVY_ROUTE="agent")
        with running_kernel(Home(tmp_path / "home-1"), variables) as kernel:
            kernel.run("kept = 41")
            full = kernel.run(FILL)
            assert full.reply["ename"] == "OSError"
            assert "No space left on device" in full.reply["evalue"]
            assert kernel.run("print(kept + 1, 'y' * 100_000)").text().startswith("42 yyy")
        with running_kernel(Home(tmp_path / "home-2"), variables) as kernel:
            assert "7" in kernel.run("print(3 + 4)").text()


@pytest.mark.parametrize("route", ["agent", "notebook", "script"])
def test_the_cell_that_frees_a_full_disk_runs(small_disk: Path, tmp_path: Path, route: str) -> None:
    """Also where temporary files are on the same disk, and nothing at all fits on it any more."""
    temporary = small_disk / "tmp"
    temporary.mkdir()
    environment = {"TMPDIR": str(temporary)}
    with running_sandbox(root=small_disk, environment=environment) as server:
        variables = kernel_variables(server, "full", IVY_ROUTE=route)
        with running_kernel(Home(tmp_path / "home"), variables) as kernel:
            kernel.run("1")
            full = kernel.run(FILL)
            assert "No space left on device" in full.traceback
            with (small_disk / "rest").open("wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(b"x")
            assert kernel.run("print(6 * 7)").text() == "42\n"
            assert kernel.run("import os; os.remove('fill')").reply["status"] == "ok"
            assert kernel.run("open('new', 'w').write('text')").reply["status"] == "ok"
