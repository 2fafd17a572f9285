"""A cell's messages on their way to the front end: coalesced, throttled, and limited in length.

Coalesced: one message a line would flood the front end, and above 1,000 queued messages ZMQ drops
them. Throttled: Jupyter Server drops stream output above 1 MB/s and 1,000 messages/s, measured over
3 s (``iopub_data_rate_limit``, ``iopub_msg_rate_limit``, ``rate_limit_window``), and counts anew
when the kernel turns idle. Limited: beyond a limit the head and the tail of a cell's text are
shown, with a count of what is not, and all of it is kept in a file (`OutputLimit`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import msgspec
from jupyter_core.paths import jupyter_data_dir

from ivy_kernel.models import Json, Message, Sink, sendable
from ivy_kernel.session.private_file import KeptText

COALESCE_SECONDS = 0.01
"""Stream text that follows an output within this time is joined to one message."""
COALESCE_BYTES = 256_000
"""No more text than this in one message, so that it fits into a front end's window."""

_CLEARING = frozenset({"display_data", "execute_result", "error"})
"""Messages that, like streams, make a front end carry out a ``clear_output(wait=True)``."""


@dataclass(frozen=True, slots=True)
class Rate:
    """The most that may be sent within a sliding window of time.

    Parameters
    ----------
    window_seconds, window_bytes, window_messages
        At most so many bytes of stream text and so many messages in any window.
    """

    window_seconds: float = 3.0
    window_bytes: int = 2_700_000
    window_messages: int = 2_700


JUPYTER_SERVER_RATE = Rate()
"""A tenth below Jupyter Server's defaults."""


def wire_bytes(text: str) -> int:
    """Length of a text as JSON, which is what Jupyter Server counts."""
    try:
        return len(msgspec.json.encode(text))
    except UnicodeEncodeError:  # a lone surrogate; at most six bytes a character, as an escape
        return 6 * len(text)


