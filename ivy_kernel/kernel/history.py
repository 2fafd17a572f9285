"""The history of this kernel's cells (message spec, "History")."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

Entry = tuple[int, int, Any]
"""Session, line, and input or (input, output)."""


class History:
    """Inputs of the cells that the user ran in this kernel, as session 1."""

    def __init__(self) -> None:
        self._inputs: list[tuple[int, str]] = []

    def add(self, line: int, code: str) -> None:
        """Keep one cell's input.

        Parameters
        ----------
        line
            Its execution count.
        code
            Its source.
        """
        self._inputs.append((line, code))

    def find(
        self,
        access_type: str,
        *,
        output: bool,
        session: int | None,
        start: int | None,
        stop: int | None,
        count: int | None,
        pattern: str | None,
        unique: bool,
    ) -> list[Entry]:
        """Answer a ``history_request``, whose fields these are.

        Parameters
        ----------
        access_type
            ``tail``, ``range`` or ``search``.
        output
            Whether entries have a place for the output.
        session, start, stop
            For ``range``; sessions before this one (1; also 0 and ``None``) are not known.
        count
            For ``tail`` and ``search``: how many at most.
        pattern, unique
            For ``search``.
        """
        if access_type == "tail":
            return self.tail(count, output=output)
        if access_type == "range" and session in (None, 0, 1):
            return self.range(start or 0, stop, output=output)
        if access_type == "search":
            return self.search(pattern or "*", count, output=output, unique=unique)
        return []

    def tail(self, count: int | None, *, output: bool) -> list[Entry]:
        """The last ``count`` inputs, oldest first."""
        chosen = self._inputs[-count:] if count else []
        return [self._entry(line, code, output) for line, code in chosen]

    def range(self, start: int, stop: int | None, *, output: bool) -> list[Entry]:
        """Inputs with ``start <= line < stop``; ``None`` for no end."""
        return [
            self._entry(line, code, output)
            for line, code in self._inputs
            if line >= start and (stop is None or line < stop)
        ]

    def search(self, pattern: str, count: int | None, *, output: bool, unique: bool) -> list[Entry]:
        """The last ``count`` inputs that match a glob pattern."""
        found = [(line, code) for line, code in self._inputs if fnmatchcase(code, pattern)]
        if unique:
            found = list({code: (line, code) for line, code in found}.values())
        chosen = found[-count:] if count else found
        return [self._entry(line, code, output) for line, code in chosen]

    @staticmethod
    def _entry(line: int, code: str, output: bool) -> Entry:
        # Outputs live in the notebook, not here, so an output is always "none known".
        return (1, line, (code, None)) if output else (1, line, code)
