"""The chats that this person has used, with their names, and the account with its default chat.

The list is a private file below Jupyter's data directory, one for all kernels and commands. It
holds ids and names, and no key. Keys are in Jupyter's config file alone; `private_file` writes it.
"""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
from jupyter_core.paths import jupyter_data_dir

from ivy_kernel.errors import IvyError, SettingError, UsageError
from ivy_kernel.models import Json
from ivy_kernel.session import private_file
from ivy_kernel.session.describe import state_words
from ivy_kernel.session.lifecycle import PATIENT_DEADLINES_SECONDS
from ivy_kernel.session.open import open_lifecycle
from ivy_kernel.session.private_file import Saved, config_file, save_settings
from ivy_kernel.settings.live import LiveSettings
from ivy_kernel.settings.settings import Ivy, holds_key
from ivy_kernel.status.clock import monotonic_seconds

CHATS_AT_MOST = 500
"""Of more chats, those that have no name and were not used for the longest time are dropped."""
NAME_CHARACTERS_AT_MOST = 100

_UNFIT = re.compile("[\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069\\u2028\\u2029]")
"""Characters that would turn or break the line in which a name is shown."""


@dataclass(frozen=True, slots=True)
class KnownChat:
    """A chat that this person has used.

    Parameters
    ----------
    api_url
        Address of the API; ``local`` for the local sandbox.
    chat_id
        The chat.
    name
        The name that the person gave it; empty for none.
    campaign_id
        Its campaign; empty when unknown.
    session_id, recoup_session_id
        The sessions that the settings named for it while it was the default; empty for none.
    last_used_seconds
        When a session on it was opened last, as Unix time; ``None`` for never.
    """

    api_url: str
    chat_id: str
    name: str = ""
    campaign_id: str = ""
    session_id: str = ""
    recoup_session_id: str = ""
    last_used_seconds: float | None = None

    @property
    def last_used(self) -> datetime | None:
        """When a session on it was opened last; ``None`` for never."""
        if self.last_used_seconds is None:
            return None
        with suppress(ValueError, OverflowError, OSError):
            return datetime.fromtimestamp(self.last_used_seconds, timezone.utc)
        return None

    def to_json(self, default_id: str) -> Json:
        """Return the chat as scripts and front ends receive it."""
        used = self.last_used
        return {
            "chat_id": self.chat_id,
            "name": self.name,
            "campaign_id": self.campaign_id,
            "last_used": None if used is None else used.isoformat(timespec="seconds"),
            "is_default": self.chat_id == default_id,
            "is_local": self.api_url == "local",
        }


# The list of chats --------------------------------------------------------------------------------
_Chats = dict[tuple[str, str], KnownChat]


def chats_file() -> Path:
    """Return the path of the file that keeps the chats."""
    return Path(jupyter_data_dir()) / "ivy" / "chats.json"


def list_chats(settings: Ivy) -> list[KnownChat]:
    """Return the chats at the settings' address, last used first; the settings' own is among them.

    Parameters
    ----------
    settings
        The settings without `LiveSettings.attach`.
    """
    address, default_id = settings.address, settings.used_chat_id
    found = [chat for chat in _read(chats_file()).values() if chat.api_url == address]
    if default_id and all(chat.chat_id != default_id for chat in found):
        found.append(KnownChat(address, default_id))
    # The settings know the campaign of their own chat better than what was noted of it.
    campaign_id = settings.campaign_id
    found = [
        replace(chat, campaign_id=campaign_id)
        if campaign_id and chat.chat_id == default_id
        else chat
        for chat in found
    ]
    return sorted(found, key=lambda chat: (-(chat.last_used_seconds or 0.0), chat.chat_id))


def find_chat(settings: Ivy, text: str) -> KnownChat | None:
    """Return the chat with this id, else the one with this name; ``None`` when none has either."""
    chats = list_chats(settings)
    by_id = next((chat for chat in chats if chat.chat_id == text), None)
    wanted = _folded(text)
    return by_id or next(
        (chat for chat in chats if chat.name and _folded(chat.name) == wanted), None
    )


def chat_called(settings: Ivy, text: str) -> KnownChat:
    """Return the chat with this id or name.

    Raises
    ------
    UsageError
        When none has either.
    """
    found = find_chat(settings, text)
    if found is None:
        raise UsageError(
            f"No chat {_shown(text)} is known at {settings.address}; use its id with %ivy attach "
            f"once, or look at the list with %ivy chats."
        )
    return found


def note_use(*, api_url: str, chat_id: str, campaign_id: str = "") -> None:
    """Note that a session on a chat was opened; never raises, since the list is a convenience."""

    def change(chats: _Chats) -> None:
        known = chats.get((api_url, chat_id), KnownChat(api_url, chat_id))
        chats[api_url, chat_id] = replace(
            known,
            campaign_id=campaign_id or known.campaign_id,
            last_used_seconds=round(time.time(), 3),
        )

    with suppress(OSError):
        _change(change)


