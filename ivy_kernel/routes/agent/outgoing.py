"""Messages of ours for the sandbox's kernel, and how they travel."""

from __future__ import annotations

import base64
import secrets
from dataclasses import dataclass
from datetime import datetime, timezone

from ivy_kernel.models import Channel, Json


@dataclass(frozen=True)
class Outgoing:
    """One message for the kernel (message spec, "General message format").

    Parameters
    ----------
    channel
        Where it goes: shell, control or stdin.
    header, content, parent, metadata, buffers
        The parts of a Jupyter message.
    """

    channel: Channel
    header: Json
    content: Json
    parent: Json | None = None
    metadata: Json | None = None
    buffers: tuple[bytes, ...] = ()

    @property
    def message_id(self) -> str:
        """The id that its reply will name."""
        return str(self.header["msg_id"])

    def body(self, generation: int) -> Json:
        """As the agent takes it: for the kernel with this generation, and for no later one."""
        body: Json = {
            "c": self.channel,
            "h": self.header,
            "d": self.content,
            "m": self.metadata or {},
            "g": generation,
        }
        if self.parent is not None:
            body["p"] = self.parent
        if self.buffers:
            body["b"] = [base64.b64encode(buffer).decode("ascii") for buffer in self.buffers]
        return body


def header_of(msg_type: str, header: Json | None = None) -> Json:
    """A message header; the front end's own where there is one, without its subshell."""
    made = {
        "msg_id": secrets.token_hex(16),
        "msg_type": msg_type,
        "username": "ivy",
        "session": "ivy",
        "date": datetime.now(timezone.utc).isoformat(),
        "version": "5.3",
    }
    made.update(header or {})
    made.pop("subshell_id", None)
    return made
