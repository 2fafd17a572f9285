"""Imports go down only: the table in ``docs/architecture.md`` is kept by the sources."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from house import House

ROOT = Path(__file__).resolve().parents[2]
HOUSE = House()
PACKAGE = HOUSE.package
ASIDE = "aside"


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Parameters
    ----------
    level
        A number, or ``aside``.
    rooms
        Modules and packages at the top of ours.
    outside
        Packages that they may import beside the standard library; ``None`` for any.
    """

    level: str
    rooms: tuple[str, ...]
    outside: frozenset[str] | None


def table() -> list[Row]:
    """Read the table."""
    text = (ROOT / "docs/architecture.md").read_text("utf-8")
    match = re.search(r"<!-- layers -->\n(.*?)<!-- /layers -->", text, re.DOTALL)
    assert match, "docs/architecture.md has no table of layers"
    head, line, *rows = match[1].splitlines()
    assert head == "| level | rooms | may import beside the standard library |"
    assert set(line) <= set("|-")
    found = []
    for row in rows:
        level, rooms, outside = (cell.strip() for cell in row.strip("|").split("|"))
        names = frozenset(re.findall(r"`(\w+)`", outside))
        assert names or outside in ("nothing", "anything"), row
        found.append(
            Row(
                level,
                tuple(re.findall(r"`(\w+)`", rooms)),
                None if outside == "anything" else names,
            )
        )
    return found


ROW_OF = {room: row for row in table() for room in row.rooms}


def room_of(path: Path) -> str:
    """Return the top-level module or package that a source belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def sources() -> list[Path]:
    """Return every Python source of the package."""
    return sorted(HOUSE.modules.values())


def imports_of(path: Path) -> Iterator[str]:
    """Yield every module that a source imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:  # the agent's modules find each other wherever they have travelled
                assert room_of(path) == "agent", f"{path}: relative import"
                continue
            yield from (
                [f"ivy_kernel.{alias.name}" for alias in node.names]
                if node.module == "ivy_kernel"
                else [node.module or ""]
            )


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_what_its_level_allows(path: Path) -> None:
    """Each import is of a lower or the same level, and of an allowed package."""
    room = room_of(path)
    row = ROW_OF[room]
    for name in imports_of(path):
        top, _, rest = name.partition(".")
        if top in sys.stdlib_module_names:
            continue
        if top != "ivy_kernel":
            assert row.outside is None or top in row.outside, name
            continue
        target = rest.split(".")[0]
        if row.level == ASIDE:
            assert target in (room, "_version"), f"{name}: the local sandbox stands aside"
            continue
        if target not in ROW_OF or target == "__init__":  # a name such as ivy_kernel.__version__
            continue
        assert ROW_OF[target].level != ASIDE, f"{name}: nothing imports the local sandbox"
        assert int(ROW_OF[target].level) <= int(row.level), f"{name} is above {room}"


def test_every_module_has_a_level() -> None:
    """No module escapes the table, and the table names no module that is gone."""
    assert {room_of(path) for path in sources()} == set(ROW_OF)
    assert sum(len(row.rooms) for row in table()) == len(ROW_OF), "a room stands twice"
    assert {row.level for row in table()} == {*map(str, range(6)), ASIDE}


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Not inside a room either, and not by imports in functions."""
    assert HOUSE.circles == []


def test_below_the_kernel_nothing_reads_configuration() -> None:
    """Levels 2 and 3 take plain arguments; only the network's own variables are honoured."""
    for path in sources():
        if ROW_OF[room_of(path)].level in ("2", "3"):
            assert "ivy_kernel.settings.settings" not in set(imports_of(path)), path
            assert not re.search(r"environ[^\n]*(IVY|RECOUP)_", path.read_text("utf-8")), path
