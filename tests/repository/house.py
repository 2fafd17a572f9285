"""Counts what the size and shape of the package are judged by.

``python tests/repository/house.py`` prints the counts; ``--list`` adds the modules behind them.

A module's importers are the modules of the package that import it, anywhere in the file. A module
that is named in a string alone (a command's, ``python -m``) has none.
"""

from __future__ import annotations

import ast
import io
import re
import statistics
import sys
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "ivy_kernel"

LINES_AT_MOST = 500

_NO_ENTRIES = {"__pycache__", "examples", "labextension", "py.typed", "static"}
"""Entries of the package that are caches, markers, or built from sources elsewhere."""

_DIRECTIVE = re.compile(r"#\s*(noqa|type:|fmt:|ruff:|pragma:)")


@dataclass
class House:
    """The modules of a package, and which of them imports which.

    Parameters
    ----------
    package
        The package's directory.
    """

    package: Path = PACKAGE

    @cached_property
    def modules(self) -> dict[str, Path]:
        """The file of each module, by its full name; a package's name stands for `__init__`."""
        found = {}
        for path in sorted(self.package.rglob("*.py")):
            inside = path.relative_to(self.package.parent)
            if not {"node_modules", "examples"} & set(inside.parts):
                found[".".join(inside.with_suffix("").parts).removesuffix(".__init__")] = path
        return found

    @cached_property
    def trees(self) -> dict[str, ast.Module]:
        """The syntax tree of each module."""
        return {name: ast.parse(path.read_text("utf-8")) for name, path in self.modules.items()}

    @cached_property
    def lines(self) -> dict[str, int]:
        """The number of lines of each module."""
        return {
            name: len(path.read_text("utf-8").splitlines()) for name, path in self.modules.items()
        }

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """The modules of the package that each module imports by name, wherever in it."""
        return {name: set(self._imports(name)) - {name} for name in self.modules}

    @cached_property
    def loads(self) -> dict[str, set[str]]:
        """The modules that each module's imports load: with a module, the packages that it is in.

        Those that the importing module is in itself are left out: they are loaded already.
        """
        return {
            name: targets
            | {
                package
                for target in targets
                for package in self._packages(target) - self._packages(name) - {name}
            }
            for name, targets in self.imports.items()
        }

    def _packages(self, module: str) -> set[str]:
        parts = module.split(".")
        return {".".join(parts[:length]) for length in range(1, len(parts))}

    def _imports(self, module: str) -> Iterator[str]:
        for node in ast.walk(self.trees[module]):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name in self.modules)
            elif isinstance(node, ast.ImportFrom):
                base = self._base(module, node)
                for alias in node.names:
                    submodule = f"{base}.{alias.name}"
                    found = submodule if submodule in self.modules else base
                    if found in self.modules:
                        yield found

    def _base(self, module: str, node: ast.ImportFrom) -> str:
        """Return what a ``from`` import names, in full also when it is relative."""
        if not node.level:
            return node.module or ""
        parts = module.split(".")
        if self.modules[module].name != "__init__.py":
            parts.pop()
        parts = parts[: len(parts) - node.level + 1]
        return ".".join([*parts, node.module] if node.module else parts)

    @cached_property
    def importers(self) -> dict[str, set[str]]:
        """The modules that import each module."""
        found: dict[str, set[str]] = {name: set() for name in self.modules}
        for name, targets in self.imports.items():
            for target in targets:
                found[target].add(name)
        return found

    @property
    def with_one_importer(self) -> dict[str, str]:
        """The modules that exactly one other imports, and that one."""
        return {name: next(iter(who)) for name, who in self.importers.items() if len(who) == 1}

    @property
    def parts_of_their_importer(self) -> dict[str, str]:
        """Modules that fit into the only one that imports them, which starts no program."""
        return {
            module: importer
            for module, importer in self.with_one_importer.items()
            if self.modules[importer].stem not in ("__init__", "__main__")
            and self.lines[module] + self.lines[importer] <= LINES_AT_MOST
        }

    @property
    def too_long(self) -> dict[str, int]:
        """The modules with more lines than we want, and how many they have."""
        return {name: lines for name, lines in self.lines.items() if lines > LINES_AT_MOST}

    @property
    def top_level_entries(self) -> list[str]:
        """Files and directories that a reader sees first."""
        names = {path.name for path in self.package.iterdir() if not path.name.startswith(".")}
        return sorted(names - _NO_ENTRIES)

    @property
    def unlisted(self) -> dict[str, set[str]]:
        """The modules that the map in a package's docstring forgets or invents, by package.

        A map has a line for each module: ``name.py`` or `` `name` ``; packages may be left out.
        """
        found = {}
        for name, path in self.modules.items():
            inside = {child.stem for child in path.parent.glob("[!_]*.py")}
            if path.name != "__init__.py" or not inside or name == self.package.name:
                continue
            text = ast.get_docstring(self.trees[name]) or ""
            listed = set(re.findall(r"^ *`?([a-z]\w*)(?:\.py|`)", text, re.MULTILINE))
            packages = {child.parent.name for child in path.parent.glob("*/__init__.py")}
            wrong = (inside ^ listed) - packages
            if listed and wrong:
                found[name] = wrong
        return found

    @property
    def circles(self) -> list[list[str]]:
        """Groups of modules that import each other, directly or through others."""
        return circles(self.loads)

    @property
    def comment_lines(self) -> int:
        """Lines with a comment; those that only steer a tool do not count."""
        return sum(
            token.type == tokenize.COMMENT and not _DIRECTIVE.match(token.string)
            for path in self.modules.values()
            for token in tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline)
        )


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of a graph that have more than one node.

    Parameters
    ----------
    graph
        The nodes that each node points to.
    """
    reach: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            new = graph[waiting.pop()] - seen
            seen |= new
            waiting += new
        reach[start] = seen
    groups = {
        tuple(sorted(other for other in reach[node] if node in reach[other]))
        for node in graph
        if node in reach[node]
    }
    return [list(group) for group in sorted(groups)]


def main() -> None:
    """Print the counts."""
    house = House()
    modules, total = len(house.modules), sum(house.lines.values())
    one, comments = house.with_one_importer, house.comment_lines
    counts = {
        "modules": f"{modules}",
        "lines": f"{total}",
        "lines of the median module": f"{statistics.median(house.lines.values()):.0f}",
        "top-level entries": f"{len(house.top_level_entries)}",
        f"modules above {LINES_AT_MOST} lines": f"{len(house.too_long)}",
        "modules with exactly one importer": f"{len(one)} ({100 * len(one) / modules:.1f} %)",
        "import circles": f"{len(house.circles)}",
        "lines with a comment": f"{comments} ({100 * comments / total:.1f} %)",
    }
    for name, value in counts.items():
        print(f"{name + ':':36}{value}")
    if "--list" in sys.argv:
        print("\ntop level:", *house.top_level_entries)
        for name, lines in house.too_long.items():
            print(f"{name} has {lines} lines")
        for name, importer in one.items():
            print(f"{name} ({house.lines[name]} lines) is imported by {importer} alone")
        for circle in house.circles:
            print("circle:", *circle)


if __name__ == "__main__":
    main()
