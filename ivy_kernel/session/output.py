"""A cell's messages on their way to the front end: coalesced, throttled, and limited in length.

Coalesced: one message a line would flood the front end, and above 1,000 queued messages ZMQ drops
them. Throttled: Jupyter Server drops stream output above 1 MB/s and 1,000 messages/s, measured over
3 s (``iopub_data_rate_limit``, ``iopub_msg_rate_limit``, ``rate_limit_window``), and counts anew
when the kernel turns idle. Limited: beyond a limit the head and the tail of a cell's text are
shown, with a count of what is not, and all of it is kept in a file (`OutputLimit`). So is
background output, which has no end: a text of it ends when it pauses. Merged: of a display, or of
a widget's state, only the last of many updates that wait is shown, as a browser would show it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from ivy_kernel.models import Message, Sink, sendable
from ivy_kernel.session.output_limit import OutputLimit, note_of, size_of

COALESCE_SECONDS = 0.01
"""Stream text that follows an output within this time is joined to one message."""
COALESCE_BYTES = 256_000
"""No more text than this in one message, so that it fits into a front end's window."""

MERGE_FROM_MESSAGES = 50
"""So many messages wait before updates that a later one supersedes are left out."""
BEHIND_MESSAGES = 3_000
BEHIND_BYTES = 8_000_000
"""So much may wait before no more of it is fetched from the sandbox."""
AFTER_INTERRUPT_MESSAGES = 200
AFTER_INTERRUPT_BYTES = 200_000
"""So much of what waits is still shown after an interrupt, at once: `JUPYTER_SERVER_RATE` leaves
room for it."""
AT_ONCE_MESSAGES = AFTER_INTERRUPT_MESSAGES + 50
"""With notes and errors of the interrupted cell."""
BACKGROUND_PAUSE_SECONDS = 15.0
"""A pause of background output that ends its text: longer than the route collects it for."""
LONGEST_PAUSE_SECONDS = 0.1
"""For the rate: after an interrupt it no longer holds."""
FULL_SECONDS = 0.01
"""Interval of the check whether the front end takes messages again."""

_CLEARING = frozenset({"display_data", "execute_result", "error"})
"""Messages that, like streams, make a front end carry out a ``clear_output(wait=True)``."""
_DROPPABLE = frozenset({"stream", "display_data", "update_display_data"})
"""Messages that an interrupt drops when they wait: later ones do not refer to them."""


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

OTHER_CLIENT_RATE = Rate(window_seconds=1.0, window_bytes=1 << 40, window_messages=1_000)
"""About as much as nbclient reads; and while more waits, superseded updates can be left out."""


def wire_bytes(text: str) -> int:
    """Length of a text as JSON, which is what Jupyter Server counts."""
    try:
        return len(msgspec.json.encode(text))
    except UnicodeEncodeError:  # a lone surrogate; at most six bytes a character, as an escape
        return 6 * len(text)


class OutputQueue:
    """Messages that wait for the front end, in order; superseded updates are left out."""

    def __init__(self) -> None:
        # A slot of one message, which is taken out of it when another supersedes it.
        self._slots: deque[list[Message]] = deque()
        self._updates: dict[tuple[str, str, str], list[Message]] = {}
        self._messages = 0
        self._bytes = 0
        self._note: list[Message] = []
        self._dropped = (0, 0)

    def __len__(self) -> int:
        return self._messages

    @property
    def fits_at_once(self) -> bool:
        """Whether what waits may be shown at once, above the rate, after an interrupt."""
        return self._messages <= AT_ONCE_MESSAGES and self._bytes <= 2 * AFTER_INTERRUPT_BYTES

    @property
    def is_long(self) -> bool:
        """Whether so much waits that no more of it should be fetched."""
        return self._messages > BEHIND_MESSAGES or self._bytes > BEHIND_BYTES

    def append(self, message: Message) -> None:
        """Add a message at the end, which may supersede one that waits."""
        key = message.updated
        if key is not None:
            earlier = self._updates.get(key, [])
            if earlier and self._messages >= MERGE_FROM_MESSAGES:
                # At the later place: what it refers to, such as a new widget, is there by then.
                message = message.superseding(self._take_out(earlier))
        elif message.msg_type.startswith("comm_"):
            self._updates.clear()  # it may depend on the state of any widget so far
        slot = [message]
        if key is not None:
            self._updates[key] = slot
        self._slots.append(slot)
        self._messages += 1
        self._bytes += message.size
        if len(self._slots) > 2 * self._messages + MERGE_FROM_MESSAGES:
            self._slots = deque(slot for slot in self._slots if slot)

    def first(self) -> Message | None:
        """Return the next message; ``None`` when none waits."""
        while self._slots and not self._slots[0]:
            self._slots.popleft()
        return self._slots[0][0] if self._slots else None

    def waiting(self) -> list[list[Message]]:
        """Return the slots of what waits now; one is empty as soon as its message waits no more."""
        return list(self._slots)

    def pop(self) -> Message:
        """Take the next message out; one must wait."""
        self.first()
        return self._take_out(self._slots.popleft())

    def drop(self, *, texts_too: bool = False) -> str:
        """Drop output but the last of it, or all text; return a note, empty if none was dropped."""
        kept: list[list[Message]] = []
        messages, size = AFTER_INTERRUPT_MESSAGES, AFTER_INTERRUPT_BYTES
        displays = text_bytes = 0
        if self._note:  # of an earlier drop, and not shown yet: one note tells of both
            self._take_out(self._note)
            displays, text_bytes = self._dropped
        for slot in reversed(self._slots):
            if not slot:
                continue
            is_text = slot[0].msg_type == "stream"
            if not (is_text and texts_too):
                messages -= 1
                size -= slot[0].size
            is_wanted = messages >= 0 and size >= 0 and not (is_text and texts_too)
            if is_wanted or slot[0].msg_type not in _DROPPABLE:
                kept.append(slot)
                continue
            text_bytes += size_of(str(self._take_out(slot).content.get("text", "")))
            displays += not is_text
        self._slots = deque(reversed(kept))
        self._dropped = displays, text_bytes
        if not (displays or text_bytes):
            return ""
        shown = f"{displays:,} displays and " if displays else ""
        return f"\n[… interrupted: {shown}{text_bytes:,} bytes of output are not shown here …]\n"

    def put_note(self, message: Message) -> None:
        """Add the note of a drop before all that waits."""
        self._note = [message]
        self._slots.appendleft(self._note)
        self._messages += 1
        self._bytes += message.size

    def _take_out(self, slot: list[Message]) -> Message:
        message = slot.pop()
        self._messages -= 1
        self._bytes -= message.size
        return message


