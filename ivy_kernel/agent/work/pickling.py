"""Groups of variables that share objects, as pickles with buffers beside them, and back.

Variables are pickled one by one first: what two of them reach in common puts them into one group,
which is one pickle, so that they still share it afterwards. Classes that cells define are like
variables here: others name them, so that one class comes back as one class. A function of a cell
comes back with the notebook's live variables as its globals.
"""

from __future__ import annotations

import contextlib
import enum
import gc
import importlib
import io
import pickle
import sys
import types
from typing import TYPE_CHECKING, Any

from . import live
from .cloudpickle import cloudpickle as functions
from .live import NotSavedError, describe, name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Reducer = Callable[["Pickler", Any], Any]

IN_BAND_BYTES = 1 << 16
"""Smaller buffers are part of the pickle."""

WHOLE_NAMESPACE = "it holds all of the notebook's variables"

CLASS_PREFIX = "class:"
"""Of the keys of cells' classes among those of variables, which are no names in Python."""

IMMUTABLE = (
    *(str, bytes, int, float, complex, tuple, frozenset, range, slice, type(None), type(...)),
    *(type, types.ModuleType, types.BuiltinFunctionType, types.CodeType, pickle.PickleBuffer),
    enum.Enum,
)
IMMUTABLE_MODULES = ("datetime", "decimal", "fractions", "uuid", "pathlib", "re", "zoneinfo")
"""Two variables may hold the same object of these and need not be one group for that."""

LIVE_MODULES = (
    *("ipywidgets", "anywidget", "ipykernel", "comm", "zmq", "_thread", "threading"),
    *("multiprocessing", "socket", "ssl", "select", "selectors", "sqlite3", "mmap"),
    *("asyncio", "_asyncio", "ctypes", "_ctypes", "tempfile"),
)
"""Objects of these stand for something outside the process, or in the page, which no copy is."""

FOREIGN_MEMORY = ("torch", "tensorflow", "jax", "jaxlib", "mmap", "multiprocessing", "ctypes")


class Pickled:
    """One pickle, what it needs, and what it reaches."""

    def __init__(self, data: bytes, pickler: Pickler) -> None:
        self.data = data
        self.buffers = pickler.buffers
        self.needs = pickler.needs
        self.has_code = pickler.has_code
        self.pickler = pickler
        self.shared = pickler.reached()
        self.foreign = pickler.foreign
        self.size_bytes = len(data) + sum(buffer.raw().nbytes for buffer in self.buffers)


class Snapshot:
    """The state of a process at one moment, for the picklers of its variables."""

    def __init__(self) -> None:
        self.namespace = live.namespace()
        self.live = live.live_objects()
        self.classes: dict[str, Any] = {}
        self.reducers: dict[type, Reducer | None] = {}
        self.is_by_reference: dict[int, tuple[Any, bool]] = {}
        self.storages: dict[int, Any] = {}
        self.kept: list[Any] = []

    def pickle(self, values: dict[str, Any], by_value: Iterable[str] = ()) -> Pickled:
        """Pickle some variables together.

        Raises
        ------
        NotSavedError
            They cannot be saved.
        """
        file = io.BytesIO()
        pickler = Pickler(file, self, frozenset(by_value))
        try:
            pickler.dump(values)
        except NotSavedError:
            raise
        except RecursionError as error:
            raise NotSavedError("it is nested too deeply") from error
        except MemoryError as error:
            raise NotSavedError("there is not enough memory to save it") from error
        except Exception as error:  # of any type: the value's own code may run
            if isinstance(error.__cause__, RecursionError):
                raise NotSavedError("it is nested too deeply") from error
            raise NotSavedError(describe(error)) from error
        return Pickled(file.getvalue(), pickler)

    def find_reducer(self, kind: type) -> Reducer | None:
        """Return what reduces objects of this type, where the pickler's own ways will not do."""
        found = REDUCERS.get(f"{kind.__module__}.{kind.__qualname__}")
        if found is None:
            names = {f"{base.__module__}.{base.__name__}" for base in kind.__mro__}
            roots = {name.partition(".")[0] for name in names}
            is_value = issubclass(kind, (type, BaseException, enum.Enum))
            if "numpy.memmap" in names or (roots & set(LIVE_MODULES) and not is_value):
                found = _refuse_live
            elif "torch._tensor.Tensor" in names or "torch.Tensor" in names:
                found = _reduce_tensor
            elif "numpy.ndarray" in names:
                found = _reduce_subclass
            elif "pandas.core.generic.NDFrame" in names:
                found = _reduce_frame
            elif _leaves_fields_out(kind):
                found = _reduce_fields
        self.reducers[kind] = found
        return found

    def by_reference(self, value: Any) -> bool:
        """Whether a class or function is found under its name in a module that can be imported."""
        known = self.is_by_reference.get(id(value))
        if known is None:
            module = getattr(value, "__module__", None)
            if isinstance(module, str) and module not in sys.modules:
                # A library may name a module that is not imported yet, as numpy does (numpy.rec).
                with contextlib.suppress(Exception):
                    if module.partition(".")[0] in sys.modules:
                        importlib.import_module(module)
            known = value, bool(functions._should_pickle_by_reference(value))
            self.is_by_reference[id(value)] = known
        return known[1]