class OutputThrottle:
    """Takes a cell's messages as a sink and hands them on in order, no faster than a rate.

    Parameters
    ----------
    send
        Hands one message to the front end.
    rate
        The most that the front end takes; ``None`` for no limit.
    limit_bytes
        Stream text shown per cell, in UTF-8 bytes; 0 for no limit.
    spill_directory
        Directory for the whole text of a cell that is longer than that.
    """

    def __init__(
        self,
        send: Sink,
        *,
        rate: Rate | None,
        limit_bytes: int,
        spill_directory: Path,
    ) -> None:
        self._send = send
        self._rate = rate
        # Text is held until it is released as one message; the queue then waits for the rate.
        self._queue: deque[Message] = deque()
        self._held: list[str] = []
        self._held_message: Message | None = None
        self._held_bytes = 0
        self._sent: deque[tuple[float, int]] = deque()
        self._sent_bytes = 0
        self._last_sent = 0.0
        self._sender: asyncio.Task[None] | None = None
        self._clear_due = False
        self._spill_directory = spill_directory
        self._limit = OutputLimit(limit_bytes, spill_directory)

    def __call__(self, message: Message) -> None:
        """Take one message. Must be called on the event loop."""
        if self._clear_due and (message.msg_type == "stream" or message.msg_type in _CLEARING):
            self._clear()
        if message.msg_type == "stream":
            for shown in self._limit.take(message):
                self._hold(shown)
        else:
            if message.msg_type == "clear_output":
                self._clear_due = True
                if not message.content.get("wait"):
                    self._clear()
            self._release()  # text that came before it must also be shown before it
            self._queue.append(message)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.ensure_future(self._run())

    async def flush(self) -> None:
        """Send all that was taken so far; more may follow."""
        self._release()
        await self._drain()

    async def finish(self) -> None:
        """Send all, the tail of a long text included. The next cell starts anew.

        When it is cancelled, text that is not sent yet is counted and dropped: later it would be
        shown under another cell.
        """
        for message in self._limit.finish():
            self._hold(message)
        self._release()
        self._clear_due = False
        sender, self._sender = self._sender, None
        try:
            if sender is not None:
                await sender
            await self._drain()
        except asyncio.CancelledError:
            self._cut_short()
            raise

    def _clear(self) -> None:
        self._clear_due = False
        self._limit.forget()

    def _cut_short(self) -> None:
        dropped_bytes = 0
        queue, self._queue = self._queue, deque()
        for message in queue:
            if message.msg_type == "stream":
                dropped_bytes += len(message.content["text"].encode("utf-8", "replace"))
            else:  # other messages are sent all the same: later ones may refer to them
                self._hand_on(message)
        if dropped_bytes:
            note = f"\n[… interrupted: {dropped_bytes:,} bytes of output are not shown here …]\n"
            self._send(Message("stream", {"name": "stderr", "text": note}))

    def _hold(self, message: Message) -> None:
        text = str(message.content.get("text", ""))
        held = self._held_message
        if held is not None and (
            held.content.get("name") != message.content.get("name")
            or held.parent_header != message.parent_header
            or self._held_bytes > COALESCE_BYTES
        ):
            self._release()
        if self._held_message is None:
            self._held_message = message
        self._held.append(text)
        self._held_bytes += len(text)

    def _release(self) -> None:
        message, text = self._held_message, "".join(self._held)
        self._held_message, self._held, self._held_bytes = None, [], 0
        if message is None or not text:
            return
        if not text.isascii():
            text = sendable(text)
        # Larger pieces than the front end takes in a window would never get through.
        for start in range(0, len(text), COALESCE_BYTES):
            piece = {**message.content, "text": text[start : start + COALESCE_BYTES]}
            self._queue.append(dataclasses.replace(message, content=piece))

    async def _run(self) -> None:
        # Text that comes while the front end's window is full is held, and must be sent too.
        while self._queue or self._held_message is not None:
            # The first output after a pause goes at once; only what follows closely is coalesced.
            await asyncio.sleep(self._last_sent + COALESCE_SECONDS - time.monotonic())
            self._release()
            await self._drain()

    async def _drain(self) -> None:
        while self._queue:
            message = self._queue[0]
            if self._rate is not None:
                # Jupyter Server's data rate counts streams alone; 1,000 bytes stand for headers.
                size = (
                    wire_bytes(message.content.get("text", "")) + 1000
                    if message.msg_type == "stream"
                    else 0
                )
                await self._wait_for_room(self._rate, size)
            # While it waited, another `_drain` may have sent it, or an interrupt dropped it.
            if self._queue and self._queue[0] is message:
                self._queue.popleft()
                self._last_sent = time.monotonic()
                self._hand_on(message)

    def _hand_on(self, message: Message) -> None:
        try:
            self._send(message)
        except UnicodeEncodeError:  # raised while it is serialised, so nothing has gone yet
            clean = sendable(message.content), sendable(message.metadata)
            self._send(dataclasses.replace(message, content=clean[0], metadata=clean[1]))

    async def _wait_for_room(self, rate: Rate, size: int) -> None:
        while True:
            now = time.monotonic()
            while self._sent and self._sent[0][0] <= now - rate.window_seconds:
                self._sent_bytes -= self._sent.popleft()[1]
            full = (
                self._sent_bytes + size > rate.window_bytes
                or len(self._sent) >= rate.window_messages
            )
            if not full or not self._sent:  # a message larger than a window needs an empty one
                break
            # The millisecond keeps rounding from waking us just before the oldest entry expires.
            await asyncio.sleep(self._sent[0][0] + rate.window_seconds - now + 0.001)
        self._sent.append((now, size))
        self._sent_bytes += size

    def set_limit(self, limit_bytes: int) -> None:
        """Set the limit of the next cell's stream text, in bytes; 0 for no limit."""
        self._limit.forget()  # of a cell that never came to its end
        self._limit = OutputLimit(limit_bytes, self._spill_directory)

    def idle(self) -> None:
        """Start counting anew, as the front end does when the kernel turns idle."""
        self._sent.clear()
        self._sent_bytes = 0


def front_end_throttle(send: Sink, *, limit_bytes: int) -> OutputThrottle:
    """Make a throttle that suits the front end of this process.

    Parameters
    ----------
    send, limit_bytes
        As in `OutputThrottle`.
    """
    # Jupyter Server sets it for the kernels that it starts; other front ends drop nothing.
    rate = JUPYTER_SERVER_RATE if "JPY_SESSION_NAME" in os.environ else None
    directory = Path(jupyter_data_dir()) / "ivy" / "outputs"
    return OutputThrottle(send, rate=rate, limit_bytes=limit_bytes, spill_directory=directory)


# The length limit of a cell's text -----------------------------------------------------------
PIECE_BYTES = 16_000
"""Texts of the tail are joined to pieces of this size: each message costs hundreds of bytes."""

PIECE_PARTS = 200
"""So many texts of a piece become one string: each string costs dozens of bytes."""

TAIL_PIECES = 2_000
"""Most pieces of the tail; a cell that writes to two streams by turns makes one for each write."""


@dataclass(slots=True)
class _Piece:
    """Consecutive text of one stream, as it waits in the tail."""

    message: Message
    parts: list[str]
    size_bytes: int

    def takes(self, message: Message) -> bool:
        return (
            self.size_bytes < PIECE_BYTES
            and self.message.content.get("name") == message.content.get("name")
            and self.message.parent_header == message.parent_header
        )

    def add(self, text: str, size_bytes: int) -> None:
        self.parts.append(text)
        self.size_bytes += size_bytes
        if len(self.parts) > PIECE_PARTS:
            self.parts = ["".join(self.parts)]

    def cut_front(self, cut_bytes: int) -> None:
        """Drop at least so many bytes, and the rest of a character that is cut through."""
        raw = "".join(self.parts).encode("utf-8", "replace")[cut_bytes:]
        text = raw.decode("utf-8", "ignore")
        self.parts, self.size_bytes = [text], _size(text)


