"""The API key: the header that carries it, and its masking in everything that is shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from dataclasses import dataclass

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
        """Return a text without the key, which a server may quote in its error messages."""
        try:
            key = self.key()
        except IvyError:  # settings that cannot be read just now hold no key to mask
            return text
        return text.replace(key, "(the key)") if len(key) >= SHORTEST_MASKED_KEY else text


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
