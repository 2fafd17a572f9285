"""``jupyter ivy run --detach`` and ``runs``: notebooks that run without this machine."""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import CommandLine
from far_side import waits_for
from home import Home
from kernel_driver import KernelDriver, StartKernel, kernel_variables
from sandbox_server import RunningSandbox
from thoroughness import further
from waiting import until

from ivy_kernel.agent.outputs import outputs_digest
from ivy_kernel.session.journal_reader import JournalReader

Json = dict[str, Any]
COUNTS = "print({!r}, file=open('counted', 'a'))\n"
"""A line by which a cell counts itself, in the sandbox."""


def write_notebook(path: Path, *sources: str, tags: dict[int, str] | None = None) -> Path:
    """A notebook with a text and these code cells; ``tags`` by the place of the cell, from 0."""
    text = {"cell_type": "markdown", "id": "text", "metadata": {}, "source": "# Title"}
    cells = [
        {
            "cell_type": "code",
            "execution_count": None,
            "id": f"cell-{place}",
            "metadata": {"tags": [tags[place]]} if tags and place in tags else {},
            "outputs": [],
            "source": source,
        }
        for place, source in enumerate(sources)
    ]
    content = {"cells": [text, *cells], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(content))
    return path


def without_times(path: Path) -> Json:
    """An executed notebook without times, and without how streams were cut."""
    notebook: Json = json.loads(path.read_text())
    notebook["metadata"].pop("ivy", None)  # receipts name times, too
    for cell in notebook["cells"]:
        cell["metadata"].pop("execution", None)
        cell["metadata"].pop("ivy", None)
        if cell["cell_type"] == "code":
            cell["outputs"] = outputs_digest(cell["outputs"])
    return notebook


class Detached:
    """The command line, and the sandbox that it uses."""

    def __init__(self, ivy: CommandLine, server: RunningSandbox, chat: str) -> None:
        self.ivy = ivy
        self.server = server
        self.chat = chat

    def file(self, run_id: str, name: str = "run.json") -> Path:
        """A file of a run on the sandbox's disk."""
        (path,) = self.server.root.rglob(f".ivy/*/runs/{run_id}/{name}")
        return path

    def root_of_cells(self, kernel: KernelDriver) -> Path:
        """The directory in which a kernel's cells run."""
        return Path(str(kernel.run("import os; print(os.getcwd())").text().strip()))

    def detach(self, *arguments: str) -> str:
        """Detach a notebook; the run's id."""
        answer = self.ivy("run", "--detach", *arguments)
        assert answer.returncode == 0, answer
        return answer.stdout.strip()

    def runs(self) -> list[Json]:
        """What the list says."""
        answer = self.ivy("runs", "--json")
        assert answer.returncode == 0, answer
        return list(json.loads(answer.stdout)["runs"])

    def record(self, run_id: str) -> Json:
        """The record on the sandbox's disk."""
        return dict(json.loads(self.file(run_id).read_text()))

    def ended(self, run_id: str) -> Json:
        """The record, once the run is over."""
        until(lambda: self.record(run_id)["state"] != "running", "the run's end", 60)
        return self.record(run_id)


@pytest.fixture
def detached(ivy: CommandLine, server: RunningSandbox, chat: str) -> Detached:
    """The command line on a sandbox that is there."""
    server.ready(chat)
    ivy.variables["IVY_ROUTE"] = "auto"
    return Detached(ivy, server, chat)


def test_a_detached_notebook_is_as_one_that_was_watched(detached: Detached) -> None:
    """But for times, the fetched notebook is what ``jupyter ivy run`` writes."""
    ivy = detached.ivy
    sources = ["x = 2", "print('a')\nx * 21", "", "1 / 0"]
    write_notebook(ivy.home.work / "a.ipynb", *sources, "print('not run')")
    watched = ivy("run", "a.ipynb", "--no-progress")
    run_id = detached.detach("a.ipynb")
    attached = ivy("runs", "attach", run_id[:6])
    fetched = ivy("runs", "fetch", run_id, "--output", "b.ipynb")
    assert (watched.returncode, attached.returncode, fetched.returncode) == (1, 1, 0), fetched
    assert without_times(ivy.home.work / "b.ipynb") == without_times(
        ivy.home.work / "a.executed.ipynb"
    )
    assert "42" in attached.stdout
    assert "ZeroDivisionError" in attached.stdout
    assert "failed in cell 3 of 4: ZeroDivisionError: division by zero" in attached.stderr


