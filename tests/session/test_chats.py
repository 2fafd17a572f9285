"""The list of chats, their names, and settings that are saved into the config file."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ivy_kernel.errors import IvyError, SettingError, UsageError
from ivy_kernel.session import chats
from ivy_kernel.session.chats import (
    change_chat,
    chats_file,
    find_chat,
    forget_chat,
    list_chats,
    note_use,
    save_default,
)
from ivy_kernel.session.private_file import kept_keys, remove_keys, save_settings
from ivy_kernel.settings.live import LiveSettings
from ivy_kernel.settings.settings import Ivy, load_settings

URL = "https://ivy.example/api"
KEY = "ivy_marked0key0that0must0appear0nowhere"


def settings(**values: str) -> Ivy:
    """Settings with a key and an address."""
    return load_settings(arguments={"api_url": URL, "api_key": KEY, "chat_id": "own", **values})


@pytest.fixture
def config() -> Path:
    """The config file, in a directory that is there."""
    path = Path(os.environ["JUPYTER_CONFIG_DIR"]) / "jupyter_ivy_config.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


# The list -----------------------------------------------------------------------------------------
def test_a_chat_is_noted_with_its_campaign_and_time() -> None:
    """What was used last comes first; a use without a campaign keeps the one that is known."""
    note_use(api_url=URL, chat_id="a", campaign_id="c-a")
    note_use(api_url=URL, chat_id="b")
    note_use(api_url=URL, chat_id="a")
    note_use(api_url="local", chat_id="elsewhere")
    found = list_chats(settings())
    assert [chat.chat_id for chat in found] == ["a", "b", "own"]
    assert found[0].campaign_id == "c-a"
    assert found[0].last_used is not None
    assert found[2].last_used is None
    assert stat.S_IMODE(chats_file().stat().st_mode) == 0o600
    assert stat.S_IMODE(chats_file().parent.stat().st_mode) == 0o700


def test_a_chat_is_found_by_id_then_by_name() -> None:
    """Case and spaces around a name do not count; an id comes before a name."""
    note_use(api_url=URL, chat_id="a", campaign_id="c-a")
    change_chat(settings(), "a", name="  Wheat Genomés ")
    for text in ("a", "wheat GENOMÉS", "Wheat Genome\u0301s"):
        found = find_chat(settings(), text)
        assert found is not None
        assert (found.chat_id, found.name) == ("a", "Wheat Genomés")
    assert find_chat(settings(), "A") is None
    note_use(api_url=URL, chat_id="wheat genomés")  # a chat that came later
    found = find_chat(settings(), "wheat genomés")
    assert found is not None
    assert found.chat_id == "wheat genomés"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "empty"),
        (" \t", "empty"),
        ("x" * 101, "at most 100"),
        ("two\nlines", "control characters"),
        ("\x1b[31mred", "control characters"),
        ("turned \u202e round", "control characters"),
        ("half \udc80", "control characters"),
        ("OWN", "the id of a chat"),
        ("b", "the id of a chat"),
        ("Taken", "Chat b has the name 'taken'"),
        (KEY, "not shown"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.x", "not shown"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(name: str, words: str) -> None:
    """The sentence says why; the list is as it was, and a key is not shown."""
    note_use(api_url=URL, chat_id="b")
    change_chat(settings(), "b", name="taken")
    note_use(api_url=URL, chat_id="a")
    before = chats_file().read_bytes()
    with pytest.raises(UsageError, match=words) as caught:
        change_chat(settings(), "a", name=name)
    assert KEY not in str(caught.value)
    assert chats_file().read_bytes() == before


def test_a_name_is_free_at_another_address_and_for_its_own_chat() -> None:
    """Names are unique per address; the same chat may be given its name again."""
    change_chat(settings(), "a", name="Name")
    change_chat(settings(), "a", name="NAME")
    change_chat(settings(api_url="https://other.example/api"), "z", name="name")
    found = find_chat(settings(), "name")
    assert found is not None
    assert (found.chat_id, found.name) == ("a", "NAME")


def test_a_forgotten_chat_is_gone_and_an_unknown_one_is_told() -> None:
    """Forgetting takes it out of the list; of a chat that is not there nothing is claimed."""
    note_use(api_url=URL, chat_id="a")
    forget_chat(settings(), "a")
    assert [chat.chat_id for chat in list_chats(settings())] == ["own"]
    with pytest.raises(UsageError, match="'a'"):
        forget_chat(settings(), "a")


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"chats": 5}', "[" * 100_000, '{"chats": [{"chat_id": 3}, null]}']
)
def test_a_broken_list_is_put_aside(content: str) -> None:
    """Chats are noted anew, and what was there can be looked at."""
    chats_file().parent.mkdir(parents=True)
    chats_file().write_text(content)
    chats_file().chmod(0o600)
    assert [chat.chat_id for chat in list_chats(settings())] == ["own"]
    note_use(api_url=URL, chat_id="a")
    assert [chat.chat_id for chat in list_chats(settings())] == ["a", "own"]
    assert chats_file().with_name("chats.json.unreadable").read_text() == content


def test_where_nothing_can_be_written_a_use_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noting is silent; naming says that it failed, and where."""
    blocked = tmp_path / "data"
    blocked.write_text("a file, where a directory is needed")
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(blocked))
    note_use(api_url=URL, chat_id="a")
    with pytest.raises(IvyError, match=str(blocked)):
        change_chat(settings(), "a", name="A")


