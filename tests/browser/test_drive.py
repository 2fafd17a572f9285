"""The sandbox's files in JupyterLab: what a user does with them in the side bar."""

from __future__ import annotations

import json
from pathlib import Path

from lab_window import Lab
from playwright.sync_api import Locator, Page, expect
from sandbox_server import RunningSandbox
from waiting import until

CHAT = "chat-in-browser"
MANY = 10_000
SHOWN = 1000

DOT = (
    "iVBORw0KGgoAAAANSUhEUgAAAAoAAAAKCAYAAACNMs+9AAAAFUlEQVR42mNk+M9Qz0AEYBxVSF+FABJADveWkH6oAAAA"
    "AElFTkSuQmCC"
)
"""A PNG of 10 by 10 pixels."""

TOOLBAR_BUTTONS = "#ivy-drive .jp-FileBrowser-toolbar jp-button"
"""JupyterLab's own buttons have an attribute that axe-core does not allow."""

_DRAG_IN = """async paths => {
  const { contents } = window.jupyterapp.serviceManager;
  const listing = document.querySelector('#ivy-drive .jp-DirListing-content');
  const event = new Event('lm-drop', { bubbles: true, cancelable: true });
  event.proposedAction = 'move';
  event.mimeData = {
    hasData: mime => mime === 'application/x-jupyter-icontents',
    getData: () => paths
  };
  listing.dispatchEvent(event);
}"""


def write(sandbox: RunningSandbox, **files: str) -> None:
    """Write text files into the chat's directory; ``__`` in a name is a dot."""
    contents = {name.replace("__", "."): text for name, text in files.items()}
    code = f"for n, t in {contents!r}.items(): open(n, 'w', encoding='utf-8').write(t)"
    sandbox.tool(CHAT, "sandbox_python", code=code)


def read(sandbox: RunningSandbox, path: str) -> str:
    """Return the text of a file in the chat's directory; empty when there is none."""
    (found,) = [*sandbox.root.glob(f"*/{path}"), Path("/dev/null")][:1]
    return found.read_text("utf-8")


def open_drive(lab: Lab) -> Locator:
    """Show the sandbox's files, as a user does."""
    browser = lab.page.locator("#ivy-drive")
    if not browser.is_visible():
        lab.page.locator(".lm-TabBar-tab[title='Ivy Sandbox files']").click()
    expect(browser).to_be_visible()
    choice = browser.get_by_label("Sandbox whose files are shown")
    choice.select_option(CHAT)
    return browser


def entry(browser: Locator, name: str) -> Locator:
    """Return the entry of that name."""
    return browser.locator(f".jp-DirListing-item:has(span:text-is('{name}'))")


def drop(page: Page, target: Locator, path: Path) -> None:
    """Drop a file of the desktop, as the browser itself does it."""
    box = until(
        lambda: (box := target.bounding_box()) and box["height"] > 100 and box, "it is laid out"
    )
    place = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
    data = {"items": [], "files": [str(path)], "dragOperationsMask": 1}
    session = page.context.new_cdp_session(page)
    for kind in ("dragEnter", "dragOver", "drop"):
        session.send("Input.dispatchDragEvent", {"type": kind, **place, "data": data})
    session.detach()


def listings(lab: Lab) -> list[str]:
    """Return what the page has asked the drive for."""
    return [one.url for one in lab.responses if "/ivy/contents" in one.url]


def choose(lab: Lab, item: str) -> None:
    """Choose an entry of the context menu."""
    lab.page.locator(".lm-Menu .lm-Menu-item", has_text=item).click()


def test_files_open_as_jupyterlab_opens_them(lab: Lab, sandbox: RunningSandbox) -> None:
    """A table, an image and sequences are shown; the chooser and the root lead to the sandbox."""
    lab.make_active(sandbox)
    write(sandbox, table__csv="name,count\nada,1\n", seq__fasta=">one\nACGT\n", calls__vcf="##v\n")
    code = f"import base64; open('dot.png', 'wb').write(base64.b64decode('{DOT}'))"
    sandbox.tool(CHAT, "sandbox_python", code=code)
    browser = open_drive(lab)
    expect(browser.get_by_label("Sandbox whose files are shown")).to_have_value(CHAT)
    entry(browser, "table.csv").dblclick()
    expect(lab.page.locator(".jp-CSVViewer .lm-DataGrid")).to_be_visible()
    entry(browser, "dot.png").dblclick()
    image = lab.page.locator(".jp-ImageViewer img")
    until(lambda: image.evaluate("one => one.naturalWidth") == 10, "the image is shown")
    for name, text in (("seq.fasta", "ACGT"), ("calls.vcf", "##v")):
        entry(browser, name).dblclick()
        expect(lab.page.locator(".jp-FileEditor:visible")).to_contain_text(text)
    browser.get_by_label("Sandbox whose files are shown").select_option("")
    expect(entry(browser, "table.csv")).to_have_count(0)
    entry(browser, CHAT).dblclick()
    expect(entry(browser, "table.csv")).to_be_visible()


