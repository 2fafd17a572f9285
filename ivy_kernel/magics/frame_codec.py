"""Frames, series and tables as kinds of the value codec; encoding and decoding of whole values.

Stand-alone like `value_codec.py`, with which it is sent into the sandbox. There, hidden cells call
`give` and `take`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import shutil
import stat
import struct
import sys
import time
import warnings
from pathlib import Path
from typing import Any, Callable

from ivy_kernel.magics.array_codec import (
    ARRAY_KINDS,
    ROWS_LIMIT,
    ArrayEncoder,
    arrow_table,
    describe,
)
from ivy_kernel.magics.value_codec import (
    VALUE_LIMIT_BYTES,
    DamagedValueError,
    Decoder,
    Encoded,
    Kind,
    MissingPackageError,
    RefusedValueError,
    ValueCodecError,
    checked_size,
    full_name,
    package,
    zone_node,
)

MAGIC = b"IVYVAL1\n"
INDEX_LIMIT_BYTES = 256 * 1024**2
MASKED = ("BooleanArray", "IntegerArray", "FloatingArray")
COLUMNS = (
    *("array", "zoned", "categorical", "masked", "texts", "string", "objects", "interval"),
    *("period", "arrowcolumn"),
)


# Whole values -----------------------------------------------------------------------------------
def encode(value: object, name: str, limit_bytes: int = VALUE_LIMIT_BYTES) -> Encoded:
    """Encode a value.

    Parameters
    ----------
    value, name
        The value, and the variable's name, which an error tells.
    limit_bytes
        The largest size that is allowed.

    Raises
    ------
    RefusedValueError
        It cannot travel: has the place and type of what is in the way.
    MissingPackageError
        It needs a package that is not installed here.
    """
    encoder = FrameEncoder(limit_bytes)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of packages, about what is asked of them here
            root = encoder.node(value)
        sizes = [len(part) for part in encoder.parts]
        index = json.dumps({"sizes": sizes, "root": root}, separators=(",", ":")).encode()
        encoder.count(len(index))
        if len(index) > INDEX_LIMIT_BYTES:
            raise RefusedValueError("has too many small parts", "put them into an array")
    except RefusedValueError as error:
        raise error.below(name) from None
    return Encoded([MAGIC + struct.pack("<Q", len(index)), index, *encoder.parts], describe(value))


def decode(data: Any, limit_bytes: int = VALUE_LIMIT_BYTES) -> Any:
    """Decode a value.

    Parameters
    ----------
    data
        All bytes of an encoded value.
    limit_bytes
        The largest size that is allowed.

    Raises
    ------
    DamagedValueError
        No encoder makes such bytes.
    MissingPackageError
        The value needs a package that is not installed here.
    """
    view = memoryview(data)
    start = len(MAGIC) + 8
    if not start <= len(view) <= limit_bytes or bytes(view[: len(MAGIC)]) != MAGIC:
        raise DamagedValueError("no encoded value, or too many bytes")
    (length,) = struct.unpack("<Q", view[len(MAGIC) : start])
    try:
        if length > min(len(view) - start, INDEX_LIMIT_BYTES):
            raise DamagedValueError("an index that is too long")
        index = json.loads(bytes(view[start : start + length]))
        parts, position = [], start + length
        for size in map(checked_size, index["sizes"]):
            parts.append(view[position : position + size])
            position += size
        if position != len(view):
            raise DamagedValueError("parts of other sizes")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Decoder(parts, FRAME_KINDS).value(index["root"])
    except ValueCodecError:
        raise
    except Exception as error:  # whatever a package says about arguments that are amiss
        raise DamagedValueError(f"{type(error).__name__}: {error}"[:300]) from None


# Encoding ---------------------------------------------------------------------------------------
class FrameEncoder(ArrayEncoder):
    """An encoder that knows frames too."""

    def of_package(self, value: Any, root: str) -> list[Any] | None:
        """Return the node of an object of a package; ``None`` for one that is not in the table."""
        if root == "pandas" and root in sys.modules:
            return self._pandas(value)
        return super().of_package(value, root)

    def _pandas(self, value: Any) -> list[Any] | None:
        pd = package("pandas")
        kind = type(value)
        if value is pd.NA or value is pd.NaT:
            return ["pdna" if value is pd.NA else "pdnat"]
        if kind in (pd.Timestamp, pd.Timedelta):
            index = pd.DatetimeIndex if kind is pd.Timestamp else pd.TimedeltaIndex
            return ["pdscalar", self._column(index([value]).array)]
        if kind is pd.DataFrame:
            return self._frame(value)
        if kind is pd.Series:
            index, name = self.placed(self._index, value.index, ".index"), self._name(value)
            return ["series", index, name, self._attrs(value), self._column(value.array, ".iloc")]
        if isinstance(value, pd.Index):
            return self._index(value)
        return None

    def _frame(self, frame: Any) -> list[Any]:
        np = package("numpy")
        index = self.placed(self._index, frame.index, ".index")
        columns = self.placed(self._index, frame.columns, ".columns")
        node = ["frame", index, columns, self._attrs(frame)]
        kinds = list(frame.dtypes)
        is_block = len(kinds) > 1 and all(kind == kinds[0] for kind in kinds)
        if is_block and isinstance(kinds[0], np.dtype) and kinds[0].kind in "biufc":
            return [*node, self.array(frame.to_numpy())]
        arrays = []
        for number, label in enumerate(frame.columns):
            array = frame.iloc[:, number].array
            place = f"[{label!r:.80}]"
            arrays.append(self.placed(lambda one: self._column(one, ".iloc"), array, place))
        return [*node, arrays]

    def _name(self, value: Any) -> Any:
        return self.key(value.name, ".name")

    def _attrs(self, value: Any) -> Any:
        return self.placed(self.node, value.attrs, ".attrs") if value.attrs else None

    def _index(self, index: Any, *, may_be_range: bool = True) -> list[Any]:
        pd, np = package("pandas"), package("numpy")
        if type(index) is pd.MultiIndex:
            levels = [self._index(level, may_be_range=False) for level in index.levels]
            codes = [self.array(np.asarray(code)) for code in index.codes]
            return ["multiindex", levels, codes, [self.key(name, ".names") for name in index.names]]
        if type(index) is pd.RangeIndex and may_be_range:
            return ["rangeindex", index.start, index.stop, index.step, self._name(index)]
        frequency = getattr(index, "freqstr", None)
        return ["index", self._column(index.array), self._name(index), frequency]

    def _column(self, array: Any, place: str = "") -> list[Any]:
        np = package("numpy")
        dtype, kind, name = array.dtype, type(array.dtype).__name__, type(array).__name__
        if isinstance(dtype, np.dtype) or name in ("NumpyExtensionArray", "PandasArray"):
            values = np.asarray(array)
            is_any = values.dtype == object
            return self._objects(values, place + "[%d]") if is_any else self.array(values)
        if kind == "DatetimeTZDtype":
            moments, zone = self.array(np.asarray(array.tz_convert(None))), zone_node(dtype.tz)
            key = zone[1] if zone and zone[0] == "zone" else None
            # Whether pandas' own choice of a class for it, which differs between its versions.
            is_own = key and type(package("pandas").Timestamp(0, tz=key).tz) is type(dtype.tz)
            return ["zoned", moments, zone, bool(is_own)]
        if kind == "CategoricalDtype":
            categories = self._index(dtype.categories, may_be_range=False)
            return ["categorical", self.array(np.asarray(array.codes)), categories, dtype.ordered]
        if name in MASKED:
            return ["masked", name, self.array(array._data), self.array(array._mask)]
        if kind == "StringDtype":
            is_nan = getattr(dtype, "na_value", package("pandas").NA) is not package("pandas").NA
            texts = self._texts(array.to_numpy(object))
            return ["string", dtype.storage.partition("_")[0], is_nan, texts]
        if kind == "IntervalDtype":
            return ["interval", *map(self._index, (array.left, array.right)), array.closed]
        if kind == "PeriodDtype":
            return ["period", self.array(array.asi8), array.freqstr]
        if kind == "ArrowDtype":
            pa = package("pyarrow")
            data = pa.chunked_array(array.__arrow_array__())
            return ["arrowcolumn", self.arrow(pa.table([data], names=["values"]))]
        raise RefusedValueError(f"holds {full_name(type(array))}", "convert it by .astype()")

    def _objects(self, values: Any, place: str) -> list[Any]:
        is_text = all(type(value) is str or _missing(value) for value in values)
        return self._texts(values) if is_text else ["objects", self.nodes(values, place)]

    def _texts(self, values: Any) -> list[Any]:
        np = package("numpy")
        marks = [_missing(value) for value in values]
        texts = ["" if mark else value for mark, value in zip(marks, values)]
        lengths = np.fromiter(map(len, texts), "<i8", len(texts))
        return [
            "texts",
            self.text("".join(texts)),
            self.array(lengths),
            self.array(np.array(marks, "u1")),
        ]


def _missing(value: Any) -> int:
    """Return in which of the four ways a value is missing; 0: it is there."""
    if value is None:
        return 1
    if type(value) is float:
        return 2 if value != value else 0
    pd = sys.modules.get("pandas")
    return 0 if pd is None else 3 if value is pd.NA else 4 if value is pd.NaT else 0


# Decoding ---------------------------------------------------------------------------------------
def _series(decoder: Decoder, index: Any, name: Any, attrs: Any, column: Any) -> Any:
    index, (name,), attrs = _index(decoder, index), decoder.keys([name]), decoder.value(attrs)
    series = _one_series(decoder, column, index)
    series.name, series.attrs = name, attrs or {}
    return series


def _one_series(decoder: Decoder, node: Any, index: Any) -> Any:
    array = _column(decoder, node)
    # The dtype is said because pandas would find another one for objects.
    return package("pandas").Series(array, index=index, dtype=array.dtype, copy=False)


def _frame(decoder: Decoder, index: Any, columns: Any, attrs: Any, arrays: Any) -> Any:
    pd = package("pandas")
    index, columns = _index(decoder, index), _index(decoder, columns)
    attrs = decoder.value(attrs)
    if arrays and arrays[0] == "array":
        frame = pd.DataFrame(decoder.value(arrays), index=index, columns=columns, copy=False)
    else:
        series = {n: _one_series(decoder, node, index) for n, node in enumerate(arrays)}
        frame = pd.DataFrame(series, index=index, copy=False)
        frame.columns = columns
    frame.attrs = attrs or {}
    return frame


def _index(decoder: Decoder, node: Any) -> Any:
    return decoder.of_kind(node, "index", "rangeindex", "multiindex")


def _plain_index(decoder: Decoder, column: Any, name: Any, frequency: Any) -> Any:
    array, (name,) = _column(decoder, column), decoder.keys([name])
    index = package("pandas").Index(array, dtype=array.dtype, name=name)
    if frequency is not None and not isinstance(index, package("pandas").PeriodIndex):
        index.freq = _checked_frequency(frequency)
    return index


def _range_index(decoder: Decoder, start: int, stop: int, step: int, name: Any) -> Any:
    checked_size(len(range(start, stop, step)), ROWS_LIMIT)
    return package("pandas").RangeIndex(start, stop, step, name=decoder.keys([name])[0])


def _multi_index(decoder: Decoder, levels: Any, codes: Any, names: Any) -> Any:
    levels = [decoder.of_kind(level, "index") for level in levels]
    codes = [_integers(decoder, code) for code in codes]
    return package("pandas").MultiIndex(levels, codes, names=decoder.keys(names))


def _column(decoder: Decoder, node: Any) -> Any:
    array = decoder.of_kind(node, *COLUMNS)
    if array.ndim != 1:
        raise DamagedValueError("a column of several dimensions")
    return array


def _integers(decoder: Decoder, node: Any) -> Any:
    array = decoder.of_kind(node, "array")
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise DamagedValueError("no integers where they must be")
    return array


def _zoned(decoder: Decoder, moments: Any, zone: Any, is_own: bool) -> Any:
    index = package("pandas").DatetimeIndex(decoder.of_kind(moments, "array"))
    checked = decoder.zone(zone)
    return index.tz_localize("UTC").tz_convert(zone[1] if is_own else checked).array


def _categorical(decoder: Decoder, codes: Any, categories: Any, ordered: bool) -> Any:
    codes, categories = _integers(decoder, codes), decoder.of_kind(categories, "index")
    return package("pandas").Categorical.from_codes(codes, categories, bool(ordered))


def _masked(decoder: Decoder, name: str, data: Any, mask: Any) -> Any:
    kind = dict(zip(MASKED, MASKED))[name]  # one of the three, or a KeyError
    data, mask = decoder.of_kind(data, "array"), decoder.of_kind(mask, "array")
    return getattr(package("pandas").arrays, kind)(data, mask)


def _texts(decoder: Decoder, data: Any, lengths: Any, marks: Any) -> Any:
    text = decoder.text(data)
    lengths, marks = _integers(decoder, lengths), _integers(decoder, marks)
    if len(lengths) != len(marks) or (lengths < 0).any() or sum(lengths.tolist()) != len(text):
        raise DamagedValueError("texts of another length")
    array, position = package("numpy").empty(len(lengths), object), 0
    pd = package("pandas") if (marks > 2).any() else None
    missing = [None, None, math.nan, getattr(pd, "NA", None), getattr(pd, "NaT", None)]
    for number, (length, mark) in enumerate(zip(lengths.tolist(), marks.tolist())):
        array[number] = missing[mark] if mark else text[position : position + length]
        position += length
    return array


def _string(decoder: Decoder, storage: str, is_nan: bool, texts: Any) -> Any:
    """Return texts in pandas' own type for them, as near to it as this pandas can."""
    pd = package("pandas")
    values = decoder.of_kind(texts, "texts")
    for wanted in ("pyarrow", "python")[storage != "pyarrow" :]:
        try:
            dtype = pd.StringDtype(wanted, **({"na_value": math.nan} if is_nan else {}))
            return pd.array(values, dtype=dtype)
        except (ImportError, TypeError):  # no pyarrow here, or a pandas before 2.3
            continue
    return values


