"""The servers that the benchmarks talk to: local sandboxes, and a proxy that delays."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def free_port() -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def program(command: list[str], env: dict[str, str], *, until: str = "") -> Iterator[str]:
    """Runs a program; yields its first line when that is waited for."""
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE if until else None, text=True
    )
    try:
        yield process.stdout.readline() if process.stdout else ""
    finally:
        process.terminate()
        process.wait(20)


class Sandbox:
    """A local sandbox server that can be asked for its counters."""

    def __init__(self, url: str, token: str, pid: int) -> None:
        self.url = url
        self.token = token
        self.pid = pid

    def control(self) -> dict[str, Any]:
        """Its configuration and counters."""
        request = urllib.request.Request(
            self.url.removesuffix("/api") + "/_control",
            headers={"Authorization": f"Bearer {self.token}"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            found: dict[str, Any] = json.loads(answer.read())
        return found


@contextmanager
def sandbox(root: str, settings: dict[str, Any] | None = None) -> Iterator[Sandbox]:
    """A local sandbox server of our own."""
    token = secrets.token_hex(16)
    env = {**os.environ, "IVY_LOCAL_SANDBOX_TOKEN": token}
    command = [sys.executable, "-m", "ivy_kernel.local_sandbox", "--root", root, "--control"]
    command += ["--config", json.dumps(settings or {})]
    with program(command, env, until="line") as line:
        about = json.loads(line)
        yield Sandbox(about["url"], token, about["pid"])


@contextmanager
def delayed(server: Sandbox, delay_ms: int) -> Iterator[str]:
    """The server's URL behind a proxy that delays each direction by so many milliseconds."""
    port = free_port()
    target = server.url.rsplit(":", 1)[1].split("/")[0]
    proxy = [sys.executable, str(HERE / "delay_proxy.py"), str(port), target, str(delay_ms)]
    with program(proxy, dict(os.environ)):
        time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/api"


def kernel_environment(server: Sandbox, url: str, work: str) -> dict[str, str]:
    """The environment of a kernel that reaches the sandbox by this URL."""
    directories = {f"JUPYTER_{kind}_DIR": f"{work}/{kind.lower()}" for kind in ("RUNTIME", "DATA")}
    return {
        **{key: value for key, value in os.environ.items() if not key.startswith(("IVY_", "JPY_"))},
        **directories,
        "IVY_API_URL": url,
        "IVY_API_KEY": server.token,
        "IVY_CHAT_ID": "benchmark",
        "IVY_CAMPAIGN_ID": "benchmark",
        "IVY_OUTPUT_LIMIT_BYTES": "0",
    }


def create_sandbox(env: dict[str, str]) -> None:
    """Create the chat's sandbox, and wait until it is active."""
    command = [sys.executable, "-m", "ivy_kernel.cli", "create"]
    subprocess.run(command, env=env, check=True, timeout=120, stdout=subprocess.DEVNULL)
