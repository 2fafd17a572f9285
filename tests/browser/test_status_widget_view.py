"""The status widget in a notebook, as the browser shows it."""

from __future__ import annotations

import re

import pytest
from lab_window import Lab
from playwright.sync_api import Locator, expect
from sandbox_server import RunningSandbox

WIDGET = {
    "ivy-sandbox": "%ivy widget",
    "python3": "from ivy_kernel.magics.widget import StatusWidget\nStatusWidget()",
}


def show_widget(lab: Lab, kernel: str, *more: str) -> Locator:
    """Open a notebook that shows the widget and then runs ``more``; the widget."""
    name = f"widget-in-{kernel}.ipynb"
    lab.open_notebook(lab.running.write_notebook(name, WIDGET[kernel], *more, kernel=kernel))
    lab.run_all()
    widget = lab.page.locator(".jp-ivy-widget")
    expect(widget).to_be_visible()
    return widget


@pytest.mark.parametrize("kernel", sorted(WIDGET))
def test_widget_counts_while_a_cell_runs(
    lab: Lab, sandbox: RunningSandbox, countdowns: None, kernel: str
) -> None:
    """A countdown goes on in both kernels while a cell keeps them busy."""
    sandbox.control({"runtime_seconds": 1200})
    lab.make_active(sandbox)
    widget = show_widget(lab, kernel, "import time; time.sleep(60)")
    expect(lab.page.locator(".jp-InputPrompt").last).to_have_text("[*]:")
    expiry = widget.locator(".jp-ivy-deadline", has_text="Expires in").get_by_role("timer")
    for _ in range(3):
        expect(expiry).not_to_have_text(expiry.inner_text())
    expect(lab.page.locator(".jp-InputPrompt").last).to_have_text("[*]:")
    lab.execute("notebook:interrupt-kernel")


@pytest.mark.parametrize("kernel", sorted(WIDGET))
def test_widget_creates_and_terminates(lab: Lab, sandbox: RunningSandbox, kernel: str) -> None:
    """Its buttons work; Terminate asks first, and Escape means no."""
    widget = show_widget(lab, kernel)
    state = widget.locator(".jp-ivy-chip")
    widget.get_by_role("button", name=re.compile("Create|Resume")).click()
    expect(state).to_have_text("Active")
    widget.get_by_role("button", name="Terminate…").click()
    question = widget.get_by_role("alertdialog")
    expect(question.get_by_role("button", name="Cancel")).to_be_focused()
    lab.page.keyboard.press("Escape")
    expect(question).to_be_hidden()
    expect(state).to_have_text("Active")
    widget.get_by_role("button", name="Terminate…").click()
    question.get_by_role("button", name="Terminate", exact=True).click()
    expect(state).not_to_have_text("Active")
    assert sandbox.pids() == []


def test_widget_is_accessible(lab: Lab, sandbox: RunningSandbox, axe_source: str) -> None:
    """axe-core finds nothing to mend, also while the widget asks a question."""
    lab.make_active(sandbox)
    widget = show_widget(lab, "python3")
    widget.get_by_role("button", name="Terminate…").click()
    expect(widget.get_by_role("alertdialog")).to_be_visible()
    lab.page.evaluate(f"{axe_source};0")
    found = lab.page.evaluate(
        "async () => (await axe.run('.jp-ivy-widget')).violations.map(one => one.id)"
    )
    assert found == []
