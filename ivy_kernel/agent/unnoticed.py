"""Requests that a kernel may not have noticed, and when to wake it.

In ipykernel 7.0 to 7.3 a request that arrives while a reply is being sent may stay in the shell
socket, with the kernel idle, until somebody connects to that socket
(https://github.com/ipython/ipykernel/issues/1554). A connection is nothing to a kernel that is
well, so one is made whenever it says nothing to a request.
"""

from __future__ import annotations

FIRST_PAUSE_SECONDS = 0.3
LAST_PAUSE_SECONDS = 20.0


class Unnoticed:
    """Remembers requests until the kernel says something to them, which it does in their order."""

    def __init__(self) -> None:
        self._ids: list[bytes] = []
        self._pause = 0.0
        self._next = 0.0

    def sent(self, message_id: str, now: float) -> None:
        """A request was sent."""
        self._ids.append(b'"%s"' % message_id.encode())
        self._pause = FIRST_PAUSE_SECONDS
        self._next = now + self._pause

    def heard(self, parent: bytes, now: float) -> None:
        """A message came that names this parent (the JSON of its header)."""
        for index, message_id in enumerate(self._ids):
            if message_id in parent:
                del self._ids[: index + 1]
                self._pause = FIRST_PAUSE_SECONDS
                self._next = now + self._pause
                return

    def is_due(self, now: float) -> bool:
        """Whether the kernel is to be woken now; each time it is, the next pause is longer.

        A request that waits behind a long cell looks the same, so this ends after some times.
        """
        if not self._ids or now < self._next:
            return False
        self._pause *= 2
        self._next = now + self._pause
        if self._pause > LAST_PAUSE_SECONDS:
            self._ids.clear()
        return True

    def next_time(self) -> float | None:
        """When to look again; ``None`` when nothing is awaited."""
        return self._next if self._ids else None
