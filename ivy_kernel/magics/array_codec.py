"""Arrays of NumPy, tables of Arrow, and frames of polars as kinds of the value codec.

Stand-alone like `value_codec.py`, with which it is sent into the sandbox.
"""

from __future__ import annotations

import math
import re
import struct
import sys
from typing import Any

from ivy_kernel.magics.value_codec import (
    KINDS,
    PACKAGES,
    DamagedValueError,
    Decoder,
    Encoder,
    Kind,
    RefusedValueError,
    checked_size,
    package,
)

ROWS_LIMIT = 2**31
ARROW_KINDS = (
    *("NA", "BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"),
    *("HALF_FLOAT", "FLOAT", "DOUBLE", "DECIMAL128", "DECIMAL256", "DATE32", "DATE64", "TIME32"),
    *("TIME64", "TIMESTAMP", "DURATION", "INTERVAL_MONTH_DAY_NANO", "STRING", "LARGE_STRING"),
    *("BINARY", "LARGE_BINARY", "FIXED_SIZE_BINARY", "STRING_VIEW", "BINARY_VIEW", "LIST"),
    *("LARGE_LIST", "FIXED_SIZE_LIST", "STRUCT", "MAP", "DICTIONARY"),
)


def describe(value: Any) -> str:
    """Return what a value is, in words; looks at nothing that it holds."""
    kind = type(value)
    name = kind.__name__
    root = kind.__module__.partition(".")[0]
    if name in ("DataFrame", "Table") and root in PACKAGES:
        rows, columns = value.shape
        return f"{name}, {_count(rows, 'row')} \u00d7 {_count(columns, 'column')}"
    if name == "ndarray" and root == "numpy":
        shape = " \u00d7 ".join(f"{length:,}" for length in value.shape)
        return f"array, {shape or '0-d'}, {value.dtype}"
    units: dict[type, str] = {str: "character", bytes: "byte", bytearray: "byte"}
    is_sized = name in ("Series", "Index", "MultiIndex") and root in PACKAGES
    if is_sized or kind in (*units, list, tuple, set, frozenset, dict):
        return f"{name}, {_count(len(value), units.get(kind, 'item'))}"
    return name


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


# Encoding ---------------------------------------------------------------------------------------
class ArrayEncoder(Encoder):
    """An encoder that knows arrays and tables too."""

    def of_package(self, value: Any, root: str) -> list[Any] | None:
        """Return the node of an object of a package; ``None`` for one that is not in the table."""
        if root not in PACKAGES or root not in sys.modules:
            return None
        if root == "pyarrow":
            is_table = type(value) is package("pyarrow").Table
            return ["arrow", self.arrow(value)] if is_table else None
        if root == "polars":
            return self._polars(value)
        return self._numpy(value) if root == "numpy" else None

    def _numpy(self, value: Any) -> list[Any] | None:
        np = package("numpy")
        if type(value) is np.ndarray:
            return self.array(value)
        if type(value) in (np.str_, np.bytes_):
            return ["npstr" if type(value) is np.str_ else "npbytes", self.node(value.item())]
        if isinstance(value, np.dtype):
            return ["dtype", self._descr(value)]
        return (
            ["npscalar", self.array(np.asarray(value))] if isinstance(value, np.generic) else None
        )

    def _descr(self, dtype: Any) -> Any:
        """Return a dtype's description, as npy has it."""
        np = package("numpy")
        refused = RefusedValueError(f"has the dtype {dtype}", "convert it by .astype()")
        if dtype.hasobject or dtype.kind not in "biufcmMSUV" or not dtype.itemsize:
            if dtype.kind == "O":
                refused.advice = "convert it by .astype(), or to a list by .tolist()"
            raise refused
        descr = _as_json(np.lib.format.dtype_to_descr(np.dtype(dtype)))
        try:
            is_whole = np.lib.format.descr_to_dtype(checked_descr(descr)) == dtype
        except DamagedValueError:
            is_whole = False
        if not is_whole:
            raise refused
        return descr

    def array(self, array: Any) -> list[Any]:
        """Return the node of an array: its type as npy describes it, shape, order, bytes."""
        np = package("numpy")
        descr = self._descr(array.dtype)
        order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        flat = np.asarray(array, order=order).ravel(order=order)
        data = memoryview(flat.view(np.uint8)) if flat.size else b""
        node = ["array", descr, list(array.shape), order, self.blob(data)]
        return [*node, _long_double_bits()] if "16" in str(descr) or "32" in str(descr) else node

    def arrow(self, table: Any) -> str | int:
        """Return what stands for an Arrow table, as an IPC stream."""
        pa = package("pyarrow")
        for field in table.schema:
            unknown = unknown_arrow_type(field.type)
            if unknown is not None:
                raise RefusedValueError(f"has the Arrow type {unknown}", "cast it").below(
                    f"[{field.name!r}]"
                )
        sink = pa.BufferOutputStream()
        with package("pyarrow.ipc").new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return self.blob(memoryview(sink.getvalue()))

    def _polars(self, value: Any) -> list[Any] | None:
        pl = package("polars")
        if type(value) is pl.LazyFrame:
            raise RefusedValueError("is a polars.LazyFrame", "send what its .collect() gives")
        if type(value) not in (pl.DataFrame, pl.Series):
            return None
        is_series = type(value) is pl.Series
        frame = value.to_frame() if is_series else value
        for name, dtype in frame.schema.items():
            if dtype == pl.Object:
                raise RefusedValueError("has polars' type Object", "cast it").below(f"[{name!r}]")
        enums = [
            list(dtype.categories) if isinstance(dtype, pl.Enum) else None for dtype in frame.dtypes
        ]
        package("pyarrow")
        try:
            table = frame.to_arrow()
        except (Exception, pl.exceptions.PanicException) as error:
            raise RefusedValueError(f"has a type without Arrow form ({error})", "cast it") from None
        return ["polars", is_series, self.arrow(table), enums]


