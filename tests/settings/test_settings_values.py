"""Which values are taken, and what is said of the others."""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import Any

import pytest
from setting_samples import SECRETS, flags, write_json, write_py
from traitlets.config.loader import KVArgParseConfigLoader

from ivy_kernel.errors import MissingSettingError, SettingError
from ivy_kernel.settings.settings import environment_name, load_settings, setting_names

SEKRET = "ivy_Sekret-0123456789"

WRONG: list[tuple[str, str, str]] = [
    ("api_url", "example.org", "must be a URL that begins with https://, or the word local"),
    ("api_url", "http://example.org", "http:// is for this machine only"),
    ("api_url", "https://example.org?x=1", "may not contain a query"),
    ("recoup_api_url", "local", "must be a URL that begins with https://."),
    ("recoup_api_url", "ftp://example.org", "must be a URL"),
    ("chat_id", "a\nb", "may not contain line breaks"),
    ("chat_id", "..", "must be the id of a chat"),
    ("campaign_id", "a\x7fb", "control characters"),
    ("auto_create", "perhaps", "must be true or false"),
    ("route", "teleport", "allowed are 'auto', 'agent', 'notebook', 'script'"),
    ("route", "Agent", "allowed are 'auto'"),
    ("cell_timeout_seconds", "0", "must be a number, at least 1 and at most 300"),
    ("cell_timeout_seconds", "301", "must be a number, at least 1 and at most 300"),
    ("cell_timeout_seconds", "nan", "must be a number, at least 1 and at most 300"),
    ("cell_timeout_seconds", "5 minutes", "must be a number"),
    ("start_timeout_seconds", "inf", "must be a number, at least 1"),
    ("start_timeout_seconds", "-1", "must be a number, at least 1"),
    ("connect_timeout_seconds", "0", "must be a number, at least 0.1"),
    ("ca_bundle", "/no/such/file.pem", "must name a file of PEM certificates that exists"),
    ("ca_bundle", "/", "must name a file"),
    ("output_limit_bytes", "-1", "must be a whole number, at least 0"),
    ("output_limit_bytes", "1.5", "must be a whole number, at least 0"),
    ("output_limit_bytes", "2 MB", "must be a whole number"),
    ("response_limit_bytes", "999999", "must be a whole number, at least 1000000"),
    ("python_code_field", " ", "must name a field"),
    ("notebook_code_field", "\t", "must name a field"),
    ("local_idle_exit_seconds", "0", "must be a number, at least 1"),
]


def refused(**sources: Any) -> SettingError:
    """The error for these sources."""
    with pytest.raises(SettingError) as caught:
        load_settings(**{"environ": {}, "config_path": [], **sources})
    return caught.value


@pytest.mark.parametrize(("name", "text", "allowed"), WRONG)
def test_a_wrong_value_is_named_with_its_source_and_what_is_allowed(
    name: str, text: str, allowed: str, tmp_path: Path
) -> None:
    """Setting, value, each of the sources that give text, and the fix."""
    path = write_py(tmp_path, f"c.Ivy.{name} = {text!r}\n")
    variable = environment_name(name)
    errors = {
        f"environment {variable}": refused(environ={variable: text}),
        "flag": refused(flags=flags(**{name: text})),
        f"config file {path}": refused(config_path=[str(tmp_path)]),
        "argument": refused(arguments={name: text}),
    }
    for source, error in errors.items():
        sentence = str(error)
        assert error.setting == name
        assert sentence.startswith(f"The setting {name} cannot be {text!r} (set by {source}): ")
        if name not in ("auto_create", "route") or source != "argument":
            assert allowed in sentence
        assert sentence.endswith(".")


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("chat_id", 5, "it must be text"),
        ("chat_id", None, "it must be text"),
        ("chat_id", ["a"], "it must be text"),
        ("auto_create", 2, "true or false"),
        ("auto_create", None, "true or false"),
        ("route", ["auto"], "allowed are 'auto'"),
        ("cell_timeout_seconds", True, "must be a number"),
        ("output_limit_bytes", True, "must be a whole number"),
        ("output_limit_bytes", 1.5, "must be a whole number"),
        ("output_limit_bytes", {}, "must be a whole number"),
        ("output_limit_bytes", None, "must be a whole number"),
        ("api_key", 5, "it must be text"),
    ],
)
def test_a_json_value_of_another_type_is_refused(
    name: str, value: object, allowed: str, tmp_path: Path
) -> None:
    """JSON's true is not the number 1, and null is not "not set"."""
    write_json(tmp_path, {name: value})
    assert allowed in str(refused(config_path=[str(tmp_path)]))