def change_chat(
    settings: Ivy, chat_id: str, *, name: str | None = None, campaign_id: str | None = None
) -> None:
    """Give a chat a name, or note its campaign; a chat that is not known is added.

    Parameters
    ----------
    settings
        The settings without `LiveSettings.attach`.
    chat_id
        The chat.
    name
        The name; ``None`` leaves it.
    campaign_id
        The campaign; ``None`` leaves it, empty means unknown.

    Raises
    ------
    UsageError
        When the name cannot be used, or is another chat's.
    IvyError
        When the list cannot be written.
    """
    if name is not None:
        name = _checked_name(name, settings)

    def change(chats: _Chats) -> None:
        known = chats.get((settings.address, chat_id), KnownChat(settings.address, chat_id))
        if name is not None:
            others = [*chats.values(), KnownChat(settings.address, settings.used_chat_id)]
            _refuse_taken(name, known, others)
            known = replace(known, name=name)
        if campaign_id is not None:
            known = replace(known, campaign_id=campaign_id)
        chats[known.api_url, chat_id] = known

    _change_or_raise(change)


def forget_chat(settings: Ivy, chat_id: str) -> None:
    """Remove a chat from the list; its sandbox and its files stay.

    Raises
    ------
    UsageError
        When it is not in the list.
    IvyError
        When the list cannot be written.
    """

    def change(chats: _Chats) -> None:
        if chats.pop((settings.address, chat_id), None) is None:
            raise UsageError(f"No chat {_shown(chat_id)} is in the list, so none was forgotten.")

    _change_or_raise(change)


def _refuse_taken(name: str, chat: KnownChat, others: list[KnownChat]) -> None:
    wanted = _folded(name)
    for other in others:
        if other.api_url != chat.api_url:
            continue
        if _folded(other.chat_id) == wanted:
            raise UsageError(
                f"{_shown(name)} is the id of a chat, and ids come before names; choose another "
                f"name."
            )
        if other.chat_id != chat.chat_id and other.name and _folded(other.name) == wanted:
            raise UsageError(
                f"Chat {other.chat_id} has the name {_shown(other.name)} already; choose another "
                f"name, or give that chat another one first."
            )


def _checked_name(name: str, settings: Ivy) -> str:
    name = unicodedata.normalize("NFC", name.strip())
    if not name:
        raise UsageError("A chat's name cannot be empty; give one of 1 to 100 characters.")
    if len(name) > NAME_CHARACTERS_AT_MOST:
        raise UsageError(
            f"A chat's name has at most {NAME_CHARACTERS_AT_MOST} characters, and "
            f"{_shown(name[:20])}… has {len(name)}; choose a shorter one."
        )
    if any(unicodedata.category(each) in ("Cc", "Cs") for each in name) or _UNFIT.search(name):
        raise UsageError(
            f"A chat's name cannot hold control characters, as {name!a} does; choose another name."
        )
    if holds_key(name, settings):
        raise UsageError(
            "That name holds a key (not shown), which belongs into api_key alone; choose another "
            "name."
        )
    return name


def _folded(text: str) -> str:
    return unicodedata.normalize("NFC", text.strip()).casefold()


def _shown(text: str) -> str:
    return "(not shown: it may hold a key)" if holds_key(text) else repr(text)


