"""Settings, or a kernel's use → the sandbox that is meant, or why none can be."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jupyter_core.utils import ensure_async
from jupyter_server.serverapp import ServerApp
from traitlets.config import Config

from ivy_kernel.errors import MissingSettingError, SettingError
from ivy_kernel.session.kernel_registry import Use
from ivy_kernel.session.lifecycle import Lifecycle
from ivy_kernel.session.open import open_lifecycle
from ivy_kernel.settings.live import LiveSettings
from ivy_kernel.settings.settings import Ivy
from ivy_kernel.settings.urls import LOCAL


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


UNSET_ID = "unset"
"""The id of the default sandbox while the settings mean none."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """A sandbox that is meant.

    Parameters
    ----------
    sandbox_id
        Its opaque id, always the same for the same sandbox.
    name
        What the user calls it.
    chat_id
        The chat; empty when unknown.
    local
        Whether it is the embedded local sandbox.
    lifecycle
        Our hold on it, not connected yet; ``None`` when the settings do not allow for one.
    missing
        The sentence that says why not.
    state
        What its state is called without a lifecycle: ``none``, or ``unknown`` when it may be there.
    account
        Whether the settings hold a key of the platform, or cannot be read. Only who surely has no
        account is offered to try the local sandbox.
    """

    sandbox_id: str
    name: str
    chat_id: str
    local: bool
    lifecycle: Lifecycle | None = None
    missing: str | None = None
    state: str = "unknown"
    account: bool = True


class Meanings:
    """Finds out what is meant, with the settings of the moment.

    Parameters
    ----------
    flags
        The section ``Ivy`` of this server's own configuration.
    """

    def __init__(self, flags: Config) -> None:
        self._live = LiveSettings(flags=flags)
        # For kernels in the local sandbox beside a server whose settings name the platform.
        self._local = LiveSettings(arguments={"api_url": LOCAL}, flags=flags)

    def token(self) -> object:
        """Equal as long as the same settings hold."""
        try:
            return self._live.current()
        except SettingError as exc:
            return str(exc)

    def of_settings(self, known_id: str) -> Meaning:
        """The default sandbox.

        Parameters
        ----------
        known_id
            The id it had before, which it keeps while the settings cannot be read.
        """
        try:
            return _found(open_lifecycle(self._live), _has_account(self._live.current()))
        except MissingSettingError as exc:
            account = _has_account(self._live.current())
            return Meaning(
                UNSET_ID,
                "Sandbox",
                "",
                local=False,
                missing=str(exc),
                state="none",
                account=account,
            )
        except SettingError as exc:
            return Meaning(known_id, "Sandbox", "", local=False, missing=str(exc))

    def of_use(self, use: Use) -> Meaning:
        """The sandbox of a kernel."""
        try:
            settings = self._live.current()
            missing = _other_address(use, settings)
            if missing is None:
                live = self._live if settings.is_local else self._local
                if use.api_url != LOCAL:
                    live = self._live
                return _found(
                    open_lifecycle(live, chat_id=use.chat_id, campaign_id=use.campaign_id),
                    _has_account(settings),
                )
        except SettingError as exc:
            missing = str(exc)
        is_local = use.api_url == LOCAL
        name = "Local sandbox" if is_local else f"Chat {use.chat_id}"
        return Meaning(
            id_of(use.api_url, use.chat_id), name, use.chat_id, is_local, missing=missing
        )


def id_of(api_url: str, chat_id: str) -> str:
    """The opaque id of a sandbox."""
    text = json.dumps([api_url, chat_id])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:20]


def _found(lifecycle: Lifecycle, account: bool) -> Meaning:
    api_url, chat_id, _ = lifecycle.key
    return Meaning(
        id_of(api_url, chat_id),
        lifecycle.name,
        chat_id,
        lifecycle.local,
        lifecycle,
        account=account,
    )


def _has_account(settings: Ivy) -> bool:
    return bool(settings.api_key or settings.recoup_api_key)


def _other_address(use: Use, settings: Ivy) -> str | None:
    """Why our key must not be used for a kernel's sandbox; ``None`` when it may."""
    mine = LOCAL if settings.is_local else settings.api_url
    if use.api_url in (LOCAL, mine):
        return None
    return (
        f"A kernel runs its cells at {use.api_url}, but the settings of this Jupyter server say "
        f"{mine}, so that its sandbox cannot be looked at from here. Put api_url and api_key into "
        f"jupyter_ivy_config.json, which kernels and server both read."
    )
