"""Measures the Ivy Sandbox kernel beside ipykernel, and writes ``docs/performance.md``.

    python benchmarks/run.py [--quick] [--delays 0,50]

Both kernels run in turn in one process of ``kernel_bench.py``, so that their ratio holds on a
machine that is shared; the plain figures do not. The sandbox is the local one, behind a proxy that
delays each direction by the given milliseconds. Needs the ``test`` extra and ``psutil``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import runners
from servers import Sandbox, create_sandbox, delayed, kernel_environment, sandbox

HERE = Path(__file__).resolve().parent
DOCUMENT = HERE.parent / "docs" / "performance.md"
SHORT_CELLS = 100


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Parameters
    ----------
    metric
        As ``kernel_bench.py`` names it.
    words
        As the document names it.
    target
        What we aim for, in words.
    """

    metric: str
    words: str
    target: str = ""


ROWS = [
    Row("start->kernel_info ms", "start until kernel_info, ms", "ratio ≤ 1.0"),
    Row("start->first cell ms", "start until the first cell is done, ms"),
    Row("cell `pass` reply+idle ms", "cell `pass`, ms", "≤ 2d + spawn + 10 ms"),
    Row("first output, print+flush ms", "first output, flushed, ms", "≤ 2d + spawn + 10 ms"),
    Row("first output, print ms", "first output, plain print, ms"),
    Row("tick lag (20x100ms), print+flush ms", "lag of later output, flushed, ms", "≤ d + 5 ms"),
    Row("tick lag (20x100ms), print ms", "lag of later output, plain print, ms"),
    Row("excess of a sleep(0.3) cell ms", "excess of a 0.3 s cell, ms"),
    Row("print 10 MB: MB/s", "print 10 MB, MB/s"),
    Row("print 50 MB: MB/s", "print 50 MB, MB/s", "ratio ≥ 1.5"),
    Row("print 50 MB: lost %", "print 50 MB, lost %", "0"),
    Row("display 10 MB arrives ms", "10 MB picture shown, ms", "ratio ≤ 2"),
    Row("2000 display updates ms", "2,000 display updates, ms", "ratio ≤ 0.5"),
    Row("2000 display updates: received", "2,000 display updates, received", "2000"),
    Row("completion (warm) ms", "completion, ms"),
    Row("interrupt -> reply ms", "interrupt until reply, ms", "≤ 2d + 15 ms"),
    Row("idle CPU %", "idle processor, %", "≤ 0.05"),
    Row("memory PSS MB", "memory of the kernel's processes, PSS, MB"),
]


MISSED = """\
## Where a target is missed, and what eats it

- A short cell: beyond the round trip and the empty call ("spawn") there are ipykernel's own 5 ms,
  the same as beside it, and some 10 ms in front end, wrapper kernel, HTTP client and agent.
- First output: the agent holds it for 20 ms while its cell has only just begun, because most such
  cells end within that time, and are one request then instead of two.
- Lag of later output: 5 ms in which the agent waits for company, and then the process that carries
  the answer must end, for the tool answers only when it has.
- Prints, and 2,000 updates: bound by the ipykernel in the sandbox, which needs 10 µs for each print
  there too. The way adds less than a tenth to it, and nothing is lost on it.
- A 10 MB picture: ipykernel hands it to one other process. Here it passes six, the delaying proxy
  among them, as one answer of 10 MB; the first of a kernel in three, because answers grow only
  while they go well.
- Interrupt: a call of its own, so the target would have to have a "spawn" in it; the rest is the
  ipykernel in the sandbox, which takes as long as the one beside it.
"""


def measure(server: Sandbox, delay_ms: int, work: str, *, quick: bool) -> dict[str, Any]:
    """One run of ``kernel_bench.py`` at one delay, the requests a short cell takes, and spawn."""
    report = Path(work) / f"report-{delay_ms}.json"
    command = [sys.executable, str(HERE / "kernel_bench.py"), "--json", str(report)]
    if quick:
        command += ["--starts", "2", "--cells", "30", "--reps", "2", "--mb", "1,10", "--idle", "3"]
    with delayed(server, delay_ms) as url:
        env = kernel_environment(server, url, work)
        create_sandbox(env)
        subprocess.run(
            [*command, "base=python3", "ours=ivy-sandbox"], env=env, check=True, timeout=1800
        )
        found: dict[str, Any] = json.loads(report.read_text("utf-8"))
        found["requests"] = requests_a_cell(server, env)
        found["spawn"] = spawn_ms(server)
    return found


