"""Outputs that came while no page was open, or not this one, go into the cells that said them."""

from __future__ import annotations

import hashlib
import json
import signal
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from lab_window import Lab
from playwright.sync_api import Route, expect
from sandbox_server import RunningSandbox, until
from thoroughness import further

CHAT = "chat-in-browser"
SESSION = "session-in-browser"
CAMPAIGN = "campaign-in-browser"

OUTPUTS = "**/ivy/outputs?*"

LOOK = "() => { document.dispatchEvent(new Event('visibilitychange')); }"
"""What a browser does when its user comes back to the page."""


def cell(source: str, run: str, *printed: str, is_running: bool = False) -> dict[str, Any]:
    """What the server extension says of a cell that was run."""
    outputs = [{"output_type": "stream", "name": "stdout", "text": text} for text in printed]
    return {
        "run": run,
        "code": hashlib.sha256(source.encode()).hexdigest(),
        "number": None if is_running else 7,
        "outputs": outputs,
        "is_running": is_running,
        "fate": None if is_running else "ok",
        "metadata": {},
    }


class Answers:
    """Answers the page's questions for outputs in the server's place.

    Parameters
    ----------
    lab
        The window whose page asks.
    cells
        What is answered, by the cells' ids.
    """

    def __init__(self, lab: Lab, cells: dict[str, Any]) -> None:
        self.cells = cells
        self.asked: list[dict[str, list[str]]] = []
        self._offset = 0
        lab.page.route(OUTPUTS, self._answer)

    def _answer(self, route: Route) -> None:
        self.asked.append(parse_qs(urlsplit(route.request.url).query))
        self._offset += 1
        route.fulfill(json={"offset": self._offset, "cells": self.cells})


def wait_for_question(lab: Lab, answers: Answers, count: int) -> None:
    """Wait until the page has asked more often than that."""

    def asked() -> bool:
        lab.page.wait_for_timeout(50)  # in which the browser's requests come here
        return len(answers.asked) > count

    until(asked, "the page has asked")


def saved_cells(lab: Lab, name: str) -> list[dict[str, Any]]:
    """Save the notebook that is in front, and return its cells."""
    lab.execute("docmanager:save")
    expect(lab.page.locator(".lm-TabBar-tab.lm-mod-current.jp-mod-dirty")).to_have_count(0)
    path = lab.running.root / name
    until(lambda: '"run":' in path.read_text("utf-8"), "the notebook is saved")
    cells: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["cells"]
    return cells


def test_outputs_go_into_the_cells_that_said_them(lab: Lab, sandbox: RunningSandbox) -> None:
    """Number, outputs and prompt of each; a running one is followed; a changed text is left."""
    sources = ("print('ended')", "print('runs')", "print('changed')", "'never run'")
    name = lab.running.write_notebook("waiting.ipynb", *sources)
    answers = Answers(
        lab,
        {
            "cell-0": cell(sources[0], "run-0", "ended\n"),
            "cell-1": cell(sources[1], "run-1", "one\n", is_running=True),
            "cell-2": cell("print('before')", "run-2", "before\n"),
            "cell-9": cell("print('deleted')", "run-9", "deleted\n"),
        },
    )
    try:
        lab.open_notebook(name)
        prompts = lab.page.locator(".jp-InputPrompt")
        expect(prompts).to_have_text(["[7]:", "[*]:", "[ ]:", "[ ]:"])
        expect(lab.outputs()).to_have_text(["ended", "one"])
        expect(lab.notification("a cell has ended, but was edited")).to_have_count(1)
        assert answers.asked[0]["path"] == [name]
        assert answers.asked[0]["since"] == ["0"]

        answers.cells = {"cell-1": cell(sources[1], "run-1", "one\ntwo\n", is_running=True)}
        expect(lab.outputs()).to_have_text(["ended", "one\ntwo"])
        answers.cells = {"cell-1": cell(sources[1], "run-1", "one\ntwo\nthree\n")}
        expect(prompts).to_have_text(["[7]:", "[7]:", "[ ]:", "[ ]:"])
        expect(lab.outputs()).to_have_text(["ended", "one\ntwo\nthree"])

        lab.execute("notebook:undo-cell-action")
        lab.page.locator(".jp-Notebook .cm-content").first.click()
        lab.page.keyboard.press("Control+z")
        expect(lab.outputs()).to_have_text(["ended", "one\ntwo\nthree"])
        first, second, changed, never = saved_cells(lab, name)
        assert first["metadata"]["ivy"] == {"run": "run-0"}
        assert second["metadata"]["ivy"] == {"run": "run-1"}
        assert second["execution_count"] == 7
        assert "".join(second["outputs"][0]["text"]) == "one\ntwo\nthree\n"
        assert changed["outputs"] == never["outputs"] == []

        # What it has it does not take again.
        answers.cells = {"cell-0": cell(sources[0], "run-0", "again\n")}
        count = len(answers.asked)
        lab.page.evaluate(LOOK)
        wait_for_question(lab, answers, count)
        expect(lab.outputs()).to_have_text(["ended", "one\ntwo\nthree"])
        expect(lab.page.locator(".lm-TabBar-tab.lm-mod-current.jp-mod-dirty")).to_have_count(0)
    finally:
        lab.page.unroute(OUTPUTS)


