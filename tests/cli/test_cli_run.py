"""``jupyter ivy run`` and ``demo``: notebooks in, executed notebooks and exit codes out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sandbox_server import RunningSandbox, until
from shadows import Shadows


def write_notebook(path: Path, *sources: str) -> Path:
    """A notebook with these code cells, as plain JSON."""
    cells = [
        {
            "cell_type": "code",
            "execution_count": None,
            "id": f"cell-{number}",
            "metadata": {},
            "outputs": [],
            "source": source,
        }
        for number, source in enumerate(sources)
    ]
    content = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(content))
    return path


def cells_of(path: Path) -> list[dict]:
    """The cells of a notebook file."""
    return json.loads(path.read_text())["cells"]


def text_of(cell: dict) -> str:
    """All text of a cell's outputs."""
    return "".join("".join(output.get("text", "")) for output in cell["outputs"])


def test_run_writes_the_executed_notebook_beside_the_original(ivy) -> None:
    """Exit code 0, NOTEBOOK.executed.ipynb, the original untouched, a progress bar on stderr."""
    source = write_notebook(ivy.home.work / "a.ipynb", "x = 2", "print(x * 21)")
    before = source.read_bytes()
    answer = ivy("run", "a.ipynb")
    assert answer.returncode == 0, answer
    assert source.read_bytes() == before
    assert "42\n" in text_of(cells_of(ivy.home.work / "a.executed.ipynb")[1])
    assert "2/2" in answer.stderr
    assert "a.executed.ipynb" in answer.stderr


def test_run_takes_an_output_path_and_can_be_quiet(ivy, tmp_path: Path) -> None:
    """``--output`` names the file; ``--no-progress`` leaves the bar out; other files stay."""
    write_notebook(ivy.home.work / "a.ipynb", "print('ü')")
    answer = ivy("run", "a.ipynb", f"--output={tmp_path / 'out.ipynb'}", "--no-progress")
    assert answer.returncode == 0, answer
    assert "ü\n" in text_of(cells_of(tmp_path / "out.ipynb")[0])
    assert "1/1" not in answer.stderr
    assert sorted(path.name for path in ivy.home.work.iterdir()) == ["a.ipynb"]


