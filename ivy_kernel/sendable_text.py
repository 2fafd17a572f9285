"""Text that jupyter_client can send: no lone surrogates, which Python's own text may hold."""

from __future__ import annotations

from typing import Any


def sendable(value: Any) -> Any:
    """A JSON value whose text is Unicode: surrogate pairs are joined, lone halves replaced."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return value
    if isinstance(value, dict):
        return {sendable(key): sendable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [sendable(item) for item in value]
    return value
