"""How much one answer may hold, and whether it must be packed: learned from the answers. Pure."""

from __future__ import annotations

SMALLEST_LIMIT_CHARS = 2_048
FIRST_LIMIT_CHARS = 1 << 20
LARGEST_LIMIT_CHARS = 16 << 20
SIZE_GROWTH = 4
FULL = 0.75
"""An answer is full when it takes this share of its limit: there may be more where it came from."""

QUICK_SECONDS = 0.5
SLOW_SECONDS = 3.0
"""On a slow line large answers only keep others, and what the user waits for, from coming."""

FULL_ANSWERS_BEFORE_MORE = 20


class Portions:
    """Begins with what most tools print whole, and grows for as long as that goes well.

    Each call costs a round trip and a process in the sandbox, so that large outputs travel in few
    large answers; how much a tool prints is documented nowhere.
    """

    def __init__(self) -> None:
        self.limit_chars = FIRST_LIMIT_CHARS
        self.may_be_plain = True
        self._printed_chars = LARGEST_LIMIT_CHARS
        self._borne_chars = LARGEST_LIMIT_CHARS
        self._whole_chars = 0
        self._full_answers = 0

    def arrived(self, size_chars: int, took_seconds: float) -> None:
        """An answer has arrived whole, after this time from when there was something to tell."""
        self._whole_chars = max(self._whole_chars, size_chars)
        if took_seconds > SLOW_SECONDS:
            if self.limit_chars > FIRST_LIMIT_CHARS:
                self.limit_chars = max(FIRST_LIMIT_CHARS, self.limit_chars // 2)
        elif size_chars >= FULL * self.limit_chars:
            self._full_answers += 1
            if self._full_answers % FULL_ANSWERS_BEFORE_MORE == 0:
                self._borne_chars = min(LARGEST_LIMIT_CHARS, self._borne_chars * 2)
            if took_seconds < QUICK_SECONDS:
                grown = min(self.limit_chars * SIZE_GROWTH, self._printed_chars, self._borne_chars)
                self.limit_chars = max(self.limit_chars, grown)

    def cut(self, size_chars: int) -> None:
        """The tool has cut what it printed; so much of it has arrived. That stays so."""
        smaller = min(self.limit_chars // 2, int(size_chars * 0.9))
        if self._whole_chars < self.limit_chars:
            smaller = max(smaller, self._whole_chars)
        else:
            self._whole_chars = 0
        self.limit_chars = self._printed_chars = max(SMALLEST_LIMIT_CHARS, smaller)

    def changed(self, size_chars: int, *, was_plain: bool) -> None:
        """The tool has changed what it printed: plain text, or the middle of too long a one."""
        if was_plain:
            self.may_be_plain = False
        else:
            self.cut(size_chars)

    def failed(self) -> None:
        """A large answer was due, and its call has failed: perhaps something does not bear it."""
        if self.limit_chars > FIRST_LIMIT_CHARS:
            self._borne_chars = max(FIRST_LIMIT_CHARS, self.limit_chars // 2)
            self.limit_chars = FIRST_LIMIT_CHARS
            self._full_answers = 0