def _objects(decoder: Decoder, nodes: Any) -> Any:
    values = decoder.values(nodes)
    array = package("numpy").empty(len(values), object)
    for number, value in enumerate(values):  # all at once, it would take lists for dimensions
        array[number] = value
    return array


def _interval(decoder: Decoder, left: Any, right: Any, closed: str) -> Any:
    arrays = package("pandas").arrays
    return arrays.IntervalArray.from_arrays(_index(decoder, left), _index(decoder, right), closed)


def _period(decoder: Decoder, ordinals: Any, frequency: str) -> Any:
    pd = package("pandas")
    dtype = pd.PeriodDtype(_checked_frequency(frequency))
    return pd.arrays.PeriodArray(_integers(decoder, ordinals), dtype=dtype)


def _checked_frequency(text: str) -> str:
    if not re.fullmatch(r"-?\d{0,9}[A-Za-z]{1,8}(-[A-Z]{3})?", text):
        raise DamagedValueError("a frequency that is none")
    return text


FRAME_KINDS: dict[str, Kind] = {
    **ARRAY_KINDS,
    "pdna": lambda _: package("pandas").NA,
    "pdnat": lambda _: package("pandas").NaT,
    "pdscalar": lambda decoder, node: package("pandas").Index(_column(decoder, node))[0],
    "series": _series,
    "frame": _frame,
    "index": _plain_index,
    "rangeindex": _range_index,
    "multiindex": _multi_index,
    "zoned": _zoned,
    "categorical": _categorical,
    "masked": _masked,
    "texts": _texts,
    "string": _string,
    "objects": _objects,
    "interval": _interval,
    "period": _period,
    "arrowcolumn": lambda decoder, data: package("pandas").arrays.ArrowExtensionArray(
        arrow_table(decoder, data).column(0)
    ),
}
"""Every kind of value, and what makes it of the rest of its node."""


