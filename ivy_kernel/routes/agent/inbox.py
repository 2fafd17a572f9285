"""Puts the slices of the agent's log together and cuts them into records."""

from __future__ import annotations

import base64
import binascii
import json

import msgspec

from ivy_kernel.errors import AnswerError
from ivy_kernel.models import Channel, Json, Message

SLICES_KEPT = 64
HELD_LIMIT_BYTES = 256 << 20
CHANNELS: dict[str, Channel] = {
    "shell": "shell",
    "iopub": "iopub",
    "stdin": "stdin",
    "control": "control",
}


class InboxFullError(AnswerError):
    """More is held than an agent of ours ever keeps, and there is no end of a record in it."""


class Inbox:
    """The contiguous part of the log that has arrived, in order and without repetition.

    Slices come out of order when calls overtake each other, and twice when one is asked for again.

    Parameters
    ----------
    offset
        Where to begin to read.
    held_limit_bytes
        How much may be held of what cannot be read yet: of a record without an end, and of slices
        that came early.
    """

    def __init__(self, offset: int = 0, *, held_limit_bytes: int = HELD_LIMIT_BYTES) -> None:
        self.offset = offset
        self.unreadable_records = 0
        self._held_limit_bytes = held_limit_bytes
        self._early: dict[int, bytes] = {}
        self._unfinished: list[bytes] = []

    @property
    def has_gap(self) -> bool:
        """Whether a later slice is here and an earlier one is not."""
        return bool(self._early)

    def add(self, offset: int, data: bytes) -> list[Json]:
        """Take a slice; the records that are complete now.

        Raises
        ------
        InboxFullError
            The record that is arriving has grown beyond the limit.
        """
        if data and self._may_keep(offset, len(data)):
            self._early[offset] = max(self._early.get(offset, b""), data, key=len)
        for start in sorted(self._early):
            if start > self.offset:
                break
            part = self._early.pop(start)[self.offset - start :]
            self._unfinished.append(part)
            self.offset += len(part)
        if not any(b"\n" in part for part in self._unfinished):
            self._refuse_endless()
            return []  # the middle of a large record: nothing to look at yet
        *lines, rest = b"".join(self._unfinished).split(b"\n")
        self._unfinished = [rest]
        return [record for record in map(self._record, lines) if record is not None]

    def _may_keep(self, offset: int, size_bytes: int) -> bool:
        """Whether to take a slice: the next one always, an early one while there is room."""
        if offset <= self.offset:
            return True
        held_bytes = sum(map(len, self._early.values()))
        return len(self._early) < SLICES_KEPT and held_bytes + size_bytes <= self._held_limit_bytes

    def _refuse_endless(self) -> None:
        held_bytes = sum(map(len, self._unfinished))
        if held_bytes > self._held_limit_bytes:
            self._unfinished.clear()
            raise InboxFullError(
                f"The sandbox sent a message of more than {self._held_limit_bytes} bytes, which is "
                f"more than its agent keeps."
            )

    def _record(self, line: bytes) -> Json | None:
        try:
            record = msgspec.json.decode(line)
        except (msgspec.DecodeError, ValueError, RecursionError):
            record = self._with_python_json(line)
        if isinstance(record, dict) and isinstance(record.get("d"), dict):
            return record
        self.unreadable_records += 1
        return None

    @staticmethod
    def _with_python_json(line: bytes) -> object:
        """As Python reads it: with ``NaN`` and lone surrogates, which kernels do send."""
        try:
            return json.loads(line.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            return None


def to_message(record: Json) -> Message | None:
    """The Jupyter message in a record; ``None`` when it is none."""
    header, parent, metadata = record.get("h"), record.get("p"), record.get("m")
    channel = CHANNELS.get(str(record.get("c")))
    if channel is None or not isinstance(header, dict) or not isinstance(parent, dict):
        return None
    try:
        buffers = tuple(base64.b64decode(text, validate=True) for text in record.get("b", ()))
    except (TypeError, binascii.Error):
        return None
    return Message(
        msg_type=str(header.get("msg_type", "")),
        content=record["d"],
        metadata=metadata if isinstance(metadata, dict) else {},
        buffers=buffers,
        channel=channel,
        header=header,
        parent_header=parent,
    )
