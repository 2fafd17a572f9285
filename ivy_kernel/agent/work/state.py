"""What of a process beside variables decides over later values: random states and the like."""

from __future__ import annotations

import contextlib
import importlib
import io
import linecache
import logging
import os
import pickle
import random
import re
import sys
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Json = dict[str, Any]

OWN_NAMES = frozenset(
    ("In", "Out", "_", "__", "___", "_i", "_ii", "_iii", "_ih", "_oh", "_dh", "_sh", "_exit_code")
) | frozenset(("__name__", "__doc__", "__package__", "__loader__", "__spec__", "__builtin__"))
OWN_PATTERN = re.compile(
    r"_i?\d+|__builtins__|__annotations__|__ivy__|__file__|__session__|__warningregistry__"
)
LAST = ("_", "__", "___")


def variables(host: Any) -> Json:
    """Return the variables that cells have made, by name."""
    hidden = getattr(host.shell, "user_ns_hidden", None) or {}
    return {
        name: value
        for name, value in list(host.namespace().items())
        if isinstance(name, str)
        and name not in OWN_NAMES
        and not OWN_PATTERN.fullmatch(name)
        and not (name in hidden and hidden[name] is value)
    }


def outputs(host: Any) -> Json:
    """Return the results that the shell keeps, under keys that are no names in Python."""
    namespace = host.namespace()
    found = {f"Out[{number}]": value for number, value in dict(namespace.get("Out") or {}).items()}
    names = [name for name in LAST if name in namespace]
    if host.shell is None:
        return {f"Last[{name}]": namespace[name] for name in names}
    # IPython's stay empty texts until there is a result.
    return {**found, **{f"Last[{name}]": namespace[name] for name in names if found}}


def may_fork() -> bool:
    """Whether this process can be forked: CUDA does not survive it."""
    torch = sys.modules.get("torch")
    try:
        is_on_gpu = torch is not None and torch.cuda.is_initialized()
    except Exception:  # another version of it
        is_on_gpu = True
    others = ("cupy", "pycuda", "numba.cuda.cudadrv.driver", "jaxlib.cuda", "cudf")
    return not is_on_gpu and not any(name in sys.modules for name in others)


def baseline() -> Json:
    """Return what a kernel has from its start, so that changes are seen."""
    return {
        "environ": dict(os.environ),
        "modules": set(sys.modules),
        "directory": os.getcwd(),  # noqa: PTH109 - a text is compared
    }


# -- capturing


def moment() -> Json:
    """Return what forking changes, and what is done in the child."""
    # A category that a cell has defined is none before that class is back.
    filters = [one for one in warnings.filters if one[2].__module__ != "__main__"]
    return {"random": random.getstate(), "filters": filters}


def capture(host: Any, known: Json, before: Json) -> bytes:
    """Return the state of this process, pickled: simple values alone.

    Parameters
    ----------
    host
        The kernel.
    known
        Its :func:`baseline`.
    before
        Its :func:`moment`, from before it was forked.
    """
    environment = {k: v for k, v in os.environ.items() if known["environ"].get(k) != v}
    modules = [name for name in list(sys.modules) if name not in known["modules"]]
    saved: Json = {
        "environ": environment,
        "unset": [name for name in known["environ"] if name not in os.environ],
        "path": [str(item) for item in sys.path],
        "modules": [name for name in modules if "._" not in f".{name}"],
        "lines": {k: v for k, v in list(linecache.cache.items()) if len(v) == 4 and v[1] is None},
    }
    saved["module_values"] = _module_values(known)
    saved.update(before)
    for name, save, _ in _STATES:
        if name in before:
            continue
        with contextlib.suppress(Exception):  # of a library of another version
            value = save(host)
            if value is not None:
                pickle.dumps(value)
                saved[name] = value
    return pickle.dumps(saved, 4)


PLAIN = (type(None), bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset)
PLAIN_BYTES = 1 << 16


def _module_values(known: Json) -> Json:
    """Return plain variables of the modules of the working directory, each as a pickle.

    They are never set: code of these modules may hold the objects that importing makes anew. But
    what has another value then must be named.
    """
    found: Json = {}
    for name, module in list(sys.modules.items()):
        place = getattr(module, "__file__", None)
        if name in known["modules"] or not isinstance(place, str) or _is_installed(place, known):
            continue
        for variable, value in list(vars(module).items()):
            if type(value) in PLAIN and not variable.startswith("__"):
                with contextlib.suppress(Exception):  # it holds something that is not plain
                    data = pickle.dumps(value, 4)
                    if len(data) <= PLAIN_BYTES:
                        found[f"{name}.{variable}"] = data
    return found


