"""Ports for the kernels of tests, outside the range that the system gives out by itself.

jupyter_client picks a kernel's ports a second before the kernel binds them. Many tests beside each
other open thousands of sockets in that time, and one in some hundred kernels would find a port of
its own taken. So the ports come from below the range that the system chooses from.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

from jupyter_client.connect import LocalPortCache

_FIRST = 10_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def use_quiet_ports() -> None:
    """Give such ports to every kernel that this process starts, where the range is known."""
    if not _RANGE.exists():
        return
    end = int(_RANGE.read_text().split()[0])
    if end - _FIRST < 1_000:
        return

    choice = random.SystemRandom()  # no seed of another test has two processes choose alike

    def find_available_port(self: LocalPortCache, ip: str) -> int:
        while True:
            port = choice.randrange(_FIRST, end)
            with socket.socket() as probe:
                try:
                    probe.bind((ip, port))
                except OSError:
                    continue
            if port not in self.currently_used_ports:
                self.currently_used_ports.add(port)
                return port

    LocalPortCache.find_available_port = find_available_port
