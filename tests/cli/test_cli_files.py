"""``jupyter ivy files ls · get · put · rm · export · sync``: words, JSON, exit codes, terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys

import pytest
from sandbox_server import RunningSandbox
from waiting import until


def test_files_go_there_and_back(ivy, server: RunningSandbox, chat: str) -> None:
    """``put`` starts the sandbox; each command prints a line, or JSON with --json."""
    (ivy.home.work / "a.csv").write_text("1,2")
    answer = ivy("files", "put", "a.csv", "inputs/")
    assert answer.returncode == 0, answer
    assert answer.stdout.startswith("Put a.csv → inputs/a.csv: 3 B in ")
    assert (server.root / chat / "inputs/a.csv").read_text() == "1,2"
    (entry,) = json.loads(ivy("files", "ls", "--json", "inputs").stdout)["entries"]
    assert entry["path"] == "inputs/a.csv"
    assert entry["size_bytes"] == 3
    # Settings of the command line go before and after the command's own words.
    answer = ivy("files", "get", "inputs/a.csv", "-r", "out/", f"--Ivy.chat_id={chat}", "--debug")
    assert answer.returncode == 0, answer
    assert (ivy.home.work / "out/a.csv").read_text() == "1,2"
    listed = ivy("files", "manifest", "--json")
    assert json.loads(listed.stdout) == json.loads(ivy("files", "--json").stdout)


def test_exit_codes_tell_wrong_use_from_failure(ivy, server: RunningSandbox, chat: str) -> None:
    """2 and nothing done; 1 and what failed; never a traceback, and with --json an object."""
    for words, code, told in (
        (("get", "--nonsense", "x"), 2, "--nonsense"),
        (("nonsense",), 2, "nonsense"),
        (("ls",), 1, "jupyter ivy create"),
    ):
        answer = ivy("files", *words)
        assert answer.returncode == code, answer
        assert told in answer.stderr, answer
        assert "Traceback" not in answer.stderr
        assert answer.stdout == ""
    answer = ivy("files", "ls", "--json")
    assert json.loads(answer.stdout)["error"]["kind"] == "NoSandboxError"
    server.ready(chat)
    (server.root / chat / "d").mkdir()
    answer = ivy("files", "rm", "-r", "d")
    assert answer.returncode == 2
    assert "add --yes" in answer.stderr
    assert (server.root / chat / "d").is_dir()


def test_help_of_a_command_is_its_own(ivy) -> None:
    """It needs no account."""
    answer = ivy("files", "get", "--help")
    assert answer.returncode == 0
    assert answer.stdout.startswith("usage: jupyter ivy files get")
    assert "--force" in answer.stdout


def test_ctrl_c_in_a_terminal_leaves_what_the_command_goes_on_with(
    ivy, server: RunningSandbox, chat: str
) -> None:
    """One line is rewritten meanwhile; the exit code is 130; the same command goes on."""
    server.ready(chat)
    content = os.urandom(60_000_000)
    (ivy.home.work / "big.bin").write_bytes(content)
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "ivy_kernel.cli", "files", "put", "big.bin"],
        env=ivy.home.environment(ivy.variables),
        cwd=ivy.home.work,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    os.set_blocking(master, False)
    shown = ""

    def read() -> str:
        nonlocal shown
        with contextlib.suppress(OSError):  # nothing more for now, or for ever
            shown += os.read(master, 65536).decode()
        return shown

    try:
        until(lambda: "MB/s" in read(), "progress", 60)
        assert "\r\x1b[K" in shown
        process.send_signal(signal.SIGINT)
        until(lambda: (read(), process.poll())[1] is not None, "its end", 30)
    finally:
        process.kill()
        process.wait()
        read()
        os.close(master)
    assert process.returncode == 130, shown
    assert "jupyter ivy files put big.bin" in shown
    assert "Traceback" not in shown
    answer = ivy("files", "put", "big.bin")
    assert "resumed at" in answer.stdout, answer
    assert (server.root / chat / "big.bin").read_bytes() == content


@pytest.mark.parametrize("end", ["a signal", "no answer"])
@pytest.mark.parametrize("words", [["files", "rm", "-r", "d\x1b[31m"], ["terminate"]])
def test_a_question_ends_at_ctrl_c_and_at_the_end_of_input(
    ivy, server: RunningSandbox, chat: str, words: list[str], end: str
) -> None:
    """Ctrl-C ends at once with 130, Ctrl-D means no; names are shown harmlessly; stdout is free."""
    server.ready(chat)
    (server.root / chat / "d\x1b[31m").mkdir()
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "ivy_kernel.cli", *words],
        env=ivy.home.environment(ivy.variables),
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    os.set_blocking(master, False)
    shown = ""

    def read() -> str:
        nonlocal shown
        with contextlib.suppress(OSError):  # nothing more for now, or for ever
            shown += os.read(master, 65536).decode()
        return shown

    try:
        until(lambda: "[y/N]" in read(), "the question", 20)
        if end == "a signal":
            process.send_signal(signal.SIGINT)
        else:
            os.write(master, b"\x04")
        until(lambda: (read(), process.poll())[1] is not None, "its end", 20)
        stdout = process.communicate()[0].decode()
    finally:
        process.kill()
        process.wait()
        read()
        os.close(master)
    assert process.returncode == (130 if end == "a signal" else 1), shown
    assert "Traceback" not in shown
    assert "\x1b" not in shown + stdout
    assert "[y/N]" not in stdout
    assert (server.root / chat / "d\x1b[31m").is_dir()
    assert server.status(chat)["status"] == "active"


def test_a_reader_that_has_enough_is_no_fault(ivy, server: RunningSandbox, chat: str) -> None:
    """As in ``jupyter ivy files ls | head -1``: no traceback."""
    server.ready(chat)
    (server.root / chat / "a.txt").touch()
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.run(
        [sys.executable, "-m", "ivy_kernel.cli", "files", "ls"],
        env=ivy.home.environment(ivy.variables),
        stdout=writing,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(writing)
    assert process.stderr == b""
    assert process.returncode == 141
