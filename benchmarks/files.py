#!/usr/bin/env python3
"""How fast a large file travels to the sandbox and back, beside curl, and what memory it takes.

    python benchmarks/files.py --megabytes 1024 --delays 0 50 --cuts 20

For each delay of the proxy, in turn and in one run: ``curl`` sends the file by ``sandbox_write`` and
fetches it by ``sandbox_read``, in base64 pieces of 4 MiB over one connection; then a process of ours
does the same. The pieces for curl are made before its time begins. Memory is the highest resident
size of each process, looked at every 20 ms. Cuts kill our process (SIGKILL) at random moments.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import servers

CHAT = "files"
PIECE_BYTES = 4 << 20


# -- our process
async def transfer(url: str, direction: str, local: str, remote: str) -> None:
    """Move one file, and print what it did."""
    from ivy_kernel.api.auth import Credential
    from ivy_kernel.api.clients import IvyClient
    from ivy_kernel.api.connection import Connection
    from ivy_kernel.routes.tools import SandboxTools
    from ivy_kernel.session.files import SandboxFiles
    from ivy_kernel.session.lifecycle import Lifecycle

    key = os.environ["IVY_API_KEY"]

    async def connect() -> IvyClient:
        return IvyClient(Connection(url, Credential(lambda: key)))

    lifecycle = Lifecycle(connect, chat_id=CHAT, campaign_id=CHAT, session_id=CHAT, api_url=url)
    files = SandboxFiles(lifecycle, SandboxTools(lifecycle.client, CHAT, {}), owns_lifecycle=True)
    move = files.put if direction == "up" else files.get
    left, right = (Path(local), remote) if direction == "up" else (remote, Path(local))
    result = await move(left, right)  # type: ignore[arg-type]  # as the direction wants them
    await files.aclose()
    status = Path("/proc/self/status").read_text()
    peak = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    print(
        json.dumps(
            {"seconds": result.seconds, "resumed": result.resumed_bytes, "peak_kb": int(peak)}
        )
    )


# -- measuring
class Memory:
    """Looks at the resident size of a process and all below it until it is stopped."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.peaks_mb: dict[str, float] = {}
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._is_stopped.wait(0.02):
            parents: dict[int, list[int]] = {}
            for entry in Path("/proc").iterdir():
                if entry.name.isdecimal():
                    with suppress(OSError, IndexError):
                        stat = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                        parents.setdefault(int(stat[1]), []).append(int(entry.name))
            todo, depth = [(self._pid, 0)], 0
            while todo:
                pid, depth = todo.pop()
                with suppress(OSError, StopIteration):
                    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                    kb = int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
                    name = ("entry", "server", "call")[min(depth, 2)]
                    self.peaks_mb[name] = max(self.peaks_mb.get(name, 0), kb / 1024)
                todo += [(child, depth + 1) for child in parents.get(pid, [])]

    def stop(self) -> dict[str, float]:
        """Stop looking; return the highest size of each kind of process, in MB."""
        self._is_stopped.set()
        self._thread.join()
        return {name: round(mb) for name, mb in self.peaks_mb.items()}


def curl(url: str, token: str, tool: str, bodies: list[Path], place: Path) -> float:
    """Send these bodies one after the other over one connection; return the seconds."""
    lines = [f'header = "Authorization: Bearer {token}"', "silent", "fail"]
    blocks = []
    for number, body in enumerate(bodies):
        blocks.append(
            "\n".join(
                [
                    *lines,
                    'header = "Content-Type: application/json"',
                    'header = "Expect:"',
                    f'url = "{url}/v1/sandbox/{CHAT}/tool/{tool}"',
                    f'data-binary = "@{body}"',
                    f'output = "{place / f"out-{number}"}"',
                ]
            )
        )
    config = place / "curl.conf"
    config.touch(0o600)
    config.write_text("\nnext\n".join(blocks))
    began = time.perf_counter()
    subprocess.run(["curl", "-K", str(config)], check=True)
    return time.perf_counter() - began


def curl_both(url: str, token: str, source: Path, place: Path) -> tuple[float, float]:
    """The seconds that curl takes up and down."""
    place.mkdir()
    bodies = []
    with source.open("rb") as file:
        for number, piece in enumerate(iter(lambda: file.read(PIECE_BYTES), b"")):
            body = place / f"in-{number}"
            content = base64.b64encode(piece).decode()
            values = {"path": "curl.bin", "content": content, "encoding": "base64"}
            body.write_text(json.dumps({**values, "append": number > 0}))
            bodies.append(body)
    up = curl(url, token, "sandbox_write", bodies, place)
    for number, body in enumerate(bodies):
        at = number * PIECE_BYTES
        body.write_text(json.dumps({"path": "curl.bin", "offset": at, "limit": PIECE_BYTES}))
    down = curl(url, token, "sandbox_read", bodies, place)
    shutil.rmtree(place)
    return up, down


