"""What the panel does beside creating and terminating: it restarts sessions and copies ids."""

from __future__ import annotations

from lab_window import Lab
from playwright.sync_api import expect
from sandbox_server import RunningSandbox

CHAT = "chat-in-browser"
SESSION = "session-in-browser"
CAMPAIGN = "campaign-in-browser"

PROBE = "print('kept' if 'kept' in globals() else 'gone')"


def open_with_variable(lab: Lab, sandbox: RunningSandbox, name: str) -> None:
    """Open a notebook that has a variable in the sandbox, and the panel."""
    sandbox.ready(CHAT, SESSION, CAMPAIGN)
    lab.open_notebook(lab.running.write_notebook(name, "kept = 1", PROBE))
    lab.run_all()
    expect(lab.outputs().last).to_have_text("kept")
    lab.open_panel()


def check_that_it_is_gone(lab: Lab) -> None:
    """Run only the cell that looks for the variable."""
    lab.wait_for_kernel()
    lab.page.locator(".jp-NotebookPanel:visible .jp-CodeCell").nth(1).locator(".cm-content").click()
    lab.page.keyboard.press("Control+Enter")
    expect(lab.outputs().last).to_have_text("gone")


def test_restart_session_of_an_open_notebook(lab: Lab, sandbox: RunningSandbox) -> None:
    """The button asks, and says that the variables are lost; the sandbox stays as it is."""
    open_with_variable(lab, sandbox, "restarted.ipynb")
    restart = lab.panel.get_by_role("button", name="Restart the session of restarted.ipynb")
    dialog = lab.page.get_by_role("dialog")
    restart.click()
    expect(dialog).to_contain_text("All variables will be lost")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_be_hidden()
    restart.click()
    dialog.get_by_role("button", name="Confirm Kernel Restart").click()
    expect(lab.notification("variables are gone")).to_be_visible()
    check_that_it_is_gone(lab)
    expect(lab.state()).to_have_text("Active")


def test_restart_session_of_a_closed_notebook(lab: Lab, sandbox: RunningSandbox) -> None:
    """A session whose notebook was closed is restarted all the same, after a question of ours."""
    name = "closed.ipynb"
    open_with_variable(lab, sandbox, name)
    lab.execute("docmanager:save")
    expect(lab.page.locator(".lm-TabBar-tab.lm-mod-current.jp-mod-dirty")).to_have_count(0)
    lab.execute("application:close")
    expect(lab.page.locator(".jp-NotebookPanel")).to_have_count(0)
    lab.panel.get_by_role("button", name=f"Restart the session of {name}").click()
    dialog = lab.page.get_by_role("dialog")
    expect(dialog).to_contain_text("Its variables are lost. The sandbox and its files stay.")
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    dialog.get_by_role("button", name="Restart").click()
    expect(lab.notification("variables are gone")).to_be_visible()
    lab.open_notebook(name)
    check_that_it_is_gone(lab)


def test_copy_id(lab: Lab, sandbox: RunningSandbox) -> None:
    """The button puts the chat's id on the clipboard, and says so."""
    lab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    lab.open_panel()
    lab.panel.get_by_role("button", name="Copy the chat id").click()
    expect(lab.notification("The chat id is copied.")).to_be_visible()
    assert lab.page.evaluate("() => navigator.clipboard.readText()") == CHAT