def test_a_cell_that_needs_this_machine_is_named_and_nothing_is_run(ivy: CommandLine) -> None:
    """%%local, %%ivy and %ivy lines, wherever they stand; before any sandbox is asked."""
    sources = [
        "x = 1",
        "%%local\nx",
        "%ivy status\nx",
        "y = 1\nfor _ in 'a':\n    %ivy status",
        "2",
    ]
    write_notebook(ivy.home.work / "a.ipynb", *sources)
    answer = ivy("run", "--detach", "a.ipynb", IVY_API_URL="http://127.0.0.1:1/api")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "Cells 2, 3, 4 of a.ipynb need this machine" in answer.stderr


def test_other_routes_cannot_run_a_notebook_unwatched(detached: Detached) -> None:
    """It is said why; no cell is run."""
    write_notebook(detached.ivy.home.work / "a.ipynb", COUNTS.format("once"))
    before = list(detached.server.root.rglob("run.json"))
    answer = detached.ivy("run", "--detach", "a.ipynb", IVY_ROUTE="notebook")
    assert (answer.returncode, answer.stdout) == (1, "")
    assert "on the agent route alone" in answer.stderr
    assert list(detached.server.root.rglob("run.json")) == before


def test_a_run_is_followed_left_and_cancelled(detached: Detached) -> None:
    """Ctrl-C ends the following alone; cancelling interrupts the cell and stops the run."""
    ivy = detached.ivy
    sources = ["1", "print('begun')\nimport time; time.sleep(600)", COUNTS.format("never")]
    write_notebook(ivy.home.work / "a.ipynb", *sources)
    run_id = detached.detach("a.ipynb")
    following = subprocess.Popen(
        [sys.executable, "-m", "ivy_kernel.cli", "runs", "attach", run_id],
        env=ivy.home.environment(ivy.variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert following.stdout is not None
        assert any(line == "begun\n" for line in following.stdout)
        following.send_signal(signal.SIGINT)
        _, said = following.communicate(timeout=60)
    finally:
        following.kill()
    assert following.returncode == 130
    assert "The run goes on" in said
    (listed,) = detached.runs()
    assert (listed["id"], listed["state"], listed["cell"]) == (run_id, "running", 2)
    answer = ivy("runs", "cancel", run_id)
    assert answer.returncode == 0, answer
    assert f"Run {run_id}: it was cancelled in cell 2 of 3" in answer.stderr
    assert ivy("runs", "cancel", run_id).returncode == 1  # it is over


def test_a_run_whose_agent_is_gone_has_stopped(detached: Detached) -> None:
    """It is told during which cell; its notebook is fetched once, and written over only by force.

    What stands in the records of a sandbox is shown, and never obeyed.
    """
    ivy = detached.ivy
    write_notebook(
        ivy.home.work / "a.ipynb", "print('kept')", "import time; time.sleep(600)", "print(2)"
    )
    run_id = detached.detach("a.ipynb")
    until(lambda: detached.record(run_id)["cell"] == 2, "the second cell")
    os.kill(detached.record(run_id)["agent"]["pid"], signal.SIGKILL)
    record = detached.record(run_id)
    evil = {
        **record,
        "id": "evil",
        "name": "\x1b[2J../../../up.ipynb",
        "state": "ended",
        "agent": {"directory": "/etc", "nonce": ["x"]},
        "error": {"no": "text"},
        "started": 5,
    }
    for name, value in {
        "evil": evil,
        "number": 5,
        "other": {**evil, "id": "another"},
        "huge": {**evil, "id": "huge", "cell": 10**400},
        "state": {**evil, "id": "state", "state": ["ended"]},
        "queue": {**evil, "id": "queue", "queue": [["a", -1, 0], "x", ["a", 1, True, 2]]},
    }.items():
        directory = detached.file(run_id).parents[1] / name
        directory.mkdir()
        (directory / "run.json").write_text(json.dumps(value))
        notebook = detached.file(run_id, "notebook.ipynb").read_text()
        (directory / "notebook.ipynb").write_text(notebook)
    listed = {one["id"]: one for one in detached.runs()}
    assert set(listed) == {run_id, "evil", "queue"}
    assert listed[run_id]["state"] == "stopped"
    assert listed[run_id]["error"] == "the sandbox (or its agent) ended during cell 2 of 3"
    assert listed["evil"]["name"] == "\\x1b[2J../../../up.ipynb"
    assert ivy("runs", "fetch", run_id).returncode == 0
    target = ivy.home.work / "a.executed.ipynb"
    assert "kept" in target.read_text()
    target.write_text("mine")
    assert ivy("runs", "fetch", run_id).returncode == 2
    assert target.read_text() == "mine"
    assert ivy("runs", "fetch", "evil").returncode == 0
    assert sorted(path.name for path in ivy.home.work.iterdir()) == [
        *("a.executed.ipynb", "a.ipynb", "up.executed.ipynb")
    ]
    answer = ivy("runs", "attach", run_id)
    assert answer.returncode == 1
    assert "stopped in cell 2 of 3" in answer.stderr


def test_a_run_that_stopped_is_resumed_from_its_checkpoint(detached: Detached) -> None:
    """With the variables that were saved; a cell that may have run runs again only if told."""
    ivy, counted = detached.ivy, COUNTS.format("x")
    stops = "import os, signal\nif not os.path.exists('go'): time.sleep(600)\nsteps.append(3)"
    sources = [f"{counted}import time; steps = [1]", f"{counted}steps.append(2)", stops]
    write_notebook(ivy.home.work / "a.ipynb", *sources, f"{counted}steps + [4]")
    first = detached.detach("a.ipynb")
    until(lambda: detached.record(first)["cell"] == 3, "the third cell")
    directory = detached.file(first).parents[4]

    def saved() -> list[int]:
        found = directory.rglob("index-*.json")
        return [json.loads(json.loads(path.read_text())["body"])["number"] for path in found]

    # Cells that follow each other at once may have the checkpoint of one before: it is told below.
    until(saved, "a checkpoint")
    os.kill(detached.record(first)["agent"]["pid"], signal.SIGKILL)
    refused = ivy("runs", "resume", first)
    assert refused.returncode == 2, refused
    assert "cell 3, which was under way and may have run in part" in refused.stderr
    (directory / "go").touch()
    answer = ivy("runs", "resume", first, "--rerun")
    assert answer.returncode == 0, answer
    second = answer.stdout.strip()
    again = ivy("runs", "resume", first, "--rerun")  # its cells would run twice
    assert again.returncode == 2, again
    assert f"was resumed already, as run {second}" in again.stderr
    assert detached.ended(second)["state"] == "ended"
    assert ivy("runs", "fetch", second).returncode == 0
    cells = json.loads((ivy.home.work / "a.executed.ipynb").read_text())["cells"][1:]
    assert [cell["execution_count"] for cell in cells] == [1, 2, 3, 4]
    assert cells[3]["outputs"][0]["data"]["text/plain"] == ["[1, 2, 3, 4]"]
    # The newest checkpoint may be that of the cell before: then the second one was named, too.
    expected = 4 if "cell 2, cell 3" in refused.stderr else 3
    assert (directory / "counted").read_text().split() == ["x"] * expected


def detach_line(*cells: tuple[str, str, bool]) -> str:
    """The line that JupyterLab's command runs in the notebook."""
    text = json.dumps({"cells": [list(cell) for cell in cells], "name": "lab.ipynb"})
    return "%ivy detach " + base64.b64encode(text.encode()).decode()


@pytest.fixture
def kernel(start_kernel: StartKernel, detached: Detached) -> KernelDriver:
    """A notebook's kernel in the same sandbox."""
    return start_kernel(chat_id=detached.chat, IVY_ROUTE="agent")


def test_the_rest_of_a_notebook_runs_on_in_its_own_kernel(
    start_kernel: StartKernel, detached: Detached
) -> None:
    """With the variables that are there; a cell that is run meanwhile comes after it.

    What it shows goes into the kernel's journal, from which an open page has it.
    """
    home = detached.ivy.home
    notebook = str(write_notebook(home.work / "lab.ipynb", "1"))
    kernel = start_kernel(
        chat_id=detached.chat, home=home, IVY_ROUTE="agent", JPY_SESSION_NAME=notebook
    )
    kernel.run("steps = ['watched']")
    go = detached.root_of_cells(kernel) / "go"
    ran = kernel.run(
        detach_line(
            ("a", f"{waits_for(go)}steps.append('first')", False),
            ("b", "print('told')\nsteps.append('second')", False),
        ),
        store_history=False,
    )
    run_id = ran.text().split()[1].rstrip(":")
    message_id = kernel.submit("steps")
    until(lambda: detached.record(run_id)["cell"] == 1, "the first cell")
    go.touch()
    assert kernel.finish(message_id).result == "['watched', 'first', 'second']"
    record = detached.ended(run_id)
    assert (record["state"], record["name"], record["cells"]) == ("ended", "lab.ipynb", 2)
    (journal,) = (home.data / "ivy" / "outputs").glob("*.jsonl")
    cells, _ = JournalReader(journal).cells()
    assert cells["b"]["outputs"] == [{"output_type": "stream", "name": "stdout", "text": "told\n"}]
    assert [cells[cell]["fate"] for cell in "ab"] == ["succeeded", "succeeded"]
    assert [cells[cell]["number"] for cell in "ab"] == [record["number"] + 1, record["number"] + 2]
    answer = detached.ivy("runs", "fetch", run_id)
    fetched = json.loads((detached.ivy.home.work / "lab.executed.ipynb").read_text())
    assert answer.returncode == 0
    assert [cell["id"] for cell in fetched["cells"]] == ["a", "b"]
    assert fetched["cells"][1]["outputs"][0]["text"] == ["told\n"]


def test_an_interrupt_in_the_notebook_stops_the_run(
    kernel: KernelDriver, detached: Detached
) -> None:
    """The run's cell is interrupted, and no later one begins."""
    kernel.run("1")
    ran = kernel.run(detach_line(("a", "import time; time.sleep(600)", False), ("b", "1", False)))
    run_id = ran.text().split()[1].rstrip(":")
    message_id = kernel.submit("'after'")
    until(lambda: detached.record(run_id)["cell"] == 1, "the first cell")
    until(lambda: kernel.interrupt() and detached.record(run_id)["state"] != "running", "its end")
    record = detached.record(run_id)
    assert (record["state"], record["cell"]) == ("failed", 1)
    assert "KeyboardInterrupt" in record["error"]
    kernel.finish(message_id)


@pytest.mark.parametrize("given", ["", "no base64", base64.b64encode(b'{"cells": []}').decode()])
def test_what_is_no_cells_is_refused(kernel: KernelDriver, given: str) -> None:
    """It is said what is wrong; no sandbox is asked."""
    error = kernel.run(f"%ivy detach {given}").error
    assert error is not None
    assert error["ename"] == "UsageError"


# All processes of this machine are killed ---------------------------------------------------------
SOURCES = [
    f"import time\n{COUNTS.format('a')}steps = ['a']",
    f"{COUNTS.format('b')}print('first'); time.sleep(0.3); print('second')\nsteps.append('b')",
    f"{COUNTS.format('c')}import sys; print('no', file=sys.stderr); steps.append('c'); steps",
    "# the next ones take their time\n" + COUNTS.format("d") + "time.sleep(0.4)\nlen(steps)",
    f"{COUNTS.format('e')}from IPython.display import display, HTML\ndisplay(HTML('<b>e</b>'))",
    f"{COUNTS.format('f')}steps.append('f')\nfor i in range(5): print(i); time.sleep(0.05)",
    f"{COUNTS.format('g')}time.sleep(0.2)\nsteps",
    f"{COUNTS.format('h')}{{name: steps.index(name) for name in steps}}",
]
LETTERS = "abcdefgh"


@pytest.fixture(scope="module")
def undisturbed(server: RunningSandbox, tmp_path_factory: pytest.TempPathFactory) -> Json:
    """What ``jupyter ivy run`` makes of these cells."""
    home = Home(tmp_path_factory.mktemp("undisturbed") / "home")
    server.ready("undisturbed")
    ivy = CommandLine(home, kernel_variables(server, "undisturbed", IVY_ROUTE="agent"))
    write_notebook(home.work / "a.ipynb", *SOURCES)
    answer = ivy("run", "a.ipynb", "--no-progress")
    assert answer.returncode == 0, answer
    return without_times(home.work / "a.executed.ipynb")


@pytest.mark.parametrize("seed", [0, 1, *map(further, range(2, 60))])
@pytest.mark.timeout(300)
def test_a_run_outlives_all_processes_of_this_machine(
    seed: int,
    detached: Detached,
    undisturbed: Json,
    start_kernel: StartKernel,
    new_home: Callable[[], Home],
) -> None:
    """Killed at any moment, the rest comes from the sandbox, each cell having run once.

    The notebook is detached at a random cell by its kernel, or as a whole by the command line; it
    is fetched with another data directory, and equal to an undisturbed run but for times.
    """
    dice = random.Random(seed)
    first = dice.randrange(len(SOURCES)) if seed % 2 else 0
    if seed % 2:
        kernel = start_kernel(chat_id=detached.chat, IVY_ROUTE="agent")
        for source in SOURCES[:first]:
            kernel.run(source)
        cells = [(f"cell-{at}", SOURCES[at], False) for at in range(first, len(SOURCES))]
        kernel.run(detach_line(*cells), store_history=False)
        time.sleep(dice.uniform(0, 1.5))  # a random moment is what this is about
        kernel.kill()
    else:
        write_notebook(detached.ivy.home.work / "a.ipynb", *SOURCES)
        command = subprocess.Popen(
            [sys.executable, "-m", "ivy_kernel.cli", "run", "--detach", "a.ipynb"],
            env=detached.ivy.home.environment(detached.ivy.variables),
            cwd=detached.ivy.home.work,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        if seed % 4:  # before, while or after it hands the notebook over
            time.sleep(dice.uniform(0.5, 5))
        else:
            assert command.stdout is not None
            command.stdout.readline()
        command.kill()
        command.communicate()
    ivy = CommandLine(new_home(), detached.ivy.variables)
    elsewhere = Detached(ivy, detached.server, detached.chat)
    runs = elsewhere.runs()
    if not runs:
        assert seed % 4 == 2, "it was handed over, and there is no run"
        assert list(detached.server.root.rglob(f"{detached.chat}*/**/counted")) == []
        return
    run_id = runs[0]["id"]
    assert elsewhere.ended(run_id)["state"] == "ended"
    assert ivy("runs", "fetch", run_id, "--output", "b.ipynb").returncode == 0
    fetched = without_times(ivy.home.work / "b.ipynb")
    if seed % 2:  # its kernel has written the rest of the notebook, without the text before
        code = [cell for cell in undisturbed["cells"] if cell["cell_type"] == "code"]
        assert fetched["cells"] == code[first:]
    else:
        assert fetched == undisturbed
    counted = elsewhere.file(run_id).parents[4] / "counted"
    assert counted.read_text().split() == list(LETTERS)