def _is_installed(place: str, known: Json) -> bool:
    path = os.path.abspath(place)  # noqa: PTH100 - links are not followed
    is_ours = path.startswith(f"{known['directory']}{os.sep}")
    return not is_ours or "site-packages" in path or "dist-packages" in path


def changed_modules(saved: Json) -> Json:
    """Return the variables of modules that importing has made other than they were, and why."""
    found: Json = {}
    for key, data in saved.get("module_values", {}).items():
        name, _, variable = key.rpartition(".")
        module = sys.modules.get(name)
        with contextlib.suppress(Exception):  # the value's own code runs
            if module is not None and pickle.loads(data) != getattr(module, variable, None):  # noqa: S301 - part of the state, whose hash is signed
                why = "its module was imported anew, and had another value then"
                found[key] = {"why": why, "cell": 0}
    return found


def _module(name: str) -> Any:
    return sys.modules.get(name)


def _save_numpy(_: Any) -> Any:
    numpy = _module("numpy")
    if numpy is None:
        return None
    options = numpy.get_printoptions()
    options = {k: v for k, v in options.items() if k not in ("formatter", "override_repr")}
    random_state = numpy.random.get_state() if _module("numpy.random") is not None else None
    return random_state, numpy.geterr(), options


def _load_numpy(_: Any, value: Any) -> None:
    numpy = importlib.import_module("numpy")
    if value[0] is not None:
        numpy.random.set_state(value[0])
    numpy.seterr(**value[1])
    numpy.set_printoptions(**value[2])


def _save_torch(_: Any) -> Any:
    torch = _module("torch")
    return None if torch is None else torch.get_rng_state().numpy().tobytes()


def _load_torch(_: Any, value: bytes) -> None:
    torch = importlib.import_module("torch")
    torch.set_rng_state(torch.frombuffer(bytearray(value), dtype=torch.uint8))


def _save_pandas(_: Any) -> Any:
    config = _module("pandas._config.config")
    if config is None:
        return None
    changed = {}
    for name, option in config._registered_options.items():
        if name not in config._deprecated_options:
            value = config.get_option(name)
            if value is not option.defval and value != option.defval:
                changed[name] = value
    return changed


def _load_pandas(_: Any, value: Json) -> None:
    pandas = importlib.import_module("pandas")
    for name, option in value.items():
        pandas.set_option(name, option)


def _save_matplotlib(_: Any) -> Any:
    matplotlib = _module("matplotlib")
    if matplotlib is None:
        return None
    return {k: v for k, v in dict.items(matplotlib.rcParams) if not k.startswith("backend")}


def _load_matplotlib(_: Any, value: Json) -> None:
    matplotlib = importlib.import_module("matplotlib")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        matplotlib.rcParams.update(value)


def _save_logging(_: Any) -> Any:
    loggers = dict(logging.root.manager.loggerDict)
    return [(None, logging.root.level, True, False)] + [
        (name, one.level, one.propagate, one.disabled)
        for name, one in loggers.items()
        if isinstance(one, logging.Logger)
    ]


def _load_logging(_: Any, value: Any) -> None:
    for name, level, propagates, is_disabled in value:
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.propagate, logger.disabled = propagates, is_disabled


def _save_decimal(_: Any) -> Any:
    decimal = _module("decimal")
    return None if decimal is None else decimal.getcontext()


def _load_decimal(_: Any, value: Any) -> None:
    importlib.import_module("decimal").setcontext(value)


def _save_history(host: Any) -> Any:
    history = getattr(host.shell, "history_manager", None)
    if history is None:
        return None
    texts = [str(host.namespace().get(name, "")) for name in ("_i", "_ii", "_iii")]
    return list(history.input_hist_parsed), list(history.input_hist_raw), texts


