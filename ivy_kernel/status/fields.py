"""Tolerant readers of single JSON fields: the value if it can be used, else ``None``.

None of them raises, whatever it is given, except ``read_object``, which reads the whole body.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Any

import msgspec

from ivy_kernel.errors import AnswerError

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_EARLIEST = datetime(2000, 1, 1, tzinfo=timezone.utc)
_LATEST = datetime(2200, 1, 1, tzinfo=timezone.utc)
# The two ranges are far apart, so a number tells by its size which unit it is in; a zero, which
# some servers write for "not set", is in neither.
_EARLIEST_SECONDS = (_EARLIEST - _EPOCH).total_seconds()
_LATEST_SECONDS = (_LATEST - _EPOCH).total_seconds()

_PLAIN_NUMBER = re.compile(r"[0-9]{1,19}(\.[0-9]{1,9})?")

WORD_LIMIT_CHARACTERS = 100
TEXT_LIMIT_CHARACTERS = 2_000


def read_object(body: object, what: str) -> dict[str, Any]:
    """The JSON object that a body is.

    Parameters
    ----------
    body
        The raw bytes or text of an answer, or what a JSON decoder made of it.
    what
        Which answer it is, for the error: "Ivy's status answer".

    Raises
    ------
    AnswerError
        The body is no JSON, or JSON but no object.
    """
    found = body
    if isinstance(body, (bytes, bytearray, memoryview, str)):
        try:
            found = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
            raise AnswerError(_not_an_object(what, "no JSON")) from exc
    if not isinstance(found, dict):
        raise AnswerError(_not_an_object(what, _JSON_NAMES.get(type(found), "something else")))
    return found


_JSON_NAMES: dict[type, str] = {
    list: "a list",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


def _not_an_object(what: str, found: str) -> str:
    # The body itself stays out of the sentence: a proxy's page may hold anything.
    return (
        f"{what} should be a JSON object but is {found}: check that the API URL in the settings "
        "leads to the API itself and not to a web page or a proxy's sign-in page."
    )


def read_text(value: object, limit_characters: int = TEXT_LIMIT_CHARACTERS) -> str | None:
    """A text that says something; cut beyond the limit."""
    if not isinstance(value, str):
        return None
    # Lone surrogates are legal in JSON escapes but could not be sent on as UTF-8.
    text = value.encode("utf-8", "replace").decode("utf-8").strip()
    if len(text) > limit_characters:
        text = text[: limit_characters - 1] + "…"
    return text or None


def read_word(value: object) -> str | None:
    """One of the API's own words, such as a state or a phase, as it is written there."""
    return read_text(value, WORD_LIMIT_CHARACTERS)


def read_flag(value: object) -> bool | None:
    """A real true or false; nothing else counts as one."""
    return value if isinstance(value, bool) else None


def read_number(value: object, low: float, high: float) -> float | None:
    """A number, or a string of digits, between the bounds; bounds included."""
    if isinstance(value, str) and _PLAIN_NUMBER.fullmatch(value.strip()):
        # Servers write 64-bit columns as strings, because JavaScript cannot hold them.
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    # A NaN fails every comparison; an int too large for a float compares without converting.
    return float(value) if low <= value <= high else None


def read_whole_number(value: object, low: int, high: int) -> int | None:
    """A whole number between the bounds; ``7.0`` counts as 7, ``7.5`` does not count."""
    if isinstance(value, str) and _PLAIN_NUMBER.fullmatch(value.strip()) and "." not in value:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if not low <= value <= high or value != int(value):
        return None
    return int(value)


def read_instant(value: object) -> datetime | None:
    """A moment between the years 2000 and 2200, in UTC.

    Parameters
    ----------
    value
        Epoch milliseconds, epoch seconds (told apart by their size), either of them as a string
        of digits, or an ISO 8601 date-time. One without a time zone is taken as UTC.
    """
    seconds = read_number(value, _EARLIEST_SECONDS, _LATEST_SECONDS)
    if seconds is not None:
        return _EPOCH + timedelta(seconds=seconds)
    milliseconds = read_number(value, _EARLIEST_SECONDS * 1000, _LATEST_SECONDS * 1000)
    if milliseconds is not None:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    if not isinstance(value, str):
        return None
    try:
        instant = msgspec.convert(value.strip(), datetime)
        if instant.tzinfo is None:
            instant = instant.replace(tzinfo=timezone.utc)
        instant = instant.astimezone(timezone.utc)
    except (msgspec.ValidationError, ValueError, OverflowError):
        return None
    return instant if _EARLIEST <= instant <= _LATEST else None
