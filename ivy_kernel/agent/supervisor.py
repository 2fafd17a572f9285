"""Keeps a kernel running: starts it, restarts it when asked, reports its death, starts the next."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from .inflight import Flights
from .ipython_kernel import IPythonKernel, is_importable
from .kernel import Kernel
from .shell_kernel import ShellKernel

if TYPE_CHECKING:
    from collections.abc import Callable

    from .kernel import MessageHandler

STOP_SECONDS = 1.0
START_SECONDS = 60.0
SHORT_LIFE_SECONDS = 10.0
STILLBORN_BELIEVED = 4
"""After so many kernels in a row that never got ready, cells no longer wait for the next."""

LONGEST_PAUSE_SECONDS = 30.0


class Keeper:
    """Owns the kernel process and what waits for it.

    A kernel after one that was ready, or after a restart, is a new generation: variables never
    survive into it. It is counted from the moment that the one before has ended, so that a cell
    meant for that one is refused, and one meant for the next waits. A kernel that dies young is
    started again after a growing pause; an ipykernel that was not asked for by name and never
    gets ready gives way to the built-in shell.

    Parameters
    ----------
    directory
        The private directory.
    options
        ``working_directory`` and ``kernel`` (``auto``, ``ipykernel`` or ``shell``).
    flights
        What the kernel is working on.
    on_message
        Takes the kernel's messages.
    event
        Records an event by name and details.
    now
        The monotonic clock.
    """

    def __init__(
        self,
        directory: str,
        options: dict[str, Any],
        flights: Flights,
        on_message: MessageHandler,
        event: Callable[..., None],
        now: float,
    ) -> None:
        self.generation = 0
        self.state = "starting"
        self._directory = directory
        self._working_directory = str(options.get("working_directory", ""))
        self._wanted = str(options.get("kernel", "auto"))
        self._flights = flights
        self._on_message = on_message
        self._event = event
        self._kernel: Kernel | None = None
        self._waiting: dict[str, Callable[[Kernel], None]] = {}
        self._start_at: float | None = now
        self._kill_at: float | None = None
        self._started = now
        self._pause = 0.0
        self._starts = 0
        self._is_spent = True
        self._stillborn = 0
        self._restarts: list[str] = []

    @property
    def more_threads(self) -> int:
        """How many threads the kernel has beyond those it started with."""
        return self._kernel.more_threads() if self._kernel else 0

    @property
    def kind(self) -> str:
        """What kind of kernel it is; empty while there is none."""
        return self._kernel.kind if self._kernel else ""

    def file_descriptors(self) -> list[int]:
        """What the daemon's loop should watch for reading."""
        return self._kernel.file_descriptors() if self._kernel else []

    def submit(self, message_id: str, send: Callable[[Kernel], None]) -> None:
        """Hand something to the kernel, now or as soon as it is ready."""
        if self._kernel is not None and self.state in ("idle", "busy"):
            send(self._kernel)
        else:
            self._waiting[message_id] = send

    def interrupt(self) -> None:
        """Signal the kernel that is running."""
        if self._kernel is not None:
            self._kernel.interrupt()

    def ignores_interrupts(self) -> bool:
        """Whether an interrupt would be lost at the moment."""
        return self._kernel is not None and self._kernel.ignores_interrupts()

    def restart(self, restart_id: str, now: float) -> None:
        """End this kernel and start the next; asked politely first, killed after a second."""
        self._restarts.append(restart_id)
        if self._kernel is None:
            self._report_restart([])
            return
        if self._kill_at is not None:
            return
        if self._flights.current:
            self._kernel.interrupt()
        self._kernel.ask_to_stop()
        self.state = "stopping"
        self._kill_at = now + STOP_SECONDS

    def next_time(self) -> float | None:
        """When :meth:`run` has something to do next, on the monotonic clock."""
        next_ping = self._kernel.next_time() if self._kernel else None
        known = [t for t in (self._start_at, self._kill_at, next_ping) if t is not None]
        return min(known) if known else None

    def run(self, now: float) -> None:
        """Take what the kernel has sent; start, kill or replace it when that is due."""
        if self._start_at is not None and now >= self._start_at:
            self._start(now)
        kernel = self._kernel
        if kernel is None:
            return
        while kernel.receive(now):
            pass
        too_slow = self.state == "starting" and now - self._started > START_SECONDS
        if too_slow or (self._kill_at is not None and now >= self._kill_at):
            kernel.kill()
        code = kernel.exit_code()
        if code is not None:
            self._bury(kernel, code, now)

    def stop(self, clock: Callable[[], float], wait: Callable[[float], None]) -> None:
        """End the kernel for good: politely if it listens, then by force."""
        kernel, self._kernel = self._kernel, None
        if kernel is None:
            return
        if self.state == "idle":
            kernel.ask_to_stop()
            deadline = clock() + STOP_SECONDS
            while kernel.exit_code() is None and clock() < deadline:
                wait(0.01)
        kernel.kill()
        kernel.close()

    def _start(self, now: float) -> None:
        self._start_at = None
        self._started = now
        self._starts += 1
        self._advance()
        self.state = "starting"
        use_shell = self._wanted == "shell" or (self._wanted == "auto" and not is_importable())
        make = ShellKernel if use_shell else IPythonKernel
        kernel = make(
            self._directory,
            self._working_directory,
            self._starts,
            self._on_message,
            self._on_ready,
        )
        try:
            kernel.start()
        except Exception as error:  # no memory, no disk, no process left: try again later
            kernel.kill()
            self._report_death(kernel, 0, [], repr(error), now)
        else:
            self._kernel = kernel

    def _on_ready(self, info: dict[str, Any]) -> None:
        kernel = self._kernel
        if kernel is None or kernel.process is None:
            return
        self.state = "idle"
        self._is_spent = True
        self._stillborn = 0
        self._event(
            "ready",
            kind=kernel.kind,
            pid=kernel.process.pid,
            python=sys.version.split()[0],
            working_directory=self._working_directory,
            implementation_version=info.get("implementation_version", ""),
            features=info.get("supported_features", []),
        )
        waiting, self._waiting = self._waiting, {}
        for send in waiting.values():
            send(kernel)

    def _report_restart(self, lost: list[str]) -> None:
        restarts, self._restarts = self._restarts, []
        self._is_spent = True
        self._event("restarted", lost=lost, restarts=restarts)
        self._advance()

    def _advance(self) -> None:
        """Count the next kernel, unless that is done already."""
        self.generation += self._is_spent
        self._is_spent = False

    def _bury(self, kernel: Kernel, code: int, now: float) -> None:
        while kernel.receive(now):
            pass
        kernel.kill()  # what it has left behind in its process group
        kernel.close()
        self._kernel = None
        was_asked, self._kill_at = self._kill_at is not None, None
        never_ready = self.state == "starting"
        self.state = "starting"
        lost = self._flights.lose(self._waiting)
        if was_asked:
            self._start_at = now
            self._report_restart(lost)
            return
        self._report_death(kernel, code, lost, kernel.last_words(), now, never_ready=never_ready)

    def _report_death(
        self,
        kernel: Kernel,
        code: int,
        lost: list[str],
        words: str,
        now: float,
        *,
        never_ready: bool = True,
    ) -> None:
        """Say how a kernel ended, and decide when and as what the next one starts."""
        self._start_at = now
        self._stillborn = self._stillborn + 1 if never_ready else 0
        if self._stillborn >= STILLBORN_BELIEVED:
            lost = lost + self._flights.lose(())
            self._waiting.clear()
        self._event("died", code=code, lost=lost, words=words, never_ready=never_ready)
        self._advance()
        if never_ready and self._wanted == "auto":
            self._wanted = "shell"
        elif now - self._started < SHORT_LIFE_SECONDS:
            self._start_at = now + self._pause
            self._pause = min(max(0.1, self._pause * 2), LONGEST_PAUSE_SECONDS)
        else:
            self._pause = 0.0