def _read(path: Path) -> _Chats:
    """Return what the file holds; what is no chat in it is passed over."""
    try:
        loaded = private_file.read_json(path)
        entries = loaded["chats"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return {}
    found: _Chats = {}
    for entry in entries if isinstance(entries, list) else []:
        with suppress(msgspec.ValidationError):
            chat = msgspec.convert(entry, KnownChat)
            if chat.api_url and chat.chat_id:
                found[chat.api_url, chat.chat_id] = chat
    return found


def _change(change: Callable[[_Chats], None]) -> None:
    path = chats_file()
    with private_file.locked(path):
        chats = _read(path)
        if not chats and path.exists():
            # Not a list of ours, or one that others could write to: names may be in it.
            path.replace(path.with_name(f"{path.name}.unreadable"))
        change(chats)
        surplus = sorted(
            (chat for chat in chats.values() if not chat.name),
            key=lambda chat: chat.last_used_seconds or 0.0,
        )
        for chat in surplus[: max(0, len(chats) - CHATS_AT_MOST)]:
            del chats[chat.api_url, chat.chat_id]
        private_file.write_json(
            path, {"chats": [asdict(chat) for chat in chats.values()]}, indent=1
        )


def _change_or_raise(change: Callable[[_Chats], None]) -> None:
    try:
        _change(change)
    except OSError as exc:
        raise IvyError(
            f"The list of chats cannot be written to {chats_file()} ({exc.strerror}); make room "
            f"there, or correct the directory's permissions."
        ) from None


# The account --------------------------------------------------------------------------------------
ACCOUNT_SETTINGS = ("api_key", "chat_id", "campaign_id", "recoup_api_key", "recoup_session_id")
"""The settings that a form asks for."""


async def save_account(live: LiveSettings, changes: Mapping[str, str], *, check: bool) -> Saved:
    """Check new settings of the account with the platform, and save them if they work.

    Parameters
    ----------
    live
        The settings of the moment; they are not touched.
    changes
        The new values; an empty one says that there is none.
    check
        Whether to ask the platform, by reading the status of the chat.

    Raises
    ------
    SettingError
        When a value cannot be used; nothing was saved.
    IvyError
        What the platform answered to the check; nothing was saved.
    """
    chat_id = changes.get("chat_id")
    if chat_id is not None:
        # The other ids of a chat go with it, unless new ones are given.
        address = live.beside(**changes).current().address
        changes = {**_ids_beside(chat_id, address), **changes}
    candidate = live.beside(**changes)
    settings = candidate.current()
    if settings.is_local and settings.api_key:
        raise SettingError(
            f"The setting api_url (set by {settings.sources['api_url']}) is 'local', so that a key "
            f"would not be used; remove api_url first.",
            setting="api_url",
        )
    checked = await check_account(candidate) if check else ""
    values = {name: getattr(settings, name) for name in changes}
    saved = save_settings(values)
    if settings.used_chat_id:
        with suppress(IvyError):  # the account is saved, and the list is a convenience
            campaign_id = settings.campaign_id or None
            change_chat(settings, settings.used_chat_id, campaign_id=campaign_id)
    return replace(saved, checked=checked, notes=(*saved.notes, *_beaten(live, values)))


async def check_account(live: LiveSettings) -> str:
    """Read the status of the settings' chat; return what was found, in a sentence or two.

    Starts nothing, the local sandbox included.

    Raises
    ------
    IvyError
        When the platform cannot be reached, or accepts the key or the chat not.
    """
    settings = live.current()
    if settings.is_local:
        return "Without a key cells run in the local sandbox; there was nothing to check."
    lifecycle = open_lifecycle(live)
    try:
        status = await lifecycle.status(retry=False, deadlines_seconds=PATIENT_DEADLINES_SECONDS)
    finally:
        await lifecycle.aclose()
    words = state_words(status, monotonic_seconds())
    sentences = [f"The platform accepts the key; the sandbox of chat {lifecycle.chat_id}: {words}."]
    return " ".join(sentences + (list(status.unknown) if settings.recoup_session_id else []))


def save_default(live: LiveSettings, chat_id: str) -> Saved:
    """Make a chat of the list the one that the config file names.

    Raises
    ------
    UsageError
        When it is not in the list.
    SettingError
        When the config file cannot be written.
    """
    settings = live.beside().current()
    chat = chat_called(settings, chat_id)
    values = {"chat_id": chat.chat_id, **_ids_beside(chat.chat_id, settings.address)}
    saved = save_settings(values)
    return replace(saved, notes=(*saved.notes, *_beaten(live, values)))


def _beaten(live: LiveSettings, values: Mapping[str, str]) -> list[str]:
    """Tell what this process's own flags set otherwise; of files and variables is told already."""
    try:
        now = live.beside().current()
    except SettingError as error:
        return [str(error)]
    return [
        f"A flag of this program sets {name} too, and wins here until it ends."
        for name, value in values.items()
        if now.sources[name].kind in ("argument", "flag") and getattr(now, name) != value
    ]


def _ids_beside(chat_id: str, address: str) -> dict[str, str]:
    """Return what else changes when another chat becomes the default; what it had is kept for it.

    Empty values are saved too where there is one now: it belongs to the chat before.

    Parameters
    ----------
    chat_id, address
        The chat that becomes the default, and the address of its API.
    """
    names = ("campaign_id", "session_id", "recoup_session_id")
    try:
        # Without this program's flags: what matters is what the others read after it.
        settings = LiveSettings().current()
    except SettingError:
        return {}  # what is wrong now may be what is being corrected
    before: dict[str, Any] = {name: str(getattr(settings, name)) for name in names}
    if chat_id == settings.used_chat_id:
        return {}
    given = {name: value for name, value in before.items() if value}
    if settings.used_chat_id and given:
        own = KnownChat(settings.address, settings.used_chat_id)

        def keep(chats: _Chats) -> None:
            key = (own.api_url, own.chat_id)
            chats[key] = replace(chats.get(key, own), **given)

        with suppress(OSError):
            _change(keep)
    known = _read(chats_file()).get((address, chat_id))
    after = {name: str(getattr(known, name, "")) for name in names}
    return {name: after[name] for name in names if after[name] or before[name]}


def account_json(settings: Ivy) -> Json:
    """Return what a form shows of the account: of a key only that it is there, and from where."""
    return {
        "has_key": bool(settings.api_key),
        "key_source": str(settings.sources["api_key"]) if settings.api_key else "",
        "chat_id": settings.chat_id,
        "campaign_id": settings.campaign_id,
        "api_url": settings.address,
        "config_file": str(config_file()),
        "has_recoup_key": bool(settings.recoup_api_key),
        "recoup_session_id": settings.recoup_session_id,
    }
