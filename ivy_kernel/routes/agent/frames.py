"""Finds the agent's answer in a tool's result, whatever the shape of that result.

Everything here comes from the sandbox and is untrusted: nesting, number and size are bounded, and
a frame counts only when it carries this call's random id and its length and checksum are right.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from ivy_kernel.errors import AnswerError
from ivy_kernel.models import Channel, Json, Message
from ivy_kernel.routes.agent.programs import BEGIN, END

SLICES_KEPT = 64
HELD_LIMIT_BYTES = 256 << 20
CHANNELS: dict[str, Channel] = {
    "shell": "shell",
    "iopub": "iopub",
    "stdin": "stdin",
    "control": "control",
}


class InboxFullError(AnswerError):
    """More is held than an agent of ours ever keeps, and there is no end of a record in it."""


class Inbox:
    """The contiguous part of the log that has arrived, in order and without repetition.

    Slices come out of order when calls overtake each other, and twice when one is asked for again.

    Parameters
    ----------
    offset
        Where to begin to read.
    held_limit_bytes
        How much may be held of what cannot be read yet: of a record without an end, and of slices
        that came early.
    """

    def __init__(self, offset: int = 0, *, held_limit_bytes: int = HELD_LIMIT_BYTES) -> None:
        self.offset = offset
        self.unreadable_records = 0
        self._held_limit_bytes = held_limit_bytes
        self._early: dict[int, bytes] = {}
        self._unfinished: list[bytes] = []

    @property
    def has_gap(self) -> bool:
        """Whether a later slice is here and an earlier one is not."""
        return bool(self._early)

    def add(self, offset: int, data: bytes) -> list[Json]:
        """Take a slice; the records that are complete now.

        Raises
        ------
        InboxFullError
            The record that is arriving has grown beyond the limit.
        """
        if data and self._may_keep(offset, len(data)):
            self._early[offset] = max(self._early.get(offset, b""), data, key=len)
        for start in sorted(self._early):
            if start > self.offset:
                break
            part = self._early.pop(start)[self.offset - start :]
            self._unfinished.append(part)
            self.offset += len(part)
        if not any(b"\n" in part for part in self._unfinished):
            self._refuse_endless()
            return []  # the middle of a large record: nothing to look at yet
        *lines, rest = b"".join(self._unfinished).split(b"\n")
        self._unfinished = [rest]
        return [record for record in map(self._record, lines) if record is not None]

    def _may_keep(self, offset: int, size_bytes: int) -> bool:
        """Whether to take a slice: the next one always, an early one while there is room."""
        if offset <= self.offset:
            return True
        held_bytes = sum(map(len, self._early.values()))
        return len(self._early) < SLICES_KEPT and held_bytes + size_bytes <= self._held_limit_bytes

    def _refuse_endless(self) -> None:
        held_bytes = sum(map(len, self._unfinished))
        if held_bytes > self._held_limit_bytes:
            self._unfinished.clear()
            raise InboxFullError(
                f"The sandbox sent a message of more than {self._held_limit_bytes} bytes, which is "
                f"more than its agent keeps."
            )

    def _record(self, line: bytes) -> Json | None:
        try:
            record = msgspec.json.decode(line)
        except (msgspec.DecodeError, ValueError, RecursionError):
            record = self._with_python_json(line)
        if isinstance(record, dict) and isinstance(record.get("d"), dict):
            return record
        self.unreadable_records += 1
        return None

    @staticmethod
    def _with_python_json(line: bytes) -> object:
        """As Python reads it: with ``NaN`` and lone surrogates, which kernels do send."""
        try:
            return json.loads(line.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            return None


def to_message(record: Json) -> Message | None:
    """The Jupyter message in a record; ``None`` when it is none."""
    header, parent, metadata = record.get("h"), record.get("p"), record.get("m")
    channel = CHANNELS.get(str(record.get("c")))
    if channel is None or not isinstance(header, dict) or not isinstance(parent, dict):
        return None
    try:
        buffers = tuple(base64.b64decode(text, validate=True) for text in record.get("b", ()))
    except (TypeError, binascii.Error):
        return None
    return Message(
        msg_type=str(header.get("msg_type", "")),
        content=record["d"],
        metadata=metadata if isinstance(metadata, dict) else {},
        buffers=buffers,
        channel=channel,
        header=header,
        parent_header=parent,
    )


DEEPEST_NESTING = 12
MOST_STRINGS = 20_000
ANSWER_LIMIT_BYTES = 17 << 20
EXCERPT_CHARS = 300
HEAD_CHARS = 64
"""More than what stands before a frame's content."""

