"""JSON values made safe: bounded in depth, free of what Jupyter's own JSON cannot carry."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping
from typing import Any

DEPTH_LIMIT = 60
"""Containers nested deeper than this become JSON text, so that nothing below here can recurse
without end."""

_INTEGER_BITS_LIMIT = 14_000
"""Python does not print integers of more than 4,300 digits in decimal; these become hexadecimal."""

_SURROGATE_PAIR = re.compile("([\ud800-\udbff])([\udc00-\udfff])")


def clean_text(text: str) -> str:
    r"""Return a string that UTF-8 can carry.

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
    """Return a copy of a JSON value that every JSON library and Jupyter's protocol can carry.

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
    """Return JSON text of a value of any depth, made without recursion."""
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


def json_text(value: object, *, indent: int | None = None, sort_keys: bool = False) -> str:
    """Return JSON text of a cleaned value, with every character as itself where JSON allows it."""
    return json.dumps(value, ensure_ascii=False, indent=indent, sort_keys=sort_keys)


def parse_json(text: str) -> Any:
    """Return the cleaned object or array that a string holds, or ``None`` when it holds none."""
    stripped = text.strip()
    if stripped[:1] + stripped[-1:] not in ("{}", "[]"):
        return None
    try:
        value = json.loads(stripped)
    except (ValueError, RecursionError):
        return None
    return clean_value(value)


def is_empty(value: object) -> bool:
    """Return whether a value carries nothing: None, blank text, or containers of nothing else."""
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
    """Return the text of a string, or of a list of strings joined as they are, or ``None``."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "".join(value)
    return None


def lines_text_of(value: object) -> str | None:
    """Return the text of a string, or of a list of lines or chunks; ``None`` for the rest.

    Items without any line end among them are lines, otherwise they are chunks.
    """
    if isinstance(value, list) and not any("\n" in item for item in value if isinstance(item, str)):
        return "\n".join(value) if text_of(value) is not None else None
    return text_of(value)


# fmt: off
# One kind a line reads better than one name a line.
NOISE_KEYS = frozenset({
    "cmd_id", "command_id", "workspace_id", "container_id", "instance_id", "notebook_id",
    "thread_id", "event_id", "operation_id", "correlation_id", "conversation_id", "invocation_id",
    "response_id", "result_id", "output_id", "worker_id", "context_id", "identifier",
    "notebook_path", "notebook_name", "cell_index", "cell_number", "cell_type", "cwd",
    "working_directory", "working_dir", "workdir", "kernel_status", "execution_type",
    "hostname", "container_name", "pod_name", "node_name", "session_name", "sandbox_name",
    "jsonrpc", "token", "index", "finish_reason", "model_version", "avg_logprobs",
    "seq", "sequence", "sequence_number", "memory", "max_memory", "peak_memory",
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
"""Echoes of what was sent: the user has it in the cell and does not need it below it."""

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_MEASURE_NAMES = re.compile(r"_(ms|milliseconds|seconds|ns|us|bytes|kb|mb|count|time|percent)$")
"""Names of numbers that measure the run."""


def snake_case(name: str) -> str:
    """Return a field's name as all names are compared."""
    return _snake_case_of_short(name) if len(name) <= _SHORT_NAME_CHARS else _snake_case(name)


_SHORT_NAME_CHARS = 40


def _snake_case(name: str) -> str:
    return _HUMP.sub("_", name).lower().replace("-", "_").replace(" ", "_")


# Lists of a hundred thousand events have the same few names.
_snake_case_of_short = functools.lru_cache(maxsize=1024)(_snake_case)


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
        # Of two spellings of one name the first is found; the other stays among the left ones.
        for key in source:
            self._originals.setdefault(snake_case(key), key)

    def __contains__(self, name: str) -> bool:
        return self._originals.get(name) in self._left

    def names(self) -> list[str]:
        """Return the names, as they are compared, of the fields that have not been taken."""
        return [name for name in self._originals if name in self]

    def peek(self, *names: str) -> Any:
        """Return the value of the first of these fields that is there and not None."""
        for name in names:
            value = self._left.get(self._originals.get(name, ""))
            if name in self and value is not None:
                return value
        return None

    def take(self, *names: str) -> Any:
        """Return the same as `peek`, and counts the field as dealt with."""
        for name in names:
            if name in self:
                value = self._left.pop(self._originals[name])
                if value is not None:
                    return value
        return None

    def take_string(self, *names: str) -> str | None:
        """Return the first of these fields that is a string with more than white space in it."""
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
        """Return the value of the field of exactly this spelling, which counts as dealt with."""
        return self._left.pop(key, None)

    def left(self) -> dict[str, Any]:
        """Return the fields that have not been taken."""
        return dict(self._left)


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of both; one whose key is taken goes under a key of its own."""
    both = dict(first)
    for key, value in second.items():
        put(both, key, value)
    return both


def without_noise(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that carry something which is neither noise nor an echo, at every depth.

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
