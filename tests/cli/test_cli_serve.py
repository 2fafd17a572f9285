"""``jupyter ivy serve``: the local sandbox in the foreground, also with the lives of the cloud."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from conftest import CommandLine
from home import Home
from waiting import until

MINUTE_MS = 60_000


@contextmanager
def serving(home: Home, *arguments: str) -> Iterator[dict[str, Any]]:
    """Run the command for the time of the block; what the server's runtime file says."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ivy_kernel.cli", "serve", *arguments],
        env=home.environment(),
        cwd=home.work,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:

        def started() -> bool:
            assert process.poll() is None, process.communicate()[1]
            return home.sandbox_file.exists()

        until(started, "the server is there")
        yield json.loads(home.sandbox_file.read_text("utf-8"))
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert not home.sandbox_file.exists()
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
        home.stop_sandbox()


def recoup_lifecycle(server: dict[str, Any], session_id: str) -> dict[str, Any]:
    """The deadlines of a session's sandbox, as the server's Recoup route tells them."""
    url = str(server["url"]).removesuffix("/api")
    request = urllib.request.Request(f"{url}/api/sandbox/status?sessionId={session_id}")
    request.add_header("x-api-key", str(server["token"]))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=30) as answer:
        lifecycle: dict[str, Any] = json.loads(answer.read())["lifecycle"]
    return lifecycle


def test_the_cloud_profile_has_deadlines(new_ivy: Callable[..., CommandLine]) -> None:
    """Sandboxes hibernate five minutes after the last cell and expire after half an hour."""
    ivy = new_ivy(IVY_SESSION_ID="of-a-newcomer")
    with serving(ivy.home, "--profile", "cloud") as server:
        created = ivy("create")
        assert created.returncode == 0, created
        assert "about" in created.stderr, "the start shows its estimate"
        lifecycle = recoup_lifecycle(server, "of-a-newcomer")
    left_ms = lifecycle["hibernateAfter"] - lifecycle["serverTime"]
    assert 4 * MINUTE_MS < left_ms <= 5 * MINUTE_MS
    left_ms = lifecycle["sandboxExpiresAt"] - lifecycle["serverTime"]
    assert 29 * MINUTE_MS < left_ms <= 30 * MINUTE_MS


def test_a_sandbox_without_a_profile_lives_on(new_ivy: Callable[..., CommandLine]) -> None:
    """Without --profile there are no deadlines; a second server is refused, and says how."""
    ivy = new_ivy(IVY_SESSION_ID="of-a-newcomer")
    with serving(ivy.home) as server:
        assert ivy("create").returncode == 0
        lifecycle = recoup_lifecycle(server, "of-a-newcomer")
        second = ivy("serve", "--profile", "cloud")
    assert lifecycle["hibernateAfter"] is lifecycle["sandboxExpiresAt"] is None
    assert second.returncode == 1
    assert f"end its process {server['pid']}" in second.stderr


def test_a_profile_that_does_not_exist_is_refused(new_ivy: Callable[..., CommandLine]) -> None:
    """It fails, names the profiles, and starts nothing."""
    ivy = new_ivy()
    answer = ivy("serve", "--profile", "moon")
    assert answer.returncode != 0, answer
    assert "cloud" in answer.stderr
    assert not ivy.home.sandbox_file.exists()
