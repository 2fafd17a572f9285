"""Puts the slices of the agent's log together and cuts them into records."""

from __future__ import annotations

import base64
import binascii
import json

import msgspec

from ivy_kernel.models import Channel, Json, Message

SLICES_KEPT = 64
CHANNELS: dict[str, Channel] = {
    "shell": "shell",
    "iopub": "iopub",
    "stdin": "stdin",
    "control": "control",
}


class Inbox:
    """The contiguous part of the log that has arrived, in order and without repetition.

    Slices come out of order when calls overtake each other, and twice when one is asked for again.

    Parameters
    ----------
    offset
        Where to begin to read.
    """

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset
        self.unreadable_records = 0
        self._early: dict[int, bytes] = {}
        self._unfinished: list[bytes] = []

    @property
    def has_gap(self) -> bool:
        """Whether a later slice is here and an earlier one is not."""
        return bool(self._early)

    def add(self, offset: int, data: bytes) -> list[Json]:
        """Take a slice; the records that are complete now."""
        if data and len(self._early) < SLICES_KEPT:
            self._early[offset] = max(self._early.get(offset, b""), data, key=len)
        for start in sorted(self._early):
            if start > self.offset:
                break
            part = self._early.pop(start)[self.offset - start :]
            self._unfinished.append(part)
            self.offset += len(part)
        if not any(b"\n" in part for part in self._unfinished):
            return []  # the middle of a large record: nothing to look at yet
        *lines, rest = b"".join(self._unfinished).split(b"\n")
        self._unfinished = [rest]
        return [record for record in map(self._record, lines) if record is not None]

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
