"""Values of every type that variables may have, each with the test that it arrived as it was."""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import fractions
import math
import pathlib
import struct
import uuid
import zoneinfo
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

from ivy_kernel.magics.frame_codec import encode

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
SHARED = [1]


def plainly_equal(sent: Any, got: Any) -> None:
    """Compare by type and value, in containers too."""
    assert type(got) is type(sent)
    if isinstance(sent, float):
        assert struct.pack("<d", got) == struct.pack("<d", sent)
    elif isinstance(sent, list | tuple | collections.deque):
        assert len(got) == len(sent)
        for one, other in zip(sent, got, strict=True):
            plainly_equal(one, other)
    elif isinstance(sent, dict):
        assert list(got) == list(sent)
        for key, value in sent.items():
            plainly_equal(value, got[key])
    else:
        assert got == sent or (got is sent)
    if isinstance(sent, dt.datetime | dt.time):
        assert (got.tzinfo, got.fold) == (sent.tzinfo, sent.fold)


def equal_arrays(sent: Any, got: Any) -> None:
    """Compare dtype, order, shape and elements."""
    assert type(got) is type(sent)
    assert (got.dtype, got.shape) == (sent.dtype, sent.shape)
    assert got.dtype.descr == sent.dtype.descr  # the byte order too
    if sent.flags.f_contiguous != sent.flags.c_contiguous:
        assert got.flags.f_contiguous == sent.flags.f_contiguous
    assert got.flags.writeable
    np.testing.assert_array_equal(got, sent)


def equal_frames(sent: pd.DataFrame, got: pd.DataFrame) -> None:
    """Compare all that pandas' own comparison does, attributes and the kinds of missing too."""
    pd.testing.assert_frame_equal(got, sent, check_freq=True, check_index_type="equiv")
    assert got.attrs == sent.attrs
    for number in range(sent.shape[1]):
        if sent.iloc[:, number].dtype == object:
            kinds = [list(map(type, frame.iloc[:, number])) for frame in (sent, got)]
            assert kinds[0] == kinds[1]


def equal_polars(sent: Any, got: Any) -> None:
    """Compare schema, names and values."""
    assert got.equals(sent)
    assert getattr(got, "schema", None) == getattr(sent, "schema", None)
    assert getattr(got, "dtype", None) == getattr(sent, "dtype", None)
    assert getattr(got, "name", None) == getattr(sent, "name", None)


equal_series = partial(pd.testing.assert_series_equal, check_freq=True)


