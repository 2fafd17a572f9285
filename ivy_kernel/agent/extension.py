"""Takes work beside cells into the kernel's process: requests for it, and hooks around each cell.

What is done there comes later, in an archive of its own (the package ``work``), with the first
``ivy_work_request``. Nothing that fails in it may reach a cell.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib
import inspect
import os
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WORK_PACKAGE = "ivy_work"
"""The name of the package ``work`` in the kernel's process."""

INTERRUPT_AGAIN_SECONDS = 0.05


class Host:
    """The kernel that the work is done for.

    Parameters
    ----------
    namespace
        Returns the user's variables.
    set_count
        Makes the next cell the one after this number.
    shell
        IPython's shell; ``None`` in the built-in shell.
    """

    def __init__(
        self,
        namespace: Callable[[], dict[str, Any]],
        set_count: Callable[[int], None],
        shell: Any = None,
    ) -> None:
        self.namespace = namespace
        self.set_count = set_count
        self.shell = shell


class Extension:
    """Hands requests and cells to the work package, once that is there.

    Parameters
    ----------
    host
        The kernel.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._work: Any = None
        self._cell: dict[str, Any] | None = None

    def answer(self, content: dict[str, Any]) -> dict[str, Any]:
        """Return the content of an ``ivy_work_reply``."""
        try:
            if self._work is None:
                if content.get("do") != "configure":
                    raise LookupError("this kernel is not configured for work beside cells yet")
                package = _package(base64.b64decode(content["archive"]))
                self._work = package.open_work(self._host)
            reply = self._work.answer(content)
        except (Exception, KeyboardInterrupt) as error:  # every request gets a reply
            return {"status": "error", "ename": type(error).__name__, "evalue": _text(error)}
        return {"status": "ok", **reply}

    def before_cell(self, metadata: dict[str, Any]) -> None:
        """Tell that a cell begins; only those count that have a number."""
        self._cell = metadata.get("ivy")
        if self._work is not None and self._cell:
            with _apart():
                self._work.before_cell(self._cell)

    def after_cell(self, reply: dict[str, Any]) -> dict[str, Any]:
        """Tell that the cell has ended, before its reply is sent; return what goes with that."""
        cell, self._cell = self._cell, None
        found: dict[str, Any] = {}
        if self._work is not None and cell:
            with _apart():
                found = self._work.after_cell(cell, reply)
        return {"ivy": found} if found else {}

    def on_idle(self) -> float | None:
        """Do what is due between cells; return in how many seconds there is more to do."""
        wait: float | None = None
        if self._work is not None:
            with _apart():
                wait = self._work.on_idle()
        return wait


@contextlib.contextmanager
def _apart() -> Iterator[None]:
    """Keep faults, and interrupts that are for a cell, away from what is done beside it."""
    was_interrupted = []
    previous = None
    with contextlib.suppress(ValueError):  # not in the main thread
        previous = signal.signal(signal.SIGINT, lambda *_: was_interrupted.append(True))
    try:
        yield
    except Exception as error:  # a cell must not see it; the agent's log may have it
        print("work beside cells:", repr(error), file=sys.__stderr__)
    finally:
        if previous is not None:
            signal.signal(signal.SIGINT, previous)
        if was_interrupted and callable(previous):
            # Soon, when the cell has begun.
            timer = threading.Timer(
                INTERRUPT_AGAIN_SECONDS, lambda: os.kill(os.getpid(), signal.SIGINT)
            )
            timer.daemon = True
            timer.start()


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # an error class of the user's may fail at it
        return ""


def _package(archive: bytes) -> Any:
    """Return the work package from its zip archive, which is kept in the private directory."""
    if WORK_PACKAGE not in sys.modules:
        here = Path(__file__).parents[1]
        # Beside the archive that this code is in, which lies in the agent's private directory.
        directory = str(here.parent) if here.is_file() else tempfile.mkdtemp(prefix="ivy-")
        path = f"{directory}/work-{hashlib.sha256(archive).hexdigest()[:16]}.zip"
        Path(path).touch(0o600)
        Path(path).write_bytes(archive)
        sys.path.append(path)
        try:
            importlib.invalidate_caches()
            importlib.import_module(WORK_PACKAGE)
        finally:
            sys.path.remove(path)
    return sys.modules[WORK_PACKAGE]


def attach(kernel: Any) -> None:
    """Take work beside cells into an ipykernel, which is about to start."""
    import asyncio  # takes long, and the built-in shell needs none

    shell = kernel.shell
    # The banner, a part of every answer to a ping, would have a tip drawn with the cells' `random`.
    shell.enable_tip = False

    def set_count(number: int) -> None:
        shell.execution_count = number + 1

    extension = Extension(Host(lambda: shell.user_ns, set_count, shell))
    execute = kernel.shell_handlers["execute_request"]
    finish, dispatch = kernel.finish_metadata, kernel.dispatch_shell
    timers: list[Any] = []

    def is_main() -> bool:
        return threading.current_thread() is threading.main_thread()

    def execute_request(stream: Any, ident: Any, parent: Any) -> Any:
        if is_main():
            extension.before_cell(parent.get("metadata") or {})
        return execute(stream, ident, parent)

    def finish_metadata(parent: Any, metadata: dict[str, Any], content: dict[str, Any]) -> Any:
        finished = finish(parent, metadata, content)
        if is_main():
            finished.update(extension.after_cell(content))
        return finished

    def work_request(stream: Any, ident: Any, parent: Any) -> None:
        content = extension.answer(parent["content"])
        kernel.session.send(stream, "ivy_work_reply", content, parent, ident=ident)

    def idle() -> None:
        while timers:
            timers.pop().cancel()
        if not is_main() or getattr(kernel, "ivy_runs", False):
            return
        wait = extension.on_idle()
        if wait is not None:
            timers.append(asyncio.get_running_loop().call_later(wait, idle))

    async def dispatched(waiting: Any) -> Any:
        result = await waiting
        idle()
        return result

    def dispatch_shell(*arguments: Any, **options: Any) -> Any:
        waiting = dispatch(*arguments, **options)
        if inspect.iscoroutine(waiting):
            return dispatched(waiting)
        waiting.add_done_callback(lambda _: idle())
        return waiting

    kernel.shell_handlers["execute_request"] = execute_request
    kernel.shell_handlers["ivy_work_request"] = work_request
    kernel.finish_metadata = finish_metadata
    kernel.dispatch_shell = dispatch_shell
