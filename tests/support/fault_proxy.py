"""An HTTP proxy that injects faults of networks and gateways."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

NOT_RUN = (429, 503)
"""Statuses that the platform documents as "nothing ran": answered without forwarding."""

REASONS = {
    429: "Too Many Requests",
    500: "Internal Server Error",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}


@dataclass
class Faults:
    """The faults to inject, each as its probability per request.

    ``lost_answer``: the call runs, the connection is reset instead of an answer. ``lost_request``:
    reset before it runs. ``broken_body``: reset in the middle of the answer. ``cut_body``: a whole
    HTTP answer whose JSON is cut off. ``stalled``: no answer until the client gives up.
    ``dripped``: the answer comes in tiny pieces. ``doubled``: the call is made twice.
    ``delayed``: up to ``delay_seconds`` before and after, so that calls overtake each other.
    """

    lost_answer: float = 0.0
    lost_request: float = 0.0
    broken_body: float = 0.0
    cut_body: float = 0.0
    stalled: float = 0.0
    dripped: float = 0.0
    doubled: float = 0.0
    delayed: float = 0.0
    delay_seconds: float = 0.2
    statuses: tuple[tuple[int, float], ...] = ()
    retry_after_seconds: float = 0.05
    close_idle_after_seconds: float = 60.0


ALL_FAULTS = Faults(
    lost_answer=0.2,
    lost_request=0.05,
    broken_body=0.05,
    cut_body=0.05,
    dripped=0.05,
    doubled=0.05,
    delayed=0.05,
    statuses=tuple((status, 0.05) for status in (429, 500, 502, 503, 504)),
)
"""A fifth of the answers lost, and 5 % of each other fault."""


class ResetError(Exception):
    """The client's connection is to be reset."""


