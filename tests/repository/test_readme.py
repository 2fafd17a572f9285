"""The README and the help texts tell the truth about names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ivy_kernel.settings.settings import Ivy, environment_name, is_secret, setting_names

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")


@pytest.mark.parametrize("name", setting_names())
def test_every_setting_is_in_the_readme_table(name: str) -> None:
    """A row holds the setting, its environment variable and its default."""
    rows = [line for line in README.splitlines() if line.startswith(f"| `{name}` ")]
    assert len(rows) == 1, f"{name}: {len(rows)} rows"
    cells = [cell.strip() for cell in rows[0].strip("|").split("|")]
    assert cells[1] == f"`{environment_name(name)}`"
    default = Ivy.class_traits()[name].default_value
    words = str(default).lower() if isinstance(default, bool) else default
    shown = "none" if default == "" else f"`{words}`"
    assert cells[2] == shown
    assert not is_secret(name) or "config" in cells[3]


def test_the_readme_names_no_setting_that_does_not_exist() -> None:
    """Every row of the table is a setting."""
    rows = re.findall(r"^\| `(\w+)` \| `(?:IVY|RECOUP)_", README, re.MULTILINE)
    assert sorted(rows) == sorted(setting_names())


def test_the_readme_shows_every_command() -> None:
    """Each command of the command line is mentioned."""
    from ivy_kernel.cli.app import IvyApp

    for command in IvyApp.subcommands:
        assert f"jupyter ivy {command}" in README, command


def test_the_changelog_has_this_version() -> None:
    """The version that the package says has an entry."""
    from ivy_kernel import __version__

    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text("utf-8")
