"""Digests of a notebook's variables by their structure, made in its kernel; knows no checkpoints.

Imported there by a hidden cell; standard library only, beside what the values themselves are of.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import json
import os
import random
import re
import struct
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

NODES_LIMIT = 1_000_000
"""A variable with more objects is left out, under the same name in every run."""

OWN = re.compile(r"_+|_i+|_i?\d+|_[dios]h|__\w+__|In|Out|exit|quit|get_ipython|open|_exit_code")
PLAIN = (type(None), bool, int, str, bytes, complex, range, slice, type(...))


class Digester:
    """Makes the digest of one variable.

    Parameters
    ----------
    namespace
        The notebook's variables, which a value may hold as a whole.
    trace
        Takes the path and digest of everything on the way, if differences are looked for.
    """

    def __init__(self, namespace: dict[str, Any], trace: list[Any] | None = None) -> None:
        self._namespace = namespace
        self._memo: dict[int, int] = {}
        self._kept: list[Any] = []
        self._trace = trace

    def digest(self, value: Any, path: str = "") -> str:
        """Return the digest of a value and of all that it holds."""
        if len(self._memo) > NODES_LIMIT:
            raise OverflowError("too many objects")
        kind = type(value)
        if kind in PLAIN:
            found = _hash(kind.__name__, repr(value))
        elif kind is float:
            found = _hash("float", struct.pack("<d", value))
        elif isinstance(value, enum.Enum):
            found = _hash(kind.__qualname__, value.name, repr(value.value))
        elif value is self._namespace:
            found = _hash("the notebook's variables")
        elif id(value) in self._memo and kind not in (tuple, frozenset):
            found = _hash("again", self._memo[id(value)])
        else:
            self._memo[id(value)] = len(self._memo)
            self._kept.append(value)
            found = self._structure(value, kind, path)
        if self._trace is not None:
            self._trace.append((path, f"{kind.__module__}.{kind.__qualname__}", found))
        return found

    def _structure(self, value: Any, kind: type, path: str) -> str:
        root = kind.__module__.partition(".")[0]
        if root == "wrapt" or any(base.__module__.startswith("wrapt") for base in kind.__mro__):
            own = {k: v for k, v in vars(value).items() if k.startswith("_self_")}
            inner = self.digest(value.__wrapped__, f"{path}.wrapped")
            return _hash(kind.__qualname__, inner, self._pairs(own, path))
        special = SPECIAL.get(kind)
        if special is not None:
            return special(self, value, path)
        if isinstance(value, type):
            return self._class(value, path)
        numpy, pandas = sys.modules.get("numpy"), sys.modules.get("pandas")
        if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
            return self._array(value, path)
        if pandas is not None and root == "pandas":
            if isinstance(value, (pandas.Index, pandas.Series, pandas.DataFrame)):
                return self._frame(value, path)
            if isinstance(value, pandas.api.extensions.ExtensionArray):
                return _hash(str(value.dtype), self._items(list(value), path))
        if root == "matplotlib" and any(base.__name__ == "Artist" for base in kind.__mro__):
            return self._artist(value, path)
        return self._instance(value, kind, path)

    def _items(self, values: Any, path: str) -> str:
        return _hash(*(self.digest(item, f"{path}[{n}]") for n, item in enumerate(values)))

    def _pairs(self, value: Any, path: str) -> str:
        found = []
        # What is drawn with is chosen when it is first needed.
        left_out = {"backend"} if type(value).__name__ == "RcParams" else ()
        for key, item in [pair for pair in dict.items(value) if pair[0] not in left_out]:
            name = repr(key)[:60] if isinstance(key, (str, int)) else type(key).__name__
            found += [self.digest(key, f"{path}[key {name}]"), self.digest(item, f"{path}[{name}]")]
        return _hash(*found)

    def _set(self, value: Any) -> str:
        # Each by itself: which of them comes first is chance.
        return _hash(*sorted(Digester(self._namespace).digest(item) for item in value))

    def _array(self, value: Any, path: str) -> str:
        numpy = sys.modules["numpy"]
        head = type(value).__qualname__, str(value.dtype), value.shape
        if value.dtype.hasobject:
            plain = numpy.asarray(value, dtype=object) if value.dtype.names is None else value
            return _hash(*head, self._items(plain.ravel().tolist(), path))
        # No mask is a mask that hides nothing.
        is_masked = isinstance(value, numpy.ma.MaskedArray)
        masked = numpy.ma.getmaskarray(value).tobytes() if is_masked else ""
        return _hash(*head, numpy.ascontiguousarray(numpy.asarray(value)).tobytes(), masked)

    def _frame(self, value: Any, path: str) -> str:
        pandas, numpy = sys.modules["pandas"], sys.modules["numpy"]
        head = [type(value).__qualname__]
        if isinstance(value, pandas.Index):
            head += [repr(list(value.names)), str(value.dtype), str(getattr(value, "freq", None))]
            return _hash(*head, self._items(list(value), path))
        head += [repr(value.attrs), self._frame(value.index, f"{path}.index")]
        if isinstance(value, pandas.Series):
            columns = [value]
            head.append(repr(value.name))
        else:
            columns = [value.iloc[:, n] for n in range(value.shape[1])]
            head.append(self._frame(value.columns, f"{path}.columns"))
        for number, column in enumerate(columns):
            place = f"{path}.column {number}"
            if isinstance(column.dtype, pandas.CategoricalDtype):
                head.append(self._frame(column.cat.categories, place) + str(column.cat.ordered))
            plain = numpy.asarray(column) if isinstance(column.dtype, numpy.dtype) else None
            data = self._array(plain, place) if plain is not None else ""
            head += [str(column.dtype), data or self._items(list(column), place)]
        return _hash(*head)

    def _artist(self, value: Any, path: str) -> str:
        """Return the digest of what is drawn; the objects' own state changes with being shown."""
        numbers = [getattr(value, name, None) for name in ("_xorig", "_yorig", "_x0", "_y0")]
        numbers += [getattr(value, name, None) for name in ("_width", "_height", "_offsets", "_A")]
        texts = [getattr(value, name, None) for name in ("_text", "_label", "_visible", "_zorder")]
        texts = [text for text in texts if not str(text).startswith("_child")]
        below = getattr(value, "_localaxes", None) or getattr(value, "_children", None) or []
        found = [self.digest(item, f"{path}.{n}") for n, item in enumerate([*numbers, *texts])]
        return _hash(type(value).__qualname__, *found, self._items(list(below), path))

    def _function(self, value: Any, path: str) -> str:
        module = sys.modules.get(value.__module__ or "")
        if value.__module__ != "__main__" and module is not None:
            found: Any = module
            for name in value.__qualname__.split("."):
                found = getattr(found, name, None)
            if found is value:
                return _hash("function", value.__module__, value.__qualname__)
        cells = [_contents(cell) for cell in value.__closure__ or ()]
        return _hash(
            *("function", value.__qualname__, repr(value.__doc__)),
            self.digest(value.__code__, f"{path}.code"),
            self.digest(value.__defaults__, f"{path}.defaults"),
            self.digest(value.__kwdefaults__, f"{path}.kwdefaults"),
            self._items(cells, f"{path}.closure"),
            self._pairs(vars(value), f"{path}.dict"),
        )

    def _code(self, value: Any, path: str) -> str:
        names = (value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars)
        head = value.co_code, repr(names), value.co_flags, value.co_argcount, value.co_name
        return _hash(*head, self._items(value.co_consts, f"{path}.consts"))

    def _class(self, value: type, path: str) -> str:
        module = sys.modules.get(value.__module__)
        if value.__module__ != "__main__" and module is not None:
            return _hash("class", value.__module__, value.__qualname__)
        left_out = (
            "__dict__",
            "__weakref__",
            "__abstractmethods__",
            "_abc_impl",
            "__annotations__",
        )
        own = {k: v for k, v in vars(value).items() if k not in left_out}
        # In order of names: a class that is made anew has them in another one.
        own = dict(sorted(own.items()))
        bases = self._items(value.__bases__, f"{path}.bases")
        return _hash("class", value.__qualname__, bases, self._pairs(own, f"{path}.dict"))

    def _instance(self, value: Any, kind: type, path: str) -> str:
        found = [self._class(kind, f"{path}.class")]
        for base, make in CONTAINERS:
            if isinstance(value, base):
                found.append(make(self, value, path))
        slots = [
            (name, object.__getattribute__(value, name))
            for cls in kind.__mro__
            for name in _slots(cls)
            if _has(value, name)
        ]
        attributes = getattr(value, "__dict__", None)
        if not isinstance(attributes, dict):
            attributes = {}
        # Of what can be made again at any time it is chance whether it is there.
        attributes = {k: v for k, v in attributes.items() if not _is_cached(kind, k)}
        for name, item in [*slots, *list(attributes.items())]:
            found.append(_hash(name, self.digest(item, f"{path}.{name}")))
        if not slots and not attributes and len(found) == 1:
            found.append(self._reduced(value, path))
        return _hash(*sorted(found[1:]), found[0])

    def _reduced(self, value: Any, path: str) -> str:
        try:
            parts = value.__reduce_ex__(4)
        except Exception:  # of any type: it cannot be told apart from others of its type
            return "opaque"
        if isinstance(parts, str):
            return parts
        rest = [list(part) if n > 2 and part is not None else part for n, part in enumerate(parts)]
        return self._items(rest[1:5], f"{path}.reduced") + str(getattr(parts[0], "__name__", ""))


