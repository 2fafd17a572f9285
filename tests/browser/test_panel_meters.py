"""What the sandbox uses, in the panel, the status bar and a notification."""

from __future__ import annotations

import json
import re
from pathlib import Path

from lab_window import Lab
from playwright.sync_api import expect
from sandbox_server import RunningSandbox

from ivy_kernel.status.clock import monotonic_seconds

GIB = 1 << 30


def use_memory(lab: Lab, used_gib: float) -> None:
    """Tell the panel, as a kernel does, that so much of 16 GiB is in use."""
    told = (lab.running.home.runtime / "ivy-resources").glob("*.json")
    path = max(told, key=lambda path: path.stat().st_mtime_ns)  # of the notebook that has just run
    content = json.loads(path.read_text())
    content["resources"]["memory"] = {"used": used_gib * GIB, "limit": 16 * GIB}
    partial: Path = path.with_suffix(".new")
    partial.touch(mode=0o600)
    partial.write_text(json.dumps(content | {"told_monotonic": monotonic_seconds()}))
    partial.replace(path)


def test_memory_cpu_and_disk_are_shown_and_warned_of(
    lab: Lab, sandbox: RunningSandbox, axe_source: str
) -> None:
    """They come with the first cells; memory that fills up is warned of, until it is emptier."""
    lab.open_panel()
    cells = ("1", "import time; time.sleep(2.2)", "1")
    lab.open_notebook(lab.running.write_notebook("meters.ipynb", *cells))
    lab.run_all()
    figures = re.compile(r"^[\d.]+ of [\d.]+ [GT]B$")
    for name in ("Memory", "Disk"):
        meter = lab.panel.get_by_role("meter", name=name)
        expect(meter).to_have_attribute("aria-valuetext", figures)
    cpu = lab.panel.get_by_role("meter", name="CPU")
    expect(cpu).to_have_attribute("aria-valuetext", re.compile(r"^\d+ % of [\d.]+ cores?$"))

    use_memory(lab, 15.5)
    expect(lab.status_item).to_contain_text("15.5/16 GB")
    expect(lab.panel.locator(".jp-ivy-note", has_text="Memory is 96 % full")).to_be_visible()
    expect(lab.notification("Memory is 96 % full (15.5 of 16 GB)")).to_be_visible()
    lab.check_accessible(axe_source)
    use_memory(lab, 4)
    expect(lab.notification("Memory is")).to_have_count(0)
    expect(lab.status_item).not_to_contain_text("16 GB")
    lab.running.call("POST", f"ivy/sandboxes/{lab.sandbox_id()}/terminate")
    expect(cpu).to_be_hidden()