@pytest.mark.parametrize("section", [5, "text", None, [], ["chat_id"], True])
def test_a_section_that_is_no_object_is_refused(section: object, tmp_path: Path) -> None:
    """The file is named."""
    path = write_json(tmp_path, section)
    error = refused(config_path=[str(tmp_path)])
    assert "The section Ivy" in str(error)
    assert str(path) in str(error)


def test_an_unknown_setting_is_refused_with_the_list_of_the_known(tmp_path: Path) -> None:
    """A typing error is not passed over in silence, whichever source it is in."""
    path = write_json(tmp_path, {"chatid": "x"})
    errors = {
        f"config file {path}": refused(config_path=[str(tmp_path)]),
        "flag": refused(flags=flags(chatid="x")),
        "argument": refused(arguments={"chatid": "x"}),
    }
    for source, error in errors.items():
        assert f"There is no setting Ivy.chatid (set by {source})" in str(error)
        for name in setting_names():
            assert name in str(error)


def test_a_flag_that_is_given_twice_is_refused() -> None:
    """Both values are shown, since either may be the one that was meant."""
    twice = KVArgParseConfigLoader(["--Ivy.route=auto", "--Ivy.route=script"]).load_config()
    sentence = str(refused(flags=twice))
    assert "The setting route cannot be ['auto', 'script'] (set by flag)" in sentence


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("bad", ["Sekret-01\nx", "Sekret-01 x", "Sekret-01é", "Sekret-01\udc80"])
def test_a_wrong_key_is_never_shown(name: str, bad: str, tmp_path: Path) -> None:
    """Neither in the sentence nor in anything that a tool prints of the exception."""
    write_py(tmp_path, f"c.Ivy.{name} = {bad!r}\n")
    variable = environment_name(name)
    for sources in (
        {"environ": {variable: bad}},
        {"config_path": [str(tmp_path)]},
        {"arguments": {name: bad}},
    ):
        sentence, shown = _shown(sources)
        assert f"The setting {name} cannot be (not shown)" in sentence
        assert "Sekret" not in sentence + shown


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("api_url", SEKRET),
        ("api_url", f"https://anna:{SEKRET}@example.org"),
        ("api_url", f"https://example.org?key={SEKRET}"),
        ("route", SEKRET),
        ("output_limit_bytes", SEKRET),
        ("api_url", "eyJhbGciOiJIUzI1NiJ9.Sekret"),
    ],
)
def test_a_key_in_the_wrong_setting_is_not_shown_either(name: str, value: str) -> None:
    """IVY_API_URL and IVY_API_KEY are easily mixed up."""
    sentence, shown = _shown({"environ": {environment_name(name): value}})
    assert "(not shown)" in sentence
    assert "Sekret" not in sentence + shown


