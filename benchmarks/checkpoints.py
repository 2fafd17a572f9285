#!/usr/bin/env python3
"""What checkpoints cost a notebook: the same cells with and without them, in turn, in one run.

    python benchmarks/checkpoints.py --rounds 3

Each workload runs in a process of its own, in which cells follow each other without a pause, as
"Run all" without a network would have it: the worst case. Blocked is the time between cells that a
checkpoint took from them; the share is what all of the notebook took longer, median of the rounds.
Afterwards the newest checkpoint is restored in another process, and the variables are counted.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from bare_kernel import BareKernel

WORK = "t = time.perf_counter()\nwhile time.perf_counter() - t < {seconds}: sum(range(2000))\n"
IMPORTS = "import time, random\nimport numpy as np\nimport pandas as pd\n"


def cells(count: int, seconds: float, first: str, each: str) -> list[str]:
    """A notebook: imports, a first cell, and cells that compute for some time."""
    return [
        IMPORTS,
        first,
        *(WORK.format(seconds=seconds) + each.replace("{n}", str(n)) for n in range(count)),
    ]


WORKLOADS = {
    "40 tiny cells, small values": cells(40, 0.005, "x = []", "x.append({n}); y{n} = {n}"),
    "20 cells of 0.2 s, small values": cells(20, 0.2, "x = {}", "x[{n}] = str({n})"),
    "functions and classes": cells(
        20,
        0.2,
        "class A:\n    def __init__(self, n): self.n = n\nobjects = []",
        "def f{n}(q): return q + {n}\nobjects.append(A({n}))",
    ),
    "frame of 80 MB, read only": cells(
        20,
        0.3,
        "df = pd.DataFrame(np.random.rand(1_000_000, 10))",
        "m{n} = df[0].mean() + {n}",
    ),
    "frame of 80 MB, a column each cell": cells(
        20,
        0.3,
        "df = pd.DataFrame(np.random.rand(1_000_000, 10))",
        "df['c{n}'] = df[0] * {n}",
    ),
    "arrays of 400 MB, changed in place": cells(
        10, 1.0, "a = np.random.rand(50_000_000)", "a[::1000] += {n}"
    ),
    "500,000 strings in a list": cells(
        15, 0.4, "words = [str(n) for n in range(500_000)]", "words[{n}] = 'new'"
    ),
    "200,000 small dictionaries": cells(
        15, 0.4, "rows = [{'id': n, 'k': str(n)} for n in range(200_000)]", "rows[{n}]['k'] = ''"
    ),
    "groupby and text columns": cells(
        15,
        0.4,
        "k, v = np.random.randint(0, 99, 500_000), np.random.rand(500_000)\n"
        "df = pd.DataFrame({'k': k, 'v': v})\n"
        "df['t'] = df.k.astype(str)",
        "g{n} = df.groupby('k').v.mean() * {n}",
    ),
    "training loop, 50 MB of weights": cells(
        15,
        0.5,
        "weights = [np.random.rand(1000, 650) for _ in range(10)]",
        "weights = [w * 0.99 for w in weights]; loss{n} = float(weights[0].mean())",
    ),
}


def run(notebook: list[str], *, with_checkpoints: bool) -> tuple[float, list[float], int, int]:
    """Run it once; return all seconds, those between cells, and how many variables came back."""
    between = []
    with tempfile.TemporaryDirectory() as place:
        with contextlib.closing(BareKernel(Path(place))) as kernel:
            kernel.configure(checkpoints=with_checkpoints, space_bytes=2 << 30)
            kernel.run(notebook[0])
            began = time.perf_counter()
            for cell in notebook[1:]:
                kernel.run(cell)
                ended = time.perf_counter()
                kernel.idle()
                between.append(time.perf_counter() - ended)
            seconds = time.perf_counter() - began
            if not with_checkpoints:
                return seconds, between, 0, 0
            total = len(kernel.ask("checkpoint", now=True)["names"])
        with contextlib.closing(BareKernel(Path(place))) as other:
            other.configure()
            restored = len(other.ask("restore")["restored"])
    return seconds, between, restored, total


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    print("| notebook | without (s) | with (s) | share | blocked, median (ms) | most (ms) | back |")
    print("|---|---|---|---|---|---|---|")
    for name, notebook in WORKLOADS.items():
        if options.only not in name:
            continue
        plain, kept, between = [], [], []
        restored = total = 0
        for _ in range(options.rounds):
            plain.append(run(notebook, with_checkpoints=False)[0])
            seconds, pauses, restored, total = run(notebook, with_checkpoints=True)
            kept.append(seconds)
            between += pauses
        without, with_them = statistics.median(plain), statistics.median(kept)
        print(
            f"| {name} | {without:.2f} | {with_them:.2f} | {with_them / without - 1:+.1%} "
            f"| {statistics.median(between) * 1000:.1f} | {max(between) * 1000:.1f} "
            f"| {restored} of {total} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
