"""From settings to a sandbox: the one place where kernel, magics and command line resolve it."""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_data_dir
from traitlets.config import Config

from ivy_kernel.api import Connection, IvyClient, RecoupClient
from ivy_kernel.api.auth import Credential
from ivy_kernel.api.clients import RETRY_SECONDS, recoup_credential
from ivy_kernel.errors import SettingError
from ivy_kernel.models import Sink
from ivy_kernel.routes.events import Event
from ivy_kernel.session import local_server, private_file
from ivy_kernel.session.lifecycle import Lifecycle
from ivy_kernel.session.session import Session
from ivy_kernel.settings.files import config_file_names
from ivy_kernel.settings.settings import (
    LOCAL_CHAT_ID,
    Ivy,
    environment_name,
    load_settings,
    missing_sentence,
    setting_names,
)


def session_ids_file() -> Path:
    """The file that keeps the generated ids."""
    return Path(jupyter_data_dir()) / "ivy" / "session-ids.json"


def session_id_for(chat_id: str) -> str:
    """The kept session id of a chat; made now when there is none.

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


LOCAL_RETRY_SECONDS = 0.5
"""A local sandbox that refuses a connection has ended, and comes back only when it is started."""


class LiveSettings:
    """Settings that follow config files and environment, so that a new key needs no restart.

    Parameters
    ----------
    arguments, flags
        As in `load_settings`.
    """

    def __init__(
        self, *, arguments: Mapping[str, Any] | None = None, flags: Config | None = None
    ) -> None:
        self._arguments = dict(arguments or {})
        self._own_arguments = dict(self._arguments)
        self._flags = flags
        self._settings: Ivy | None = None
        self._seen: tuple[list[_Seen], int] = ([], 0)

    def current(self) -> Ivy:
        """The settings of the moment.

        Raises
        ------
        SettingError
            When one cannot be used.
        """
        seen = (_fingerprint(), _environment())
        if self._settings is None or seen != self._seen:
            self._settings = None
            self._settings = load_settings(arguments=self._arguments, flags=self._flags)
            self._seen = seen
        return self._settings

    def reload(self) -> Ivy:
        """Read all settings again, whether or not a change can be seen from outside."""
        self._settings = None
        return self.current()

    def attach(
        self, chat_id: str, *, campaign_id: str | None = None, session_id: str | None = None
    ) -> Callable[[], None]:
        """Mean another chat from now on, whatever the files and the environment say.

        Parameters
        ----------
        chat_id
            The chat; the one that the settings name leads back to them.
        campaign_id
            Its campaign; ``None``: as the settings say.
        session_id
            Session id for a new sandbox; ``None``: as the settings say for their own chat, a
            generated one for any other.

        Returns
        -------
        Callable[[], None]
            Takes it back.

        Raises
        ------
        SettingError
            When an id cannot be used; nothing has changed then.
        """
        before = self._arguments

        def undo() -> None:
            self._arguments, self._settings = before, None

        self._arguments, self._settings = dict(self._own_arguments), None
        try:
            if chat_id != (self.current().chat_id or LOCAL_CHAT_ID):
                # These two belong to the settings' own chat.
                self._arguments |= {"chat_id": chat_id, "session_id": "", "recoup_session_id": ""}
            given = {"campaign_id": campaign_id, "session_id": session_id}
            self._arguments |= {name: value for name, value in given.items() if value is not None}
            self.reload()
        except SettingError:
            undo()
            raise
        return undo


def _environment() -> int:
    """Changes when a variable of ours does; a hash, so that no key is kept."""
    return hash(tuple(os.environ.get(name) for name in _VARIABLES))


_VARIABLES = tuple(environment_name(name) for name in setting_names())

_Seen = tuple[Path, int, int, int]
"""A file, and what changes when it is edited or replaced: time in ns, size, inode."""


def _fingerprint() -> list[_Seen]:
    seen = []
    for path in config_file_names():
        try:
            status = os.stat(path)  # noqa: PTH116 - each cell looks several times
        except OSError:
            continue
        seen.append((path, status.st_mtime_ns, status.st_size, status.st_ino))
    return seen


def open_lifecycle(
    live: LiveSettings, *, chat_id: str | None = None, campaign_id: str | None = None
) -> Lifecycle:
    """The sandbox that the settings mean. Talks to nobody yet.

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
    return Lifecycle(
        _connector(live),
        chat_id=chat_id,
        campaign_id=campaign_id,
        session_id=session_id or session_id_for(chat_id),
        start_timeout_seconds=settings.start_timeout_seconds,
        local=settings.is_local,
        missing_campaign=missing_sentence("campaign_id"),
        api_url="local" if settings.is_local else settings.api_url,
        connect_recoup=_recoup_connector(live) if recoup_session_id else None,
        recoup_session_id=recoup_session_id,
        key_fingerprint=lambda: _key_fingerprint(live),
    )


