"""How the kernel gets along with runners of other habits: the launch method, and the price.

    python benchmarks/runners.py

Each runner is a setting of the local sandbox. The sandbox is active before the first cell, so that
its time is what the kernel itself needs: imports, the agent's start, perhaps by a later method.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any

from jupyter_client.manager import start_new_kernel
from servers import create_sandbox, kernel_environment, sandbox

from ivy_kernel.local_sandbox.simulation.platforms import unavailable

STARTS = 3
CELL_SECONDS = 120.0
ONCE = "n = globals().get('n', 0) + 1; open('once.txt', 'a').write('x')"


@dataclass(frozen=True)
class Habit:
    """What a runner does with each call.

    Parameters
    ----------
    words
        As the document tells it.
    settings
        Of the local sandbox.
    """

    words: str
    settings: dict[str, Any]


HABITS = [
    Habit("nothing special", {}),
    Habit("one call at a time", {"runner": "serial"}),
    Habit("code as an argument (`python -c`)", {"runner": "python_dash_c"}),
    Habit("kills all that a call leaves behind", {"runner": "kill_descendants"}),
    Habit("a PID namespace for each call", {"runner": "pid_namespace"}),
    Habit("a fresh `/tmp` for each call", {"runner": "fresh_tmp"}),
    Habit("stdout limited to 30,000 characters", {"stdout_limit_chars": 30_000}),
    Habit("a time limit of 3 s", {"cap_seconds": {"script": 3, "notebook": 3}}),
]


class Kernel:
    """One kernel and its client."""

    def __init__(self, env: dict[str, str]) -> None:
        self._manager, self._client = start_new_kernel(kernel_name="ivy-sandbox", env=env)

    def run(self, code: str) -> tuple[float, str]:
        """Run a cell: seconds, and the text of its output."""
        texts: list[str] = []

        def show(message: dict[str, Any]) -> None:
            content = message["content"]
            texts.append(content.get("text") or content.get("data", {}).get("text/plain", ""))

        began = time.perf_counter()
        reply = self._client.execute_interactive(code, output_hook=show, timeout=CELL_SECONDS)
        took = time.perf_counter() - began
        if reply["content"]["status"] != "ok":
            raise RuntimeError(reply["content"]["evalue"])
        return took, "".join(texts)

    def stop(self) -> None:
        """End the kernel."""
        self._client.stop_channels()
        self._manager.shutdown_kernel()


def measure(habit: Habit) -> str:
    """A line of the table."""
    reason = unavailable(habit.settings.get("runner", "normal"))
    if reason:
        return f"| {habit.words} | not possible on this machine: {reason} | | | |"
    firsts, seconds, routes = [], [], set()
    for _ in range(STARTS):
        with tempfile.TemporaryDirectory() as work, sandbox(f"{work}/s", habit.settings) as server:
            env = kernel_environment(server, server.url, work)
            create_sandbox(env)
            kernel = Kernel(env)
            try:
                firsts.append(kernel.run(ONCE)[0])
                seconds += [kernel.run(ONCE)[0] for _ in range(9)]
                counted = kernel.run("print(n, len(open('once.txt').read()))")[1].split()
                if counted != ["10", "10"]:
                    raise RuntimeError(f"{habit.words}: 10 cells have run {counted} times")
                lines = kernel.run("%ivy status")[1].splitlines()
                routes |= {line.removeprefix("route: ") for line in lines if "route: " in line}
            finally:
                kernel.stop()
    first, later = statistics.median(firsts), statistics.median(seconds) * 1000
    return f"| {habit.words} | {'; '.join(sorted(routes))} | {first:.1f} | {later:.0f} | 10 of 10 |"


def table() -> str:
    """The section of ``docs/performance.md``."""
    lines = [
        "## Runners of other habits",
        "",
        f"Medians of {STARTS} starts with a sandbox that is active. The first cell starts the",
        "agent and a kernel in the sandbox. Ten cells count themselves, in a variable and a file.",
        "",
        "| what the runner does | route, launch method | first cell, s | later, ms | ran once |",
        "|---|---|---|---|---|",
    ]
    for habit in HABITS:
        lines.append(measure(habit))
        print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table())
