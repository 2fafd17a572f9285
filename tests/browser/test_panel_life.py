"""The panel through the life of a sandbox."""

from __future__ import annotations

import re

from lab_window import Lab
from playwright.sync_api import expect
from sandbox_server import RunningSandbox

CHAT = "chat-in-browser"

LEFT = re.compile(r"(\d+) min (\d+) s|(\d+) s")


def seconds_left(text: str) -> int:
    """The seconds that a countdown shows."""
    match = LEFT.search(text)
    assert match, text
    return int(match[3]) if match[3] else int(match[1]) * 60 + int(match[2])


def test_launcher_to_first_cell(lab: Lab, sandbox: RunningSandbox) -> None:
    """From the launcher's card to a result; the panel shows the start, its steps and its end."""
    sandbox.control({"provision_seconds": {"compute": 2, "mount": 2}})
    panel = lab.open_panel()
    expect(lab.state()).to_have_text("Not started")
    lab.page.locator(".jp-LauncherCard[data-category=Notebook]", has_text="Ivy Sandbox").click()
    lab.wait_for_kernel()
    assert sandbox.status(CHAT)["status"] == "none", "opening a notebook started a sandbox"
    lab.page.locator(".jp-Notebook .cm-content").first.click()
    lab.page.keyboard.type("6 * 7")
    lab.run_all()
    expect(lab.state()).to_have_text("Starting")
    expect(panel.get_by_role("progressbar")).to_be_visible()
    expect(panel.get_by_text(re.compile(r"About \d+ s left"))).to_be_visible()
    expect(panel.locator("[aria-current=step]")).to_have_text("Mount: under way")
    expect(lab.state()).to_have_text("Active")
    expect(lab.outputs().last).to_contain_text("42")
    expect(panel.locator(".jp-ivy-card").get_by_text("This notebook")).to_be_visible()
    expect(panel.get_by_role("button", name="Open notebook Untitled.ipynb")).to_be_visible()


def test_countdowns_tick_and_warn(lab: Lab, sandbox: RunningSandbox, countdowns: None) -> None:
    """Countdowns go down by themselves; with a third left panel, status bar and toast warn."""
    sandbox.control({"hibernate_seconds": 1500, "runtime_seconds": 40})
    lab.make_active(sandbox)
    panel = lab.open_panel()
    expiry = panel.locator(".jp-ivy-deadline", has_text="Expires in").get_by_role("timer")
    expect(expiry).to_be_visible()
    before = seconds_left(expiry.inner_text())
    assert 13 < before <= 40
    expect(lab.status_item.locator("[data-urgency]")).to_have_attribute("data-urgency", "calm")
    asked = len([one for one in lab.responses if "/ivy/sandboxes" in one.url])
    lab.page.wait_for_function(
        "([node, before]) => node.textContent !== before",
        arg=[expiry.element_handle(), expiry.inner_text()],
    )
    assert seconds_left(expiry.inner_text()) < before
    assert len([one for one in lab.responses if "/ivy/sandboxes" in one.url]) == asked
    expect(panel.get_by_text("Expires soon")).to_be_visible()
    expect(lab.status_item).to_contain_text("expires in")
    expect(lab.status_item.locator("[data-urgency]")).to_have_attribute("data-urgency", "soon")
    toast = lab.notification("Expires in")
    expect(toast).to_be_visible()
    lab.execute("application:toggle-right-area")
    expect(panel).to_be_hidden()
    toast.get_by_role("button", name="Open panel").click()
    expect(panel).to_be_visible()


def test_a_short_idle_life_is_calm_after_a_cell(
    lab: Lab, sandbox: RunningSandbox, countdowns: None
) -> None:
    """With five minutes of idle life nothing is "soon" right after the last cell, anywhere."""
    sandbox.control({"hibernate_seconds": 300})
    name = lab.running.write_notebook("calm.ipynb", "6 * 7", "%ivy widget", "%ivy status")
    lab.open_notebook(name)
    panel = lab.open_panel()
    lab.run_all()
    expect(lab.outputs().last).to_contain_text("hibernates in")
    widget = lab.page.locator(".jp-ivy-widget")
    for card in (panel, widget):
        hibernation = card.locator(".jp-ivy-deadline", has_text="Hibernates in")
        expect(hibernation).to_have_attribute("data-urgency", "calm")
        expect(card.get_by_text("Hibernates soon")).to_be_hidden()
    expect(lab.status_item).to_contain_text("hibernates in")
    expect(lab.status_item.locator("[data-urgency]")).to_have_attribute("data-urgency", "calm")
    expect(lab.outputs().last).not_to_contain_text("warning")
    expect(lab.notification("Hibernates in")).to_have_count(0)


