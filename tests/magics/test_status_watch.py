"""``jupyter ivy status --watch``: lines, JSON, ends and exit codes for scripts."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from magic_driver import magic_variables
from sandbox_server import RunningSandbox, until

PROGRAM = [sys.executable, "-m", "ivy_kernel.cli", "status"]


@pytest.fixture
def chat_id(new_chat: Callable[[], str]) -> str:
    """A chat without a sandbox."""
    return new_chat()


@contextmanager
def watching(
    server: RunningSandbox, chat_id: str, *options: str, **more: Any
) -> Iterator[subprocess.Popen[str]]:
    """A watch that runs, and is ended with the block."""
    variables = {name: str(more.pop(name)) for name in list(more) if name.startswith("IVY_")}
    process = subprocess.Popen(
        [*PROGRAM, *options],
        env={**os.environ, **magic_variables(server, chat_id), **variables},
        stdout=more.pop("stdout", subprocess.PIPE),
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_each_change_is_a_line_until_active(server: RunningSandbox, chat_id: str) -> None:
    """``--until active`` shows that nothing was started, then active, and ends with 0."""
    with watching(server, chat_id, "--watch", "--until", "active") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"Chat {chat_id}: not started\n"
        server.ready(chat_id)
        rest, _ = process.communicate(timeout=90)

    assert process.returncode == 0
    assert rest.splitlines()[-1].startswith(f"Chat {chat_id}: active")


def test_json_has_one_object_a_line(server: RunningSandbox, chat_id: str) -> None:
    """With ``--json`` every line is the canonical status; a sandbox that is gone ends it with 0."""
    with watching(server, chat_id, "--json", "--until", "gone") as process:
        out, _ = process.communicate(timeout=30)

    assert process.returncode == 0
    (line,) = out.splitlines()
    facts = json.loads(line)
    assert facts["chat_id"] == chat_id
    assert facts["status"]["state"] == "none"
    assert facts["status"]["stale"] is False


def test_a_failed_start_ends_until_active_with_1(server: RunningSandbox, chat_id: str) -> None:
    """A script that waits for a sandbox learns that it will not come."""
    server.control({"provision_fails_in": "compute"})
    try:
        server.create(chat_id)
        until(lambda: server.status(chat_id)["status"] == "failed", "the failure")
        with watching(server, chat_id, "--watch", "--until", "active") as process:
            out, _ = process.communicate(timeout=30)
    finally:
        server.control({"provision_fails_in": ""})

    assert process.returncode == 1
    assert "no capacity" in out


def test_a_refused_key_ends_until_with_1(server: RunningSandbox, chat_id: str) -> None:
    """Waiting would have no end, so the error is told, without the key."""
    with watching(server, chat_id, "--until", "active", IVY_API_KEY="ivy_wrong") as process:
        out, err = process.communicate(timeout=30)

    assert process.returncode == 1
    assert "api_key" in err or "IVY_API_KEY" in err
    assert "ivy_wrong" not in out + err


@pytest.mark.parametrize(("options", "code"), [(["--watch"], 0), (["--until", "active"], 130)])
def test_ctrl_c_ends_it(
    server: RunningSandbox, chat_id: str, options: list[str], code: int
) -> None:
    """A plain watch ends with 0; one that waited for something in vain with 130."""
    with watching(server, chat_id, *options) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)

    assert process.returncode == code
    assert "Traceback" not in err


def test_a_wrong_end_is_a_usage_error(server: RunningSandbox, chat_id: str) -> None:
    """An unknown word for ``--until`` is refused, with another exit code than a failure."""
    with watching(server, chat_id, "--until", "soon") as process:
        _, err = process.communicate(timeout=30)

    assert process.returncode not in (0, 130)
    assert "until" in err


def test_a_terminal_shows_a_live_countdown(server: RunningSandbox, chat_id: str) -> None:
    """On a tty one line is written over every second, counting down by itself."""
    server.control({"runtime_seconds": 500})
    try:
        server.ready(chat_id, f"s-{chat_id}")
    finally:
        server.control({"runtime_seconds": None})
    server.control({"runtime_seconds": 500})
    main, side = pty.openpty()
    recoup = {
        "RECOUP_SESSION_ID": f"s-{chat_id}",
        "RECOUP_API_URL": server.url.removesuffix("/api"),
        "RECOUP_API_KEY": server.token,
    }
    before = server.counters()["requests"]
    process = subprocess.Popen(
        [*PROGRAM, "--watch"],
        env={**os.environ, **magic_variables(server, chat_id), **recoup, "COLUMNS": "120"},
        stdout=side,
        stderr=subprocess.PIPE,
    )
    os.close(side)
    shown = b""
    try:
        deadline = time.monotonic() + 30
        while shown.count(b"expires in") < 3 and time.monotonic() < deadline:
            shown += os.read(main, 4096)
        process.send_signal(signal.SIGINT)
        process.wait(30)
    finally:
        process.kill()
        process.communicate()
        os.close(main)
        server.control({"runtime_seconds": None})
    times = [
        part.split(b"expires in ")[1][:12] for part in shown.split(b"\r") if b"expires" in part
    ]

    assert process.returncode == 0
    assert b"\x1b[K" in shown
    assert len(set(times)) >= 2, "it counts"
    asked = sum(server.counters()["requests"].values()) - sum(before.values())
    assert asked <= 4, "it counts by itself, without asking"
