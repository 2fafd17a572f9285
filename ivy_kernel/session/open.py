"""Factories: the session and the lifecycle of the sandbox that the settings name.

Kernel, magics, command line and server extension all come through here, so that they mean the same
sandbox. Session ids that nothing names are generated here and kept per chat.
"""

from __future__ import annotations

import fcntl
import json
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from jupyter_core.paths import jupyter_data_dir

from ivy_kernel.api.auth import Credential
from ivy_kernel.api.clients import RETRY_SECONDS, IvyClient, RecoupClient, recoup_credential
from ivy_kernel.api.connection import Connection
from ivy_kernel.models import Namespace, Sink
from ivy_kernel.routes.agent.pacing import AgentOptions
from ivy_kernel.routes.events import Event
from ivy_kernel.routes.tools import TOOLS, SandboxTools
from ivy_kernel.session import local_server, private_file
from ivy_kernel.session.lifecycle import LOCAL_KEEP_ALIVE_SECONDS, Lifecycle
from ivy_kernel.session.recovery import Recovery
from ivy_kernel.session.session import Session
from ivy_kernel.settings.live import LiveSettings
from ivy_kernel.settings.settings import LOCAL_CHAT_ID, Ivy, missing_sentence

if TYPE_CHECKING:
    from ivy_kernel.session.files import SandboxFiles
    from ivy_kernel.session.notebook_record import NotebookRecord


# Generated session ids ----------------------------------------------------------------------------
def session_ids_file() -> Path:
    """Return the path of the file that keeps the generated ids."""
    return Path(jupyter_data_dir()) / "ivy" / "session-ids.json"