HEADER_TYPES = {
    "nonce": str,
    "parked_seconds": int | float,
    "under_way": list,
    **dict.fromkeys(("attached", "base", "offset", "end", "acknowledged"), int),
    **dict.fromkeys(("generation", "pending", "parked"), int),
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
    """The tool cut what was printed; ``size_chars`` is how much of it arrived."""

    def __init__(self, size_chars: int) -> None:
        super().__init__(f"the tool cut its output after {size_chars} characters")
        self.size_chars = size_chars


class ChangedError(TruncatedError):
    """Beginning and end are there, but what is between them is not what was printed."""

    def __init__(self, size_chars: int, *, was_plain: bool) -> None:
        super().__init__(size_chars)
        self.was_plain = was_plain


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
    ChangedError
        Both are there, and its length or checksum is wrong.
    AnswerError
        There is nothing of this call in the result, or nonsense.
    """
    begin, end = BEGIN + call_id, END + call_id
    failure: TruncatedError | None = None
    for text in _printed(_strings(result, DEEPEST_NESTING, [MOST_STRINGS]), begin, end):
        start = text.find(begin)
        stop = text.find(end, start)
        if stop < 0:
            failure = failure or TruncatedError(len(text))
            continue
        frame = text[start + len(begin) : stop].strip()
        answer = _read_frame(frame)
        if answer is not None:
            return answer
        failure = ChangedError(len(text), was_plain=_is_plain(frame))
    if failure is not None:
        raise failure
    excerpt = json.dumps(result, default=str)[:EXCERPT_CHARS]
    raise AnswerError(f"The tool's result holds no answer of the agent: {excerpt}")


def _printed(strings: Iterator[str], begin: str, end: str) -> Iterator[str]:
    """The strings with a beginning in them, each together with those that follow up to its end.

    Some tools give their output back in pieces: a list of lines, or of what was flushed.
    """
    pieces: list[str] = []
    for text in strings:
        if not pieces and begin not in text:
            continue
        seam = pieces[-1][-len(end) :] if pieces else ""
        pieces.append(text)
        if end in seam + text:
            yield "".join(pieces)
            pieces = []
    if pieces:
        yield "".join(pieces)


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
        decode = _plain if _is_plain(text) else _unpacked
        raw = decode(encoded.lstrip(), int(length), int(checksum, 16))
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


def _is_plain(frame: str) -> bool:
    return frame[:HEAD_CHARS].split(".", 2)[-1].lstrip().startswith("~")


def _plain(text: str, size_bytes: int, crc: int) -> bytes | None:
    if size_bytes > ANSWER_LIMIT_BYTES:
        return None
    lines = text.replace("\r", "").replace("\n", "")
    raw = lines[1:-1].replace("\t", "\n").encode("ascii")
    return raw if len(raw) == size_bytes and zlib.crc32(raw) == crc else None


def _unpacked(text: str, size_bytes: int, crc: int) -> bytes | None:
    packed = base64.b64decode("".join(text.split()), validate=True)
    if len(packed) != size_bytes or zlib.crc32(packed) != crc:
        return None
    inflater = zlib.decompressobj()
    raw = inflater.decompress(packed, ANSWER_LIMIT_BYTES)
    return None if inflater.unconsumed_tail else raw
