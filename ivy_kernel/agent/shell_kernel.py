"""The built-in shell, for sandboxes without ipykernel: a process at the end of a socket pair."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .kernel_process import KernelProcess
from .wire import to_json

READ_BYTES = 1 << 18


class ShellKernel(KernelProcess):
    """Speaks JSON lines: the same messages, without signatures and buffers."""

    kind = "built-in shell"

    def start(self) -> None:
        """Start the shell from the archive that this code came in."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._socket = ours
        self._incoming = bytearray()
        self._outgoing = bytearray()
        with theirs:
            descriptor = theirs.fileno()
            flags = ["-S"] if sys.flags.no_site else []
            archive = str(Path(sys.argv[0]).resolve())  # cells run in another directory
            self.launch([*flags, archive, "shell", str(descriptor)], [descriptor])

    def file_descriptors(self) -> list[int]:
        """Return the agent's end of the socket pair."""
        return [self._socket.fileno()]

    def send(self, channel: str, parts: Sequence[bytes], buffers: Sequence[bytes]) -> None:
        """Queue one line; the shell has no use for buffers."""
        header, _, _, content = parts
        line = b'{"c":"%s","h":%s,"d":%s}\n' % (channel.encode(), header, content)
        self._outgoing += line
        self._push()

    def receive(self, now: float) -> bool:
        """Hand on the whole lines that have come."""
        self._push()
        got = False
        while True:
            try:
                data = self._socket.recv(READ_BYTES)
            except OSError:
                break
            if not data:
                break
            got = True
            self._incoming += data
        *lines, rest = self._incoming.split(b"\n")
        self._incoming = rest
        for line in lines:
            try:
                self._take(json.loads(line.decode("utf-8")))
            except (ValueError, KeyError, AttributeError) as error:
                self.report_unreadable(error)
        return got

    def next_time(self) -> float | None:
        """Return 0 while a request waits to be written, else ``None``."""
        return 0.0 if self._outgoing else None

    def ask_to_stop(self) -> None:
        """Close for writing, which the shell reads as the end."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return  # it has ended by itself

    def close(self) -> None:
        """Close the agent's end."""
        self._socket.close()

    def _take(self, message: dict[str, Any]) -> None:
        if "ready" in message:
            self.threads_at_start = self.count_threads()
            self.on_ready(message["ready"])
            return
        header, parent = to_json(message["h"]), to_json(message["p"])
        self.on_message(message["c"], header, parent, b"{}", to_json(message["d"]), [])

    def _push(self) -> None:
        try:
            while self._outgoing:
                sent = self._socket.send(self._outgoing[:READ_BYTES])
                del self._outgoing[:sent]
        except OSError:
            return  # full for now, or dead, which the supervisor sees by itself
