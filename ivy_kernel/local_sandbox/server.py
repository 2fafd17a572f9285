"""The server: listens, announces its address, and stops when idle, told to, or orphaned."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from tornado import httpserver, iostream, netutil, web

from ivy_kernel._version import __version__
from ivy_kernel.local_sandbox import handlers
from ivy_kernel.local_sandbox.access import Chats, Credentials, RateLimit
from ivy_kernel.local_sandbox.config import Config
from ivy_kernel.local_sandbox.environment import Observer, ServerContext
from ivy_kernel.local_sandbox.supervisor import (
    SWEEP_SIGNAL,
    remove_runtime_file,
    write_runtime_file,
)

log = logging.getLogger("ivy_kernel.local_sandbox")

TOKEN_VARIABLE = "IVY_LOCAL_SANDBOX_TOKEN"  # noqa: S105 - the name of a variable, not a token
EXIT_ROOT_IN_USE = 3

# Above the default of the setting max_request_bytes, so that our own error answers a body that is
# a little too large.
_MAX_MESSAGE_BYTES = 201 << 20
# Longer than an orderly stop takes.
_STOP_LIMIT_SECONDS = 8.0
# A process below this share of one processor counts as idle: a waiting kernel wakes up at times.
_BUSY_SHARE = 0.01


class RootInUseError(Exception):
    """Another server uses this root directory."""


@dataclass(frozen=True)
class Options:
    """Options of one server, from its command line.

    Parameters
    ----------
    port
        The port on 127.0.0.1; 0 for a free one.
    root
        The directory below which each chat has its own.
    runtime_file
        The file for address and token; ``None`` for none.
    root_wait_seconds
        Time to wait for another server in the same root directory to end.
    idle_exit_seconds
        Stop after so long without a request and without a busy process; 0 for never.
    control
        Whether ``/_control`` is served.
    config
        The settings to start with.
    observer
        Is told what the server does.
    supervisor_pid
        The entry process, which stands for the server; 0 for none.
    supervisor_descriptor
        The reading end of a pipe that closes when the supervisor is gone; -1 for none.
    """

    port: int
    root: Path
    runtime_file: Path | None
    root_wait_seconds: float
    idle_exit_seconds: float
    control: bool
    config: Config
    observer: Observer
    supervisor_pid: int = 0
    supervisor_descriptor: int = -1


class _NoDelayHTTPServer(httpserver.HTTPServer):
    """An HTTP server with Nagle's algorithm off: answers do not wait for more to send."""

    def handle_stream(self, stream: iostream.IOStream, address: tuple[str, int]) -> None:
        """Take a new connection (tornado calls this)."""
        stream.set_nodelay(True)
        super().handle_stream(stream, address)


