"""``jupyter ivy status · create · terminate · files · doctor``: words, JSON and exit codes."""

from __future__ import annotations

import json
import os
import pty
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jupyter_client.manager import KernelManager
from sandbox_server import RunningSandbox

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = [
    *("demo", "run", "login", "logout", "install", "serve", "status", "create", "terminate"),
    *("files", "chats", "doctor"),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_what_a_command_does(ivy, command: str) -> None:
    """``--help`` prints to stdout and succeeds."""
    answer = ivy(command, "--help")
    assert answer.returncode == 0
    assert len(answer.stdout.splitlines()) > 3
    assert "Traceback" not in answer.stdout + answer.stderr


def test_without_a_command_the_list_is_shown(ivy) -> None:
    """``jupyter ivy`` alone names every command, and exits with 2."""
    answer = ivy()
    assert answer.returncode == 2
    for command in COMMANDS:
        assert command in answer.stdout


def test_an_unknown_command_is_a_usage_error(ivy) -> None:
    """It exits with 2, names it, and says which there are."""
    answer = ivy("destroy")
    assert answer.returncode == 2
    assert "'destroy'" in answer.stderr
    assert "terminate" in answer.stderr
    assert answer.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("status", "--nonsense"),
        ("status", "--nonsense=3"),
        ("status", "--IvyCommandApp.nonsense=3"),
        ("status", "--Nonsense.watch=true"),
        ("status", "--config=file.py"),
        ("status", "--until=never"),
        ("serve", "--port=many"),
        ("status", "extra"),
        ("doctor", "x"),
    ],
)
def test_arguments_that_do_not_exist_are_refused(ivy, arguments: tuple[str, ...]) -> None:
    """An option or word that a command does not know is not passed over in silence."""
    answer = ivy(*arguments)
    assert answer.returncode == 2, answer
    assert (
        arguments[1].lstrip("-").rpartition("=")[0 if "=" in arguments[1] else 2] in answer.stderr
    )
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize("option", ["--user", "--sys-prefix", "--prefix"])
def test_install_makes_a_kernel_for_a_jupyter_of_another_environment(
    ivy, option: str, tmp_path: Path
) -> None:
    """A Jupyter that has none of ours finds it, and starts this Python by its full path."""
    place = {"--sys-prefix": str(tmp_path / "own"), "--prefix": str(tmp_path / "other")}.get(option)
    arguments = [f"--prefix={place}"] if option == "--prefix" else [option]
    program = (
        f"import sys; sys.prefix = {place!r} if {option!r} == '--sys-prefix' else sys.prefix\n"
        "from ivy_kernel.cli.app import main; main()"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program, "install", *arguments],
        env=ivy.home.environment({}),
        cwd=ivy.home.work,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 0, answer
    data = Path(place) / "share" / "jupyter" if place else ivy.home.data
    directory = data / "kernels" / "ivy-sandbox"
    assert str(directory) in answer.stdout
    assert shlex.split(answer.stdout.partition("To remove it:")[2]) == ["rm", "-r", str(directory)]
    installed = json.loads((directory / "kernel.json").read_text())
    ours = json.loads((ROOT / "kernelspec" / "kernel.json").read_text())
    assert installed == {**ours, "argv": [sys.executable, *ours["argv"][1:]]}
    assert (directory / "logo-svg.svg").exists()
    # Doctor and the kernel itself, found in that place alone.
    manager = KernelManager(kernel_name="ivy-sandbox")
    manager.kernel_spec_manager.kernel_dirs = [str(directory.parent)]
    manager.start_kernel(env=ivy.home.environment({"PATH": "/nonexistent"}), cwd=ivy.home.work)
    client = manager.client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=60)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_install_takes_one_place(ivy) -> None:
    """Two are a wrong use; a place that may not be written is an error with a reason."""
    assert ivy("install", "--user", "--sys-prefix").returncode == 2
    (ivy.home.work / "file").write_text("")
    answer = ivy("install", f"--prefix={ivy.home.work / 'file'}")
    assert answer.returncode == 1
    assert "cannot be written" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_doctor_sees_a_kernelspec_whose_python_is_gone(ivy) -> None:
    """It names the Python that is missing, and what to do."""
    directory = ivy.home.data / "kernels" / "ivy-sandbox"
    directory.mkdir(parents=True)
    spec = {"argv": ["/gone/python"], "display_name": "Ivy Sandbox", "language": "python"}
    (directory / "kernel.json").write_text(json.dumps(spec))
    answer = ivy("doctor", JUPYTER_PREFER_ENV_PATH="0")
    assert answer.returncode == 1
    (line,) = [line for line in answer.stdout.splitlines() if line.startswith("FAILED")]
    assert "/gone/python" in line
    assert "jupyter ivy install" in line


