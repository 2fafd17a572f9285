"""The parts of the server that can be tried without one."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ivy_kernel.local_sandbox
from ivy_kernel.local_sandbox.config import (
    Config,
    ConfigError,
    ResultShape,
    RunnerName,
    described,
)
from ivy_kernel.local_sandbox.environment import without_secrets
from ivy_kernel.local_sandbox.handlers import json_bytes
from ivy_kernel.local_sandbox.results import Run
from ivy_kernel.local_sandbox.search import matches_glob
from ivy_kernel.local_sandbox.simulation.platforms import CASES, NESTINGS, RUNNERS, SHAPES
from ivy_kernel.local_sandbox.tools import shaped
from ivy_kernel.local_sandbox.workspace import safe_name


def test_it_imports_nothing_of_the_client() -> None:
    """Both sides of the API share no code, so that a misreading of it shows in tests."""
    directory = Path(ivy_kernel.local_sandbox.__file__).parent
    allowed = {"tornado", "jupyter_client", "msgspec", "psutil", "ivy_kernel", "__future__"}
    for path in directory.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                top = name.partition(".")[0]
                assert top in allowed or top in sys.stdlib_module_names, (path.name, name)
                if top == "ivy_kernel":
                    own = name.startswith("ivy_kernel.local_sandbox")
                    assert own or name == "ivy_kernel._version", (path.name, name)


def test_every_setting_has_a_check_and_a_meaning() -> None:
    """Each default passes its own check, and --help tells of each."""
    text = described()
    types = get_type_hints(Config, include_extras=True)
    assert list(types) == list(Config.__struct_fields__)
    for name, kind in types.items():
        default = getattr(Config(), name)
        assert msgspec.convert(default, kind) == default, name
        assert getattr(Config().merged({name: default}), name) == default
        meaning = kind.__metadata__[-1]
        assert isinstance(meaning, str)
        assert meaning in text


def test_every_choice_of_shape_and_runner_is_there() -> None:
    """The names that the settings allow are those that the simulation has."""
    assert tuple(SHAPES) == get_args(ResultShape)
    assert tuple(RUNNERS) == get_args(RunnerName)


@pytest.mark.parametrize(
    "changes",
    [
        {"nothing": 1},
        {"profile": "x"},
        {"hibernate_seconds": -1},
        {"hibernate_seconds": True},
        {"hibernate_seconds": float("nan")},
        {"expiry_keeps_snapshot": 1},
        {"create_error": 404},
        {"create_error": False},
        {"max_request_bytes": 0},
        {"skew_ms": 1.5},
        {"cap_seconds": {"script": 0}},
        {"cap_seconds": {"other": 1}},
        {"cap_seconds": {"script": None}},
        {"cap_seconds": 5},
        {"chats": {"c": {"owner": 5}}},
        {"chats": {"c": "local"}},
        {"sessions": {"s": 1}},
        {"tokens": {"": "someone"}},
        {"rate_limit": {"per_seconds": 1}},
        {"rate_limit": {"requests": 1, "retry_after": "soon"}},
        {"result_family": "prose"},
        {"result_family": {"files": "text"}},
        {"result_nesting": "deep"},
        {"runner": None},
    ],
)
def test_a_wrong_setting_is_refused_by_name(changes: dict[str, Any]) -> None:
    """The error names the setting and what is allowed, and the configuration stays."""
    config = Config()
    with pytest.raises(ConfigError, match=next(iter(changes))):
        config.merged(changes)
    assert config == Config()


def test_objects_are_merged_and_null_removes() -> None:
    """A change of one key leaves the others, and null takes a chat away."""
    config = Config().merged({"cap_seconds": {"script": 2}, "chats": {"a": {}, "b": {}}})
    assert config.cap_seconds == {"script": 2, "notebook": 300, "files": 300}
    assert config.merged({"chats": {"a": None}}).chats == {"b": {}}
    assert config.merged({"rate_limit": {"requests": 1}}).merged({"rate_limit": None}) == config


def test_shown_settings_hold_no_token() -> None:
    """What /_control shows names the owners only."""
    config = Config().merged({"tokens": {"secret-token": "someone"}})
    assert config.shown()["tokens"] == ["someone"]
    assert "secret-token" not in str(config.shown())


@given(st.lists(st.text(min_size=1, max_size=60), min_size=2, max_size=8, unique=True))
def test_names_of_chats_are_safe_and_distinct(ids: list[str]) -> None:
    """Whatever the ids, the names are single path parts, and distinct in any letter case."""
    names = [safe_name(chat_id) for chat_id in ids]
    assert len({name.lower() for name in names}) == len(ids)
    for name in names:
        assert "/" not in name
        assert not name.startswith(".")
        assert len(name.encode()) <= 64


def test_a_made_name_cannot_be_taken_by_another_chat() -> None:
    """The name made for a strange id is not the name of the chat that is called like it."""
    made = safe_name("A")
    assert safe_name(made) != made
    assert safe_name("plain-chat_1.0") == "plain-chat_1.0"


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("PATH", "/bin", True),
        ("HOME", "/home/me", True),
        ("LC_ALL", "C", True),
        ("http_proxy", "http://proxy:3128", True),
        ("http_proxy", "http://me:word@proxy:3128", False),
        ("IVY_CHAT_ID", "c", False),
        ("recoup_session_id", "s", False),
        ("JPY_SESSION_NAME", "n", False),
        ("JUPYTER_TOKEN", "t", False),
        ("JUPYTER_PATH", "/p", True),
        ("OPENAI_API_KEY", "k", False),
        ("Database_Password", "p", False),
        ("MY_SECRET", "s", False),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/f", False),
        ("PLAIN", "a-long-secret-value", False),
        ("PLAIN", "short", True),
    ],
)
def test_which_variables_are_passed_on(name: str, value: str, kept: bool) -> None:
    """By name, by value, and by the user in an address."""
    assert (name in without_secrets({name: value}, ["a-long-secret-value", "short"])) is kept


_texts = st.text(max_size=30)
_outputs = st.lists(
    st.one_of(
        st.builds(
            lambda name, text: {"output_type": "stream", "name": name, "text": text},
            st.sampled_from(["stdout", "stderr"]),
            _texts,
        ),
        st.builds(
            lambda kind, data: {"output_type": kind, "data": data, "metadata": {}},
            st.sampled_from(["display_data", "execute_result"]),
            st.dictionaries(
                st.sampled_from(["text/plain", "text/html", "image/png", "x/y"]), _texts
            ),
        ),
        st.builds(
            lambda name, value: {
                "output_type": "error",
                "ename": name,
                "evalue": value,
                "traceback": [value],
            },
            _texts,
            _texts,
        ),
    ),
    max_size=5,
)


@given(
    _outputs,
    st.integers(min_value=0, max_value=2),
    st.sampled_from(sorted(SHAPES)),
    st.sampled_from(CASES),
    st.sampled_from(NESTINGS),
)
def test_any_run_can_be_put_into_any_shape(
    outputs: list[dict[str, Any]], exit_code: int, shape: str, case: str, nesting: str
) -> None:
    """No combination of outputs, shape, spelling and nesting fails, and all is JSON."""
    json_bytes(shaped(Run(outputs, exit_code), shape, case, nesting))


def test_what_json_cannot_say_becomes_null() -> None:
    """A result with NaN or infinity is still valid JSON, and lone surrogates do no harm."""
    content = json_bytes({"a": [float("nan"), {"b": float("inf")}], "c": "\ud800"})
    assert content == b'{"a": [null, {"b": null}], "c": "\\ud800"}'


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*.py", "a.py", True),
        ("*.py", "a/b.py", False),
        ("**/*.py", "a.py", True),
        ("**/*.py", "a/b/c.py", True),
        ("a/**", "a/b/c", True),
        ("a/**/c", "a/c", True),
        ("a?c", "abc", True),
        ("a?c", "a/c", False),
        ("[ab].py", "b.py", True),
        ("[!ab].py", "b.py", False),
        ("a[", "a[", True),
        ("a.py", "aXpy", False),
        ("", "a", False),
    ],
)
def test_globs(pattern: str, path: str, matches: bool) -> None:
    """One star and a question mark stay in a directory, two stars go through all."""
    assert matches_glob(path, pattern) is matches
