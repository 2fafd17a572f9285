"""MIME bundles: what a display holds, in one form for all result families."""

from __future__ import annotations

import base64
import binascii
import html
import re
from typing import Any
from urllib.parse import unquote, urlsplit

from ivy_kernel.routes.decode.values import json_text

FORMATS = {
    "text": "text/plain",
    "plain": "text/plain",
    "txt": "text/plain",
    "html": "text/html",
    "markdown": "text/markdown",
    "md": "text/markdown",
    "latex": "text/latex",
    "tex": "text/latex",
    "csv": "text/csv",
    "tsv": "text/tab-separated-values",
    "svg": "image/svg+xml",
    "png": "image/png",
    "jpeg": "image/jpeg",
    "jpg": "image/jpeg",
    "gif": "image/gif",
    "webp": "image/webp",
    "pdf": "application/pdf",
    "json": "application/json",
    "geojson": "application/geo+json",
    "javascript": "application/javascript",
    "plotly": "application/vnd.plotly.v1+json",
    "vega": "application/vnd.vega.v5+json",
    "vegalite": "application/vnd.vegalite.v5+json",
    "vega_lite": "application/vnd.vegalite.v5+json",
}
"""Short names of formats, as typed results and pictures use them, and their MIME types."""

_MIME_TYPE = re.compile(r"[a-z]+/[\w.+-]+(;[^\n]*)?", re.IGNORECASE | re.ASCII)
_JSON_TYPE = re.compile(r"application/([^\n]*\+)?json")
_BINARY_TYPE = re.compile(r"(image/(?!svg)|audio/|video/|font/|application/(pdf|octet-stream|zip))")
_DATA_URI = re.compile(r"data:([^;,\s]*)((?:;[^;,\s]*)*),", re.IGNORECASE)
_BASE64_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_="
# A shorter text that begins like a picture is a word.
_SMALLEST_PICTURE_CHARS = 32
# The first bytes of each format in base64, as far as they fill whole characters.
_MAGIC = {
    "iVBORw0KGgo": "image/png",
    "/9j/": "image/jpeg",
    "R0lGOD": "image/gif",
    "UklGR": "image/webp",
    "JVBERi0": "application/pdf",
    "PHN2Zy": "image/svg+xml",
    "PD94bWwg": "image/svg+xml",
}


def is_mime_type(name: str) -> bool:
    """Return whether a name is a MIME type."""
    return _MIME_TYPE.fullmatch(name) is not None


def is_json_type(mime_type: str) -> bool:
    """Return whether nbformat keeps values of this MIME type as JSON."""
    return _JSON_TYPE.fullmatch(mime_type) is not None


def is_bundle(value: object) -> bool:
    """Return whether a value is an object whose every key is a MIME type."""
    return isinstance(value, dict) and bool(value) and all(is_mime_type(key) for key in value)


def mime_type_of(name: object) -> str | None:
    """Return the MIME type that a type or format name means; ``None`` when it means none."""
    if not isinstance(name, str):
        return None
    name = name.strip()
    if name.lower() == "image/jpg":
        return "image/jpeg"
    return name if is_mime_type(name) else FORMATS.get(name.lower().lstrip("."))


def sniff(data: str) -> str | None:
    """Return the MIME type of a data URI or of the base64 text of a well-known kind of picture."""
    data = data.lstrip()
    match = _DATA_URI.match(data)
    if match:
        return mime_type_of(match[1]) or "text/plain"
    if len(data) < _SMALLEST_PICTURE_CHARS:
        return None
    for magic, mime_type in _MAGIC.items():
        if data.startswith(magic) and is_base64(data):
            return mime_type
    return None


def is_picture_uri(text: str) -> bool:
    """Return whether a text that may be the user's own is nothing but a picture as a data URI.

    What a user prints ends with a line end, and stays text.
    """
    match = _DATA_URI.match(text)
    return (
        match is not None
        and match[1].lower().startswith("image/")
        and match[2].lower().endswith(";base64")
        and not text.endswith("\n")
    )


