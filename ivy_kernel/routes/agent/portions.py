"""How much one answer may hold, and whether it must be packed: learned from the answers. Pure."""

from __future__ import annotations

SMALLEST_LIMIT_CHARS = 2_048
FIRST_LIMIT_CHARS = 1 << 20
LARGEST_LIMIT_CHARS = 16 << 20
GROWTH = 4
FULL = 0.75
"""An answer is full when it takes this share of its limit: there may be more where it came from."""


class Portions:
    """Begins with what most tools print whole, and grows for as long as that goes well.

    Each call costs a round trip and a process in the sandbox, so that large outputs travel in few
    large answers; how much a tool prints is documented nowhere.
    """

    def __init__(self) -> None:
        self.limit_chars = FIRST_LIMIT_CHARS
        self.may_be_plain = True
        self._ceiling_chars = LARGEST_LIMIT_CHARS

    def arrived(self, size_chars: int) -> None:
        """An answer has arrived whole."""
        if size_chars >= FULL * self.limit_chars:
            grown = self.limit_chars * GROWTH
            self.limit_chars = max(self.limit_chars, min(grown, self._ceiling_chars))

    def truncated(self, size_chars: int) -> None:
        """The tool has cut, or changed, what it printed; so much of it has arrived."""
        self.may_be_plain = False
        smaller = min(self.limit_chars // 2, int(size_chars * 0.9))
        self.limit_chars = self._ceiling_chars = max(SMALLEST_LIMIT_CHARS, smaller)

    def failed(self) -> None:
        """A call has failed otherwise: perhaps something on the way does not bear large answers."""
        if self.limit_chars > FIRST_LIMIT_CHARS:
            self._ceiling_chars = max(FIRST_LIMIT_CHARS, self.limit_chars // 2)
            self.limit_chars = FIRST_LIMIT_CHARS