def test_of_too_many_chats_the_oldest_without_a_name_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of many chats does not push out what a person has named."""
    monkeypatch.setattr(chats, "CHATS_AT_MOST", 3)
    change_chat(settings(), "named", name="Named")
    for number in range(5):
        note_use(api_url=URL, chat_id=f"chat-{number}")
    assert {chat.chat_id for chat in list_chats(settings())} == {
        *("named", "chat-3", "chat-4", "own"),
    }


def test_programs_that_note_at_once_lose_nothing() -> None:
    """Several processes, a chat each: all are in the list."""
    code = (
        "import sys\nfrom ivy_kernel.session.chats import note_use\nsys.stdin.readline()\n"
        f"for n in range(5): note_use(api_url={URL!r}, chat_id=sys.argv[1] + str(n))"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code, name], stdin=subprocess.PIPE, text=True)
        for name in "pqr"
    ]
    for process in processes:
        process.communicate("\n", timeout=60)
    assert len(list_chats(settings())) == 16


# The config file ----------------------------------------------------------------------------------
def test_settings_are_saved_and_the_rest_of_the_file_stays(config: Path) -> None:
    """Other sections and settings keep their values and their order; the mode is 0600."""
    config.write_text('{"Other": {"é": [1, 2.5]}, "Ivy": {"route": "agent", "chat_id": "old"}}')
    config.chmod(0o600)
    saved = save_settings({"api_key": KEY, "chat_id": "new"})
    assert json.loads(config.read_text()) == {
        "Other": {"é": [1, 2.5]},
        "Ivy": {"route": "agent", "chat_id": "new", "api_key": KEY},
    }
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert saved.notes == ()
    assert KEY not in repr(saved)
    assert LiveSettings().current().chat_id == "new"
    remove_keys()
    assert json.loads(config.read_text())["Ivy"] == {"route": "agent", "chat_id": "new"}
    assert [path.name for path in config.parent.iterdir()] == [config.name]


def test_no_other_user_ever_can_read_what_is_written(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under any umask each file is made with mode 0600, before the first byte is in it."""
    config.write_text("{}")
    config.chmod(0o644)
    modes = []
    replace = Path.replace

    def watched(self: Path, target: Path) -> Path:
        modes.append(stat.S_IMODE(self.stat().st_mode))
        return replace(self, target)

    opened = os.open

    def open_and_look(path: str, flags: int, mode: int = 0o777, **more: int) -> int:
        descriptor = opened(path, flags, mode, **more)
        if flags & os.O_CREAT and config.name in str(path):
            modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return descriptor

    monkeypatch.setattr(Path, "replace", watched)
    monkeypatch.setattr(os, "open", open_and_look)
    before = os.umask(0)
    try:
        saved = save_settings({"api_key": KEY})
    finally:
        os.umask(before)
    assert modes == [0o600, 0o600]
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert "readable by others" in saved.notes[0]