class OutputLimit:
    """Shows head and tail of a cell's text when it is too long, and keeps all of it in a file.

    Parameters
    ----------
    limit_bytes
        Text shown per cell, in UTF-8 bytes, half of it head and half tail; 0 for no limit.
    directory
        Directory for the whole text of a cell that is longer than that.
    """

    def __init__(self, limit_bytes: int, directory: Path) -> None:
        self._head_bytes = limit_bytes // 2
        self._tail_bytes = limit_bytes - limit_bytes // 2
        self._unlimited = limit_bytes == 0
        self._directory = directory
        self._reset()

    def _reset(self) -> None:
        self._head: list[str] = []
        self._shown_bytes = 0
        self._tail: deque[_Piece] = deque()
        self._tail_held_bytes = 0
        self._cut_bytes = 0
        self._parent_header: Json | None = None
        self._kept: KeptText | None = None

    def take(self, message: Message) -> list[Message]:
        """Return the part of this message that is shown now: all, some, or nothing of it."""
        text = str(message.content.get("text", ""))
        if self._unlimited or not text:
            return [message]
        size = _size(text)
        self._parent_header = message.parent_header
        if self._kept is None and self._shown_bytes + size <= self._head_bytes:
            self._head.append(text)
            self._shown_bytes += size
            return [message]
        shown: list[Message] = []
        first = ""
        kept = self._kept
        if kept is None:  # the text that does not fit any more: its beginning still may
            kept = self._kept = KeptText(self._directory)
            for head in self._head:
                kept.write(head, _size(head))
            self._head = []
            room = max(0, self._head_bytes - self._shown_bytes)
            first = text.encode("utf-8", "replace")[:room].decode("utf-8", "ignore")
            if first:
                shown.append(_with_text(message, first))
                self._shown_bytes += _size(first)
        kept.write(text, size)
        self._keep(message, text[len(first) :], size - _size(first))
        return shown

    def _keep(self, message: Message, text: str, size: int) -> None:
        if self._tail and self._tail[-1].takes(message):
            self._tail[-1].add(text, size)
        else:
            self._tail.append(_Piece(message, [text], size))
        self._tail_held_bytes += size
        # Twice the limit, so that not every message is cut, which costs time.
        if self._tail_held_bytes > 2 * self._tail_bytes or len(self._tail) > TAIL_PIECES:
            self._trim()

    def _trim(self) -> None:
        while self._tail_held_bytes > self._tail_bytes or len(self._tail) > TAIL_PIECES:
            surplus = self._tail_held_bytes - self._tail_bytes
            piece = self._tail[0]
            before = piece.size_bytes
            if 0 < surplus < before:
                piece.cut_front(surplus)
            else:  # all of it is surplus, or there are too many pieces
                self._tail.popleft()
                piece.size_bytes = 0
            self._cut_bytes += before - piece.size_bytes
            self._tail_held_bytes -= before - piece.size_bytes

    @property
    def path(self) -> Path | None:
        """The file of the whole text; ``None`` while all of it is shown, or if it is not kept."""
        return self._kept.path if self._kept is not None else None

    @property
    def is_holding(self) -> bool:
        """Whether text is held back that :meth:`finish` shows, or counts."""
        return self._kept is not None

    def forget(self) -> None:
        """Begin the text anew, because the front end has cleared all that was shown."""
        if self._kept is not None:
            self._kept.close()
            self._kept.discard()
        self._reset()

    def finish(self) -> list[Message]:
        """Return the end of the text: the count of what is not shown, and the tail."""
        self._trim()
        path, cut, parent_header = None, self._cut_bytes, self._parent_header
        if self._kept is not None:
            self._kept.close()
            if not cut:
                self._kept.discard()
            path = self._kept.path
        tail = [_with_text(piece.message, "".join(piece.parts)) for piece in self._tail]
        self._reset()
        if not cut:
            return tail
        where = f"the whole text is in {path}" if path else "the whole text could not be kept"
        note = (
            f"\n[… {cut:,} bytes of output are not shown here; {where}. "
            f"The setting output_limit_bytes changes how much is shown. …]\n"
        )
        return [_note(note, parent_header), *tail]


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _with_text(message: Message, text: str) -> Message:
    return dataclasses.replace(message, content={**message.content, "text": text})


def _note(text: str, parent_header: Json | None) -> Message:
    return Message("stream", {"name": "stderr", "text": text}, parent_header=parent_header)
