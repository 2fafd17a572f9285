"""How requests and answers are framed on the agent's socket.

A request is its length in decimal, a newline, and that many bytes: base64 of zlib of JSON, or one
fragment of that (``F:upload:index:count:data``), because some tool runners cannot take a large
program. An answer is ``length.crc.`` and base64 of zlib of a JSON header, a newline and a slice of
the log, in lines of 4,000 characters, because some tool runners read their output by lines.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

LINE_CHARS = 4000
REQUEST_LIMIT_BYTES = 64 << 20
SLICE_LIMIT_BYTES = 4 << 20
SMALLEST_BLOCK_BYTES = 256
LARGEST_BLOCK_BYTES = 1 << 14
FRAME_BYTES = 256
"""Room for what is around the packed bytes: their length, checksum and newlines, the marks."""

UPLOADS_AT_ONCE = 4


class WireError(ValueError):
    """A request that cannot be read."""


def to_json(value: Any) -> bytes:
    """Compact ASCII JSON; what JSON does not know becomes its string."""
    return json.dumps(value, separators=(",", ":"), default=str).encode("ascii")


def read_request(payload: bytes) -> dict[str, Any]:
    """Decode one whole request; a WireError says why it cannot be."""
    try:
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
    header: dict[str, Any], body: bytes = b"", *, limit_chars: int = 1 << 30
) -> tuple[bytes, int]:
    """One framed answer within a number of characters; how many bytes of the body are in it.

    Some of the body is always in it, so that a reader with a small limit gets on.
    """
    deflater = zlib.compressobj(1)
    packed = bytearray(deflater.compress(to_json(header) + b"\n"))
    block = max(SMALLEST_BLOCK_BYTES, min(LARGEST_BLOCK_BYTES, limit_chars // 8))
    room = limit_chars * 3 // 4 - FRAME_BYTES - block
    taken = 0
    while taken < len(body) and (taken == 0 or len(packed) < room):
        packed += deflater.compress(body[taken : taken + block])
        packed += deflater.flush(zlib.Z_SYNC_FLUSH)
        taken = min(len(body), taken + block)
    packed += deflater.flush()
    text = base64.b64encode(packed)
    lines = [text[i : i + LINE_CHARS] for i in range(0, len(text), LINE_CHARS)]
    head = b"%d.%08x.\n" % (len(packed), zlib.crc32(packed) & 0xFFFFFFFF)
    return head + b"\n".join(lines), taken


class Uploads:
    """Requests that arrive in fragments, in any order; only a few unfinished ones are kept."""

    def __init__(self) -> None:
        self._pieces: dict[bytes, dict[int, bytes]] = {}

    def add(self, fragment: bytes) -> bytes | None:
        """Keep one fragment; the whole request once it is complete, else ``None``."""
        try:
            _, upload, index, count, data = fragment.split(b":", 4)
            position, total = int(index), int(count)
        except ValueError as error:
            raise WireError("fragment that cannot be read") from error
        pieces = self._pieces.setdefault(upload, {})
        while len(self._pieces) > UPLOADS_AT_ONCE:
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