@pytest.mark.parametrize("other", ["environment", "json", "py"])
def test_a_wrong_value_beside_a_key_does_not_show_the_key(
    other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Local variables of the frames hold the sources; tools that print them see no key."""
    sources: dict[str, Any] = {"config_path": [str(tmp_path)]}
    if other == "environment":
        monkeypatch.setenv("IVY_API_KEY", SEKRET)
        monkeypatch.setenv("IVY_ROUTE", "x")
    elif other == "json":
        write_json(tmp_path, {"api_key": SEKRET, "route": "x"})
    else:
        write_py(tmp_path, f"c.Ivy.api_key = key = {SEKRET!r}\nc.Ivy.route = 'x'\n")
    _, shown = _shown(sources)
    assert "route" in shown
    assert "Sekret" not in shown


def _shown(sources: dict[str, Any]) -> tuple[str, str]:
    """The sentence, and all that tools print: the chain and every frame's local variables."""
    try:
        load_settings(**{"config_path": [], **sources})
    except SettingError as exc:
        error = exc
    parts = [repr(error), repr(vars(error))]
    each: BaseException | None = error
    while each is not None:
        whole = traceback.TracebackException.from_exception(each, capture_locals=True)
        frames = [frame for frame in whole.stack if frame.filename != __file__]
        assert frames
        whole.stack = traceback.StackSummary.from_list(frames)
        parts += list(whole.format())
        each = each.__context__
    return str(error), "\n".join(parts)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("chat_id", "  chat-1\n", "chat-1"),
        ("chat_id", "é 🐍/?#", "é 🐍/?#"),
        ("api_key", f" {SEKRET}\n", SEKRET),
        ("auto_create", "True", True),
        ("auto_create", "0", False),
        ("api_url", "http://localhost:8888/api/", "http://localhost:8888/api"),
        ("api_url", "Local", "local"),
        ("cell_timeout_seconds", "1", 1.0),
        ("cell_timeout_seconds", "3e2", 300.0),
        ("output_limit_bytes", "0", 0),
        ("chat_id", "5", "5"),
    ],
)
def test_a_value_is_taken_with_the_spaces_around_it_gone(
    name: str, text: str, value: object
) -> None:
    """A line break at the end of a pasted key does no harm; ids may hold any character."""
    settings = load_settings(environ={environment_name(name): text}, config_path=[])
    assert getattr(settings, name) == value


def test_a_ca_bundle_may_be_in_the_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``~`` means the home directory, as in any shell."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "ca.pem").write_text("x")
    settings = load_settings(environ={"IVY_CA_BUNDLE": "~/ca.pem"}, config_path=[])
    assert settings.ca_bundle == str(tmp_path / "ca.pem")


def test_a_missing_setting_is_named_with_where_it_was_looked_for_and_the_fix() -> None:
    """Variable, config entry, and a line to copy; no restart is asked for."""
    settings = load_settings(environ={}, config_path=[])
    with pytest.raises(MissingSettingError) as caught:
        settings.require("chat_id")
    sentence = str(caught.value)
    assert caught.value.setting == "chat_id"
    assert "IVY_CHAT_ID" in sentence
    assert '{"Ivy": {"chat_id": "…"}}' in sentence
    assert "no restart is needed" in sentence
    assert load_settings(environ={"IVY_CHAT_ID": "x"}, config_path=[]).require("chat_id") == "x"


def test_no_repr_of_the_settings_shows_a_key() -> None:
    """Printed by accident, they say nothing."""
    settings = load_settings(environ={"IVY_API_KEY": SEKRET}, config_path=[])
    assert SEKRET not in repr(settings) + str(settings) + repr(settings.sources)


JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ1c2VyXzEyMyJ9.c2lnbmF0dXJlLXNpZ25hdHVyZQ"


@pytest.mark.parametrize("key", [SEKRET, JWT, "own-form-of-a-key-0123"])
@pytest.mark.parametrize(
    "name",
    ["chat_id", "campaign_id", "session_id", "recoup_session_id", "api_url", "python_code_field"],
)
def test_a_key_in_another_setting_is_recognised_and_not_shown(
    name: str, key: str, tmp_path: Path
) -> None:
    """Pasted into the wrong line or variable: by its form, or because it is the key that is set."""
    value = f"https://example.org/{key}" if name == "api_url" else key
    (tmp_path / "jupyter_ivy_config.json").write_text(json.dumps({"Ivy": {name: value}}))
    with pytest.raises(SettingError) as caught:
        load_settings(environ={"IVY_API_KEY": key}, config_path=[str(tmp_path)])
    assert caught.value.setting == name
    sentence = str(caught.value)
    assert sentence.startswith(f"The setting {name} (set by config file {tmp_path}")
    assert "holds a key, which belongs into api_key or recoup_api_key alone" in sentence
    assert key not in sentence
    if not key.startswith("own"):  # its form tells, where no key is set
        with pytest.raises(SettingError, match="holds a key"):
            load_settings(environ={environment_name(name): value}, config_path=[])


@pytest.mark.parametrize("value", ["ivy_chat_17", "eyJ", "ivy-project", "chat-0123456789abcdef"])
def test_an_id_that_only_looks_a_little_like_a_key_is_an_id(value: str) -> None:
    """Ids may begin like one."""
    settings = load_settings(environ={"IVY_CHAT_ID": value, "IVY_API_KEY": SEKRET}, config_path=[])
    assert settings.chat_id == value
