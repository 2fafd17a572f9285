"""A cell's messages on their way to the front end: coalesced, paced, and bounded.

Coalesced: one message a line would flood the front end, and above 1,000 queued messages ZMQ drops
them. Paced: Jupyter Server drops stream output above 1 MB/s and 1,000 messages/s, measured over 3 s
(``iopub_data_rate_limit``, ``iopub_msg_rate_limit``, ``rate_limit_window``), and starts counting
anew when the kernel turns idle. Bounded: beyond a limit the head and the tail of a cell's text are
shown, with a count of what is not, and all of it is kept in a file (`output_bound`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ivy_kernel.models import Message, Sink, sendable
from ivy_kernel.session.output_limit import OutputBound

COALESCE_SECONDS = 0.01
COALESCE_BYTES = 256_000

_CLEARING = frozenset({"display_data", "execute_result", "error"})
"""Besides streams: what the front end shows in the place of what ``clear_output`` cleared."""


@dataclass(frozen=True, slots=True)
class Rate:
    """How much may be sent within a window.

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
    """How long a text is as JSON."""
    try:
        return len(msgspec.json.encode(text))
    except UnicodeEncodeError:
        return 6 * len(text)


class Pacer:
    """Takes a cell's messages as a sink and hands them on, in order.

    Parameters
    ----------
    send
        Hands one message to the front end.
    rate
        What the front end takes; ``None`` for no limit.
    limit_bytes
        Stream text shown per cell, in UTF-8 bytes; 0 for no limit.
    spill_directory
        Where the whole text of a cell is kept when it is longer than that.
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
        self._bound = OutputBound(limit_bytes, spill_directory)

    def __call__(self, message: Message) -> None:
        """Take one message. Must be called on the event loop."""
        if self._clear_due and (message.msg_type == "stream" or message.msg_type in _CLEARING):
            self._clear()
        if message.msg_type == "stream":
            for bounded in self._bound.take(message):
                self._hold(bounded)
        else:
            if message.msg_type == "clear_output":
                self._clear_due = True
                if not message.content.get("wait"):
                    self._clear()
            self._release()
            self._queue.append(message)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.ensure_future(self._run())

    async def flush(self) -> None:
        """Return when all that was taken so far is sent; more may follow."""
        self._release()
        await self._drain()

    async def finish(self) -> None:
        """Return when all is sent, the tail of a long text included. The next cell starts anew.

        When it is cancelled, what is not sent yet is counted and dropped: later it would be shown
        under another cell.
        """
        for message in self._bound.finish():
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
        self._bound.forget()

    def _cut_short(self) -> None:
        dropped_bytes = 0
        queue, self._queue = self._queue, deque()
        for message in queue:
            if message.msg_type == "stream":
                dropped_bytes += len(message.content["text"].encode("utf-8", "replace"))
            else:
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
        # What comes while the front end's window is full is gathered, and must get its turn too.
        while self._queue or self._held_message is not None:
            # The first output after a pause goes at once; only what follows closely is gathered.
            await asyncio.sleep(self._last_sent + COALESCE_SECONDS - time.monotonic())
            self._release()
            await self._drain()

    async def _drain(self) -> None:
        while self._queue:
            message = self._queue[0]
            if self._rate is not None:
                size = (
                    wire_bytes(message.content.get("text", "")) + 1000
                    if message.msg_type == "stream"
                    else 0
                )
                await self._wait_for_room(self._rate, size)
            if self._queue and self._queue[0] is message:
                self._queue.popleft()
                self._last_sent = time.monotonic()
                self._hand_on(message)

    def _hand_on(self, message: Message) -> None:
        try:
            self._send(message)
        except UnicodeEncodeError:  # found out when it is written down, so nothing has gone yet
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
            if not full or not self._sent:
                break
            await asyncio.sleep(self._sent[0][0] + rate.window_seconds - now + 0.001)
        self._sent.append((now, size))
        self._sent_bytes += size

    def limit_bytes(self, limit_bytes: int) -> None:
        """Set how much stream text of the next cell is shown; 0 for no limit."""
        self._bound.forget()  # of a cell that never came to its end
        self._bound = OutputBound(limit_bytes, self._spill_directory)

    def idle(self) -> None:
        """The kernel has turned idle, so the front end counts anew."""
        self._sent.clear()
        self._sent_bytes = 0
