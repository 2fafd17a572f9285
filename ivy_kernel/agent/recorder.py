"""The kernel's messages and our own events, written to the log as JSON lines."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from .message_log import MessageLog
from .wire import to_json

DROPPABLE_TYPES = ("stream", "display_data", "update_display_data")
"""What is dropped first when nobody fetches the log: output that only a reader would miss."""


class Recorder:
    """Writes records; above the log's limit drops output, counts it, and says so when it can.

    A record is ``{"c": channel, "h": header, "p": parent, "m": metadata, "d": content}``, with
    ``"b"`` for buffers in base64. Our own events are on the channel ``agent``.

    Parameters
    ----------
    log
        Where the records go.
    """

    def __init__(self, log: MessageLog) -> None:
        self._log = log
        self._dropped_messages = 0
        self._dropped_bytes = 0

    def message(
        self, channel: str, msg_type: str, parts: Sequence[bytes], buffers: Sequence[Any]
    ) -> None:
        """Record one message: header, parent header, metadata, content as JSON bytes."""
        line = b'{"c":"%s","h":%s,"p":%s,"m":%s,"d":%s' % (channel.encode(), *parts)
        if buffers:
            texts = [base64.b64encode(bytes(buffer)).decode() for buffer in buffers]
            line += b',"b":' + to_json(texts)
        line = line.replace(b"\n", b" ") + b"}\n"
        if not self._may_keep(channel, msg_type, len(line)):
            self._dropped_messages += 1
            self._dropped_bytes += len(line)
            return
        if self._dropped_messages:
            messages, size_bytes = self._dropped_messages, self._dropped_bytes
            self._dropped_messages = self._dropped_bytes = 0
            self.event("dropped", messages=messages, bytes=size_bytes)
        self._log.append(line)

    def event(self, name: str, **details: Any) -> None:
        """Record an event of our own."""
        details["event"] = name
        self._log.append(b'{"c":"agent","d":%s}\n' % to_json(details))

    def _may_keep(self, channel: str, msg_type: str, size_bytes: int) -> bool:
        if self._log.has_room(size_bytes):
            return True
        if msg_type in DROPPABLE_TYPES:
            return False
        if channel != "iopub" or msg_type in ("status", "error"):
            return True
        return self._log.has_room(size_bytes, times=2)
