"""Settings and durations in words."""

from __future__ import annotations

import pytest
from setting_samples import SAMPLES, SECRETS

from ivy_kernel.session.describe import duration_words, settings_table
from ivy_kernel.settings.settings import environment_name, load_settings, setting_names


def test_the_table_shows_every_setting_with_its_source_and_no_key() -> None:
    """Keys are set or not set, and that is all one can learn."""
    environ = {environment_name(name): text for name, (text, _) in SAMPLES.items()}
    table = settings_table(load_settings(environ=environ, config_path=[]))
    lines = {line.split()[0]: line for line in table.splitlines()[1:]}
    assert set(lines) == set(setting_names())
    for name, (text, value) in SAMPLES.items():
        assert environment_name(name) in lines[name]
        assert (str(value) in lines[name]) == (name not in SECRETS)
        if name in SECRETS:
            assert text not in table
            assert lines[name].split()[1] == "set"
    empty = settings_table(load_settings(environ={}, config_path=[]))
    assert "cells run in: local sandbox" in empty
    assert all("not set" in line for line in empty.splitlines() if line.startswith("api_key"))


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "unknown"),
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (245, "4 min 05 s"),
        (3600, "1 h 00 min"),
        (90_061, "25 h 01 min"),
    ],
)
def test_a_duration_is_said_as_people_say_it(seconds: float | None, words: str) -> None:
    """Seconds, minutes, hours."""
    assert duration_words(seconds) == words
