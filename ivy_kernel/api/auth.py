"""The API key: the header that carries it, its masking, and who may be sent it over a socket."""

from __future__ import annotations

import base64
import functools
import logging
import os
import re
import socket
import struct
import sys
import weakref
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from ivy_kernel.errors import IvyError, SettingError

SHORTEST_MASKED_KEY = 8
"""Shorter keys are not masked: they are no real ones, and masking would garble other words."""


# A JSON Web Token: three parts in base64url, of which the first is a JSON object.
_JWT = re.compile(r"eyJ[\w-]+\.[\w-]+\.[\w-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Credential:
    """An API key or session token, with the header that carries it and the setting that holds it.

    Parameters
    ----------
    key
        Gives the key of the moment, so that a changed key works without a restart.
    key_header
        The header that carries an API key as it is; empty where the API takes keys, like session
        tokens (JWTs), as ``Authorization: Bearer``. Never two headers: Recoup refuses that.
    setting, variable
        The names that an error message gives the user.
    """

    key: Callable[[], str]
    key_header: str = ""
    setting: str = "api_key"
    variable: str = "IVY_API_KEY"

    def header(self) -> tuple[str, str]:
        """Return the header's name and value; the value is empty without a key.

        Raises
        ------
        SettingError
            When the key cannot be sent in a header.
        """
        key = self.key()
        # httpx's own error for such a value would quote the key.
        if not all(33 <= ord(character) < 127 for character in key):
            raise SettingError(
                f"The setting {self.setting} cannot be used (its value is not shown): it may "
                f"contain only printable ASCII characters and no spaces.",
                setting=self.setting,
            )
        if self.key_header and not _JWT.fullmatch(key):
            return self.key_header, key
        return "Authorization", f"Bearer {key}" if key else ""

    def masked(self, text: str) -> str:
        """Return a text without the key, which a server may quote in what it says.

        Half of a long key is taken for it too, since an error may be cut, or in two fields.
        """
        forms = self._forms()
        return text if forms is None else forms.any_part.sub(MASK, text)

    def without_key(self, value: Any, raw: bytes, *, keep_parts: bool = False) -> Any:
        """Return decoded JSON in which no text holds the key; lists and objects are changed.

        Parameters
        ----------
        value
            The JSON value.
        raw
            The same before it was decoded.
        keep_parts
            Whether only the whole key is masked: in what a user's own code may have printed.
        """
        forms = self._forms()
        if forms is None:
            return value
        is_large = len(raw) > LONGEST_SEARCHED_BODY_BYTES
        if is_large and not any(form.encode() in raw for form in forms.plain):
            return value
        pattern = forms.whole if keep_parts else forms.any_part

        def clean(text: str) -> str:
            if len(text) <= LONGEST_SEARCHED_CHARS:
                return pattern.sub(MASK, text)
            for form in forms.plain:
                text = text.replace(form, MASK)
            return text

        if isinstance(value, str):
            return clean(value)
        # In a loop, because a body may be nested deeper than functions may.
        todo: list[Any] = [value]
        while todo:
            each = todo.pop()
            items: Any = ()
            if isinstance(each, dict):
                for name in [name for name in each if clean(name) != name]:
                    each[clean(name)] = each.pop(name)
                items = each.items()
            elif isinstance(each, list):
                items = enumerate(each)
            for place, item in items:
                if isinstance(item, str):
                    each[place] = clean(item)
                elif isinstance(item, (list, dict)):
                    todo.append(item)
        return value

    def _forms(self) -> _Forms | None:
        try:
            key = self.key()
        except IvyError:  # settings that cannot be read just now hold no key to mask
            return None
        return _forms_of(key) if len(key) >= SHORTEST_MASKED_KEY else None


# The forms in which a key may stand in a text ----------------------------------------------------
MASK = "(the key)"
LONGEST_SEARCHED_CHARS = 1 << 16
"""In a longer text only a key as it is, or encoded as a whole, is looked for."""

LONGEST_SEARCHED_BODY_BYTES = 1 << 20
"""Likewise in a larger body: going through a million values takes half a second."""

# What no terminal shows may stand between any two characters: colours, controls, zero width.
_UNSEEN = (
    r"(?:\x1b\[[0-?]*[ -/]*[@-~]"
    r"|[\x00-\x20\x7f-\xa0\xad\u034f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff])*"
)


@dataclass(frozen=True, slots=True, repr=False)
class _Forms:
    """One key in all its forms.

    Parameters
    ----------
    whole
        Finds the key; also with characters that are quoted as in a URL, in JSON or in HTML.
    any_part
        Finds halves of a long key too.
    plain
        The key as it is, and encoded as a whole.
    """

    whole: re.Pattern[str]
    any_part: re.Pattern[str]
    plain: tuple[str, ...]


@functools.lru_cache(maxsize=8)
def _forms_of(key: str) -> _Forms:
    plain = tuple(dict.fromkeys((key, quote(key, safe=""), *_in_base64(key))))
    whole = [_quoted(key), *map(re.escape, plain[1:])]
    half = len(key) // 2
    halves = [key[:half], key[half:]] if half >= SHORTEST_MASKED_KEY else []
    parts = [*whole, *map(_quoted, halves)]
    return _Forms(re.compile("|".join(whole)), re.compile("|".join(parts)), plain)


def _quoted(text: str) -> str:
    """Return a pattern for a text whose characters may each be quoted."""
    characters = []
    for character in text:
        number = ord(character)
        two = f"(?i:{number:02x})"
        numbers = rf"%{two}|\\+u(?i:{number:04x})|\\+x{two}|&\#(?:{number}|[xX]{two});"
        characters.append(rf"(?:\\*{re.escape(character)}|{numbers})")
    return _UNSEEN.join(characters)


def _in_base64(key: str) -> list[str]:
    """Return what base64 makes of the key at each of the three places it may have in a text."""
    forms = []
    for before in range(3):
        coded = base64.b64encode(b"\0" * before + key.encode()).decode()
        # Characters at the ends hold bits of what stands beside the key.
        text = coded[-(-before * 8 // 6) : (before + len(key)) * 8 // 6]
        forms += [text, text.replace("+", "-").replace("/", "_")]
    return forms


class _LogMask(logging.Filter):
    """Masks keys and spells control characters in what the HTTP libraries log of answers."""

    def __init__(self) -> None:
        super().__init__()
        self.credentials: weakref.WeakKeyDictionary[object, Credential] = (
            weakref.WeakKeyDictionary()
        )

    def filter(self, record: logging.LogRecord) -> bool:
        """Called by logging for each record; lets each of them pass."""
        said = masked = record.getMessage()
        for credential in list(self.credentials.values()):
            masked = credential.masked(masked)
        if not masked.isprintable():
            masked = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in masked)
        if masked != said:
            record.msg, record.args = masked, ()
        return True


_LOG_MASK = _LogMask()


def mask_logs(owner: object, credential: Credential) -> None:
    """Mask a credential's key in the logs of the HTTP libraries, for as long as ``owner`` lives."""
    if not _LOG_MASK.credentials:
        for name in ("httpx", *(f"httpcore.{part}" for part in _LOGGING_PARTS)):
            logging.getLogger(name).addFilter(_LOG_MASK)  # harmless when it is there
    _LOG_MASK.credentials[owner] = credential


_LOGGING_PARTS = ("connection", "http11", "http2", "proxy", "socks")


class KeyAuth(httpx.Auth):
    """Adds the key when httpx sends a request, so that no request that we keep or print has it."""

    def __init__(self, credential: Credential) -> None:
        self._credential = credential

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Called by httpx for each request."""
        name, value = self._credential.header()
        if value:
            request.headers[name] = value
        yield request


def is_of_this_user(connection: socket.socket) -> bool:
    """Whether the process that listens at the other end of a unix socket runs as our user.

    The operating system tells, so that no process of another user can claim it.
    """
    with suppress(OSError, struct.error):
        if sys.platform == "linux":
            credentials = connection.getsockopt(
                socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("i2I")
            )
            _, user, _ = struct.unpack("i2I", credentials)
        else:  # LOCAL_PEERCRED at the level SOL_LOCAL: version and user of struct xucred
            _, user = struct.unpack_from("2I", connection.getsockopt(0, 1, 76))
        return int(user) == os.getuid()
    return False
