"""What a restored notebook lacks is named in it, and brought back by one click of the user's."""

from __future__ import annotations

import json
from typing import Any

from lab_window import Lab
from playwright.sync_api import Locator, expect
from sandbox_server import RunningSandbox

CHAT = "chat-in-browser"
SESSION = "session-in-browser"
CAMPAIGN = "campaign-in-browser"

MIME = "application/vnd.ivy.restore+json"

COUNT = "count = globals().get('count', 0) + 1\nprint('run', count)"
"""Says how often it has run."""

MARKUP = "<img src=x onerror='window.harmed = true'>"


def display_of(document: dict[str, Any]) -> str:
    """A cell that shows a document as a restoration does."""
    bundle = {MIME: document, "text/plain": document["text"]}
    return f"from IPython.display import display\ndisplay({bundle!r}, raw=True)"


def restoration(lab: Lab) -> Locator:
    """What a restoration has said in the notebook in front."""
    return lab.page.locator(".jp-NotebookPanel:visible .jp-ivy-restore")


def test_cells_run_again_by_one_click(lab: Lab, sandbox: RunningSandbox, axe_source: str) -> None:
    """The cells that made what is missing are run by their button, and no others."""
    sandbox.ready(CHAT, SESSION, CAMPAIGN)
    document = {
        "text": f"Restored 2 variables as they were after cell 3. {MARKUP}",
        "missing": {"model": {"why": f"it holds a lock {MARKUP}", "cell": 1}},
        "cells": ["cell-0"],
        "actions": ["rerun"],
    }
    name = lab.running.write_notebook("again.ipynb", COUNT, display_of(document), COUNT)
    lab.open_notebook(name)
    lab.run_all()
    said = restoration(lab)
    expect(said).to_contain_text("as they were after cell 3. <img")
    expect(said.get_by_role("listitem")).to_contain_text("model: it holds a lock <img")
    outputs = lab.outputs()
    expect(outputs.last).to_have_text("run 2")
    button = said.get_by_role("button", name="Run this cell again")
    lab.check_accessible(axe_source, ".jp-ivy-restore")

    button.evaluate("button => { button.click(); }")  # a script's click is no user's
    button.focus()
    lab.page.keyboard.press("Enter")
    expect(outputs.first).to_have_text("run 3")
    expect(outputs.last).to_have_text("run 2")
    expect(lab.page.locator(".jp-InputPrompt")).to_have_text(["[4]:", "[2]:", "[3]:"])
    assert lab.page.evaluate("() => window.harmed") is None


def test_an_untrusted_notebook_offers_no_buttons(lab: Lab, sandbox: RunningSandbox) -> None:
    """Whoever is sent a notebook sees the words alone."""
    name = lab.running.write_notebook("sent.ipynb", "1")
    path = lab.running.root / name
    notebook = json.loads(path.read_text("utf-8"))
    document = {"text": "Not back: model.", "cells": ["cell-0"], "actions": ["rerun", "install"]}
    data = {MIME: document, "text/plain": "Not back: model."}
    output = {"output_type": "display_data", "metadata": {}, "data": data}
    notebook["cells"][0]["outputs"] = [output]
    path.write_text(json.dumps(notebook), "utf-8")
    lab.open_notebook(name)
    said = restoration(lab)
    expect(said).to_contain_text("This notebook is not trusted")
    expect(said.get_by_role("button")).to_have_count(0)


def test_resume_and_restore(lab: Lab, sandbox: RunningSandbox, countdowns: None) -> None:
    """One button wakes the sandbox and brings the variables back, and a notification says so."""
    sandbox.ready(CHAT, SESSION, CAMPAIGN)
    name = lab.running.write_notebook("restored.ipynb", "kept = 'kept'", "print(kept)")
    lab.open_notebook(name)
    cells = lab.page.locator(".jp-NotebookPanel:visible .jp-CodeCell")
    cells.first.locator(".jp-InputPrompt").click()
    lab.execute("notebook:run-cell")
    expect(lab.page.locator(".jp-InputPrompt").first).to_have_text("[1]:")
    panel = lab.open_panel()
    button = panel.get_by_role("button", name="Resume and Restore")
    expect(button).to_have_count(0)
    sandbox.control({"hibernate_seconds": 1})
    lab.reconnect()
    expect(lab.state()).to_have_text("Hibernated")
    sandbox.control({"hibernate_seconds": 600})
    button.click()
    expect(lab.notification(f"{name}: ")).to_contain_text("Restored")
    expect(lab.state()).to_have_text("Active")
    expect(lab.page.locator(".jp-InputPrompt").first).to_have_text("[1]:")  # no cell ran
    cells.last.locator(".jp-InputPrompt").click()
    lab.execute("notebook:run-cell")
    expect(lab.outputs().last).to_have_text("kept")
