"""A gateway in front of a test server that injects faults into single tool calls.

::

    with faulty_gateway(server) as gateway:
        gateway.next_tool_calls(Fault("after", 502))
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Fault:
    """The fault of one call.

    Parameters
    ----------
    when
        ``instead``: the call is answered by the gateway and never arrives. ``after``: it runs, but
        the gateway answers. ``cut``: it runs, and the connection is reset. ``none``: it passes.
    status_code
        The gateway's answer.
    body
        Its content.
    headers
        Further headers of it.
    """

    when: str
    status_code: int = 0
    body: str = "<html>bad gateway</html>"
    headers: dict[str, str] = field(default_factory=dict)


class Gateway(ThreadingHTTPServer):
    """Passes requests on to a server, but for the faults that it is set to inject."""

    daemon_threads = True

    def __init__(self, server: Any) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = server.url.removesuffix("/api")
        self.token = server.token
        self.url = f"http://127.0.0.1:{self.server_address[1]}/api"
        self.faults: deque[Fault] = deque()
        self.always: Fault | None = None
        self.calls: list[tuple[float, str]] = []

    def next_tool_calls(self, *faults: Fault) -> None:
        """The faults of the next tool calls, in order; later ones pass."""
        self.faults.extend(faults)

    def tool_calls(self) -> int:
        """How many calls of tools have come."""
        return sum("/tool/" in path for _, path in self.calls)

    def handle_error(self, *_: Any) -> None:
        """A client that went away is no error."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Gateway

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.calls.append((time.monotonic(), self.path))
        fault = Fault("none")
        if "/tool/" in self.path:
            fault = self.server.always or (
                self.server.faults.popleft() if self.server.faults else fault
            )
        if fault.when == "instead":
            self._answer(fault.status_code, fault.body.encode(), fault.headers)
            return
        status, content = self._forward(body)
        if fault.when == "cut":
            # Closing with lingering off sends a reset instead of an orderly end.
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.close_connection = True
            return
        if fault.when == "after":
            status, content = fault.status_code, fault.body.encode()
        self._answer(status, content, fault.headers)

    def _forward(self, body: bytes) -> tuple[int, bytes]:
        request = urllib.request.Request(
            self.server.target + self.path, body or None, method=self.command
        )
        for name in ("Authorization", "Content-Type"):
            if name in self.headers:
                request.add_header(name, self.headers[name])
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=60) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def _answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = _serve  # noqa: N815 - the names that http.server looks for

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@contextlib.contextmanager
def faulty_gateway(server: Any) -> Iterator[Gateway]:
    """A gateway for the time of the ``with`` block."""
    gateway = Gateway(server)
    thread = threading.Thread(target=gateway.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield gateway
    finally:
        gateway.shutdown()
        thread.join()
        gateway.server_close()