def test_a_failing_cell_is_exit_code_1_and_saved(ivy) -> None:
    """The error is in the notebook and on stderr, with its number; later cells do not run."""
    write_notebook(ivy.home.work / "a.ipynb", "x = 1", "{}['no such key']", "print('never')")
    answer = ivy("run", "a.ipynb", "--inplace")
    assert answer.returncode == 1
    assert "Cell 2 failed: KeyError: 'no such key'" in answer.stderr
    assert "Traceback" not in answer.stderr
    cells = cells_of(ivy.home.work / "a.ipynb")
    (error,) = [o for o in cells[1]["outputs"] if o["output_type"] == "error"]
    assert (error["ename"], error["evalue"]) == ("KeyError", "'no such key'")
    assert cells[2]["outputs"] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("missing.ipynb",), "missing.ipynb cannot be read"),
        (("no.ipynb",), "not a notebook"),
        (("a.ipynb", "--output=nowhere/out.ipynb"), "does not exist"),
        (("a.ipynb", "--output=."), "directory"),
        (("a.ipynb", "--inplace", "--output=b.ipynb"), "both"),
        (("a.ipynb", "b.ipynb"), "one notebook"),
        ((), "one notebook"),
        (("a.ipynb", "--Ivy.chat=x"), "chat"),
    ],
)
def test_wrong_use_is_exit_code_2_before_anything_runs(
    ivy, server: RunningSandbox, chat: str, arguments: tuple[str, ...], words: str
) -> None:
    """One sentence, no traceback, no sandbox, no new file."""
    write_notebook(ivy.home.work / "a.ipynb", "1")
    (ivy.home.work / "no.ipynb").write_text("this is prose")
    answer = ivy("run", *arguments)
    assert answer.returncode == 2, answer
    assert words in answer.stderr
    assert "Traceback" not in answer.stderr
    assert server.status(chat)["status"] == "none"
    assert sorted(path.name for path in ivy.home.work.iterdir()) == ["a.ipynb", "no.ipynb"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_directory_is_told_before_the_run(ivy, tmp_path: Path) -> None:
    """Exit code 2, before anything runs."""
    write_notebook(ivy.home.work / "a.ipynb", "1")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    answer = ivy("run", "a.ipynb", f"--output={closed / 'out.ipynb'}")
    assert answer.returncode == 2
    assert "may not be written" in answer.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_told_in_one_sentence(ivy) -> None:
    """Exit code 1 and the reason, not a traceback."""
    write_notebook(ivy.home.work / "a.ipynb", "1")
    answer = ivy("run", "a.ipynb", "--output=/dev/full")
    assert answer.returncode == 1
    assert "cannot be written to /dev/full: No space left" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_run_stops_at_the_platforms_refusal(ivy) -> None:
    """A refused key fails the first cell and the run: exit code 1."""
    write_notebook(ivy.home.work / "a.ipynb", "1")
    answer = ivy("run", "a.ipynb", IVY_API_KEY="ivy_refused")
    assert answer.returncode == 1
    assert "CredentialsError" in answer.stderr
    assert "ivy_refused" not in answer.stdout + answer.stderr


def test_settings_given_as_flags_reach_the_kernel(ivy, server: RunningSandbox) -> None:
    """``--Ivy.chat_id`` decides where the notebook runs."""
    write_notebook(ivy.home.work / "a.ipynb", "1")
    answer = ivy("run", "a.ipynb", "--Ivy.chat_id=by-flag", "--Ivy.campaign_id=c")
    assert answer.returncode == 0, answer
    assert server.status("by-flag")["status"] == "active"


def kernelspec_that_dies(directory: Path, times: int) -> str:
    """A kernelspec of our name whose process dies so many times, and is our kernel then."""
    script = directory / "kernel.py"
    script.write_text(
        "import os, pathlib, sys\n"
        f"tries = pathlib.Path({str(directory / 'tries')!r})\n"
        "tries.open('a').write('x')\n"
        f"if tries.stat().st_size <= {times}:\n"
        "    sys.exit('Address already in use')\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'ivy_kernel.kernel', *sys.argv[1:]])\n"
    )
    spec = {
        "argv": [sys.executable, str(script), "-f", "{connection_file}"],
        "display_name": "Ivy Sandbox",
        "language": "python",
        "interrupt_mode": "message",
    }
    place = directory / "kernels" / "ivy-sandbox"
    place.mkdir(parents=True)
    (place / "kernel.json").write_text(json.dumps(spec))
    return str(directory)


def test_a_kernel_that_dies_before_the_first_cell_is_started_again(ivy, tmp_path: Path) -> None:
    """Two deaths, as of a port that was taken: each cell has run once, in the third process."""
    write_notebook(ivy.home.work / "a.ipynb", "open('ran', 'a').write('x')", "open('ran').read()")
    answer = ivy("run", "a.ipynb", JUPYTER_PATH=kernelspec_that_dies(tmp_path, 2))
    assert answer.returncode == 0, answer
    cell = cells_of(ivy.home.work / "a.executed.ipynb")[1]
    assert cell["outputs"][0]["data"]["text/plain"] == ["'x'"]
    assert (tmp_path / "tries").read_text() == "xxx"


def test_a_kernel_that_always_dies_is_told(ivy, tmp_path: Path) -> None:
    """One sentence after what the kernel itself said, no traceback, no notebook, exit code 1."""
    write_notebook(ivy.home.work / "a.ipynb", "1")
    answer = ivy("run", "a.ipynb", JUPYTER_PATH=kernelspec_that_dies(tmp_path, 99))
    assert answer.returncode == 1, answer
    assert "Address already in use" in answer.stderr
    assert "The kernel's own process died; see the messages above" in answer.stderr
    assert "Traceback" not in answer.stderr + answer.stdout
    assert not (ivy.home.work / "a.executed.ipynb").exists()
    assert (tmp_path / "tries").read_text() == "xxx"


def test_the_demo_runs_without_an_account(new_ivy: Callable) -> None:
    """It prints cells and outputs, writes the notebook, says how to open it, and needs nothing."""
    ivy = new_ivy()
    answer = ivy("demo", timeout_seconds=110)
    runtime = ivy.home.runtime / "ivy-local-sandbox.json"
    try:
        assert answer.returncode == 0, answer
        assert "jupyter lab" in answer.stdout
        assert "local sandbox" in answer.stdout
        assert "image/png" in answer.stdout or "image/svg" in answer.stdout
        cells = cells_of(ivy.home.work / "ivy-quickstart.ipynb")
        code_cells = [cell for cell in cells if cell["cell_type"] == "code"]
        assert all(cell["execution_count"] for cell in code_cells)
        assert not [o for c in code_cells for o in c["outputs"] if o["output_type"] == "error"]
        assert "is starting" not in json.dumps(cells)
        again = ivy("status", "--json", "--Ivy.chat_id=demo")
        assert json.loads(again.stdout)["local"] is True
    finally:
        if runtime.exists():
            os.kill(json.loads(runtime.read_text())["pid"], 15)
            until(lambda: not runtime.exists(), "the local sandbox has ended")


def test_commands_import_nothing_of_the_folder_they_run_in(ivy, tmp_path: Path) -> None:
    """The installed command, and the kernel that it starts; whatever the files there are called."""
    write_notebook(ivy.home.work / "a.ipynb", "print(6 * 7)")
    shadows = Shadows(ivy.home.work, tmp_path / "imported")
    for arguments in (["create"], ["run", "a.ipynb"]):
        answer = subprocess.run(
            [Path(sys.executable).with_name("jupyter-ivy"), *arguments],
            env=ivy.home.environment(ivy.variables),
            cwd=ivy.home.work,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert (answer.returncode, shadows.imported) == (0, []), answer
    assert "42" in text_of(cells_of(ivy.home.work / "a.executed.ipynb")[0])