def is_base64(text: str) -> bool:
    """Return whether a text consists of nothing but base64 and white space."""
    return text.isascii() and not "".join(text.split()).encode().translate(None, _BASE64_ALPHABET)


def bundle_of(data: dict[str, Any]) -> dict[str, Any]:
    """Return a valid nbformat MIME bundle that holds everything in ``data``.

    Parameters
    ----------
    data
        MIME types and values; a value of ``None`` means that the type is not there.
    """
    return {
        mime_type: bundle_value(mime_type, value)
        for mime_type, value in data.items()
        if value is not None or is_json_type(mime_type)
    }


def bundle_value(mime_type: str, value: Any) -> Any:
    """Return one value of a MIME bundle in its valid form.

    JSON types stay JSON; lists of lines are joined; base64 loses data-URI prefix and white
    space; SVG becomes markup. Anything else becomes JSON text.
    """
    if is_json_type(mime_type):
        return value
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        value = "".join(value)
    if not isinstance(value, str):
        return json_text(value)
    if mime_type.startswith("image/svg"):
        return svg_markup(value)
    return clean_base64(value) if _BINARY_TYPE.match(mime_type) else value


def clean_base64(data: str) -> str:
    """Return base64 without data-URI prefix and white space; any other text as it is."""
    bare = data.strip()
    if " " in bare and sniff(bare) is None:  # words, and not base64 in lines
        return data
    bare = "".join(bare.split())
    while match := _DATA_URI.match(bare):  # a prefix may be there more than once
        if not match[2].lower().endswith(";base64"):
            return data
        bare = bare[match.end() :]
    return bare if is_base64(bare) else data


def svg_markup(data: str) -> str:
    """Return the markup of an SVG picture that may come as a data URI or in base64."""
    if "<" in data:
        return data
    bare = data.strip()
    match = _DATA_URI.match(bare)
    if match and not match[2].lower().endswith(";base64"):
        return unquote(bare[match.end() :])
    markup = decode_base64_text(bare[match.end() :] if match else bare)
    return markup if markup is not None and "<svg" in markup else data


def decode_base64(data: str) -> bytes | None:
    """Return the bytes that a base64 string holds; ``None`` when it holds none."""
    try:
        return base64.b64decode("".join(data.split()), validate=True) or None
    except (ValueError, binascii.Error):
        return None


def decode_base64_text(data: str) -> str | None:
    """Return the UTF-8 text that a base64 string holds; ``None`` when it holds none."""
    try:
        return (decode_base64(data) or b"").decode() or None
    except UnicodeDecodeError:
        return None


def text_of_data_uri(data: str) -> str | None:
    """Return the text in a data URI of a text type; ``None`` when there is none."""
    bare = data.strip()
    match = _DATA_URI.match(bare)
    if match is None:
        return None
    if match[2].lower().endswith(";base64"):
        return decode_base64_text(bare[match.end() :])
    return unquote(bare[match.end() :])


def link_bundle(location: str, title: str = "") -> dict[str, Any]:
    """Return a bundle that names where something is; showing it fetches nothing.

    Parameters
    ----------
    location
        A URL, or a path in the sandbox. Only http(s) URLs become links, which open on a click.
    title
        What it is called; empty when it has no name.
    """
    name = title or location
    try:
        is_web = urlsplit(location).scheme.lower() in ("http", "https")
    except ValueError:  # for example brackets without an IPv6 address
        is_web = False
    if not is_web:
        where = location if name == location else f"{name}: {location}"
        return {"text/plain": f"{where} (a file in the sandbox)"}
    link = (
        f'<a href="{html.escape(location)}" target="_blank" rel="noopener noreferrer">'
        f"{html.escape(name)}</a>"
    )
    text = location if name == location else f"{name}: {location}"
    return {"text/html": link, "text/plain": text}