def test_a_page_leaves_what_it_receives_itself(lab: Lab, sandbox: RunningSandbox) -> None:
    """A cell whose request is the page's own gets no output twice, and its run is noted."""
    source = "import time\nprint('begun', flush=True)\ntime.sleep(3)\nprint('ended')"
    name = lab.running.write_notebook("own.ipynb", source)
    answers = Answers(lab, {})
    try:
        lab.open_notebook(name)
        lab.run_all()
        expect(lab.outputs()).to_have_text("begun")
        answers.cells = {"cell-0": cell(source, "run-0", "doubled\n", is_running=True)}
        count = len(answers.asked)
        lab.page.evaluate(LOOK)
        wait_for_question(lab, answers, count)
        answers.cells = {}
        expect(lab.outputs()).to_have_text("begun\nended")
        expect(lab.page.locator(".jp-InputPrompt")).to_have_text("[1]:")
        (own,) = saved_cells(lab, name)
        assert own["metadata"]["ivy"]["run"] not in ("", "run-0")
    finally:
        lab.page.unroute(OUTPUTS)


TICKS = 8

SLOW = """import pathlib, time
ticks = pathlib.Path({ticks!r})
for number in range({count}):
    print("tick", number)
    with ticks.open("a") as file:
        file.write(f"{{number}}\\n")
    time.sleep({pause})
"""
"""Says each half second where it is, and writes it down too."""


def leave(lab: Lab, way: str, enough: Any) -> None:
    """Do without the page, the server or both until the cell is where the test wants it."""
    if way == "reloaded":
        until(enough, "the cell is there")
        lab.page.reload()
        return
    if way != "closed":
        lab.running.stop(signal.Signals[way])
    lab.page.close()
    until(enough, "the cell is there")
    if way != "closed":
        lab.running.start()


@pytest.mark.parametrize(
    ("way", "moment", "turn"),
    [
        ("closed", "ended", 0),
        further("reloaded", "runs", 0),
        further("SIGINT", "ended", 0),
        ("SIGKILL", "runs", 0),
        *(
            further(way, moment, turn)
            for way in ("closed", "reloaded", "SIGINT", "SIGKILL")
            for moment in ("runs", "ended")
            for turn in range(1, 5)
        ),
    ],
)
def test_a_cell_says_the_same_without_its_page(
    lab: Lab, sandbox: RunningSandbox, tmp_path: Path, way: str, moment: str, turn: int
) -> None:
    """Whatever ends during a cell, afterwards its outputs are in it: all, once, and saved."""
    sandbox.ready(CHAT, SESSION, CAMPAIGN)
    ticks = tmp_path / "ticks"
    pause = 0.5 + 0.1 * turn
    slow = SLOW.format(ticks=str(ticks), count=TICKS, pause=pause)
    name = lab.running.write_notebook(f"{way}-{moment}-{turn}.ipynb", "print('before')", slow)
    lab.open_notebook(name)
    lab.run_all()
    expect(lab.outputs().last).to_contain_text("tick 1")

    def ticked() -> bool:
        return len(ticks.read_text("utf-8").split()) >= (TICKS if moment == "ended" else 4)

    leave(lab, way, ticked)
    lab.reopen()
    lab.open_notebook(name)
    whole = "\n".join(f"tick {number}" for number in range(TICKS))
    expect(lab.outputs()).to_have_text(["before", whole])
    expect(lab.page.locator(".jp-InputPrompt")).to_have_text(["[1]:", "[2]:"])
    cells = saved_cells(lab, name)
    assert ["".join(one["outputs"][0]["text"]).strip() for one in cells] == ["before", whole]
    assert [one["execution_count"] for one in cells] == [1, 2]
    assert ticks.read_text("utf-8").split() == [str(number) for number in range(TICKS)]


