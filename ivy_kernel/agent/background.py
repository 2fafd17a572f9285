"""What may still speak in the kernel's process when no request is under way.

Runs in the kernel's process, which alone knows its threads, its tasks and its timers: in the
built-in shell, and in ipykernel, whose start program imports it.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import threading
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import extension
from .wire import replace_surrogates

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

BACKGROUND_TYPE = "ivy_background"
"""The type of the message by which a kernel tells its agent how much may still speak."""

RECHECK_SECONDS = 1.0
"""While something may speak, it is looked at that often whether it still does."""

MACHINERY = ("ipykernel", "zmq", "tornado", "jupyter_client", "IPython", "asyncio")
"""Packages whose callbacks and tasks are the kernel's own: they print nothing by themselves."""

SILENT_THREADS = (
    *("ipykernel.", "zmq.", "IPython.", "_pydevd_bundle.", "_pydev_bundle.", "pydevd", "debugpy."),
    "tqdm._monitor",  # it redraws bars that a cell has left, and stays for ever
)
"""Modules of thread classes that come with libraries and have nothing to say."""

IDLE_WORKER = ("concurrent/futures/thread.py", "_worker")
"""Where a worker of a thread pool waits for something to do."""


class BackgroundWork:
    """Counts what may still speak: threads, and an event loop's tasks, timers and open files.

    What is there when it is made is the kernel's own machinery, and does not count.
    """

    def __init__(self) -> None:
        # With the objects: the identity of a thread that has ended is given to a new one.
        known = _known_threads()
        self._own_threads = {identity: known.get(identity) for identity in sys._current_frames()}
        self._machinery = tuple(_directories(MACHINERY))

    def count(self, loop: asyncio.AbstractEventLoop | None = None) -> int:
        """Return how much may still speak.

        Parameters
        ----------
        loop
            The loop that goes on running between requests. Must be called in its thread.
        """
        return self._threads() + (0 if loop is None else self._loop_work(loop))

    def _threads(self) -> int:
        known = _known_threads()
        found = 0
        # Threads without a frame of Python's, such as a numeric library's, are not among these.
        for identity, frame in sys._current_frames().items():
            thread = known.get(identity)
            is_own = identity in self._own_threads and self._own_threads[identity] is thread
            if is_own or identity == threading.get_ident():
                continue
            code = frame.f_code
            is_idle = code.co_filename.endswith(IDLE_WORKER[0]) and code.co_name == IDLE_WORKER[1]
            if not (is_idle or type(thread).__module__.startswith(SILENT_THREADS)):
                found += not getattr(thread, "pydev_do_not_trace", False)
        return found

    def _loop_work(self, loop: asyncio.AbstractEventLoop) -> int:
        import asyncio  # takes long, and the agent itself, which reads BACKGROUND_TYPE, needs none

        found = 0
        for task in asyncio.all_tasks(loop):
            code = getattr(task.get_coro(), "cr_code", None)
            found += code is not None and not code.co_filename.startswith(self._machinery)
        # Other loops than asyncio's own have no such attributes; their tasks count all the same.
        for handle in (*getattr(loop, "_scheduled", ()), *getattr(loop, "_ready", ())):
            found += not handle.cancelled() and self._is_of_user(handle)
        selector = getattr(loop, "_selector", None)
        for key in selector.get_map().values() if selector is not None else ():
            found += any(handle is not None and self._is_of_user(handle) for handle in key.data)
        return found

    def _is_of_user(self, handle: Any) -> bool:
        """Whether a handle of the loop calls what is not the kernel's own."""
        callback: Any = functools.partial(handle._callback, *(handle._args or ()))
        for _ in range(8):
            if isinstance(callback, functools.partial):
                # tornado wraps what it calls: partial(run, partial(callback)).
                inner = [value for value in callback.args if callable(value)]
                callback = inner[0] if inner else callback.func
                continue
            # A periodic callback of tornado's is a method of an object that has the user's.
            owned = getattr(getattr(callback, "__self__", None), "callback", None)
            if not callable(owned):
                break
            callback = owned
        code: Any = getattr(callback, "__code__", None)
        name: str | None = getattr(code, "co_filename", None)
        if name is None:  # written in C: a function of a module, such as print, is the user's
            return isinstance(getattr(callback, "__self__", None), types.ModuleType)
        if name in (__file__, extension.__file__):
            return False
        # A server that listens has a callback of asyncio's own, and may have a handler that prints.
        return not name.startswith(self._machinery) or code.co_name == "_accept_connection"


def _known_threads() -> dict[int, threading.Thread]:
    return {thread.ident: thread for thread in threading.enumerate() if thread.ident}


def _directories(packages: Iterable[str]) -> Iterable[str]:
    for name in packages:
        spec = importlib.util.find_spec(name)
        for place in (spec.submodule_search_locations or ()) if spec is not None else ():
            yield str(Path(place)) + "/"


def pack_any_text(session: Any) -> None:
    """Have jupyter_client's session replace what UTF-8 has no form for, instead of failing.

    Parameters
    ----------
    session
        The kernel's session.
    """
    pack: Callable[[Any], bytes] = session.pack

    def pack_replaced(value: Any) -> bytes:
        try:
            return pack(value)
        except Exception:  # of several types, by the library that packs; others fail again below
            return pack(replace_surrogates(value))

    session.pack = pack_replaced


def watch(kernel: Any) -> None:
    """Have an ipykernel tell its agent, before each "idle" and after changes, what may speak.

    Parameters
    ----------
    kernel
        The kernel, which is about to start.
    """
    import asyncio

    publish_status: Callable[..., None] = kernel._publish_status
    work: list[BackgroundWork] = []
    told = [0]
    is_due = [False]

    def tell() -> None:
        loop = asyncio.get_running_loop()
        found = work[0].count(loop)
        if found != told[0]:
            if not found:
                # The last words are sent before this.
                sys.stdout.flush()
                sys.stderr.flush()
            told[0] = found
            kernel.session.send(kernel.iopub_socket, BACKGROUND_TYPE, {"count": found}, parent={})
        if found and not is_due[0]:
            is_due[0] = True
            loop.call_later(RECHECK_SECONDS, look_again)

    def look_again() -> None:
        is_due[0] = False
        tell()

    def publish_status_and_tell(status: str, channel: str, *arguments: Any, **more: Any) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        if status == "idle" and channel == "shell" and is_main:
            try:
                if not work:  # the answer to the agent's first question: all that is here is ours
                    work.append(BackgroundWork())
                tell()
            except Exception as error:
                print(f"background work is not known: {error!r}", file=sys.__stderr__)
        publish_status(status, channel, *arguments, **more)

    kernel._publish_status = publish_status_and_tell
