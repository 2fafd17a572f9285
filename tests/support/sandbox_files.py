"""The files of a test server's sandbox, as a process of ours opens them."""

from __future__ import annotations

from typing import Any

from ivy_kernel.api.auth import Credential
from ivy_kernel.api.clients import IvyClient
from ivy_kernel.api.connection import Connection
from ivy_kernel.routes.tools import SandboxTools
from ivy_kernel.session.files import SandboxFiles
from ivy_kernel.session.lifecycle import Lifecycle


def files_of(server: Any, chat_id: str, *, patience_seconds: float = 20.0) -> SandboxFiles:
    """Open the files of a chat through a server, or a gateway before one.

    Parameters
    ----------
    server
        Has ``url`` and ``token``.
    chat_id
        The chat.
    patience_seconds
        How long a transfer may make no progress.
    """

    async def connect() -> IvyClient:
        return IvyClient(Connection(server.url, Credential(lambda: server.token)))

    lifecycle = Lifecycle(
        connect,
        chat_id=chat_id,
        campaign_id=f"campaign-of-{chat_id}",
        session_id=f"session-of-{chat_id}",
        api_url=server.url,
    )
    return SandboxFiles(
        lifecycle,
        SandboxTools(lifecycle.client, chat_id, {}),
        owns_lifecycle=True,
        patience_seconds=patience_seconds,
    )
