"""The way of a warm cell through our process is short, and docs/architecture.md tells it."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

from home import PYTHON_PATH, Home
from kernel_driver import agent_variables, running_kernel
from sandbox_server import REPOSITORY, RunningSandbox
from waiting import until

TRACER = Path(__file__).parents[1] / "support" / "traced_modules"
ARCHITECTURE = REPOSITORY / "docs" / "architecture.md"
MODULES_AT_MOST = 32


def documented() -> set[str]:
    """The modules in the numbered list of "The way of a cell", relative to the package."""
    text = ARCHITECTURE.read_text("utf-8")
    section = text.split("## The way of a cell\n")[1].split("\n## ")[0]
    items = re.findall(r"^\d+\. `([\w/]+\.py)`", section, re.MULTILINE)
    return set(items)


def test_a_warm_cell_enters_few_modules_and_the_page_names_them(
    server: RunningSandbox, tmp_path: Path
) -> None:
    """On the agent route, from the request until reply and idle, in our kernel's main thread."""
    trace = tmp_path / "modules.json"
    variables = {
        **agent_variables(server, "traced"),
        "TRACE_MODULES_TO": str(trace),
        "PYTHONPATH": os.pathsep.join([str(TRACER), PYTHON_PATH]),
    }
    with running_kernel(Home(tmp_path / "home"), variables) as kernel:
        for code in ("x = 1", "x", "x + 1"):  # the first ones start the agent and probe the calls
            kernel.run(code)
        os.kill(kernel.pid, signal.SIGUSR1)
        assert kernel.run("x + 2").result == "3"
        os.kill(kernel.pid, signal.SIGUSR2)
        until(trace.exists, "the kernel wrote down what it entered")
    entered = json.loads(trace.read_text())
    assert "routes/agent/route.py" in entered
    assert len(entered) <= MODULES_AT_MOST, entered
    assert set(entered) <= documented()
    assert len(documented()) <= MODULES_AT_MOST
