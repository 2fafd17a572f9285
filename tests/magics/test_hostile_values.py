"""What a hostile sandbox may send for a variable: refused, without memory, pickles or harm."""

from __future__ import annotations

import base64
import contextlib
import json
import pathlib
import pickle
import struct
import tracemalloc
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from value_samples import ROUND_TRIPS, all_bytes

from ivy_kernel.magics.frame_codec import MAGIC, decode
from ivy_kernel.magics.value_codec import DamagedValueError, ValueCodecError


def crafted(root: Any, *parts: bytes, sizes: Any = None) -> bytes:
    """The bytes with such an index."""
    sizes = [len(part) for part in parts] if sizes is None else sizes
    index = json.dumps({"sizes": sizes, "root": root}).encode()
    return MAGIC + struct.pack("<Q", len(index)) + index + b"".join(parts)


class Trap:
    """Leaves a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


def arrow_stream(table: pa.Table, **options: Any) -> bytes:
    """A table as an IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


HUGE = 2**60
EMPTY = ["index", ["array", "<i8", [0], "C", ""], None, None]
NO_CODES = ["array", "|i1", [0], "C", ""]
RANGE = ["rangeindex", 0, 10**12, 1, None]
HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "an index that is too long": MAGIC + struct.pack("<Q", HUGE) + b"{}",
    "no index": MAGIC + struct.pack("<Q", 2) + b"[]",
    "parts that are not there": crafted(1, b"x", sizes=[HUGE]),
    "a negative size": crafted(1, b"xx", sizes=[-1, 3]),
    "an unknown kind": crafted(["pickle", "gASVAAAAAAAAAC4="]),
    "a kind that is no text": crafted([["list"], []]),
    "a part that is not there": crafted(["bytes", 7]),
    "a shape that is too large": crafted(["array", "<f8", [HUGE, 8], "C", ""]),
    "an empty shape that is too large": crafted(["array", "<f8", [0, HUGE], "C", ""]),
    "elements without size": crafted(["array", "<U0", [10**12], "C", ""]),
    "objects in an array": crafted(["array", "|O", [1], "C", "AAAAAAAAAAA="]),
    "a structure of objects": crafted(["array", [["a", "|O"]], [1], "C", "AAAAAAAAAAA="]),
    "a structure that is too large": crafted(
        ["array", [["a", "<f8", [2**40, 2**40]]], [1], "C", ""]
    ),
    "a range on its own": crafted(RANGE),
    "a range that is too long": crafted(["series", RANGE, None, None, EMPTY[1]]),
    "a level of a range": crafted(["multiindex", [RANGE], [NO_CODES], [None]]),
    "categories of a range": crafted(["categorical", NO_CODES, RANGE, False]),
    "codes out of range": crafted(
        ["categorical", ["array", "|i1", [1], "C", "BQ=="], EMPTY, False]
    ),
    "texts of other lengths": crafted(
        [
            "texts",
            "",
            ["array", "<i8", [1], "C", "AAAAAAAAABA="],
            ["array", "|u1", [1], "C", "AA=="],
        ]
    ),
    "a frame of other lengths": crafted(["frame", EMPTY, EMPTY, None, [["objects", [1]]]]),
    "a class by name": crafted(["masked", "__class__", EMPTY[1], EMPTY[1]]),
    "a zone outside of the database": crafted(
        ["datetime", [2024, 1, 1, 0, 0, 0, 0, 0], ["zone", "../../../etc/passwd"]]
    ),
    "a reference to nothing": crafted(["same", 3]),
    "a reference to itself": crafted(["shared", 0, ["list", [["same", 0]]]]),
    "keys that refer to each other": crafted(
        ["list", [["shared", 0, ["tuple", [1]]], ["set", [["tuple", [["same", 0]]]]]]]
    ),
    "keys that cannot be hashed": crafted(["dict", [["list", []], 1]]),
    "an endless fraction": crafted(["fraction", ["int", 0], 3], b"f" * 10**6),
    "nested too deep": MAGIC + struct.pack("<Q", 10**5) + b"[" * 10**5,
    "an object of JSON": crafted(["list", [1, {"a": 2}]]),
    "a compressed table": crafted(
        ["arrow", 0], arrow_stream(pa.table({"a": np.zeros(10**6)}), compression="zstd")
    ),
    "an extension type": crafted(
        ["arrow", 0], arrow_stream(pa.table({"a": pa.array([b"0" * 16], pa.uuid())}))
    ),
    "a table that ends early": crafted(
        ["arrow", 0], arrow_stream(pa.table({"a": range(99)}))[:-200]
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_are_refused_without_taking_memory(name: str) -> None:
    """An index of a few bytes takes no more than some MB, whatever it claims."""
    decode(all_bytes([np.zeros(1), pd.Series(["a"]), pa.table({"a": [1]})]))  # imports all
    data = HOSTILE[name]
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    try:
        with pytest.raises(DamagedValueError):
            decode(data)
        assert tracemalloc.get_traced_memory()[1] < 30_000_000 + 10 * len(data)
        assert pa.total_allocated_bytes() - before < 10_000_000
    finally:
        tracemalloc.stop()


def test_nothing_is_unpickled(tmp_path: pathlib.Path) -> None:
    """Pickles in every place that could hold one leave no trace."""
    mark = tmp_path / "unpickled"
    trap = pickle.dumps(Trap(str(mark)))
    text = base64.b64encode(trap).decode()
    field = pa.field("a", pa.binary(), metadata={
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": trap,
    })  # fmt: skip
    table = pa.Table.from_arrays([pa.array([b"x"])], schema=pa.schema([field]))
    for data in (
        crafted(["pickle", text]),
        crafted(["array", "|O", [len(trap) // 8], "C", text]),
        crafted(["objects", [["pickle", text]]]),
        crafted(["arrow", 0], arrow_stream(table)),
        crafted(["polars", False, 0, [None]], arrow_stream(table)),
        crafted(["bytes", text]),
        MAGIC + trap,
        trap,
    ):
        with contextlib.suppress(ValueCodecError):
            assert decode(data) == trap
    assert not mark.exists()
    pickle.loads(trap).close()
    assert mark.exists()


SAMPLES = [all_bytes(ROUND_TRIPS[name][0]) for name in ROUND_TRIPS if "text" != name != "bytes"]


@given(st.data())
@settings(deadline=None, max_examples=300)
def test_damaged_bytes_are_refused_or_harmless(data: st.DataObject) -> None:
    """Whatever is changed in an encoded value: it is decoded, or refused by the codec's error."""
    damaged = bytearray(data.draw(st.sampled_from(SAMPLES)))
    (length,) = struct.unpack_from("<Q", damaged, len(MAGIC))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, min(len(damaged) - 1, length + 2000)))
        damaged[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ValueCodecError):
        decode(bytes(damaged))


NODES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(),
    lambda inner: st.lists(inner, max_size=5)
    | st.tuples(
        st.sampled_from(["list", "dict", "set", "array", "frame", "index", "texts", "int", "same",
                         "shared", "datetime", "range", "masked", "zoned", "period", "arrow"]),
        inner, inner, inner,
    ).map(list),
    max_leaves=12,
)  # fmt: skip


@given(NODES)
@settings(deadline=None, max_examples=300)
def test_any_index_is_refused_or_harmless(root: Any) -> None:
    """Whatever JSON stands in the index, no other error than the codec's comes of it."""
    with contextlib.suppress(ValueCodecError):
        decode(crafted(root, b"abc"))