def _as_json(descr: Any) -> Any:
    """Return a dtype's description with lists for tuples."""
    return list(map(_as_json, descr)) if isinstance(descr, (list, tuple)) else descr


# Checks of what comes from outside ----------------------------------------------------------------
_DTYPE = re.compile(
    r"[<>|](b1|[iufc]\d{1,2}|[SV][1-9]\d{0,8}|U[1-9]\d{0,7}|[mM]8(\[\d{0,9}[a-zA-Zμ]{1,7}\])?)"
)


def checked_descr(descr: Any, depth: int = 0) -> Any:
    """Return a dtype's description, as npy has it, of the types that are in the table.

    Raises
    ------
    DamagedValueError
        It has another one.
    """
    if isinstance(descr, str) and _DTYPE.fullmatch(descr):
        return descr
    if not isinstance(descr, list) or depth > 8 or not 0 < len(descr) < 10_000:
        raise DamagedValueError("an array of an unknown dtype")
    fields = []
    for name, inner, *shape in descr:
        if not isinstance(name, str) or len(shape) > 1:
            raise DamagedValueError("an array with a field of an unknown dtype")
        shape = [tuple(map(checked_size, shape[0]))] if shape else []
        fields.append((name, checked_descr(inner, depth + 1), *shape))
    return fields


def _long_double_bits() -> int:
    """Return the length of a long double's mantissa, which is another on other machines."""
    return int(package("numpy").finfo("longdouble").nmant)


def unknown_arrow_type(kind: Any) -> Any:
    """Return the first Arrow type within a type that is not in the table; ``None``: all are."""
    pa = package("pyarrow")
    if kind.id not in {getattr(pa.lib, f"Type_{name}", None) for name in ARROW_KINDS}:
        return kind
    if pa.types.is_fixed_size_list(kind) and kind.list_size > ROWS_LIMIT:
        return kind
    if pa.types.is_struct(kind):
        inner = [kind.field(number).type for number in range(kind.num_fields)]
    elif pa.types.is_map(kind):
        inner = [kind.key_type, kind.item_type]
    else:
        inner = [kind.value_type] if hasattr(kind, "value_type") else []
    return next(filter(None, map(unknown_arrow_type, inner)), None)


