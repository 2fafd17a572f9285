"""Values as a JSON index of a closed table of kinds, and binary parts; never a pickle.

With `array_codec.py` and `frame_codec.py` it stands alone, for any Python from 3.8 on: their
sources are also sent into the sandbox and run there. pandas, polars, NumPy and pyarrow are imported
only for values that need them.

What is decoded comes from outside: sizes, shapes and types are checked before memory is taken, and
nothing is unpickled, evaluated, or imported by a name that the bytes give.
"""

from __future__ import annotations

import base64
import collections
import datetime
import decimal
import fractions
import hashlib
import importlib
import pathlib
import uuid
from typing import Any, Callable

VALUE_LIMIT_BYTES = 2 * 1024**3
"""No larger value is encoded or decoded."""
PACKAGES = ("numpy", "pandas", "polars", "pyarrow", "pyarrow.ipc", "zoneinfo")
"""Packages that values may need; ``zoneinfo`` is there from Python 3.9 on."""
DEPTH_LIMIT = 100
INLINE_BYTES = 1024
"""Longer texts and bytes are binary parts."""
FRACTION_BITS = 10**5
"""Of the numbers in a fraction: it is reduced, which takes the square of their length."""


class ValueCodecError(Exception):
    """Base of the errors about values on their way."""


class RefusedValueError(ValueCodecError):
    """A value, or something in it, that cannot travel.

    Parameters
    ----------
    reason
        What it is, as a verb with its object.
    advice
        What to do instead, as an imperative; empty for the general one.

    Attributes
    ----------
    place
        The expression that leads to it.
    """

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.advice = advice
        self.place = ""

    def below(self, place: str) -> RefusedValueError:
        """Return the same error, with the place of what holds it before its own."""
        self.place = place + self.place
        return self


class DamagedValueError(ValueCodecError):
    """Bytes that no encoder makes."""


class MissingPackageError(ValueCodecError):
    """A package that the value needs is not installed here; the argument is its name."""


def package(name: str) -> Any:
    """Import one of the packages that values may need.

    Raises
    ------
    MissingPackageError
        It is not installed.
    """
    if name not in PACKAGES:
        raise DamagedValueError("a package that is not in the table")
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingPackageError(name) from None


def full_name(kind: type) -> str:
    """Return module and qualified name of a type; of a built-in one the name alone."""
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


# Encoding ---------------------------------------------------------------------------------------
class Encoded:
    """An encoded value.

    Parameters
    ----------
    chunks
        Its bytes, in pieces that are mostly the value's own memory.
    summary
        What the value is, in words.
    """

    def __init__(self, chunks: list[Any], summary: str) -> None:
        self.chunks = chunks
        self.summary = summary
        self.size_bytes = sum(len(chunk) for chunk in chunks)

    def sha256(self) -> str:
        """Return the checksum of all bytes."""
        digest = hashlib.sha256()
        for chunk in self.chunks:
            digest.update(chunk)
        return digest.hexdigest()


PLAIN = (type(None), bool, float)
SEQUENCES: dict[type, str] = {list: "list", tuple: "tuple"}
SETS: dict[type, str] = {set: "set", frozenset: "frozenset"}
MAPPINGS: dict[type, str] = {
    dict: "dict",
    collections.OrderedDict: "ordered",
    collections.Counter: "counter",
}