def session_id_for(chat_id: str) -> str:
    """Return the kept session id of a chat; generates it when there is none.

    A file that cannot be read or written costs nothing but that the id is not kept.
    """
    path = session_ids_file()
    kept = _read(path).get(chat_id)
    if kept:
        return kept
    made = str(uuid.uuid4())
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Two kernels that start at once must agree, and must not lose each other's chats.
        with path.with_name(f"{path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = _read(path)
            made = known.setdefault(chat_id, made)
            private_file.write_json(path, known, indent=1)
    except OSError:
        pass
    return made


def _read(path: Path) -> dict[str, str]:
    try:
        loaded = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(loaded, dict):
        return {}
    return {key: value for key, value in loaded.items() if isinstance(value, str) and value}


# Factories ----------------------------------------------------------------------------------------
LOCAL_RETRY_SECONDS = 0.5
"""A local sandbox that refuses a connection has ended, and comes back only when it is started."""


class SessionOwner(Protocol):
    """A notebook: its settings, and the session that they lead to."""

    @property
    def live(self) -> LiveSettings:
        """The settings."""

    def session(self) -> Session:
        """Return the session that the notebook's cells use.

        Raises
        ------
        SettingError
            When the settings mean none: says why.
        """


CLOUD_AGENT = AgentOptions()
# The local sandbox costs nothing, so an open notebook keeps it, and its variables, overnight too.
# Nothing of the kind is done to a sandbox in the cloud, which would be kept from hibernating.
LOCAL_AGENT = AgentOptions(idle_lifetime_seconds=7 * 24 * 3600.0)


def open_lifecycle(
    live: LiveSettings, *, chat_id: str | None = None, campaign_id: str | None = None
) -> Lifecycle:
    """Return the lifecycle of the sandbox that the settings name. Sends no request yet.

    Parameters
    ----------
    live
        The settings.
    chat_id, campaign_id
        Another chat than the settings', and its campaign; ``None``: as the settings say.

    Raises
    ------
    SettingError
        When a setting is wrong, or the platform's key is there but no chat.
    """
    settings = live.current()
    is_own_chat = chat_id is None or chat_id == (settings.chat_id or LOCAL_CHAT_ID)
    if settings.is_local:
        chat_id = chat_id or settings.chat_id or LOCAL_CHAT_ID
        campaign_id = campaign_id or settings.campaign_id or LOCAL_CHAT_ID
    else:
        settings.require("api_key")
        chat_id = chat_id or settings.require("chat_id")
        campaign_id = campaign_id or settings.campaign_id
    # These two belong to the settings' own chat.
    session_id = settings.session_id if is_own_chat else ""
    recoup_session_id = settings.recoup_session_id if is_own_chat else ""
    session_id = session_id or session_id_for(chat_id)
    # The local sandbox speaks both dialects, and knows its session by the id of its creation.
    speaks_both = settings.is_local and not recoup_session_id
    connect_recoup = None
    if recoup_session_id or speaks_both:
        connect_recoup = _recoup_connector(live, is_beside=speaks_both)
    return Lifecycle(
        _connector(live),
        chat_id=chat_id,
        campaign_id=campaign_id,
        session_id=session_id,
        start_timeout_seconds=settings.start_timeout_seconds,
        local=settings.is_local,
        missing_campaign=missing_sentence("campaign_id"),
        api_url="local" if settings.is_local else settings.api_url,
        connect_recoup=connect_recoup,
        recoup_session_id=session_id if speaks_both else recoup_session_id,
        recoup_is_optional=speaks_both,
        key_fingerprint=lambda: _key_fingerprint(live),
        keep_alive_seconds=min(LOCAL_KEEP_ALIVE_SECONDS, settings.local_idle_exit_seconds / 3),
    )


def open_session(
    live: LiveSettings,
    *,
    fresh: bool = False,
    session_key: str | None = None,
    on_background: Sink | None = None,
    on_event: Callable[[Event], None] | None = None,
    namespace: Namespace | None = None,
    is_behind: Callable[[], bool] = bool,
    record: NotebookRecord | None = None,
) -> Session:
    """Return a session on the sandbox that the settings name. Sends no request yet.

    Parameters
    ----------
    live
        The settings.
    fresh, session_key, on_background, on_event, is_behind, namespace
        As in `Session`.
    record
        Of the notebook whose variables are kept beyond their sandbox; ``None`` for nothing of that.

    Raises
    ------
    SettingError
        As `open_lifecycle`.
    """
    settings = live.current()
    lifecycle = open_lifecycle(live)
    notebook = record.notebook_id if record is not None and record.path else ""
    agent_options = replace(LOCAL_AGENT if lifecycle.local else CLOUD_AGENT, notebook=notebook)
    recovery = None
    if record is not None and settings.checkpoints:
        recovery = Recovery(
            record.chat(lifecycle.key[:2]),
            restore=settings.restore,
            copy_limit_bytes=settings.checkpoint_copy_bytes,
        )
    return Session(
        lifecycle,
        route=settings.route,
        auto_create=settings.auto_create,
        auto_create_hidden=settings.auto_create_hidden,
        cell_timeout_seconds=settings.cell_timeout_seconds,
        code_fields=code_fields(settings),
        fresh=fresh,
        session_key=session_key,
        on_background=on_background,
        on_event=on_event,
        is_behind=is_behind,
        agent_options=agent_options,
        namespace=namespace,
        recovery=recovery,
    )


def open_files(live: LiveSettings, *, chat_id: str | None = None) -> SandboxFiles:
    """Return the files of the sandbox that the settings name, or of another chat's.

    Sends no request yet; `SandboxFiles.aclose` closes its connections.

    Raises
    ------
    SettingError
        As `open_lifecycle`.
    """
    # Only here: no cell needs it.
    from ivy_kernel.session.files import SandboxFiles

    lifecycle = open_lifecycle(live, chat_id=chat_id)
    tools = SandboxTools(lifecycle.client, lifecycle.chat_id, code_fields(live.current()))
    return SandboxFiles(lifecycle, tools, owns_lifecycle=True)


def code_fields(settings: Ivy) -> dict[str, str]:
    """Tool → the field that carries its code, as the settings name it."""
    return {tool.name: getattr(settings, tool.field_setting) for tool in TOOLS.values()}


def identity(settings: Ivy) -> tuple[object, ...]:
    """Return the settings that a session depends on: when one changes, a new session is needed.

    Keys are not among them: the client asks for the key of the moment at each request.
    """
    names = (
        *("api_url", "chat_id", "campaign_id", "session_id", "route"),
        *("auto_create", "auto_create_hidden"),
        *("cell_timeout_seconds", "start_timeout_seconds", "connect_timeout_seconds"),
        *("ca_bundle", "response_limit_bytes"),
        *("checkpoints", "restore", "checkpoint_copy_bytes"),
        *(tool.field_setting for tool in TOOLS.values()),
    )
    return (settings.is_local, *(getattr(settings, name) for name in names))


def _key_fingerprint(live: LiveSettings) -> object:
    """Return a value that changes when a key or an address does; a hash keeps no key."""
    settings = live.current()
    addresses = (settings.api_url, settings.recoup_api_url)
    return hash((settings.api_key, settings.recoup_api_key, *addresses))


def _connector(live: LiveSettings) -> Callable[[], Awaitable[IvyClient]]:
    async def connect() -> IvyClient:
        url, key, socket_path = await _address(live)
        settings = live.current()
        return IvyClient(
            _connection(settings, url, Credential(key), socket_path),
            retry_seconds=LOCAL_RETRY_SECONDS if settings.is_local else RETRY_SECONDS,
        )

    return connect


def _recoup_connector(
    live: LiveSettings, *, is_beside: bool
) -> Callable[[], Awaitable[RecoupClient]]:
    """Return what makes Recoup's client; without an account there, the local sandbox serves it.

    Parameters
    ----------
    live
        The settings.
    is_beside
        Whether the local sandbox serves it in any case, beside Ivy's API.
    """

    async def connect() -> RecoupClient:
        settings = live.current()
        socket_path = None
        if settings.is_local and (is_beside or not settings.recoup_api_key):
            url, key, socket_path = await _address(live)
            url = url.removesuffix("/api")
        else:
            settings.require("recoup_api_key")
            url, key = settings.recoup_api_url, lambda: live.current().recoup_api_key
        return RecoupClient(_connection(settings, url, recoup_credential(key), socket_path))

    return connect


async def _address(live: LiveSettings) -> tuple[str, Callable[[], str], str | None]:
    """Return the address of the Ivy API, what gives its key, and the local sandbox's socket."""
    # Called again for each connection: an embedded server that was started anew has another port
    # and another token.
    settings = live.current()
    if not settings.is_local:
        return settings.api_url, lambda: live.current().api_key, None
    found = await local_server.find_or_start(idle_exit_seconds=settings.local_idle_exit_seconds)
    return found.url, lambda: found.token, found.socket_path


def _connection(
    settings: Ivy, url: str, credential: Credential, socket_path: str | None
) -> Connection:
    return Connection(
        url,
        credential,
        ca_bundle=settings.ca_bundle or None,
        connect_timeout_seconds=settings.connect_timeout_seconds,
        response_limit_bytes=settings.response_limit_bytes,
        socket_path=socket_path,
    )
