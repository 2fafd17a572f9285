"""Kills the kernel of notebooks at random moments, restores, and compares every variable.

    python benchmarks/survival.py DIRECTORY --python ENVIRONMENT/bin/python --kills 50
    python benchmarks/survival.py DIRECTORY --python ENVIRONMENT/bin/python --overhead

Each notebook of the directory runs twice without checkpoints: the digests of its variables after
each cell (``value_digest.py``) are what a restore is compared with; those that differ between the
two runs are left out, and counted. Then it runs again and again, cells as fast as they go, until
its kernel is killed (SIGKILL, a third between cells, the rest within; every second time all that it
has begun dies with it), replaced and restored. The kernel is ipykernel as the agent launches it.
Most kernels are forked from a process that has imported the notebook's libraries, to be quick;
those of each ``COLD_EVERY``th round are new processes. ``--overhead`` runs each notebook with and
without checkpoints in turn. Notebooks are read only. Needs the ``test`` extra.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from notebook_kernels import Kernel, Place, execution, processes_in

Json = dict[str, Any]

KILLS_A_ROUND = 5
COLD_EVERY = 5
LIBRARIES = (
    *("ipykernel.kernelapp", "numpy", "scipy.stats", "scipy.optimize", "pandas", "matplotlib"),
    *("statsmodels.api", "statsmodels.formula.api", "patsy", "formulaic", "control"),
)
"""Imported before kernels are forked that are timed."""

BETWEEN_SECONDS = 0.6
"""After a cell's end; a checkpoint is being written in that time, or has just been."""