def test_files_are_changed_from_the_browser(
    lab: Lab, sandbox: RunningSandbox, tmp_path: Path
) -> None:
    """Dropping uploads, and so on: folder, rename, download, and a deletion that is for good."""
    lab.make_active(sandbox)
    browser = open_drive(lab)
    listing = browser.locator(".jp-DirListing-content")
    expect(browser.locator(".jp-ivy-drive-state")).to_be_hidden()
    (tmp_path / "dropped.txt").write_text("from the desktop", "utf-8")
    drop(lab.page, listing, tmp_path / "dropped.txt")
    expect(entry(browser, "dropped.txt")).to_be_visible()
    until(lambda: read(sandbox, "dropped.txt") == "from the desktop", "it is in the sandbox")

    browser.get_by_role("button", name="New Folder").click()
    lab.page.locator(".jp-DirListing-editor").fill("results")
    lab.page.keyboard.press("Enter")
    expect(entry(browser, "results")).to_be_visible()
    assert [one.is_dir() for one in sandbox.root.glob("*/results")] == [True]

    entry(browser, "dropped.txt").click()
    lab.page.keyboard.press("F2")
    lab.page.locator(".jp-DirListing-editor").fill("renamed.txt")
    lab.page.keyboard.press("Enter")
    expect(entry(browser, "renamed.txt")).to_be_visible()
    assert read(sandbox, "renamed.txt") == "from the desktop"

    entry(browser, "renamed.txt").click(button="right")
    with lab.page.expect_download() as download:
        lab.page.locator(".lm-Menu-itemLabel:text-is('Download')").click()
    assert download.value.suggested_filename == "renamed.txt"
    assert download.value.path().read_text("utf-8") == "from the desktop"

    entry(browser, "renamed.txt").click()
    lab.page.keyboard.press("Delete")
    dialog = lab.page.get_by_role("dialog")
    expect(dialog).to_contain_text("permanently delete: renamed.txt")
    dialog.get_by_role("button", name="Delete").click()
    expect(entry(browser, "renamed.txt")).to_have_count(0)
    assert read(sandbox, "renamed.txt") == ""


def test_a_sandbox_that_sleeps_is_left_asleep(lab: Lab, sandbox: RunningSandbox) -> None:
    """Its state and a button stand where the files would; nothing is asked, no dialog opens."""
    lab.responses.clear()
    browser = open_drive(lab)
    expect(browser.locator(".jp-ivy-chip")).to_have_text("Not started")
    assert listings(lab) == []
    browser.get_by_role("button", name="Create").click()
    expect(browser.locator(".jp-DirListing")).to_be_visible()
    write(sandbox, kept__txt="kept")
    browser.get_by_role("button", name="Refresh").click()
    expect(entry(browser, "kept.txt")).to_be_visible()

    sandbox.call("POST", f"/v1/sandbox/{CHAT}/terminate")
    until(lambda: sandbox.status(CHAT)["status"] != "active", "it has ended")
    # Its question is answered with the state and nothing else, unless the page knows it already.
    browser.get_by_role("button", name="Refresh", include_hidden=True).dispatch_event("click")
    expect(browser.locator(".jp-ivy-chip")).to_have_text("Not started")
    expect(browser.locator(".jp-DirListing")).to_be_hidden()
    lab.responses.clear()
    lab.execute("filebrowser:refresh")
    lab.execute("filebrowser:toggle-hidden-files")
    lab.page.locator(".lm-TabBar-tab[title^='File Browser']").click()
    open_drive(lab)
    expect(browser.get_by_role("button", name="Create")).to_be_visible()
    assert listings(lab) == []
    assert lab.page.get_by_role("dialog").count() == 0
    assert sandbox.status(CHAT)["status"] != "active"


def test_the_browser_follows_the_notebook(lab: Lab, sandbox: RunningSandbox) -> None:
    """A cell's new file appears by itself; an entry that may not be changed says so."""
    lab.make_active(sandbox)
    browser = open_drive(lab)
    name = lab.running.write_notebook("writes.ipynb", "open('made.txt', 'w').write('1')")
    lab.open_notebook(name)
    lab.run_all()
    expect(entry(browser, "made.txt")).to_be_visible()

    def forbid(route: object) -> None:
        answer = route.fetch()  # type: ignore[attr-defined]  # playwright's own type is generic
        body = answer.json()
        for one in body["content"]:
            one["writable"] = False
            one["ivy"] = {"kind": "upload", "origin": "chat", "created": "2026-11-30T12:00:00Z"}
        route.fulfill(response=answer, body=json.dumps(body))  # type: ignore[attr-defined]  # same

    pattern = f"**/ivy/contents/{CHAT}?*"
    lab.page.route(pattern, forbid)
    browser.get_by_role("button", name="Refresh").click()
    made = entry(browser, "made.txt")
    expect(made.locator(".jp-ivy-read-only")).to_be_visible()
    hover = made.get_attribute("title") or ""
    assert "Kind: upload" in hover
    assert "Origin: chat" in hover
    made.click(button="right")
    choose(lab, "Show What the Platform Knows")
    expect(lab.page.get_by_role("dialog")).to_contain_text("upload")
    lab.page.keyboard.press("Escape")
    lab.page.unroute(pattern)