class Encoder:
    """Turns one value into a node of the index, and binary parts.

    Parameters
    ----------
    limit_bytes
        The largest size that is allowed.

    Attributes
    ----------
    parts
        The binary parts: mostly the value's own memory.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.parts: list[Any] = []
        self._left_bytes = self._limit_bytes = limit_bytes
        self._seen: dict[int, tuple[object, list[Any]]] = {}
        self._active: set[int] = set()
        self._shared = 0
        self._is_in_key = False

    def count(self, size_bytes: int) -> None:
        """Take so many bytes from those that are left."""
        self._left_bytes -= size_bytes
        if self._left_bytes < 0:
            limit = self._limit_bytes
            raise RefusedValueError(f"needs more than the limit of {limit:,} bytes", "send parts")

    def node(self, value: Any) -> Any:
        """Return the node of a value: a JSON scalar itself, or a list that begins with its kind."""
        kind = type(value)
        if kind in PLAIN or (kind is int and -(2**63) <= value < 2**64):
            return value
        if kind is str:
            is_short = len(value) < INLINE_BYTES and (value.isascii() or _is_text(value))
            return value if is_short else ["str", self.text(value)]
        encoder = SCALARS.get(kind)
        return encoder(self, value) if encoder is not None else self._shareable(value)

    def _shareable(self, value: Any) -> Any:
        """Return the node of an object that may occur again, and is the same object there."""
        seen = None if self._is_in_key else self._seen.get(id(value))
        if seen is not None:
            node = seen[1]
            if node[0] != "shared":
                node[:] = ["shared", self._shared, list(node)]
                self._shared += 1
            return ["same", node[1]]
        if id(value) in self._active:
            raise RefusedValueError("contains itself", "break the cycle first")
        if len(self._active) >= DEPTH_LIMIT:
            raise RefusedValueError(f"is nested more than {DEPTH_LIMIT} deep", "flatten it")
        self._active.add(id(value))
        node = self._object(value)
        self._active.remove(id(value))
        if not self._is_in_key:
            self._seen[id(value)] = value, node
        return node

    def _object(self, value: Any) -> list[Any]:
        kind = type(value)
        if kind in SEQUENCES:
            return [SEQUENCES[kind], self.nodes(value)]
        if kind in SETS:
            return [SETS[kind], [self.key(item, "{%s}") for item in value]]
        if kind in MAPPINGS:
            return [MAPPINGS[kind], self._items(value)]
        if kind is bytearray:
            return ["bytearray", self.blob(bytes(value))]
        if kind is collections.deque:
            return ["deque", self.nodes(value), value.maxlen]
        node = self.of_package(value, kind.__module__.partition(".")[0])
        if node is None:
            raise RefusedValueError(f"is {full_name(kind)}")
        return node

    def of_package(self, value: Any, root: str) -> list[Any] | None:
        """Return the node of an object of a package; ``None`` for one that is not in the table."""
        return None

    def nodes(self, values: Any, place: str = "[%d]") -> list[Any]:
        """Return the nodes of several values; their number goes into ``place``."""
        nodes: list[Any] = []
        try:
            for value in values:
                nodes.append(  # noqa: PERF401 - the error needs their number
                    value if type(value) in PLAIN else self.node(value)
                )
        except RefusedValueError as error:
            raise error.below(place % len(nodes)) from None
        return nodes

    def _items(self, mapping: Any) -> list[Any]:
        nodes = []
        for key, value in list(mapping.items()):
            nodes += [self.key(key, ".keys(): %s"), self.placed(self.node, value, f"[{key!r:.80}]")]
        return nodes

    def key(self, value: Any, place: str) -> Any:
        """Return the node of a key, which refers to nothing elsewhere.

        With references, it could take for ever to hash what a few bytes describe.
        """
        before, self._is_in_key = self._is_in_key, True
        try:
            return self.node(value)
        except RefusedValueError as error:
            raise error.below(place % f"{value!r:.80}" if "%" in place else place) from None
        finally:
            self._is_in_key = before

    def placed(self, method: Callable[[Any], Any], value: Any, place: str) -> Any:
        """Return what a method makes of a value; its error tells the place."""
        try:
            return method(value)
        except RefusedValueError as error:
            raise error.below(place) from None

    def blob(self, data: Any) -> str | int:
        """Return what stands for bytes: their base64, or the number of their part."""
        if len(data) <= INLINE_BYTES:
            return base64.b64encode(data).decode()
        self.count(len(data))
        self.parts.append(data)
        return len(self.parts) - 1

    def text(self, text: str) -> str | int:
        """Return what stands for a text of any length, lone surrogates included."""
        return self.blob(text.encode("utf-8", "surrogatepass"))


def _is_text(value: str) -> bool:
    """Whether it has no lone surrogates, which JSON might join."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def zone_node(zone: Any) -> list[Any] | None:
    """Return the node of a time zone; ``None`` for none."""
    if zone is None:
        return None
    if type(zone) is datetime.timezone:
        offset = zone.utcoffset(None)
        name = None if zone == datetime.timezone.utc else zone.tzname(None)
        is_named = name is not None and name != datetime.timezone(offset).tzname(None)
        return [
            "offset",
            [offset.days, offset.seconds, offset.microseconds],
            name if is_named else None,
        ]
    kind = type(zone)
    key = getattr(zone, "key", None) or getattr(zone, "zone", None)
    if kind.__module__.partition(".")[0] in ("zoneinfo", "backports", "pytz") and key:
        return ["zone", str(key)]
    raise RefusedValueError(f"has a time zone of type {full_name(kind)}", "use zoneinfo.ZoneInfo")