def test_doctor_speaks_to_users(ivy, server: RunningSandbox, chat: str) -> None:
    """No names of the program's own data structures, and no advice to read what is read."""
    server.ready(chat, f"session-of-{chat}", f"campaign-of-{chat}")
    text = ivy("doctor").stdout
    (tools,) = [line for line in text.splitlines() if line.split()[1:2] == ["tools:"]]
    assert "_" not in tools
    assert "[" not in tools
    assert "see the sentence" not in ivy("doctor", IVY_API_KEY="ivy_wrongwrongwrong").stdout


def test_a_sandboxs_life_from_the_command_line(ivy, server: RunningSandbox, chat: str) -> None:
    """Status none (1), create (0), status active (0), terminate (0), status none (1)."""
    none = ivy("status")
    assert (none.returncode, "state: not started" in none.stdout) == (1, True)
    created = ivy("create")
    assert created.returncode == 0, created
    assert "state: active" in created.stdout
    active = json.loads(ivy("status", "--json").stdout)
    assert active["status"]["state"] == "active"
    assert active["chat_id"] == chat
    assert active["local"] is False
    files = ivy("files", "--json")
    assert (files.returncode, json.loads(files.stdout)) == (0, [])
    refused = ivy("terminate")
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    assert server.status(chat)["status"] == "active"
    terminated = ivy("terminate", "--yes", "--json")
    assert terminated.returncode == 0
    assert json.loads(terminated.stdout)["status"]["state"] == "none"
    assert server.status(chat)["status"] == "none"


def test_files_lists_what_was_exported(ivy, server: RunningSandbox, chat: str) -> None:
    """An exported file is in the list, as text and as JSON."""
    server.ready(chat, f"session-of-{chat}", f"campaign-of-{chat}")
    server.tool(chat, "sandbox_write", {"path": "tree.nwk", "content": "(a,b);"})
    server.tool(chat, "sandbox_export", {"path": "tree.nwk"})
    assert "tree.nwk" in ivy("files").stdout
    assert "tree.nwk" in json.dumps(json.loads(ivy("files", "--json").stdout))


def test_terminate_takes_an_answer_from_a_terminal(ivy, server: RunningSandbox, chat: str) -> None:
    """At a terminal it asks; "n" leaves the sandbox alone, with exit code 1."""
    server.ready(chat, f"session-of-{chat}", f"campaign-of-{chat}")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "ivy_kernel.cli", "terminate"],
        env=ivy.home.environment(ivy.variables),
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(theirs)
    os.write(ours, b"n\n")
    try:
        stdout, stderr = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert process.returncode == 1
    assert "[y/N]" in stderr
    assert "Not terminated." in stdout
    assert server.status(chat)["status"] == "active"


@pytest.mark.parametrize("command", ["status", "create", "files", "doctor"])
def test_a_refused_key_is_an_error_in_words_and_json(ivy, command: str) -> None:
    """Exit code 1; the sentence names the setting; JSON holds the same; the key is not shown."""
    wrong = {"IVY_API_KEY": "ivy_wrongwrongwrong"}
    words, parsed = ivy(command, **wrong), ivy(command, "--json", **wrong)
    assert (words.returncode, parsed.returncode) == (1, 1)
    assert "api_key" in words.stdout + words.stderr
    assert "api_key" in json.dumps(json.loads(parsed.stdout))
    for answer in (words, parsed):
        assert "ivy_wrongwrongwrong" not in answer.stdout + answer.stderr
        assert "Traceback" not in answer.stderr


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"IVY_ROUTE": "teleport"}, ("route", "'teleport'", "IVY_ROUTE", "'notebook'")),
        ({"IVY_CHAT_ID": ""}, ("chat_id", "IVY_CHAT_ID")),
        ({"IVY_API_URL": "http://example.org/api"}, ("api_url", "https")),
    ],
)
def test_a_wrong_setting_exits_with_2(ivy, variables: dict[str, str], words: tuple) -> None:
    """It names setting, value, source and what is allowed, in words and JSON."""
    answer, parsed = ivy("status", **variables), ivy("status", "--json", **variables)
    assert (answer.returncode, parsed.returncode) == (2, 2), answer
    for word in words:
        assert word in answer.stderr
        assert word in json.loads(parsed.stdout)["error"]["message"]


