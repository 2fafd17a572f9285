"""``jupyter ivy login · logout · chats``: what is asked, checked, saved and told."""

from __future__ import annotations

import json
import os
import pty
import select
import stat
import subprocess
import sys
import time
from typing import Any

import pytest
from sandbox_server import RunningSandbox

WRONG = "ivy_wrong0key0that0is0refused"


@pytest.fixture
def newcomer(new_ivy, server: RunningSandbox) -> Any:
    """The command line of somebody who has set nothing but the address."""
    return new_ivy(IVY_API_URL=server.url)


def content(ivy: Any) -> Any:
    """The config file."""
    return json.loads(ivy.home.settings_file.read_text())


def test_a_key_from_stdin_is_checked_saved_and_not_shown(newcomer, server: RunningSandbox) -> None:
    """One call saves key, chat and campaign with mode 0600; nothing is printed of the key."""
    answer = newcomer(
        *("login", "--key-from-stdin", "--chat=c-1", "--campaign=p-1", "--json"),
        stdin=f"{server.token}\n",
    )
    assert answer.returncode == 0, answer.stderr
    told = json.loads(answer.stdout)
    assert sorted(told["saved"]) == ["api_key", "campaign_id", "chat_id"]
    assert told["config_file"] == str(newcomer.home.settings_file)
    assert "accepts the key" in told["checked"]
    assert content(newcomer) == {
        "Ivy": {"api_key": server.token, "chat_id": "c-1", "campaign_id": "p-1"}
    }
    assert stat.S_IMODE(newcomer.home.settings_file.stat().st_mode) == 0o600
    assert server.status("c-1")["status"] == "none", "a check starts nothing"
    listed = json.loads(newcomer("chats", "--json").stdout)
    assert listed["default"] == "c-1"
    assert [(row["chat_id"], row["campaign_id"]) for row in listed["chats"]] == [("c-1", "p-1")]
    assert "c-1" in newcomer("chats").stdout
    files = [path for path in newcomer.home.path.rglob("*") if path.is_file()]
    holding = [path for path in files if server.token.encode() in path.read_bytes()]
    assert holding == [newcomer.home.settings_file]
    assert server.token not in answer.stdout + answer.stderr


def test_a_refused_key_or_chat_is_told_and_not_saved(newcomer, server: RunningSandbox) -> None:
    """HTTP 401 and 403 end with exit code 1; the file that is there stays as it is."""
    server.control({"chats": {"theirs": {"owner": "somebody", "campaign": "c"}}})
    newcomer.home.settings_file.write_text('{"Ivy": {"route": "agent"}}')
    before = newcomer.home.settings_file.read_bytes()
    for key, chat, words in ((WRONG, "c-1", "HTTP 401"), (server.token, "theirs", "HTTP 403")):
        answer = newcomer("login", "--key-from-stdin", f"--chat={chat}", stdin=key)
        assert answer.returncode == 1
        assert words in answer.stderr
        assert "Nothing was saved." in answer.stderr
        assert key not in answer.stdout + answer.stderr
        assert newcomer.home.settings_file.read_bytes() == before


def test_without_a_network_it_is_saved_only_if_that_is_wanted(newcomer) -> None:
    """Nothing is saved unchecked, unless ``--no-check`` says so."""
    arguments = ("login", "--key-from-stdin", "--chat=c-1", "--Ivy.api_url=http://127.0.0.1:9/api")
    answer = newcomer(*arguments, stdin=WRONG)
    assert answer.returncode == 1
    assert "--no-check" in answer.stderr
    assert not newcomer.home.settings_file.exists()
    answer = newcomer(*arguments, "--no-check", stdin=WRONG)
    assert answer.returncode == 0, answer.stderr
    # A key goes only where it was given for: the address of the flag is kept with it.
    assert content(newcomer)["Ivy"]["api_url"] == "http://127.0.0.1:9/api"


@pytest.mark.parametrize(
    ("arguments", "stdin", "words"),
    [
        ((), "", "--key-from-stdin"),
        (("--key-from-stdin",), "", "No key came"),
        (("--key-from-stdin",), "ivy_with a space in it", "api_key"),
        (("--key-from-stdin",), WRONG, "chat_id"),
        (("--key-from-stdin", f"--chat={WRONG}"), WRONG, "chat_id"),
        (("--key-from-stdin", "--chat=.."), WRONG, "chat_id"),
        (("--key-from-stdin", "--chat=c", f"--Ivy.api_key={WRONG}"), WRONG, "flag"),
        (("--key-from-stdin", "--chat=c", "--Ivy.api_url=local"), WRONG, "'local'"),
    ],
)
def test_wrong_use_saves_nothing(
    newcomer, arguments: tuple[str, ...], stdin: str, words: str
) -> None:
    """Exit code 2; the sentence names what is wrong, and no key."""
    answer = newcomer("login", *arguments, stdin=stdin)
    assert answer.returncode == 2, answer
    assert words in answer.stderr
    assert "Traceback" not in answer.stderr
    assert WRONG not in answer.stdout + answer.stderr
    assert not newcomer.home.settings_file.exists()


