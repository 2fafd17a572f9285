"""Where a setting's value comes from: five sources, one precedence."""

from __future__ import annotations

from pathlib import Path

import pytest
from setting_samples import SAMPLES, SECRETS, default, flags, write_json, write_py

from ivy_kernel.settings.settings import (
    PLATFORM_URL,
    Ivy,
    Source,
    environment_name,
    is_secret,
    load_settings,
    setting_names,
)

NAMES = setting_names()
OPEN_NAMES = [name for name in NAMES if not is_secret(name)]


def test_every_setting_has_a_sample_an_own_variable_and_words() -> None:
    """A new setting cannot be forgotten here, and no two share a variable."""
    assert set(SAMPLES) == set(NAMES)
    variables = [environment_name(name) for name in NAMES]
    assert len(set(variables)) == len(variables)
    assert all(variable.startswith(("IVY_", "RECOUP_")) for variable in variables)
    assert all(Ivy.class_traits()[name].help.endswith(".") for name in NAMES)
    assert SECRETS == ["api_key", "recoup_api_key"]


def test_with_nothing_set_every_value_is_the_default() -> None:
    """Each says so."""
    settings = load_settings(environ={}, config_path=[])
    for name in NAMES:
        assert getattr(settings, name) == default(name)
        assert str(settings.sources[name]) == "default"


@pytest.mark.parametrize("name", NAMES)
def test_a_setting_is_read_from_the_environment(name: str) -> None:
    """The source names the variable."""
    text, value = SAMPLES[name]
    settings = load_settings(environ={environment_name(name): text}, config_path=[])
    assert getattr(settings, name) == value != default(name)
    assert str(settings.sources[name]) == f"environment {environment_name(name)}"


@pytest.mark.parametrize("name", NAMES)
def test_a_setting_is_read_from_a_json_file(name: str, tmp_path: Path) -> None:
    """As a JSON value of its type; the source names the file."""
    _, value = SAMPLES[name]
    path = write_json(tmp_path, {name: value})
    settings = load_settings(environ={}, config_path=[str(tmp_path)])
    assert getattr(settings, name) == value
    assert settings.sources[name] == Source("config file", str(path))


@pytest.mark.parametrize("name", NAMES)
def test_a_setting_is_read_from_a_python_file(name: str, tmp_path: Path) -> None:
    """By the usual ``c.Ivy.name = value``."""
    _, value = SAMPLES[name]
    path = write_py(tmp_path, f"c.Ivy.{name} = {value!r}\n")
    settings = load_settings(environ={}, config_path=[str(tmp_path)])
    assert getattr(settings, name) == value
    assert settings.sources[name] == Source("config file", str(path))


@pytest.mark.parametrize("name", OPEN_NAMES)
def test_a_setting_is_read_from_a_flag(name: str) -> None:
    """As the command line gives it, in text."""
    text, value = SAMPLES[name]
    settings = load_settings(flags=flags(**{name: text}), environ={}, config_path=[])
    assert getattr(settings, name) == value
    assert str(settings.sources[name]) == "flag"


@pytest.mark.parametrize("name", NAMES)
def test_a_setting_is_read_from_an_argument(name: str) -> None:
    """As a value of its type."""
    _, value = SAMPLES[name]
    settings = load_settings(arguments={name: value}, environ={}, config_path=[])
    assert getattr(settings, name) == value
    assert str(settings.sources[name]) == "argument"


def test_argument_beats_flag_beats_file_beats_environment_beats_default(tmp_path: Path) -> None:
    """Taken away one by one, each source uncovers the next."""
    best, second = tmp_path / "best", tmp_path / "second"
    write_json(best, {"chat_id": "json"})
    write_py(best, "c.Ivy.chat_id = 'py'\n")
    write_json(second, {"chat_id": "second json"})
    write_py(second, "c.Ivy.chat_id = 'second py'\n")
    arguments: dict[str, object] = {"chat_id": "argument"}
    flag = flags(chat_id="flag")
    environ = {"IVY_CHAT_ID": "environment"}
    path = [str(best), str(second)]

    def chat_id() -> str:
        return load_settings(
            arguments=arguments, flags=flag, environ=environ, config_path=path
        ).chat_id

    seen = [chat_id()]
    arguments = {"chat_id": None}  # an argument that is not given
    seen.append(chat_id())
    flag = flags()
    for directory in (best, second):
        for ending in ("json", "py"):
            seen.append(chat_id())
            (directory / f"jupyter_ivy_config.{ending}").unlink()
    seen.append(chat_id())
    environ = {"IVY_CHAT_ID": ""}  # an empty variable counts as unset
    seen.append(chat_id())
    assert seen == [
        *("argument", "flag", "json", "py", "second json", "second py"),
        *("environment", ""),
    ]


