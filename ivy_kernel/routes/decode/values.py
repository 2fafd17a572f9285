"""JSON values made safe: bounded in depth, free of what Jupyter's own JSON cannot carry."""

from __future__ import annotations

import json
import math
import re
from typing import Any

DEPTH_LIMIT = 60
"""Containers nested deeper than this become JSON text, so that nothing below here can recurse
without end."""

_INTEGER_BITS_LIMIT = 14_000
"""Python does not print integers of more than 4,300 digits in decimal; these become hexadecimal."""

_SURROGATE_PAIR = re.compile("([\ud800-\udbff])([\udc00-\udfff])")


def clean_text(text: str) -> str:
    r"""A string that UTF-8 can carry.

    Surrogate pairs are joined to the character that they stand for, lone surrogates are written
    out as ``\udXXX``.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        joined = _SURROGATE_PAIR.sub(_join_pair, text)
        return joined.encode(errors="backslashreplace").decode()
    return text


def _join_pair(match: re.Match[str]) -> str:
    high, low = (ord(half) for half in match.groups())
    return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))


def clean_value(value: object, *, depth: int = 0) -> Any:
    """A copy of a JSON value that every JSON library and Jupyter's protocol can carry.

    Parameters
    ----------
    value
        Any JSON value; what is none (bytes, tuples, other objects) becomes the nearest one.
    depth
        How many containers are around it.

    Returns
    -------
    Any
        Only str-keyed dicts, lists, valid strings, finite numbers, booleans and None.
        Numbers that JSON does not have become strings: ``"NaN"``, ``"Infinity"``, and
        integers of thousands of digits in hexadecimal.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, (int, float)):
        return _clean_number(value)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode(errors="backslashreplace")
    if not isinstance(value, (dict, list, tuple)):
        return clean_text(repr(value))
    if value and depth >= DEPTH_LIMIT:
        return _text_of_deep(value)
    if not isinstance(value, dict):
        return [clean_value(item, depth=depth + 1) for item in value]
    cleaned: dict[str, Any] = {}
    for key, item in value.items():
        put(cleaned, _clean_key(key), clean_value(item, depth=depth + 1))
    return cleaned


def put(target: dict[str, Any], key: str, value: object) -> None:
    """Add an entry under a key, or under the key with primes when it is taken."""
    while key in target:
        key += "'"
    target[key] = value


def _clean_key(key: object) -> str:
    return clean_text(key if isinstance(key, str) else str(clean_value(key)))


def _clean_number(value: float) -> Any:
    if isinstance(value, int):
        return value if value.bit_length() <= _INTEGER_BITS_LIMIT else hex(value)
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _text_of_deep(value: object) -> str:
    """JSON text of a value of any depth, made without recursion."""
    pieces: list[str] = []
    rest: list[tuple[bool, object]] = [(False, value)]  # (is a piece of text already, item)
    while rest:
        is_piece, item = rest.pop()
        if is_piece:
            pieces.append(str(item))
        elif isinstance(item, dict):
            rest.append((True, "}"))
            for number, (key, entry) in reversed(list(enumerate(item.items()))):
                rest.append((False, entry))
                name = json.dumps(_clean_key(key), ensure_ascii=False)
                rest.append((True, f"{', ' if number else ''}{name}: "))
            rest.append((True, "{"))
        elif isinstance(item, (list, tuple)):
            rest.append((True, "]"))
            for number, entry in reversed(list(enumerate(item))):
                rest.append((False, entry))
                if number:
                    rest.append((True, ", "))
            rest.append((True, "["))
        else:
            pieces.append(json_text(clean_value(item)))
    return "".join(pieces)


def json_text(value: object, *, indent: int | None = None) -> str:
    """JSON text of a cleaned value, with every character as itself where JSON allows it."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def parse_json(text: str) -> Any:
    """The cleaned object or array that a string holds, or ``None`` when it holds none."""
    stripped = text.strip()
    if stripped[:1] + stripped[-1:] not in ("{}", "[]"):
        return None
    try:
        value = json.loads(stripped)
    except (ValueError, RecursionError):
        return None
    return clean_value(value)


def is_empty(value: object) -> bool:
    """Whether a value carries nothing: None, blank text, or containers of nothing else."""
    if value is None:
        return True
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, dict):
        return all(is_empty(item) for item in value.values())
    if isinstance(value, list):
        return all(is_empty(item) for item in value)
    return False


def text_of(value: object) -> str | None:
    """The text of a string or of a list of strings joined as they are; ``None`` for the rest."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "".join(value)
    return None


def lines_text_of(value: object) -> str | None:
    """The text of a string, or of a list of lines or chunks; ``None`` for the rest.

    Items without any line end among them are lines, otherwise they are chunks.
    """
    if isinstance(value, list) and not any("\n" in item for item in value if isinstance(item, str)):
        return "\n".join(value) if text_of(value) is not None else None
    return text_of(value)
