"""A key with a mark is used for everything, and then the mark is looked for everywhere."""

from __future__ import annotations

import glob
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from faulty_gateway import Fault, faulty_gateway
from kernel_driver import Home, kernel_variables, running_kernel
from sandbox_server import running_sandbox, until

MARK = "MARKED7f3a91"
KEY = f"ivy_{MARK}_0123456789abcdef"
WRONG_KEY = f"ivy_{MARK}_but_not_accepted"

LOG_EVERYTHING = """\
%%local
import logging
logging.basicConfig(filename={path!r}, level=logging.DEBUG, force=True)
logging.getLogger().setLevel(logging.DEBUG)
for name in ("httpx", "httpcore", "asyncio", "ivy_kernel", "traitlets"):
    logging.getLogger(name).setLevel(logging.DEBUG)
"""


def marked_files(*directories: Path) -> list[Path]:
    """Files that hold the mark, or are named by it."""
    return [
        path
        for directory in directories
        for parent, names, file_names in os.walk(directory)  # leaves out what goes meanwhile
        for path in (Path(parent, name) for name in (*names, *file_names))
        if MARK in path.name or MARK.encode() in content(path)
    ]


def content(path: Path) -> bytes:
    """What is in a file; nothing when it is none, or has gone meanwhile."""
    try:
        return path.read_bytes() if path.is_file() else b""
    except FileNotFoundError:
        return b""


def until_agents_have_gone(root: Path) -> None:
    """Wait until the agents in the sandboxes of a server have removed their directories."""
    agents = f"{glob.escape(str(root))}/.state/*/run/.ivy-*"
    until(lambda: not glob.glob(agents), "the end of the agents")  # noqa: PTH207 - bears what goes


