"""``jupyter ivy run`` and ``demo``: notebooks in, executed notebooks and exit codes out."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
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


def write_in_language(path: Path, language: str) -> Path:
    """A notebook whose metadata name a language."""
    write_notebook(path, "x <- 1")
    content = json.loads(path.read_text())
    content["metadata"]["kernelspec"] = {"name": "k", "display_name": "K", "language": language}
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


def test_the_time_of_each_cell_is_kept(ivy) -> None:
    """Under JupyterLab's own keys, also of a cell that failed; not of one that was not run."""
    write_notebook(ivy.home.work / "a.ipynb", "1", "1 / 0", "2")
    ivy("run", "a.ipynb", "--no-progress")
    times = [
        cell["metadata"].get("execution", {})
        for cell in cells_of(ivy.home.work / "a.executed.ipynb")
    ]
    keys = {"iopub.status.busy", "iopub.execute_input", "iopub.status.idle"}
    keys |= {"shell.execute_reply", "shell.execute_reply.started"}
    assert [set(one) for one in times] == [keys, keys, set()]
    begun, ended = (times[0][f"shell.execute_reply{end}"] for end in (".started", ""))
    assert begun.rstrip("Z")[:19] <= ended.rstrip("Z")[:19]


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
        (("a.ipynb", "--out=b.ipynb"), "no option --out;"),
        (("a.ipynb", "--RunApp.inplace=perhaps"), "inplace"),
        (("a.ipynb", "--IvyCommandApp.nonsense=3"), "--IvyCommandApp.nonsense"),
        (("a.ipynb", "--log-level=loud"), "'loud'"),
        (("new.ipynb",), "format 5.0, which is newer"),
        (("r.ipynb", "--inplace"), "language 'R'"),
        (("local.ipynb",), "Cell 2 of local.ipynb is a %%local cell"),
        (("local.ipynb", "--Ivy.allow_local=false"), "--allow-local"),
    ],
)
def test_wrong_use_is_exit_code_2_before_anything_runs(
    ivy, server: RunningSandbox, chat: str, arguments: tuple[str, ...], words: str
) -> None:
    """One sentence, no traceback, no sandbox, no new file."""
    write_notebook(ivy.home.work / "a.ipynb", "1")
    (ivy.home.work / "no.ipynb").write_text("this is prose")
    newer = {"cells": [], "metadata": {}, "nbformat": 5, "nbformat_minor": 0}
    (ivy.home.work / "new.ipynb").write_text(json.dumps(newer))
    write_in_language(ivy.home.work / "r.ipynb", "R")
    write_notebook(ivy.home.work / "local.ipynb", "1", "\n %%local\nopen('mark', 'w')")
    before = {path: path.read_bytes() for path in ivy.home.work.iterdir()}
    answer = ivy("run", *arguments)
    assert answer.returncode == 2, answer
    assert words in answer.stderr
    assert "Traceback" not in answer.stderr
    assert server.status(chat)["status"] == "none"
    assert {path: path.read_bytes() for path in ivy.home.work.iterdir()} == before


def test_local_cells_run_when_they_are_allowed_and_see_no_key(ivy) -> None:
    """``--allow-local``; the key is in no variable of theirs, nor of the programs they start."""
    write_notebook(
        ivy.home.work / "a.ipynb",
        "%%local\nimport os\nprint(sorted(k for k in os.environ if 'KEY' in k))\n!env",
        "print('still runs with the key')",
    )
    answer = ivy("run", "a.ipynb", "--allow-local", RECOUP_API_KEY="recoup-key-of-the-test")
    assert answer.returncode == 0, answer
    first, second = cells_of(ivy.home.work / "a.executed.ipynb")
    assert text_of(first).startswith("[]\n")
    assert "HOME=" in text_of(first)
    assert ivy.variables["IVY_API_KEY"] not in text_of(first)
    assert "recoup-key-of-the-test" not in text_of(first)
    assert "still runs" in text_of(second)


def test_settings_of_ones_own_do_not_allow_a_strangers_local_cells(ivy) -> None:
    """Only the command line does; the environment is for notebooks that one runs oneself."""
    write_notebook(ivy.home.work / "a.ipynb", "%%local\nopen('mark', 'w')")
    assert ivy("run", "a.ipynb", IVY_ALLOW_LOCAL="true").returncode == 2
    assert not (ivy.home.work / "mark").exists()