def in_turn(test: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Compare the elements of two lists by a test."""

    def all_equal(sent: list[Any], got: list[Any]) -> None:
        assert len(got) == len(sent)
        for one, other in zip(sent, got, strict=True):
            test(one, other)

    return all_equal


WHEN = pd.date_range("2024-03-30", periods=3, tz="Europe/Berlin", name="when")
COLUMNS = pd.DataFrame(
    {
        "int8": np.array([1, 2, 3], "i1"),
        "float": [1.5, math.nan, -0.0],
        "text": ["a", None, "ü"],
        "objects": pd.Series(["a", None, math.nan], dtype=object, index=WHEN).array,
        "more": pd.Series([pd.NA, pd.NaT, "\ud800"], dtype=object).array,
        "mixed": pd.Series([1, "a", [1, {"k": None}]], dtype=object).array,
        "moment": pd.to_datetime(["2024-01-01", None, "2024-01-03"]),
        "zoned": WHEN,
        "span": pd.to_timedelta([1, None, 3], unit="s"),
        "category": pd.Categorical(["u", None, "v"], categories=["v", "u", "w"]),
        "ordered": pd.Categorical([1, 2, 1], categories=[2, 1], ordered=True),
        "Int64": pd.array([1, None, 2**62], dtype="Int64"),
        "UInt8": pd.array([1, None, 255], dtype="UInt8"),
        "Float32": pd.array([1.5, None, 2], dtype="Float32"),
        "boolean": pd.array([True, None, False], dtype="boolean"),
        "string": pd.array(["a", None, "c"], dtype="string[python]"),
        "arrow": pd.array([1, None, 3], dtype="int64[pyarrow]"),
        "interval": pd.cut([1, 2, 3], 2),
        "period": pd.period_range("2024-01", periods=3, freq="M"),
    },
    index=WHEN,
)
COLUMNS.attrs = {"source": ["a", 1]}

ROUND_TRIPS: dict[str, tuple[Any, Callable[[Any, Any], None]]] = {
    "none and booleans": ([None, True, False], plainly_equal),
    "integers of any size": ([0, -1, 2**63, -(2**63) - 1, 10**5000, -(10**5000)], plainly_equal),
    "floats": ([1e-320, 0.1, -0.0, math.inf, -math.inf, math.nan], plainly_equal),
    "complex": (complex(1.5, -0.0), plainly_equal),
    "text": (["", "ü€𝄞", "\0\n", "\ud800", "\ud834\udd1e", "x" * 100_000], plainly_equal),
    "bytes": ([b"", b"\0\xff", bytes(100_000), bytearray(b"abc")], plainly_equal),
    "dates": ([dt.date(2024, 2, 29), dt.timedelta(-1, 2, 3), dt.time(1, 2, fold=1)], plainly_equal),
    "datetimes": (
        [
            dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=BERLIN),
            dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc),
            dt.datetime(2024, 1, 1, 0, 0, 0, 7, dt.timezone(dt.timedelta(hours=5.5), "here")),
            dt.datetime.max,
        ],
        plainly_equal,
    ),
    "decimals and fractions": (
        [decimal.Decimal("1.200"), decimal.Decimal("-Infinity"), fractions.Fraction(-1, 3)],
        plainly_equal,
    ),
    "ids, paths and ranges": (
        [uuid.UUID(int=7), pathlib.Path("a/b"), range(3, 2**70, 7), slice(1, None)],
        plainly_equal,
    ),
    "tuples and sets": (((), (1, (2,)), {1, "a"}, frozenset([(1, 2)])), plainly_equal),
    "dictionaries": (
        {1: "a", "1": 2, (1, (2, 3)): {None: []}, frozenset([4]): b"", dt.date(2024, 1, 1): 1.5},
        plainly_equal,
    ),
    "collections": (
        [
            collections.OrderedDict(b=1, a=2),
            collections.Counter("aab"),
            collections.deque([1, 2], 5),
        ],
        plainly_equal,
    ),
    "numeric arrays": (
        [
            np.arange(6).astype(code).reshape(2, 3)
            for code in ("?", *"bBhHiIlLqQ", "e", "f", "d", "g", "F", "D", "G")
        ],
        in_turn(equal_arrays),
    ),
    "big-endian arrays": (np.array([1, 2, 300], ">i4"), equal_arrays),
    "Fortran order": (np.asfortranarray(np.arange(6.0).reshape(2, 3)), equal_arrays),
    "slices of arrays": (np.arange(20).reshape(4, 5)[::2, 1:3], equal_arrays),
    "arrays without dimension or element": (
        [np.array(5.5), np.zeros((0, 3)), np.zeros((2, 0), order="F")],
        in_turn(equal_arrays),
    ),
    "arrays of text and bytes": (
        [np.array(["ü", "bcd"]), np.array([b"x", b"yz"])],
        in_turn(equal_arrays),
    ),
    "arrays of moments": (
        [
            np.array(["2024-01-01", "NaT"], "M8[D]"),
            np.array([1, 2], "m8[25s]"),
            np.array(["2024-01-01T00:00:00.000000001"], "M8[ns]"),
        ],
        in_turn(equal_arrays),
    ),
    "structured arrays": (
        np.array(
            [(1, 2.5, [1, 2]), (2, -0.5, [3, 4])],
            np.dtype([("id", ">u2"), ("x", "f8"), ("v", "i1", (2,))], align=True),
        ),
        equal_arrays,
    ),
    "scalars of NumPy": (
        [np.int8(3), np.float32(0.1), np.bool_(True), np.str_(""), np.datetime64("2024-01", "M")],
        plainly_equal,
    ),
    "scalars of pandas": (
        [
            pd.Timestamp("2024-10-27T00:30:00.123456789", tz="UTC").tz_convert("Europe/Berlin"),
            pd.Timedelta("1 ns"),
            pd.NaT,
            pd.NA,
        ],
        in_turn(lambda sent, got: plainly_equal(str(sent), str(got))),
    ),
    "frame of all kinds of columns": (COLUMNS, equal_frames),
    "frame of one kind": (pd.DataFrame(np.arange(12.0).reshape(3, 4)), equal_frames),
    "frames without rows or columns": (
        [pd.DataFrame(), pd.DataFrame(index=["a"]), pd.DataFrame({"a": pd.array([], "Int8")})],
        in_turn(equal_frames),
    ),
    "frame with a column twice": (
        pd.DataFrame([[1, "a"], [2, "b"]], columns=["x", "x"]),
        equal_frames,
    ),
    "frame with levels": (
        pd.DataFrame(
            [[1, 2.5], [3, 4.5]],
            columns=pd.MultiIndex.from_tuples([("a", 1), ("b", 2)], names=["up", None]),
            index=pd.MultiIndex.from_arrays(
                [pd.Categorical(["u", "v"]), pd.to_datetime(["2024-01-01", None])],
                names=["kind", ("when", 1)],
            ),
        ),
        equal_frames,
    ),
    "series": (
        [
            pd.Series([1, 2], name=("a", 1), index=[2.5, math.nan]),
            pd.Series(["x", None], index=pd.timedelta_range(0, periods=2, freq="h")),
            pd.Series([True], name=None, index=pd.RangeIndex(3, 4, name="r")),
        ],
        in_turn(equal_series),
    ),
    "indexes": (
        [
            WHEN,
            pd.RangeIndex(0, 10, 3),
            pd.Index(["a", None], name="n"),
            pd.CategoricalIndex(["a", "b"], ordered=True),
            pd.IntervalIndex.from_breaks([1, 2, 3]),
            pd.period_range("2024", periods=2, freq="W-MON"),
            pd.MultiIndex.from_product([[1, 2], ["a"]]),
        ],
        in_turn(partial(pd.testing.assert_index_equal, exact=True)),
    ),
    "polars frame": (
        pl.DataFrame(
            {
                "int": [1, None],
                "float": [math.inf, None],
                "text": ["ü", None],
                "cat": pl.Series(["u", "v"], dtype=pl.Categorical),
                "enum": pl.Series(["u", None], dtype=pl.Enum(["v", "u", "w"])),
                "date": [dt.date(2024, 1, 1), None],
                "time": [dt.time(1), None],
                "zoned": pl.Series([dt.datetime(2024, 1, 1)] * 2).dt.replace_time_zone("UTC"),
                "span": [dt.timedelta(1), None],
                "list": [[1], []],
                "array": pl.Series([[1, 2], [3, 4]], dtype=pl.Array(pl.Int8, 2)),
                "struct": [{"x": 1, "y": "a"}, {"x": None, "y": "b"}],
                "decimal": pl.Series([decimal.Decimal("1.20"), None], dtype=pl.Decimal(38, 2)),
                "binary": [b"\0", None],
                "null": [None, None],
            }
        ),
        equal_polars,
    ),
    "polars series": (pl.Series("n", [1, None], dtype=pl.UInt16), equal_polars),
    "Arrow table": (
        pa.table(
            {
                "int": pa.chunked_array([[1], [None]]),
                "dictionary": pa.array(["a", "b"]).dictionary_encode(),
                "list": [[1], None],
                "struct": [{"a": 1}, None],
                "map": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int8())),
                "zoned": pa.array([0, None], pa.timestamp("ns", "Europe/Berlin")),
            }
        ).replace_schema_metadata({b"k": b"\xff"}),
        lambda sent, got: plainly_equal(got.equals(sent, check_metadata=True), True),
    ),
    "tables in containers": (
        {"frames": [COLUMNS, COLUMNS]},
        lambda sent, got: in_turn(equal_frames)(sent["frames"], got["frames"]),
    ),
}


def all_bytes(value: Any, name: str = "x") -> bytes:
    """The bytes of an encoded value."""
    return b"".join(map(bytes, encode(value, name).chunks))