def _load_history(host: Any, value: Any) -> None:
    history = host.shell.history_manager
    # The numbers of cells begin anew, and are one for each cell of a session in IPython's database.
    if getattr(history, "enabled", False):
        with contextlib.suppress(Exception):  # the database is nothing that cells depend on
            history.end_session()
            history.new_session()
    # In place: ``In`` is this list.
    history.input_hist_parsed[:], history.input_hist_raw[:] = value[0], value[1]
    history._i, history._ii, history._iii = value[2]
    host.namespace().update(zip(("_i", "_ii", "_iii"), value[2]))
    host.namespace().update({f"_i{n}": text for n, text in enumerate(value[1]) if n})


def _save_extensions(host: Any) -> Any:
    manager = getattr(host.shell, "extension_manager", None)
    return None if manager is None else sorted(manager.loaded)


def _load_extensions(host: Any, value: Any) -> None:
    for name in value:
        if name not in host.shell.extension_manager.loaded:
            host.shell.extension_manager.load_extension(name)


def _save_flags(host: Any) -> Any:
    return getattr(getattr(host.shell, "compile", None), "flags", None)


_STATES: tuple[tuple[str, Callable[[Any], Any], Callable[[Any, Any], None]], ...] = (
    ("extensions", _save_extensions, _load_extensions),
    ("flags", _save_flags, lambda _, __: None),
    ("history", _save_history, _load_history),
    ("pandas", _save_pandas, _load_pandas),
    ("matplotlib", _save_matplotlib, _load_matplotlib),
    ("logging", _save_logging, _load_logging),
    ("decimal", _save_decimal, _load_decimal),
    ("recursion", lambda _: sys.getrecursionlimit(), lambda _, n: sys.setrecursionlimit(n)),
    ("numpy", _save_numpy, _load_numpy),
    ("torch", _save_torch, _load_torch),
    ("random", lambda _: random.getstate(), lambda _, value: random.setstate(value)),
    ("cwd", lambda _: os.getcwd(), lambda _, value: os.chdir(value)),  # noqa: PTH109 - a text is kept
)
"""Name, how to save it (``None``: nothing), and how to bring it back. Random states come late."""


@contextlib.contextmanager
def same_random_numbers(host: Any) -> Iterator[None]:
    """Undo what a value's own code draws while it is pickled in the notebook's process."""
    kinds = [one for one in _STATES if one[0] in ("numpy", "torch", "random")]
    before = [(load, save(host)) for _, save, load in kinds]
    try:
        yield
    finally:
        for load, value in before:
            if value is not None:
                load(host, value)


# -- bringing back


def prepare(host: Any, saved: Json) -> None:
    """Make this process one in which the saved variables can be made again."""
    os.environ.update(saved.get("environ", {}))
    for name in saved.get("unset", ()):
        os.environ.pop(name, None)
    sys.path[:] = [*saved.get("path", ()), *(x for x in sys.path if x not in saved.get("path", ()))]
    with contextlib.suppress(Exception):
        os.chdir(saved.get("cwd", "."))
    linecache.cache.update(saved.get("lines", {}))
    if host.shell is not None and "flags" in saved:
        host.shell.compile.flags = saved["flags"]
    with _silent():
        for name in saved.get("modules", ()):
            with contextlib.suppress(BaseException):  # it may not be there, and nobody may need it
                importlib.import_module(name)


def bring_back(host: Any, values: Json, saved: Json, number: int) -> None:
    """Set variables, results and everything else as it was after a cell."""
    namespace = host.namespace()
    namespace.update((name, value) for name, value in values.items() if name.isidentifier())
    results = {int(k[4:-1]): value for k, value in values.items() if k.startswith("Out[")}
    last = {k[5:-1]: value for k, value in values.items() if k.startswith("Last[")}
    if isinstance(namespace.get("Out"), dict):
        namespace["Out"].update(results)
        namespace.update({f"_{count}": value for count, value in results.items()})
    namespace.update(last)
    hook = getattr(host.shell, "displayhook", None)
    for name, value in last.items():
        if hook is not None:
            setattr(hook, name, value)
    host.set_count(number)
    with _silent():
        for name, _, load in _STATES:
            if name in saved:
                with contextlib.suppress(Exception):  # of a library of another version
                    load(host, saved[name])
    if "filters" in saved:
        warnings.filters[:] = saved["filters"]  # type: ignore[index]  # a list, for all it is called
        getattr(warnings, "_filters_mutated", lambda: None)()


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