def marked_command_lines() -> list[str]:
    """Command lines of living processes that hold the mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        if MARK.encode() in line:
            found.append(line.decode(errors="replace"))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("route", ["notebook", "auto"])
def test_the_kernel_shows_no_key(tmp_path: Path, route: str) -> None:
    """Cells, errors, magics, commands and logs at DEBUG: only the environment has it."""
    home = Home(tmp_path / "home")
    said: list[str] = []
    with running_sandbox(token=KEY) as server:
        variables = kernel_variables(server, "marked", IVY_ROUTE=route)
        assert variables["IVY_API_KEY"] == KEY
        log = home.path / "debug.log"
        with running_kernel(home, variables, ["--debug"]) as kernel:
            cells = [
                LOG_EVERYTHING.format(path=str(log)),
                "%ivy status",
                "%ivy config",
                "import os, sys; print(dict(os.environ)); print(sys.argv)",
                "1/0",
                "!env; cat /proc/self/environ | tr '\\0' '\\n'",
                "!ps axww",
                "%ivy nonsense",
                "%ivy create",
            ]
            said += [json.dumps(kernel.run(code).messages, default=str) for code in cells]
            assert MARK.encode() in Path(f"/proc/{kernel.pid}/environ").read_bytes()
            for pid in server.pids():
                assert MARK.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
            assert marked_command_lines() == []
            # Errors of the network and of the platform, with a key in use.
            file = home.config / "jupyter_ivy_config.json"
            file.write_text(json.dumps({"Ivy": {"api_key": WRONG_KEY}}))
            said.append(json.dumps(kernel.run("1").messages, default=str))
            said.append(json.dumps(kernel.run("%ivy status").messages, default=str))
            file.write_text(json.dumps({"Ivy": {"api_key": "ivy_" + MARK + "\nX-Broken: yes"}}))
            said.append(json.dumps(kernel.run("1").messages, default=str))
            file.write_text('{"Ivy": {"api_key": "' + WRONG_KEY)
            said.append(json.dumps(kernel.run("1").messages, default=str))
            file.unlink()
            said.append(json.dumps(kernel.run("'well again'").messages, default=str))
            assert "well again" in said[-1]
        assert log.stat().st_size > 1000
        assert "httpcore" in log.read_text()
        until_agents_have_gone(server.root)
        assert marked_files(home.path, server.root) == []
    assert not [text[:200] for text in said if MARK in text]


QUOTED = (
    KEY,
    f"{KEY[:12]}\x1b[31m{KEY[12:]}",
    "\u200b".join(KEY),
    "".join(f"%{ord(character):02x}" for character in KEY),
    "".join(f"\\u{ord(character):04x}" for character in KEY),
)


def test_a_kernel_shows_no_key_that_answers_quote(tmp_path: Path) -> None:
    """In the errors and results of tools: neither in messages nor in logs at DEBUG."""
    home = Home(tmp_path / "home")
    with running_sandbox(token=KEY) as server, faulty_gateway(server) as gateway:
        server.ready("quoted")
        variables = kernel_variables(server, "quoted", IVY_API_URL=gateway.url)
        with running_kernel(home, {**variables, "IVY_API_KEY": KEY}, ["--debug"]) as kernel:
            kernel.run(LOG_EVERYTHING.format(path=str(home.path / "debug.log")))
            kernel.run("1")
            for quoted in QUOTED:
                for status in (200, 400, 403, 500, 504):
                    said = {"message": quoted, "error": quoted, "success": False, quoted: quoted}
                    gateway.next_tool_calls(Fault("instead", status, json.dumps(said)))
                    shown = json.dumps(kernel.run("1").messages, default=str)
                    assert MARK not in shown.replace("\\u200b", "")
                    assert QUOTED[3][:30] not in shown
        assert b"debug" in (home.path / "debug.log").read_bytes().lower()
        assert marked_files(home.path) == []


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_the_command_line_shows_no_key(tmp_path: Path) -> None:
    """Each command, its errors, its log at DEBUG and the notebook that it writes."""
    home = Home(tmp_path / "home")
    said: list[str] = []
    with running_sandbox(token=KEY) as server:
        variables = kernel_variables(server, "marked")
        notebook = home.work / "n.ipynb"
        cell = {
            "cell_type": "code", "execution_count": None, "id": "a", "metadata": {}, "outputs": [],
            "source": "import os; print(os.environ); 1/0",
        }  # fmt: skip
        content = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
        notebook.write_text(json.dumps(content))
        commands = [
            ["status", "--Application.log_level=DEBUG"],
            ["create", "--json"],
            ["doctor", "--Application.log_level=DEBUG"],
            ["doctor", "--json"],
            ["run", "n.ipynb", "--Application.log_level=DEBUG"],
            ["files"],
            ["terminate", "--yes"],
        ]
        for arguments in commands:
            said += command_line(home, variables, arguments)
        said += command_line(home, {**variables, "IVY_API_KEY": WRONG_KEY}, ["doctor"])
        nowhere = {**variables, "IVY_API_URL": "ftp://127.0.0.1/api"}
        said += command_line(home, nowhere, ["status"], usage_error=True)
        assert (home.work / "n.executed.ipynb").is_file()
        until_agents_have_gone(server.root)
        assert marked_files(home.path, server.root) == []
    assert not [text[:200] for text in said if MARK in text]


def command_line(
    home: Home, variables: dict[str, str], arguments: list[str], *, usage_error: bool = False
) -> list[str]:
    """All that a command says."""
    process = subprocess.run(
        [sys.executable, "-m", "ivy_kernel.cli", *arguments],
        env=home.environment(variables),
        cwd=home.work,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert process.stdout + process.stderr
    assert (process.returncode == 2) is usage_error, process.stderr
    return [process.stdout, process.stderr]


def test_the_search_would_find_it(tmp_path: Path) -> None:
    """The search itself works: a marked file and a marked command line are found."""
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "leak.txt").write_text(f"…{KEY}…")
    assert [path.name for path in marked_files(tmp_path)] == ["leak.txt"]
    process = subprocess.Popen([sys.executable, "-c", "input()", KEY], stdin=subprocess.PIPE)
    try:
        # Right after its start, Linux may not show it yet.
        until(lambda: len(marked_command_lines()) == 1, "the command line")
    finally:
        process.communicate(b"\n", timeout=30)
