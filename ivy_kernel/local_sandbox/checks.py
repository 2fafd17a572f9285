"""Checks of settings: what a value must be."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

Check = Callable[[Any], str]
"""Returns what is allowed when the value is not, else an empty string."""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def number(low: float = 0.0, *, optional: bool = False) -> Check:
    """A finite number of at least ``low``; null too when ``optional``."""

    def check(value: Any) -> str:
        if (optional and value is None) or (_is_number(value) and value >= low):
            return ""
        return f"a number of at least {low:g}" + (" or null" if optional else "")

    return check


def whole(low: int = 0) -> Check:
    """A whole number of at least ``low``."""

    def check(value: Any) -> str:
        fine = isinstance(value, int) and not isinstance(value, bool) and value >= low
        return "" if fine else f"a whole number of at least {low}"

    return check


def any_whole(value: Any) -> str:
    """A whole number, negative ones too."""
    return "" if isinstance(value, int) and not isinstance(value, bool) else "a whole number"


def flag(value: Any) -> str:
    """True or false."""
    return "" if isinstance(value, bool) else "true or false"


def text(value: Any) -> str:
    """A string."""
    return "" if isinstance(value, str) else "a string"


def choice(*words: Any) -> Check:
    """One of ``words``."""

    def check(value: Any) -> str:
        allowed = ", ".join(json.dumps(word) for word in words)
        return "" if any(value == word and type(value) is type(word) for word in words) else allowed

    return check


def each(check_value: Check, keys: tuple[str, ...] = ()) -> Check:
    """An object whose values pass a check; with ``keys``, exactly these keys."""

    def check(value: Any) -> str:
        if not isinstance(value, dict):
            return "an object"
        if keys and set(value) != set(keys):
            return f"an object with the keys {', '.join(keys)}"
        for key, item in value.items():
            if wrong := check_value(item):
                return f"{wrong} for {key!r}"
        return ""

    return check


def owners(value: Any) -> str:
    """An object of tokens and their owners; what is wrong is told without showing a token."""
    fine = isinstance(value, dict) and all(
        token and owner and isinstance(owner, str) for token, owner in value.items()
    )
    return "" if fine else "an object that maps each token to the name of its owner"


def chat(value: Any) -> str:
    """What is known of a chat."""
    fine = isinstance(value, dict) and all(
        key in ("owner", "campaign") and isinstance(item, str) for key, item in value.items()
    )
    return "" if fine else 'an object like {"owner": "…", "campaign": "…"}'


def rate_limit(value: Any) -> str:
    """A rule for how often, or null."""
    if value is None:
        return ""
    example = '{"requests": 60, "per_seconds": 60, "retry_after": "seconds"} or null'
    if not isinstance(value, dict) or not set(value) <= {"requests", "per_seconds", "retry_after"}:
        return example
    fine = (
        _is_number(value.get("requests"))
        and _is_number(value.get("per_seconds", 60))
        and value.get("retry_after", "seconds") in ("seconds", "date", "none")
    )
    return "" if fine else example
