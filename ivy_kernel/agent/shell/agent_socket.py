"""The shell's end of the socket pair: messages out, requests and typed input in."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import threading
import time
import uuid
from typing import Any

READ_BYTES = 1 << 16
POLL_SECONDS = 0.1


class AgentSocket:
    """Sends Jupyter messages to the agent and receives requests from it.

    Parameters
    ----------
    descriptor
        The socket that the agent has handed over.
    """

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._lock = threading.RLock()
        self._requests: queue.Queue[dict[str, Any]] = queue.Queue()
        self._inputs: queue.Queue[dict[str, Any]] = queue.Queue()
        self.parent: dict[str, Any] = {}

    def start(self) -> None:
        """Begin to read. When the agent ends, this process ends too, whatever it is doing."""
        # In a thread, so that the end of the socket is noticed while a cell runs.
        threading.Thread(target=self._read, daemon=True).start()

    def announce(self, info: dict[str, Any]) -> None:
        """Tell the agent that the shell is ready for requests."""
        self._write({"ready": info})

    def send(self, channel: str, msg_type: str, content: dict[str, Any]) -> None:
        """Send a message whose parent is the current request."""
        header = {
            "msg_id": uuid.uuid4().hex,
            "msg_type": msg_type,
            "username": "ivy",
            "session": "ivy-shell",
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "version": "5.3",
        }
        self._write({"c": channel, "h": header, "p": self.parent, "d": content})

    def publish(self, msg_type: str, content: dict[str, Any]) -> None:
        """Send a message on the iopub channel."""
        self.send("iopub", msg_type, content)

    def next_request(self) -> dict[str, Any]:
        """Wait for the next request; an interrupt can break the wait."""
        # With a time-out: a get() without one is not broken by a signal on every platform.
        while True:
            with contextlib.suppress(queue.Empty):
                return self._requests.get(timeout=60)

    def ask(self, prompt: str, *, is_password: bool) -> str:
        """Return what the user types (message spec, "Messages on the stdin channel")."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._inputs.get_nowait()  # an answer that came too late for an earlier question
        self.send("stdin", "input_request", {"prompt": prompt, "password": is_password})
        while True:
            with contextlib.suppress(queue.Empty):
                return str(self._inputs.get(timeout=POLL_SECONDS)["d"].get("value", ""))

    def _write(self, message: dict[str, Any]) -> None:
        line = json.dumps(message, separators=(",", ":"), default=str).encode("ascii") + b"\n"
        with self._lock:
            self._socket.sendall(line)

    def _read(self) -> None:
        incoming = bytearray()
        while True:
            data = self._socket.recv(READ_BYTES)
            if not data:
                os._exit(0)
            incoming += data
            *lines, incoming = incoming.split(b"\n")
            for line in lines:
                message = json.loads(line.decode("utf-8"))
                (self._inputs if message["c"] == "stdin" else self._requests).put(message)