def requests_a_cell(server: Sandbox, env: dict[str, str]) -> float:
    """HTTP requests that one short cell takes, without those of the start."""
    code = (
        "from jupyter_client.manager import start_new_kernel\n"
        "import sys\n"
        "km, kc = start_new_kernel(kernel_name='ivy-sandbox')\n"
        "kc.execute_interactive('1', output_hook=lambda m: None)\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        f"for _ in range({SHORT_CELLS}): kc.execute_interactive('pass')\n"
        "print('done', flush=True); sys.stdin.readline()\n"
        "kc.stop_channels(); km.shutdown_kernel()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    counts = []
    for _ in range(2):
        process.stdout.readline()
        counts.append(sum(server.control()["counters"]["requests"].values()))
        process.stdin.write("\n")
        process.stdin.flush()
    process.wait(60)
    return float(counts[1] - counts[0]) / SHORT_CELLS


def spawn_ms(server: Sandbox) -> float:
    """What the platform's tool takes to start its process: an empty call of it, without delay."""
    body = {"chatId": "benchmark", "campaignId": "benchmark", "code": "pass"}
    request = urllib.request.Request(
        f"{server.url}/v1/sandbox/benchmark/tool/sandbox_python",
        data=json.dumps(body).encode(),
        headers={
            "Authorization": f"Bearer {server.token}",
            "Content-Type": "application/json",
        },
    )
    samples = []
    for _ in range(30):
        start = time.perf_counter()
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()
        samples.append((time.perf_counter() - start) * 1000)
    return statistics.median(samples)


def figure(summary: dict[str, Any], metric: str, label: str) -> str:
    """A median, and the ratio to ipykernel where there is one."""
    found = summary.get(metric, {}).get(label)
    if found is None:
        return "n/a"
    value = found["median"]
    text = f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}"
    return f"{text} (x{found['ratio']:.2f})" if "ratio" in found else text


def document(reports: dict[int, dict[str, Any]], *, quick: bool) -> str:
    """The text of ``docs/performance.md``."""
    delays = sorted(reports)
    spawn = statistics.median(report["spawn"] for report in reports.values())
    head = " | ".join(f"ipykernel, run d={d} | Ivy, d={d}" for d in delays)
    lines = [
        "# Performance",
        "",
        "Medians, written by `python benchmarks/run.py`" + (" --quick" if quick else "") + ".",
        "The sandbox is the local one; `d` is the one-way delay in milliseconds that a proxy adds",
        "between kernel and sandbox. In brackets: the ratio to ipykernel in the same run, which is",
        "what holds on a shared machine.",
        "",
        f"Machine: {os.cpu_count()} processors, Python {platform.python_version()}, "
        f"{platform.system()}. An empty call of the sandbox's tool, which starts a Python "
        f"(“spawn”), takes {spawn:.0f} ms here, without delay.",
        "",
        f"| | {head} | target |",
        "|---|" + "---|" * (2 * len(delays)) + "---|",
    ]
    for row in ROWS:
        cells = []
        for delay in delays:
            summary = reports[delay]["summary"]
            cells += [figure(summary, row.metric, "base"), figure(summary, row.metric, "ours")]
        lines.append(f"| {row.words} | {' | '.join(cells)} | {row.target} |")
    requests = " | ".join(f"0 | {reports[delay]['requests']:.2f}" for delay in delays)
    lines += [f"| HTTP requests a short cell | {requests} | 1 |", ""]
    errors = [error for delay in delays for error in reports[delay]["errors"]]
    lines += ["Faults during the runs: " + ("; ".join(errors) if errors else "none") + ".", ""]
    lines.append(MISSED)
    return "\n".join(lines)


def main() -> None:
    """Measure, and write the document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions; about 3 minutes")
    parser.add_argument("--delays", default="0,50", help="one-way delays in milliseconds")
    parser.add_argument("--output", default=str(DOCUMENT), help="the document to write")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work, sandbox(f"{work}/sandboxes") as server:
        reports = {
            int(delay): measure(server, int(delay), work, quick=options.quick)
            for delay in options.delays.split(",")
        }
        text = document(reports, quick=options.quick) + "\n" + runners.table()
    Path(options.output).write_text(text, "utf-8")
    print(text)


if __name__ == "__main__":
    main()