def ours(url: str, token: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a process of ours that moves one file."""
    env = {**os.environ, "IVY_API_KEY": token}
    command = [sys.executable, str(Path(__file__).resolve()), "--transfer", url, *arguments]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> dict[str, float]:
    """Wait for it; return what it printed."""
    out, _ = process.communicate()
    assert process.returncode == 0, "a transfer failed"
    found: dict[str, float] = json.loads(out)
    return found


def cut_often(url: str, token: str, cuts: int, seconds: float, *arguments: str) -> dict[str, float]:
    """Kill a transfer so many times, then let it end."""
    killed = 0
    for _ in range(cuts):
        process = ours(url, token, *arguments)
        try:
            process.wait(1.0 + random.random() * seconds / (cuts + 1) * 1.5)
        except subprocess.TimeoutExpired:
            process.kill()
            killed += 1
        process.communicate()
    return {**finished(ours(url, token, *arguments)), "killed": killed}


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    """Measure, and print one line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--delays", type=int, nargs="*", default=[0, 50])
    parser.add_argument("--cuts", type=int, default=20)
    parser.add_argument("--place", default=None, help="where the files are made")
    parser.add_argument("--transfer", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.transfer:
        asyncio.run(transfer(*given.transfer))
        return
    place = Path(tempfile.mkdtemp(prefix="ivy-files-", dir=given.place))
    try:
        source = place / "source.bin"
        with source.open("wb") as file:
            for _ in range(given.megabytes):
                file.write(os.urandom(1 << 20))
        wanted = digest(source)
        with servers.sandbox(str(place / "root")) as server:
            measure(server, given, place, source, wanted)
    finally:
        shutil.rmtree(place)


def create(server: servers.Sandbox) -> None:
    """Create the chat's sandbox, and wait until it is active."""
    import urllib.request

    def call(path: str, body: dict[str, str] | None) -> dict[str, str]:
        request = urllib.request.Request(
            server.url + path, json.dumps(body).encode() if body else None
        )
        request.add_header("Authorization", f"Bearer {server.token}")
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=30) as answer:
            found: dict[str, str] = json.loads(answer.read())
        return found

    call("/v1/sandbox/create", {"chatId": CHAT, "sessionId": CHAT, "campaignId": CHAT})
    while call(f"/v1/sandbox/{CHAT}/status", None)["status"] != "active":
        time.sleep(0.2)


def measure(
    server: servers.Sandbox, given: argparse.Namespace, place: Path, source: Path, wanted: str
) -> None:
    """Measure with each delay, then with cuts."""
    create(server)
    there, back, mb = place / "root" / CHAT, place / "back.bin", given.megabytes
    memory = Memory(server.pid)
    for delay in given.delays:
        with servers.delayed(server, delay) as url:
            up, down = curl_both(url, server.token, source, place / "curl")
            one = finished(ours(url, server.token, "up", str(source), "ours.bin"))
            two = finished(ours(url, server.token, "down", str(back), "ours.bin"))
            assert digest(there / "ours.bin") == digest(back) == wanted
            for name, theirs, mine in (("up", up, one), ("down", down, two)):
                print(
                    f"{mb} MB {name}, d = {delay} ms: curl {mb / theirs:.0f} MB/s, "
                    f"ours {mb / mine['seconds']:.0f} MB/s, ratio {theirs / mine['seconds']:.2f}, "
                    f"our client's peak {mine['peak_kb'] / 1024:.0f} MB",
                    flush=True,
                )
            for path in (there / "ours.bin", there / "curl.bin", back):
                path.unlink()
    print(f"peak memory of the local sandbox's processes: {memory.stop()} MB", flush=True)
    if not given.cuts:
        return
    with servers.delayed(server, 0) as url:
        for name, local in (("up", source), ("down", back)):
            seconds = one["seconds"] if name == "up" else two["seconds"]
            end = cut_often(url, server.token, given.cuts, seconds, name, str(local), "cut.bin")
            print(f"{name}, killed {end['killed']} times: resumed {end['resumed'] / 2**20:.0f} MB")
        assert digest(there / "cut.bin") == digest(back) == wanted
        left = [path.name for each in (there, place) for path in each.glob(".ivy*")]
        print(f"after all cuts both files are equal; parts left: {left}")


if __name__ == "__main__":
    main()
