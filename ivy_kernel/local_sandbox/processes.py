"""The processes of one chat, as the server sees them: started, awaited, and reliably ended."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ivy_kernel.local_sandbox.environment import ServerContext, without_secrets
from ivy_kernel.local_sandbox.process_reaper import (
    READY_ID,
    SANDBOX_ID_VARIABLE,
    descendants_of,
    kill_descendants,
    kill_marked,
    members_of,
    send_signal,
    session_of,
)

_CHUNK_BYTES = 1 << 20
# More than the default of 64 KiB. Linux allows a user 16,384 pages (64 MiB) for all pipes.
_PIPE_BYTES = 256 << 10


class PipeReader:
    """Collects the output of one pipe, up to a limit; the rest is dropped and counted.

    It reads on after the call has ended, so that a daemon that holds the pipe is neither blocked
    nor killed by its next line.

    Parameters
    ----------
    limit_bytes
        The number of bytes to keep; 0 keeps nothing.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._kept = bytearray()
        self._read_bytes = 0
        self._drained_at: int | None = None
        self._frozen = False
        self._waiting: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        if sys.platform == "linux":
            with suppress(OSError):
                # Fewer switches between writer and reader.
                fcntl.fcntl(self.write_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._loop.add_reader(self._read_end, self._on_readable)

    @property
    def closed(self) -> bool:
        """True when the end of the pipe was reached, or reading was stopped."""
        return self._read_end < 0

    def _on_readable(self) -> None:
        try:
            chunk = os.read(self._read_end, _CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self.close()
            return
        self._read_bytes += len(chunk)
        if not self._frozen:
            room = self._limit_bytes - len(self._kept)
            self._kept += chunk[: max(0, room)]
        self._wake()

    def _wake(self) -> None:
        reached = self._drained_at is not None and self._read_bytes >= self._drained_at
        if self._waiting and not self._waiting.done() and (reached or self.closed):
            self._waiting.set_result(None)

    async def drained(self) -> bytes:
        """All that had been written when the process ended; call it then.

        Text that a daemon writes later is read and dropped.
        """
        if not self.closed:
            # The end of the pipe may never come, for a daemon can hold it: FIONREAD tells how much
            # is in it now, and reading up to there is enough.
            buffer = fcntl.ioctl(self._read_end, termios.FIONREAD, b"\0\0\0\0")
            self._drained_at = self._read_bytes + struct.unpack("i", buffer)[0]
            if self._read_bytes < self._drained_at:
                self._waiting = self._loop.create_future()
                await self._waiting
        self._frozen = True
        kept = bytes(self._kept)
        dropped = max(0, self._read_bytes - len(kept))
        self._kept = bytearray()
        if dropped and self._limit_bytes:
            kept += f"\n... [output limit reached: {dropped} bytes more were dropped]\n".encode()
        return kept

    def close_write_end(self) -> None:
        """Close our copy of the writing end, when the process has its own."""
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def close(self) -> None:
        """Stop reading."""
        self.close_write_end()
        if self._read_end >= 0:
            self._loop.remove_reader(self._read_end)
            os.close(self._read_end)
            self._read_end = -1
        self._wake()


_PACKAGE_PARENT = Path(__file__).resolve().parents[2]
_REAPER_END_SECONDS = 6.0  # a little more than `kill_descendants` takes at most
_REAPER_EXIT_SECONDS = 1.0
# On Linux the reaper needs nothing but the standard library, and starts sooner without the rest.
_REAPER_FLAGS = ("-S",) if sys.platform == "linux" else ()
_MAX_PASSES = 50


def _file_in_memory() -> IO[bytes]:
    """A file without a name. In memory where that is possible: the disk may be full."""
    if hasattr(os, "memfd_create"):  # Linux
        return os.fdopen(os.memfd_create("ivy-request", os.MFD_CLOEXEC), "w+b")
    return tempfile.TemporaryFile()


class ReaperLostError(Exception):
    """The process reaper of the chat is gone, and with it all of the chat's processes."""


class NotStartedError(Exception):
    """The operating system refused to start a process."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.errno = number


@dataclass(frozen=True)
class FinishedProcess:
    """A process that has ended.

    Parameters
    ----------
    exit_code
        Its exit code; negative for the signal that killed it.
    stdout, stderr
        Its output, up to the limit.
    timed_out
        Whether it was killed because its time was up.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    timed_out: bool = False


class Process:
    """A process below the reaper."""

    def __init__(self, limit_bytes: int) -> None:
        self.pid = 0
        self._started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.stdout = PipeReader(limit_bytes)
        self.stderr = PipeReader(limit_bytes)

    async def started(self) -> None:
        """Wait until it runs."""
        # Shielded: a cancelled caller must not cancel the future, which tells the pid later.
        self.pid = await asyncio.shield(self._started)

    def kill_when_started(self) -> None:
        """Kill it as soon as it runs, because its caller was cancelled."""

        def kill(started: asyncio.Future[int]) -> None:
            if not started.cancelled() and started.exception() is None:
                self.pid = started.result()
                self.kill_tree()

        self._started.add_done_callback(kill)

    def on_message(self, message: Mapping[str, Any]) -> None:
        """Take a message of the reaper about this process."""
        if "pid" in message:
            _settle(self._started, message["pid"])
        elif "error" in message:
            self.fail(NotStartedError(message["errno"] or 0, message["error"]))
        else:
            _settle(self.ended, message["exit_code"])

    def fail(self, error: Exception) -> None:
        """Raise ``error`` in the callers that wait for its start or end."""
        for future in (self._started, self.ended):
            if not future.done():
                future.set_exception(error)
                future.exception()  # retrieved: without a waiter asyncio would log it

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the process and its process group."""
        if self.pid and not self.ended.done():
            with suppress(OSError):
                os.killpg(self.pid, number)

    def kill_tree(self) -> None:
        """Kill the process, its descendants, and all of its session.

        Daemons that left its tree and session end with the sandbox.
        """
        if not self.pid or self.ended.done():
            return
        # First all are stopped, so that none starts another while the others are killed.
        stopped: set[int] = set()
        for _ in range(_MAX_PASSES):
            tree = {self.pid, *descendants_of(self.pid)}
            sessions = {pid for pid in tree | stopped if session_of(pid) == pid}
            found = {*tree, *members_of(sessions)} - stopped
            if not found:
                break
            send_signal(signal.SIGSTOP, found)
            stopped |= found
        send_signal(signal.SIGKILL, stopped)


def _settle(future: asyncio.Future[int], value: int) -> None:
    if not future.done():
        future.set_result(value)


class ChatProcesses:
    """All processes of one chat, below one process reaper.

    Parameters
    ----------
    sandbox_id
        Marks the processes.
    environment
        Their environment variables, the marker among them.
    context
        The server's shared state.
    """

    def __init__(
        self, sandbox_id: str, environment: Mapping[str, str], context: ServerContext
    ) -> None:
        self._context = context
        self._sandbox_id = sandbox_id
        self.environment = dict(environment)
        self._processes: dict[int, Process] = {}
        self._next_id = 0
        self._reaper: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._received = b""
        self._ready = asyncio.Event()
        self._closing = False
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def open(self) -> None:
        """Start the process reaper."""
        ours, theirs = socket.socketpair()
        with theirs:
            plain = without_secrets(os.environ, self._context.secrets)
            environment = {**plain, SANDBOX_ID_VARIABLE: self._sandbox_id}
            module = "ivy_kernel.local_sandbox.process_reaper"
            self._reaper = subprocess.Popen(
                [sys.executable, *_REAPER_FLAGS, "-m", module, str(theirs.fileno())],
                # "-m" puts the working directory first on the import path: it must be ours.
                cwd=_PACKAGE_PARENT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        ours.setblocking(False)
        self._connection = ours
        asyncio.get_running_loop().add_reader(ours.fileno(), self._on_readable)

    async def ready(self) -> None:
        """Wait until processes can be started, or never will."""
        ready = asyncio.ensure_future(self._ready.wait())
        awaited: list[asyncio.Future[Any]] = [ready, self.lost]
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()

    @property
    def pids(self) -> list[int]:
        """The living processes of the chat, without the reaper."""
        return descendants_of(self._reaper.pid) if self._reaper else []

    def _on_readable(self) -> None:
        assert self._connection is not None  # noqa: S101 - for the type checker: it is being read
        try:
            received = self._connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._on_reaper_lost()
            return
        *lines, self._received = (self._received + received).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if message["id"] == READY_ID:
                self._ready.set()
            process = self._processes.get(message["id"])
            if process is not None:
                process.on_message(message)
                if "pid" not in message:  # it ended, or never started
                    del self._processes[message["id"]]

    def _on_reaper_lost(self) -> None:
        self._close_connection()
        for process in self._processes.values():
            process.fail(ReaperLostError("all processes of this sandbox have been killed"))
            process.stdout.close()
            process.stderr.close()
        self._processes.clear()
        if not self.lost.done():
            self.lost.set_result(None)

    def _close_connection(self) -> None:
        if self._connection is not None:
            asyncio.get_running_loop().remove_reader(self._connection.fileno())
            self._connection.close()
            self._connection = None

    async def start(
        self,
        argv: Sequence[str],
        directory: Path,
        *,
        output_limit_bytes: int,
        kill_descendants: bool = False,
        environment: Mapping[str, str | None] | None = None,
    ) -> Process:
        """Start a process in its own session, with ``/dev/null`` as its stdin.

        ``environment`` changes variables for it alone; ``None`` as a value removes one.

        Raises
        ------
        NotStartedError
            The operating system refused, for example because the arguments are too long.
        ReaperLostError
            The chat's processes have all ended.
        """
        if self._connection is None or self._closing:
            raise ReaperLostError("the processes of this sandbox have ended")
        began = time.perf_counter()
        process = Process(output_limit_bytes)
        self._next_id += 1
        self._processes[self._next_id] = process
        variables = {**self.environment, **(environment or {})}
        request = {
            "id": self._next_id,
            "argv": list(argv),
            "cwd": str(directory),
            "env": {name: value for name, value in variables.items() if value is not None},
            "kill_descendants": kill_descendants,
        }
        # In a file, for code and environment may be larger than a socket's buffer.
        with _file_in_memory() as file:
            file.write(json.dumps(request).encode())
            file.flush()
            file.seek(0)
            descriptors = [process.stdout.write_end, process.stderr.write_end, file.fileno()]
            try:
                await self._send_descriptors(descriptors)
            except OSError as error:
                self._on_reaper_lost()
                raise ReaperLostError("the processes of this sandbox have ended") from error
        process.stdout.close_write_end()
        process.stderr.close_write_end()
        try:
            await process.started()
        except (NotStartedError, ReaperLostError):
            process.stdout.close()
            process.stderr.close()
            raise
        except asyncio.CancelledError:
            # The request is on its way and cannot be taken back.
            process.kill_when_started()
            raise
        self._context.observer.on_spawn((time.perf_counter() - began) * 1000)
        return process

    async def _send_descriptors(self, descriptors: list[int]) -> None:
        while True:
            if self._connection is None:
                raise BrokenPipeError
            try:
                socket.send_fds(self._connection, [b"!"], descriptors)
            except BlockingIOError:
                # The socket's buffer is full: the reaper is busy with earlier requests.
                await asyncio.sleep(0.005)
            else:
                return

    async def run(
        self,
        argv: Sequence[str],
        directory: Path,
        *,
        timeout_seconds: float,
        output_limit_bytes: int,
        kill_descendants: bool = False,
        environment: Mapping[str, str | None] | None = None,
    ) -> FinishedProcess:
        """Run a process to its end, or until its time is up and its tree is killed."""
        process = await self.start(
            argv,
            directory,
            output_limit_bytes=output_limit_bytes,
            kill_descendants=kill_descendants,
            environment=environment,
        )
        timed_out = False
        try:
            done, _ = await asyncio.wait([process.ended], timeout=timeout_seconds)
            if not done:
                timed_out = True
                process.kill_tree()
            exit_code = await process.ended
        finally:
            # Also when the call is cancelled: nothing of it may go on.
            process.kill_tree()
        stdout, stderr = await process.stdout.drained(), await process.stderr.drained()
        return FinishedProcess(exit_code, stdout, stderr, timed_out)

    async def close(self) -> None:
        """End every process of the chat, daemons included."""
        reaper, self._reaper = self._reaper, None
        if reaper is None:
            return
        self._closing = True
        if self._connection is not None:
            # The reaper reads that no request will come, kills everything, and closes its own end.
            self._connection.shutdown(socket.SHUT_WR)
            await asyncio.wait([self.lost], timeout=_REAPER_END_SECONDS)
        self._on_reaper_lost()
        try:
            exit_code = reaper.wait(_REAPER_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            # A process of the chat may have stopped it (SIGSTOP).
            await asyncio.to_thread(kill_descendants, reaper.pid, reaping=False)
            reaper.kill()
            exit_code = reaper.wait()
        if exit_code != 0 or sys.platform != "linux":
            # The reaper did not end in order; a process of the chat may have killed it. Processes
            # with the marker are found by it; daemons without it are the supervisor's by now.
            await asyncio.to_thread(kill_marked, SANDBOX_ID_VARIABLE, self._sandbox_id)
            self._context.sweep_orphans()
