"""What cells say while their notebook has no kernel comes into its next kernel's journal."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import websocket
from home import Home
from jupyter_server_driver import TOKEN, RunningJupyter, ServerHome, running_jupyter
from kernel_driver import CellRun, KernelDriver, agent_variables, running_kernel
from sandbox_server import RunningSandbox, until
from thoroughness import further

from ivy_kernel.kernel.restart import keep_for_next_server
from ivy_kernel.session.journal_reader import JournalReader
from ivy_kernel.session.kernel_registry import kernel_id_of

Json = dict[str, Any]


class Notebook:
    """A notebook file, and the kernels that a Jupyter server starts for it.

    Parameters
    ----------
    home
        The directories of the server.
    server, chat
        The sandbox.
    cells
        Id to source.
    """

    def __init__(
        self, home: Home, server: RunningSandbox, chat: str, cells: dict[str, str]
    ) -> None:
        self.home = home
        self.chat = chat
        self.cells = cells
        self.path = home.work / "notebook.ipynb"
        self.server = server
        self.write()

    def write(self) -> None:
        """Write the file."""
        cells = [{"id": key, "cell_type": "code", "source": s} for key, s in self.cells.items()]
        self.path.write_text(json.dumps({"cells": cells, "nbformat": 4, "nbformat_minor": 5}))

    @contextlib.contextmanager
    def kernel(self) -> Iterator[NotebookKernel]:
        """Start a kernel, as a server does."""
        variables = agent_variables(self.server, self.chat)
        variables["JPY_SESSION_NAME"] = str(self.path)
        with running_kernel(self.home, variables) as driver:
            yield NotebookKernel(self, driver)


class NotebookKernel:
    """One kernel of a notebook."""

    def __init__(self, notebook: Notebook, driver: KernelDriver) -> None:
        self.notebook = notebook
        self.driver = driver
        self.kernel_id = kernel_id_of(str(driver.manager.connection_file))
        directory = notebook.home.data / "ivy" / "outputs"
        self._reader = JournalReader(directory / f"{self.kernel_id}.jsonl")

    def submit(self, cell_id: str) -> str:
        """Send a cell, as JupyterLab does."""
        client = self.driver.client
        content = {"code": self.notebook.cells[cell_id], "silent": False, "store_history": True}
        message = client.session.msg(
            "execute_request", {**content, "allow_stdin": False}, metadata={"cellId": cell_id}
        )
        client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def run(self, cell_id: str) -> CellRun:
        """Run a cell."""
        return self.driver.finish(self.submit(cell_id))

    def begin(self, cell_id: str) -> str:
        """Begin a cell, and wait for its first output."""
        run = self.submit(cell_id)
        self.driver.until(run, lambda message: message["msg_type"] == "stream")
        return run

    @property
    def cells(self) -> dict[str, Json]:
        """The cells in its journal."""
        return self._reader.cells()[0]

    def text(self, cell_id: str) -> str:
        """What the journal has of a cell's stdout."""
        outputs = self.cells.get(cell_id, {}).get("outputs", [])
        return "".join(each["text"] for each in outputs if each.get("name") == "stdout")

    def is_over(self, cell_id: str) -> bool:
        """Whether a cell has ended, by the journal."""
        return bool(self.cells.get(cell_id, {}).get("ended"))

    def crash(self) -> None:
        """Die as with a machine that crashes."""
        os.kill(self.driver.pid, signal.SIGKILL)
        until(lambda: not self.driver.client.is_alive(), "the kernel has died")

    def stop_with_server(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """End as a kernel whose Jupyter server ends."""
        with monkeypatch.context() as patch:
            patch.setenv("JUPYTER_RUNTIME_DIR", str(self.notebook.home.runtime))
            keep_for_next_server([self.kernel_id])
        self.driver.stop()


SAID = "begun\n" + "".join(f"line {number}\n" for number in range(50))


def waits_for(path: Path) -> str:
    """A cell that waits, for a minute at most, until a file is there."""
    return (
        "import os, time\n"
        "print('begun', flush=True)\n"
        "until = time.monotonic() + 60\n"
        f"while not os.path.exists({str(path)!r}) and time.monotonic() < until: time.sleep(0.02)\n"
        "for number in range(50): print('line', number)\n"
        "'the result'\n"
    )


@pytest.fixture
def notebook(tmp_path: Path, server: RunningSandbox, new_chat: Callable[[], str]) -> Notebook:
    """A notebook, whose sandbox is there."""
    cells = {
        "a": "x = 41",
        "b": waits_for(tmp_path / "go"),
        "c": "print(x + 1)",
        "d": "print('more')\n1/0",
    }
    return Notebook(Home(tmp_path / "home"), server, new_chat(), cells)


def test_what_a_kernel_shows_is_in_its_journal(notebook: Notebook) -> None:
    """Each cell with its outputs, number and fate, as the front end got them."""
    with notebook.kernel() as kernel:
        kernel.run("a")
        shown = kernel.run("d")
        cell = kernel.cells["d"]
        assert kernel.text("d") == "more\n" == shown.text()
        assert [each["output_type"] for each in cell["outputs"]] == ["stream", "error"]
        assert (cell["number"], cell["fate"]) == (2, "failed")
        assert kernel.cells["a"]["fate"] == "succeeded"
        assert kernel.cells["a"]["outputs"] == []


def test_a_cell_goes_on_when_its_server_ends(
    notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any cell is run, the next kernel's journal has its outputs; variables stay too."""
    with notebook.kernel() as first:
        first.run("a")
        first.run("d")
        run = first.begin("b")
        first.stop_with_server(monkeypatch)
    (tmp_path / "go").touch()
    with notebook.kernel() as second:
        until(lambda: second.is_over("b"), "the journal has the cell", 30)
        cell = second.cells["b"]
        assert second.text("b") == SAID
        assert cell["outputs"][-1]["data"]["text/plain"] == "'the result'"
        assert (cell["run"], cell["fate"], cell["number"]) == (run, "succeeded", 3)
        # What the kernel before had to its end is not said again.
        assert list(second.cells) == ["b"]
        assert second.run("c").text() == "42\n"
        assert second.run("c").reply["execution_count"] == 5


def test_a_cell_that_runs_when_its_kernel_crashes_goes_on_live(
    notebook: Notebook, tmp_path: Path
) -> None:
    """The journal gets what it has said, and what it says from then on; nothing twice."""
    with notebook.kernel() as first:
        first.run("a")
        run = first.begin("b")
        first.crash()
    with notebook.kernel() as second:
        until(lambda: second.text("b") == "begun\n", "the journal has its beginning", 30)
        assert not second.is_over("b")
        assert second.cells["b"]["is_running"]
        (tmp_path / "go").touch()
        seen = second.driver.until(run, lambda message: message["msg_type"] == "execute_result")
        assert "line 49" in "".join(m["content"].get("text", "") for m in seen)
        until(lambda: second.is_over("b"), "the journal has its end", 30)
        assert second.text("b") == SAID
        assert second.cells["b"]["fate"] == "succeeded"
        assert second.run("c").text() == "42\n"


def test_a_cell_whose_python_dies_meanwhile_is_lost(notebook: Notebook, tmp_path: Path) -> None:
    """While it is followed live: it ends with what it had said."""
    notebook.cells["b"] += "\nos.kill(os.getpid(), 9)"
    with notebook.kernel() as first:
        first.begin("b")
        first.crash()
    with notebook.kernel() as second:
        until(lambda: second.text("b") == "begun\n", "the journal has its beginning", 30)
        (tmp_path / "go").touch()
        until(lambda: second.is_over("b"), "the journal has its end", 30)
        assert second.cells["b"]["fate"] == "lost"
        assert second.text("b").startswith("begun\n")


def test_shut_down_by_the_user_ends_it_all(notebook: Notebook) -> None:
    """As ever: the next kernel of the notebook finds neither agent nor variables."""
    with notebook.kernel() as first:
        first.run("a")
        first.driver.stop()
    with notebook.kernel() as second:
        assert second.run("c").reply["ename"] == "NameError"
        assert list(second.cells) == ["c"]


def test_a_kernel_beside_another_of_the_same_path_has_its_own_variables(
    notebook: Notebook,
) -> None:
    """As with two Jupyter servers: neither takes the other's agent over."""
    with notebook.kernel() as first:
        first.run("a")
        with notebook.kernel() as second:
            assert second.run("c").reply["ename"] == "NameError"
            assert first.run("c").text() == "42\n"
            second.driver.stop()
        assert first.run("c").text() == "42\n"


def test_a_second_machine_gets_what_is_said_on_the_first(
    notebook: Notebook, tmp_path: Path
) -> None:
    """With another data directory and the same chat: from the disk, and the agent is left alone."""
    other = Notebook(
        Home(tmp_path / "other"), notebook.server, notebook.chat, {**notebook.cells, "e": "1 + 1"}
    )
    with notebook.kernel() as first:
        first.run("a")
        first.run("d")
        first.begin("b")
        with other.kernel() as second:
            second.run("e")
            until(lambda: second.text("b") == "begun\n", "the cell that runs is there", 30)
            assert second.cells["b"]["is_running"]
            assert second.cells["d"]["fate"] == "failed"
            (tmp_path / "go").touch()
            until(lambda: first.is_over("b"), "it has ended", 30)
            until(lambda: second.is_over("b"), "its end is there", 30)
            assert second.text("b") == SAID == first.text("b")
            assert second.cells["b"]["outputs"] == first.cells["b"]["outputs"]
            assert list(second.cells) == ["e", "a", "d", "b"]
        assert first.run("c").text() == "42\n"


def test_a_sandbox_that_was_asleep_still_has_the_outputs(
    notebook: Notebook,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changed: Callable[..., None],
) -> None:
    """The agent is gone with its processes; what its cells have said is read from the disk."""
    with notebook.kernel() as first:
        first.run("a")
        run = first.begin("b")
        first.stop_with_server(monkeypatch)
    (tmp_path / "go").touch()
    (index,) = notebook.server.root.glob(f"**/{notebook.chat}/**/.ivy/*/outputs/cells.jsonl")
    until(lambda: '"fate":"ok"' in index.read_text().splitlines()[-1], "the cell has ended", 30)
    fall_asleep(notebook, changed)
    with notebook.kernel() as second:
        assert second.run("c").reply["ename"] == "NameError"
        until(lambda: second.is_over("b"), "the journal has the cell", 30)
        assert second.text("b") == SAID
        assert (second.cells["b"]["run"], second.cells["b"]["fate"]) == (run, "succeeded")


def fall_asleep(notebook: Notebook, changed: Callable[..., None]) -> None:
    """Have the notebook's sandbox hibernate."""
    changed(hibernate_seconds=0.3, hibernating_seconds=0.0)
    session = f"session-of-{notebook.chat}"
    until(
        lambda: notebook.server.session_status(session)["lifecycle"]["state"] == "hibernated",
        "it sleeps",
    )
    changed(hibernate_seconds=None)


@pytest.mark.thorough
def test_a_cell_that_was_cut_off_by_its_sandbox_is_lost(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch, changed: Callable[..., None]
) -> None:
    """What it had said is there, and it is not called running for ever."""
    with notebook.kernel() as first:
        first.begin("b")
        first.stop_with_server(monkeypatch)
    fall_asleep(notebook, changed)
    with notebook.kernel() as second:
        until(lambda: second.text("b") == "begun\n", "the journal has its beginning", 30)
        until(lambda: second.is_over("b"), "its loss is there", 60)
        assert second.cells["b"]["fate"] == "lost"


# With real Jupyter servers ------------------------------------------------------------------------
class Page:
    """A notebook that is open in a Jupyter server, as far as its cells need a page.

    Parameters
    ----------
    jupyter
        The server.
    notebook
        The notebook.
    """

    def __init__(self, jupyter: RunningJupyter, notebook: Notebook) -> None:
        self._jupyter = jupyter
        self._notebook = notebook
        name = notebook.path.name
        body = {"path": name, "type": "notebook", "kernel": {"name": "ivy-sandbox"}, "name": name}
        status, _, session = jupyter.call("POST", "api/sessions", body)
        assert status == 201, session
        self._kernel_id = session["kernel"]["id"]
        self.socket = websocket.create_connection(
            f"{jupyter.url.replace('http', 'ws', 1)}api/kernels/{self._kernel_id}/channels",
            header=[f"Authorization: token {TOKEN}"],
            timeout=40,
        )

    def submit(self, cell_id: str) -> str:
        """Run a cell."""
        run = f"run-of-{cell_id}-{os.urandom(4).hex()}"
        header = {"msg_id": run, "msg_type": "execute_request", "session": "page", "version": "5.3"}
        content = {"code": self._notebook.cells[cell_id], "silent": False, "store_history": True}
        message = {"header": {**header, "username": "", "date": "2026-11-30T00:00:00Z"}}
        message.update(parent_header={}, metadata={"cellId": cell_id}, channel="shell")
        self.socket.send(json.dumps({**message, "content": {**content, "allow_stdin": False}}))
        return run

    def until(self, run: str, msg_type: str) -> Json:
        """Wait for a message of a cell."""
        while True:
            message: Json = json.loads(self.socket.recv())
            if (message["parent_header"].get("msg_id"), message["msg_type"]) == (run, msg_type):
                return message

    def cells(self) -> dict[str, Json]:
        """What the page is told of its cells when it is opened."""
        query = f"kernel_id={self._kernel_id}&path={self._notebook.path.name}&since=0"
        status, _, body = self._jupyter.call("GET", f"ivy/outputs?{query}")
        assert status == 200, body
        found: dict[str, Json] = body["cells"]
        return found


@pytest.mark.parametrize("end", [signal.SIGTERM, further(signal.SIGKILL)])
def test_a_notebook_that_is_opened_in_the_next_server_has_it_all(
    notebook: Notebook, tmp_path: Path, end: signal.Signals
) -> None:
    """Outputs of the cell that ran on, live from then on, and the variables."""
    home = ServerHome(tmp_path / "jupyter")
    notebook.path = home.work / "notebook.ipynb"
    notebook.write()
    variables = agent_variables(notebook.server, notebook.chat)
    with running_jupyter(home, variables) as jupyter:
        page = Page(jupyter, notebook)
        page.until(page.submit("a"), "execute_reply")
        run = page.submit("b")
        page.until(run, "stream")
        jupyter.process.send_signal(end)
        jupyter.process.wait(30)
        page.socket.close()
    with running_jupyter(home, variables) as jupyter:
        page = Page(jupyter, notebook)
        until(lambda: page.cells().get("b", {}).get("is_running"), "the cell is followed", 40)
        (tmp_path / "go").touch()
        until(lambda: page.cells()["b"]["fate"] == "succeeded", "the cell has ended", 30)
        cell = page.cells()["b"]
        assert cell["run"] == run
        assert cell["outputs"][0]["text"] == SAID
        assert cell["outputs"][1]["data"]["text/plain"] == "'the result'"
        assert len(cell["outputs"]) == 2
        assert page.until(page.submit("c"), "stream")["content"]["text"] == "42\n"
        page.socket.close()