def open_session(
    live: LiveSettings,
    *,
    fresh: bool = False,
    session_key: str | None = None,
    on_background: Sink | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> Session:
    """A session on the sandbox that the settings mean. Talks to nobody yet.

    Parameters
    ----------
    live
        The settings.
    fresh, session_key, on_background, on_event
        As in `Session`.

    Raises
    ------
    SettingError
        As `open_lifecycle`.
    """
    settings = live.current()
    return Session(
        open_lifecycle(live),
        route=settings.route,
        auto_create=settings.auto_create,
        cell_timeout_seconds=settings.cell_timeout_seconds,
        code_fields=code_fields(settings),
        fresh=fresh,
        session_key=session_key,
        on_background=on_background,
        on_event=on_event,
    )


def code_fields(settings: Ivy) -> dict[str, str]:
    """Tool → the field that carries its code or command."""
    return {
        "sandbox_python": settings.python_code_field,
        "sandbox_notebook": settings.notebook_code_field,
        "sandbox_rscript": settings.rscript_code_field,
        "sandbox_exec": settings.exec_command_field,
    }


def identity(settings: Ivy) -> tuple[object, ...]:
    """What must stay the same for a session to stay the right one."""
    names = (
        *("api_url", "chat_id", "campaign_id", "session_id", "route", "auto_create"),
        *("cell_timeout_seconds", "start_timeout_seconds", "connect_timeout_seconds"),
        *("ca_bundle", "response_limit_bytes"),
        *("python_code_field", "notebook_code_field", "rscript_code_field", "exec_command_field"),
    )
    return (settings.is_local, *(getattr(settings, name) for name in names))


def _key_fingerprint(live: LiveSettings) -> object:
    """Changes when a key or an address does; a hash, so that no key is kept."""
    settings = live.current()
    return hash((settings.api_key, settings.api_url, settings.recoup_api_key))


def _connector(live: LiveSettings) -> Callable[[], Awaitable[IvyClient]]:
    async def connect() -> IvyClient:
        url, key = await _address(live)
        settings = live.current()
        return IvyClient(
            _connection(settings, url, Credential(key)),
            retry_seconds=LOCAL_RETRY_SECONDS if settings.is_local else RETRY_SECONDS,
        )

    return connect


def _recoup_connector(live: LiveSettings) -> Callable[[], Awaitable[RecoupClient]]:
    """Recoup's client; the local sandbox serves its route too, for who has no account there."""

    async def connect() -> RecoupClient:
        settings = live.current()
        if settings.is_local and not settings.recoup_api_key:
            url, key = await _address(live)
            url = url.removesuffix("/api")
        else:
            settings.require("recoup_api_key")
            url, key = settings.recoup_api_url, lambda: live.current().recoup_api_key
        return RecoupClient(_connection(settings, url, recoup_credential(key)))

    return connect


async def _address(live: LiveSettings) -> tuple[str, Callable[[], str]]:
    """Where the Ivy API is, and what gives its key."""
    settings = live.current()
    if not settings.is_local:
        return settings.api_url, lambda: live.current().api_key
    found = await local_server.find_or_start(idle_exit_seconds=settings.local_idle_exit_seconds)
    return found.url, lambda: found.token


def _connection(settings: Ivy, url: str, credential: Credential) -> Connection:
    return Connection(
        url,
        credential,
        ca_bundle=settings.ca_bundle or None,
        connect_timeout_seconds=settings.connect_timeout_seconds,
        response_limit_bytes=settings.response_limit_bytes,
    )
