"""The framing of requests and answers on the agent's socket.

A request is its length in decimal, a newline, and that many bytes: base64 of zlib of JSON, or one
fragment of that (``F:upload:index:count:data``), because some tool runners cannot take a large
program.

An answer is ``length.crc.`` and its content, in lines of 4,000 characters, because some runners
read their output by lines. The content is a JSON header, a newline and a slice of the log: packed,
as base64 of zlib, or plain, between ``~`` and with tabs for newlines. Pictures hardly shrink, so
that packing them costs far more than it saves; but some runners change what they print, and then
the reader asks for packed answers only, in which white space does not matter.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

LINE_CHARS = 4000
REQUEST_LIMIT_BYTES = 64 << 20
SLICE_LIMIT_BYTES = 16 << 20
SMALLEST_BLOCK_BYTES = 256
LARGEST_BLOCK_BYTES = 1 << 14
FRAME_BYTES = 256
"""Room for what surrounds the packed bytes: their length, checksum and newlines, the marks."""

SAMPLE_BYTES = 1 << 14
INCOMPRESSIBLE_RATIO = 0.6
"""A sample that keeps more than this share of its size is not worth packing."""

UNFINISHED_REQUESTS_LIMIT = 4
"""An upload that was given up is dropped when so many newer ones have begun."""


class WireError(ValueError):
    """A request that cannot be read."""


def to_json(value: Any) -> bytes:
    """Return compact ASCII JSON; what JSON does not know becomes its string."""
    return json.dumps(value, separators=(",", ":"), default=str).encode("ascii")


def replace_surrogates(value: Any) -> Any:
    """Return a JSON value with valid Unicode only: lone surrogates become a replacement mark.

    File names with odd bytes have them, and no message can carry them.
    """
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {replace_surrogates(key): replace_surrogates(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [replace_surrogates(item) for item in value]
    return value


def read_request(payload: bytes) -> dict[str, Any]:
    """Decode one whole request; raises WireError with the reason."""
    try:
        # Bounded, so that a small request cannot unpack to more memory than there is.
        inflater = zlib.decompressobj()
        text = inflater.decompress(base64.b64decode(payload), REQUEST_LIMIT_BYTES)
        if inflater.unconsumed_tail or not inflater.eof:
            raise WireError("request larger than the limit, or cut off")
        request = json.loads(text.decode("utf-8"))
    except (ValueError, zlib.error, RecursionError) as error:
        raise WireError(str(error)) from error
    if not isinstance(request, dict):
        raise WireError("request is no JSON object")
    return request


def write_answer(
    header: dict[str, Any],
    body: bytes = b"",
    *,
    limit_chars: int = 1 << 30,
    may_be_plain: bool = False,
) -> tuple[bytes, int]:
    """Return a framed answer of at most ``limit_chars``, and how many bytes of the body it holds.

    Some of the body is always in it, so that a reader with a small limit gets on.
    """
    head = to_json(header) + b"\n"
    if may_be_plain and is_better_plain(body):
        room = max(1, limit_chars * LINE_CHARS // (LINE_CHARS + 1) - FRAME_BYTES - len(head))
        body = body[:room]
        content = head + body
        text = b"~" + content.replace(b"\n", b"\t") + b"~"
        return _frame(content, text), len(body)
    packed, taken = _pack(head, body, limit_chars)
    return _frame(packed, base64.b64encode(packed)), taken


def is_better_plain(body: bytes) -> bool:
    """Whether a slice would hardly shrink when packed, and can travel as it is."""
    # A tab is read back as the newline it stands for; "\r", which runners add, is taken out.
    sample = body[:SAMPLE_BYTES]
    if len(sample) < SAMPLE_BYTES or len(zlib.compress(sample, 1)) < INCOMPRESSIBLE_RATIO * len(
        sample
    ):
        return False
    return body.isascii() and b"\t" not in body and b"\r" not in body


def _pack(head: bytes, body: bytes, limit_chars: int) -> tuple[bytearray, int]:
    deflater = zlib.compressobj(1)
    packed = bytearray(deflater.compress(head))
    block = max(SMALLEST_BLOCK_BYTES, min(LARGEST_BLOCK_BYTES, limit_chars // 8))
    room = limit_chars * 3 // 4 - FRAME_BYTES - block
    taken = 0
    # Flushed block by block, because only then it is known how large the packed bytes are.
    while taken < len(body) and (taken == 0 or len(packed) < room):
        packed += deflater.compress(body[taken : taken + block])
        packed += deflater.flush(zlib.Z_SYNC_FLUSH)
        taken = min(len(body), taken + block)
    packed += deflater.flush()
    return packed, taken


def _frame(content: bytes | bytearray, text: bytes) -> bytes:
    lines = [text[i : i + LINE_CHARS] for i in range(0, len(text), LINE_CHARS)]
    head = b"%d.%08x.\n" % (len(content), zlib.crc32(content) & 0xFFFFFFFF)
    return head + b"\n".join(lines)


class FragmentReassembly:
    """Joins requests that arrive in fragments, in any order; keeps only a few unfinished ones."""

    def __init__(self) -> None:
        self._pieces: dict[bytes, dict[int, bytes]] = {}

    def add(self, fragment: bytes) -> bytes | None:
        """Keep one fragment; return the whole request once it is complete, else ``None``."""
        try:
            _, upload, index, count, data = fragment.split(b":", 4)
            position, total = int(index), int(count)
        except ValueError as error:
            raise WireError("fragment that cannot be read") from error
        pieces = self._pieces.setdefault(upload, {})
        while len(self._pieces) > UNFINISHED_REQUESTS_LIMIT:
            del self._pieces[next(iter(self._pieces))]
        pieces[position] = data
        if sum(len(piece) for piece in pieces.values()) > REQUEST_LIMIT_BYTES:
            del self._pieces[upload]
            raise WireError("request larger than the limit")
        if len(pieces) < total:
            return None
        del self._pieces[upload]
        try:
            return b"".join(pieces[i] for i in range(total))
        except KeyError as error:
            raise WireError("fragments do not fit together") from error
