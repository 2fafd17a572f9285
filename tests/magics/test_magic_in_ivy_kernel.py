"""``%%ivy`` cells of other notebooks, and ``%ivy`` commands, in the Ivy Sandbox kernel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kernel_driver import Home, running
from magic_driver import MagicKernel, magic_variables
from sandbox_server import RunningSandbox


@pytest.fixture(scope="module")
def ivy_kernel(
    server: RunningSandbox, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MagicKernel]:
    """An Ivy Sandbox kernel for all tests of the module."""
    home = Home(tmp_path_factory.mktemp("ivy"))
    with running(MagicKernel(home, magic_variables(server, "whole"), "ivy-sandbox")) as kernel:
        yield kernel


def test_a_notebook_with_cell_magics_runs_unchanged(ivy_kernel: MagicKernel) -> None:
    """``%load_ext`` is harmless, and ``%%ivy`` cells share the variables of all cells."""
    assert ivy_kernel.run("%load_ext ivy_kernel").reply["status"] == "ok"
    ivy_kernel.run("shared = 3")

    assert ivy_kernel.ivy("shared + 1").result == "4"
    assert ivy_kernel.ivy("echo $((1 + 2))", "--lang sh").text() == "3\n"
    assert ivy_kernel.ivy('{"code": "print(8)"}', "--tool sandbox_python").text() == "8\n"


def test_timeout_works_there_too(ivy_kernel: MagicKernel) -> None:
    """The cell is stopped in time, and the error says why."""
    cell = ivy_kernel.ivy("import time; time.sleep(60)", "--timeout 0.5", timeout_seconds=20)

    assert cell.reply["ename"] == "TimeoutError"


@pytest.mark.parametrize(
    ("options", "words"),
    [("--chat other", "%ivy attach"), ("--nonsense", "--nonsense")],
)
def test_what_has_no_meaning_there_is_refused(
    ivy_kernel: MagicKernel, options: str, words: str
) -> None:
    """The error says what to do instead, and nothing is run."""
    cell = ivy_kernel.ivy("open('ran.txt', 'w')", options)

    assert cell.reply["ename"] == "UsageError"
    assert words in cell.reply["evalue"]
    assert ivy_kernel.run("import os; os.path.exists('ran.txt')").result == "False"


def test_attach_and_back_finds_the_variables(ivy_kernel: MagicKernel) -> None:
    """Another chat's sandbox has none of them; the own one still has them."""
    ivy_kernel.run("kept = 1")
    ivy_kernel.run("%ivy attach second --campaign c")
    assert ivy_kernel.run("'kept' in globals()").result == "False"
    ivy_kernel.run("%ivy attach whole")
    assert ivy_kernel.run("kept").result == "1"


def test_reconnect_keeps_the_variables(ivy_kernel: MagicKernel) -> None:
    """After ``%ivy reconnect`` the same Python answers."""
    ivy_kernel.run("kept = 2")
    assert "state: active" in ivy_kernel.run("%ivy reconnect").text()
    assert ivy_kernel.run("kept").result == "2"