class Notebook:
    """One notebook, its undisturbed runs, and what became of its kernels."""

    def __init__(self, path: Path, python: str, seed: int) -> None:
        self.name = path.stem
        cells = json.loads(path.read_text("utf-8"))["cells"]
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        self.cells = [source for source in sources if source.strip()]
        self._dice = random.Random(f"{seed} {self.name}")
        self._python = python
        self._place: Place | None = None
        self.seconds: list[float] = []
        self.expected: list[dict[str, str]] = [{}]
        self.left_out: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.restores: list[float] = []
        self.behind: list[int] = []
        self.faults: list[str] = []
        self.why: Counter[str] = Counter()
        self.rounds = 0

    @property
    def place(self) -> Place:
        """Where its kernels live."""
        assert self._place is not None
        return self._place

    def close(self) -> None:
        """End its processes."""
        if self._place is not None:
            self._place.close()

    @contextlib.contextmanager
    def directory(self) -> Iterator[Path]:
        """A new working directory, in which nothing runs afterwards."""
        path = Path(tempfile.mkdtemp(prefix="w", dir=self.place.root))
        try:
            yield path
        finally:
            for pid in processes_in(path):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            shutil.rmtree(path, ignore_errors=True)

    def live_in(self, place: Place) -> None:
        """Have its kernels begin there."""
        self._place = place

    def prepare(self) -> None:
        """Run it undisturbed, twice."""
        place = self._place = Place(self._python, [])
        with self.directory() as directory:
            first, modules = self._undisturbed(directory, is_cold=True)
        place.close()
        self._place = Place(self._python, modules)
        with self.directory() as directory:
            second, _ = self._undisturbed(directory, is_cold=False)
        for one, other in zip(first, second, strict=True):
            names = {k for k in one.keys() | other.keys() if one.get(k) != other.get(k)}
            names |= {k for k, digest in one.items() if digest.startswith("no digest")}
            self.left_out |= names
            self.expected.append({k: v for k, v in one.items() if k not in names})

    def _undisturbed(
        self, directory: Path, *, is_cold: bool
    ) -> tuple[list[dict[str, str]], list[str]]:
        kernel = Kernel(self.place, directory, is_cold=is_cold)
        kernel.configure(checkpoints=False)
        found, self.seconds = [], []
        try:
            for number, source in enumerate(self.cells, 1):
                began = time.monotonic()
                reply = kernel.run(source, number)["content"]
                self.seconds.append(time.monotonic() - began)
                if reply["status"] != "ok":
                    raise RuntimeError(f"cell {number}: {reply['ename']}: {reply['evalue']}")
                found.append(kernel.digests()["digests"])
            path = directory / "modules.json"
            code = (
                f"__import__('pathlib').Path({str(path)!r}).write_text(__import__('json').dumps("
                "list(__import__('sys').modules)))"
            )
            kernel.ask("execute_request", execution(code, is_hidden=True))
            modules = json.loads(path.read_text())
        finally:
            kernel.kill()
        roots = ("numpy", "scipy", "pandas", "statsmodels", "patsy", "formulaic", "control")
        wanted = [m for m in modules if m.partition(".")[0] in (*roots, "ipykernel", "matplotlib")]
        late = ("matplotlib.pyplot", "matplotlib_inline", "matplotlib.backends")
        return found, [m for m in wanted if not m.startswith(late) and "._" not in m]

    # -- kills

    def round(self, kills: int) -> None:
        """Run it so many times from its beginning, and kill its kernel once on the way."""
        is_cold = self.rounds % COLD_EVERY == COLD_EVERY - 1
        self.rounds += 1
        for _ in range(kills):
            with self.directory() as directory:
                kernel = self._start(directory, is_cold=is_cold)
                place = self._dice.randrange(1, len(self.cells) + 1)
                ended = 0
                while ended < place - 1:
                    ended = self._next(kernel, ended)
                is_within = self._dice.random() < 2 / 3
                if is_within:
                    ended = self._kill_within(kernel, ended)
                else:
                    ended = self._next(kernel, ended)
                    time.sleep(self._dice.uniform(0, BETWEEN_SECONDS))
                kernel.kill(with_children=self._dice.random() < 0.5)
                kernel = self._start(directory, is_cold=is_cold)
                self.counts["kills"] += 1
                self.counts["within" if is_within else "between"] += 1
                self.counts["cold"] += is_cold
                self._restore(kernel, ended)
                kernel.kill()

    def _start(self, directory: Path, *, is_cold: bool) -> Kernel:
        kernel = Kernel(self.place, directory, is_cold=is_cold)
        kernel.configure()
        return kernel

    def _next(self, kernel: Kernel, ended: int) -> int:
        reply = kernel.run(self.cells[ended], ended + 1)["content"]
        if reply["status"] != "ok":
            self.faults.append(f"cell {ended + 1}: {reply.get('ename')}: {reply.get('evalue')}")
        return ended + 1

    def _kill_within(self, kernel: Kernel, ended: int) -> int:
        message = kernel.begin(self.cells[ended], ended + 1)
        moment = self._dice.uniform(0, max(self.seconds[ended], 0.01))
        return ended + (kernel.reply(message, moment) is not None)

    def _restore(self, kernel: Kernel, ended: int) -> None:
        reply = kernel.work("restore")
        if reply["status"] != "ok":
            if reply["ename"] != "LookupError":
                self.faults.append(f"after {ended}: {reply['ename']}: {reply['evalue']}")
            self.counts["no checkpoint yet"] += 1
            self.behind.append(ended)
            return
        number = int(reply["number"])
        self.restores.append(float(reply["seconds"]))
        self.behind.append(ended - number)
        if reply["refused"]:
            self.faults.append(f"refused after {ended}: {reply['refused']}")
        found = kernel.digests()["digests"]
        missing = reply["missing"]
        for name, digest in self.expected[number].items():
            is_variable = not name.startswith("<")
            kind = "" if is_variable else " (random states)"
            self.counts[f"expected{kind}"] += 1
            if found.get(name) == digest:
                self.counts[f"back{kind}"] += 1
            elif name in missing:
                self.counts["missing, named"] += 1
                self.why[f"{name}: {missing[name]['why']}"] += 1
            else:
                outcome = "wrong" if name in found else "missing, not named"
                self.counts[f"{outcome}{kind}"] += 1
                self.faults.append(f"{name} after cell {number}: {outcome}")
        strange = [n for n in found if n not in self.expected[number] and n not in self.left_out]
        if strange:
            self.faults.append(f"after cell {number}, not there before: {strange}")

    def report(self) -> Json:
        """Return what was counted."""
        return {
            "notebook": self.name,
            "cells": len(self.cells),
            "seconds": round(sum(self.seconds), 2),
            "counts": dict(self.counts),
            "behind": self.behind,
            "restore_seconds": self.restores,
            "left_out": sorted(self.left_out),
            "why": dict(self.why),
            "faults": self.faults,
        }

    # -- overhead

    def overhead(self, times: int) -> Json:
        """Run it with and without checkpoints in turn; return what that took."""
        runs: dict[bool, list[list[float]]] = {True: [], False: []}
        totals: dict[bool, list[float]] = {True: [], False: []}
        written = 0
        for turn in range(2 * times):
            is_on = (turn + turn // 2) % 2 == 0
            with self.directory() as directory:
                kernel = Kernel(self.place, directory)
                kernel.configure(checkpoints=is_on)
                began, found = time.monotonic(), []
                for number, source in enumerate(self.cells, 1):
                    start = time.monotonic()
                    kernel.run(source, number)
                    found.append(time.monotonic() - start)
                totals[is_on].append(time.monotonic() - began)
                runs[is_on].append(found)
                if is_on:
                    objects = (directory / ".ivy/notebook/checkpoints").rglob("*")
                    written = max(written, sum(p.stat().st_size for p in objects if p.is_file()))
                kernel.kill()
        with_it, without = (
            [statistics.median(cell) for cell in zip(*runs[is_on], strict=True)]
            for is_on in (True, False)
        )
        delays = [1000 * (one - other) for one, other in zip(with_it, without, strict=True)]
        least = min(totals[False])
        return {
            "notebook": self.name,
            "cells": len(self.cells),
            "seconds_without": round(statistics.median(totals[False]), 3),
            "seconds_with": round(statistics.median(totals[True]), 3),
            "least_without": round(least, 3),
            "least_with": round(min(totals[True]), 3),
            "median_delay_ms": round(statistics.median(delays), 1),
            "largest_delay_ms": round(max(delays), 1),
            "bytes": written,
        }


def _tables(reports: list[Json]) -> str:
    lines = [
        "| notebook | cells | s | kills | expected | back | missing, named | not named | wrong "
        "| cells behind: median, largest | restore, s: median, largest |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    total: Counter[str] = Counter()
    for one in reports:
        counts = Counter(one["counts"])
        total.update(counts)
        lines.append(_row(one["notebook"], one["cells"], one["seconds"], counts, [one]))
    cells = sum(one["cells"] for one in reports)
    lines.append(_row("all", cells, round(sum(o["seconds"] for o in reports)), total, reports))
    return "\n".join(lines)


def _row(name: str, cells: int, seconds: float, counts: Counter[str], of: list[Json]) -> str:
    behind = [n for one in of for n in one["behind"]] or [0]
    took = [n for one in of for n in one["restore_seconds"]] or [0.0]
    names = ("kills", "expected", "back", "missing, named", "missing, not named", "wrong")
    numbers = " | ".join(str(counts[name]) for name in names)
    late = f"{statistics.median(behind):g}, {max(behind)}"
    return (
        f"| {name} | {cells} | {seconds} | {numbers} | {late} "
        f"| {statistics.median(took):.2f}, {max(took):.2f} |"
    )


def _overhead_table(reports: list[Json]) -> str:
    lines = [
        "| notebook | cells | without, s | with, s | share, % | delay a cell, ms: median, largest "
        "| MB on disk |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in reports:
        share = 100 * (one["seconds_with"] / one["seconds_without"] - 1)
        lines.append(
            f"| {one['notebook']} | {one['cells']} | {one['seconds_without']} "
            f"| {one['seconds_with']} | {share:.1f} "
            f"| {one['median_delay_ms']}, {one['largest_delay_ms']} | {one['bytes'] / 1e6:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run what the command line says, and print tables; details go into a JSON file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--python", default=sys.executable, help="the sandbox's interpreter")
    parser.add_argument("--kills", type=int, default=50, help="of each notebook")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no round after these")
    parser.add_argument("--parallel", type=int, default=2, help="notebooks at a time")
    parser.add_argument("--overhead", action="store_true")
    parser.add_argument("--times", type=int, default=3, help="runs with and without, each")
    parser.add_argument("--json", type=Path, default=Path("survival.json"))
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    paths = sorted(options.directory.glob("*.ipynb"))
    notebooks = [Notebook(path, options.python, options.seed) for path in paths]

    def protected(notebook: Notebook, step: str, *arguments: Any) -> Any:
        if time.monotonic() > end:
            return None
        try:
            found = getattr(notebook, step)(*arguments)
        except Exception as error:
            notebook.faults.append(f"{step}: {type(error).__name__}: {error}")
            found = None
        print(f"{step} of {notebook.name}: {dict(notebook.counts)}", notebook.faults[-1:])
        sys.stdout.flush()
        return found

    found: list[Json] = []
    try:
        with ThreadPoolExecutor(options.parallel) as pool:
            if options.overhead:
                place = Place(options.python, list(LIBRARIES))
                for one in notebooks:
                    one.live_in(place)
            else:
                list(pool.map(lambda one: protected(one, "prepare"), notebooks))
        usable = [one for one in notebooks if len(one.expected) == len(one.cells) + 1]
        if options.overhead:
            found = [protected(one, "overhead", options.times) for one in notebooks]
            print(_overhead_table(found := [one for one in found if one]))
        else:
            with ThreadPoolExecutor(options.parallel) as pool:
                for _ in range(0, options.kills, KILLS_A_ROUND):
                    list(pool.map(lambda one: protected(one, "round", KILLS_A_ROUND), usable))
                    found = [one.report() for one in usable]
                    options.json.write_text(json.dumps(found, indent=1))
            print(_tables(found))
        options.json.write_text(json.dumps(found, indent=1))
    finally:
        for one in notebooks:
            one.close()


if __name__ == "__main__":
    main()