def test_a_link_is_followed_and_stays(config: Path, tmp_path: Path) -> None:
    """The file in one's dotfiles is what is written, also when it is not there yet."""
    target = tmp_path / "dotfiles" / "ivy.json"
    config.symlink_to(target)
    save_settings({"chat_id": "a"})
    save_settings({"campaign_id": "c"})
    assert config.is_symlink()
    assert json.loads(target.read_text()) == {"Ivy": {"chat_id": "a", "campaign_id": "c"}}
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{\n"Ivy": {"api_key": "ivy_secret"},\n}', "line 3"),
        (b"", "line 1"),
        (b'{\n"Ivy": "\xff"}', "line 2"),
        (b"[]", "must be an object"),
        (b'{"Ivy": []}', "must be an object"),
        (b"[" * 100_000, "no valid JSON"),
    ],
)
def test_a_file_that_is_no_json_is_never_overwritten(
    config: Path, content: bytes, words: str
) -> None:
    """The error names file and line, and quotes nothing; the file is as it was."""
    config.write_bytes(content)
    for act in (lambda: save_settings({"api_key": KEY}), remove_keys, kept_keys):
        with pytest.raises(SettingError, match=words) as caught:
            act()
        assert str(config) in str(caught.value)
        assert "ivy_" not in str(caught.value).replace("jupyter_ivy_config", "")
    assert config.read_bytes() == content


def test_what_cannot_be_written_is_told(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory in its place, a link to itself, and a Jupyter without configuration."""
    config.mkdir()
    with pytest.raises(SettingError, match=r"jupyter_ivy_config\.json"):
        save_settings({"chat_id": "a"})
    config.rmdir()
    config.symlink_to(config)
    with pytest.raises(SettingError, match=r"jupyter_ivy_config\.json"):
        save_settings({"chat_id": "a"})
    monkeypatch.setenv("JUPYTER_NO_CONFIG", "1")
    with pytest.raises(SettingError, match="JUPYTER_NO_CONFIG"):
        save_settings({"chat_id": "a"})


def test_other_places_that_set_the_same_are_told(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who wins is told by Jupyter's rules: the .json before the .py, an earlier directory first."""
    python = config.with_suffix(".py")
    python.write_text("c.Ivy.chat_id = 'of the py'\n")
    monkeypatch.setenv("IVY_CAMPAIGN_ID", "of the environment")
    notes = save_settings({"chat_id": "a", "campaign_id": "c"}).notes
    assert [note for note in notes if str(python) in note and "json wins" in note]
    assert [note for note in notes if "IVY_CAMPAIGN_ID" in note and "json wins" in note]
    assert LiveSettings().current().chat_id == "a"
    first = tmp_path / "first"
    first.mkdir()
    (first / "jupyter_ivy_config.py").write_text("c.Ivy.chat_id = 'of the first'\n")
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", str(first))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    notes = save_settings({"chat_id": "b"}).notes
    told = [note for note in notes if str(first) in note]
    assert len(told) == 1
    wins = LiveSettings().current().chat_id == "of the first"
    assert ("and wins" in told[0]) == wins


# The default chat ---------------------------------------------------------------------------------
def test_another_default_brings_its_own_ids(config: Path) -> None:
    """Campaign and sessions belong to a chat: they change with it, and come back with it."""
    own = {"api_url": URL, "api_key": KEY, "chat_id": "a", "campaign_id": "c-a"}
    config.write_text(json.dumps({"Ivy": {**own, "recoup_session_id": "r-a"}}))
    config.chmod(0o600)
    live = LiveSettings()
    note_use(api_url=URL, chat_id="b", campaign_id="c-b")
    save_default(live, "b")
    ivy = json.loads(config.read_text())["Ivy"]
    assert ivy == {**own, "chat_id": "b", "campaign_id": "c-b", "recoup_session_id": ""}
    save_default(live, "a")
    assert json.loads(config.read_text())["Ivy"] == {**own, "recoup_session_id": "r-a"}
    with pytest.raises(UsageError, match="'unknown'"):
        save_default(live, "unknown")