def _moment(value: Any, *fields: str) -> list[Any]:
    return [[getattr(value, field) for field in (*fields, "fold")], zone_node(value.tzinfo)]


_TIME = ("hour", "minute", "second", "microsecond")


def _fraction(encoder: Encoder, value: fractions.Fraction) -> list[Any]:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > FRACTION_BITS:
        raise RefusedValueError("is a fraction of very long numbers", "send these instead")
    return ["fraction", encoder.node(value.numerator), encoder.node(value.denominator)]


SCALARS: dict[type, Callable[[Encoder, Any], list[Any]]] = {
    int: lambda encoder, value: ["int", encoder.text(f"{value:x}")],
    complex: lambda _, value: ["complex", value.real, value.imag],
    bytes: lambda encoder, value: ["bytes", encoder.blob(value)],
    type(...): lambda _, value: ["ellipsis"],
    range: lambda encoder, value: [
        "range",
        [encoder.node(number) for number in (value.start, value.stop, value.step)],
    ],
    slice: lambda encoder, value: [
        "slice",
        encoder.nodes([value.start, value.stop, value.step], " (part %d)"),
    ],
    datetime.datetime: lambda _, value: [
        "datetime",
        *_moment(value, "year", "month", "day", *_TIME),
    ],
    datetime.time: lambda _, value: ["time", *_moment(value, *_TIME)],
    datetime.date: lambda _, value: ["date", [value.year, value.month, value.day]],
    datetime.timedelta: lambda _, value: [
        "timedelta",
        [value.days, value.seconds, value.microseconds],
    ],
    datetime.timezone: lambda _, value: ["timezone", zone_node(value)],
    decimal.Decimal: lambda encoder, value: ["decimal", encoder.text(str(value))],
    fractions.Fraction: _fraction,
    uuid.UUID: lambda _, value: ["uuid", value.hex],
    type(pathlib.Path()): lambda encoder, value: ["path", encoder.text(str(value))],
    pathlib.PurePosixPath: lambda encoder, value: ["posixpath", encoder.text(str(value))],
    pathlib.PureWindowsPath: lambda encoder, value: ["windowspath", encoder.text(str(value))],
}


# Decoding ---------------------------------------------------------------------------------------
def checked_size(value: Any, limit: int = 2**48) -> int:
    """Return a number that counts something.

    Raises
    ------
    DamagedValueError
        It is none.
    """
    if type(value) is not int or not 0 <= value <= limit:
        raise DamagedValueError("a size that cannot be")
    return value


