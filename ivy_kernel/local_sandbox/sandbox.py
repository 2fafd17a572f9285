"""The life of one sandbox: from provisioning to hibernation, expiry and terminate.

::

    (none) ──create──► provisioning ──► active ──idle──► hibernating ──► hibernated
                            │             │  ▲                              │
                            ▼             │  └────────── restoring ◄─create─┘
                          failed          ├──expiry──► hibernated, or archived without a snapshot
                                          └──terminate──► archived

These are Recoup's words. Ivy says ``none`` for all that has no processes, and ``provisioning``
for restoring. Files outlive everything; variables and processes outlive nothing but ``active``.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal

from ivy_kernel.local_sandbox.environment import sandbox_environment
from ivy_kernel.local_sandbox.errors import Refusal
from ivy_kernel.local_sandbox.host import Host
from ivy_kernel.local_sandbox.notebook import NotebookKernel
from ivy_kernel.local_sandbox.place import Place
from ivy_kernel.local_sandbox.processes import ChatProcesses
from ivy_kernel.local_sandbox.script import python_of
from ivy_kernel.local_sandbox.tools import Toolbox

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
_RETRY_SECONDS = "1"


class _ProvisioningError(Exception):
    """Provisioning failed; the text is for the user."""


class Sandbox:
    """The sandbox of one chat, through all of its lives.

    Parameters
    ----------
    place
        The chat's directories.
    host
        The surroundings.
    """

    def __init__(self, place: Place, host: Host) -> None:
        self._place = place
        self._host = host
        self._config = host.config
        self._clock = host.clock
        self.state: State = "none"
        self.version = 0
        self.sandbox_id = ""
        self._phase = ""
        self._ready_due = 0.0
        self._created: float | None = None
        self._activity: float | None = None
        self._ready: float | None = None
        self._error = ""
        self._box: Toolbox | None = None
        self._starting: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._serial = asyncio.Lock()
        self.calls_in_flight = 0

    # -- what it is ----------------------------------------------------------------------------

    @property
    def pids(self) -> list[int]:
        """Its living processes."""
        return self._box.processes.pids if self._box else []

    @property
    def _hibernates(self) -> float | None:
        after = self._config().hibernate_after_seconds
        if self.state != "active" or after is None or self._activity is None:
            return None
        # With a call in flight it is not idle at all.
        return (self._clock.now() if self.calls_in_flight else self._activity) + after

    @property
    def _expires(self) -> float | None:
        runtime = self._config().runtime_limit_seconds
        if self.state != "active" or runtime is None or self._ready is None:
            return None
        return self._ready + runtime

    @property
    def _has_failed(self) -> bool:
        """Whether it failed for good: its processes are gone, or about to be."""
        return self.state == "failed" and (self._box is None or self._ending is not None)

    def ivy_status(self) -> Json:
        """The answer of ``GET /v1/sandbox/{chatId}/status``."""
        self.advance()
        created = {} if self._created is None else {"createdAt": self._clock.iso(self._created)}
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
        hibernates, expires = self._hibernates, self._expires
        active = self.state == "active" and (
            expires is None or expires - self._clock.now() >= self._config().expiry_margin
        )
        return {
            "status": "active" if active else "no_sandbox",
            "hasSnapshot": self.state in ("hibernated", "restoring"),
            "lifecycleVersion": self.version,
            "lifecycle": {
                "serverTime": self._clock.epoch_ms(),
                "state": None if self.state == "none" else self.state,
                "lastActivityAt": self._epoch_ms(self._activity),
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
        self._watch()

    # -- create --------------------------------------------------------------------------------

    async def create(self, tunnel_url: str) -> tuple[int, Json]:
        """Start or resume it, unless that is done or under way: HTTP status and answer."""
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
        config = self._config()
        seconds = config.restore_seconds if resume else config.provision_seconds
        if not resume:
            self.sandbox_id = f"sbx_{secrets.token_hex(8)}"
            self._created = self._clock.now()
        self._error = ""
        self._phase = "compute"
        self._ready_due = self._clock.now() + sum(seconds.values())
        self.touch()
        self._become("restoring" if resume else "provisioning")
        self._starting = asyncio.create_task(self._start(dict(seconds)))
        return 200, self._progress()

    async def _start(self, seconds: dict[str, float]) -> None:
        try:
            due = self._clock.now() + seconds["compute"]
            self._place.make()
            box = self._box = self._new_box()
            await self._finish_phase("compute", due)
            self._phase = "mount"
            due = self._clock.now() + seconds["mount"]
            await box.processes.ready()
            await self._finish_phase("mount", due)
            if box.processes.lost.done():
                raise _ProvisioningError("its processes were killed while it was starting")
        except Exception as error:
            if not isinstance(error, _ProvisioningError):
                log.exception("provisioning failed")
            self._starting = None
            self._fail(str(error))
        else:
            self._starting = None
            self._ready = self._activity = self._clock.now()
            self._phase = "ready"
            self._become("active")

    async def _finish_phase(self, phase: str, due: float) -> None:
        await asyncio.sleep(max(0.0, due - self._clock.now()))
        if self._config().provision_fails_in == phase:
            raise _ProvisioningError(self._config().provision_error)

    def _new_box(self) -> Toolbox:
        config = self._config()
        environment = sandbox_environment(
            self.sandbox_id,
            self._place,
            python_of(config),
            self._host.secrets(),
            config.environment,
        )
        processes = ChatProcesses(self.sandbox_id, environment, self._host)
        processes.open()
        processes.lost.add_done_callback(lambda _: self._on_lost(processes))
        kernel = NotebookKernel(processes, self._place.directory, self._place.runtime)
        return Toolbox(self._place, processes, kernel, self._clock)

    def _on_lost(self, processes: ChatProcesses) -> None:
        """Its keeper was killed, by itself or by the user, not by us."""
        if self._box is None or self._box.processes is not processes or self._ending is not None:
            return
        if self.state == "active":
            self._fail("all processes of the sandbox were killed")

    # -- use -----------------------------------------------------------------------------------

    def touch(self) -> None:
        """Count this moment as activity."""
        self._activity = self._clock.now()
        self._watch()

    @asynccontextmanager
    async def in_use(self) -> AsyncIterator[Toolbox]:
        """The tools of the living sandbox, for one call.

        Raises
        ------
        Refusal
            503 while it starts, 502 when it failed, 404 when there is none.
        """
        self.advance()
        box = self._box
        if self.state in _STARTING:
            eta = self._progress()["etaSeconds"]
            text = f"the sandbox is still starting (phase {self._phase}, {eta} s to go)"
            raise Refusal(503, text, "SANDBOX_NOT_READY", _RETRY_SECONDS)
        if self._has_failed:
            text = f"the sandbox failed to start: {self._error}; create it again"
            raise Refusal(502, text, "SANDBOX_FAILED")
        if self.state != "active" or box is None:
            word = "" if self.state == "none" else f" (it is {self.state})"
            text = f"this chat has no running sandbox{word}; create it first"
            raise Refusal(404, text, "SANDBOX_NOT_FOUND")
        self.calls_in_flight += 1
        self.touch()
        try:
            if self._config().runner == "serial":
                async with self._serial:
                    yield box
            else:
                yield box
        finally:
            self.calls_in_flight -= 1
            if self.state == "active":
                self.touch()

    # -- the ends ------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Set the alarm for the next deadline."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        deadlines = [due for due in (self._hibernates, self._expires) if due is not None]
        if deadlines:
            delay = max(0.0, min(deadlines) - self._clock.now()) + 0.001
            self._alarm = asyncio.get_running_loop().call_later(delay, self.advance)

    def advance(self) -> None:
        """Do what is due: every read of the status does, and the alarm."""
        if self._ending is not None:
            return
        if self.state == "failed" and self._box is not None:
            # The lifecycle failed, the runtime did not.
            self.touch()
            self._become("active")
            return
        now, hibernates, expires = self._clock.now(), self._hibernates, self._expires
        if expires is not None and now >= expires:
            self._end_as("hibernated" if self._config().expiry_keeps_snapshot else "archived")
        elif hibernates is not None and now >= hibernates:
            self._become("hibernating")
            self._ending = asyncio.create_task(self._hibernate())
        else:
            self._watch()

    def _fail(self, error: str) -> None:
        self._phase, self._error = "failed", error
        self._end_as("failed")

    def _end_as(self, final: State) -> None:
        """Be in the final state at once, and end what is left of the processes."""
        self._become(final)
        self._ending = asyncio.create_task(self._stop())

    async def _stop(self) -> None:
        try:
            await self._stop_processes()
        finally:
            self._ending = None

    async def _hibernate(self) -> None:
        due = self._clock.now() + self._config().hibernating_seconds
        final: State = "failed" if self._config().hibernation_fails else "hibernated"
        try:
            if final == "hibernated":
                await self._stop_processes()
            await asyncio.sleep(max(0.0, due - self._clock.now()))
            self._become(final)
        finally:
            self._ending = None

    async def _ended(self) -> None:
        """Wait until no end is under way."""
        while (ending := self._ending) is not None:
            await asyncio.wait([ending])

    async def _stop_processes(self) -> None:
        box, self._box = self._box, None
        if box is not None:
            # In this order: calls in flight hear that their process is gone, not that the
            # kernel's channels are closed.
            await box.processes.close()
            await box.kernel.close()
            await asyncio.to_thread(self._place.clear)

    async def terminate(self) -> bool:
        """End it, with all of its processes; returns whether there was one."""
        await self._ended()
        starting, self._starting = self._starting, None
        if starting is not None:
            starting.cancel()
            with suppress(asyncio.CancelledError):
                await starting
        if self.state in ("none", "archived"):
            return starting is not None
        self._ready = self._activity = None
        self._end_as("archived")
        await self._ended()
        return True

    async def close(self) -> None:
        """Stop everything, because the server ends."""
        if self._starting is not None:
            self._starting.cancel()
        if self._alarm is not None:
            self._alarm.cancel()
        await self._ended()
        await self._stop_processes()
