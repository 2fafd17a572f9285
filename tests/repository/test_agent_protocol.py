"""The page about the agent's protocol gives the limits that the code has."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs/agent-protocol.md"
UNITS = {"": 1, "s": 1, "min": 60, "h": 3600, "MiB": 1 << 20}
ROW = re.compile(r"^\| `([\w/]+)\.py` \| (.*) \|$", re.MULTILINE)
LIMIT = re.compile(r"`([A-Z_]+)` ([\d.]+) ?(\w*) \(")


def test_every_limit_on_the_page_is_the_one_in_the_code() -> None:
    """Constants that are renamed or changed are so on the page too."""
    checked = 0
    for path, limits in ROW.findall(PAGE.read_text("utf-8")):
        module = importlib.import_module("ivy_kernel." + path.replace("/", "."))
        for name, number, unit in LIMIT.findall(limits):
            assert getattr(module, name) == float(number) * UNITS[unit], f"{path}.py: {name}"
            checked += 1
    assert checked > 30


def test_every_module_on_the_page_exists() -> None:
    """Modules are named by their path in the package, or by their name after such a path."""
    root = PAGE.parents[1]
    for path in re.findall(
        r"`((?:ivy_kernel/)?(?:routes/)?agent/[\w/]*(?:\.py)?)`", PAGE.read_text()
    ):
        assert (root / "ivy_kernel" / path.removeprefix("ivy_kernel/")).exists(), path