def test_panel_widget_and_cell_tell_the_same(
    lab: Lab, sandbox: RunningSandbox, countdowns: None
) -> None:
    """Of a start all show steps and estimate, also beside Recoup; of its end, the same word."""
    sandbox.control({"provision_seconds": {"compute": 4, "mount": 4}})
    name = lab.running.write_notebook("same.ipynb", "6 * 7", "%ivy widget", "%ivy terminate --yes")
    lab.open_notebook(name)
    panel = lab.open_panel()
    lab.page.locator(".jp-NotebookPanel:visible .jp-CodeCell").first.locator(".cm-content").click()
    lab.page.keyboard.press("Shift+Enter")
    expect(lab.outputs().first).to_contain_text(re.compile(r"about \d+ s left"))
    expect(panel.get_by_text(re.compile(r"About \d+ s left"))).to_be_visible()
    expect(panel.get_by_text("No estimate yet")).to_be_hidden()
    expect(lab.status_item).to_contain_text("left")
    lab.page.keyboard.press("Shift+Enter")
    expect(lab.outputs().first).to_contain_text("42")
    state = lab.page.locator(".jp-ivy-widget .jp-ivy-chip")
    expect(state).to_have_text("Active")
    lab.page.keyboard.press("Shift+Enter")
    expect(lab.outputs().last).to_contain_text("terminated")
    expect(lab.state()).not_to_have_text("Active")
    expect(state).to_have_text(lab.state().inner_text())


def test_hibernation_and_resume(lab: Lab, sandbox: RunningSandbox, countdowns: None) -> None:
    """An idle sandbox hibernates on the screen; Resume brings it back."""
    lab.make_active(sandbox)
    panel = lab.open_panel()
    expect(lab.state()).to_have_text("Active")
    with lab.page.expect_response(lambda one: "/reconnect" in one.url) as answer:
        panel.get_by_role("button", name="Reconnect").click()
    assert answer.value.ok
    sandbox.control({"hibernate_seconds": 1})
    lab.reconnect()
    expect(lab.state()).to_have_text("Hibernated")
    expect(panel.get_by_text("variables are gone")).to_be_visible()
    sandbox.control({"hibernate_seconds": 600})
    panel.get_by_role("button", name="Resume").click()
    expect(lab.state()).to_have_text("Active")


def test_expiry(lab: Lab, sandbox: RunningSandbox, countdowns: None) -> None:
    """When its running time is over the panel says so within moments, and offers the way out."""
    sandbox.control({"runtime_seconds": 600, "expiry_keeps_snapshot": False})
    lab.make_active(sandbox)
    panel = lab.open_panel()
    expect(lab.state()).to_have_text("Active")
    sandbox.control({"runtime_seconds": 1})
    lab.reconnect()
    expect(lab.state()).to_have_text(re.compile("Expired|Archived"))
    expect(panel.get_by_role("button", name=re.compile("Create|Resume"))).to_be_visible()


def test_terminate_asks_first(lab: Lab, sandbox: RunningSandbox) -> None:
    """Terminate asks; Cancel, which has the focus, changes nothing; the second time it ends."""
    lab.make_active(sandbox)
    panel = lab.open_panel()
    expect(lab.state()).to_have_text("Active")
    panel.get_by_role("button", name="Terminate…").click()
    dialog = lab.page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    lab.page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    assert sandbox.status(CHAT)["status"] == "active"
    panel.get_by_role("button", name="Terminate…").click()
    dialog.get_by_role("button", name="Terminate").click()
    expect(lab.state()).to_have_text(re.compile("Not started|Archived"))
    assert sandbox.pids() == []


def test_failed_start(lab: Lab, sandbox: RunningSandbox) -> None:
    """A start that fails shows the platform's words as text, and what to do."""
    words = "no capacity <img src=x onerror=alert(1)> here"
    sandbox.control({"provision_fails_in": "mount", "provision_error": words})
    panel = lab.open_panel()
    panel.get_by_role("button", name="Create").click()
    expect(lab.state()).to_have_text("Failed")
    expect(panel.get_by_text(words)).to_be_visible()
    assert panel.locator("img").count() == 0
    expect(panel.get_by_role("button", name="Create")).to_be_visible()