def hand_over(lab: Lab, first: int) -> None:
    """Select a cell, and hand it and those below over to the sandbox, after the question."""
    cells = lab.page.locator(".jp-NotebookPanel:visible .jp-CodeCell")
    cells.nth(first).locator(".jp-InputPrompt").click()
    lab.execute("ivy:run-remaining")
    dialog = lab.page.get_by_role("dialog")
    expect(dialog).to_contain_text("It stops at the first error.")
    expect(dialog).to_contain_text("Whether the platform lets a busy sandbox hibernate")
    dialog.get_by_role("button", name="Run").click()
    expect(lab.notification("the sandbox now runs")).to_be_visible()


def test_remaining_cells_run_in_the_sandbox(
    lab: Lab, sandbox: RunningSandbox, tmp_path: Path
) -> None:
    """They end without page and server, each once; their outputs come when the page is back."""
    sandbox.ready(CHAT, SESSION, CAMPAIGN)
    ticks = tmp_path / "ticks"
    slow = SLOW.format(ticks=str(ticks), count=TICKS, pause=0.5)
    sources = (
        "begun = 1",
        slow,
        "print('begun', begun)\n_ = ticks.open('a').write('end')",
        "1 / 0",
        "2",
    )
    name = lab.running.write_notebook("remaining.ipynb", *sources)
    lab.open_notebook(name)
    cells = lab.page.locator(".jp-NotebookPanel:visible .jp-CodeCell")
    cells.first.locator(".jp-InputPrompt").click()
    lab.execute("notebook:run-cell")
    prompts = lab.page.locator(".jp-InputPrompt")
    expect(prompts.first).to_have_text("[1]:")
    hand_over(lab, 1)
    expect(prompts).to_have_text(["[1]:", "[*]:", "[*]:", "[*]:", "[*]:"])
    expect(lab.outputs().first).to_contain_text("tick 1")
    leave(lab, "SIGKILL", lambda: ticks.read_text("utf-8").endswith("end"))
    lab.reopen()
    lab.open_notebook(name)
    whole = "\n".join(f"tick {number}" for number in range(TICKS))
    prompts = lab.page.locator(".jp-InputPrompt")
    expect(prompts).to_have_text(["[1]:", "[2]:", "[3]:", "[4]:", "[ ]:"])
    expect(lab.outputs().nth(0)).to_have_text(whole)
    expect(lab.outputs().nth(1)).to_have_text("begun 1")
    expect(lab.outputs().nth(2)).to_contain_text("ZeroDivisionError")
    ticked = "".join(f"{number}\n" for number in range(TICKS))
    assert ticks.read_text("utf-8") == f"{ticked}end"


def test_an_error_ends_the_wait_of_the_cells_behind_it(lab: Lab, sandbox: RunningSandbox) -> None:
    """Cells that a queue in the sandbox does not reach lose the sign that they run."""
    sandbox.ready(CHAT, SESSION, CAMPAIGN)
    sources = ("print('well')", "1 / 0", "print('never')")
    lab.open_notebook(lab.running.write_notebook("stops.ipynb", *sources))
    hand_over(lab, 0)
    expect(lab.page.locator(".jp-InputPrompt")).to_have_text(["[1]:", "[2]:", "[ ]:"])
    expect(lab.outputs()).to_have_count(2)
    expect(lab.outputs().last).to_contain_text("ZeroDivisionError")
