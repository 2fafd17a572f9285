"""Completion and inspection (message spec, "Completion" and "Introspection")."""

from __future__ import annotations

import inspect
import pydoc
import re
import rlcompleter
from typing import Any

MATCHES_LIMIT = 500


def complete(namespace: dict[str, Any], code: str, cursor: int) -> dict[str, Any]:
    """Return the content of a ``complete_reply``."""
    word = _name_before(code[:cursor])
    completer = rlcompleter.Completer(namespace)
    matches = set()
    # Without a word everything would match.
    for number in range(MATCHES_LIMIT if word else 0):
        match = completer.complete(word, number)
        if match is None:
            break
        matches.add(match.rstrip("(): "))
    return {
        "status": "ok",
        "matches": sorted(matches),
        "cursor_start": cursor - len(word),
        "cursor_end": cursor,
        "metadata": {},
    }


def inspect_at(namespace: dict[str, Any], code: str, cursor: int, detail: int) -> dict[str, Any]:
    """Return the content of an ``inspect_reply``."""
    before, after = code[:cursor], code[cursor:]
    end = re.match(r"\w*", after)
    name = _name_before(before) + (end.group(0) if end else "")
    text = describe(namespace, name, with_source=detail > 0) if name else None
    if text is None:  # within the arguments of a call: the function is meant
        call = re.search(r"([A-Za-z_][\w.]*)\([^()]*$", before)
        text = describe(namespace, call.group(1), with_source=False) if call else None
    data = {} if text is None else {"text/plain": text}
    return {"status": "ok", "found": text is not None, "data": data, "metadata": {}}


def describe(namespace: dict[str, Any], name: str, *, with_source: bool) -> str | None:
    """Return signature, type, documentation and perhaps source of the object of this name."""
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", name):
        return None
    try:
        value = eval(name, namespace)  # noqa: S307 - a dotted name, checked above
    except Exception:  # there is no such thing, whatever a property raised
        return None
    lines = []
    try:
        lines.append(f"Signature: {name}{inspect.signature(value)}")
    except (TypeError, ValueError):
        lines.append(f"Value:     {pydoc.plain(repr(value))[:1000]}")
    lines.append(f"Type:      {type(value).__name__}")
    if with_source:
        try:
            lines.append("Source:\n" + inspect.getsource(value))
        except (TypeError, OSError):
            lines.append("Source:    not available")
    lines.append("Docstring:\n" + (inspect.getdoc(value) or "none"))
    return "\n".join(lines)


def _name_before(text: str) -> str:
    match = re.search(r"[A-Za-z_][\w.]*$", text)
    return match.group(0) if match else ""