def _hash(*parts: Any) -> str:
    made = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
        made.update(b"%d:" % len(data) + data)
    return made.hexdigest()


def _is_cached(kind: type, name: Any) -> bool:
    return any(isinstance(vars(c).get(name), functools.cached_property) for c in kind.__mro__)


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "empty"


def _slots(cls: type) -> list[str]:
    named = vars(cls).get("__slots__", ())
    names = [named] if isinstance(named, str) else list(named)
    return [n for n in names if n not in ("__dict__", "__weakref__")]


def _has(value: Any, name: str) -> bool:
    try:
        object.__getattribute__(value, name)
    except AttributeError:
        return False
    return True


def _name(_: Digester, value: Any, __: str) -> str:
    module = getattr(value, "__module__", "")
    own = getattr(value, "__self__", None)
    bound = type(own).__name__ if own is not None and not isinstance(own, types.ModuleType) else ""
    name = getattr(value, "__qualname__", getattr(value, "__name__", ""))
    return _hash(type(value).__name__, module, bound, name)


def _opaque(_: Digester, value: Any, __: str) -> str:
    return _hash(type(value).__name__)


SPECIAL: dict[type, Callable[[Digester, Any, str], str]] = {
    list: lambda d, v, p: _hash("list", d._items(v, p)),
    tuple: lambda d, v, p: _hash("tuple", d._items(v, p)),
    dict: lambda d, v, p: _hash("dict", d._pairs(v, p)),
    set: lambda d, v, _: _hash("set", d._set(v)),
    frozenset: lambda d, v, _: _hash("frozenset", d._set(v)),
    types.FunctionType: Digester._function,
    types.CodeType: Digester._code,
    types.MethodType: lambda d, v, p: _hash(
        "method", d.digest(v.__func__, f"{p}.func"), d.digest(v.__self__, f"{p}.self")
    ),
    types.ModuleType: _name,
    types.BuiltinFunctionType: _name,
    types.MethodDescriptorType: _name,
    types.WrapperDescriptorType: _name,
    types.GetSetDescriptorType: _name,
    types.MemberDescriptorType: _name,
    type(_name.__call__): _name,
    staticmethod: lambda d, v, p: _hash("static", d.digest(v.__func__, p)),
    classmethod: lambda d, v, p: _hash("class", d.digest(v.__func__, p)),
    property: lambda d, v, p: _hash("property", d._items((v.fget, v.fset, v.fdel), p)),
    types.GeneratorType: _opaque,
    type(__import__("weakref").ref(Digester)): _opaque,
}
CONTAINERS: tuple[tuple[type, Callable[[Digester, Any, str], str]], ...] = (
    (dict, Digester._pairs),
    (list, lambda d, v, p: d._items(list.__iter__(v), p)),
    (tuple, lambda d, v, p: d._items(tuple.__iter__(v), p)),
    ((set, frozenset), lambda d, v, _: d._set(v)),  # type: ignore[assignment]  # a tuple will do
    (str, lambda _, v, __: str.__str__(v)),
    (int, lambda _, v, __: int.__repr__(v)),
    (float, lambda _, v, __: float.__repr__(v)),
)


def digests(namespace: dict[str, Any]) -> dict[str, str]:
    """Return the digest of every variable that cells have made, and of random states."""
    found = {}
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        for name, value in list(namespace.items()):
            if OWN.fullmatch(name):
                continue
            try:
                found[name] = Digester(namespace).digest(value)
            except Exception as error:  # of any type: the values' own code runs
                found[name] = f"no digest: {type(error).__name__}"
        found["<random>"] = _hash(repr(random.getstate()))
        numpy_random = sys.modules.get("numpy.random")
        if numpy_random is not None:
            found["<numpy.random>"] = Digester({}).digest(numpy_random.get_state(legacy=False))
    finally:
        sys.setrecursionlimit(limit)
    return found


def write(namespace: dict[str, Any], path: str, *traced: str) -> None:
    """Write the digests into a file, and of some variables the digest of each part."""
    traces: dict[str, list[Any]] = {name: [] for name in traced if name in namespace}
    for name, trace in traces.items():
        Digester(namespace, trace).digest(namespace[name], name)
    found = {"digests": digests(namespace), "traces": traces}
    Path(f"{path}.part").write_text(json.dumps(found), "utf-8")
    os.replace(f"{path}.part", path)  # noqa: PTH105 - as short as it can be here