def start_run(ivy, *arguments: str) -> subprocess.Popen[str]:
    """``jupyter ivy run`` in the background, in a process group of its own, as of a terminal."""
    return subprocess.Popen(
        [sys.executable, "-m", "ivy_kernel.cli", "run", *arguments, "--no-progress"],
        env=ivy.home.environment(ivy.variables),
        cwd=ivy.home.work,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGINT, 130, "Interrupted"), (signal.SIGTERM, 143, "Terminated")],
)
def test_a_signal_ends_the_run_and_what_is_finished_is_written(
    ivy, server: RunningSandbox, number: signal.Signals, code: int, word: str
) -> None:
    """One sentence; each finished cell is in the file already before; the cell is stopped."""
    write_notebook(
        ivy.home.work / "a.ipynb",
        "print('first')",
        "import time\nopen('began', 'w').close()\nprint('partly', flush=True)\n"
        "for _ in range(600): time.sleep(0.1)",
        "print('never')",
    )
    target = ivy.home.work / "a.executed.ipynb"
    process = start_run(ivy, "a.ipynb")
    try:
        until(target.exists, "the first cell's result is written", 60)
        assert text_of(cells_of(target)[0]).endswith("first\n")
        until(lambda: list(server.root.rglob("began")), "the second cell runs", 30)
        os.killpg(process.pid, number)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == code, stderr
    assert f"{word} in cell 2; the results so far are in a.executed.ipynb." in stderr
    assert "Traceback" not in stderr
    first, second, third = cells_of(target)
    assert text_of(first).endswith("first\n")
    assert [o["ename"] for o in second["outputs"] if o["output_type"] == "error"] == [
        "KeyboardInterrupt"
    ]
    assert third["outputs"] == []
    assert [path.name for path in ivy.home.work.iterdir() if path.name.startswith(".")] == []


def test_a_signal_before_the_first_cell_leaves_nothing(ivy) -> None:
    """Nothing is written, and no process stays."""
    write_notebook(ivy.home.work / "a.ipynb", "print('never')")
    process = start_run(ivy, "a.ipynb")
    try:
        until(lambda: kernels_of(process.pid), "the kernel is started", 60)
        (kernel,) = kernels_of(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, stderr
    assert "Interrupted" in stderr
    assert "Traceback" not in stderr
    until(lambda: not psutil.pid_exists(kernel), "the kernel has ended", 20)
    assert [path.name for path in ivy.home.work.iterdir()] == ["a.ipynb"]


def kernels_of(pid: int) -> list[int]:
    """The kernels that a process has started."""
    return [
        child.pid
        for child in psutil.Process(pid).children()
        if any("ivy_kernel.kernel" in word for word in child.cmdline())
    ]


def test_the_mode_of_a_notebook_stays(ivy) -> None:
    """A private notebook that is run in place is private afterwards."""
    source = write_notebook(ivy.home.work / "a.ipynb", "1")
    source.chmod(0o600)
    assert ivy("run", "a.ipynb", "--inplace").returncode == 0
    assert source.stat().st_mode & 0o777 == 0o600
    assert cells_of(source)[0]["execution_count"] == 1


def test_a_run_shows_no_warning_of_others(ivy) -> None:
    """Stderr holds our words and the log's one line; the kernel's sockets are private files."""
    write_notebook(ivy.home.work / "a.ipynb", "1")
    answer = ivy("run", "a.ipynb", "--no-progress")
    assert answer.returncode == 0
    assert "arning" not in answer.stderr
    assert "WARN" not in answer.stderr


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
    answer = ivy("demo", timeout_seconds=110, PATH=os.defpath)
    runtime = ivy.home.runtime / "ivy-local-sandbox.json"
    try:
        assert answer.returncode == 0, answer
        assert "arning" not in answer.stderr
        assert "WARN" not in answer.stderr
        (last,) = [line for line in answer.stdout.splitlines() if line.startswith("Open it with:")]
        command = shlex.split(last.partition(":")[2])
        assert command[1:] == ["lab", "ivy-quickstart.ipynb"]
        # As printed, and with a PATH that does not hold this environment.
        shown = subprocess.run(
            [*command[:-1], "--version"],
            env=ivy.home.environment({"PATH": os.defpath}),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert shown.stdout.strip() == importlib.metadata.version("jupyterlab")
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
