"""The undocumented code field is found by a harmless probe, once, and remembered."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from kernel_driver import Home, kernel_variables, running_kernel
from sandbox_server import running_sandbox


@pytest.mark.parametrize("route", ["notebook", "script"])
def test_the_code_field_is_found_by_probing(tmp_path: Path, route: str) -> None:
    """A platform that wants ``source`` gets it; later cells are one call; doctor reports it."""
    tool = f"sandbox_{'notebook' if route == 'notebook' else 'python'}"
    with running_sandbox({"code_field": {tool: "source"}}) as server:
        variables = kernel_variables(server, "fields", IVY_ROUTE=route)
        with running_kernel(Home(tmp_path / "home"), variables) as kernel:
            assert kernel.run("print('found')").text() == "found\n"
            before = server.counters()["calls"][tool]
            assert kernel.run("print('again')").text() == "again\n"
            assert server.counters()["calls"][tool] == before + 1
            doctor = subprocess.run(
                [sys.executable, "-m", "ivy_kernel.cli", "doctor"],
                env={**Home(tmp_path / "doctor").environment(variables)},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert "takes code in its field 'source'" in doctor.stdout


def test_a_field_that_nobody_knows_is_a_setting(tmp_path: Path) -> None:
    """The cell names the setting; with it, the cell runs, without a restart."""
    with running_sandbox({"code_field": {"sandbox_notebook": "program_text"}}) as server:
        home = Home(tmp_path / "home")
        with running_kernel(home, kernel_variables(server, "fields")) as kernel:
            cell = kernel.run("1")
            assert cell.reply["ename"] == "RouteError"
            assert "code_field" in cell.reply["evalue"]
            file = home.config / "jupyter_ivy_config.json"
            file.write_text('{"Ivy": {"notebook_code_field": "program_text"}}')
            assert kernel.run("1").result == "1"


def test_the_probe_leaves_nothing_behind(tmp_path: Path) -> None:
    """The namespace that the first cell finds is as the platform made it."""
    with running_sandbox() as server:
        server.ready("clean")
        names = "print(sorted(n for n in dir() if not n.startswith('__')))"
        pure = server.tool("clean", "sandbox_notebook", {"code": names})["outputs"][0]["text"]
        variables = kernel_variables(server, "clean", IVY_SESSION_ID="session-of-clean")
        with running_kernel(Home(tmp_path / "home"), variables) as kernel:
            seen = kernel.run(names).text()
    ignored = {"_i2", "_i3", "_i1"}  # IPython's own history of inputs
    assert set(eval(seen)) - set(eval(pure)) <= ignored