def test_a_key_on_the_command_line_is_refused(ivy) -> None:
    """Every process list would show it."""
    answer = ivy("status", "--Ivy.api_key=ivy_on_the_line")
    assert answer.returncode == 2
    assert "flag" in answer.stderr
    assert "ivy_on_the_line" not in answer.stdout + answer.stderr


def test_flags_beat_the_environment(ivy, server: RunningSandbox) -> None:
    """``--Ivy.chat_id`` wins, and doctor names the flag as its source."""
    answer = ivy("doctor", "--json", "--Ivy.chat_id=from-a-flag")
    settings = json.loads(answer.stdout)["settings"]
    assert settings["chat_id"] == {"value": "from-a-flag", "source": "flag"}
    assert settings["campaign_id"]["source"] == "environment IVY_CAMPAIGN_ID"


def test_doctor_shows_each_setting_and_each_check(ivy, server: RunningSandbox, chat: str) -> None:
    """Values and sources, no key; kernelspec, platform, status, clock, tools: ok, with code 0."""
    server.ready(chat, f"session-of-{chat}", f"campaign-of-{chat}")
    answer = ivy("doctor")
    assert answer.returncode == 0, answer.stdout
    assert f"setting chat_id = {chat} (environment IVY_CHAT_ID)" in answer.stdout
    assert "setting api_key = set (environment IVY_API_KEY)" in answer.stdout
    assert server.token not in answer.stdout + answer.stderr
    for check in ("kernelspec", "settings", "platform", "status", "clock", "tools"):
        assert any(
            line.split()[:2] == ["ok", f"{check}:"] for line in answer.stdout.splitlines()
        ), (check, answer.stdout)
    parsed = json.loads(ivy("doctor", "--json").stdout)
    assert parsed["ok"] is True
    assert parsed["settings"]["api_key"]["value"] is True
    tools = next(check for check in parsed["checks"] if check["check"] == "tools")
    assert "persist" in tools["detail"]


def test_doctor_starts_no_sandbox_and_needs_none(ivy, server: RunningSandbox, chat: str) -> None:
    """With no sandbox, tools are said to be not looked at; nothing is created."""
    before = server.counters()["requests"].get("POST /v1/sandbox/create", 0)
    answer = ivy("doctor")
    assert "not looked at" in answer.stdout
    assert server.counters()["requests"].get("POST /v1/sandbox/create", 0) == before
    assert server.status(chat)["status"] == "none"


def test_doctor_tells_an_unreachable_platform(new_ivy: Callable) -> None:
    """One FAILED line with what to check, code 1."""
    ivy = new_ivy(
        IVY_API_URL="http://127.0.0.1:9/api",
        IVY_API_KEY="k",
        IVY_CHAT_ID="c",
        IVY_CONNECT_TIMEOUT_SECONDS="0.5",
    )
    answer = ivy("doctor")
    assert answer.returncode == 1
    (line,) = [line for line in answer.stdout.splitlines() if line.startswith("FAILED")]
    assert "127.0.0.1:9" in line


def test_doctor_sees_a_wrong_clock(ivy, server: RunningSandbox, chat: str) -> None:
    """An hour of skew is a failed check with its size; and no other fails for it."""
    server.control({"skew_ms": 3_600_000})
    try:
        answer = ivy("doctor", "--json")
    finally:
        server.control({"skew_ms": 0})
    failed = [check for check in json.loads(answer.stdout)["checks"] if check["ok"] is False]
    assert [check["check"] for check in failed] == ["clock"]
    assert "-36" in failed[0]["detail"] or "-35" in failed[0]["detail"]


def test_create_tells_phases_on_stderr(ivy, server: RunningSandbox) -> None:
    """Progress goes to stderr, so that stdout holds the result alone."""
    server.control({"provision_seconds": {"compute": 0.6, "mount": 0.4}})
    try:
        answer = ivy("create", "--json")
        words = ivy("create")
    finally:
        server.control({"provision_seconds": {"compute": 0.0, "mount": 0.0}})
    assert json.loads(answer.stdout)["status"]["state"] == "active"
    assert words.returncode == 0


def test_a_failed_create_says_why(ivy, server: RunningSandbox) -> None:
    """The platform's reason is on stderr; exit code 1."""
    server.control({"provision_fails_in": "mount", "provision_error": "no such bucket"})
    try:
        answer = ivy("create")
    finally:
        server.control({"provision_fails_in": ""})
    assert answer.returncode == 1
    assert "no such bucket" in answer.stderr
