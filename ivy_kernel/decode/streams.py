"""Streams that stand apart from any order, and logs."""

from __future__ import annotations

from typing import Any

from ivy_kernel.routes.decode.fields import Fields, without_noise

from ivy_kernel.routes.decode.parts import Parts, stream
from ivy_kernel.routes.decode.values import lines_text_of, text_of
from ivy_kernel.routes.decode.vocabulary import STREAM_NAMES


def take_streams(fields: Fields, parts: Parts) -> None:
    """Take ``stdout``, ``stderr`` and ``logs`` from an object of the answer.

    The texts of streams that the answer holds apart go before all other outputs; log entries, which
    have an order of their own, keep it.
    """
    for name, spellings in STREAM_NAMES.items():
        for spelling in spellings:
            text = lines_text_of(fields.peek(spelling))
            if text is not None:
                fields.drop(spelling)
                parts.families.add("process")
                _add_stream_text(name, text, parts)
    logs = fields.peek("logs")
    if isinstance(logs, dict):
        _take_log_streams(fields, logs, parts)
    elif isinstance(logs, list) and logs and all(isinstance(item, dict) for item in logs):
        fields.drop("logs")
        parts.families.add("typed")
        for item in logs:
            _add_log_entry(item, parts)


def _add_stream_text(name: str, text: str, parts: Parts) -> None:
    if text:
        (parts.stdout if name == "stdout" else parts.stderr).append(text)


def _take_log_streams(fields: Fields, logs: dict[str, Any], parts: Parts) -> None:
    fields.drop("logs")
    parts.families.add("typed")
    entries = Fields(logs)
    for name in ("stdout", "stderr"):
        text = text_of(entries.peek(name))  # pieces as they were written, not lines
        if text is not None:
            entries.drop(name)
            _add_stream_text(name, text, parts)
    for key, value in without_noise(entries.left()).items():
        parts.add_other(f"logs.{key}", value)


def _add_log_entry(entry: dict[str, Any], parts: Parts) -> None:
    fields = Fields(entry)
    name = fields.peek("stream", "name", "source", "fd", "type", "level")
    text = text_of(fields.peek("text", "line", "data", "message", "content"))
    if text is None:
        parts.add_other("logs", entry)
        return
    fields.take("text", "line", "data", "message", "content")
    is_stderr = isinstance(name, str) and name.lower() in ("stderr", "error", "err")
    if isinstance(name, str):
        fields.take("stream", "name", "source", "fd", "type", "level")
    line = text if text.endswith("\n") or not text else f"{text}\n"
    if line:
        parts.shown.append(stream("stderr" if is_stderr else "stdout", line))
    for key, value in without_noise(fields.left()).items():
        parts.add_other(f"logs.{key}", value)
