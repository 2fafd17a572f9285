"""Chats to pick from, and the form for the account, in the panel."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from urllib.error import HTTPError

import pytest
from lab_server import RunningLab
from lab_window import Lab
from playwright.sync_api import Locator, expect
from sandbox_server import RunningSandbox, until

OpenWindow = Callable[[RunningLab, str], Lab]

CHAT = "chat-in-browser"
OTHER = "chat-of-genomes"
STRANGERS = "chat-of-a-stranger"
SESSION = "session-in-browser"
CAMPAIGN = "campaign-in-browser"
WRONG_KEY = "ivy_wrong0key0that0nobody0has"

WHERE = "import os; print('in', os.getcwd())"

STORAGE = """async () => {
  const kept = [{ ...localStorage }, { ...sessionStorage }, document.cookie, location.href];
  for (const { name } of await indexedDB.databases()) {
    const database = await new Promise((resolve, reject) => {
      const request = indexedDB.open(name);
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    });
    for (const store of database.objectStoreNames) {
      kept.push(await new Promise((resolve, reject) => {
        const request = database.transaction(store).objectStore(store).getAll();
        request.onsuccess = () => resolve(request.result);
        request.onerror = () => reject(request.error);
      }));
    }
    database.close();
  }
  const fields = [...document.querySelectorAll('input, textarea')].map(one => one.value);
  return JSON.stringify([kept, fields]);
}"""
"""All that the browser keeps of the page, and what stands in its fields."""


@pytest.fixture
def chats(lab: Lab, sandbox: RunningSandbox) -> Iterator[Lab]:
    """A window on a JupyterLab that knows two chats; what is saved is removed after the test."""
    running = lab.running
    running.call("PUT", f"ivy/chats/{OTHER}", {"name": "Genomes", "campaign_id": CAMPAIGN})
    yield lab
    running.shut_down_kernels()
    running.home.settings_file.unlink(missing_ok=True)
    for chat in running.call("GET", "ivy/chats")["chats"]:
        with suppress(HTTPError):  # the settings' own chat may not be in the list's file
            running.call("DELETE", f"ivy/chats/{chat['chat_id']}")
    with suppress(AssertionError):  # it was never started
        sandbox.call("POST", f"/v1/sandbox/{OTHER}/terminate")
    # The next test counts on one sandbox; which kernels are gone is noticed within moments.
    until(
        lambda: (
            [one["chat_id"] for one in running.call("GET", "ivy/sandboxes")["sandboxes"]] == [CHAT]
        ),
        "only the settings' own chat is in use",
    )


def option(lab: Lab, name: str) -> Locator:
    """The row of a chat."""
    return lab.panel.get_by_role("option").filter(has_text=name)


def test_a_notebook_is_switched_by_keyboard(
    chats: Lab, sandbox: RunningSandbox, axe_source: str
) -> None:
    """Command, a few letters, Enter: the next cell runs in the sandbox of the chat picked."""
    lab = chats
    sandbox.ready(CHAT, SESSION, CAMPAIGN)
    lab.open_notebook(lab.running.write_notebook("switched.ipynb", WHERE))
    lab.run_all()
    expect(lab.outputs().first).to_contain_text(f"/{CHAT}")
    filter_field = lab.panel.get_by_role("searchbox", name="Filter the chats")

    def open_list() -> bool:
        # JupyterLab gives the focus to a notebook that it has just opened, sooner or later.
        lab.execute("ivy:switch-chat")
        expect(filter_field).to_be_visible()
        lab.page.wait_for_timeout(300)
        return bool(filter_field.evaluate("one => one === document.activeElement"))

    until(open_list, "the filter has the focus")
    expect(option(lab, CHAT)).to_contain_text("This notebook")
    expect(option(lab, CHAT)).to_contain_text("Default")
    expect(option(lab, "Genomes")).to_contain_text(f"{OTHER} · campaign {CAMPAIGN}")
    lab.page.keyboard.press("ArrowDown")
    lab.page.keyboard.press("ArrowUp")
    lab.page.keyboard.type("geno")
    expect(lab.panel.get_by_role("option")).to_have_count(1)
    lab.page.keyboard.press("Enter")
    expect(lab.notification("Cells of switched.ipynb now run in chat Genomes.")).to_be_visible()
    lab.page.keyboard.press("Escape")
    expect(option(lab, "Genomes")).to_contain_text("This notebook")
    expect(lab.panel.locator(".jp-ivy-card.jp-mod-current")).to_contain_text(OTHER)
    lab.check_accessible(axe_source)
    lab.run_all()
    expect(lab.outputs().first).to_contain_text(f"/{OTHER}")
    assert sandbox.status(OTHER)["status"] == "active"


def test_a_chat_is_renamed_made_the_default_and_forgotten(
    chats: Lab, sandbox: RunningSandbox
) -> None:
    """Each is a button for the selected chat; the list, and the config file, say so at once."""
    lab = chats
    lab.open_panel()
    option(lab, "Genomes").click()
    lab.panel.get_by_role("button", name="Rename…").click()
    dialog = lab.page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill("Plants")
    dialog.get_by_role("button", name="Rename").click()
    expect(option(lab, "Plants")).to_contain_text(OTHER)
    lab.panel.get_by_role("button", name="Make default").click()
    expect(option(lab, "Plants")).to_contain_text("Default")
    saved = json.loads(lab.running.home.settings_file.read_text("utf-8"))
    assert saved["Ivy"]["chat_id"] == OTHER
    option(lab, CHAT).click()
    lab.panel.get_by_role("button", name="Make default").click()
    expect(option(lab, CHAT)).to_contain_text("Default")
    option(lab, "Plants").click()
    lab.panel.get_by_role("button", name="Forget…").click()
    expect(dialog).to_contain_text("The chat, its sandbox and its files stay as they are.")
    dialog.get_by_role("button", name="Forget").click()
    expect(option(lab, "Plants")).to_have_count(0)


def test_a_refused_chat_leaves_a_python_notebook_where_it_was(
    chats: Lab, sandbox: RunningSandbox
) -> None:
    """The extension is loaded first, and said; of a wrong chat the command's own error is shown."""
    lab = chats
    sandbox.control({"chats": {STRANGERS: {"owner": "somebody else"}}})
    name = lab.running.write_notebook("plain.ipynb", f"%%ivy\n{WHERE}", kernel="python3")
    lab.open_notebook(name)
    lab.open_panel()
    option(lab, "Genomes").click()
    lab.panel.get_by_role("button", name="Use in this notebook").click()
    said = lab.notification("%%ivy cells of plain.ipynb now run in chat Genomes.")
    expect(said).to_contain_text("“%load_ext ivy_kernel” was run in it first.")
    lab.run_all()
    expect(lab.outputs().first).to_contain_text("in /")
    lab.panel.get_by_role("button", name="Another chat…").click()
    dialog = lab.page.get_by_role("dialog")
    dialog.get_by_label("Chat id").fill(STRANGERS)
    dialog.get_by_role("button", name="Use").click()
    expect(lab.notification("plain.ipynb still runs where it did:")).to_be_visible()
    lab.run_all()
    expect(lab.outputs().first).to_contain_text("in /")
    assert sandbox.status(OTHER)["status"] == "active"
    sandbox.control({"chats": {}})


