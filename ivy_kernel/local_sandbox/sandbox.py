"""The life of one sandbox: from provisioning to hibernation, expiry and terminate.

::

    (none) ──create──► provisioning ──► active ──idle──► hibernating ──► hibernated
                            │             │  ▲                              │
                            ▼             │  └────────── restoring ◄─create─┘
                          failed          ├──expiry──► hibernated, or archived without a snapshot
                                          └──terminate──► archived

These are Recoup's words. Ivy says ``none`` for all states without processes, and
``provisioning`` for restoring. Files outlive every state; variables and processes live only in
``active``.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal

from ivy_kernel.local_sandbox.config import Phase
from ivy_kernel.local_sandbox.environment import ServerContext, sandbox_environment
from ivy_kernel.local_sandbox.notebook import NotebookKernel
from ivy_kernel.local_sandbox.processes import ChatProcesses
from ivy_kernel.local_sandbox.results import ApiError
from ivy_kernel.local_sandbox.script import python_of, runner_of
from ivy_kernel.local_sandbox.tools import Toolbox
from ivy_kernel.local_sandbox.workspace import ChatPaths

Json = dict[str, Any]

log = logging.getLogger("ivy_kernel.local_sandbox")

State = Literal[
    "none",
    "provisioning",
    "active",
    "hibernating",
    "hibernated",
    "restoring",
    "archived",
    "failed",
]

_STARTING = ("provisioning", "restoring")
_STILL_NAMED = ("hibernating", "hibernated", "restoring", "archived")
_RETRY_SECONDS = "1"


class _ProvisioningError(Exception):
    """Provisioning failed; the text is for the user."""


class Sandbox:
    """The sandbox of one chat, with its state machine.

    Parameters
    ----------
    paths
        The chat's directories.
    context
        The server's shared state.
    """

    def __init__(self, paths: ChatPaths, context: ServerContext) -> None:
        self._paths = paths
        self._context = context
        self._clock = context.clock
        self.state: State = "none"
        self.version = 0
        self.sandbox_id = ""
        self._phase = ""
        self._ready_due = 0.0
        self._created_at: float | None = None
        self._last_activity_at: float | None = None
        self._ready_at: float | None = None
        self._error = ""
        self._box: Toolbox | None = None
        self._start_task: asyncio.Task[None] | None = None
        self._end_task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._serial = asyncio.Lock()
        self.calls_in_flight = 0

    # -- state and status ----------------------------------------------------------------------
    @property
    def pids(self) -> list[int]:
        """Its living processes."""
        return self._box.processes.pids if self._box else []

    @property
    def _hibernates_at(self) -> float | None:
        after = self._context.config.hibernate_after_seconds
        if self.state != "active" or after is None or self._last_activity_at is None:
            return None
        # A call in flight counts as activity, however long it takes.
        return (self._clock.now() if self.calls_in_flight else self._last_activity_at) + after

    @property
    def _expires_at(self) -> float | None:
        runtime = self._context.config.runtime_limit_seconds
        if self.state != "active" or runtime is None or self._ready_at is None:
            return None
        return self._ready_at + runtime

    @property
    def _has_failed(self) -> bool:
        """True when it failed for good: its processes are gone, or about to be."""
        return self.state == "failed" and (self._box is None or self._end_task is not None)

    def ivy_status(self) -> Json:
        """The answer of ``GET /v1/sandbox/{chatId}/status``."""
        self.advance()
        created = (
            {} if self._created_at is None else {"createdAt": self._clock.iso(self._created_at)}
        )
        if self.state in _STARTING:
            return {**self._progress(), **created}
        if self.state == "active":
            return {"status": "active", "phase": "ready", **created}
        if self._has_failed:
            return {"status": "failed", "phase": "failed", "errorMessage": self._error, **created}
        return {"status": "none"}

    def recoup_status(self) -> Json:
        """The answer of Recoup's ``GET /api/sandbox/status``."""
        self.advance()
        hibernates, expires = self._hibernates_at, self._expires_at
        config = self._context.config
        active = self.state == "active" and (
            expires is None or expires - self._clock.now() >= config.expiry_margin
        )
        # Its present server keeps the sandbox's name, which is all that the word is made of.
        named = config.recoup_server == "current" and self.state in _STILL_NAMED
        return {
            "status": "active" if active or named else "no_sandbox",
            "hasSnapshot": self.state in ("hibernated", "restoring"),
            "lifecycleVersion": self.version,
            "lifecycle": {
                "serverTime": self._clock.epoch_ms(),
                "state": None if self.state == "none" else self.state,
                "lastActivityAt": self._epoch_ms(self._last_activity_at),
                "hibernateAfter": self._epoch_ms(hibernates),
                "sandboxExpiresAt": self._epoch_ms(expires),
            },
        }

    def _epoch_ms(self, moment: float | None) -> int | None:
        return None if moment is None else self._clock.epoch_ms(moment)

    def _progress(self) -> Json:
        remaining = max(1, math.ceil(self._ready_due - self._clock.now()))
        return {"status": "provisioning", "phase": self._phase, "etaSeconds": remaining}

    def _become(self, state: State) -> None:
        self.state = state
        self.version += 1
        self._set_timer()

    # -- create --------------------------------------------------------------------------------
    async def create(self, tunnel_url: str) -> tuple[int, Json]:
        """Start or resume it, unless it runs or is starting; returns HTTP status and answer."""
        self.advance()
        await self._ended()
        if self.state in _STARTING:
            return 202, {**self._progress(), "success": True, "deduped": True}
        if self.state == "active":
            self.touch()
            return 200, {
                "status": "ready",
                "phase": "ready",
                "success": True,
                "deduped": True,
                "sandboxId": self.sandbox_id,
                "tunnelUrl": tunnel_url,
            }
        resume = self.state == "hibernated"
        config = self._context.config
        seconds = config.restore_seconds if resume else config.provision_seconds
        if not resume:
            self.sandbox_id = f"sbx_{secrets.token_hex(8)}"
            self._created_at = self._clock.now()
        self._error = ""
        self._phase = "compute"
        self._ready_due = self._clock.now() + sum(seconds.values())
        self.touch()
        self._become("restoring" if resume else "provisioning")
        self._start_task = asyncio.create_task(self._start(seconds))
        return 200, self._progress()

    async def _start(self, seconds: dict[Phase, float]) -> None:
        try:
            due = self._clock.now() + seconds["compute"]
            self._paths.make()
            box = self._box = self._new_box()
            await self._finish_phase("compute", due)
            self._phase = "mount"
            due = self._clock.now() + seconds["mount"]
            await box.processes.ready()
            await self._finish_phase("mount", due)
            # `_on_lost` leaves it to us, for the sandbox was not active yet.
            if box.processes.lost.done():
                raise _ProvisioningError("its processes were killed while it was starting")
        except Exception as error:
            if not isinstance(error, _ProvisioningError):
                log.exception("provisioning failed")
            self._start_task = None
            self._fail(str(error))
        else:
            self._start_task = None
            self._ready_at = self._last_activity_at = self._clock.now()
            self._phase = "ready"
            self._become("active")

    async def _finish_phase(self, phase: Phase, due: float) -> None:
        await asyncio.sleep(max(0.0, due - self._clock.now()))
        if self._context.config.provision_fails_in == phase:
            raise _ProvisioningError(self._context.config.provision_error)

    def _new_box(self) -> Toolbox:
        config = self._context.config
        environment = sandbox_environment(
            self.sandbox_id,
            self._paths,
            python_of(config),
            self._context.secrets,
            config.environment,
        )
        processes = ChatProcesses(self.sandbox_id, environment, self._context)
        processes.open()
        processes.lost.add_done_callback(lambda _: self._on_lost(processes))
        kernel = NotebookKernel(processes, self._paths.directory, self._paths.runtime)
        return Toolbox(self._paths, processes, kernel, self._clock)

    def _on_lost(self, processes: ChatProcesses) -> None:
        """Fail, because the process reaper was killed by code of the sandbox or by the user."""
        # Not when we are ending it, and not for the processes of an earlier life.
        if self._box is None or self._box.processes is not processes or self._end_task is not None:
            return
        if self.state == "active":
            self._fail("all processes of the sandbox were killed")

    # -- use -----------------------------------------------------------------------------------
    def touch(self) -> None:
        """Count this moment as activity."""
        self._last_activity_at = self._clock.now()
        self._set_timer()

    @asynccontextmanager
    async def in_use(self) -> AsyncIterator[Toolbox]:
        """The tools of the living sandbox, for one call.

        Raises
        ------
        ApiError
            503 while it starts, 502 when it failed, 404 when there is none.
        """
        self.advance()
        box = self._box
        if self.state in _STARTING:
            eta = self._progress()["etaSeconds"]
            text = f"the sandbox is still starting (phase {self._phase}, {eta} s to go)"
            raise ApiError(503, text, "SANDBOX_NOT_READY", _RETRY_SECONDS)
        if self._has_failed:
            text = f"the sandbox failed to start: {self._error}; create it again"
            raise ApiError(502, text, "SANDBOX_FAILED")
        if self.state != "active" or box is None:
            word = "" if self.state == "none" else f" (it is {self.state})"
            text = f"this chat has no running sandbox{word}; create it first"
            raise ApiError(404, text, "SANDBOX_NOT_FOUND")
        self.calls_in_flight += 1
        self.touch()
        try:
            if runner_of(self._context.config).one_call_at_a_time:
                async with self._serial:
                    yield box
            else:
                yield box
        finally:
            self.calls_in_flight -= 1
            if self.state == "active":
                self.touch()

    # -- the ends ------------------------------------------------------------------------------
    def _set_timer(self) -> None:
        """Set the timer for the next deadline."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadlines = [due for due in (self._hibernates_at, self._expires_at) if due is not None]
        if deadlines:
            # A millisecond later, so that the deadline has surely passed when the timer fires.
            delay = max(0.0, min(deadlines) - self._clock.now()) + 0.001
            self._timer = asyncio.get_running_loop().call_later(delay, self.advance)

    def advance(self) -> None:
        """Do what is due; called by every read of the status, and by the timer."""
        if self._end_task is not None:
            return
        if self.state == "failed" and self._box is not None:
            # Hibernation failed: the runtime is still there, and a read makes it active again.
            self.touch()
            self._become("active")
            return
        now, hibernates, expires = self._clock.now(), self._hibernates_at, self._expires_at
        if expires is not None and now >= expires:
            self._end_as("hibernated" if self._context.config.expiry_keeps_snapshot else "archived")
        elif hibernates is not None and now >= hibernates:
            self._become("hibernating")
            self._end_task = asyncio.create_task(self._hibernate())
        else:
            self._set_timer()

    def _fail(self, error: str) -> None:
        self._phase, self._error = "failed", error
        self._end_as("failed")

    def _end_as(self, final: State) -> None:
        """Enter the final state at once, and end what is left of the processes."""
        self._become(final)
        self._end_task = asyncio.create_task(self._stop())

    async def _stop(self) -> None:
        try:
            await self._stop_processes()
        finally:
            self._end_task = None

    async def _hibernate(self) -> None:
        due = self._clock.now() + self._context.config.hibernating_seconds
        final: State = "failed" if self._context.config.hibernation_fails else "hibernated"
        try:
            if final == "hibernated":
                await self._stop_processes()
            await asyncio.sleep(max(0.0, due - self._clock.now()))
            self._become(final)
        finally:
            self._end_task = None

    async def _ended(self) -> None:
        """Wait until no end is under way."""
        while (ending := self._end_task) is not None:
            await asyncio.wait([ending])

    async def _stop_processes(self) -> None:
        box, self._box = self._box, None
        if box is not None:
            # In this order: calls in flight fail because their process is gone, and not because
            # the kernel's channels are closed.
            await box.processes.close()
            await box.kernel.close()
            await asyncio.to_thread(self._paths.clear)

    async def terminate(self) -> bool:
        """End it, with all of its processes; returns whether it was there."""
        await self._ended()
        # A start under way is not waited for.
        starting, self._start_task = self._start_task, None
        if starting is not None:
            starting.cancel()
            with suppress(asyncio.CancelledError):
                await starting
        if self.state in ("none", "archived"):
            return starting is not None
        self._ready_at = self._last_activity_at = None
        self._end_as("archived")
        await self._ended()
        return True

    async def close(self) -> None:
        """Stop everything at the end of the server."""
        if self._start_task is not None:
            self._start_task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        await self._ended()
        await self._stop_processes()
