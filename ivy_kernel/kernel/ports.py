"""Keeps the kernel's ports free while the kernel is being imported.

The program that starts a kernel picks five free ports, writes them to the connection file and
releases them; ipykernel binds them once it is imported, a second later. Any socket of the machine
that gets a port of the system's choice in between may have got one of them. Then the kernel dies
with "Address already in use", or hangs when it was the iopub port. So they are bound here at once,
without listening, and released just before the kernel binds them itself.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 5.0  # for a port that another program has got, and may release
_PAUSE_SECONDS = 0.05
_PORTS = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")


class PortTakenError(Exception):
    """A port of the connection file stays taken.

    Parameters
    ----------
    name, port
        The port's name in the connection file, and its number.
    """

    def __init__(self, name: str, port: int) -> None:
        super().__init__(
            f"The kernel cannot start: its port {port} ({name} of the connection file) is in use "
            f"by another program. Start it again; it gets other ports then."
        )


class HeldPorts:
    """The ports of a connection file, bound so that no other program gets them by chance.

    Parameters
    ----------
    connection
        Content of the connection file (jupyter_client, "connection files"). Nothing is held for
        other transports than ``tcp``.
    patience_seconds
        Time limit for waiting for ports that are taken.

    Raises
    ------
    PortTakenError
        When one stays taken. Any other error is left to ipykernel, which reports it better.
    """

    def __init__(
        self, connection: dict[str, Any], patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self._sockets: list[socket.socket] = []
        if connection.get("transport", "tcp") != "tcp":
            return
        deadline = time.monotonic() + patience_seconds
        for name in _PORTS:
            port = connection.get(name)
            if isinstance(port, int) and port > 0:
                self._hold(str(connection.get("ip", "127.0.0.1")), name, port, deadline)

    def _hold(self, address: str, name: str, port: int, deadline: float) -> None:
        holder = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        self._sockets.append(holder)
        if os.name == "posix":  # as libzmq does: TIME_WAIT of an old connection is no hindrance
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        while True:
            try:
                holder.bind(("" if address == "*" else address, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    return
                if time.monotonic() > deadline:
                    self.release()
                    raise PortTakenError(name, port) from None
                time.sleep(_PAUSE_SECONDS)
            else:
                return

    def release(self) -> None:
        """Release the ports; call it just before the kernel binds them."""
        for holder in self._sockets:
            holder.close()
        self._sockets.clear()


def held_ports(arguments: Sequence[str]) -> HeldPorts:
    """Hold the ports of the connection file that a kernel's command line names with ``-f``.

    A file that cannot be read holds nothing: ipykernel reads it again and reports the error.

    Raises
    ------
    PortTakenError
        When one stays taken.
    """
    connection: Any = None
    with contextlib.suppress(OSError, ValueError):
        connection = json.loads(Path(_connection_file(arguments)).read_bytes())
    return HeldPorts(connection if isinstance(connection, dict) else {})


def _connection_file(arguments: Sequence[str]) -> str:
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if argument == "-f":
            return following
        option, equals, value = argument.partition("=")
        if equals and option in ("-f", "--f"):
            return value
    return ""