def test_the_form_checks_before_it_saves_and_shows_no_key(
    chats: Lab, sandbox: RunningSandbox, axe_source: str
) -> None:
    """An error is shown at its field and saves nothing; afterwards the key is in the file alone."""
    lab = chats
    name = lab.running.write_notebook("account.ipynb", "%ivy config")
    lab.open_notebook(name)
    lab.execute("ivy:account")
    form = lab.panel.locator(".jp-ivy-account")
    key = form.get_by_label("Key", exact=True)
    expect(key).to_be_focused()
    assert key.get_attribute("type") == "password"
    expect(form.get_by_label("Chat id")).to_have_value(CHAT)
    key.fill(WRONG_KEY)
    lab.page.keyboard.press("Enter")
    expect(key).to_have_attribute("aria-invalid", "true")
    expect(key).to_be_focused()
    expect(key).to_have_value("")
    lab.check_accessible(axe_source)
    assert not lab.running.home.settings_file.exists()

    key.fill(sandbox.token)
    form.get_by_role("button", name="Check and save").click()
    saved = lab.panel.get_by_role("status").filter(has_text="Saved in")
    expect(saved).to_contain_text(str(lab.running.home.settings_file))
    expect(form).to_be_hidden()
    content = json.loads(lab.running.home.settings_file.read_text("utf-8"))
    assert content["Ivy"]["api_key"] == sandbox.token
    assert lab.running.home.settings_file.stat().st_mode & 0o777 == 0o600
    lab.execute("ivy:account")
    expect(form).to_contain_text("Leave this empty to keep it.")
    expect(key).to_have_value("")

    lab.run_all()
    expect(lab.outputs().first).to_contain_text("api_key")
    lab.execute("docmanager:save")
    notebook = lab.running.root / name
    until(lambda: '"output_type"' in notebook.read_text("utf-8"), "the notebook is saved")
    lab.page.wait_for_timeout(1500)  # the state database is saved a second after a change
    places = {
        "page": lab.page.content(),
        "storage": lab.page.evaluate(STORAGE),
        "notebook": notebook.read_text("utf-8"),
        "log": lab.running.log.read_text("utf-8"),
    }
    home = lab.running.home
    for directory in (home.path / "workspaces", home.path / "settings", home.data, home.runtime):
        for path in directory.rglob("*"):
            if path.is_file():
                places[str(path)] = path.read_text("utf-8", errors="replace")
    for response in lab.responses:
        places[f"address of {response.url}"] = response.url
        if re.search("/(ivy|api)/", response.url) and "/events" not in response.url:
            with suppress(Exception):  # the browser has let go of some bodies
                places[f"{response.request.method} {response.url}"] = response.text()
    assert any(place.startswith("POST") and "/ivy/account" in place for place in places)
    found = [
        place
        for place, text in places.items()
        for secret in (sandbox.token, WRONG_KEY)
        if secret in text
    ]
    assert found == []


def test_the_welcome_has_the_form(
    newcomer: RunningLab, open_window: OpenWindow, axe_source: str
) -> None:
    """Who has no account sees the form at once, and nothing is sent before the button."""
    window = open_window(newcomer, "lab?reset")
    # The launcher takes the focus when it has been filled.
    window.page.wait_for_function("() => document.activeElement.closest('.jp-Launcher')")
    panel = window.open_panel()
    expect(panel.get_by_role("heading", name="Use your account")).to_be_visible()
    panel.get_by_role("button", name="Account…").click()
    expect(panel.get_by_label("Key", exact=True).and_(panel.locator(":focus"))).to_be_visible()
    window.page.get_by_text("Countdowns (optional)").locator("visible=true").click()
    expect(panel.get_by_label("Recoup key").locator("visible=true")).to_be_visible()
    window.check_accessible(axe_source)
    panel.get_by_role("button", name="Check and save").locator("visible=true").click()
    expect(panel.get_by_text("Nothing was changed")).to_be_visible()
    assert not [
        one for one in window.responses if one.request.method == "POST" and "/ivy/" in one.url
    ]
