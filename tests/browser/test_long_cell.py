"""The end of a long cell is told to who looks elsewhere, and its time is kept in the notebook."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from lab_window import Lab
from playwright.sync_api import expect
from sandbox_server import RunningSandbox, until

CHAT = "chat-in-browser"
SESSION = "session-in-browser"
CAMPAIGN = "campaign-in-browser"

NOTIFY_AFTER_SECONDS = 1
SLOW = "import time; time.sleep(1.5); print('what only the cell says')"

TIMES = {
    "iopub.status.busy",
    "iopub.execute_input",
    "shell.execute_reply.started",
    "shell.execute_reply",
    "iopub.status.idle",
}
"""What JupyterLab's own setting keeps of a cell."""

SYSTEM = """permission => {
  window.ownNotification ??= window.Notification;
  window.systemNotifications = [];
  window.askedForPermission = 0;
  window.Notification = class {
    static permission = permission;
    static requestPermission() { window.askedForPermission++; return Promise.resolve('denied'); }
    constructor(title) { this.title = title; window.systemNotifications.push(this); }
    close() {}
  };
}"""
"""The browser's notifications as an object that remembers them: a headless one shows none."""

UNDO = """() => {
  window.Notification = window.ownNotification ?? window.Notification;
  delete document.hidden;
}"""
"""Gives the page back what the browser had given it."""

HIDE = """hidden => {
  Object.defineProperty(document, 'hidden', { configurable: true, get: () => hidden });
}"""


_SET_CELLS = """async cells => {
  const { jupyterapp } = window;
  // Lumino has no public way to a service by its name.
  const services = (jupyterapp.pluginRegistry ?? jupyterapp)._services;
  const token = [...services.keys()].find(one => one.name.endsWith(':ISettingRegistry'));
  const settings = await jupyterapp.resolveOptionalService(token);
  const place = ['ivy-kernel:plugin', 'cells'];
  await (cells === null ? settings.remove(...place) : settings.set(...place, cells));
}"""
"""Changes the setting as the settings editor does, or takes it back."""


@pytest.fixture
def patient_lab(lab: Lab, sandbox: RunningSandbox) -> Iterator[Lab]:
    """A window that tells of runs of over a second; the sandbox is started."""
    sandbox.ready(CHAT, SESSION, CAMPAIGN)
    lab.page.evaluate(_SET_CELLS, {"notifyAfterSeconds": NOTIFY_AFTER_SECONDS})
    yield lab
    lab.page.evaluate(_SET_CELLS, None)
    lab.page.evaluate(UNDO)


def look_elsewhere(lab: Lab) -> None:
    """Put a launcher in front of the notebook."""
    lab.execute("launcher:create")
    expect(lab.page.locator(".jp-NotebookPanel")).to_be_hidden()


def saved_cells(lab: Lab, name: str) -> list[dict[str, Any]]:
    """Save the notebook that is in front, and return its cells."""
    lab.execute("docmanager:save")
    expect(lab.page.locator(".lm-TabBar-tab.lm-mod-current.jp-mod-dirty")).to_have_count(0)
    path = lab.running.root / name
    until(lambda: '"execution_count": 1' in path.read_text("utf-8"), "the notebook is saved")
    cells: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["cells"]
    return cells


def test_a_long_cell_is_told_and_shown(patient_lab: Lab, sandbox: RunningSandbox) -> None:
    """One notification says notebook, time and success; its button leads to the cell."""
    lab = patient_lab
    name = lab.running.write_notebook("slow.ipynb", SLOW)
    lab.open_notebook(name)
    toasts = lab.page.locator(".Toastify__toast")
    lab.run_all()
    expect(lab.page.locator(".jp-InputPrompt").first).to_have_text("[1]:")
    look_elsewhere(lab)
    expect(toasts).to_have_count(0)  # the person saw it end

    lab.page.get_by_role("tab", name=name).click()
    lab.run_all()
    look_elsewhere(lab)
    told = lab.notification("slow.ipynb: cell [2] succeeded in")
    expect(told).to_be_visible()
    expect(toasts).to_have_count(1)
    expect(told).not_to_contain_text("what only the cell says")
    told.get_by_role("button", name="Show cell").click()
    expect(lab.page.locator(".jp-NotebookPanel")).to_be_visible()
    expect(lab.page.locator(".jp-Notebook .jp-Cell.jp-mod-active .cm-content")).to_contain_text(
        "what only the cell says"
    )
    expect(toasts).to_have_count(0)


def test_a_run_of_all_cells_is_told_once(patient_lab: Lab, sandbox: RunningSandbox) -> None:
    """A failure names the cell that failed; the times of the cells that ran are kept."""
    lab = patient_lab
    name = lab.running.write_notebook("all.ipynb", "1", SLOW, "1 / 0", "2", "3")
    lab.open_notebook(name)
    lab.page.evaluate(SYSTEM, "granted")
    lab.run_all()
    look_elsewhere(lab)
    lab.page.evaluate(HIDE, True)
    told = lab.notification("all.ipynb: cell [3] failed after")
    expect(told).to_contain_text("2 of 5 cells were not run.")
    expect(lab.page.locator(".Toastify__toast")).to_have_count(1)
    lab.page.evaluate(HIDE, False)
    titles = lab.page.evaluate("() => window.systemNotifications.map(one => one.title)")
    assert len(titles) == 1
    assert titles[0].startswith("all.ipynb: cell [3] failed after")
    lab.page.evaluate("() => { window.systemNotifications[0].onclick(); }")
    expect(lab.page.locator(".jp-Notebook .jp-Cell.jp-mod-active .cm-content")).to_have_text(
        "1 / 0"
    )
    times = [set(cell["metadata"].get("execution", {})) for cell in saved_cells(lab, name)]
    assert times[:3] == [TIMES, TIMES, TIMES]


def test_nobody_is_asked_for_permission(patient_lab: Lab, sandbox: RunningSandbox) -> None:
    """Without the browser's permission the system shows nothing; only the command asks for it."""
    lab = patient_lab
    lab.open_notebook(lab.running.write_notebook("unasked.ipynb", SLOW))
    lab.page.evaluate(SYSTEM, "default")
    lab.page.evaluate(HIDE, True)
    lab.run_all()
    expect(lab.notification("unasked.ipynb: cell [1] succeeded in")).to_be_visible()
    lab.page.evaluate(HIDE, False)
    assert lab.page.evaluate("() => window.systemNotifications.length") == 0
    assert lab.page.evaluate("() => window.askedForPermission") == 0
    lab.execute("ivy:allow-system-notifications")
    expect(lab.notification("The browser does not allow it")).to_be_visible()
    assert lab.page.evaluate("() => window.askedForPermission") == 1


def test_a_python_notebook_keeps_times_once_it_has_run_an_ivy_cell(
    patient_lab: Lab, sandbox: RunningSandbox
) -> None:
    """Before its first ``%%ivy`` cell it is none of ours, and gets no times."""
    lab = patient_lab
    cells = ("%load_ext ivy_kernel", "%%ivy\nprint('far')")
    name = lab.running.write_notebook("magic.ipynb", *cells, kernel="python3")
    lab.open_notebook(name)
    lab.run_all()
    expect(lab.outputs()).to_have_text("far")
    times = [set(cell["metadata"].get("execution", {})) for cell in saved_cells(lab, name)]
    assert times == [set(), TIMES]
