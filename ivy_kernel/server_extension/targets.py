"""Finds the sandbox that the settings, or a kernel's registry entry, name; or says why not."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from jupyter_core.utils import ensure_async
from jupyter_server.serverapp import ServerApp
from traitlets.config import Config

from ivy_kernel.errors import MissingSettingError, SettingError
from ivy_kernel.session.kernel_registry import KernelEntry
from ivy_kernel.session.lifecycle import Lifecycle
from ivy_kernel.session.open import code_fields, open_lifecycle
from ivy_kernel.settings.live import LiveSettings
from ivy_kernel.settings.settings import Ivy
from ivy_kernel.settings.urls import LOCAL


@dataclass(frozen=True, slots=True)
class AttachedKernel:
    """One kernel of this Jupyter server, and the notebooks attached to it.

    Parameters
    ----------
    notebook_paths
        The notebooks that use it, below the server's root directory; none for a console, or a
        kernel that was started by itself.
    last_activity
        Changes whenever the kernel has sent a message.
    is_busy
        Whether it runs a cell.
    """

    notebook_paths: tuple[str, ...]
    last_activity: str
    is_busy: bool = False


KernelLookup = Callable[[], Awaitable[Mapping[str, AttachedKernel]]]
"""Returns the present kernels by their ids."""


def kernel_lookup(server: ServerApp) -> KernelLookup:
    """Return a function that looks up the kernels of a server."""

    async def look() -> Mapping[str, AttachedKernel]:
        paths: dict[str, list[str]] = {}
        for session in await server.session_manager.list_sessions():
            if session["type"] == "notebook":
                paths.setdefault(session["kernel"]["id"], []).append(session["path"])
        kernels: list[dict[str, Any]] = await ensure_async(
            server.kernel_manager.list_kernels()  # type: ignore[no-untyped-call] # not annotated there
        )
        return {
            # last_activity is only compared, never shown.
            kernel["id"]: AttachedKernel(
                tuple(sorted(paths.get(kernel["id"], ()))),
                str(kernel.get("last_activity")),
                kernel.get("execution_state") == "busy",
            )
            for kernel in kernels
        }

    return look


UNSET_ID = "unset"
"""The id of the default sandbox while the settings name none."""


@dataclass(frozen=True, slots=True)
class SandboxTarget:
    """The sandbox that the settings or a kernel name, and our way to it.

    Parameters
    ----------
    sandbox_id
        Its opaque id, always the same for the same sandbox.
    name
        The name shown to the user.
    chat_id
        The chat; empty when unknown.
    local
        Whether it is the local sandbox.
    lifecycle
        Our hold on it, not connected yet; ``None`` when the settings do not allow for one.
    missing
        The sentence that says why there is no lifecycle.
    state
        The state shown without a lifecycle: ``none``, or ``unknown`` when it may exist.
    account
        Whether the settings hold a key of the platform, or cannot be read. The local sandbox is
        offered only when the user certainly has no account.
    code_fields
        Tool → the field that carries its code.
    """

    sandbox_id: str
    name: str
    chat_id: str
    local: bool
    lifecycle: Lifecycle | None = None
    missing: str | None = None
    state: str = "unknown"
    account: bool = True
    code_fields: Mapping[str, str] = field(default_factory=dict)


class TargetResolver:
    """Resolves targets by the present settings.

    Parameters
    ----------
    flags
        The section ``Ivy`` of this server's own configuration.

    Attributes
    ----------
    live
        The settings of this server.
    """

    def __init__(self, flags: Config) -> None:
        self.live = LiveSettings(flags=flags)
        # For kernels in the local sandbox beside a server whose settings name the platform.
        self._local = LiveSettings(arguments={"api_url": LOCAL}, flags=flags)
        self._chats: dict[str, str] = {}

    def settings_fingerprint(self) -> object:
        """Return a value that is equal as long as the settings are."""
        try:
            settings = self.live.current()
        except SettingError as exc:
            return str(exc)  # so that a repair, or another mistake, is a change too
        self._chats[settings.address] = settings.used_chat_id
        return settings

    def next_entry(self, entry: KernelEntry) -> KernelEntry:
        """Return a kernel's entry as its next cell will write it, as far as that is known.

        A kernel reads the settings before each cell. So one whose last cell went to an address that
        the settings no longer name, and that we must not send our key to, is shown where its next
        cell goes. No entry is changed whose sandbox can be looked at from here.
        """
        try:
            settings = self.live.current()
        except SettingError:
            return entry
        # A kernel reads our files; of our environment and flags it may know nothing.
        follows = entry.api_url in self._chats or (
            settings.sources["api_url"].kind == "config file"
        )
        if not follows or _other_address(entry, settings) is None:
            return entry
        chat_before = self._chats.get(entry.api_url, entry.chat_id)
        if entry.chat_id == chat_before or not entry.chat_id:
            chat_id, campaign_id = settings.used_chat_id, settings.campaign_id
        else:
            chat_id, campaign_id = entry.chat_id, entry.campaign_id  # it was attached to it
        return replace(entry, api_url=settings.address, chat_id=chat_id, campaign_id=campaign_id)

    def default_target(self, known_id: str) -> SandboxTarget:
        """Return the sandbox that the settings name.

        Parameters
        ----------
        known_id
            The id it had before, which it keeps while the settings cannot be read.
        """
        try:
            return _target(open_lifecycle(self.live), self.live.current())
        except MissingSettingError as exc:
            account = _has_account(self.live.current())
            return SandboxTarget(
                UNSET_ID,
                "Sandbox",
                "",
                local=False,
                missing=str(exc),
                state="none",
                account=account,
            )
        except SettingError as exc:
            return SandboxTarget(known_id, "Sandbox", "", local=False, missing=str(exc))

    def kernel_target(self, entry: KernelEntry) -> SandboxTarget:
        """Return the sandbox of a kernel."""
        try:
            settings = self.live.current()
            missing = _other_address(entry, settings)
            if missing is None:
                is_beside = entry.api_url == LOCAL and not settings.is_local
                live = self._local if is_beside else self.live
                return _target(
                    open_lifecycle(live, chat_id=entry.chat_id, campaign_id=entry.campaign_id),
                    settings,
                )
        except SettingError as exc:
            missing = str(exc)
        is_local = entry.api_url == LOCAL
        name = "Local sandbox" if is_local else f"Chat {entry.chat_id}"
        return SandboxTarget(
            sandbox_id_of(entry.api_url, entry.chat_id),
            name,
            entry.chat_id,
            is_local,
            missing=missing,
        )


def sandbox_id_of(api_url: str, chat_id: str) -> str:
    """Return the opaque id of a sandbox: the same in every process, and no address in it."""
    # Hashed for use in URLs: a chat id may hold any character. JSON keeps the two parts apart.
    text = json.dumps([api_url, chat_id])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:20]


def _target(lifecycle: Lifecycle, settings: Ivy) -> SandboxTarget:
    api_url, chat_id, _ = lifecycle.key
    return SandboxTarget(
        sandbox_id_of(api_url, chat_id),
        lifecycle.name,
        chat_id,
        lifecycle.local,
        lifecycle,
        account=_has_account(settings),
        code_fields=code_fields(settings),
    )


def _has_account(settings: Ivy) -> bool:
    return bool(settings.api_key or settings.recoup_api_key)


def _other_address(entry: KernelEntry, settings: Ivy) -> str | None:
    """Return why our key must not be used for a kernel's sandbox; ``None`` when it may."""
    # An entry names any address; a key must go only to the one that it was given for.
    mine = settings.address
    if entry.api_url in (LOCAL, mine):
        return None
    source = settings.sources["api_url"]
    remedy = (
        f"Start the Jupyter server without the {source}, and put"
        if source.kind == "flag"  # it would win over the file
        else "Put"
    )
    return (
        f"A kernel runs its cells at {entry.api_url}, but the settings of this Jupyter server say "
        f"{mine}, so that its sandbox cannot be looked at from here. {remedy} api_url and api_key "
        f"into jupyter_ivy_config.json, which kernels and server both read."
    )
