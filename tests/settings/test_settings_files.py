"""Config files that are broken, odd, or changed while we run."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from setting_samples import write_json, write_py

from ivy_kernel.errors import MissingSettingError, SettingError
from ivy_kernel.session.open import open_lifecycle
from ivy_kernel.settings.live import LiveSettings
from ivy_kernel.settings.settings import config_file_names, load_settings, read_config_files

SEKRET = "ivy_Sekret-0123456789"

BROKEN_JSON = {
    "cut off": '{"Ivy": {"api_key": "ivy_Sekret',
    "no JSON": "api_key: ivy_Sekret",
    "a list": '["ivy_Sekret"]',
    "a text": '"ivy_Sekret"',
    "null": "null",
    "a number": "5",
    "empty": "",
    "a wrong version": '{"version": 99, "Ivy": {"api_key": "ivy_Sekret"}}',
}
BROKEN_PY = {
    "syntax": ("c.Ivy.api_key = 'ivy_Sekret\n", 1),
    "name": ("key = 'ivy_Sekret'\nc.Ivy.api_key = ky\n", 2),
    "raise": ("raise ValueError('ivy_Sekret')\n", 1),
    "deep": ("def f(k):\n    raise KeyError(k)\n\nf('ivy_Sekret')\n", 2),
    "exit": ("import sys\nsys.exit('ivy_Sekret')\n", 2),
    "import": ("\n\nimport no_such_module_ivy_Sekret\n", 3),
}


@pytest.mark.parametrize("kind", BROKEN_JSON)
def test_a_broken_json_file_is_named_and_its_text_never_shown(kind: str, tmp_path: Path) -> None:
    """The file and the kind of fault; a key may be in the line that is wrong."""
    path = tmp_path / "jupyter_ivy_config.json"
    path.write_text(BROKEN_JSON[kind])
    with pytest.raises(SettingError, match="cannot be read") as caught:
        load_settings(environ={}, config_path=[str(tmp_path)])
    assert str(path) in str(caught.value)
    assert "Sekret" not in str(caught.value)
    assert "correct it or move it away" in str(caught.value)


@pytest.mark.parametrize("kind", BROKEN_PY)
def test_a_broken_python_file_is_named_with_the_line_and_its_text_never_shown(
    kind: str, tmp_path: Path
) -> None:
    """Whatever it raises, and even when it tries to end the process."""
    text, line = BROKEN_PY[kind]
    path = write_py(tmp_path, text)
    with pytest.raises(SettingError, match="cannot be read") as caught:
        load_settings(environ={}, config_path=[str(tmp_path)])
    assert str(path) in str(caught.value)
    assert f", line {line})" in str(caught.value)
    assert "Sekret" not in str(caught.value)


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    """The fault is told, not guessed around."""
    (tmp_path / "jupyter_ivy_config.json").write_bytes(b'{"Ivy": {"chat_id": "\xff"}}')
    with pytest.raises(SettingError, match="cannot be read"):
        load_settings(environ={}, config_path=[str(tmp_path)])


@pytest.mark.skipif(os.getuid() == 0, reason="root reads every file")
def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    """It is there, so leaving it out in silence would mislead."""
    write_json(tmp_path, {}).chmod(0)
    with pytest.raises(SettingError, match="PermissionError"):
        load_settings(environ={}, config_path=[str(tmp_path)])


def test_directories_that_are_not_there_are_no_fault(tmp_path: Path) -> None:
    """Most of Jupyter's directories do not exist; one in the place of a file is none either."""
    (tmp_path / "jupyter_ivy_config.json").mkdir()
    assert read_config_files([str(tmp_path), str(tmp_path / "no")]) == []
    assert [path.name for path in config_file_names([str(tmp_path)])] == [
        *("jupyter_ivy_config.json", "jupyter_ivy_config.py"),
    ]