@dataclass(slots=True)
class _BackgroundText:
    """The text of one request that has ended, or of none, while it goes on."""

    limit: OutputLimit
    last_at: float = 0.0
    is_noted: bool = False


class OutputThrottle:
    """Takes messages as a sink and hands them on in order, no faster than a rate.

    Parameters
    ----------
    send
        Hands one message to the front end.
    rate
        The most that the front end takes; ``None`` for no limit.
    limit
        The limit of a cell's stream text; background output has the same, for each of its texts.
    is_full
        Tells whether the way to the front end is full, so that no more should be sent for now.
    """

    def __init__(
        self,
        send: Sink,
        *,
        rate: Rate | None,
        limit: OutputLimit,
        is_full: Callable[[], bool] = bool,
    ) -> None:
        self._send = send
        self._rate = rate
        self._limit = limit
        self._is_full = is_full
        # Text is held until it is released as one message; the queue then waits for the rate.
        self._queue = OutputQueue()
        self._held: list[str] = []
        self._held_message: Message | None = None
        self._held_bytes = 0
        self._sent: deque[tuple[float, int]] = deque()
        self._sent_bytes = 0
        self._last_sent = 0.0
        self._sender: asyncio.Task[None] | None = None
        self._clear_due = False
        self._is_interrupted = False
        self._texts: dict[str, _BackgroundText] = {}
        self._pause_timer: asyncio.TimerHandle | None = None

    @property
    def is_behind(self) -> bool:
        """Whether so much waits that no more should be fetched for now."""
        return self._queue.is_long and not self._is_interrupted

    def __call__(self, message: Message) -> None:
        """Take one message of the running cell. Must be called on the event loop."""
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
        self._send_soon()

    def background(self, message: Message) -> None:
        """Take one message that belongs to no running cell. Must be called on the event loop.

        The text of each request has the limit of a cell, and ends when it pauses.
        """
        parent_id = message.parent_id
        if message.msg_type != "stream":
            if message.msg_type == "clear_output" and parent_id in self._texts:
                self._texts.pop(parent_id).limit.forget()
            self._release()
            self._queue.append(message)
            self._send_soon()
            return
        text = self._texts.get(parent_id)
        if text is None:
            text = self._texts[parent_id] = _BackgroundText(self._limit.anew())
        for shown in text.limit.take(message):
            self._hold(shown)
        if text.limit.is_holding and not text.is_noted:
            text.is_noted = True
            where = f"is kept in {text.limit.path}" if text.limit.path else "is not kept"
            note = f"\n[… more background output follows; it {where}, and its end is shown here "
            self._hold(note_of(note + "when it pauses. …]\n", message.parent_header))
        text.last_at = time.monotonic()
        if self._pause_timer is None:
            self._watch_for_pauses()
        self._send_soon()

    def end_background(self) -> None:
        """End the texts of background output now: show their ends, or count what is not shown."""
        self._end_texts(float("inf"))

    def _watch_for_pauses(self) -> None:
        loop = asyncio.get_running_loop()
        self._pause_timer = loop.call_later(BACKGROUND_PAUSE_SECONDS, self._end_paused)

    def _end_paused(self) -> None:
        self._pause_timer = None
        self._end_texts(time.monotonic() - BACKGROUND_PAUSE_SECONDS + FULL_SECONDS)
        if self._texts:
            self._watch_for_pauses()

    def _end_texts(self, last_before: float) -> None:
        """End the texts whose last piece has come before a time."""
        for parent_id, text in list(self._texts.items()):
            if text.last_at <= last_before:
                del self._texts[parent_id]
                for message in text.limit.finish():
                    self._hold(message)
        self._send_soon()

    def interrupted(self) -> None:
        """Drop most of what waits, and of what still comes until `finish`: the user has had enough.

        Called when the running cell is interrupted. A note says how much is not shown.
        """
        self._is_interrupted = True
        self._drop_waiting()

    def _drop_waiting(self) -> None:
        note = self._queue.drop()
        if note:
            self._queue.put_note(note_of(note))

    def _send_soon(self) -> None:
        if self._sender is None or self._sender.done():
            self._sender = asyncio.ensure_future(self._run())

    async def flush(self) -> None:
        """Send all that was taken so far; more may follow."""
        self._release()
        await self._drain(self._queue.waiting())

    async def finish(self) -> None:
        """Send all, the tail of a long text included. The next cell starts anew.

        When it is cancelled, text that is not sent yet is counted and dropped: later it would be
        shown under another cell.
        """
        if self._is_interrupted:
            self._release()
            self._drop_waiting()
        for message in self._limit.finish():
            self._hold(message)
        self._release()
        self._clear_due = False
        try:
            # Not what comes after it: background output may have no end.
            await self._drain(self._queue.waiting())
        except asyncio.CancelledError:
            self._cut_short()
            raise
        finally:
            self._is_interrupted = False

    def _clear(self) -> None:
        self._clear_due = False
        self._limit.forget()

    def _cut_short(self) -> None:
        note = self._queue.drop(texts_too=True)
        while len(self._queue):  # these are sent all the same: later ones may refer to them
            self._hand_on(self._queue.pop())
        if note:
            self._send(note_of(note))

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
        while len(self._queue) or self._held_message is not None:
            # The first output after a pause goes at once; only what follows closely is coalesced.
            await asyncio.sleep(self._last_sent + COALESCE_SECONDS - time.monotonic())
            self._release()
            await self._drain()

    async def _drain(self, slots: Sequence[list[Message]] | None = None) -> None:
        """Send what waits, in order, until none waits, or none of these slots does."""
        done = 0
        while (message := self._queue.first()) is not None:
            while slots is not None and done < len(slots) and not slots[done]:
                done += 1
            if slots is not None and done == len(slots):
                return
            # Jupyter Server's data rate counts streams alone; 1,000 bytes stand for headers.
            is_text = message.msg_type == "stream"
            size = wire_bytes(message.content.get("text", "")) + 1000 if is_text else 0
            while (pause := self._pause_seconds(size)) > 0:  # noqa: ASYNC110 - time, not an event
                await asyncio.sleep(pause)
            # While it waited, another `_drain` may have sent it, an interrupt dropped it, or
            # another message superseded it.
            if self._queue.first() is message:
                self._queue.pop()
                self._last_sent = time.monotonic()
                if self._rate is not None:
                    self._sent.append((self._last_sent, size))
                    self._sent_bytes += size
                self._hand_on(message)

    def _pause_seconds(self, size: int) -> float:
        """Return how long to wait before a message of this size; it may not be enough then."""
        if self._is_full():
            return FULL_SECONDS
        rate, now = self._rate, time.monotonic()
        if rate is None:
            return 0.0
        while self._sent and self._sent[0][0] <= now - rate.window_seconds:
            self._sent_bytes -= self._sent.popleft()[1]
        is_full = (
            self._sent_bytes + size > rate.window_bytes or len(self._sent) >= rate.window_messages
        )
        if not is_full or not self._sent:  # a message larger than a window needs an empty one
            return 0.0
        if self._is_interrupted and self._queue.fits_at_once:
            return 0.0
        # The millisecond keeps rounding from waking us just before the oldest entry expires.
        pause = self._sent[0][0] + rate.window_seconds - now + 0.001
        return min(pause, LONGEST_PAUSE_SECONDS)

    def _hand_on(self, message: Message) -> None:
        try:
            self._send(message)
        except UnicodeEncodeError:  # raised while it is serialised, so nothing has gone yet
            clean = sendable(message.content), sendable(message.metadata)
            self._send(dataclasses.replace(message, content=clean[0], metadata=clean[1]))

    def set_limit(self, limit: OutputLimit) -> None:
        """Set the limit of the next cell's stream text, and of background output from now on."""
        self._limit.forget()  # of a cell that never came to its end
        self._limit = limit

    def idle(self) -> None:
        """Start counting anew, as the front end does when the kernel turns idle."""
        self._sent.clear()
        self._sent_bytes = 0


def front_end_throttle(
    send: Sink, *, limit: OutputLimit, is_full: Callable[[], bool] = bool
) -> OutputThrottle:
    """Make a throttle that suits the front end of this process.

    Parameters
    ----------
    send, limit, is_full
        As in `OutputThrottle`.
    """
    # Jupyter Server sets it for the kernels that it starts.
    rate = JUPYTER_SERVER_RATE if "JPY_SESSION_NAME" in os.environ else OTHER_CLIENT_RATE
    return OutputThrottle(send, rate=rate, limit=limit, is_full=is_full)
