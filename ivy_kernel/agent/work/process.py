"""A forked process that works on a moment of the notebook while that goes on."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import mmap
import os
import resource
import select
import signal
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any, NoReturn

from .live import describe

if TYPE_CHECKING:
    Json = dict[str, Any]

PLACE_BYTES = 1000


class Child:
    """A forked process that writes a checkpoint, and has no other trace here than a pipe.

    Parameters
    ----------
    write
        What it does, there; it is given a function that notes what it is at.
    limit_seconds
        The time after which it ends itself.
    """

    def __init__(self, write: Any, limit_seconds: float) -> None:
        self.began = time.monotonic()
        self._limit_seconds = limit_seconds
        self._place = mmap.mmap(-1, PLACE_BYTES)
        self._said = b""
        self._pid = 0
        self._pipe, there = os.pipe()
        try:
            pid = _fork()
        except OSError:
            os.close(self._pipe)
            os.close(there)
            raise
        if pid == 0:
            self._run(write, there)
        os.close(there)
        with contextlib.suppress(ChildProcessError):  # the user's signal handling has waited for it
            os.waitpid(pid, 0)

    def _run(self, write: Any, there: int) -> NoReturn:
        """Go on in a grandchild, which nothing that a cell does can wait for or see as a child."""
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            os.setsid()
            if _fork():
                os._exit(0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.alarm(int(self._limit_seconds) + 1)
            self._pid = os.getpid()
            os.write(there, b"%d\n" % self._pid)
            _make_modest()
            gc.disable()
            sys.settrace(None)
            sys.setprofile(None)
            warnings.simplefilter("ignore")
            _close_all_but(there)
            try:
                done = write(self._tell)
            except BaseException as error:  # whatever a value's own code raises
                done = {"error": describe(error)}
            os.write(there, json.dumps(done).encode("ascii"))
        finally:
            os._exit(0)

    @staticmethod
    def silence() -> None:
        """Have nothing that a value's own code prints reach the notebook."""
        nowhere: Any = io.StringIO()
        sys.stdout = sys.stderr = nowhere

    def _tell(self, name: str) -> None:
        data = name.encode("utf-8", "replace")[: PLACE_BYTES - 2]
        self._place[: len(data) + 1] = data + b"\0"

    def place(self) -> str:
        """Return what it is at."""
        return self._place[:].split(b"\0", 1)[0].decode("utf-8", "replace")

    def is_ready(self) -> bool:
        """Whether it has ended."""
        while select.select([self._pipe], [], [], 0)[0]:
            data = os.read(self._pipe, 1 << 16)
            if not data:
                return True
            self._said += data
        return False

    def is_overdue(self) -> bool:
        """Whether it should have ended."""
        return time.monotonic() > self.began + self._limit_seconds

    def wait(self) -> bool:
        """Wait until it has ended; return false when it does not."""
        while not self.is_ready():
            left = self.began + self._limit_seconds - time.monotonic()
            if left < 0:
                return False
            select.select([self._pipe], [], [], left)
        return True

    def result(self) -> Json | None:
        """Return what it has written; ``None`` when it has not come to that."""
        self._close()
        _, _, rest = self._said.partition(b"\n")
        try:
            done: Json = json.loads(rest.decode("ascii"))
        except ValueError:
            return None
        return done

    def kill(self) -> None:
        """End it, if it has not ended."""
        if self._pipe >= 0 and not self.is_ready():
            with contextlib.suppress(OSError, ValueError):
                os.kill(int(self._said.partition(b"\n")[0]), signal.SIGKILL)
        self._close()

    def _close(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1


def _fork() -> int:
    with warnings.catch_warnings():
        # That threads do not go on in the child is what is wanted.
        warnings.simplefilter("ignore")
        return os.fork()


def _make_modest() -> None:
    """Give way to everything else in the sandbox."""
    with contextlib.suppress(OSError):
        os.nice(10)
    with contextlib.suppress(Exception):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Its name in lists of processes.
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:  # noqa: PTH123 - as below
        file.write("ivy-checkpoint")
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 - no path is kept
        file.write("1000")


def _close_all_but(kept: int) -> None:
    """Close every file: a position in one is shared with the notebook, and a socket's end, too."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    try:
        names = os.listdir("/proc/self/fd")  # noqa: PTH208 - names alone are wanted
    except OSError:
        names = [str(number) for number in range(3, 1024)]
    for name in names:
        if int(name) > 2 and int(name) != kept:
            with contextlib.suppress(OSError):
                os.close(int(name))