# In the sandbox ---------------------------------------------------------------------------------
SPOOL = ".ivy/values"
"""Directory below the sandbox's root for values too large for a cell."""
STALE_SECONDS = 3600.0
LINE_CHARS = 4000  # one huge line breaks runners that read by lines


def give(namespace: dict[str, Any], token: str, name: str, inline_bytes: int) -> None:
    """Print a variable, or where it has been written; called by a hidden cell for ``pull``."""

    def work() -> dict[str, Any]:
        if name not in namespace:
            return {"missing": True}
        encoded = encode(namespace[name], name)
        answer = {
            "summary": encoded.summary,
            "size": encoded.size_bytes,
            "sha256": encoded.sha256(),
        }
        if encoded.size_bytes <= inline_bytes:
            answer["data"] = base64.b64encode(b"".join(encoded.chunks)).decode()
            return answer
        path = _spooled(token)
        try:
            with path.open("xb") as file:
                file.writelines(encoded.chunks)
        except BaseException:
            shutil.rmtree(path.parent, ignore_errors=True)
            raise
        return {**answer, "path": str(path)}

    _answer(token, work)


def take(
    namespace: dict[str, Any], token: str, name: str, sha256: str, data: str | None = None
) -> None:
    """Set a variable, from a file where no data are given; called by a hidden cell for ``push``."""

    def work() -> dict[str, Any]:
        if data is not None:
            raw = base64.b64decode(data)
        else:
            path = _spooled(token)
            try:
                raw = path.read_bytes()
            finally:
                shutil.rmtree(path.parent, ignore_errors=True)
        if hashlib.sha256(raw).hexdigest() != sha256:
            raise DamagedValueError("other bytes than were sent")
        namespace[name] = decode(raw)
        return {}

    _answer(token, work)


