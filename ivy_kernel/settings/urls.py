"""Rules for base URLs: keys travel over https, or over http to this machine only."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

LOCAL = "local"
"""The word that stands for the embedded local sandbox instead of a URL."""


def is_loopback(host: str) -> bool:
    """Return whether a host name or address can only mean this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_url(url: str, *, allow_local: bool = False) -> str:
    """Return a base URL without its trailing slash.

    Raises
    ------
    ValueError
        When it is no base URL that a key may be sent to; the message says what is allowed.
    """
    if allow_local and url.lower() == LOCAL:
        return LOCAL
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
        if host.isascii():
            host.encode("idna")  # what is no host name must not get as far as looking it up
    except ValueError:
        host, parts = "", urlsplit("")
    local_hint = ", or the word local" if allow_local else ""
    if any(character.isspace() or not character.isprintable() for character in url):
        raise ValueError("it may not contain spaces or control characters")
    if parts.scheme not in ("http", "https") or not host or "\\" in url:
        raise ValueError(f"it must be a URL that begins with https://{local_hint}")
    if "@" in parts.netloc:
        raise ValueError("it may not contain a user name or password")
    if "?" in url or "#" in url:  # an empty one, too, would swallow the path of each operation
        raise ValueError("it may not contain a query or fragment")
    if parts.scheme == "http" and not is_loopback(host):
        raise ValueError(
            "it must begin with https:// (http:// is for this machine only, "
            "since keys would travel in the clear)"
        )
    return url.rstrip("/")


def shown_value(raw: object) -> str:
    """Return a value as the user wrote it; flags come in types of traitlets' own."""
    if isinstance(raw, str):
        return repr(str(raw))
    return repr([str(each) for each in raw]) if isinstance(raw, list) else repr(raw)


def may_hold_a_key(raw: object) -> bool:
    """Return whether a value may be a key, or a URL with a password, in the wrong setting."""
    text = str(raw).lower()
    return "@" in text or "ivy_" in text or "eyj" in text
