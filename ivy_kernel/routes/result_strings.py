"""The strings in a tool's JSON result, whose shape is undocumented."""

from __future__ import annotations

from collections.abc import Iterator

DEEPEST = 40


def strings_in(value: object, depth: int = 0) -> Iterator[str]:
    """Every string in a JSON value, however nested (to a depth of 40)."""
    if isinstance(value, str):
        yield value
    elif depth < DEEPEST:
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list):
            for item in value:
                yield from strings_in(item, depth + 1)