def test_each_setting_has_a_source_of_its_own(tmp_path: Path) -> None:
    """A file that sets one setting leaves the others to the environment."""
    write_json(tmp_path, {"chat_id": "file"})
    environ = {"IVY_CHAT_ID": "environment", "IVY_CAMPAIGN_ID": "environment"}
    settings = load_settings(
        arguments={"route": "script"}, environ=environ, config_path=[str(tmp_path)]
    )
    assert (settings.chat_id, settings.campaign_id, settings.route) == (
        *("file", "environment", "script"),
    )
    assert [settings.sources[name].kind for name in ("chat_id", "campaign_id", "route")] == [
        *("config file", "environment", "argument"),
    ]


def test_a_file_may_empty_what_the_environment_sets(tmp_path: Path) -> None:
    """An empty text in a config file is a value, and beats the variable."""
    write_json(tmp_path, {"chat_id": ""})
    settings = load_settings(environ={"IVY_CHAT_ID": "x"}, config_path=[str(tmp_path)])
    assert settings.chat_id == ""


def test_jupyters_own_directories_and_environment_are_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without being told, the process's environment and ``jupyter --paths`` are read."""
    write_json(tmp_path, {"chat_id": "from the directory"})
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("IVY_CAMPAIGN_ID", "from the variable")
    settings = load_settings()
    assert settings.chat_id == "from the directory"
    assert settings.campaign_id == "from the variable"


def test_other_sections_and_other_files_are_none_of_ours(tmp_path: Path) -> None:
    """Only ``Ivy`` in ``jupyter_ivy_config`` counts."""
    (tmp_path / "jupyter_config.json").write_text('{"Ivy": {"chat_id": "x"}}')
    (tmp_path / "jupyter_ivy_config.json").write_text('{"Other": {"chat_id": "x", "y": 1}}')
    assert load_settings(environ={}, config_path=[str(tmp_path)]).chat_id == ""


@pytest.mark.parametrize("name", SECRETS)
def test_a_key_by_a_flag_is_refused(name: str) -> None:
    """Every process list would show it; the sentence says what to use instead, and not the key."""
    with pytest.raises(Exception, match="cannot be given by a flag") as caught:
        load_settings(flags=flags(**{name: "ivy_Sekret"}), environ={}, config_path=[])
    assert type(caught.value).__name__ == "SettingError"
    assert environment_name(name) in str(caught.value)
    assert "jupyter_ivy_config.json" in str(caught.value)
    assert "Sekret" not in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "arguments", "local"),
    [
        ({}, {}, True),
        ({"IVY_API_KEY": "ivy_k"}, {}, False),
        ({"IVY_API_URL": "https://example.org"}, {}, False),
        ({"IVY_API_URL": PLATFORM_URL}, {}, False),
        ({"IVY_API_URL": "local"}, {}, True),
        ({"IVY_API_URL": "LOCAL", "IVY_API_KEY": "ivy_k"}, {}, True),
        ({"IVY_API_KEY": "ivy_k"}, {"api_url": "local"}, True),
        ({"IVY_CHAT_ID": "c"}, {}, True),
        ({"RECOUP_API_KEY": "r"}, {}, True),
        ({"IVY_API_KEY": " "}, {}, True),
    ],
)
def test_the_local_sandbox_is_used_without_key_and_url(
    environ: dict[str, str], arguments: dict[str, str], local: bool
) -> None:
    """Or when the word says so; a URL that was set is never ignored in silence."""
    settings = load_settings(environ=environ, arguments=arguments, config_path=[])
    assert settings.is_local is local
