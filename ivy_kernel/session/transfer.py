"""The calls of a transfer: several in flight, of a size that goes through, repeated in patience."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from ivy_kernel.errors import (
    ApiError,
    ChecksumError,
    IvyError,
    NetworkError,
    NoSandboxError,
    NotFoundError,
    NotReadyError,
    RateLimitedError,
    SandboxFileError,
    TransferInterruptedError,
    UntrustedServerError,
)
from ivy_kernel.routes.file_programs import TooLargeError
from ivy_kernel.routes.files import FileAccess, Parcel, Parts
from ivy_kernel.status.clock import monotonic_seconds
from ivy_kernel.status.schedule import Backoff

Result = TypeVar("Result")
Direction = Literal["up", "down"]
Batch = list[Parts]
Span = tuple[int, int]
"""From which byte, and up to which."""

IN_FLIGHT = 4
"""Calls of one transfer at a time: they hide the way to the platform, and keep both ends busy."""

SMALLEST_CHUNK_BYTES = 4 << 10
FIRST_CHUNK_BYTES = 1 << 20
LARGEST_CHUNK_BYTES = 2 << 20
"""Larger ones are hardly faster, and each is held several times while its call is in flight."""

SMALL_BYTES = 512 << 10
"""Files up to this size travel several to a call."""

BATCH_BYTES = 1 << 20
BATCH_FILES = 250

PATIENCE_SECONDS = 60.0
PROGRESS_SECONDS = 0.25

BACKOFF = Backoff(first_seconds=0.2, longest_seconds=5.0, longest_asked_seconds=30.0)


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

    def stored(self, parcel: Parcel, end: str | IvyError) -> None:
        """Count a small file by what became of it; raise what hindered it."""
        if isinstance(end, IvyError):
            raise end
        self.name, size = "/".join(parcel.parts), len(parcel.data)
        if end == "written":
            self.moved(size)
        skipped_bytes = None if end == "written" else size
        sha256 = hashlib.sha256(parcel.data).hexdigest()
        self.file_done(self.name, sha256, skipped_bytes=skipped_bytes)

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

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Say of an interruption how much has arrived, and how it goes on."""
        try:
            yield
        except TransferInterruptedError as error:
            total = "" if self.total_bytes is None else f" of {self.total_bytes}"
            raise TransferInterruptedError(
                f"The transfer was interrupted: {str(error).rstrip('.')}. {self.done_bytes}{total} "
                f"bytes have arrived, and the same command goes on from there."
            ) from error

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


