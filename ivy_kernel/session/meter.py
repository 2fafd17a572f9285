"""How far a transfer of files has come, as it is told while it goes on and at its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

from ivy_kernel.status.clock import monotonic_seconds

Direction = Literal["up", "down"]

PROGRESS_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class TransferState:
    """How far a transfer has come.

    Parameters
    ----------
    name
        The file under way.
    direction
        ``up`` to the sandbox, ``down`` from it.
    done_bytes, total_bytes
        Of all files; the total is ``None`` while it is not known.
    files_done, files_total
        Files.
    seconds_left
        Estimated from the speed of the last seconds; ``None`` when that tells nothing yet.
    bytes_per_second
        Likewise; 0 at first.
    resumed_bytes
        What an earlier try had brought already.
    method
        Which way is used, in words for the user.
    """

    name: str
    direction: Direction
    done_bytes: int
    total_bytes: int | None
    files_done: int
    files_total: int
    seconds_left: float | None
    bytes_per_second: float
    resumed_bytes: int
    method: str


class Progress(Protocol):
    """Shows how far a transfer has come."""

    def on_progress(self, state: TransferState) -> None:
        """Called a few times a second, and once at the end."""


@dataclass(frozen=True, slots=True)
class TransferResult:
    """What a transfer has done.

    Parameters
    ----------
    files, total_bytes
        All files that are there now, and their size.
    sent_bytes, resumed_bytes
        What was moved now, and what an earlier try had moved.
    skipped
        Files that were there already, and equal.
    seconds
        How long it took.
    method
        Which way was used, in words for the user.
    sha256
        Path in the sandbox → SHA-256 of the file, in hexadecimal.
    left_out
        What was not transferred, each with the reason, such as links.
    """

    files: int
    total_bytes: int
    sent_bytes: int
    resumed_bytes: int
    skipped: int
    seconds: float
    method: str
    sha256: dict[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


class Meter:
    """Counts what a transfer moves, and tells its watcher.

    Parameters
    ----------
    direction, method
        As in `TransferState`.
    progress
        The watcher; ``None`` for none.
    """

    def __init__(self, direction: Direction, method: str, progress: Progress | None) -> None:
        self._direction: Direction = direction
        self._method = method
        self._progress = progress
        self.began = monotonic_seconds()
        self._told = self.began
        self._marks: list[tuple[float, int]] = [(self.began, 0)]
        self.name = ""
        self.total_bytes: int | None = None
        self.files_total = self.files_done = self.skipped = 0
        self.done_bytes = self.sent_bytes = self.resumed_bytes = 0
        self.sha256: dict[str, str] = {}
        self.left_out: list[str] = []

    def moved(self, size_bytes: int) -> None:
        """Count bytes that have arrived."""
        self.done_bytes += size_bytes
        self.sent_bytes += size_bytes
        self.tell()

    def resumed(self, size_bytes: int) -> None:
        """Count bytes that an earlier try has moved."""
        self.done_bytes += size_bytes
        self.resumed_bytes += size_bytes
        self.tell()

    def file_done(self, path: str, sha256: str, *, skipped_bytes: int | None = None) -> None:
        """Count a file; ``skipped_bytes`` is its size where it was there already."""
        self.files_done += 1
        if sha256:
            self.sha256[path] = sha256
        if skipped_bytes is not None:
            self.skipped += 1
            self.done_bytes += skipped_bytes
        self.tell()

    def tell(self, *, is_last: bool = False) -> None:
        """Tell the watcher, but only a few times a second."""
        now = monotonic_seconds()
        if self._progress is None or (now - self._told < PROGRESS_SECONDS and not is_last):
            return
        self._told = now
        self._marks = [*self._marks[-20:], (now, self.sent_bytes)]
        first, last = self._marks[0], self._marks[-1]
        speed = (last[1] - first[1]) / max(last[0] - first[0], 1e-3)
        left = None
        if self.total_bytes is not None and speed > 0:
            left = max(0, self.total_bytes - self.done_bytes) / speed
        state = TransferState(
            name=self.name,
            direction=self._direction,
            done_bytes=self.done_bytes,
            total_bytes=self.total_bytes,
            files_done=self.files_done,
            files_total=self.files_total,
            seconds_left=left,
            bytes_per_second=speed,
            resumed_bytes=self.resumed_bytes,
            method=self._method,
        )
        self._progress.on_progress(state)

    def result(self) -> TransferResult:
        """Tell the end, and return what was done."""
        self.tell(is_last=True)
        return TransferResult(
            files=self.files_done,
            total_bytes=self.done_bytes,
            sent_bytes=self.sent_bytes,
            resumed_bytes=self.resumed_bytes,
            skipped=self.skipped,
            seconds=monotonic_seconds() - self.began,
            method=self._method,
            sha256=self.sha256,
            left_out=tuple(self.left_out),
        )
