"""The comparison of a notebook's outputs with those of another run: a verdict on each, and why.

Text is the same, or the same but for numbers within a tolerance and for what differs in every run
(memory addresses, random identifiers); images are the same, or have the same pixels. What a run
cannot repeat is not called different.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ivy_kernel import errors
from ivy_kernel.models import Json
from ivy_kernel.session.receipts import CodeCell, as_objects, as_text, source_of

Verdict = Literal["exact", "within tolerance", "different", "cannot be checked"]

TOLERANCE = 1e-9
"""Relative difference of two numbers that counts as none."""
PIXEL_TOLERANCE = 2
"""Of 255: difference of a pixel's channel that counts as none."""
IMAGE_LIMIT_BYTES = 64 << 20
SHOWN_CHARS = 60

_ORDER: dict[Verdict, int] = {
    "exact": 0,
    "within tolerance": 1,
    "cannot be checked": 2,
    "different": 3,
}
_VARYING = re.compile(
    r"\b0x[0-9a-fA-F]{5,16}\b"  # where an object was in memory
    r"|\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"
    r"|(?<=/tmp/)ipykernel_\d+/\d+(?=\.py)"
)
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?!\w)")
_CELL = re.compile(r"\b(?:Cell|Input) In ?\[\d+\]|<ipython-input-\d+-[0-9a-f]+>")
"""A cell in a traceback: its number says how many ran before it, and nothing of what it did."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_TIMING = re.compile(r"^\s*%{1,2}time(?:it)?\b", re.MULTILINE)
_WIDGETS = "application/vnd.jupyter.widget-"
_OURS = {name for name, value in vars(errors).items() if isinstance(value, type)}


@dataclass(frozen=True, slots=True)
class OutputVerdict:
    """What a comparison says of one output.

    Parameters
    ----------
    cell
        The cell's place among the code cells, from 1.
    cell_id
        Its id.
    output
        The output's place in the cell, from 1; 0 for the cell as a whole.
    kind
        Its type or MIME type.
    verdict
        The verdict.
    why
        The first difference, or why there is no other verdict; empty when it is exact.
    """

    cell: int
    cell_id: str
    output: int
    kind: str
    verdict: Verdict
    why: str = ""


Judged = tuple[Verdict, str]


def compare_cell(
    one: CodeCell, found: Mapping[str, Any] | None, *, tolerance: float, why_not: str = ""
) -> Iterator[OutputVerdict]:
    """Compare the outputs of a cell with those of its other run.

    Parameters
    ----------
    one
        The cell as it was recorded.
    found
        The same cell after the other run.
    tolerance
        Relative difference of numbers.
    why_not
        Why there is no other run of it; empty when there is.
    """
    recorded = joined_outputs(one.cell)
    again = joined_outputs(found or {})
    if found is None or why_not:
        for place, output in enumerate(recorded, 1):
            yield OutputVerdict(
                one.number, one.key, place, _kind(output), "cannot be checked", why_not
            )
        return
    unrepeatable = _why_unrepeatable(one)
    for place in range(max(len(recorded), len(again))):
        was = recorded[place] if place < len(recorded) else None
        now = again[place] if place < len(again) else None
        verdict, why = _compare_output(was, now, tolerance)
        if verdict == "different" and unrepeatable:
            verdict, why = "cannot be checked", f"{unrepeatable}; {why}"
        kind = _kind(was or now or {})
        yield OutputVerdict(one.number, one.key, place + 1, kind, verdict, why)


def joined_outputs(cell: Mapping[str, Any]) -> list[Json]:
    """Return a cell's outputs with each stream in one piece, whose cuts vary from run to run."""
    joined: list[Json] = []
    streams: dict[str, Json] = {}
    for output in as_objects(cell.get("outputs")):
        if output.get("output_type") != "stream":
            joined.append(output)
            continue
        name = str(output.get("name"))
        if name not in streams:
            streams[name] = {**output, "text": ""}
            joined.append(streams[name])
        streams[name]["text"] += _as_one(output.get("text"))
    return joined


