"""A front end that records messages and their times, and short ways to make messages."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ivy_kernel.models import Message
from ivy_kernel.session.output import OutputThrottle, Rate, wire_bytes
from ivy_kernel.session.output_limit import OutputLimit


@dataclass
class FrontEnd:
    """Takes messages.

    Parameters
    ----------
    got
        Time and message, in the order of arrival.
    """

    got: list[tuple[float, Message]] = field(default_factory=list)

    def __call__(self, message: Message) -> None:
        """Take one message."""
        self.got.append((time.monotonic(), message))

    @property
    def messages(self) -> list[Message]:
        """The messages that have arrived."""
        return [message for _, message in self.got]

    def text(self, name: str = "stdout") -> str:
        """All text of a stream."""
        return "".join(
            message.content["text"]
            for message in self.messages
            if message.msg_type == "stream" and message.content["name"] == name
        )

    def worst_window(self, rate: Rate) -> tuple[int, int]:
        """Most bytes of stream text, and most messages, within any window of time."""
        most_bytes = most_messages = 0
        for start, _ in self.got:
            inside = [m for at, m in self.got if start <= at < start + rate.window_seconds]
            most_messages = max(most_messages, len(inside))
            most_bytes = max(
                most_bytes,
                sum(wire_bytes(m.content["text"]) for m in inside if m.msg_type == "stream"),
            )
        return most_bytes, most_messages


def stream(text: str, name: str = "stdout", parent: dict[str, Any] | None = None) -> Message:
    """A piece of output."""
    return Message("stream", {"name": name, "text": text}, parent_header=parent)


def other(msg_type: str = "display_data", **content: Any) -> Message:
    """A message that is no stream."""
    return Message(msg_type, content)


def throttle(
    front_end: FrontEnd, directory: Path, *, rate: Rate | None = None, limit_bytes: int = 0
) -> OutputThrottle:
    """A throttle in front of it."""
    return OutputThrottle(front_end, rate=rate, limit=OutputLimit(limit_bytes, directory))


def flattened(messages: Sequence[Message]) -> list[tuple[object, ...]]:
    """Merge runs of equal streams into one text; everything else stays as it is."""
    seen: list[tuple[object, ...]] = []
    for message in messages:
        if message.msg_type != "stream":
            seen.append((message.msg_type, str(message.content)))
            continue
        name, text = message.content["name"], message.content["text"]
        if not text:
            continue
        parent = str(message.parent_header)
        if seen and seen[-1][:3] == ("stream", name, parent):
            seen[-1] = ("stream", name, parent, str(seen[-1][3]) + text)
        else:
            seen.append(("stream", name, parent, text))
    return seen
