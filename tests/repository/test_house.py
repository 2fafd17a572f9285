"""The package stays a house that a newcomer finds the way in: few rooms, none too large.

``python tests/repository/house.py --list`` prints what is counted here.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from house import House, circles


@pytest.fixture(scope="module")
def house() -> House:
    """The package as it is."""
    return House()


def test_the_package_has_few_modules(house: House) -> None:
    """At most one for 250 lines: what is new joins a neighbour unless it is one concept more."""
    assert len(house.modules) <= sum(house.lines.values()) / 250


def test_the_top_level_is_seen_at_a_glance(house: House) -> None:
    """At most 15 files and directories."""
    assert len(house.top_level_entries) <= 15, house.top_level_entries


def test_no_module_is_too_long(house: House) -> None:
    """No file above 500 lines."""
    assert house.too_long == {}


def test_few_modules_have_exactly_one_importer(house: House) -> None:
    """At most a quarter: what has only one user is a part of it, or too large for that."""
    one = house.with_one_importer
    assert len(one) <= 0.25 * len(house.modules), one


def test_no_module_fits_into_its_only_importer(house: House) -> None:
    """What one module alone needs is a part of it, unless both together were too long."""
    assert house.parts_of_their_importer == {}


def test_no_modules_import_each_other_in_a_circle(house: House) -> None:
    """Imports inside functions count too, and the packages that an imported module is in."""
    assert house.circles == []


def test_the_map_of_each_package_is_true(house: House) -> None:
    """The docstring of each package lists its modules, and no others."""
    assert house.unlisted == {}


def test_importers_are_found_wherever_they_stand(tmp_path: Path) -> None:
    """At the top, in functions, relative; not in strings."""
    package = tmp_path / "pack"
    (package / "room").mkdir(parents=True)
    sources = {
        "__init__": '"""See pack.other."""\nimport logging\nlogging.getLogger("pack.other")',
        "other": "def f():\n    from pack.room import one\n",
        "room/__init__": "from .one import thing",
        "room/one": "from . import two\nname = 'pack.room'",
        "room/two": "import pack.other\ntable = {'a': 'pack.room.one.Thing'}",
    }
    for name, text in sources.items():
        (package / f"{name}.py").write_text(text)
    house = House(package)
    assert house.importers == {
        "pack": set(),
        "pack.other": {"pack.room.two"},
        "pack.room": set(),
        "pack.room.one": {"pack.other", "pack.room"},
        "pack.room.two": {"pack.room.one"},
    }
    assert house.with_one_importer == {
        "pack.other": "pack.room.two",
        "pack.room.two": "pack.room.one",
    }
    assert house.parts_of_their_importer == house.with_one_importer  # they are short
    # The package is a part of the circle: pack.other loads it before the module.
    circle = ["pack.other", "pack.room", "pack.room.one", "pack.room.two"]
    assert house.circles == [circle]


def test_circles_are_found_in_any_graph() -> None:
    """Two circles apart are two; a chain is none."""
    graph = {"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert circles(graph) == [["a", "b"], ["d", "e"]]
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