def _why_unrepeatable(one: CodeCell) -> str:
    reasons = as_text(one.record.get("incomplete")).split("; ")
    # A file without a hash is a finding about that file, and no reason for another output.
    incomplete = "; ".join(why for why in reasons if why and not why.startswith("no hash of "))
    if incomplete:
        return f"its inputs may be incomplete ({incomplete})"
    if _TIMING.search(source_of(one.cell)):
        return "it shows how long it took"
    if not one.record:
        return "it has no record"
    return ""


def _kind(output: Mapping[str, Any]) -> str:
    kind = str(output.get("output_type", ""))
    if kind == "stream":
        return str(output.get("name", kind))
    data = output.get("data")
    return next(iter(data), kind) if isinstance(data, dict) else kind


def _as_one(value: object) -> str:
    return "".join(map(str, value)) if isinstance(value, list) else str(value or "")


def _compare_output(was: Json | None, now: Json | None, tolerance: float) -> Judged:
    if was is None:
        if now is not None and now.get("output_type") == "error":
            name = str(now.get("ename"))
            if name in _OURS:
                return "cannot be checked", f"it could not be run again: {now.get('evalue')}"
            return "different", f"it failed with {name}: {now.get('evalue')}"
        return "different", f"{_kind(now or {})} was not recorded, and came now"
    if now is None:
        return "different", f"{_kind(was)} was recorded, and did not come again"
    if was.get("output_type") != now.get("output_type") or was.get("name") != now.get("name"):
        if now.get("output_type") == "error":
            return _compare_output(None, now, tolerance)
        return "different", f"{_kind(was)} was recorded, found {_kind(now)}"
    if was.get("output_type") == "stream":
        return compare_text(_as_one(was.get("text")), _as_one(now.get("text")), tolerance)
    if was.get("output_type") == "error":
        return _compare_errors(was, now, tolerance)
    return _compare_data(was.get("data"), now.get("data"), tolerance)


def _compare_errors(was: Json, now: Json, tolerance: float) -> Judged:
    if str(now.get("ename")) in _OURS and was.get("ename") != now.get("ename"):
        return "cannot be checked", f"it could not be run again: {now.get('evalue')}"
    one, other = (f"{error.get('ename')}: {error.get('evalue')}" for error in (was, now))
    verdict, why = compare_text(one, other, tolerance)
    if verdict == "exact":
        lines = ("\n".join(map(str, error.get("traceback") or ())) for error in (was, now))
        one, other = (_CELL.sub("Cell In[…]", _COLOUR.sub("", text)) for text in lines)
        verdict, why = compare_text(one, other, tolerance)
    return verdict, why


def _compare_data(was: object, now: object, tolerance: float) -> Judged:
    """Compare the forms of one output; the worst verdict is its own."""
    if not isinstance(was, dict) or not isinstance(now, dict):
        return ("exact", "") if was == now else ("different", "its data are no object")
    if any(kind.startswith(_WIDGETS) for kind in {*was, *now}):
        return "cannot be checked", "a widget's state is in its kernel, not in the notebook"
    for one, other, what in ((was, now, "did not come again"), (now, was, "was not recorded")):
        for kind in one:
            if kind not in other:
                return "different", f"{kind} {what}"
    worst: Judged = "exact", ""
    # A plot's text is no more than its size, so an image says more of what differs.
    for kind in sorted(was, key=lambda kind: not kind.startswith("image/")):
        judged = compare_form(kind, was[kind], now[kind], tolerance)
        if _ORDER[judged[0]] > _ORDER[worst[0]]:
            worst = judged
    return worst


def compare_form(kind: str, was: object, now: object, tolerance: float) -> Judged:
    """Compare one form of an output, by its MIME type."""
    if was == now:
        return "exact", ""
    if kind.startswith("image/") and "svg" not in kind:
        return _compare_images(_as_one(was), _as_one(now))
    if isinstance(was, str | list) and isinstance(now, str | list):
        is_text = all(isinstance(line, str) for value in (was, now) for line in value)
        if is_text:
            return compare_text(_as_one(was), _as_one(now), tolerance)
    one, other = (json.dumps(value, sort_keys=True, indent=0) for value in (was, now))
    return compare_text(one, other, tolerance)