def test_a_failed_start_is_notified_while_the_panel_is_closed(
    lab: Lab, sandbox: RunningSandbox
) -> None:
    """The notification says why, and has buttons for what to do; it goes when it is over."""
    sandbox.control({"provision_fails_in": "mount", "provision_error": "no capacity here"})
    expect(lab.panel).to_be_hidden()
    lab.execute("ivy:create")
    toast = lab.notification("could not start: no capacity here")
    expect(toast).to_be_visible()
    toast.get_by_role("button", name="Open panel").click()
    expect(lab.state()).to_have_text("Failed")
    lab.execute("application:toggle-right-area")
    expect(lab.panel).to_be_hidden()
    sandbox.control({"provision_fails_in": ""})
    lab.execute("ivy:create")
    lab.wait_for_status("Ivy: Active")
    expect(toast).to_have_count(0)
    # In the open panel the card tells it.
    lab.running.call("POST", f"ivy/sandboxes/{lab.sandbox_id()}/terminate", {})
    lab.open_panel()
    sandbox.control({"provision_fails_in": "mount"})
    lab.panel.get_by_role("button", name=re.compile("Create|Resume")).click()
    expect(lab.state()).to_have_text("Failed")
    expect(toast).to_have_count(0)


def test_all_of_a_long_reason_can_be_reached_by_keyboard(
    lab: Lab, sandbox: RunningSandbox, axe_source: str
) -> None:
    """What to do comes first; what the platform says is folded, and a key unfolds it."""
    words = "The pool is out of capacity. " * 20 + "Ask for another pool."
    sandbox.control({"provision_fails_in": "mount", "provision_error": words})
    panel = lab.open_panel()
    panel.get_by_role("button", name="Create").click()
    expect(lab.state()).to_have_text("Failed")
    banner = panel.locator(".jp-ivy-banner[data-kind=error]").first
    expect(banner).to_have_text(re.compile(r"^It could not start.*The pool is out of capacity"))
    expect(banner).not_to_contain_text("Ask for another pool")
    lab.check_accessible(axe_source)
    show = banner.get_by_role("button", name="Show all")
    show.focus()
    lab.page.keyboard.press("Enter")
    expect(banner.get_by_text("Ask for another pool.")).to_be_visible()
    expect(banner.get_by_role("button", name="Show less")).to_be_focused()
    lab.check_accessible(axe_source)


def test_unreachable_jupyter_server(lab: Lab, sandbox: RunningSandbox) -> None:
    """Without a network the last status stays, marked as old; afterwards all is well by itself."""
    lab.make_active(sandbox)
    panel = lab.open_panel()
    expect(lab.state()).to_have_text("Active")
    lab.context.set_offline(True)
    panel.get_by_role("button", name="Ask for a fresh status").click()
    expect(panel.get_by_text("The Jupyter server does not answer. Last seen")).to_be_visible()
    expect(lab.state()).to_have_text("Active")
    expect(lab.status_item).to_contain_text("no status")
    lab.context.set_offline(False)
    expect(panel.get_by_text("The Jupyter server does not answer.")).to_be_hidden()
    # JupyterLab's own requests failed too.
    assert all("fetch" in error for error in lab.page_errors)
    lab.page_errors.clear()
    lab.close()  # of no use to other tests


def test_busy_kernel(lab: Lab, sandbox: RunningSandbox, countdowns: None) -> None:
    """While a cell keeps the kernel busy the panel goes on counting."""
    sandbox.control({"runtime_seconds": 1200})
    lab.make_active(sandbox)
    name = lab.running.write_notebook("busy.ipynb", "import time; time.sleep(30)")
    lab.open_notebook(name)
    panel = lab.open_panel()
    lab.run_all()
    expect(lab.page.locator(".jp-InputPrompt", has_text="[*]")).to_be_visible()
    expiry = panel.locator(".jp-ivy-deadline", has_text="Expires in").get_by_role("timer")
    seen = set()
    for _ in range(3):
        text = expiry.inner_text()
        seen.add(text)
        expect(expiry).not_to_have_text(text)
    assert len(seen) == 3
    expect(lab.page.locator(".jp-InputPrompt", has_text="[*]")).to_be_visible()
    lab.execute("notebook:interrupt-kernel")
