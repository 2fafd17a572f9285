"""Runs many cells through every fault of the network, and kills what runs them, again and again.

    python benchmarks/chaos.py --cells 10000 --kills 50 --shards 4

Each cell notes its number in a list in the sandbox and in a file outside of it, and prints it. At
random moments one of four is killed: the wrapper kernel, the sandbox's Python, the agent, the local
server with all its sandboxes. What the kernel says of each cell is compared with the file and with
the list: none may be lost, none doubled, and no sentence may be false. Needs the ``test`` extra.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "support"))

from fault_proxy import ALL_FAULTS, FaultProxy  # noqa: E402
from home import Home  # noqa: E402
from kernel_driver import KernelDriver, is_idle  # noqa: E402
from sandbox_server import RunningSandbox, running_sandbox  # noqa: E402

CHAT = "chaos"
TOKEN = "chaos-token-of-this-machine"
CELL_SECONDS = 240.0
TRIES = 12
"""Cells that may fail in a row after a kill, each with a true sentence, before it is a fault."""

VICTIMS = ("wrapper kernel", "sandbox's Python", "agent", "local server")
NOTHING_RAN = re.compile(r"[Nn]othing of this cell|[Nn]othing was run|provably")
GONE = re.compile(r"variables (with it|are gone)|with its variables|is gone")
MAY_HAVE_RUN = re.compile(r"may have run|not known|unknown|was lost|still running")


class Network:
    """The proxy, in a loop and thread of its own."""

    def __init__(self, port: int, seed: int) -> None:
        self.proxy = FaultProxy(port, ALL_FAULTS, seed=seed)
        self._loop = asyncio.new_event_loop()
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    async def _run(self) -> None:
        self._done = asyncio.Event()
        async with self.proxy.running():
            self._is_up.set()
            await self._done.wait()

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        self._is_up.wait(30)
        return self.proxy

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join()
        self._loop.close()


class Shard:
    """One kernel, its sandbox, the network between them, and what is killed."""

    def __init__(self, place: Path, cells: int, kills: int, seed: int) -> None:
        self._place = place
        self._dice = random.Random(seed)
        self._seed = seed
        self._cells = cells
        self._ledger = place / "ledger.txt"
        self._ledger.touch()
        self._servers = contextlib.ExitStack()
        self._victims = dict(
            zip(
                sorted(self._dice.sample(range(5, cells - 5), kills)),
                (VICTIMS[(seed + index) % len(VICTIMS)] for index in range(kills)),
                strict=True,
            )
        )
        self._pids: tuple[int, int] | None = None
        self.counts: Counter[str] = Counter()
        self.sentences: Counter[str] = Counter()
        self.faults: list[str] = []

    def run(self) -> dict[str, Any]:
        """Run all cells; return what was counted."""
        began = time.monotonic()
        with self._servers:
            server = self._start_server()
            with Network(port_of(server), self._seed) as self._proxy:
                self._home = Home(self._place / "home")
                variables = {
                    "IVY_API_URL": f"http://127.0.0.1:{self._proxy.port}/api",
                    "IVY_API_KEY": TOKEN,
                    "IVY_CHAT_ID": CHAT,
                    "IVY_CAMPAIGN_ID": CHAT,
                    "IVY_SESSION_ID": f"session-of-{CHAT}",
                    "IVY_ROUTE": "agent",
                }
                self._kernel = KernelDriver(self._home, variables)
                self._kernel.start()
                try:
                    self._run_cells()
                finally:
                    self._kernel.stop()
                    self._kernel.kill()
        noted = Counter(self._ledger.read_text().split())
        for number, times in noted.items():
            if times > 1:
                self._fault("doubled", f"cell {number} ran {times} times")
        return {
            "counts": dict(self.counts),
            "network": dict(self._proxy.counts),
            "sentences": dict(self.sentences),
            "faults": self.faults,
            "seconds": time.monotonic() - began,
        }

    # -- servers and victims

    def _start_server(self) -> RunningSandbox:
        self._server = self._servers.enter_context(
            running_sandbox(root=self._place / "root", token=TOKEN)
        )
        return self._server

    def _kill(self, victim: str) -> None:
        self.counts[f"killed: {victim}"] += 1
        if victim == "wrapper kernel":
            os.kill(self._kernel.pid, signal.SIGKILL)
        elif victim == "local server":
            os.kill(self._server.pid, signal.SIGKILL)
        elif self._pids is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pids[victim == "agent"], signal.SIGKILL)

    def _revive(self, victim: str) -> None:
        if victim == "wrapper kernel":
            self._kernel.manager.restart_kernel(now=True)
            self._kernel.client.wait_for_ready(timeout=60)
        elif victim == "local server":
            self._server.process.wait(30)
            time.sleep(self._dice.random() * 2)
            self._proxy.upstream_port = port_of(self._start_server())

    # -- cells

    def _run_cells(self) -> None:
        self._begin_anew()
        for number in range(self._cells):
            victim = self._victims.get(number)
            # A part of the cells lasts long enough to be hit in the middle.
            code = (
                f"seen.append({number})\n"
                f"with open({str(self._ledger)!r}, 'a') as file: print({number}, file=file)\n"
                + (f"import time; time.sleep({self._dice.random():.2f})\n" if victim else "")
                + f"print({number})"
            )
            message_id = self._kernel.submit(code)
            self.counts["cells"] += 1
            if victim is None:
                self._check(number, self._end_of(message_id), may_fail=False)
                continue
            time.sleep(self._dice.random() * 1.5)
            self._kill(victim)
            if victim == "wrapper kernel":
                self._revive(victim)
                self.counts["cells without a reply"] += 1  # its front end lost its kernel
                self._recover(f"cell {number}, {victim}", told=False, killed_wrapper=True)
                continue
            self._revive(victim)
            end = self._end_of(message_id)
            told = self._check(number, end, may_fail=True)
            self._recover(f"cell {number}, {victim}", told=told)

    def _end_of(self, message_id: str) -> dict[str, Any]:
        """Return status, sentence and text of a cell; status is "hung" when it has no end."""
        deadline = time.monotonic() + CELL_SECONDS
        text, sentence, stderr = "", "", ""
        try:
            while True:
                message = self._kernel.client.get_iopub_msg(timeout=deadline - time.monotonic())
                if message["parent_header"].get("msg_id") != message_id:
                    continue
                content = message["content"]
                if message["msg_type"] == "stream":
                    if content["name"] == "stdout":
                        text += content["text"]
                    else:
                        stderr += content["text"]
                elif message["msg_type"] == "error":
                    sentence = f"{content['ename']}: {content['evalue']}"
                elif message["msg_type"] == "execute_result":
                    text += content["data"]["text/plain"]
                elif is_idle(message):
                    break
            reply = self._kernel.reply(message_id, max(1.0, deadline - time.monotonic()))
        except (Empty, ValueError, AssertionError):
            return {"status": "hung", "sentence": "no end", "text": text, "stderr": stderr}
        status = reply["content"]["status"]
        return {"status": status, "sentence": sentence, "text": text, "stderr": stderr}

    def _check(self, number: int, end: dict[str, Any], *, may_fail: bool) -> bool:
        """Compare what a cell says with what it left; return whether it has told a loss."""
        times = self._ledger.read_text().split().count(str(number))
        self.counts[end["status"]] += 1
        said = end["sentence"] + " " + end["stderr"]
        if end["stderr"]:
            self._remember(f"(stderr) {end['stderr']}")
        if end["status"] == "ok":
            if times != 1:
                self._fault("lost" if times == 0 else "doubled", f"cell {number}: {times} times")
            if end["text"] != f"{number}\n":
                self._fault("output", f"cell {number} shows {end['text']!r}")
        else:
            self._remember(end["sentence"])
            if not may_fail:
                self._fault("failed without a kill", f"cell {number}: {end['sentence']}")
            if NOTHING_RAN.search(end["sentence"]) and times:
                self._fault("false sentence", f"cell {number} ran, but: {said}")
            if end["status"] == "hung" or "NameError" in said:
                self._fault("silence", f"cell {number}: {said}")
            elif (
                not NOTHING_RAN.search(said)
                and not MAY_HAVE_RUN.search(said)
                and not GONE.search(said)
            ):
                self._fault("unclear", f"cell {number}: {said}")
        return bool(GONE.search(said))

    def _recover(self, where: str, *, told: bool, killed_wrapper: bool = False) -> None:
        """Go on after a kill as a user does, and see that a loss is told once and is none but true.

        The namespace tells: the list is there if nothing was lost.
        """
        for _ in range(TRIES):
            end = self._end_of(self._kernel.submit("print('seen' in globals())"))
            self.counts["cells of recovery"] += 1
            said = end["sentence"] + " " + end["stderr"]
            if end["stderr"]:
                self._remember(f"(stderr) {end['stderr']}")
            is_gone_told = bool(GONE.search(said))
            if end["status"] == "ok":
                is_there = "True" in end["text"]
                if not is_there and not told and not is_gone_told:
                    self._fault("silence", f"{where}: the variables are gone, which was not told")
                if is_there and told:
                    self._fault("false sentence", f"{where}: the variables are there, {said}")
                if is_there:
                    self._find_pids()
                else:
                    self._begin_anew()
                return
            self._remember(end["sentence"])
            if end["status"] == "hung":
                self._fault("silence", f"{where}: a cell without an end")
                return
            if is_gone_told and told:
                self._fault("told twice", f"{where}: {said}")
            told = told or is_gone_told
        self._fault("silence", f"{where}: {TRIES} cells failed in a row, at last {said}")

    def _begin_anew(self) -> None:
        for _ in range(TRIES):
            end = self._end_of(self._kernel.submit("seen = []"))
            if end["status"] == "ok":
                break
            self._remember(end["sentence"])
        self._find_pids()

    def _find_pids(self) -> None:
        end = self._end_of(self._kernel.submit("import os; print(os.getpid(), os.getppid())"))
        numbers = end["text"].split()
        self._pids = (int(numbers[0]), int(numbers[1])) if len(numbers) == 2 else None

    def _remember(self, sentence: str) -> None:
        plain = re.sub(r"\x1b\[[0-9;]*m", "", sentence)
        self.sentences[re.sub(r"\d+", "N", plain).strip()] += 1

    def _fault(self, kind: str, words: str) -> None:
        self.counts[f"FAULT: {kind}"] += 1
        self.faults.append(f"{kind}: {words}")
        print(f"{kind}: {words}", file=sys.stderr, flush=True)


def port_of(server: RunningSandbox) -> int:
    """The port of a local sandbox."""
    return int(server.url.rsplit(":", 1)[1].split("/")[0])


@contextlib.contextmanager
def short_place() -> Iterator[Path]:
    """A directory with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="ivy-", ignore_cleanup_errors=True) as place:
        yield Path(place)


def run_shards(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Run the shards in processes of their own; return what each counted."""
    shares = []
    for index in range(arguments.shards):
        cells, kills = (
            total // arguments.shards + (index < total % arguments.shards)
            for total in (arguments.cells, arguments.kills)
        )
        command = [sys.executable, __file__, "--cells", str(cells), "--kills", str(kills)]
        command += ["--seed", str(arguments.seed + index), "--shard"]
        shares.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    return [json.loads(share.communicate()[0].splitlines()[-1]) for share in shares]


def main() -> None:
    """Run it all, and print the sums."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--shards", type=int, default=4, help="kernels at the same time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shard", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.shard:
        with short_place() as place:
            shard = Shard(place, arguments.cells, arguments.kills, arguments.seed)
            print(json.dumps(shard.run()))
        return
    results = run_shards(arguments)
    for name in ("counts", "network", "sentences"):
        total: Counter[str] = Counter()
        for result in results:
            total.update(result[name])
        print(f"\n{name}")
        for words, times in total.most_common():
            print(f"  {times:>7,}  {words}")
    print(f"\nseconds: {max(result['seconds'] for result in results):.0f}")
    faults = [fault for result in results for fault in result["faults"]]
    print(f"faults: {len(faults)}", *faults, sep="\n  ")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
