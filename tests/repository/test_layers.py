"""Imports go down only: the table below is the architecture, and the sources must keep to it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ivy_kernel

PACKAGE = Path(ivy_kernel.__file__).parent

LEVELS = {
    0: ["_version", "errors", "models", "agent"],
    1: ["settings", "status"],
    2: ["api"],
    3: ["routes"],
    4: ["session"],
    5: ["__init__", "cli", "kernel", "magics", "server_extension"],
}
OUTSIDE = {
    0: set(),
    1: {"jupyter_core", "msgspec", "traitlets"},
    2: {"httpx", "msgspec"},
    3: {"msgspec"},
    4: {"jupyter_core", "msgspec", "psutil"},
}
"""Packages that a level may import beside the standard library; level 5 may import any."""

ASIDE = "local_sandbox"
ASIDE_OUTSIDE = {"jupyter_client", "msgspec", "psutil", "tornado", "traitlets", "zmq"}
TRAVELS_IF_THERE = {"zmq"}
"""The agent uses these on the far side when they are importable there."""

LEVEL_OF = {name: level for level, names in LEVELS.items() for name in names}


def sources() -> list[Path]:
    """Every Python source of the package."""
    return sorted(path for path in PACKAGE.rglob("*.py") if "node_modules" not in path.parts)


def unit_of(path: Path) -> str:
    """The top-level module or package that a source belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> Iterator[str]:
    """Every module that a source imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:  # the agent's modules find each other wherever they have travelled
                assert unit_of(path) == "agent", f"{path}: relative import"
                continue
            yield from (
                [f"ivy_kernel.{alias.name}" for alias in node.names]
                if node.module == "ivy_kernel"
                else [node.module or ""]
            )


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_what_its_level_allows(path: Path) -> None:
    """Each import is of a lower or the same level, and of an allowed package."""
    unit = unit_of(path)
    for name in imports_of(path):
        top, _, rest = name.partition(".")
        if top in sys.stdlib_module_names:
            continue
        if top == "ivy_kernel":
            target = rest.split(".")[0]
            if unit == ASIDE:
                assert target in (ASIDE, "_version"), f"{name}: the local sandbox stands aside"
                continue
            assert target != ASIDE, f"{name}: nothing imports the local sandbox"
            target = target if target in LEVEL_OF else "__init__"
            if target == "__init__":  # ivy_kernel.__version__
                continue
            assert LEVEL_OF[target] <= LEVEL_OF[unit], f"{name} is above {unit}"
        elif unit == ASIDE:
            assert top in ASIDE_OUTSIDE, name
        elif unit == "agent":
            assert top in TRAVELS_IF_THERE, name
        elif LEVEL_OF[unit] < 5:
            assert top in OUTSIDE[LEVEL_OF[unit]], name


def test_every_module_has_a_level() -> None:
    """No module escapes the table, and the table names no module that is gone."""
    units = {unit_of(path) for path in sources()} - {ASIDE, "examples"}
    assert units <= set(LEVEL_OF)


def test_below_the_kernel_nothing_reads_configuration() -> None:
    """Levels 2 and 3 take plain arguments; only the network's own variables are honoured."""
    for path in sources():
        if LEVEL_OF.get(unit_of(path)) in (2, 3):
            assert "ivy_kernel.settings.settings" not in set(imports_of(path)), path
            assert not re.search(r"environ[^\n]*(IVY|RECOUP)_", path.read_text("utf-8")), path