class Decoder:
    """Turns nodes of an index into values.

    Parameters
    ----------
    parts
        The binary parts.
    kinds
        The table of kinds.
    """

    def __init__(self, parts: list[memoryview], kinds: dict[str, Kind]) -> None:
        self._parts = parts
        self._kinds = kinds
        self._shared: dict[int, Any] = {}
        self._depth = 0
        self._is_in_key = False

    def value(self, node: Any) -> Any:
        """Return the value of a node."""
        if not isinstance(node, list):
            if isinstance(node, dict):
                raise DamagedValueError("a node of no kind")
            return node
        kind, *arguments = node
        decode = self._kinds.get(kind) if isinstance(kind, str) else None
        # A frame adds some levels of its own to those of the value.
        if decode is None or self._depth > 3 * DEPTH_LIMIT:
            raise DamagedValueError(f"a value of the unknown kind {kind!r:.40}, or nested too deep")
        self._depth += 1
        value = decode(self, *arguments)
        self._depth -= 1
        return value

    def of_kind(self, node: Any, *kinds: str) -> Any:
        """Return the value of a node that must be of one of these kinds."""
        if not isinstance(node, list) or node[0] not in kinds:
            raise DamagedValueError(f"another kind than {', '.join(kinds)}")
        return self.value(node)

    def values(self, nodes: Any) -> list[Any]:
        """Return the values of several nodes."""
        if not isinstance(nodes, list):
            raise DamagedValueError("no list where one must be")
        return [self.value(node) for node in nodes]

    def keys(self, nodes: Any) -> list[Any]:
        """Return values that will be hashed; they may not refer to others (see `Encoder.key`)."""
        before, self._is_in_key = self._is_in_key, True
        values = self.values(nodes)
        self._is_in_key = before
        return values

    def mapping(self, nodes: Any) -> dict[Any, Any]:
        """Return a dictionary, of keys and values in turn."""
        pairs = {}
        for number in range(0, len(nodes), 2):
            (key,) = self.keys([nodes[number]])
            pairs[key] = self.value(nodes[number + 1])
        return pairs

    def shared(self, number: int, node: Any = None) -> Any:
        """Return a value that occurs more than once: its node the first time."""
        if self._is_in_key:
            raise DamagedValueError("a key that refers to another value")
        if node is not None:
            self._shared[number] = self.value(node)
        return self._shared[number]

    def blob(self, data: Any) -> Any:
        """Return the bytes that are given as base64, or by the number of their part."""
        if isinstance(data, str):
            return base64.b64decode(data, validate=True)
        return self._parts[checked_size(data)]

    def text(self, data: Any) -> str:
        """Return the text that is given in the same way."""
        return bytes(self.blob(data)).decode("utf-8", "surrogatepass")

    def zone(self, node: Any) -> Any:
        """Return a time zone; ``None`` for none."""
        if node is None:
            return None
        kind, *arguments = node
        if kind == "zone":
            return package("zoneinfo").ZoneInfo(arguments[0])
        offset, name = datetime.timedelta(*arguments[0]), arguments[1]
        return datetime.timezone(offset) if name is None else datetime.timezone(offset, name)

    def moment(self, fields: Any, zone: Any) -> datetime.datetime:
        """Return a datetime; the last field is ``fold``."""
        return datetime.datetime(*fields[:7]).replace(tzinfo=self.zone(zone), fold=fields[7])

    def hour(self, fields: Any, zone: Any) -> datetime.time:
        """Return a time of day; the last field is ``fold``."""
        return datetime.time(*fields[:4]).replace(tzinfo=self.zone(zone), fold=fields[4])

    def fraction(self, *nodes: Any) -> fractions.Fraction:
        """Return a fraction."""
        parts = self.values(list(nodes))
        if any(type(part) is not int or part.bit_length() > FRACTION_BITS for part in parts):
            raise DamagedValueError("a fraction of such numbers")
        return fractions.Fraction(*parts)


Kind = Callable[..., Any]
KINDS: dict[str, Kind] = {
    "str": Decoder.text,
    # Hexadecimal: other digits take the square of their number.
    "int": lambda decoder, data: int(decoder.text(data), 16),
    "complex": lambda _, real, imag: complex(float(real), float(imag)),
    "bytes": lambda decoder, data: bytes(decoder.blob(data)),
    "bytearray": lambda decoder, data: bytearray(decoder.blob(data)),
    "ellipsis": lambda _: ...,
    "range": lambda decoder, nodes: range(*decoder.values(nodes)),
    "slice": lambda decoder, nodes: slice(*decoder.values(nodes)),
    "list": Decoder.values,
    "tuple": lambda decoder, nodes: tuple(decoder.values(nodes)),
    "set": lambda decoder, nodes: set(decoder.keys(nodes)),
    "frozenset": lambda decoder, nodes: frozenset(decoder.keys(nodes)),
    "dict": Decoder.mapping,
    "ordered": lambda decoder, nodes: collections.OrderedDict(decoder.mapping(nodes)),
    "counter": lambda decoder, nodes: collections.Counter(decoder.mapping(nodes)),
    "deque": lambda decoder, nodes, limit: collections.deque(decoder.values(nodes), limit),
    "shared": Decoder.shared,
    "same": Decoder.shared,
    "datetime": Decoder.moment,
    "time": Decoder.hour,
    "date": lambda _, fields: datetime.date(*fields),
    "timedelta": lambda _, fields: datetime.timedelta(*fields),
    "timezone": Decoder.zone,
    "decimal": lambda decoder, data: decimal.Decimal(decoder.text(data)),
    "fraction": Decoder.fraction,
    "uuid": lambda _, digits: uuid.UUID(hex=digits),
    "path": lambda decoder, data: pathlib.Path(decoder.text(data)),
    "posixpath": lambda decoder, data: pathlib.PurePosixPath(decoder.text(data)),
    "windowspath": lambda decoder, data: pathlib.PureWindowsPath(decoder.text(data)),
}
"""Every kind of value, and what makes it of the rest of its node."""