class ChunkSize:
    """How much one call carries: grows while all is well, and shrinks where a call is too large.

    A size that was refused twice is not tried again.

    Parameters
    ----------
    first_bytes, least_bytes, most_bytes
        Where it begins, and its bounds; powers of two.
    """

    def __init__(
        self,
        first_bytes: int = FIRST_CHUNK_BYTES,
        least_bytes: int = SMALLEST_CHUNK_BYTES,
        most_bytes: int = LARGEST_CHUNK_BYTES,
    ) -> None:
        self.current_bytes = first_bytes
        self._least_bytes, self._most_bytes = least_bytes, most_bytes
        self._successes = 0
        self._refusals: dict[int, int] = {}

    def succeeded(self, size_bytes: int) -> None:
        """Note that a chunk went through."""
        if size_bytes < self.current_bytes:
            return
        self._successes += 1
        larger = self.current_bytes * 2
        is_known_bad = any(times >= 2 and size <= larger for size, times in self._refusals.items())
        if self._successes >= 4 and larger <= self._most_bytes and not is_known_bad:
            self.current_bytes, self._successes = larger, 0

    def refused(self, size_bytes: int) -> bool:
        """Note that a chunk was too large; return whether a smaller one may be tried."""
        self._successes = 0
        if size_bytes <= self._least_bytes:
            return False
        if size_bytes <= self.current_bytes:  # else another chunk in flight has told it already
            self._refusals[self.current_bytes] = self._refusals.get(self.current_bytes, 0) + 1
            smaller = 1 << (size_bytes // 2).bit_length() - 1  # a power of two again
            self.current_bytes = max(self._least_bytes, smaller)
        return True


class Calls:
    """The calls of one sandbox's transfers: repeated with patience, of a size that goes through.

    Parameters
    ----------
    access
        The way to the files.
    patience_seconds
        How long calls may fail without any success before that is told.
    """

    def __init__(self, access: FileAccess, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.access = access
        self.patience_seconds = patience_seconds
        self.up = ChunkSize()
        self.down = ChunkSize()
        self.width = IN_FLIGHT if access.writes_anywhere else 1  # appending keeps an order
        self._success_at = 0.0

    async def made(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """Make a call until it succeeds, through faults that may pass.

        Raises
        ------
        TransferInterruptedError
            When none has succeeded for too long.
        NoSandboxError
            When the sandbox has ended, or sleeps.
        TooLargeError, IvyError
            What repeating would not change.
        """
        began, failures = monotonic_seconds(), 0
        while True:
            try:
                result = await work()
            except NotFoundError as error:  # it has ended since it was looked at
                raise NoSandboxError(
                    f"The sandbox does not run any more ({error.detail or 'HTTP 404'}); after %ivy "
                    f"create a transfer that was under way goes on by the same command."
                ) from error
            except IvyError as error:
                if not may_pass(error):
                    raise
                failures += 1
                now = monotonic_seconds()
                if now - max(began, self._success_at) > self.patience_seconds:
                    raise TransferInterruptedError(str(error)) from error
                if isinstance(error, RateLimitedError):
                    self.width = max(1, self.width - 1)
                asked = BACKOFF.asked_seconds(error)
                unit = random.random()  # noqa: S311 - spreads clients, guards nothing
                pause = BACKOFF.pause_seconds(failures, unit) if asked is None else asked
            else:
                self._success_at = monotonic_seconds()
                return result
            await asyncio.sleep(pause)


def may_pass(error: IvyError) -> bool:
    """Whether a call that failed so may succeed when it is made again."""
    if isinstance(error, UntrustedServerError):
        return False
    if isinstance(error, ApiError):
        return error.status_code >= 500 or isinstance(error, RateLimitedError | NotReadyError)
    return isinstance(error, NetworkError | ChecksumError)


class Gaps:
    """The bytes of a file that are still to be moved, handed out in order as chunks."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._spans = sorted(span for span in spans if span[0] < span[1])

    @property
    def total_bytes(self) -> int:
        """How many they are."""
        return sum(end - start for start, end in self._spans)

    def take(self, size_bytes: int) -> Span | None:
        """Return the next chunk of at most this size; ``None`` when nothing is left."""
        if not self._spans:
            return None
        start, end = self._spans[0]
        stop = min(end, (start // size_bytes + 1) * size_bytes)
        if stop == end:
            self._spans.pop(0)
        else:
            self._spans[0] = (stop, end)
        return start, stop

    def give_back(self, span: Span) -> None:
        """Take a chunk back that was not moved."""
        self._spans = sorted([*self._spans, span])


async def move(
    calls: Calls, gaps: Gaps, sizes: ChunkSize, one: Callable[[int, int], Awaitable[None]]
) -> None:
    """Move all gaps by ``one(start, end)``, several chunks in flight.

    Raises
    ------
    IvyError
        The first error of a chunk that is final; the others are cancelled.
    """

    async def worker(number: int) -> None:
        while number < calls.width and (span := gaps.take(sizes.current_bytes)) is not None:
            start, end = span
            try:
                await calls.made(lambda start=start, end=end: one(start, end))  # type: ignore[misc]  # mypy cannot infer a lambda with defaults
            except TooLargeError as error:
                gaps.give_back(span)
                if not sizes.refused(end - start):
                    raise SandboxFileError(
                        f"The platform takes no call of even {end - start} bytes: {error}"
                    ) from error
            else:
                sizes.succeeded(end - start)

    await together(worker(number) for number in range(IN_FLIGHT))


class HasSize(Protocol):
    """A file of known size, here or there."""

    @property
    def size_bytes(self) -> int:
        """Its size."""


async def move_many(
    calls: Calls,
    files: Mapping[Parts, HasSize],
    small: Callable[[Batch], Awaitable[Batch]],
    large: Callable[[Parts], Awaitable[None]],
) -> None:
    """Move all files: small ones in batches, several in flight, then each large one.

    Parameters
    ----------
    calls
        The calls.
    files
        Name → file.
    small
        Moves a batch, and returns what of it found no room.
    large
        Moves one file in chunks.
    """
    few = [
        (each.size_bytes, parts) for parts, each in files.items() if each.size_bytes <= SMALL_BYTES
    ]
    todo = deque(batches(few))

    async def worker(number: int) -> None:
        while number < calls.width and todo:
            batch = todo.popleft()
            try:
                rest = await small(batch)
            except TooLargeError:
                if len(batch) == 1:
                    await large(batch[0])
                    continue
                middle = len(batch) // 2
                todo.extendleft((batch[middle:], batch[:middle]))
            else:
                if rest:
                    todo.appendleft(rest)

    await together(worker(number) for number in range(IN_FLIGHT))
    for parts, each in files.items():
        if each.size_bytes > SMALL_BYTES:
            await large(parts)


def batches(files: Iterable[tuple[int, Parts]]) -> Iterator[Batch]:
    """Yield small files, each with its size, in batches that one call carries."""
    batch: Batch = []
    room = BATCH_BYTES
    for size, parts in files:
        if batch and (size > room or len(batch) >= BATCH_FILES):
            yield batch
            batch, room = [], BATCH_BYTES
        batch.append(parts)
        room -= size
    if batch:
        yield batch


async def together(work: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Run all at once; at the first error, or when cancelled, end all and wait for their ends."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
