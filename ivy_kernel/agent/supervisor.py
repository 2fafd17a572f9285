"""The supervisor of the kernel process: starts it, restarts it, reports its death."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from .inflight import InFlightRequests
from .ipython_kernel import IPythonKernel, is_importable
from .kernel_process import KernelProcess, ShellKernel

if TYPE_CHECKING:
    from collections.abc import Callable

    from .kernel_process import MessageHandler

ROUNDS_AT_ONCE = 4
"""Of reading what the kernel has sent, before requests and polls have their turn."""

STOP_SECONDS = 1.0
START_SECONDS = 60.0
SHORT_LIFE_SECONDS = 10.0
FAILED_STARTS_THRESHOLD = 4
"""After so many kernels in a row that never got ready, requests no longer wait for the next."""

LONGEST_PAUSE_SECONDS = 30.0


class KernelSupervisor:
    """Owns the kernel process and the requests that wait for it to be ready.

    A kernel after one that was ready, or after a restart, is a new generation: variables never
    survive into it. It is counted from the moment that the one before has ended, so that a cell
    meant for that one is refused, and one meant for the next waits. A kernel that dies young is
    started again after a growing pause (backoff); an ipykernel that was not asked for by name and
    never gets ready is replaced by the built-in shell (fallback).

    Parameters
    ----------
    directory
        The private directory.
    options
        ``working_directory`` and ``kernel`` (``auto``, ``ipykernel`` or ``shell``).
    requests
        The requests in flight.
    on_message
        Takes the kernel's messages.
    on_probed
        Called when the kernel has answered a probe, with whether a cell runs all the same.
    event
        Records an event by name and details.
    now
        The monotonic clock.
    """

    def __init__(
        self,
        directory: str,
        options: dict[str, Any],
        requests: InFlightRequests,
        on_message: MessageHandler,
        on_probed: Callable[[bool], None],
        event: Callable[..., None],
        now: float,
    ) -> None:
        self.generation = 0
        self.state = "starting"
        self.has_more = False  # whether the kernel has sent what is not read yet
        self._directory = directory
        self._working_directory = str(options.get("working_directory", ""))
        self._wanted = str(options.get("kernel", "auto"))
        self._requests = requests
        self._on_message = on_message
        self._on_probed = on_probed
        self._event = event
        self._kernel: KernelProcess | None = None
        self._waiting: dict[str, Callable[[KernelProcess], None]] = {}
        self._start_at: float | None = now
        self._kill_at: float | None = None
        self._started = now
        self._restart_pause = 0.0
        self._starts = 0
        self._is_generation_used = True
        self._failed_starts = 0
        self._restarts: list[str] = []

    def count_background(self) -> int:
        """Return how much of the kernel may still speak when no request is under way."""
        return self._kernel.count_background() if self._kernel else 0

    @property
    def kernel_pid(self) -> int:
        """The kernel's process; 0 while there is none."""
        process = self._kernel.process if self._kernel else None
        return process.pid if process else 0

    def file_descriptors(self) -> list[int]:
        """Return the descriptors that the daemon's loop should watch for reading."""
        return self._kernel.file_descriptors() if self._kernel else []

    def submit(self, message_id: str, send: Callable[[KernelProcess], None]) -> None:
        """Hand a request to the kernel, now or as soon as it is ready."""
        if self._kernel is not None and self.state in ("idle", "busy"):
            send(self._kernel)
        else:
            self._waiting[message_id] = send

    @property
    def waiting(self) -> dict[str, Callable[[KernelProcess], None]]:
        """The requests that wait for the kernel to be ready, by id."""
        return self._waiting

    def probe(self) -> None:
        """Ask the kernel something, to see whether it is done with all that it was given."""
        if self._kernel is not None:
            self._kernel.probe()

    def interrupt(self) -> None:
        """Signal the kernel, if there is one."""
        if self._kernel is not None:
            self._kernel.interrupt()

    def ignores_interrupts(self) -> bool:
        """Whether an interrupt would be lost at the moment."""
        return self._kernel is not None and self._kernel.ignores_interrupts()

    def restart(self, restart_id: str, now: float) -> None:
        """End this kernel and start the next: ask it to stop, kill it after a second."""
        self._restarts.append(restart_id)
        if self._kernel is None:
            # The next one is about to be started, and will be as new as was asked for.
            self._report_restart([])
            return
        if self._kill_at is not None:
            return
        # A running cell would keep the kernel from ending by itself.
        if self._requests.current:
            self._kernel.interrupt()
        self._kernel.ask_to_stop()
        self.state = "stopping"
        self._kill_at = now + STOP_SECONDS

    def next_time(self) -> float | None:
        """Return when :meth:`run` has something to do next, on the monotonic clock."""
        if self.has_more and self._kernel is not None:
            return 0.0
        next_ping = self._kernel.next_time() if self._kernel else None
        known = [t for t in (self._start_at, self._kill_at, next_ping) if t is not None]
        return min(known) if known else None

    def run(self, now: float, *, may_read_output: bool = True) -> None:
        """Take what the kernel has sent; start, kill or replace it when that is due."""
        if self._start_at is not None and now >= self._start_at:
            self._start(now)
        kernel = self._kernel
        if kernel is None:
            return
        # Not until nothing more comes: a kernel may send faster than this, and requests wait.
        self.has_more = False
        for _ in range(ROUNDS_AT_ONCE):
            self.has_more = kernel.receive(now, may_read_output=may_read_output)
            if not self.has_more:
                break
        # kill() waits for the process: its exit code is there below, in the same turn.
        too_slow = self.state == "starting" and now - self._started > START_SECONDS
        if too_slow or (self._kill_at is not None and now >= self._kill_at):
            kernel.kill()
        code = kernel.exit_code()
        if code is not None:
            self._reap(kernel, code, now)

    def stop(self, clock: Callable[[], float], wait: Callable[[float], None]) -> None:
        """End the kernel for good: interrupt what runs and ask it to stop, then kill it."""
        kernel, self._kernel = self._kernel, None
        if kernel is None:
            return
        if self.state in ("idle", "busy"):
            # A running cell would keep the kernel from ending by itself.
            if self.state == "busy":
                kernel.interrupt()
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
        self._count_generation()
        self.state = "starting"
        use_shell = self._wanted == "shell" or (self._wanted == "auto" and not is_importable())
        make = ShellKernel if use_shell else IPythonKernel
        kernel = make(
            self._directory,
            self._working_directory,
            self._starts,
            self._on_message,
            self._on_ready,
            self._on_probed,
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
        self._is_generation_used = True
        self._failed_starts = 0
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
        self._is_generation_used = True  # though it may never have been ready
        # The event still carries the generation that has ended; what follows gets the next one.
        self._event("restarted", lost=lost, restarts=restarts)
        self._count_generation()

    def _count_generation(self) -> None:
        """Count the next generation, unless the present one never had a usable kernel."""
        self.generation += self._is_generation_used
        self._is_generation_used = False

    def _reap(self, kernel: KernelProcess, code: int, now: float) -> None:
        # What it said before its end belongs into the log before the report of it.
        while kernel.receive(now):
            pass
        kernel.kill()  # the children that it has left behind in its process group
        kernel.close()
        self._kernel = None
        was_asked, self._kill_at = self._kill_at is not None, None
        never_ready = self.state == "starting"
        self.state = "starting"
        lost = self._requests.lose(self._waiting)
        if was_asked:
            self._start_at = now
            self._report_restart(lost)
            return
        self._report_death(kernel, code, lost, kernel.log_tail(), now, never_ready=never_ready)

    def _report_death(
        self,
        kernel: KernelProcess,
        code: int,
        lost: list[str],
        words: str,
        now: float,
        *,
        never_ready: bool = True,
    ) -> None:
        """Record how a kernel ended, and decide when the next one starts and of which kind."""
        self._start_at = now
        self._failed_starts = self._failed_starts + 1 if never_ready else 0
        if self._failed_starts >= FAILED_STARTS_THRESHOLD:
            lost = lost + self._requests.lose(())
            self._waiting.clear()
        self._event("died", code=code, lost=lost, words=words, never_ready=never_ready)
        self._count_generation()
        # The fallback needs no pause: another program is started than the one that failed.
        if never_ready and self._wanted == "auto":
            self._wanted = "shell"
        elif now - self._started < SHORT_LIFE_SECONDS:
            self._start_at = now + self._restart_pause
            self._restart_pause = min(max(0.1, self._restart_pause * 2), LONGEST_PAUSE_SECONDS)
        else:
            self._restart_pause = 0.0
