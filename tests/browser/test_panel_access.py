"""Who may see and reach what: tabs, sign-in, secrets, accessibility."""

from __future__ import annotations

import re
import time
from pathlib import Path

from lab_window import Lab
from playwright.sync_api import expect
from sandbox_server import RunningSandbox, until

from ivy_kernel.status.schedule import PollIntervals

STATUS_ROUTE = "/status"


def status_requests(sandbox: RunningSandbox) -> int:
    """How often the platform was asked for a status."""
    requests = sandbox.counters()["requests"]
    return sum(count for route, count in requests.items() if STATUS_ROUTE in route)


def test_all_tabs_see_a_change(lab: Lab, sandbox: RunningSandbox) -> None:
    """What one tab does is on the screen of the others within moments."""
    other = lab.open_tab("lab/workspaces/other?reset")
    lab.open_panel()
    other.get_by_role("button", name="Ivy:").click()
    expect(lab.state(other)).to_have_text("Not started")
    lab.panel.get_by_role("button", name="Create").click()
    expect(lab.state()).to_have_text("Active")
    expect(lab.state(other)).to_have_text("Active", timeout=10_000)


def test_tabs_share_one_connection(lab: Lab, sandbox: RunningSandbox) -> None:
    """Many tabs hold one event stream, and cause one request to the platform an interval."""
    lab.responses.clear()
    lab.make_active(sandbox)
    alert_until = time.monotonic() + PollIntervals().after_change_seconds + 1
    tabs = [lab.open_tab(f"lab/workspaces/tab-{number}?reset") for number in range(2)]
    for tab in tabs:
        expect(tab.locator(".jp-ivy-status")).to_contain_text("Active")
    streams = [one for one in lab.responses if "/ivy/events" in one.url]
    assert streams == []  # the first tab has it already
    # For a while after an action the monitor looks more often, since the platform may lag behind.
    lab.page.wait_for_timeout(1000 * max(0.0, alert_until - time.monotonic()))
    before, started = status_requests(sandbox), time.monotonic()
    lab.page.wait_for_timeout(3000)
    passed_seconds = time.monotonic() - started
    # 15 s is the interval of an active sandbox.
    assert status_requests(sandbox) - before <= passed_seconds // 15 + 1


def test_hidden_tab_lets_go(lab: Lab, sandbox: RunningSandbox) -> None:
    """A hidden tab closes its stream; when it is shown again it is up to date at once."""
    lab.make_active(sandbox)
    lab.open_panel()
    expect(lab.state()).to_have_text("Active")
    hide = """hidden => {
      for (const [name, value] of [['hidden', hidden], ['visibilityState',
           hidden ? 'hidden' : 'visible']]) {
        Object.defineProperty(document, name, { configurable: true, get: () => value });
      }
      document.dispatchEvent(new Event('visibilitychange'));
    }"""
    finished: list[str] = []
    lab.page.on("requestfailed", lambda request: finished.append(request.url))
    lab.page.evaluate(hide, True)
    until(
        lambda: lab.page.wait_for_timeout(50) or any("ivy/events" in one for one in finished),
        "the stream is closed",
    )
    (shown,) = lab.running.call("GET", "ivy/sandboxes")["sandboxes"]
    lab.running.call("POST", f"ivy/sandboxes/{shown['id']}/terminate")
    expect(lab.state()).to_have_text("Active")
    lab.page.evaluate(hide, False)
    expect(lab.state()).not_to_have_text("Active")
    lab.page.evaluate("() => { delete document.hidden; delete document.visibilityState; }")


def test_cookie_sign_in_is_enough(lab: Lab, sandbox: RunningSandbox) -> None:
    """With the cookie of an earlier sign-in alone, a tab reads and acts."""
    tab = lab.open_tab("lab/workspaces/cookie?reset")
    assert "token=" not in tab.url
    tab.get_by_role("button", name="Ivy:").click()
    tab.locator("#ivy-sandbox-panel").get_by_role("button", name="Create").click()
    expect(lab.state(tab)).to_have_text("Active")


def test_key_stays_on_the_server(lab: Lab, sandbox: RunningSandbox) -> None:
    """The key is in no response, page, browser storage, notebook or log."""
    lab.reopen()
    name = lab.running.write_notebook("secret.ipynb", "1 + 1", "%ivy status")
    lab.open_notebook(name)
    lab.open_panel()
    lab.run_all()
    expect(lab.state()).to_have_text("Active")
    expect(lab.outputs().first).to_contain_text("2")
    lab.execute("docmanager:save")
    notebook: Path = lab.running.root / name
    until(lambda: '"text/plain"' in notebook.read_text("utf-8"), "the notebook is saved")
    storage = lab.page.evaluate(
        "() => JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])"
    )
    places = {
        "page": lab.page.content(),
        "storage": storage,
        "notebook": notebook.read_text("utf-8"),
        "log": lab.running.log.read_text("utf-8"),
    }
    for response in lab.responses:
        places[f"headers of {response.url}"] = str(response.all_headers())
        if response.request.method == "GET" and re.search("/(ivy/sandboxes|api)", response.url):
            places[response.url] = lab.context.request.get(response.url).text()
    assert [place for place, text in places.items() if sandbox.token in text] == []
    assert any("/ivy/sandboxes" in place for place in places)


def test_accessible(lab: Lab, sandbox: RunningSandbox, countdowns: None, axe_source: str) -> None:
    """axe-core finds nothing to mend in the panel and the status bar item, in either theme."""
    sandbox.control({"runtime_seconds": 36, "hibernate_seconds": 400})
    lab.open_panel()
    expect(lab.panel.get_by_role("button", name="Create")).to_be_visible()
    lab.check_accessible(axe_source)
    lab.make_active(sandbox)
    expect(lab.state()).to_have_text("Active")
    lab.check_accessible(axe_source)
    expect(lab.panel.get_by_text("Expires soon")).to_be_visible()
    lab.check_accessible(axe_source)


def test_by_keyboard_alone(lab: Lab, sandbox: RunningSandbox) -> None:
    """Create and Terminate need no mouse."""
    lab.open_panel()
    lab.panel.get_by_role("button", name="Ask for a fresh status").focus()
    lab.page.keyboard.press("Tab")
    expect(lab.panel.get_by_role("button", name="Copy the chat id")).to_be_focused()
    lab.page.keyboard.press("Tab")
    expect(lab.panel.get_by_role("button", name="Create")).to_be_focused()
    lab.page.keyboard.press("Enter")
    expect(lab.state()).to_have_text("Active")
    lab.panel.get_by_role("button", name="Terminate…").focus()
    lab.page.keyboard.press("Enter")
    expect(lab.page.get_by_role("dialog").get_by_role("button", name="Cancel")).to_be_focused()
    lab.page.keyboard.press("Tab")
    lab.page.keyboard.press("Enter")
    expect(lab.state()).not_to_have_text("Active")
