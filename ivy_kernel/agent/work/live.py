"""What a pickle names rather than holds: the live notebook, and what makes its objects anew."""

from __future__ import annotations

import functools
import importlib
import re
import secrets
import sys
import types
from typing import TYPE_CHECKING, Any

from .cloudpickle import cloudpickle as functions

if TYPE_CHECKING:
    from collections.abc import Callable


_process_id = secrets.token_hex(8)


def identity_of(definition: Any) -> str:
    """Return the identity of a class that a cell has defined: in every forked child the same."""
    known = functions._DYNAMIC_CLASS_TRACKER_BY_CLASS.get(definition)
    if known is None:
        known = f"{_process_id}-{id(definition):x}"
        functions._DYNAMIC_CLASS_TRACKER_BY_CLASS[definition] = known
        functions._DYNAMIC_CLASS_TRACKER_BY_ID[known] = definition
    return str(known)


functions._get_or_create_tracker_id = identity_of  # cloudpickle's is random


def class_skeleton(
    kind: Any, name: str, bases: Any, attributes: dict[str, Any], identity: str, _: Any
) -> Any:
    """Return a class that has no attributes yet.

    What cells have defined to run for each new class (a metaclass, ``__init_subclass__``) has run
    for it, when it was made first: it does not run again.
    """
    own = functions._DYNAMIC_CLASS_TRACKER_BY_CLASS
    attributes = {sys.intern(key): value for key, value in attributes.items()}

    def make(name: str, bases: Any, variables: dict[str, Any]) -> Any:
        library = next(each for each in kind.__mro__ if each not in own)
        made = library.__new__(kind, name, bases, variables)
        library.__init__(made, name, bases, variables)
        return made

    above = {each for base in types.resolve_bases(bases) for each in base.__mro__ if each in own}
    hooks = [(each, vars(each).get("__init_subclass__")) for each in above]
    hooks = [(each, hook) for each, hook in hooks if hook is not None]
    try:
        for each, _ in hooks:
            type.__delattr__(each, "__init_subclass__")
        options = {"metaclass": make if kind in own else kind}
        made = types.new_class(name, bases, options, lambda body: body.update(attributes))
    finally:
        for each, hook in hooks:
            type.__setattr__(each, "__init_subclass__", hook)
    return functions._lookup_class_or_track(identity, made)


functions._make_skeleton_class = class_skeleton


def instance(cls: Any) -> Any:
    """Return an instance of a class of a cell, whose ``__new__`` has run when it was made."""
    return object.__new__(cls)


class NotSavedError(Exception):
    """A value that cannot be saved so that it comes back as it was; says why."""


_namespace: list[Callable[[], dict[str, Any]]] = []
_shell: list[Any] = [None]


def use_namespace(variables: Callable[[], dict[str, Any]], shell: Any) -> None:
    """Have functions come back into these variables, and IPython's shell as this one."""
    _namespace[:] = [variables]
    _shell[0] = shell


def namespace() -> dict[str, Any]:
    """Return the user's variables."""
    return _namespace[0]()


def compiler_flags() -> int:
    """Return what ``from __future__ import`` in cells has set for those after them."""
    return int(getattr(getattr(_shell[0], "compile", None), "flags", 0))


class Globals:
    """Stands for the globals of a function.

    Parameters
    ----------
    module
        The module whose they are; none for the notebook's own.
    others
        The variables themselves where they are neither's: made by ``exec``, for example.
    """

    def __init__(self, module: str, others: dict[str, Any] | None = None) -> None:
        self.module = module
        self.others = others

    def __reduce__(self) -> Any:
        if self.others is not None:
            return dict, (), None, None, iter(list(self.others.items()))
        return _live_globals, (self.module,)


def _live_globals(module: str) -> dict[str, Any]:
    return vars(importlib.import_module(module)) if module else _namespace[0]()


def live(name: str) -> Any:
    """Return one of the objects that a process has one of."""
    module, _, attributes = name.partition(":")
    if name == "shell":
        return _shell[0]
    found: Any = importlib.import_module(module) if module else sys.modules["__main__"]
    for attribute in attributes.split(".") if attributes else ():
        found = getattr(found, attribute)
    return found


LIVE = (
    *("random:_inst", "numpy.random.mtrand:_rand", "os:environ", "os:environb"),
    *("sys:stdin", "sys:stdout", "sys:stderr", "sys:__stdin__", "sys:__stdout__", "sys:__stderr__"),
    *("matplotlib:rcParams", "matplotlib:rcParamsDefault", "pandas:options", "builtins:display"),
)
"""Objects that a variable names, and does not hold a copy of."""


