"""A small real HTTP server whose answers are written out, byte by byte, by the test.

::

    async with ScriptedServer(json_answer({"status": "active"})) as server:
        ...
        assert len(server.requests) == 1
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

KEY = "ivy_test_Sekret-0123456789"
"""A key that must be seen nowhere but in the header that carries it."""


@dataclass(frozen=True)
class Request:
    """One request as it came over the wire."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> list[str]:
        """The values of a header."""
        return [value for key, value in self.headers if key.lower() == name.lower()]

    @property
    def json(self) -> Any:
        """The decoded body."""
        return json.loads(self.body)


Action = Callable[[Request, asyncio.StreamWriter], Awaitable[bool]]
"""Answers one request; whether the connection is kept."""


def raw_answer(data: bytes, *, keep: bool = False) -> Action:
    """These bytes, then the end of the connection."""

    async def act(_request: Request, writer: asyncio.StreamWriter) -> bool:
        writer.write(data)
        await writer.drain()
        return keep

    return act


def answer(status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> Action:
    """A well-formed answer on a connection that is kept."""
    lines = [f"HTTP/1.1 {status} Words", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return raw_answer("\r\n".join([*lines, "", ""]).encode() + body, keep=True)


def json_answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Action:
    """A well-formed answer with a JSON body."""
    return answer(status, json.dumps(value).encode(), headers)


async def hang(_request: Request, _writer: asyncio.StreamWriter) -> bool:
    """Never answer."""
    await asyncio.Event().wait()
    return False


async def reset(_request: Request, writer: asyncio.StreamWriter) -> bool:
    """Read the request, then resets the connection."""
    reset_connection(writer)
    return False


async def answer_then_close_silently(_request: Request, writer: asyncio.StreamWriter) -> bool:
    """A good answer that promises to keep the connection, and then closes it."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    await writer.drain()
    return False


def drip(head: bytes, piece: bytes, pause_seconds: float) -> Action:
    """A head, then a piece every so often, for ever."""

    async def act(_request: Request, writer: asyncio.StreamWriter) -> bool:
        writer.write(head)
        while True:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause_seconds)

    return act


def reset_connection(writer: asyncio.StreamWriter) -> None:
    """Reset the connection."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


class ScriptedServer:
    """Answers request after request with action after action; the last action stays.

    Parameters
    ----------
    actions
        What to do with each request.
    tls
        The server's certificate; ``None`` for plain HTTP.
    resets_first
        So many connections are reset before anything is read from them.
    port
        Port of 127.0.0.1; 0 for any free one.
    """

    def __init__(
        self,
        *actions: Action,
        tls: ssl.SSLContext | None = None,
        resets_first: int = 0,
        port: int = 0,
    ) -> None:
        self._actions = list(actions)
        self._tls = tls
        self._resets_first = resets_first
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests: list[Request] = []
        self.connections = 0
        self.closed_connections = 0
        self.port = port

    @property
    def url(self) -> str:
        """The base URL."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    async def __aenter__(self) -> ScriptedServer:  # noqa: PYI034 - nobody derives from it
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, ssl=self._tls
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            if self.connections <= self._resets_first:
                reset_connection(writer)
                return
            async for request in _requests(reader):
                self.requests.append(request)
                action = self._actions.pop(0) if len(self._actions) > 1 else self._actions[0]
                if not await action(request, writer):
                    return
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()
            self.closed_connections += 1


async def read_head(reader: asyncio.StreamReader) -> tuple[str, list[tuple[str, str]]] | None:
    """The first line and the headers of a message; ``None`` at the end of the connection."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head.rstrip("\r\n").split("\r\n")
    headers = []
    for line in lines:
        name, _, value = line.partition(":")
        headers.append((name, value.strip()))
    return first, headers


async def _requests(reader: asyncio.StreamReader) -> AsyncIterator[Request]:
    while (head := await read_head(reader)) is not None:
        first, headers = head
        method, target, _ = first.split(" ")
        length = next((int(v) for k, v in headers if k.lower() == "content-length"), 0)
        yield Request(method, target, headers, await reader.readexactly(length))


def free_port() -> int:
    """Return a port of 127.0.0.1 that is not in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ConnectProxy:
    """A real HTTP proxy for ``CONNECT``, which leads every name to one server.

    Parameters
    ----------
    target_port
        Port of 127.0.0.1 to which all tunnels lead.
    status
        What it answers to ``CONNECT``.
    """

    def __init__(self, target_port: int, status: int = 200) -> None:
        self._target_port = target_port
        self._status = status
        self._tasks: set[asyncio.Task[None]] = set()
        self.heads: list[tuple[str, list[tuple[str, str]]]] = []
        self.port = 0

    @property
    def url(self) -> str:
        """The proxy's URL, as in a proxy variable."""
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> ConnectProxy:  # noqa: PYI034 - nobody derives from it
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        writers: Sequence[asyncio.StreamWriter] = [writer]
        try:
            head = await read_head(reader)
            if head is None:
                return
            self.heads.append(head)
            writer.write(f"HTTP/1.1 {self._status} Words\r\nContent-Length: 0\r\n\r\n".encode())
            await writer.drain()
            if self._status != 200:
                return
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
            writers = [writer, far_writer]
            await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for each in writers:
                each.close()
                with contextlib.suppress(ConnectionError):
                    await each.wait_closed()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()