# Text ---------------------------------------------------------------------------------------------
def compare_text(was: str, now: str, tolerance: float) -> Judged:
    """Compare two texts, number by number where they differ."""
    if was == now:
        return "exact", ""
    one, other = _VARYING.sub("…", was), _VARYING.sub("…", now)
    if one == other:
        return "within tolerance", "but for addresses and identifiers, which every run has its own"
    words, numbers = _NUMBER.split(one), _NUMBER.findall(one)
    words_now, numbers_now = _NUMBER.split(other), _NUMBER.findall(other)
    # The columns of a table are as wide as their longest number.
    is_same = [word.split() for word in words] == [word.split() for word in words_now]
    if not is_same or one.count("\n") != other.count("\n") or numbers == numbers_now:
        return "different", _first_difference(was, now)
    largest = 0.0
    for left, right in zip(numbers, numbers_now, strict=True):
        apart = _apart(left, right)
        if apart > tolerance:
            return "different", f"{_first_difference(was, now)} ({left} and {right})"
        largest = max(largest, apart)
    return "within tolerance", f"numbers differ by {largest:.2g} of their size at most"


def _apart(one: str, other: str) -> float:
    """Return the relative difference of two numbers; infinite for whole ones that differ."""
    if one == other:
        return 0.0
    if not set(f"{one}{other}") & set(".eE"):
        return math.inf
    left, right = float(one), float(other)
    size = max(abs(left), abs(right))
    if not math.isfinite(size):
        return math.inf
    return abs(left - right) / size if left != right else 0.0


def _first_difference(was: str, now: str) -> str:
    lines, lines_now = was.splitlines(), now.splitlines()
    for number, (one, other) in enumerate(zip(lines, lines_now, strict=False), 1):
        if _VARYING.sub("…", one) != _VARYING.sub("…", other):
            return f"line {number}: {_cut(one, other)!r}, found {_cut(other, one)!r}"
    if len(lines) == len(lines_now):
        return "white space differs"
    return f"{len(lines)} lines, found {len(lines_now)}"


def _cut(text: str, other: str) -> str:
    """Return the part of a line around its first difference from another."""
    pairs = enumerate(zip(text, other, strict=False))
    at = next((place for place, (one, two) in pairs if one != two), min(len(text), len(other)))
    start = max(0, at - SHOWN_CHARS // 2)
    return text[start : start + SHOWN_CHARS]


# Images -------------------------------------------------------------------------------------------
def _compare_images(was: str, now: str) -> Judged:
    try:
        one, other = (base64.b64decode("".join(text.split()), validate=True) for text in (was, now))
    except (binascii.Error, ValueError):
        return "different", "it is no image"
    if one == other:
        return "exact", ""
    try:
        from PIL import Image, ImageChops
    except ImportError:
        return "cannot be checked", "the images' bytes differ; with Pillow installed pixels count"
    if max(len(one), len(other)) > IMAGE_LIMIT_BYTES:
        return "cannot be checked", "the image is too large to be looked at"
    try:
        with Image.open(io.BytesIO(one)) as first, Image.open(io.BytesIO(other)) as second:
            if first.size != second.size:
                sizes = ("{} by {}".format(*image.size) for image in (first, second))
                return "different", "{} pixels, found {}".format(*sizes)
            pixels = [image.convert("RGBA") for image in (first, second)]
    except Exception as error:  # Pillow raises many kinds for what is no image
        return "cannot be checked", f"the image cannot be read ({type(error).__name__})"
    apart = ImageChops.difference(*pixels)
    merged = apart.getchannel(0)  # the largest difference of each pixel
    for band in apart.split()[1:]:
        merged = ImageChops.lighter(merged, band)
    counts = merged.histogram()
    largest = max(value for value, count in enumerate(counts) if count)
    if largest <= PIXEL_TOLERANCE:
        return "within tolerance", f"pixels differ by {largest} of 255 at most"
    count = sum(counts[PIXEL_TOLERANCE + 1 :])
    return "different", f"{count} of {merged.width * merged.height} pixels differ"
