"""ipywidgets of the sandbox, in a real JupyterLab in a real Chromium."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator

import pytest
from lab_window import Lab
from playwright.sync_api import Locator, Page, expect
from sandbox_server import RunningSandbox, until

CHAT = "chat-in-browser"
SESSION = "session-in-browser"
CAMPAIGN = "campaign-in-browser"

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ipywidgets") is None, reason="ipywidgets is not installed"
)

SLIDER = "import ipywidgets as w\nslider = w.IntSlider(value=3, description='moved')\nslider"
BUTTON = """\
button, out = w.Button(description='Press'), w.Output()
def press(_):
    with out:
        print('pressed', slider.value)
button.on_click(press)
display(button, out)"""
PROGRESS = """\
import time
bar = w.IntProgress(max=40, description='progress')
display(bar)
for bar.value in range(41):
    time.sleep(0.15)
print('bar is full')"""


@pytest.fixture
def notebook(lab: Lab, sandbox: RunningSandbox) -> Iterator[Lab]:
    """A notebook with widgets whose cells are not run yet."""
    sandbox.ready(CHAT, SESSION, CAMPAIGN)
    name = lab.running.write_notebook(
        "widgets.ipynb", SLIDER, BUTTON, "print('value is', slider.value)", PROGRESS
    )
    lab.open_notebook(name)
    yield lab
    (lab.running.root / name).unlink()


def cell(lab: Lab, number: int, page: Page | None = None) -> Locator:
    """A cell of the notebook, from 0."""
    return (page or lab.page).locator(".jp-NotebookPanel:visible .jp-CodeCell").nth(number)


def run_cell(lab: Lab, number: int, page: Page | None = None) -> None:
    """Click a cell and run it, as a user does."""
    cell(lab, number, page).locator(".cm-content").click()
    (page or lab.page).keyboard.press("Control+Enter")


def move_slider(handle: Locator, page: Page, steps: int) -> None:
    """Move a slider by the keyboard."""
    handle.focus()
    for _ in range(steps):
        page.keyboard.press("ArrowRight")


def check_value(lab: Lab, value: int) -> None:
    """Run the cell that prints the remote value until it prints this one.

    The front end sends a further move only after the last one was handled, so a cell that is run
    within that time comes before it, in a local kernel too.
    """
    shown = cell(lab, 2).locator(".jp-OutputArea-output")

    def is_right() -> bool:
        run_cell(lab, 2)
        expect(cell(lab, 2).locator(".jp-InputPrompt")).not_to_have_text(re.compile(r"\*"))
        return shown.inner_text().strip() == f"value is {value}"

    until(is_right, f"a remote value of {value}")


def test_a_slider_moves_the_value_in_the_sandbox(notebook: Lab) -> None:
    """What is set with a slider is what the next cell sees in the sandbox."""
    run_cell(notebook, 0)
    slider = cell(notebook, 0).locator(".widget-slider")
    expect(slider.locator(".widget-readout")).to_have_text("3")
    move_slider(slider.locator(".noUi-handle"), notebook.page, 4)
    expect(slider.locator(".widget-readout")).to_have_text("7")
    check_value(notebook, 7)


def test_a_button_calls_back_in_the_sandbox(notebook: Lab) -> None:
    """What a button's callback prints is shown, and it knows the sandbox's variables."""
    run_cell(notebook, 0)
    expect(cell(notebook, 0).locator(".widget-slider")).to_be_visible()
    run_cell(notebook, 1)
    press = cell(notebook, 1).get_by_role("button", name="Press")
    press.click()
    expect(cell(notebook, 1).get_by_text("pressed 3")).to_be_visible()
    move_slider(cell(notebook, 0).locator(".noUi-handle"), notebook.page, 1)
    press.click()
    expect(cell(notebook, 1).get_by_text("pressed 4")).to_be_visible()


def test_a_progress_bar_moves_while_its_cell_runs(notebook: Lab) -> None:
    """A bar is seen at several places before the cell has ended."""
    run_cell(notebook, 0)
    expect(cell(notebook, 0).locator(".widget-slider")).to_be_visible()
    run_cell(notebook, 3)
    bar = cell(notebook, 3).locator(".progress-bar")
    seen = set()
    full = cell(notebook, 3).locator(".jp-OutputArea-output", has_text="bar is full")
    while full.count() == 0:
        if bar.count():
            seen.add(bar.get_attribute("style"))
        notebook.page.wait_for_timeout(100)
    assert len(seen) > 3, seen


def test_a_reload_keeps_the_widgets(notebook: Lab) -> None:
    """After a page reload the widgets are there with their values, and still move the sandbox."""
    run_cell(notebook, 0)
    slider = cell(notebook, 0).locator(".widget-slider")
    move_slider(slider.locator(".noUi-handle"), notebook.page, 2)
    expect(slider.locator(".widget-readout")).to_have_text("5")
    check_value(notebook, 5)
    notebook.execute("docmanager:save")
    expect(notebook.page.locator(".lm-TabBar-tab.lm-mod-current.jp-mod-dirty")).to_have_count(0)
    notebook.page.reload()
    notebook.page.wait_for_function("() => window.jupyterapp?.restored !== undefined")
    notebook.page.locator(".jp-NotebookPanel:visible").wait_for()
    notebook.wait_for_kernel()
    slider = cell(notebook, 0).locator(".widget-slider")
    expect(slider.locator(".widget-readout")).to_have_text("5")
    move_slider(slider.locator(".noUi-handle"), notebook.page, 1)
    expect(slider.locator(".widget-readout")).to_have_text("6")
    check_value(notebook, 6)