class Pickler(functions.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Cloudpickle's pickler, for values that come back into a live notebook."""

    def __init__(self, file: Any, snapshot: Snapshot, by_value: frozenset[str]) -> None:
        super().__init__(file, protocol=5, buffer_callback=self._take_buffer)
        self.snapshot = snapshot
        self.buffers: list[pickle.PickleBuffer] = []
        self.needs: set[str] = set()
        self.has_code = False
        self._by_value = by_value
        self.foreign: set[int] = set()
        self._places: dict[int, live.Globals] = {}
        self._cells: set[int] = set()

    def _take_buffer(self, buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes < IN_BAND_BYTES:
            return True
        self.buffers.append(buffer)
        return False

    def reached(self) -> set[int]:
        """Return the identities of the objects that another pickle may reach, too."""
        found = set()
        own = id(self.snapshot.namespace)
        for identity, (_, value) in self.memo.copy().items():
            if identity == own:
                raise NotSavedError(WHOLE_NAMESPACE)
            kind = type(value)
            if isinstance(value, IMMUTABLE) or identity in self.snapshot.live:
                continue
            if kind.__module__ in IMMUTABLE_MODULES or kind is live.Globals:
                continue
            if kind is types.FunctionType and self.snapshot.by_reference(value):
                continue
            found.add(identity)
        return found

    def reducer_override(self, obj: Any) -> Any:
        """Reduce what pickle or cloudpickle would bring back as something else."""
        snapshot = self.snapshot
        known = snapshot.live.get(id(obj))
        if known is not None:
            return live.live, (known[1],)
        kind = type(obj)
        if kind is types.FunctionType:
            if snapshot.by_reference(obj):
                return NotImplemented
            return self._reduce_function(obj)
        if issubclass(kind, type):
            return self._reduce_class(obj)
        if kind in snapshot.reducers:
            reduce = snapshot.reducers[kind]
        else:
            reduce = snapshot.find_reducer(kind)
        if reduce is None and type(kind.__new__) is types.FunctionType:
            return self._reduce_instance(obj)
        return NotImplemented if reduce is None else reduce(self, obj)

    def _reduce_instance(self, obj: Any) -> Any:
        """Reduce what the ``__new__`` of a cell's class has made, which is not to run again."""
        kind = type(obj)
        names = ("__reduce_ex__", "__reduce__")
        is_usual = all(getattr(kind, name) is getattr(object, name) for name in names)
        if not is_usual or self.snapshot.by_reference(kind):
            return NotImplemented
        reduced = obj.__reduce_ex__(4)
        if reduced[0].__name__ != "__newobj__" or reduced[1] != (kind,):
            return NotImplemented
        try:
            object.__new__(kind)
        except TypeError:  # it is more than an object
            return NotImplemented
        return (live.instance, *reduced[1:])

    def _reduce_function(self, function: Any) -> Any:
        self.has_code = True
        variables = function.__globals__
        place = self._places.get(id(variables))
        if place is None:
            name = "" if variables is self.snapshot.namespace else variables.get("__name__", "")
            module = sys.modules.get(name) if name else None
            if variables is self.snapshot.namespace or vars(module or types) is variables:
                place = live.Globals(name)
            else:
                place = live.Globals(name, variables)
                self.foreign.add(id(variables))
            self._places[id(variables)] = place
        attributes, slots = functions._function_getstate(function)
        slots["__globals__"], slots["__closure__"] = {}, None
        cells = function.__closure__ or ()
        self._cells.update(map(id, cells))
        contents = []
        for cell in cells:
            value = functions._get_cell_contents(cell)
            if value is not functions._empty_cell_value:
                contents.append((cell, value))
        # A cell is made empty, once for all functions that share it; any of them fills it.
        made = (function.__code__, place, function.__closure__)
        return live.function, made, (attributes, slots, contents), None, None, live.set_function

    def reduce_cell(self, cell: Any) -> Any:
        """Reduce a cell of a closure without its contents, which its functions bring."""
        if id(cell) not in self._cells:
            raise NotSavedError("a cell of a closure is saved with its function alone")
        return functions._make_empty_cell, ()

    def _reduce_class(self, cls: Any) -> Any:
        if cls in (type(None), type(...), type(NotImplemented)) or self.snapshot.by_reference(cls):
            return super().reducer_override(cls)
        if not isinstance(cls.__module__, str) or cls in functions._BUILTIN_TYPE_NAMES:
            return super().reducer_override(cls)
        identity = live.identity_of(cls)
        self.snapshot.classes[identity] = cls
        self.has_code = True
        if identity in self._by_value:
            return super().reducer_override(cls)
        self.needs.add(identity)
        return live.class_by_id, (identity,)


# -- types that need more than pickle and cloudpickle do


def _refuse_live(_: Pickler, value: Any) -> Any:
    raise NotSavedError(f"an open file ({name_of(type(value))}) is tied to this process")


def _refuse_memory(_: Pickler, value: Any) -> Any:
    raise NotSavedError(f"a {type(value).__name__} is a view of another object's memory")


def _reduce_cell(pickler: Pickler, cell: Any) -> Any:
    return pickler.reduce_cell(cell)


def _reduce_code(_: Pickler, code: Any) -> Any:
    kind, arguments = functions._code_reduce(code)
    # The name of the cell's file, so that tracebacks show its lines.
    changed = [code.co_filename if item == "<dynamic-code>" else item for item in arguments]
    return kind, tuple(changed)


def _reduce_items(_: Pickler, view: Any) -> Any:
    kind = next(kind for kind in ("keys", "values", "items") if type(view).__name__.endswith(kind))
    return live.items_of, (gc.get_referents(view)[0], kind)


def _reduce_proxy(_: Pickler, proxy: Any) -> Any:
    return types.MappingProxyType, (gc.get_referents(proxy)[0],)


def _reduce_cached(pickler: Pickler, function: Any) -> Any:
    wrapped = function.__wrapped__
    if pickler.snapshot.by_reference(wrapped) or _is_attribute(function):
        return NotImplemented
    parameters = function.cache_parameters() if hasattr(function, "cache_parameters") else {}
    maximum = parameters.get("maxsize", function.cache_info().maxsize)
    attributes = {k: v for k, v in vars(function).items() if k != "cache_parameters"}
    return live.cached, (wrapped, maximum, parameters.get("typed", False), attributes)


def _is_attribute(function: Any) -> bool:
    module = sys.modules.get(function.__module__)
    is_main = function.__module__ == "__main__"
    return not is_main and getattr(module, function.__qualname__, None) is function


def _reduce_module(_: Pickler, module: types.ModuleType) -> Any:
    known = sys.modules.get(module.__name__)
    if known is not module or getattr(module, "__spec__", None) is None:
        raise NotSavedError(f"the module {module.__name__} was made here, not imported")
    return functions.subimport, (module.__name__,)


def _reduce_array(pickler: Pickler, array: Any) -> Any:
    numpy: Any = sys.modules["numpy"]

    is_shared = _is_shared(array)
    kind, base = type(array), array.base
    while type(base) is memoryview:
        base = base.obj
    if array.nbytes and isinstance(base, numpy.ndarray):
        if isinstance(base, numpy.memmap):
            raise NotSavedError("it is a view of a file that is mapped into memory")
        if _is_plain(base) and array.dtype.hasobject == base.dtype.hasobject:
            offset = _address(array) - _address(base)
            return _with_flags(
                array, live.view, (base, offset, array.shape, array.strides, array.dtype, kind)
            )
        if is_shared:
            raise NotSavedError(f"it shares memory with a {name_of(type(base))}")
    elif array.nbytes and type(base).__name__ in ("bytearray", "array"):
        offset = _address(array) - _address(numpy.frombuffer(base, numpy.uint8))
        return _with_flags(
            array, live.view, (base, offset, array.shape, array.strides, array.dtype, kind)
        )
    elif base is not None and str(type(base).__module__).partition(".")[0] in FOREIGN_MEMORY:
        raise NotSavedError(f"it shares memory with a {name_of(type(base))}")
    if array.dtype.hasobject:
        return NotImplemented
    plain = array.view(numpy.ndarray)
    axes = live.axes_of(plain)
    if not plain.transpose(axes).flags.c_contiguous:
        plain, axes = numpy.ascontiguousarray(plain), tuple(range(plain.ndim))
    data: Any = b""
    if plain.nbytes:
        flat = live.flat(plain).view(numpy.uint8)
        data = flat.tobytes() if flat.nbytes < IN_BAND_BYTES else pickle.PickleBuffer(flat)
    return _with_flags(array, live.array, (data, array.shape, array.dtype, axes, kind))


def _is_shared(array: Any) -> bool:
    """Whether anything but this array holds the one in whose memory it is."""
    numpy: Any = sys.modules["numpy"]
    # How many references a local variable and an argument are depends on the version of Python.
    return _count_base(array) > _count_base(numpy.empty(2)[:1])


def _count_base(array: Any) -> int:
    base = array.base
    return sys.getrefcount(base) if base is not None else 0


def _is_plain(base: Any) -> bool:
    """Whether an array comes back with the same memory, so that views of it can come back."""
    kind = type(base)
    is_known = REDUCERS.get(f"{kind.__module__}.{kind.__name__}") is _reduce_array
    return is_known and base.transpose(live.axes_of(base)).flags.c_contiguous


def _reduce_subclass(_: Pickler, array: Any) -> Any:
    """Reduce an array of a class that has its own way, unless others write into its memory."""
    numpy: Any = sys.modules["numpy"]

    if not array.nbytes or not isinstance(array.base, numpy.ndarray) or not _is_shared(array):
        return NotImplemented
    base = array.base
    if not _is_plain(base) or array.dtype.hasobject or not hasattr(array, "__dict__"):
        raise NotSavedError(f"it shares memory with another {name_of(type(base))}")
    place = _address(array) - _address(base), array.shape, array.strides, array.dtype
    state = dict(vars(array)), bool(array.flags.writeable)
    return live.view, (base, *place, type(array)), state, None, None, live.set_subclass


def _with_flags(array: Any, function: Any, arguments: Any) -> Any:
    if array.flags.writeable or not array.nbytes:
        return function, arguments
    return function, arguments, False, None, None, live.set_flags


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def _reduce_frame(pickler: Pickler, frame: Any) -> Any:
    pandas = sys.modules["pandas"]
    blocks = getattr(getattr(frame, "_mgr", None), "blocks", ())
    is_copied = int(pandas.__version__.partition(".")[0]) >= 3 or (
        getattr(pandas.options.mode, "copy_on_write", False) is True
    )
    references = [getattr(block, "refs", None) for block in blocks]
    if is_copied and any(one is not None and one.has_reference() for one in references):
        # What shares memory until it is written to would share it for ever afterwards.
        frame = frame.copy(deep=True)
        pickler.snapshot.kept.append(frame)
    return frame.__reduce_ex__(5)


def _leaves_fields_out(kind: Any) -> bool:
    """Whether a data class says itself what its state is, and not how it comes back."""
    if not hasattr(kind, "__dataclass_fields__") or hasattr(kind, "__setstate__"):
        return False
    is_plain = kind.__reduce__ is object.__reduce__ and kind.__reduce_ex__ is object.__reduce_ex__
    return is_plain and getattr(kind, "__getstate__", 0) is not getattr(object, "__getstate__", 0)


def _reduce_fields(_: Pickler, value: Any) -> Any:
    reduced = value.__reduce_ex__(5)
    state = reduced[2]
    if isinstance(state, dict):
        # A field is state, though the class drops it together with its caches (formulaic does).
        fields = {k: v for k, v in vars(value).items() if k in value.__dataclass_fields__}
        reduced = (*reduced[:2], {**fields, **state}, *reduced[3:])
    return reduced


def _reduce_tensor(pickler: Pickler, tensor: Any) -> Any:
    if not hasattr(tensor, "untyped_storage"):
        return NotImplemented
    place = tensor.untyped_storage().data_ptr()
    owner = pickler.snapshot.storages.setdefault(place, tensor)
    if place and owner is not tensor:
        raise NotSavedError("it shares memory with another tensor")
    return NotImplemented


REDUCERS: dict[str, Reducer] = {
    "builtins.memoryview": _refuse_memory,
    "_io.TextIOWrapper": _refuse_live,
    "builtins.code": _reduce_code,
    "builtins.cell": _reduce_cell,
    "builtins.mappingproxy": _reduce_proxy,
    "builtins.module": _reduce_module,
    "functools._lru_cache_wrapper": _reduce_cached,
    "numpy.ndarray": _reduce_array,
    "numpy.matrix": _reduce_array,
    "numpy.rec.recarray": _reduce_array,
    "numpy.recarray": _reduce_array,
    **{f"builtins.dict_{kind}": _reduce_items for kind in ("keys", "values", "items")},
}
