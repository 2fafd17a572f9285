"""Reads what the agent sends: its response in a tool's result, and the log in its slices.

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

from ivy_kernel.errors import AnswerError, NoAnswerError, WorkError
from ivy_kernel.models import Channel, Fate, Gpu, Json, Message, Meter, Resources, visible
from ivy_kernel.routes.agent.programs import BEGIN, END
from ivy_kernel.routes.events import KeptCell

# -- the log

LARGEST_NUMBER = float(1 << 60)
LONGEST_ID_CHARS = 256
SLICES_KEPT = 64
HELD_LIMIT_BYTES = 256 << 20
CHANNELS: dict[str, Channel] = {
    "shell": "shell",
    "iopub": "iopub",
    "stdin": "stdin",
    "control": "control",
}


class InboxFullError(AnswerError):
    """Raised for a record that is longer than all that an agent of ours keeps."""


class Inbox:
    """Puts slices of the log together into records, in order and without repetition.

    Slices come out of order when calls overtake each other, and twice when one is asked for again.

    Parameters
    ----------
    offset
        The log's offset where reading begins.
    held_limit_bytes
        How much may be held that cannot be read yet: of a record without an end, and of slices that
        came early.
    """

    def __init__(self, offset: int = 0, *, held_limit_bytes: int = HELD_LIMIT_BYTES) -> None:
        self.offset = offset
        self.unreadable_records = 0
        self._held_limit_bytes = held_limit_bytes
        self._early: dict[int, bytes] = {}
        self._unfinished: list[bytes] = []

    @property
    def read_offset(self) -> int:
        """The offset up to which records were read: that of the first one that is not whole."""
        return self.offset - sum(map(len, self._unfinished))

    @property
    def has_gap(self) -> bool:
        """Whether a slice has arrived and one before it has not."""
        return bool(self._early)

    def add(self, offset: int, data: bytes) -> list[Json]:
        """Take a slice; return the records that are complete now.

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
        """Decide whether to take a slice: the next one always, an early one while there is room."""
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
        """Read it as Python does: with ``NaN`` and lone surrogates, which kernels do send."""
        try:
            return json.loads(line.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            return None


def to_message(record: Json) -> Message | None:
    """Return the Jupyter message in a record; ``None`` when it is none."""
    header, parent, metadata = record.get("h"), record.get("p"), record.get("m")
    channel = CHANNELS.get(str(record.get("c")))
    if channel is None or not isinstance(header, dict) or not isinstance(parent, dict):
        return None
    if not isinstance(record.get("d"), dict):
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


MOST_CELLS = 100_000


def to_kept_cells(rows: object) -> list[KeptCell]:
    """Return what a sandbox tells of its cells; the newest row of a cell is the one that counts.

    What makes no sense is left out.
    """
    found: dict[str, KeptCell] = {}
    for row in (rows if isinstance(rows, list) else [])[-MOST_CELLS:]:
        cell = _to_kept_cell(row) if isinstance(row, dict) else None
        if cell is not None:
            found[cell.run] = cell
    return list(found.values())


def _to_kept_cell(row: Json) -> KeptCell | None:
    texts = [row.get(name) for name in ("id", "cell", "code", "log", "fate")]
    numbers = [row.get(name) for name in ("number", "start", "end")]
    run, cell_id, code, log, fate = (text if isinstance(text, str) else "" for text in texts)
    number, start, end = (
        each if isinstance(each, int) and 0 <= each < LARGEST_NUMBER else None for each in numbers
    )
    is_sound = bool(run) and start is not None and (end is None or end >= start)
    is_sound = is_sound and max(map(len, (run, cell_id, code, log, fate))) <= LONGEST_ID_CHARS
    if not is_sound or start is None or (end is None and row.get("end") is not None):
        return None
    at = row.get("at")
    seconds = float(at) if isinstance(at, int | float) and 0 <= at < LARGEST_NUMBER else 0.0
    return KeptCell(run, cell_id, number or 0, code, log, start, end, fate, seconds)


def is_execute_reply(message: Message) -> bool:
    """Whether a message is what a front end takes for a cell's reply (message spec, "Execute")."""
    content = message.content
    if message.msg_type != "execute_reply":
        return False
    if content.get("status") != "error":
        return content.get("status") in ("ok", "abort", "aborted")
    traceback = content.get("traceback")
    texts = (content.get("ename"), content.get("evalue"))
    is_traceback = isinstance(traceback, list) and all(isinstance(each, str) for each in traceback)
    return is_traceback and all(isinstance(text, str) for text in texts)


def fate_of(reply: Json, *, was_interrupted: bool) -> Fate:
    """Return the fate that a reply tells of its cell."""
    if reply.get("status") == "ok":
        return "succeeded"
    if was_interrupted and reply.get("ename") == "KeyboardInterrupt":
        return "interrupted"
    return "failed"


# -- responses

DEEPEST_NESTING = 12
MOST_STRINGS = 20_000
RESPONSE_LIMIT_BYTES = 17 << 20
EXCERPT_CHARS = 300
HEAD_CHARS = 64
"""More than the length and the checksum before a frame's content."""

HEADER_TYPES = {
    "nonce": str,
    "parked_seconds": int | float,
    "under_way": list,
    "cells": list,
    **dict.fromkeys(("attached", "base", "offset", "end", "acknowledged"), int),
    **dict.fromkeys(("generation", "pending", "parked"), int),
}
"""Fields that this side computes with; others are only shown, and may be anything."""

# Numbers instead of the `errno` module: they are those of the sandbox's system, not of ours.
ENOENT = 2
"""No socket of that name: the directory is not the one that the start call saw."""

CONNECTION_REFUSED = (111, 61)
"""On Linux and macOS: the socket's file is there, and no process listens any more."""


class NoAgentError(Exception):
    """Raised when a call ran and found no agent: nothing was handed over."""

    def __init__(self, errno: int, reason: str) -> None:
        super().__init__(reason)
        self.errno = errno


class AgentUnresponsiveError(Exception):
    """Raised when a call ran and reached the agent, which sent no response."""


class TruncatedError(Exception):
    """Raised when the tool cut what was printed; ``size_chars`` is how much of it arrived."""

    def __init__(self, size_chars: int) -> None:
        super().__init__(f"the tool cut its output after {size_chars} characters")
        self.size_chars = size_chars


class CorruptedError(TruncatedError):
    """Raised when beginning and end are there, but not what was printed between them."""

    def __init__(self, size_chars: int, *, was_plain: bool) -> None:
        super().__init__(size_chars)
        self.was_plain = was_plain


@dataclass(frozen=True, slots=True)
class AgentResponse:
    """The agent's response to one call, decoded.

    Parameters
    ----------
    header
        The agent's state, and what this response holds.
    body
        A slice of the message log.
    place
        Of a start call: ``directory``, ``base`` and ``how`` (``found`` or ``started``).
    size_chars
        The frame's length as text.
    """

    header: Json
    body: bytes = b""
    place: Json = field(default_factory=dict)
    size_chars: int = 0


def read_response(result: object, call_id: str) -> AgentResponse:
    """Decode the response to one call.

    Raises
    ------
    NoAgentError, AgentUnresponsiveError
        The program reported that instead of an response.
    TruncatedError
        The beginning of the frame is there, its end is not.
    CorruptedError
        Both are there, and its length or checksum is wrong.
    AnswerError
        There is nothing of this call in the result, or its header is malformed.
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
        response = _read_frame(frame)
        if response is not None:
            return response
        failure = CorruptedError(len(text), was_plain=_is_plain(frame))
    if failure is not None:
        raise failure
    excerpt = json.dumps(result, default=str)[:EXCERPT_CHARS]
    raise AnswerError(f"The tool's result holds no answer of the agent: {excerpt}")


def _printed(strings: Iterator[str], begin: str, end: str) -> Iterator[str]:
    """Yield the strings with a beginning in them, each joined with those that follow to its end.

    Some tools return their output in pieces: a list of lines, or of what was flushed.
    """
    pieces: list[str] = []
    for text in strings:
        if not pieces and begin not in text:
            continue
        # An end mark may itself be cut in two, so the last piece's tail is looked at again; joining
        # all pieces each time would be quadratic.
        seam = pieces[-1][-len(end) :] if pieces else ""
        pieces.append(text)
        if end in seam + text:
            yield "".join(pieces)
            pieces = []
    if pieces:
        yield "".join(pieces)


def _strings(value: object, depth: int, budget: list[int]) -> Iterator[str]:
    """Yield every string in a JSON value; JSON inside a string comes before that string."""
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


def _read_frame(text: str) -> AgentResponse | None:
    place: Json = {}
    if text.startswith("@"):
        line, _, text = text[1:].partition("\n")
        found = _parsed(line)
        place = found if isinstance(found, dict) else {}
    if text.startswith("!"):
        number, _, reason = text[1:].partition(" ")
        is_number = number.isascii() and number.isdecimal() and len(number) < 10
        errno = int(number) if is_number else 0
        if errno == ENOENT or errno in CONNECTION_REFUSED:
            raise NoAgentError(errno, reason)
        raise AgentUnresponsiveError(reason)
    # Length and checksum are of the bytes within: a tool that wraps lines or changes line ends does
    # no harm, and one that changes anything else is noticed.
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
    return AgentResponse(header, body, place, len(text))


def _is_plain(frame: str) -> bool:
    return frame[:HEAD_CHARS].split(".", 2)[-1].lstrip().startswith("~")


def _plain(text: str, size_bytes: int, crc: int) -> bytes | None:
    if size_bytes > RESPONSE_LIMIT_BYTES:
        return None
    lines = text.replace("\r", "").replace("\n", "")
    raw = lines[1:-1].replace("\t", "\n").encode("ascii")
    return raw if len(raw) == size_bytes and zlib.crc32(raw) == crc else None


def _unpacked(text: str, size_bytes: int, crc: int) -> bytes | None:
    packed = base64.b64decode("".join(text.split()), validate=True)
    if len(packed) != size_bytes or zlib.crc32(packed) != crc:
        return None
    # Bounded: a few bytes could inflate to gigabytes.
    inflater = zlib.decompressobj()
    raw = inflater.decompress(packed, RESPONSE_LIMIT_BYTES)
    return None if inflater.unconsumed_tail else raw


# -- what is used

MOST_GPUS = 16
LONGEST_NAME_CHARS = 60


def to_resources(value: object) -> Resources | None:
    """Return what the agent's header says of memory, processors, disk and GPUs.

    What makes no sense is left out; ``None`` when nothing is left.
    """
    if not isinstance(value, dict):
        return None
    rows = value.get("gpus")
    gpus = (_to_gpu(row) for row in (rows[:MOST_GPUS] if isinstance(rows, list) else ()))
    found = Resources(
        memory=to_meter(value.get("memory")),
        cpu=to_meter(value.get("cpu")),
        disk=to_meter(value.get("disk")),
        gpus=tuple(gpu for gpu in gpus if gpu is not None),
    )
    return None if found == Resources() else found


def to_meter(value: object) -> Meter | None:
    """Return a pair of numbers, what is used and the limit; ``None`` when it is none."""
    if not (isinstance(value, list) and len(value) == 2):
        return None
    used, limit = value
    return Meter(used, limit) if _is_amount(used) and _is_amount(limit) and limit > 0 else None


def _is_amount(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value <= LARGEST_NUMBER  # type: ignore[operator]  # mypy does not follow


def _to_gpu(row: object) -> Gpu | None:
    if not (isinstance(row, list) and len(row) == 4 and isinstance(row[0], str)):
        return None
    memory = to_meter(row[2:])
    name = "".join(letter for letter in row[0] if letter.isprintable())[:LONGEST_NAME_CHARS]
    if memory is None:
        return None
    return Gpu(name or "GPU", row[1] if _is_amount(row[1]) else None, memory)


def run_record(response: AgentResponse | None) -> Json:
    """Return the record of a run that the agent's response holds.

    Raises
    ------
    NoAnswerError
        There was no response.
    WorkError
        The agent refuses; says why.
    """
    if response is None:
        raise NoAnswerError("The agent in the sandbox did not answer about the run.")
    record = response.header.get("run")
    if not isinstance(record, dict) or "id" not in record:
        why = record.get("error") if isinstance(record, dict) else "it answers no run"
        raise WorkError(f"The agent in the sandbox refuses the run: {visible(why)}.")
    return record