def test_a_broken_config_file_is_named_and_kept(newcomer) -> None:
    """Login and logout name file and line; nothing is overwritten."""
    newcomer.home.settings_file.write_text('{\n"Ivy": {"chat_id": }}')
    for command in (("login", "--key-from-stdin", "--chat=c"), ("logout", "--yes")):
        answer = newcomer(*command, stdin=WRONG)
        assert answer.returncode == 2, answer
        assert "jupyter_ivy_config.json" in answer.stderr
        assert "line 2" in answer.stderr
    assert newcomer.home.settings_file.read_text() == '{\n"Ivy": {"chat_id": }}'


def test_in_a_terminal_it_asks_and_shows_no_key(newcomer, server: RunningSandbox) -> None:
    """Present values are shown, of a key only that it is set; what is typed for it is not echoed."""
    newcomer.home.settings_file.write_text(
        json.dumps({"Ivy": {"api_key": WRONG, "chat_id": "c-old", "campaign_id": "p-old"}})
    )
    newcomer.home.settings_file.chmod(0o644)
    shown = dialogue(
        newcomer,
        ["login"],
        [("Key of the Ivy platform [set", server.token), ("[c-old", ""), ("[p-old", "p-new")]
        + [("Recoup session", "")],
    )
    assert "accepts the key" in shown
    assert "readable by others" in shown
    assert server.token not in shown
    assert WRONG not in shown
    assert content(newcomer) == {
        "Ivy": {"api_key": server.token, "chat_id": "c-old", "campaign_id": "p-new"}
    }


def test_logout_removes_the_keys_alone(newcomer) -> None:
    """It asks; then both keys are gone, and what still sets one is told."""
    newcomer.home.settings_file.write_text(
        json.dumps({"Ivy": {"api_key": WRONG, "recoup_api_key": "r-key-r-key", "chat_id": "c"}})
    )
    refused = newcomer("logout")
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    assert content(newcomer)["Ivy"]["api_key"] == WRONG
    answer = newcomer("logout", "--yes", "--json", IVY_API_KEY=WRONG)
    assert answer.returncode == 0
    told = json.loads(answer.stdout)
    assert told["removed"] == ["api_key", "recoup_api_key"]
    assert any("IVY_API_KEY" in note for note in told["notes"])
    assert content(newcomer) == {"Ivy": {"chat_id": "c"}}
    assert WRONG not in answer.stdout + answer.stderr
    assert "No key" in newcomer("logout").stdout


def test_a_use_of_the_command_line_is_noted(ivy, chat: str) -> None:
    """``create`` puts the chat into the list, with its campaign and the time."""
    assert ivy("create").returncode == 0
    (row,) = json.loads(ivy("chats", "--json").stdout)["chats"]
    assert row["chat_id"] == chat
    assert row["campaign_id"]
    assert row["last_used"].endswith("+00:00")
    assert row["is_default"] is True


def test_doctor_names_login_where_something_is_missing(newcomer) -> None:
    """Without a key, a chat or a campaign the fix is one command."""
    answer = newcomer("doctor", "--no-probe", IVY_API_KEY="ivy_some0key0for0the0doctor")
    (line,) = [line for line in answer.stdout.splitlines() if " chat:" in line]
    assert "jupyter ivy login" in line
    assert "ivy_some" not in answer.stdout


def dialogue(ivy: Any, arguments: list[str], answers: list[tuple[str, str]]) -> str:
    """Run a command in a terminal, answer its questions in order; all that the terminal showed."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "ivy_kernel.cli", *arguments],
        env=ivy.home.environment(ivy.variables),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,  # getpass must not find the terminal of the tests
    )
    os.close(theirs)
    shown = ""
    deadline = time.monotonic() + 60
    try:
        for question, answer in [*answers, ("", "")]:
            asked = shown
            while question not in shown[len(asked) :] or not question:
                assert time.monotonic() < deadline, (question, shown)
                if select.select([ours], [], [], 0.1)[0]:
                    try:
                        shown += os.read(ours, 4096).decode()
                    except OSError:  # the other side has ended
                        break
                elif process.poll() is not None:
                    break
            if question:
                os.write(ours, f"{answer}\n".encode())
        assert process.wait(30) == 0, shown
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return shown