def prepare(namespace: dict[str, Any], token: str) -> None:
    """Make the directory for large values; called by a hidden cell before one is sent."""
    _answer(token, lambda: {"path": str(_spooled(token))})


def _answer(token: str, work: Callable[[], dict[str, Any]]) -> None:
    try:
        answer = work()
    except RefusedValueError as error:
        answer = {"refused": [error.place, error.reason, error.advice]}
    except MissingPackageError as error:
        answer = {"package": str(error)}
    except Exception as error:
        answer = {"failed": f"{type(error).__name__}: {error}"}
    text = base64.b64encode(json.dumps(answer).encode()).decode()
    lines = [text[place : place + LINE_CHARS] for place in range(0, len(text), LINE_CHARS)]
    sys.stdout.write("\n".join(["", f"<ivy-value {token}", *lines, "ivy-value>", ""]))
    sys.stdout.flush()


def _spooled(token: str) -> Path:
    """Return the path for a value, in a directory that is ours alone; removes what is stale."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    # The user may have changed the directory; the kernel was started in the sandbox's root.
    directory = Path(getattr(shell, "starting_dir", None) or Path.cwd())
    for name in (*SPOOL.split("/"), token):
        directory = directory / name
        directory.mkdir(mode=0o700, exist_ok=True)
        if stat.S_ISLNK(directory.lstat().st_mode):
            raise DamagedValueError(f"{directory} is a link; remove it")
    directory.parent.chmod(0o700)
    for one in directory.parent.iterdir():
        if time.time() - one.lstat().st_mtime > STALE_SECONDS:
            shutil.rmtree(one, ignore_errors=True)
    return directory / "value"