# Decoding ---------------------------------------------------------------------------------------
def _array(
    decoder: Decoder, descr: Any, shape: Any, order: str, data: Any, long_double: int = 0
) -> Any:
    """Return an array: its bytes must be as many as type and shape say."""
    np = package("numpy")
    dtype = np.lib.format.descr_to_dtype(checked_descr(descr))
    buffer = decoder.blob(data)
    shape = [checked_size(length) for length in shape]
    is_whole = math.prod(shape) * dtype.itemsize == len(buffer)
    if dtype.hasobject or not dtype.itemsize or not is_whole or order not in ("C", "F"):
        raise DamagedValueError("an array of another size than its bytes")
    if long_double and long_double != _long_double_bits():
        raise DamagedValueError("long doubles of another kind of machine: send float64")
    if not len(buffer):
        return np.zeros(shape, dtype, order)
    return np.ndarray(shape, dtype, buffer, order=order).copy(order)


def _npscalar(decoder: Decoder, node: Any) -> Any:
    array = decoder.of_kind(node, "array")
    if array.ndim:
        raise DamagedValueError("a scalar with dimensions")
    return array[()]


def arrow_table(decoder: Decoder, data: Any) -> Any:
    """Return an Arrow table, of an IPC stream that can do no harm."""
    pa = package("pyarrow")
    buffer = pa.py_buffer(decoder.blob(data))
    # Before pyarrow reads them: some versions unpickle an extension type with its schema, and a
    # compressed buffer may claim any size.
    for message in package("pyarrow.ipc").MessageReader.open_stream(buffer):
        metadata = bytes(message.metadata)
        if b"ARROW:extension" in metadata or is_compressed(metadata):
            raise DamagedValueError("an Arrow table with extension types or compression")
    table = package("pyarrow.ipc").open_stream(buffer).read_all()
    unknown = next(filter(None, (unknown_arrow_type(field.type) for field in table.schema)), None)
    if unknown is not None or table.num_rows > ROWS_LIMIT:
        raise DamagedValueError(f"an Arrow table of such a size or type: {unknown}")
    table.validate(full=True)
    return table


def is_compressed(metadata: bytes) -> bool:
    """Whether the body of an Arrow message is compressed (Arrow's ``Message.fbs``)."""

    def field(table: int, number: int) -> int:
        # A flatbuffer's table begins with the way back to the list of its fields' places.
        places = table - struct.unpack_from("<i", metadata, table)[0]
        size, slot = struct.unpack_from("<H", metadata, places)[0], 4 + 2 * number
        offset = struct.unpack_from("<H", metadata, places + slot)[0] if slot < size else 0
        return table + offset if offset else 0

    def below(place: int) -> int:
        return int(place + struct.unpack_from("<I", metadata, place)[0])

    message = below(0)
    kind = metadata[field(message, 1)]
    if kind not in (2, 3):  # a dictionary batch, which holds a record batch, or a record batch
        return False
    batch = below(field(message, 2))
    return bool(field(below(field(batch, 1)) if kind == 2 else batch, 3))


def _polars(decoder: Decoder, is_series: bool, data: Any, enums: Any) -> Any:
    pl = package("polars")
    table = arrow_table(decoder, data)
    try:
        frame = pl.from_arrow(table)
    except pl.exceptions.PanicException as error:  # no Exception
        raise DamagedValueError(f"polars does not take it: {error}") from None
    for name, categories in zip(frame.columns, enums):
        if categories is not None:
            frame = frame.with_columns(pl.col(name).cast(pl.Enum(categories)))
    return frame.to_series() if is_series else frame


ARRAY_KINDS: dict[str, Kind] = {
    **KINDS,
    "array": _array,
    "npscalar": _npscalar,
    "npstr": lambda decoder, node: package("numpy").str_(decoder.value(node)),
    "npbytes": lambda decoder, node: package("numpy").bytes_(decoder.value(node)),
    "dtype": lambda _, descr: package("numpy").lib.format.descr_to_dtype(checked_descr(descr)),
    "arrow": arrow_table,
    "polars": _polars,
}
"""The kinds of values so far, and what makes them of the rest of their node."""