def live_objects() -> dict[int, tuple[Any, str]]:
    """Return objects of :data:`LIVE` that are there, with their names, by identity."""
    found = {id(sys.modules["__main__"]): (sys.modules["__main__"], ":")}
    if _shell[0] is not None:
        found[id(_shell[0])] = (_shell[0], "shell")
    for name in LIVE:
        if name.partition(":")[0] in sys.modules:
            try:
                value = live(name)
            except Exception:  # another version of the library; nothing is lost
                value = None
            if value is not None:
                found[id(value)] = (value, name)
    return found


def function(code: Any, variables: dict[str, Any], closure: Any) -> types.FunctionType:
    """Return a function with these globals; the rest of it is set later."""
    return types.FunctionType(code, variables, None, None, closure)


def set_function(function: Any, state: Any) -> None:
    """Give a function its attributes, and its cells their contents."""
    attributes, slots, cells = state
    variables = function.__globals__
    builtins = variables.get("__builtins__")
    functions._function_setstate(function, (attributes, slots))
    if builtins is not None:
        variables["__builtins__"] = builtins
    for cell, value in cells:
        cell.cell_contents = value


def class_by_id(identity: str) -> Any:
    """Return a class that has come back before, by its identity."""
    found = functions._DYNAMIC_CLASS_TRACKER_BY_ID.get(identity)
    if found is None:
        raise NotSavedError("its class did not come back")
    return found


def items_of(mapping: Any, kind: str) -> Any:
    """Return a dictionary's keys, values or items."""
    return getattr(mapping, kind)()


def cached(function: Any, maximum: Any, typed: bool, attributes: dict[str, Any]) -> Any:
    """Return a function with a cache, which is empty again."""
    made = functools.lru_cache(maximum, typed)(function)
    made.__dict__.update(attributes)
    return made


def axes_of(array: Any) -> tuple[int, ...]:
    """Return an array's axes, those first along which its memory takes the longest steps."""
    return tuple(sorted(range(array.ndim), key=lambda axis: -array.strides[axis]))


def flat(array: Any) -> Any:
    """Return the elements of an array without gaps as they are in its memory, in one dimension."""
    numpy: Any = importlib.import_module("numpy")

    plain = array.view(numpy.ndarray)
    return plain.transpose(axes_of(plain)).reshape(-1)


def array(data: Any, shape: Any, dtype: Any, axes: Any, kind: Any) -> Any:
    """Return an array that owns its memory, where its axes are in this order."""
    numpy: Any = importlib.import_module("numpy")

    if tuple(axes) in (tuple(range(len(shape))), tuple(reversed(range(len(shape))))):
        order = "C" if tuple(axes) == tuple(range(len(shape))) else "F"
        made = numpy.ndarray.__new__(kind, shape, dtype, order=order)
    else:
        back = sorted(range(len(axes)), key=axes.__getitem__)
        like = numpy.empty([shape[axis] for axis in axes], dtype).transpose(back)
        made = numpy.empty_like(like)
        if kind is not numpy.ndarray:
            made = made.view(kind)
    if made.nbytes:
        flat(made).view(numpy.uint8)[:] = numpy.frombuffer(data, numpy.uint8)
    return made


def set_flags(array: Any, is_writeable: bool) -> None:
    """Make an array that has come back read-only, if it was."""
    array.flags.writeable = is_writeable


def set_subclass(array: Any, state: Any) -> None:
    """Give an array of another class its attributes, and make it read-only, if it was."""
    attributes, is_writeable = state
    array.__dict__.update(attributes)
    array.flags.writeable = is_writeable


def view(base: Any, offset: int, shape: Any, strides: Any, dtype: Any, kind: Any) -> Any:
    """Return an array in the memory of another."""
    numpy: Any = importlib.import_module("numpy")

    if not isinstance(base, numpy.ndarray):
        return numpy.ndarray.__new__(kind, shape, dtype, base, offset, strides)
    was_writeable = base.flags.writeable
    base.flags.writeable = True
    try:
        elements = flat(base)
        if dtype.hasobject:
            start = elements[offset // base.itemsize :]
            return numpy.lib.stride_tricks.as_strided(start, shape, strides)
        memory = elements.view(numpy.uint8)
        return numpy.ndarray.__new__(kind, shape, dtype, memory, offset, strides)
    finally:
        base.flags.writeable = was_writeable


# -- words


def name_of(kind: type) -> str:
    """Return a type's name with its module, where that says something."""
    module = str(kind.__module__)
    return kind.__qualname__ if module in ("builtins", "__main__") else f"{module}.{kind.__name__}"


def describe(error: BaseException) -> str:
    """Return why something could not be saved or brought back, in one line."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # an error class of the user's may fail at it
        text = ""
    kind = re.match(r"cannot pickle '(.+?)' object", text)
    if kind:
        return f"a {kind[1]} cannot be saved"
    return (text or type(error).__name__)[:300]
