"""The kernels of the Jupyter server, and the notebooks that they belong to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jupyter_core.utils import ensure_async
from jupyter_server.serverapp import ServerApp


@dataclass(frozen=True, slots=True)
class Attached:
    """One kernel of this server.

    Parameters
    ----------
    notebook_paths
        The notebooks that use it, below the server's root directory; none for a console, or a
        kernel that was started by itself.
    last_activity
        Changes whenever the kernel has said anything.
    """

    notebook_paths: tuple[str, ...]
    last_activity: str


Kernels = Callable[[], Awaitable[Mapping[str, Attached]]]
"""Gives the kernels of the moment by their ids."""


def kernels_of(server: ServerApp) -> Kernels:
    """What looks up the kernels of a server."""

    async def look() -> Mapping[str, Attached]:
        paths: dict[str, list[str]] = {}
        for session in await server.session_manager.list_sessions():
            if session["type"] == "notebook":
                paths.setdefault(session["kernel"]["id"], []).append(session["path"])
        kernels: list[dict[str, Any]] = await ensure_async(
            server.kernel_manager.list_kernels()  # type: ignore[no-untyped-call] # not annotated there
        )
        return {
            kernel["id"]: Attached(
                tuple(sorted(paths.get(kernel["id"], ()))), str(kernel.get("last_activity"))
            )
            for kernel in kernels
        }

    return look
