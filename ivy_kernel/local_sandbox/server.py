"""The server: it listens, says where, and stops when idle, told to, or left alone by its guard."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import secrets
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from tornado import httpserver, iostream, netutil, web

from ivy_kernel._version import __version__
from ivy_kernel.local_sandbox import handlers
from ivy_kernel.local_sandbox.access import Chats
from ivy_kernel.local_sandbox.config import Config
from ivy_kernel.local_sandbox.credentials import Credentials, RateLimit
from ivy_kernel.local_sandbox.handlers import SessionStatusHandler
from ivy_kernel.local_sandbox.host import Clock, Host
from ivy_kernel.local_sandbox.simulation.control import ControlHandler
from ivy_kernel.local_sandbox.simulation.counters import Counters
from ivy_kernel.local_sandbox.supervisor import (
    SWEEP_SIGNAL,
    remove_runtime_file,
    write_runtime_file,
)

log = logging.getLogger("ivy_kernel.local_sandbox")

TOKEN_VARIABLE = "IVY_LOCAL_SANDBOX_TOKEN"  # noqa: S105 - the name of a variable, not a token
EXIT_ROOT_IN_USE = 3

_LARGEST_MESSAGE_BYTES = 201 << 20
_GUARD_GONE_SECONDS = 8.0
_BUSY_SHARE = 0.01


class RootInUseError(Exception):
    """Another server works in this root directory."""


@dataclass(frozen=True)
class Options:
    """How the server is started.

    Parameters
    ----------
    port
        The port on 127.0.0.1; 0 for a free one.
    root
        The directory below which each chat has its own.
    runtime_file
        Where to write address and token; ``None`` for nowhere.
    root_wait_seconds
        How long to wait for another server in the same root directory to end.
    idle_exit_seconds
        Stop after so long without a request and without a busy process; 0 for never.
    control
        Whether ``/_control`` is there.
    config
        The settings to start with.
    guard_pid
        The entry process, which stands for the server; 0 for none.
    guard_descriptor
        Its end tells that the guard is gone; -1 for none.
    """

    port: int
    root: Path
    runtime_file: Path | None
    root_wait_seconds: float
    idle_exit_seconds: float
    control: bool
    config: Config
    guard_pid: int = 0
    guard_descriptor: int = -1


class _PromptHTTPServer(httpserver.HTTPServer):
    """An HTTP server whose answers do not wait for more to send (Nagle's algorithm off)."""

    def handle_stream(self, stream: iostream.IOStream, address: tuple[str, int]) -> None:
        """Take a new connection (tornado calls this)."""
        stream.set_nodelay(True)
        super().handle_stream(stream, address)


class Server:
    """One local sandbox server.

    Parameters
    ----------
    options
        How it is started.
    token
        The token of its owner.
    """

    def __init__(self, options: Options, token: str) -> None:
        self._options = options
        self._token = token
        self._stop = asyncio.Event()
        counters = Counters()
        clock = Clock(lambda: self.parts.config.skew_ms)
        credentials = Credentials(token, lambda: self.parts.config.tokens)
        self.parts = handlers.Parts(
            config=options.config,
            clock=clock,
            credentials=credentials,
            rate_limit=RateLimit(lambda: self.parts.config, clock),
            chats=Chats(
                Host(
                    root=options.root,
                    config=lambda: self.parts.config,
                    clock=clock,
                    secrets=lambda: credentials.tokens,
                    note_spawn=counters.spawn,
                    sweep_orphans=self._sweep_orphans,
                )
            ),
            counters=counters,
            asked_at=clock.now(),
        )

    def _sweep_orphans(self) -> None:
        if self._options.guard_pid and os.getppid() == self._options.guard_pid:
            os.kill(self._options.guard_pid, SWEEP_SIGNAL)

    def _application(self) -> web.Application:
        parts = {"parts": self.parts}
        chat = r"/api/v1/sandbox/([^/]+)"
        routes: list[Any] = [
            (r"/api/v1/sandbox/create", handlers.CreateHandler, parts),
            (rf"{chat}/status", handlers.StatusHandler, parts),
            (rf"{chat}/tool/([^/]+)", handlers.ToolHandler, parts),
            (rf"{chat}/exec", handlers.ExecHandler, parts),
            (rf"{chat}/terminate", handlers.TerminateHandler, parts),
            (rf"{chat}/manifest", handlers.ManifestHandler, parts),
            (r"/api/sandbox/status", SessionStatusHandler, parts),
        ]
        if self._options.control:
            routes.append((r"(?:/api)?/_control", ControlHandler, parts))
        return web.Application(
            routes,
            default_handler_class=handlers.UnknownHandler,
            default_handler_args=parts,
            clock=self.parts.clock,
            log_function=lambda _: None,  # our own log leaves out queries
        )

    async def run(self) -> None:
        """Serve until something says stop; then leave nothing running."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        self._watch_guard()
        server = _PromptHTTPServer(
            self._application(),
            max_buffer_size=_LARGEST_MESSAGE_BYTES,
            max_body_size=_LARGEST_MESSAGE_BYTES,
        )
        sockets = netutil.bind_sockets(self._options.port, "127.0.0.1")
        server.add_sockets(sockets)
        self.parts.url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}/api"
        idle = asyncio.ensure_future(self._stop_when_idle())
        try:
            self._announce()
            await self._stop.wait()
        finally:
            idle.cancel()
            server.stop()
            closing = [sandbox.close() for sandbox in self.parts.chats.sandboxes]
            for result in await asyncio.gather(*closing, return_exceptions=True):
                if isinstance(result, Exception):
                    log.error("a sandbox did not end in order", exc_info=result)
            if self._options.runtime_file is not None:
                remove_runtime_file(self._options.runtime_file, self._pid)
            # Those whose calls ended with the sandbox get their answer.
            until = time.monotonic() + 1.0
            while self.parts.open_requests and time.monotonic() < until:  # noqa: ASYNC110 - once, at the end
                await asyncio.sleep(0.01)
            await server.close_all_connections()

    @property
    def _pid(self) -> int:
        return self._options.guard_pid or os.getpid()

    def _announce(self) -> None:
        url, pid = self.parts.url, self._pid
        if self._options.runtime_file is not None:
            write_runtime_file(
                self._options.runtime_file,
                {
                    "url": url,
                    "token": self._token,
                    "pid": pid,
                    "version": __version__,
                    "started": self.parts.clock.iso(),
                },
            )
        print(json.dumps({"url": url, "pid": pid}), flush=True)  # noqa: T201 - for who started it

    def _watch_guard(self) -> None:
        """Stop when the entry process is gone, even if the event loop is stuck."""
        if self._options.guard_descriptor < 0:
            return

        def wait() -> None:
            os.read(self._options.guard_descriptor, 1)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(_GUARD_GONE_SECONDS)
            # The keepers see the connection close, and kill what is below them.
            os._exit(1)

        threading.Thread(target=wait, name="guard-watch", daemon=True).start()

    async def _stop_when_idle(self) -> None:
        limit = self._options.idle_exit_seconds
        if not limit:
            return
        interval = min(30.0, max(0.05, limit / 4))
        spent = 0.0
        while True:
            await asyncio.sleep(interval)
            pids = [pid for sandbox in self.parts.chats.sandboxes for pid in sandbox.pids]
            now_spent = await asyncio.to_thread(_processor_seconds, pids)
            busy = now_spent - spent > _BUSY_SHARE * interval
            spent = now_spent
            now = self.parts.clock.now()
            if self.parts.open_requests or busy:
                self.parts.asked_at = now
            elif now - self.parts.asked_at >= limit:
                log.info("nothing to do for %g s: stopping", limit)
                self._stop.set()
                return


def _processor_seconds(pids: list[int]) -> float:
    total = 0.0
    for pid in pids:
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


def _locked(root: Path, wait_seconds: float) -> int:
    """A descriptor that holds the lock of the root directory.

    Raises
    ------
    RootInUseError
        Another server holds it.
    """
    descriptor = os.open(root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + wait_seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            # One that is just ending is worth waiting for.
            if time.monotonic() > until:
                os.close(descriptor)
                raise RootInUseError(
                    f"another local sandbox works in {root}: use it, or choose another --root"
                ) from None
            time.sleep(0.05)
        else:
            return descriptor


def serve(options: Options) -> int:
    """Run a server to its end; returns the exit code."""
    # Out of the environment at once: what is started later inherits it.
    token = os.environ.pop(TOKEN_VARIABLE, "") or secrets.token_urlsafe(32)
    try:
        lock = _locked(options.root, options.root_wait_seconds)
    except RootInUseError as error:
        print(error, file=sys.stderr)  # noqa: T201 - the command's own message
        return EXIT_ROOT_IN_USE

    async def run() -> None:
        await Server(options, token).run()

    try:
        asyncio.run(run())
    finally:
        os.close(lock)
    return 0
