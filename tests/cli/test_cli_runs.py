"""``jupyter ivy run --detach`` and ``jupyter ivy runs``: notebooks that run without this machine."""

from __future__ import annotations

import base64
import json
import random
import signal
import subprocess
import sys
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
    for cell in notebook["cells"]:
        cell["metadata"].pop("execution", None)
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


def detach_line(*cells: tuple[str, str, bool]) -> str:
    """The line that JupyterLab's command runs in the notebook."""
    text = json.dumps({"cells": [list(cell) for cell in cells], "name": "lab.ipynb"})
    return "%ivy detach " + base64.b64encode(text.encode()).decode()


@pytest.fixture
def kernel(start_kernel: StartKernel, detached: Detached) -> KernelDriver:
    """A notebook's kernel in the same sandbox."""
    return start_kernel(chat_id=detached.chat, IVY_ROUTE="agent")


def test_the_rest_of_a_notebook_runs_on_in_its_own_kernel(
    kernel: KernelDriver, detached: Detached
) -> None:
    """With the variables that are there; a cell that is run meanwhile comes after it."""
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