def test_a_python_file_that_only_looks_at_a_setting_is_told_so(tmp_path: Path) -> None:
    """``if c.Ivy.chat_id:`` makes an odd value of it, which is named and not used."""
    write_py(tmp_path, "if c.Ivy.chat_id:\n    pass\n")
    with pytest.raises(SettingError, match="chat_id"):
        load_settings(environ={}, config_path=[str(tmp_path)])


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Jupyter's config directory of this test."""
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    return tmp_path


def test_a_corrected_key_is_picked_up_without_a_restart(config: Path) -> None:
    """Even when time stamp and size of the file stay the same."""
    path = write_json(config, {"api_key": "ivy_wrong-key"})
    stamp = path.stat()
    live = LiveSettings()
    assert live.current().api_key == "ivy_wrong-key"
    write_json(config, {"api_key": "ivy_right-key"})
    assert path.stat().st_size == stamp.st_size
    assert live.current().api_key == "ivy_right-key"
    other = config / "new"
    other.write_text(json.dumps({"Ivy": {"api_key": "ivy_third-key"}}))
    os.utime(other, ns=(stamp.st_atime_ns, path.stat().st_mtime_ns))
    other.replace(path)
    assert live.current().api_key == "ivy_third-key"


def test_files_that_come_and_go_are_noticed(config: Path) -> None:
    """A new file, a better one, and none again."""
    live = LiveSettings()
    assert live.current().chat_id == ""
    write_py(config, "c.Ivy.chat_id = 'py'\n")
    assert live.current().chat_id == "py"
    write_json(config, {"chat_id": "json"})
    assert live.current().chat_id == "json"
    for path in config.glob("jupyter_ivy_config.*"):
        path.unlink()
    assert live.current().chat_id == ""


def test_a_file_is_read_once_as_long_as_it_stays(config: Path) -> None:
    """Each call of the platform asks for the key, so this must cost little."""
    write_json(config, {"chat_id": "json"})
    live = LiveSettings()
    assert live.current() is live.current()


def test_a_file_that_breaks_and_is_mended_is_followed(config: Path) -> None:
    """Broken: every use says so, no old value is used. Mended: at once right again."""
    write_json(config, {"chat_id": "good"})
    live = LiveSettings()
    assert live.current().chat_id == "good"
    (config / "jupyter_ivy_config.json").write_text("{")
    for _ in range(2):
        with pytest.raises(SettingError, match="cannot be read"):
            live.current()
    write_json(config, {"chat_id": "mended"})
    assert live.current().chat_id == "mended"


def test_arguments_stay_above_a_file_that_changes(config: Path) -> None:
    """The precedence holds at every reading."""
    live = LiveSettings(arguments={"chat_id": "argument"})
    write_json(config, {"chat_id": "file", "campaign_id": "file"})
    assert (live.current().chat_id, live.current().campaign_id) == ("argument", "file")


def test_a_key_without_a_chat_says_what_is_missing(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a URL without a key likewise; the fix in the file works at once."""
    monkeypatch.setenv("IVY_API_KEY", SEKRET)
    live = LiveSettings()
    with pytest.raises(MissingSettingError, match="chat_id"):
        open_lifecycle(live)
    write_json(config, {"chat_id": "now there"})
    lifecycle = open_lifecycle(live)
    assert (lifecycle.chat_id, lifecycle.local) == ("now there", False)
    monkeypatch.delenv("IVY_API_KEY")
    monkeypatch.setenv("IVY_API_URL", "https://example.org")
    with pytest.raises(MissingSettingError, match="IVY_API_KEY"):
        open_lifecycle(LiveSettings())


def test_with_nothing_set_the_sandbox_is_the_local_one() -> None:
    """Its chat and campaign need no setting, and nothing is started by looking."""
    lifecycle = open_lifecycle(LiveSettings())
    assert lifecycle.local
    assert lifecycle.name == "Local sandbox"
    assert lifecycle.campaign_id
