"""Somebody without an account: the empty panel, its offer, and a server that is restarted."""

from __future__ import annotations

from collections.abc import Callable

from lab_server import RunningLab
from lab_window import Lab
from playwright.sync_api import expect

OpenWindow = Callable[[RunningLab, str], Lab]

OFFER = "Use the local sandbox"


def test_the_empty_panel_offers_the_local_sandbox(
    newcomer: RunningLab, open_window: OpenWindow, axe_source: str
) -> None:
    """Nothing runs before the button is pressed; then notebooks use what the panel shows."""
    window = open_window(newcomer, "lab?reset")
    # The launcher takes the focus when it has been filled.
    window.page.wait_for_function("() => document.activeElement.closest('.jp-Launcher')")
    panel = window.open_panel()
    offer = panel.get_by_role("button", name=OFFER)
    expect(offer).to_be_visible()
    expect(panel.get_by_text("No sandbox is in use.")).to_be_visible()
    window.check_accessible(axe_source)
    assert not newcomer.home.sandbox_file.exists(), "it was started by looking"
    panel.get_by_role("button", name="Ask for a fresh status").focus()
    window.page.keyboard.press("Tab")
    expect(offer).to_be_focused()
    window.page.keyboard.press("Enter")
    expect(window.state()).to_have_text("Active")
    expect(offer).to_be_hidden()
    # The focus went to the card that took the offer's place, not to nowhere.
    expect(panel.locator(".jp-ivy-actions button:focus")).to_have_count(1)
    expect(panel.get_by_text("run in this local sandbox")).to_be_visible()
    window.check_accessible(axe_source)
    started = newcomer.home.sandbox_file.read_text("utf-8")
    panel.get_by_role("button", name="New notebook").click()
    window.page.locator(".jp-NotebookPanel:visible").wait_for()
    window.wait_for_kernel()
    window.page.locator(".jp-Notebook .cm-content").first.click()
    window.page.keyboard.type("6 * 7")
    window.run_all()
    expect(window.outputs().last).to_contain_text("42")
    expect(panel.locator(".jp-ivy-card").get_by_text("This notebook")).to_be_visible()
    expect(panel.locator(".jp-ivy-card")).to_have_count(1)
    assert newcomer.home.sandbox_file.read_text("utf-8") == started


def test_a_restarted_server(newcomer: RunningLab, open_window: OpenWindow) -> None:
    """The open page says that the server is gone, and later shows what is true, by itself."""
    window = open_window(newcomer, "lab?reset")
    name = newcomer.write_notebook("before.ipynb", "6 * 7")
    window.open_notebook(name)
    panel = window.open_panel()
    window.run_all()
    expect(window.state()).to_have_text("Active")
    expect(panel.get_by_role("button", name=f"Open notebook {name}")).to_be_visible()
    window.page.evaluate("() => { window.isTheSamePage = true; }")

    newcomer.stop()
    expect(panel.get_by_text("The Jupyter server does not answer. Last seen")).to_be_visible()
    expect(window.state()).to_have_text("Active")
    expect(window.status_item).to_contain_text("no status")
    newcomer.home.stop_sandbox()

    newcomer.start()
    offer = panel.get_by_role("button", name=OFFER)
    expect(offer).to_be_visible()
    expect(panel.locator(".jp-ivy-card")).to_have_count(0)
    expect(window.status_item).to_have_text("Ivy: Not started")
    # JupyterLab asks about the kernel that is gone, in front of everything, sooner or later.
    window.page.add_locator_handler(
        window.page.get_by_role("dialog").first,
        lambda dialog: dialog.get_by_role("button").last.click(),
        no_wait_after=True,  # another question may follow at once
    )
    offer.click()
    expect(window.state()).to_have_text("Active")
    assert window.page.evaluate("() => window.isTheSamePage")
    window.page_errors.clear()  # JupyterLab's own requests failed too
