"""Finds the agent's answer in a tool's result, whatever the shape of that result.

Everything here comes from the sandbox and is untrusted: nesting, number and size are bounded, and
a frame counts only when it carries this call's random id and its length and checksum are right.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from ivy_kernel.errors import AnswerError
from ivy_kernel.models import Json
from ivy_kernel.routes.agent.programs import BEGIN, END

DEEPEST_NESTING = 12
MOST_STRINGS = 20_000
ANSWER_LIMIT_BYTES = 17 << 20
EXCERPT_CHARS = 300

HEADER_TYPES = {
    "nonce": str,
    "parked_seconds": int | float,
    "under_way": list,
    **dict.fromkeys(("attached", "base", "offset", "end", "acknowledged"), int),
    **dict.fromkeys(("generation", "session", "pending", "parked"), int),
}
"""What is counted with, or known again by; other fields are only shown."""

ENOENT = 2
"""No socket of that name: the directory is not the one that the start call saw."""

CONNECTION_REFUSED = (111, 61)
"""Linux's and macOS's number for it: the socket is there, and nobody listens any more."""


class NoAgentError(Exception):
    """The call ran, and found no agent to speak to: nothing was handed over."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code


class AgentSilentError(Exception):
    """The call ran and reached the agent, but no answer came back to it."""


class TruncatedError(Exception):
    """The tool cut its output; ``size_chars`` is how much of it arrived."""

    def __init__(self, size_chars: int) -> None:
        super().__init__(f"the tool cut its output after {size_chars} characters")
        self.size_chars = size_chars


@dataclass(frozen=True, slots=True)
class Answer:
    """A decoded frame.

    Parameters
    ----------
    header
        What the agent says about itself and this answer.
    body
        A slice of the message log.
    place
        Of a start call: ``directory``, ``base`` and ``how`` (``found`` or ``started``).
    size_chars
        How long the frame was as text.
    """

    header: Json
    body: bytes = b""
    place: Json = field(default_factory=dict)
    size_chars: int = 0


def read_answer(result: object, call_id: str) -> Answer:
    """Decode the answer to one call.

    Raises
    ------
    NoAgentError, AgentSilentError
        The program reported that instead of an answer.
    TruncatedError
        The beginning of the frame is there, its end is not.
    AnswerError
        There is nothing of this call in the result, or nonsense.
    """
    begin, end = BEGIN + call_id, END + call_id
    size_chars = 0
    for text in _strings(result, DEEPEST_NESTING, [MOST_STRINGS]):
        start = text.find(begin)
        if start < 0:
            continue
        stop = text.find(end, start)
        answer = None if stop < 0 else _read_frame(text[start + len(begin) : stop].strip())
        if answer is not None:
            return answer
        size_chars = max(size_chars, len(text))
    if size_chars:
        raise TruncatedError(size_chars)
    excerpt = json.dumps(result, default=str)[:EXCERPT_CHARS]
    raise AnswerError(f"The tool's result holds no answer of the agent: {excerpt}")


def _strings(value: object, depth: int, budget: list[int]) -> Iterator[str]:
    """Every string in a JSON value; JSON within a string is looked through before the string."""
    budget[0] -= 1
    if depth <= 0 or budget[0] <= 0:
        return
    if isinstance(value, str):
        if value[:1] in ("{", "[") and BEGIN in value:
            yield from _strings(_parsed(value), depth - 1, budget)
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item, depth - 1, budget)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item, depth - 1, budget)


def _parsed(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def _read_frame(text: str) -> Answer | None:
    place: Json = {}
    if text.startswith("@"):
        line, _, text = text[1:].partition("\n")
        found = _parsed(line)
        place = found if isinstance(found, dict) else {}
    if text.startswith("!"):
        number, _, words = text[1:].partition(" ")
        is_number = number.isascii() and number.isdecimal() and len(number) < 10
        code = int(number) if is_number else 0
        if code == ENOENT or code in CONNECTION_REFUSED:
            raise NoAgentError(code, words)
        raise AgentSilentError(words)
    try:
        length, checksum, encoded = text.split(".", 2)
        size_bytes, crc = int(length), int(checksum, 16)
        encoded = encoded.replace("\r", "").replace("\n", "")
        decode = _plain if encoded.startswith("~") else _unpacked
        raw = decode(encoded, size_bytes, crc)
    except (ValueError, zlib.error):
        return None
    if raw is None:
        return None
    line_bytes, _, body = raw.partition(b"\n")
    header = _parsed(line_bytes.decode("utf-8", "replace"))
    if not isinstance(header, dict):
        return None
    for name, kind in HEADER_TYPES.items():
        if name in header and not isinstance(header[name], kind):
            raise AnswerError(f"The agent's answer cannot be read: its {name} is no {kind}.")
    return Answer(header, body, place, len(text))


def _plain(encoded: str, size_bytes: int, crc: int) -> bytes | None:
    raw = encoded[1:-1].replace("\t", "\n").encode("ascii")
    return raw if len(raw) == size_bytes and zlib.crc32(raw) == crc else None


def _unpacked(encoded: str, size_bytes: int, crc: int) -> bytes | None:
    packed = base64.b64decode(encoded, validate=True)
    if len(packed) != size_bytes or zlib.crc32(packed) != crc:
        return None
    inflater = zlib.decompressobj()
    raw = inflater.decompress(packed, ANSWER_LIMIT_BYTES)
    return None if inflater.unconsumed_tail else raw
