"""A file that is beside the notebook is not in the sandbox: one line says so, and what to do."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from home import Home
from kernel_driver import KernelDriver, agent_variables, kernel_variables, running, running_kernel
from magic_driver import MagicKernel, magic_variables
from sandbox_server import RunningSandbox

from ivy_kernel.session.missing_files import missing_file_hint, put_command

FILES = ("beside.py", "script.py", "data.csv", "array.npy", "sub/table.csv", "package/__init__.py")

CELLS = {
    "open('data.csv')": "data.csv",
    "import beside": "beside.py",
    "from package import thing": "package",
    "import numpy\nnumpy.load('array.npy')": "array.npy",
    "import pandas\npandas.read_csv('sub/table.csv')": "sub/table.csv",
    "def read():\n    return open('data.csv')\ntry:\n    read()\nfinally:\n    pass": "data.csv",
}
COMMANDS = {
    "beside.py": "%ivy put beside.py",
    "script.py": "%ivy put script.py",
    "data.csv": "%ivy put data.csv",
    "array.npy": "%ivy put array.npy",
    "sub/table.csv": "%ivy put sub/table.csv sub/",
    "package": "%ivy put -r package",
}
"""The command that brings each."""
WITH_IPYTHON = {
    "%run script.py": "script.py",
    "!cat data.csv": "data.csv",
    "!head data.csv 2>&1": "data.csv",
    "%%bash\nwc -l data.csv; true": "data.csv",
}
SILENT = (
    "open('nowhere.csv')",
    "open('../secret.txt')",
    "open('/etc/hostname.missing')",
    "print('data.csv')",
    "raise ValueError(\"'data.csv'\")",
    "import nowhere_at_all",
    "1/0",
)


def put_files(directory: Path) -> None:
    """Files beside the notebook, and one above it."""
    for name in FILES:
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    (directory.parent / "secret.txt").write_text("")


@pytest.fixture(scope="module", params=["agent", "notebook", "script", "plain"])
def kernel(
    request: pytest.FixtureRequest,
    server: RunningSandbox,
    new_chat: Callable[[], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[KernelDriver]:
    """Our kernel on each route, and a plain one with ``%%ivy``."""
    home = Home(tmp_path_factory.mktemp("beside"))
    put_files(home.work)
    if request.param == "plain":
        with running(MagicKernel(home, magic_variables(server, new_chat()))) as magic:
            yield magic
        return
    variables = kernel_variables(server, new_chat(), IVY_ROUTE=request.param)
    if request.param == "agent":
        variables = agent_variables(server, new_chat())
    with running_kernel(home, variables) as kernel:
        kernel.route = request.param  # type: ignore[attr-defined]
        yield kernel


def hints(kernel: KernelDriver, code: str) -> list[str]:
    """The lines of a cell's output that tell of a file here."""
    if isinstance(kernel, MagicKernel):
        code = f"%%ivy\n{code}"
    text = kernel.run(code).text("stderr")
    return [line for line in text.splitlines() if "is on this machine" in line]


def test_one_line_says_that_the_file_is_here_and_how_to_bring_it(kernel: KernelDriver) -> None:
    """In Python, by an import, and below libraries; where there is IPython, for its magics too."""
    cells = dict(CELLS)
    if getattr(kernel, "route", "") != "script":
        cells |= WITH_IPYTHON
    for code, name in cells.items():
        lines = hints(kernel, code)
        assert len(lines) == 1, code
        line = lines[0]
        assert line.startswith(f"[{name} is on this machine, beside the notebook;"), (code, line)
        assert f": {COMMANDS[name]} copies it there." in line, line


def test_nothing_else_is_looked_up_or_said(kernel: KernelDriver) -> None:
    """No name that is not here, none above the notebook, and nothing for other errors."""
    for code in SILENT:
        assert hints(kernel, code) == [], code


def test_the_command_that_is_named_works(kernel: KernelDriver) -> None:
    """Run as it is shown, it brings a module, a package and a file in a folder to their places."""
    for code in ("import beside", "from package import __file__", "open('sub/table.csv').close()"):
        (line,) = hints(kernel, code)
        command = line.partition(": ")[2].partition(" copies it there.")[0]
        assert kernel.run(command).reply["status"] == "ok", command
        prefix = "%%ivy\n" if isinstance(kernel, MagicKernel) else ""
        assert kernel.run(f"{prefix}{code}").reply["status"] == "ok", code


def test_in_the_local_sandbox_the_full_path_is_a_way_too(tmp_path: Path) -> None:
    """It reads this machine's files; a module is found by its directory."""
    put_files(tmp_path)
    missing = {"ename": "FileNotFoundError", "evalue": "No such file or directory: 'data.csv'"}
    hint = missing_file_hint(missing, (), tmp_path, is_local=True)
    assert hint is not None
    assert str(tmp_path / "data.csv") in hint
    assert "%ivy put data.csv copies it there" in hint
    module = {"ename": "ModuleNotFoundError", "evalue": "No module named 'beside'"}
    hint = missing_file_hint(module, (), tmp_path, is_local=True)
    assert hint is not None
    assert f"sys.path.append({str(tmp_path)!r})" in hint


@pytest.mark.parametrize("name", ["a" * 5000, "\\0", "..", ".", "", "/etc/passwd", "~", "x/../.."])
def test_odd_names_are_no_files(tmp_path: Path, name: str) -> None:
    """They are neither looked up elsewhere nor an error."""
    missing = {"ename": "FileNotFoundError", "evalue": f"No such file or directory: '{name}'"}
    assert missing_file_hint(missing, (), tmp_path, is_local=False) is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("my data.csv", ["my data.csv"]),
        ("it's.csv", ["it's.csv"]),
        ("-r", ["./-r"]),
        ("a/b c/d.csv", ["a/b c/d.csv", "a/b c/"]),
    ],
)
def test_a_command_can_be_copied_whatever_the_name(name: str, words: list[str]) -> None:
    """Its words are the file and its place, by a shell's rules."""
    assert shlex.split(put_command(name, is_directory=False)) == ["%ivy", "put", *words]


def test_a_name_that_nobody_can_type_gets_no_command() -> None:
    """It would not be one line."""
    assert put_command("a\nb", is_directory=False) == ""
