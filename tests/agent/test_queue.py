"""The queue of the agent: a notebook that runs in the sandbox without any client."""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from far_side import BareRunner, Far, is_alive, kill, route_over, waits_for
from waiting import eventually

from ivy_kernel.agent import outputs
from ivy_kernel.agent.queue import LINGER_SECONDS, CellQueue
from ivy_kernel.errors import WorkError

Json = dict[str, Any]


def notebook_of(*sources: str) -> Json:
    """A notebook with these code cells and one of text before them."""
    text = {"cell_type": "markdown", "id": "text", "metadata": {}, "source": "# Title"}
    cells = [
        {
            "cell_type": "code",
            "execution_count": None,
            "id": f"cell-{number}",
            "metadata": {},
            "outputs": [],
            "source": source,
        }
        for number, source in enumerate(sources, 1)
    ]
    return {"cells": [text, *cells], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def run_of(*sources: str, **more: Any) -> Json:
    """The request that queues them."""
    allowed = more.pop("allowed", ())
    cells = [[f"cell-{at}", at, at in allowed] for at in range(1, len(sources) + 1)]
    request = {"id": secrets.token_hex(6), "name": "a.ipynb", "directory": ".ivy/n"}
    return {**request, "notebook": notebook_of(*sources), "cells": cells, **more}


class Agent:
    """An agent over a bare interpreter, and the files of its runs."""

    def __init__(self, far: Far, directory: Path) -> None:
        self.far = far
        self.directory = directory

    async def queue(self, request: Json) -> Json:
        """Queue a run; its record."""
        return await self.far.route.queue({"queue": request})

    def record(self, run_id: str) -> Json:
        """What is on the disk of a run."""
        path = self.directory / ".ivy" / "n" / "runs" / run_id / "run.json"
        return dict(json.loads(path.read_text()))

    def cells(self, run_id: str) -> list[Json]:
        """The code cells of its notebook."""
        path = self.directory / ".ivy" / "n" / "runs" / run_id / "notebook.ipynb"
        return [one for one in json.loads(path.read_text())["cells"] if one["cell_type"] == "code"]

    def text(self, run_id: str, number: int) -> str:
        """The text that a cell has shown, from 1."""
        outputs = self.cells(run_id)[number - 1]["outputs"]
        return "".join(output.get("text", "") for output in outputs)

    async def ended(self, run_id: str) -> Json:
        """Its record, once it is over."""
        await eventually(lambda: self.record(run_id)["state"] != "running", "the run's end", 60)
        return self.record(run_id)


@pytest.fixture
async def agent(place: Path) -> AsyncIterator[Agent]:
    """An agent in a place of its own."""
    runner = BareRunner(sys.executable, (), place)
    async with route_over(runner, place) as far:
        await far.route.open()
        yield Agent(far, place)


async def test_a_run_needs_no_client(agent: Agent) -> None:
    """All cells run, with outputs, numbers and times as nbclient keeps them."""
    request = run_of("x = 20", "print(x + 1)\nx * 2", "import sys; print('no', file=sys.stderr)")
    assert (await agent.queue(request))["state"] == "running"
    record = await agent.ended(request["id"])
    assert (record["state"], record["cell"], record["error"]) == ("ended", 3, "")
    first, second, third = agent.cells(request["id"])
    assert [cell["execution_count"] for cell in (first, second, third)] == [1, 2, 3]
    assert [output["output_type"] for output in second["outputs"]] == ["stream", "execute_result"]
    assert second["outputs"][1]["data"]["text/plain"] == "40"
    assert third["outputs"][0]["name"] == "stderr"
    times = {"iopub.status.busy", "iopub.execute_input", "iopub.status.idle"}
    times |= {"shell.execute_reply", "shell.execute_reply.started"}
    assert set(second["metadata"]["execution"]) == times


async def test_a_run_stops_at_an_error(agent: Agent) -> None:
    """The error is in the notebook and in the record; later cells have not run."""
    request = run_of("1", "1 / 0", "open('ran', 'w')")
    await agent.queue(request)
    record = await agent.ended(request["id"])
    assert (record["state"], record["cell"]) == ("failed", 2)
    assert record["error"] == "ZeroDivisionError: division by zero"
    assert agent.cells(request["id"])[1]["outputs"][0]["ename"] == "ZeroDivisionError"
    assert agent.cells(request["id"])[2]["execution_count"] is None
    assert not (agent.directory / "ran").exists()


async def test_a_run_goes_on_where_an_error_is_allowed(agent: Agent) -> None:
    """As after a cell with the tag ``raises-exception``."""
    request = run_of("1 / 0", "print('on')", allowed=(1,))
    await agent.queue(request)
    assert (await agent.ended(request["id"]))["state"] == "ended"
    assert agent.text(request["id"], 2) == "on\n"


async def test_nobody_is_asked_for_input(agent: Agent) -> None:
    """``input()`` raises, as under nbclient, instead of waiting for ever."""
    request = run_of("input('name? ')")
    await agent.queue(request)
    record = await agent.ended(request["id"])
    assert record["state"] == "failed"
    assert "StdinNotImplementedError" in record["error"]


async def test_a_run_is_taken_once(agent: Agent) -> None:
    """The same request again, as after a lost answer, runs no cell twice."""
    request = run_of(*["print('once', file=open('counted', 'a'))"] * 3)
    await agent.queue(request)
    await agent.queue(request)
    await agent.ended(request["id"])
    assert (await agent.queue(request))["state"] == "ended"
    assert (agent.directory / "counted").read_text() == "once\n" * 3


async def test_an_id_that_has_run_is_refused_by_the_next_agent(agent: Agent) -> None:
    """What was queued in an agent that is gone is never run by another one."""
    request = run_of("print('once', file=open('counted', 'a'))")
    await agent.queue(request)
    await agent.ended(request["id"])
    runner = BareRunner(sys.executable, (), agent.directory)
    async with route_over(runner, agent.directory) as far:
        await far.route.open()
        with pytest.raises(WorkError, match="File exists"):
            await far.route.queue({"queue": request})
    assert (agent.directory / "counted").read_text() == "once\n"


async def test_a_second_run_is_refused_while_one_is_under_way(agent: Agent) -> None:
    """It says which one is."""
    go = agent.directory / "go"
    request = run_of(waits_for(go))
    await agent.queue(request)
    with pytest.raises(WorkError, match=f"{request['id']} is under way"):
        await agent.queue(run_of("1"))
    go.touch()
    await agent.ended(request["id"])


async def test_a_cell_of_a_client_waits_behind_the_run(agent: Agent) -> None:
    """It is not mixed in between two cells of the run, and finds what they have made."""
    go = agent.directory / "go"
    request = run_of(waits_for(go), "order = ['second']", "order += ['third']")
    await agent.queue(request)
    running = agent.far.begin("order")
    await eventually(lambda: agent.record(request["id"])["cell"] == 1, "the first cell")
    go.touch()
    assert (await running.end()).result == "['second', 'third']"
    assert agent.record(request["id"])["state"] == "ended"


async def test_what_a_cell_streams_is_in_the_file_while_it_runs(agent: Agent) -> None:
    """A run that never ends by itself has shown what it said."""
    go = agent.directory / "go"
    request = run_of("print('begun')\n" + waits_for(go))
    await agent.queue(request)
    await eventually(lambda: agent.text(request["id"], 1) == "begun\n", "its first line")
    assert agent.record(request["id"])["state"] == "running"
    go.touch()
    await agent.ended(request["id"])


async def test_cancelling_interrupts_and_stops(agent: Agent) -> None:
    """The running cell ends by KeyboardInterrupt, and no later one begins."""
    request = run_of("import time\nprint('on')\ntime.sleep(600)", "open('ran', 'w')")
    await agent.queue(request)
    await eventually(lambda: agent.text(request["id"], 1) == "on\n", "the cell's begin")
    await agent.far.route.queue({"cancel": request["id"]})
    record = await agent.ended(request["id"])
    assert (record["state"], record["cell"]) == ("cancelled", 1)
    assert agent.cells(request["id"])[0]["outputs"][-1]["ename"] == "KeyboardInterrupt"
    assert not (agent.directory / "ran").exists()


async def test_a_run_ends_with_its_kernel(agent: Agent) -> None:
    """No later cell runs without the variables; cell and reason are told."""
    request = run_of("1", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "open('ran')")
    await agent.queue(request)
    record = await agent.ended(request["id"])
    assert (record["state"], record["cell"], record["is_under_way"]) == ("failed", 2, True)
    assert "kernel died (exit code -9)" in record["error"]
    assert agent.cells(request["id"])[1]["outputs"][-1]["ename"] == "DeadKernelError"
    assert not (agent.directory / "ran").exists()


async def test_an_agent_that_is_ended_writes_how_far_it_came(agent: Agent) -> None:
    """SIGTERM: outputs so far and the cell under way are on the disk."""
    request = run_of("print('first')", "print('second')\nimport time; time.sleep(600)")
    pid = (await agent.queue(request))["agent"]["pid"]
    await eventually(lambda: agent.record(request["id"])["cell"] == 2, "the second cell")
    os.kill(pid, signal.SIGTERM)
    record = await agent.ended(request["id"])
    assert (record["state"], record["cell"], record["is_under_way"]) == ("stopped", 2, True)
    assert agent.text(request["id"], 1) == "first\n"
    await eventually(lambda: not is_alive(pid), "the agent's end")


async def test_the_number_is_on_the_disk_before_the_cell_runs(agent: Agent) -> None:
    """An agent that is killed has left which cell it had sent."""
    request = run_of("1", "open('begun', 'w'); import time; time.sleep(600)")
    pid = (await agent.queue(request))["agent"]["pid"]
    await eventually((agent.directory / "begun").exists, "the second cell")
    await kill(pid)
    record = agent.record(request["id"])
    assert (record["state"], record["cell"], record["is_under_way"]) == ("running", 2, True)


def test_a_cell_whose_number_cannot_be_written_is_not_sent(tmp_path: Path) -> None:
    """On a full disk the run fails instead: it could not be told whether the cell had run."""
    queue, sent = queue_of(tmp_path)
    request = run_of("1")
    assert queue.answer({"queue": request}, 1, 0.0)["state"] == "running"
    run_json = tmp_path / ".ivy" / "n" / "runs" / request["id"] / ".run.json.part"
    run_json.mkdir()  # nothing can be written under this name now, not even by root
    queue.tick(0.0)
    record = queue.answer({"look": request["id"]}, 1, 0.0)
    assert (sent, record["state"], record["cell"]) == ([], "failed", 0)
    run_json.rmdir()
    queue.tick(10.0)  # what could not be written is tried again
    assert json.loads((run_json.parent / "run.json").read_text())["state"] == "failed"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"id": "../../x"}, "directory's name"),
        ({"cells": [["a", 7, False]]}, "not among"),
        ({"cells": "no"}, "unpack"),
        ({"notebook": {}}, "cells"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(
    tmp_path: Path, changed: Json, words: str
) -> None:
    """It is told why, and nothing is left on the disk."""
    queue, _ = queue_of(tmp_path)
    answer = queue.answer({"queue": {**run_of("1"), **changed}}, 1, 0.0)
    assert words in answer["error"]
    assert list(tmp_path.rglob("run.json")) == []


def queue_of(tmp_path: Path) -> tuple[CellQueue, list[str]]:
    """A queue without a kernel, and the ids of the cells that it has sent."""
    sent: list[str] = []
    return CellQueue(
        str(tmp_path), {}, lambda i, *_: sent.append(i), lambda *_: None, lambda *_: None
    ), sent


def message(msg_type: str, content: Json, **metadata: Any) -> tuple[bytes, bytes, bytes]:
    """The parts of a message, as the agent has them."""
    header = {"msg_type": msg_type, "date": "2026-01-01T00:00:00Z"}
    first, second, third = (json.dumps(part).encode() for part in (header, metadata, content))
    return first, second, third


def test_an_agent_that_is_there_for_one_run_ends_soon_after_it(tmp_path: Path) -> None:
    """Others live on, for the next cells of their notebook."""
    for ends_agent, expected in ((True, LINGER_SECONDS), (False, float("inf"))):
        queue, _ = queue_of(tmp_path)
        queue.answer({"queue": run_of(ends_agent=ends_agent)}, 1, 0.0)
        assert queue.lifetime_seconds == float("inf")
        queue.tick(0.0)
        assert not queue.is_running
        assert queue.lifetime_seconds == expected


def test_a_run_for_a_kernel_that_is_gone_is_refused(tmp_path: Path) -> None:
    """Its cells were meant for variables that the next kernel does not have."""
    queue, _ = queue_of(tmp_path)
    assert "replaced" in queue.answer({"queue": run_of("1"), "g": 1}, 2, 0.0)["error"]


def test_displays_and_widgets_are_as_nbclient_has_them(tmp_path: Path) -> None:
    """A later cell updates what an earlier one displays; the state of widgets is saved."""
    queue, sent = queue_of(tmp_path)
    request = run_of("a", "b")
    queue.answer({"queue": request}, 1, 0.0)
    show = {"data": {"text/plain": "old"}, "metadata": {}, "transient": {"display_id": "d"}}
    new = {**show, "data": {"text/plain": "new"}}
    state = {"_model_name": "M", "_model_module": "m", "_model_module_version": "1", "value": 3}
    for step in ([("display_data", show)], [("update_display_data", new)]):
        queue.tick(0.0)
        for msg_type, content in step:
            queue.take("iopub", message(msg_type, content), ())
        data = {"state": state, "buffer_paths": [["value"]]}
        opened = {"comm_id": "w", "target_name": "jupyter.widget", "data": data}
        queue.take("iopub", message("comm_open", opened), (b"bytes",))
        queue.take("iopub", message("stream", {"text": 5, "transient": 7}), ())  # any shape
        queue.take("shell", message("execute_reply", {"status": "ok"}), ())
        queue.cell_ended()
    queue.tick(0.0)
    assert sent == [f"{request['id']}-0", f"{request['id']}-1"]
    path = tmp_path / ".ivy" / "n" / "runs" / request["id"] / "notebook.ipynb"
    notebook = json.loads(path.read_text())
    assert notebook["cells"][1]["outputs"][0]["data"] == {"text/plain": "new"}
    assert notebook["cells"][2]["outputs"] == []
    (saved,) = notebook["metadata"]["widgets"].values()
    assert saved["state"]["w"]["state"] == state
    assert saved["state"]["w"]["model_name"] == "M"
    assert saved["state"]["w"]["buffers"] == [
        {"data": "Ynl0ZXM=", "encoding": "base64", "path": ["value"]}
    ]


def test_what_a_run_says_without_end_does_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond a limit text and displays are left out, and it is told; an error is kept."""
    monkeypatch.setattr(outputs, "OUTPUT_LIMIT_BYTES", 1000)
    queue, _ = queue_of(tmp_path)
    request = run_of("a")
    queue.answer({"queue": request}, 1, 0.0)
    queue.tick(0.0)
    for _ in range(100):
        queue.take("iopub", message("stream", {"name": "stdout", "text": "x" * 90}), ())
    error = {"ename": "E", "evalue": "v", "traceback": ["t"]}
    queue.take("iopub", message("error", error), ())
    queue.stop()
    path = tmp_path / ".ivy" / "n" / "runs" / request["id"] / "notebook.ipynb"
    shown = json.loads(path.read_text())["cells"][1]["outputs"]
    assert [one["output_type"] for one in shown] == ["stream", "stream", "error"]
    assert len(shown[0]["text"]) < 1000
    assert "left out" in shown[1]["text"]


async def test_an_agent_with_a_run_does_not_count_as_idle(place: Path) -> None:
    """Its lifetime without requests begins when the run is over; its own agent ends then."""
    runner = BareRunner(sys.executable, (), place)
    async with route_over(runner, place, idle_lifetime_seconds=1.0) as far:
        await far.route.open()
        agent, go = Agent(far, place), place / "go"
        request = run_of(waits_for(go), "1")
        pid = (await agent.queue(request))["agent"]["pid"]
        far.route._connection.close()  # nobody asks any more
        await eventually(lambda: agent.record(request["id"])["cell"] == 1, "the first cell")
        with pytest.raises(AssertionError):  # it lives on, though idle for three lifetimes
            await eventually(lambda: not is_alive(pid), "", 3)
        go.touch()
        assert (await agent.ended(request["id"]))["state"] == "ended"
        await eventually(lambda: not is_alive(pid), "the agent's end")
