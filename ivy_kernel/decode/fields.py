"""The fields of one JSON object, taken one by one, so that what nobody took is known.

Names are compared in snake_case: ``exitCode``, ``exit_code`` and ``ExitCode`` are one field.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ivy_kernel.routes.decode.values import is_empty, put, text_of

# fmt: off
# One kind a line reads better than one name a line.
NOISE_KEYS = frozenset({
    "id", "chat_id", "session_id", "sandbox_id", "campaign_id", "user_id", "project_id",
    "request_id", "execution_id", "run_id", "task_id", "job_id", "cell_id", "kernel_id",
    "trace_id", "span_id", "call_id", "tool_call_id", "tool_use_id", "parent_id", "message_id",
    "msg_id", "display_id", "process_id", "pid",
    "duration", "duration_ms", "duration_seconds", "elapsed", "elapsed_ms", "elapsed_seconds",
    "execution_time", "execution_time_ms", "wall_time", "cpu_time", "runtime_ms", "time_ms",
    "latency_ms", "took", "took_ms", "memory_mb",
    "timestamp", "time", "date", "created", "created_at", "started_at", "start_time",
    "finished_at", "completed_at", "ended_at", "end_time", "updated_at", "expires_at",
    "tool", "tool_name", "language", "lang", "kernel", "kernel_name",
    "version", "api_version", "schema_version",
    "type", "subtype", "kind", "object", "role", "mime", "encoding",
})
# fmt: on
"""Book-keeping that says nothing about what the cell did; not shown beside known fields.

Only a short single-line value is left out: text of more than ``NOISE_LIMIT_CHARS`` characters or
more than one line, and objects and lists, are shown under these names too.
"""

NOISE_LIMIT_CHARS = 200

ECHO_KEYS = frozenset({"code", "source", "script", "command", "cmd", "input"})
"""What was sent, sent back: the user has it in the cell and does not need it below it."""

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_MEASURE_NAMES = re.compile(r"_(ms|seconds|bytes|mb|count)$")
"""Names of numbers that measure the run."""


def snake_case(name: str) -> str:
    """A field's name as all names are compared."""
    return _HUMP.sub("_", name).lower().replace("-", "_").replace(" ", "_")


class Fields:
    """A JSON object whose fields are taken one by one.

    Parameters
    ----------
    source
        The object; it is not changed.
    """

    def __init__(self, source: Mapping[str, Any]) -> None:
        self._left: dict[str, Any] = dict(source)
        self._originals: dict[str, str] = {}
        for key in source:
            self._originals.setdefault(snake_case(key), key)

    def __contains__(self, name: str) -> bool:
        return self._originals.get(name) in self._left

    def peek(self, *names: str) -> Any:
        """The value of the first of these fields that is there and not None."""
        for name in names:
            value = self._left.get(self._originals.get(name, ""))
            if name in self and value is not None:
                return value
        return None

    def take(self, *names: str) -> Any:
        """Like `peek`, and the field counts as dealt with."""
        for name in names:
            if name in self:
                value = self._left.pop(self._originals[name])
                if value is not None:
                    return value
        return None

    def take_string(self, *names: str) -> str | None:
        """The first of these fields that is a string with more than white space in it."""
        for name in names:
            value = self.peek(name)
            if isinstance(value, str):
                self.take(name)
                if value.strip():
                    return value
        return None

    def drop(self, *names: str) -> None:
        """Count all of these fields as dealt with."""
        for name in names:
            self._left.pop(self._originals.get(name, ""), None)

    def take_key(self, key: str) -> Any:
        """The value of the field that is spelled exactly so, which counts as dealt with."""
        return self._left.pop(key, None)

    def left(self) -> dict[str, Any]:
        """The fields that nobody took."""
        return dict(self._left)


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of both; one whose key is taken goes under a key of its own."""
    both = dict(first)
    for key, value in second.items():
        put(both, key, value)
    return both


def without_noise(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that carry something which is neither noise nor an echo, at every depth.

    A field that is no more than true or false is left out as well, within an object it stays.
    """
    shown = {key: value for key, value in fields.items() if not isinstance(value, bool)}
    return _prune_object(shown)


def _prune_object(fields: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in fields.items():
        if not _is_noise(snake_case(key), value):
            pruned = _prune(value)
            if not is_empty(pruned):
                kept[key] = pruned
    return kept


def _prune(value: object) -> object:
    if isinstance(value, dict):
        return _prune_object(value)
    if isinstance(value, list):
        return [_prune(item) for item in value]
    return value


def _is_noise(name: str, value: object) -> bool:
    if name in ECHO_KEYS and text_of(value) is not None:
        return True
    if isinstance(value, (dict, list)):
        return False
    if isinstance(value, str):
        is_short = len(value) <= NOISE_LIMIT_CHARS and "\n" not in value
        return name in NOISE_KEYS and is_short
    return name in NOISE_KEYS or _MEASURE_NAMES.search(name) is not None