class FaultProxy:
    """Listens on a port of its own and passes requests on to one server, or does not.

    Parameters
    ----------
    upstream_port
        The server's port on the loopback.
    faults
        What goes wrong; may be exchanged at any time.
    seed
        Of the dice.
    """

    def __init__(self, upstream_port: int, faults: Faults, *, seed: int = 1) -> None:
        self.faults = faults
        self.counts: Counter[str] = Counter()
        self.port = 0
        self.is_out = False
        self.upstream_port = upstream_port
        self._dice = random.Random(seed)
        self._tasks: set[asyncio.Task[None]] = set()

    def reseed(self, seed: int = 1) -> None:
        """Seed the random choices anew."""
        self._dice.seed(seed)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[FaultProxy]:
        """Serve within the ``async with`` block."""
        await self.listen()
        try:
            yield self
        finally:
            await self.stop_listening()

    async def listen(self) -> None:
        """Begin to serve, or begin again at the same port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop_listening(self) -> None:
        """End all connections; new ones are refused, as by a platform that is down."""
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        was_reset = False
        try:
            while await self._serve_one(reader, writer):
                pass
        except ResetError:
            was_reset = True
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError, asyncio.CancelledError):
            pass  # the client has gone, or the test is over
        finally:
            writer.transport.abort() if was_reset else writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        idle = self.faults.close_idle_after_seconds
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), idle)
        length = 0
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        request = head + await reader.readexactly(length)
        self.counts["requests"] += 1
        if self.is_out:
            raise ResetError
        await self._deliver(writer, await self._answer(request))
        return True

    def _happens(self, name: str) -> bool:
        happens = self._dice.random() < getattr(self.faults, name)
        self.counts[name] += happens
        return happens

    async def _answer(self, request: bytes) -> bytes:
        if self._happens("lost_request"):
            raise ResetError
        status = self._status()
        if status in NOT_RUN or (status and self._dice.random() < 0.5):
            return self._status_answer(status)
        await self._delay()
        if self._happens("doubled"):
            again = asyncio.create_task(self._forward_quietly(request))
            self._tasks.add(again)
            again.add_done_callback(self._tasks.discard)
        answer = await self._forward(request)
        await self._delay()
        if status:
            return self._status_answer(status)
        if self._happens("lost_answer") or self.is_out:
            raise ResetError
        if self._happens("stalled"):
            await asyncio.sleep(3600)
        head, _, body = answer.partition(b"\r\n\r\n")
        if self._happens("cut_body"):
            body = body[: len(body) // 2]
        return _with_length(head, len(body)) + body

    async def _deliver(self, writer: asyncio.StreamWriter, answer: bytes) -> None:
        if self._happens("broken_body"):
            writer.write(answer[: len(answer) * 2 // 3])
            await writer.drain()
            raise ResetError
        pieces = 20 if self._happens("dripped") else 1
        size = len(answer) // pieces + 1
        for start in range(0, len(answer), size):
            writer.write(answer[start : start + size])
            await writer.drain()
            if pieces > 1:
                await asyncio.sleep(0.02)

    def _status(self) -> int:
        roll = self._dice.random()
        for status, probability in self.faults.statuses:
            roll -= probability
            if roll < 0:
                self.counts[str(status)] += 1
                return status
        return 0

    def _status_answer(self, status: int) -> bytes:
        lines = [f"HTTP/1.1 {status} {REASONS[status]}", "Content-Length: 2"]
        if status == 429:
            after = self.faults.retry_after_seconds
            date = email.utils.formatdate(time.time() + after, usegmt=True)
            lines.append(f"Retry-After: {self._dice.choice([f'{after:g}', date])}")
        return ("\r\n".join(lines) + "\r\n\r\n{}").encode()

    async def _delay(self) -> None:
        if self._happens("delayed"):
            await asyncio.sleep(self._dice.random() * self.faults.delay_seconds)

    async def _forward(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.upstream_port)
        try:
            writer.write(request.replace(b"Connection: keep-alive", b"Connection: close", 1))
            await writer.drain()
            return await reader.read()
        finally:
            writer.close()

    async def _forward_quietly(self, request: bytes) -> None:
        with contextlib.suppress(OSError):
            await self._forward(request)


def _with_length(head: bytes, length: int) -> bytes:
    """The head of an answer, kept alive and with this length."""
    kept = [
        line
        for line in head.split(b"\r\n")
        if not line.lower().startswith((b"content-length:", b"connection:", b"transfer-encoding:"))
    ]
    return b"\r\n".join([*kept, b"Content-Length: %d" % length]) + b"\r\n\r\n"


class ForgetfulRelay:
    """Passes bytes on, like a router or balancer that can forget connections.

    What comes over a forgotten connection is dropped without a word, in both directions; it is not
    closed. Connections that are made later are new to it.

    Parameters
    ----------
    upstream_port
        The server's port on the loopback.
    """

    def __init__(self, upstream_port: int) -> None:
        self.connections = 0
        self.dropped_bytes = 0
        self.port = 0
        self._forgotten = 0
        self._upstream_port = upstream_port
        self._tasks: set[asyncio.Task[None]] = set()

    def forget(self) -> None:
        """Forget all connections that there are."""
        self._forgotten = self.connections

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[ForgetfulRelay]:
        """Serve within the ``async with`` block."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        number = self.connections
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        try:
            await asyncio.gather(
                self._copy(number, reader, far_writer), self._copy(number, far_reader, writer)
            )
        except (OSError, asyncio.CancelledError):
            pass  # either side has gone, or the test is over
        finally:
            writer.close()
            far_writer.close()

    async def _copy(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(65536):
            if number <= self._forgotten:
                self.dropped_bytes += len(data)
                continue
            writer.write(data)
            await writer.drain()
        if number > self._forgotten:
            writer.close()


@contextlib.contextmanager
def forgetful_relay(upstream_port: int) -> Iterator[ForgetfulRelay]:
    """Run a relay on a thread of its own, beside a test that blocks."""
    relay = ForgetfulRelay(upstream_port)
    loop = asyncio.new_event_loop()
    is_over = asyncio.Event()

    async def serve() -> None:
        async with relay.running():
            is_serving.set()
            await is_over.wait()

    is_serving = threading.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    is_serving.wait(10)
    try:
        yield relay
    finally:
        loop.call_soon_threadsafe(is_over.set)
        thread.join(10)
        loop.close()
