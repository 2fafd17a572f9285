"""Asks the user something while a cell runs (message spec, stdin channel)."""

from __future__ import annotations

import asyncio
from typing import Any

import zmq

POLL_SECONDS = 0.02


async def ask(
    session: Any,
    stdin_socket: Any,
    prompt: str,
    *,
    parent: dict[str, Any],
    ident: Any,
    password: bool = False,
) -> str:
    """Send an ``input_request`` and wait for the reply without blocking the loop.

    Cancel the task to give up, for example when the cell is interrupted.
    """
    while True:  # answers that came too late for an earlier question
        try:
            stdin_socket.recv_multipart(zmq.NOBLOCK)
        except zmq.ZMQError:
            break
    content = {"prompt": prompt, "password": password}
    session.send(stdin_socket, "input_request", content, parent, ident=ident)
    while True:
        _, reply = session.recv(stdin_socket, zmq.NOBLOCK)
        if reply is not None:
            return str(reply["content"].get("value", ""))
        await asyncio.sleep(POLL_SECONDS)
