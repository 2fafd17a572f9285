"""The codec of variables: what travels arrives as it was, what cannot is refused by name."""

from __future__ import annotations

import collections
import datetime as dt
import math
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from value_samples import ROUND_TRIPS, all_bytes

from ivy_kernel.magics.frame_codec import decode, encode
from ivy_kernel.magics.value_codec import DamagedValueError, RefusedValueError
from ivy_kernel.magics.variables import codec_sources


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_a_value_arrives_as_it_was(name: str) -> None:
    """Type, order, names and the kinds of missing values included."""
    value, compare = ROUND_TRIPS[name]
    compare(value, decode(all_bytes(value)))


ALONE = """
import sys
sys.dont_write_bytecode = True
assert not any(name.startswith("ivy_kernel") for name in sys.modules)
exec(sys.stdin.buffer.read(int(sys.argv[1])).decode())
codec = sys.modules[sys.argv[2] + ".frame_codec"]
while True:
    head = sys.stdin.buffer.read(8)
    if not head:
        break
    value = codec.decode(sys.stdin.buffer.read(int.from_bytes(head, "little")))
    data = b"".join(map(bytes, codec.encode(value, "x").chunks))
    sys.stdout.buffer.write(len(data).to_bytes(8, "little") + data)
assert not any(name.startswith("ivy_kernel") for name in sys.modules)
"""


def test_the_source_alone_does_it_in_another_python() -> None:
    """A Python that has nothing of ours decodes and encodes every value, by the code sent to it."""
    package, source = codec_sources()
    sent = source.encode()
    for value, _ in ROUND_TRIPS.values():
        data = all_bytes(value)
        sent += len(data).to_bytes(8, "little") + data
    command = [sys.executable, "-I", "-c", ALONE, str(len(source.encode())), package]
    done = subprocess.run(command, input=sent, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()
    answer = done.stdout
    for value, compare in ROUND_TRIPS.values():
        size = int.from_bytes(answer[:8], "little")
        compare(value, decode(answer[8 : 8 + size]))
        answer = answer[8 + size :]
    assert not answer


def test_what_is_one_object_stays_one() -> None:
    """An object that occurs twice is decoded once."""
    once: list[Any] = []
    both = decode(all_bytes({"a": once, "b": (once, np.arange(3)), "c": [once]}))
    both["a"].append(1)

    assert both["b"][0] == both["c"][0] == [1]


# What cannot travel -----------------------------------------------------------------------------
class Model:
    """A class of a user's."""


class Row(tuple):
    """A subclass of what can travel."""


CYCLE: list[Any] = [1]
CYCLE.append({"back": CYCLE})
REFUSED: dict[str, tuple[Any, str, str]] = {
    "function": (len, "v", "builtin_function_or_method"),
    "lambda": ({"f": [lambda: 1]}, "v['f'][0]", "function"),
    "module": ([math], "v[0]", "module"),
    "class": (Model, "v", "type"),
    "instance": ({"model": (1, Model())}, "v['model'][1]", f"{__name__}.Model"),
    "subclass": ([Row([1])], "v[0]", f"{__name__}.Row"),
    "generator": ((n for n in ()), "v", "generator"),
    "lock": ({1: threading.Lock()}, "v[1]", "lock"),
    "file": ([sys.__stdin__], "v[0]", "_io.TextIOWrapper"),
    "cycle": (CYCLE, "v[1]['back']", "contains itself"),
    "key": ({(1, Model): 2}, "v.keys()", "type"),
    "object array": ([np.array([Model()])], "v[0]", "dtype object"),
    "masked array": (np.ma.array([1]), "v", "numpy.ma"),
    "frame of objects": (pd.DataFrame({"a": [1, Model()]}), "v['a'].iloc[1]", "Model"),
    "sparse": (pd.Series(pd.arrays.SparseArray([0, 1])), "v", "SparseArray"),
    "attributes": (pd.Series([1], name=Model), "v.name", "type"),
    "lazy frame": (pl.LazyFrame({"a": [1]}), "v", "LazyFrame"),
    "polars objects": (pl.DataFrame({"a": pl.Series([Model()], dtype=pl.Object)}), "v['a']", "O"),
    "Arrow extension": (pa.table({"a": pa.array([b"0" * 16], pa.uuid())}), "v['a']", "uuid"),
    "default dictionary": (collections.defaultdict(list), "v", "collections.defaultdict"),
    "time zone": (dt.datetime(2024, 1, 1, tzinfo=type("Zone", (dt.tzinfo,), {})()), "v", "Zone"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_travel_is_refused_by_place_and_type(name: str) -> None:
    """The error says where within the variable it is, and of which type."""
    value, place, words = REFUSED[name]
    with pytest.raises(RefusedValueError) as refused:
        encode(value, "v")
    assert refused.value.place.startswith(place)
    assert words in refused.value.reason


def test_the_limits_are_kept_before_anything_is_sent() -> None:
    """A value that is too large, or nested too deep, is refused."""
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep]
    with pytest.raises(RefusedValueError, match="nested more than 100"):
        encode(deep, "v")
    with pytest.raises(RefusedValueError, match="limit of 1,000 bytes"):
        encode({"a": np.zeros(1000)}, "v", 1000)
    data = all_bytes(np.zeros(1000))
    with pytest.raises(DamagedValueError):
        decode(data, 1000)