def test_ten_thousand_entries_stay_usable(lab: Lab, sandbox: RunningSandbox) -> None:
    """The first are shown, a filter finds the others and asks the server nothing."""
    lab.make_active(sandbox)
    code = f"""
import os
os.makedirs("many")
for number in range({MANY}):
    open(f"many/file-{{number:05}}.txt", "w").close()
"""
    sandbox.tool(CHAT, "sandbox_python", code=code)
    browser = open_drive(lab)
    entry(browser, "many").dblclick()
    expect(browser.locator(".jp-DirListing-item")).to_have_count(SHOWN)
    expect(browser).to_contain_text(f"{MANY - SHOWN} more entries are not shown")
    lab.responses.clear()
    browser.get_by_role("button", name="Filter Files by Name").click()
    browser.locator("input[placeholder='Filter files by name']").fill("file-09999")
    expect(browser.locator(".jp-DirListing-item").first).to_contain_text("file-09999.txt")
    assert listings(lab) == []
    browser.locator(".jp-DirListing-item").first.click()
    selected = browser.locator(".jp-DirListing-item.jp-mod-selected")
    expect(selected).to_contain_text("file-09999.txt")
    browser.get_by_role("button", name="Filter Files by Name").click()
    expect(browser.locator(".jp-DirListing-item")).to_have_count(SHOWN)


def test_send_to_the_sandbox(lab: Lab, sandbox: RunningSandbox) -> None:
    """Files and folders of the local browser are sent from its menu; an overwrite is asked for."""
    lab.make_active(sandbox)
    open_drive(lab)
    root = lab.running.root
    (root / "local.txt").write_text("first", "utf-8")
    (root / "folder").mkdir()
    (root / "folder/inner.txt").write_text("inner", "utf-8")
    local = lab.page.locator("#filebrowser")
    lab.execute("filebrowser:activate")
    expect(local).to_be_visible()
    lab.execute("filebrowser:refresh")
    entry(local, "folder").click()
    entry(local, "local.txt").click(modifiers=["Control"])
    entry(local, "local.txt").click(button="right")
    choose(lab, "Send to Ivy Sandbox")
    expect(lab.notification("Sent 2 files")).to_be_visible()
    assert read(sandbox, "local.txt") == "first"
    assert read(sandbox, "folder/inner.txt") == "inner"

    (root / "local.txt").write_text("second", "utf-8")
    entry(local, "local.txt").click()
    entry(local, "local.txt").click(button="right")
    choose(lab, "Send to Ivy Sandbox")
    dialog = lab.page.get_by_role("dialog")
    expect(dialog).to_contain_text("local.txt")
    dialog.get_by_role("button", name="Keep").click()
    expect(lab.notification("Nothing was sent")).to_be_visible()
    assert read(sandbox, "local.txt") == "first"
    open_drive(lab)
    lab.page.evaluate(_DRAG_IN, ["local.txt"])
    dialog.get_by_role("button", name="Overwrite").click()
    expect(lab.notification("Sent 1 file ")).to_be_visible()
    assert read(sandbox, "local.txt") == "second"


def test_accessible(lab: Lab, sandbox: RunningSandbox, axe_source: str) -> None:
    """axe-core finds nothing to mend, with files and without, in either theme."""
    browser = open_drive(lab)
    expect(browser.get_by_role("button", name="Create")).to_be_visible()
    lab.check_accessible(axe_source, "#ivy-drive", exclude=[TOOLBAR_BUTTONS])
    browser.get_by_label("Sandbox whose files are shown").focus()
    lab.page.keyboard.press("Tab")
    expect(browser.get_by_role("button", name="Create")).to_be_focused()
    lab.page.keyboard.press("Enter")
    expect(browser.locator(".jp-DirListing")).to_be_visible()
    write(sandbox, table__csv="a,b\n")
    browser.get_by_role("button", name="Refresh").click()
    expect(entry(browser, "table.csv")).to_be_visible()
    lab.check_accessible(axe_source, "#ivy-drive", exclude=[TOOLBAR_BUTTONS])
