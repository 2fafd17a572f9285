"""Runs a notebook of 40 cells over four sandboxes, and compares it with an undisturbed run.

    python benchmarks/lives.py --runs 20

Three times in each run the sandbox ends, after cells that chance names: by hibernation (its files
stay), by expiry (they are removed, too), and by one of the two. Ends fall between cells, when the
copy of the checkpoint is here. With ``--within`` they fall into a cell, which is lost then by rule:
it must say so, and run again it must show what it shows undisturbed. Needs the ``test`` extra.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from home import Home
from kernel_driver import CellRun, KernelDriver, agent_variables
from sandbox_server import RunningSandbox, running_sandbox, until

NOTE = re.compile(r"\[The sandbox.* had ended; restored .*\]\n")
SLOW = "import time; time.sleep(0.8)\n"

SETUP = "from pathlib import Path\nPath('data.csv').write_text('a,b\\n1,2\\n3,4\\n5,6\\n')\nNone"
FIRST = [
    SETUP,
    "import random, math\nimport numpy as np\nimport pandas as pd\n"
    "random.seed(7); np.random.seed(8)",
    "rng = np.random.default_rng(9)\nframe = pd.read_csv('data.csv'); rows = []; frame",
    "class Row:\n    made = 0\n    def __init__(self, n):\n        self.n = n; Row.made += 1\n"
    "    def twice(self):\n        return 2 * self.n",
    "def add(n):\n    rows.append(Row(n))\n    return len(rows)\ntotal = 0",
    "big = np.arange(300_000.0); part = big[::1000]; seen = {'rows': rows, 'frame': frame}",
]
CYCLE = [
    "add(random.randrange(100)), Row.made",
    "frame.loc[len(frame)] = [len(rows), rows[-1].twice()]; frame.tail(3)",
    "big[::1000] += rng.random(300); round(part.sum(), 6), part.base is big",
    "total += rows[-1].twice(); print(seen['rows'] is rows, seen['frame'] is frame, total)",
    "pd.read_csv('data.csv').b.sum(), frame.b.sum()",
    "1 / 0 if len(rows) % 4 == 3 else np.random.rand(3).round(6)",
    "frame.groupby(frame.a % 2).b.mean(), type(rows[0]) is Row, math.sqrt(total)",
]


def cells() -> list[str]:
    """The notebook's cells."""
    return (FIRST + CYCLE * 5)[:40]


def without_notes(cell: CellRun) -> dict[str, Any]:
    """Return what a cell has shown, without the line about a recovery."""
    shown: dict[str, Any] = {**cell.shown(), "count": cell.reply["execution_count"]}
    shown["stderr"] = NOTE.sub("", shown["stderr"])
    return shown


class Run:
    """One run of the notebook in a chat of its own."""

    def __init__(self, server: RunningSandbox, place: Path, chat: str) -> None:
        self._server = server
        self._chat = chat
        self._home = Home(place / chat)
        notebook = place / f"{chat}.ipynb"
        cell = {"cell_type": "code", "source": SETUP, "metadata": {"tags": ["ivy-setup"]}}
        notebook.write_text(json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4}))
        recoup = {
            "RECOUP_API_KEY": server.token,
            "RECOUP_API_URL": server.url.removesuffix("/api"),
            "RECOUP_SESSION_ID": f"session-of-{chat}",
        }
        variables = agent_variables(server, chat, JPY_SESSION_NAME=str(notebook), **recoup)
        self.kernel = KernelDriver(self._home, variables)
        self.kernel.start()

    def close(self) -> None:
        """End the kernel and its sandbox."""
        with contextlib.suppress(Exception):
            self.kernel.stop()

    def end_soon(self) -> None:
        """Have an end in sight, so that each cell's checkpoint is brought at once."""
        self._server.control({"hibernate_seconds": 100.0})

    def _is_copied(self, number: int) -> bool:
        files = (self._home.data / "ivy" / "notebooks").glob("*.json")
        chats = [json.loads(file.read_text())["chats"] for file in files]
        return any(c.get("copy", {}).get("number") == number for one in chats for c in one.values())

    def lose(self, how: str, number: int) -> None:
        """End the sandbox between two cells."""
        until(lambda: self._is_copied(number), f"the state after cell {number} is here", 60)
        self._end(how)

    def _end(self, how: str) -> None:
        if how == "hibernate":
            self._server.control({"hibernate_seconds": 0.3, "hibernating_seconds": 0.0})
        else:
            self._server.control({"runtime_seconds": 0.2, "expiry_keeps_snapshot": False})
        until(lambda: self._server.status(self._chat)["status"] != "active", "it has ended", 60)
        self._server.control({"hibernate_seconds": None, "runtime_seconds": None})
        if how == "expire":
            (place,) = self._server.root.glob(f"{self._chat}*")
            shutil.rmtree(place)
            place.mkdir(mode=0o700)
        self.end_soon()

    def lose_within(self, code: str, number: int) -> str:
        """End the sandbox while a cell runs; return what the cell said."""
        until(lambda: self._is_copied(number - 1), f"the state after cell {number - 1} is here", 60)
        message = self.kernel.submit(SLOW + code)
        time.sleep(0.4)
        self._end("expire")
        return str(self.kernel.finish(message).reply.get("ename"))


def run(server: RunningSandbox, place: Path, chat: str, ends: dict[int, str]) -> list[Any]:
    """Run all cells, with ends after some, or within them; return what they showed."""
    one = Run(server, place, chat)
    found: list[Any] = []
    try:
        one.end_soon()
        for number, code in enumerate(cells(), 1):
            how = ends.get(number, "")
            if how == "within":
                found.append(one.lose_within(code, number))
            found.append(without_notes(one.kernel.run(code)))
            if how in ("hibernate", "expire"):
                one.lose(how, number)
    finally:
        one.close()
    return found


def main() -> None:
    """Run it as often as the command line says, and print what was the same."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--within", action="store_true")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no run after these")
    options = parser.parse_args()
    dice = random.Random(options.seed)
    began = time.monotonic()
    same, runs, lost = 0, 0, Counter[str]()
    with running_sandbox() as server:
        place = Path(tempfile.mkdtemp(prefix="ivy-"))
        try:
            expected = run(server, place, "undisturbed", {})
            for number in range(options.runs):
                if time.monotonic() - began > options.seconds:
                    break
                places = sorted(dice.sample(range(2, len(expected)), 3))
                kinds = ["hibernate", "expire", dice.choice(["hibernate", "expire"])]
                dice.shuffle(kinds)
                if options.within:
                    kinds = ["within"] * 3
                ends = dict(zip(places, kinds, strict=True))
                try:
                    found = run(server, place, f"run-{number}", ends)
                except Exception as error:
                    found = [f"{type(error).__name__}: {error}"]
                lost.update(item for item in found if isinstance(item, str))
                shown = [item for item in found if not isinstance(item, str)]
                runs += 1
                same += shown == expected
                print(ends, "the same" if shown == expected else _first(shown, expected))
                print(*(item for item in found if isinstance(item, str)))
                sys.stdout.flush()
        finally:
            shutil.rmtree(place, ignore_errors=True)
    print(f"{same} of {runs} runs ended as the undisturbed one; cells that were cut: {dict(lost)}")


def _first(shown: list[Any], expected: list[Any]) -> str:
    for number, (one, other) in enumerate(zip(shown, expected, strict=False), 1):
        if one != other:
            return f"cell {number}: {one}, undisturbed: {other}"
    return f"{len(shown)} of {len(expected)} cells"


if __name__ == "__main__":
    main()
