from __future__ import annotations

from lab_window import Lab
from playwright.sync_api import expect
from sandbox_server import RunningSandbox
from test_restore_browser import CAMPAIGN, CHAT, COUNT, SESSION, display_of
from test_waiting_outputs import Answers, cell

SHOTS = "/tmp/w/web/tmp/"


def test_shots(lab: Lab, sandbox: RunningSandbox, countdowns: None) -> None:
    sandbox.ready(CHAT, SESSION, CAMPAIGN)
    document = {
        "text": "Back from the checkpoint after cell [17]: 12 of 14 variables (31 MB), 2 packages.",
        "missing": {
            "model": {"why": "it holds a lock (threading.Lock)", "cell": 4},
            "frames": {"why": "its checkpoint file has another hash", "cell": 9},
        },
        "cells": ["cell-0", "cell-2"],
        "actions": ["rerun", "install"],
    }
    name = lab.running.write_notebook(
        "shots.ipynb", COUNT, display_of(document), COUNT, "import time\ntime.sleep(1)", "1/0"
    )
    answers = Answers(lab, {"cell-3": cell("old", "r", "x\n")})
    lab.open_notebook(name)
    lab.page.wait_for_timeout(1500)
    lab.page.screenshot(path=SHOTS + "changed.png")
    lab.run_all()
    expect(lab.page.locator(".jp-ivy-restore")).to_be_visible()
    lab.page.wait_for_timeout(2500)
    lab.open_panel()
    lab.page.locator(".jp-Notebook .cm-content").nth(2).click()
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        lab.execute("apputils:change-theme", theme=theme)
        lab.page.wait_for_selector(f"body[data-jp-theme-name='{theme}']", state="attached")
        lab.page.wait_for_selector("#jupyterlab-splash", state="detached")
        lab.page.screenshot(path=SHOTS + f"restore-{theme[-5:].strip()}.png")
        lab.execute("ivy:run-remaining")
        lab.page.get_by_role("dialog").wait_for()
        lab.page.screenshot(path=SHOTS + f"dialog-{theme[-5:].strip()}.png")
        if theme.endswith("Dark"):
            lab.page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    lab.page.get_by_role("dialog").get_by_role("button", name="Run").click()
    lab.page.wait_for_timeout(1500)
    lab.page.screenshot(path=SHOTS + "handed.png")
    sandbox.control({"hibernate_seconds": 1})
    lab.page.wait_for_timeout(3000)
    lab.reconnect()
    expect(lab.panel.get_by_role("button", name="Resume and Restore")).to_be_visible()
    lab.page.screenshot(path=SHOTS + "panel.png")
    lab.page.unroute("**/ivy/outputs?*")