class Server:
    """One local sandbox server.

    Parameters
    ----------
    options
        Its options.
    token
        The token of the local owner.
    """

    def __init__(self, options: Options, token: str) -> None:
        self._options = options
        self._token = token
        self._stop = asyncio.Event()
        context = ServerContext(
            options.root, token, options.config, self._sweep_orphans, options.observer
        )
        self.state = handlers.ServerState(
            context=context,
            credentials=Credentials(context),
            rate_limit=RateLimit(context),
            chats=Chats(context),
            last_request_at=context.clock.now(),
        )

    def _sweep_orphans(self) -> None:
        # The pid may be another process's by now, unless it is still our parent.
        if self._options.supervisor_pid and os.getppid() == self._options.supervisor_pid:
            os.kill(self._options.supervisor_pid, SWEEP_SIGNAL)

    def _application(self) -> web.Application:
        state = {"state": self.state}
        chat = r"/api/v1/sandbox/([^/]+)"
        routes: list[Any] = [
            (r"/api/v1/sandbox/create", handlers.CreateHandler, state),
            (rf"{chat}/status", handlers.StatusHandler, state),
            (rf"{chat}/tool/([^/]+)", handlers.ToolHandler, state),
            (rf"{chat}/exec", handlers.ExecHandler, state),
            (rf"{chat}/terminate", handlers.TerminateHandler, state),
            (rf"{chat}/manifest", handlers.ManifestHandler, state),
            (r"/api/sandbox/status", handlers.SessionStatusHandler, state),
        ]
        if self._options.control:
            from ivy_kernel.local_sandbox.simulation.control import ControlHandler

            routes.append((r"(?:/api)?/_control", ControlHandler, state))
        return web.Application(
            routes,
            default_handler_class=handlers.UnknownHandler,
            default_handler_args=state,
            clock=self.state.context.clock,
            log_function=lambda _: None,  # our own log leaves out queries
        )

    async def run(self) -> None:
        """Serve until told to stop, then end every sandbox."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        self._watch_supervisor()
        server = _NoDelayHTTPServer(
            self._application(),
            max_buffer_size=_MAX_MESSAGE_BYTES,
            max_body_size=_MAX_MESSAGE_BYTES,
        )
        sockets = netutil.bind_sockets(self._options.port, "127.0.0.1")
        server.add_sockets(sockets)
        socket_path = ""
        if self._options.runtime_file is not None:
            private = bind_private_socket(self._options.runtime_file)
            server.add_socket(private)
            socket_path = private.getsockname()
        self.state.url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}/api"
        idle = asyncio.ensure_future(self._stop_when_idle())
        try:
            self._announce(socket_path)
            await self._stop.wait()
        finally:
            idle.cancel()
            server.stop()
            closing = [sandbox.close() for sandbox in self.state.chats.sandboxes]
            for result in await asyncio.gather(*closing, return_exceptions=True):
                if isinstance(result, Exception):
                    log.error("a sandbox did not end in order", exc_info=result)
            if self._options.runtime_file is not None:
                remove_runtime_file(self._options.runtime_file, self._pid)
            # Calls that ended with their sandbox shall still be answered.
            until = time.monotonic() + 1.0
            while self.state.open_requests and time.monotonic() < until:  # noqa: ASYNC110 - once, at the end
                await asyncio.sleep(0.01)
            await server.close_all_connections()

    @property
    def _pid(self) -> int:
        return self._options.supervisor_pid or os.getpid()

    def _announce(self, socket_path: str) -> None:
        url, pid = self.state.url, self._pid
        if self._options.runtime_file is not None:
            write_runtime_file(
                self._options.runtime_file,
                {
                    "url": url,
                    "token": self._token,
                    "socket": socket_path,
                    "pid": pid,
                    "version": __version__,
                    "started": self.state.context.clock.iso(),
                },
            )
        print(json.dumps({"url": url, "pid": pid}), flush=True)  # noqa: T201 - for the parent process

    def _watch_supervisor(self) -> None:
        """Stop when the entry process is gone, even if the event loop is stuck."""
        if self._options.supervisor_descriptor < 0:
            return

        def wait() -> None:
            os.read(self._options.supervisor_descriptor, 1)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(_STOP_LIMIT_SECONDS)
            # The process reapers see their connection close, and kill what is below them.
            os._exit(1)

        threading.Thread(target=wait, name="supervisor-watch", daemon=True).start()

    async def _stop_when_idle(self) -> None:
        limit = self._options.idle_exit_seconds
        if not limit:
            return
        # Four looks within the limit, but none more often than needed to see processor time.
        interval = min(30.0, max(0.05, limit / 4))
        spent = 0.0
        while True:
            await asyncio.sleep(interval)
            pids = [pid for sandbox in self.state.chats.sandboxes for pid in sandbox.pids]
            now_spent = await asyncio.to_thread(_processor_seconds, pids)
            busy = now_spent - spent > _BUSY_SHARE * interval
            spent = now_spent
            now = self.state.context.clock.now()
            if self.state.open_requests or busy:
                self.state.last_request_at = now
            elif now - self.state.last_request_at >= limit:
                log.info("nothing to do for %g s: stopping", limit)
                self._stop.set()
                return


_LONGEST_SOCKET_PATH_BYTES = 100


def bind_private_socket(runtime_file: Path) -> socket.socket:
    """Bind a unix socket that only this user can reach: beside the runtime file where that works.

    Its clients know by it that they speak to a server of their own: the port on 127.0.0.1 may be
    another user's once the server has ended.
    """
    path = runtime_file.with_suffix(".sock")
    if len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH_BYTES:
        path.unlink(missing_ok=True)  # of a server that was killed
        with contextlib.suppress(OSError):  # some file systems have no sockets
            return _bound(path)
    return _bound(Path(tempfile.mkdtemp(prefix="ivy-")) / "local.sock")


def _bound(path: Path) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)  # its mode from the beginning on
    try:
        bound.bind(str(path))
        bound.listen(128)
        bound.setblocking(False)
    except OSError:
        bound.close()
        raise
    finally:
        os.umask(mask)
    return bound


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
    """Lock the root directory; returns the descriptor that holds the lock.

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
            # A server that is just ending frees the lock soon.
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
    # Out of the environment at once: processes that are started later would inherit it.
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
