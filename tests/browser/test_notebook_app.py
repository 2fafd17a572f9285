"""Jupyter Notebook, which has neither a status bar nor JupyterLab's shell."""

from __future__ import annotations

from collections.abc import Callable

from lab_server import RunningLab
from lab_window import Lab
from playwright.sync_api import expect

OpenWindow = Callable[[RunningLab, str], Lab]


def test_a_cell_runs_and_the_panel_tells(newcomer: RunningLab, open_window: OpenWindow) -> None:
    """In a notebook the state stands beside the menu, and a click on it opens the panel."""
    name = newcomer.write_notebook("first.ipynb", "6 * 7")
    window = open_window(newcomer, f"notebooks/{name}")
    window.wait_for_kernel()
    expect(window.status_item).to_have_text("Ivy: Not started")
    expect(window.panel).to_be_hidden()
    panel = window.open_panel()
    window.run_all()
    expect(window.outputs().last).to_contain_text("42")
    expect(window.state()).to_have_text("Active")
    expect(panel.locator(".jp-ivy-card").get_by_text("This notebook")).to_be_visible()
    expect(window.status_item).to_contain_text("Ivy: Active")


def test_the_list_of_files_shows_the_panel(newcomer: RunningLab, open_window: OpenWindow) -> None:
    """Beside the list of files the item in the menu opens the panel too."""
    window = open_window(newcomer, "tree")
    expect(window.status_item).to_have_text("Ivy: Not started")
    panel = window.open_panel()
    with window.context.expect_page() as opened:
        panel.get_by_role("button", name="New notebook").click()
    opened.value.locator(".jp-Notebook").wait_for()
