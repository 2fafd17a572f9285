"""The daemon: its private directory, and the loop over socket, signals and lifetimes."""

from __future__ import annotations

import errno
import fcntl
import os
import selectors
import shutil
import signal
import socket
import stat
import sys
import time
from pathlib import Path
from typing import Any

from .service import Connection, Service
from .wire import REQUEST_LIMIT_BYTES

# -- the private directory
#
# Two locks: "lock" is held by the agent that serves the directory, for as long as it lives, and
# "start.lock" by a call that starts one. Both end with the process, however it ends.

MACHINE_LOCAL_BASES = ("/tmp", "/dev/shm")  # noqa: S108 - only searched, nothing is made there
LEFTOVER_AGE_SECONDS = 60.0
"""A directory without an agent is left alone for so long: one may be about to start in it."""


def lock_directory(directory: str, patience_seconds: float = 0.0) -> int | None:
    """Take the directory's lock for as long as the descriptor is open; ``None`` if it is taken.

    An agent that is ending holds it a little longer than it can be spoken to, hence the patience.
    """
    until = time.monotonic() + patience_seconds
    while True:
        lock = _lock(f"{directory}/lock")
        if lock is not None or time.monotonic() >= until:
            return lock
        time.sleep(0.02)


def remove_directory(directory: str) -> None:
    """Remove our own directory, unless the next agent is just being started there."""
    Path(directory, "s").unlink(missing_ok=True)
    starts = _lock(f"{directory}/start.lock")
    if starts is not None:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(starts)


def remove_leftovers(directory: str) -> None:
    """Remove the directories of this user's agents that were killed, beside our own.

    Only where no other machine sees the same directories: its agents' locks may not be seen here.
    """
    ours = Path(directory)
    if str(ours.parent) not in (*MACHINE_LOCAL_BASES, os.environ.get("XDG_RUNTIME_DIR")):
        return
    try:
        for path in ours.parent.glob(f".ivy-{os.getuid()}-*"):
            if path != ours and _is_leftover(path):
                _remove_if_dead(str(path))
    except OSError:
        return  # something has gone meanwhile, or may not be removed


def _is_leftover(path: Path) -> bool:
    state = path.lstat()
    is_ours = stat.S_ISDIR(state.st_mode) and state.st_uid == os.getuid()
    is_old = time.time() - state.st_mtime > LEFTOVER_AGE_SECONDS
    return is_ours and is_old and Path(path, "lock").exists()


def _remove_if_dead(directory: str) -> None:
    # First of all no start may launch an agent in a directory that is being removed.
    starts = _lock(f"{directory}/start.lock")
    if starts is None:
        return
    try:
        life = lock_directory(directory)
        if life is not None:
            shutil.rmtree(directory, ignore_errors=True)
            os.close(life)
    finally:
        os.close(starts)


class ServedDirectory:
    """The private directory of one agent, which is made again when something has removed it.

    Cells, and programs that clean up ``/tmp``, remove files that they do not know. Without its
    socket an agent could not be found, though its kernel and the variables are there.

    Parameters
    ----------
    directory
        The directory.
    lock
        The descriptor that holds its lock.
    """

    def __init__(self, directory: str, lock: int) -> None:
        self.socket_path = Path(directory, "s")
        self.is_taken = False
        self._directory = directory
        self._lock = lock
        self._archive_path = Path(sys.argv[0])
        try:
            self._archive = self._archive_path.read_bytes()
        except OSError:  # not started from an archive
            self._archive = b""

    def keep_socket(self) -> None:
        """Note that the socket is there now."""
        self._socket_state = self.socket_path.stat()

    def has_socket(self) -> bool:
        """Whether the socket that clients find by its name is still this agent's."""
        try:
            return os.path.samestat(self._socket_state, self.socket_path.stat())
        except OSError:
            return False

    def make_again(self) -> bool:
        """Make what is missing, but the socket; false when it cannot be done now.

        Once another agent serves the directory, ``is_taken`` is true: this one is not found again.
        """
        try:
            Path(self._directory).mkdir(mode=0o700, parents=True, exist_ok=True)
            state = os.lstat(self._directory)
            if state.st_uid != os.getuid() or not stat.S_ISDIR(state.st_mode):
                return False
            starts = _lock(f"{self._directory}/start.lock")
        except OSError:
            return False
        if starts is None:  # another agent is being started there: the next look tells
            return False
        try:
            return self._take_lock() and self._restore_archive()
        except OSError:
            return False
        finally:
            os.close(starts)

    def _take_lock(self) -> bool:
        path = Path(self._directory, "lock")
        if path.exists() and os.path.samestat(os.fstat(self._lock), path.stat()):
            return True
        lock = _lock(str(path))
        if lock is None:
            self.is_taken = True
            return False
        os.close(self._lock)
        self._lock = lock
        return True

    def _restore_archive(self) -> bool:
        """Write the archive again, from which modules and the built-in shell are still loaded."""
        if self._archive and not self._archive_path.exists():
            unfinished = self._archive_path.with_suffix(f".{os.getpid()}")
            unfinished.write_bytes(self._archive)
            unfinished.replace(self._archive_path)
        return True


def _lock(path: str) -> int | None:
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return None
        raise
    return descriptor


# -- the loop

READ_BYTES = 1 << 18
LONGEST_SELECT_SECONDS = 0.5
"""Lifetimes, and zmq's edge-triggered descriptors, are looked at that often in any case."""

LOOK_SECONDS = 0.5
"""Interval of the looks for the socket; clients give an agent that is not found more time."""

UNCONFIRMED_LIFETIME_SECONDS = 60.0
"""Without a second request: the call that started the agent cannot be followed by another."""

IDLE_LIFETIME_SECONDS = 45 * 60.0
BUSY_LIFETIME_SECONDS = 24 * 3600.0
"""Without a request while something runs: longer, because a cell may be meant to run unwatched."""

LOCK_PATIENCE_SECONDS = 10.0
"""For an earlier agent to end; after that the next one gives way to it."""

REQUESTS_OF_A_START = 1
"""The call that starts an agent speaks to it once; a second request confirms the start."""

UMASK = 0o022
"""For what cells make. The agent's own files lie where only this user can enter."""


class ClientConnection(Connection):
    """One connection: a request with its length before it, then one answer, then the end."""

    def __init__(self, stream: socket.socket, selector: selectors.BaseSelector) -> None:
        self.stream = stream
        self._selector = selector
        self.is_answered = False
        self.is_closed = False
        self._incoming = bytearray()
        self._outgoing = memoryview(b"")

    def read(self) -> bytes | None:
        """Return the request once it is whole, ``None`` before; close when none can come."""
        try:
            data = self.stream.recv(READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            self.close()
            return None
        self._incoming += data
        length, newline, _ = bytes(self._incoming[:16]).partition(b"\n")
        if not newline:
            return None
        if not length.isdigit() or int(length) > REQUEST_LIMIT_BYTES:
            self.close()
            return None
        start = len(length) + 1
        if len(self._incoming) < start + int(length):
            return None
        payload = bytes(self._incoming[start : start + int(length)])
        self._incoming.clear()
        return payload

    def answer(self, frame: bytes) -> bool:
        """Send the answer, as much as goes at once; return false when the other side is gone."""
        self.is_answered = True
        self._outgoing = memoryview(frame)
        self.write()
        return not self.is_closed or not self._outgoing

    def write(self) -> None:
        """Send more of the answer; close when all is sent, or the other side is gone."""
        try:
            while self._outgoing:
                sent = self.stream.send(self._outgoing[:READ_BYTES])
                self._outgoing = self._outgoing[sent:]
        except BlockingIOError:
            return
        except OSError:
            pass  # the other side is gone, which _outgoing tells
        self.close()

    @property
    def wants_to_write(self) -> bool:
        """Whether part of the answer is not sent yet."""
        return bool(self._outgoing) and not self.is_closed

    def close(self) -> None:
        """Close the socket, once."""
        if not self.is_closed:
            self.is_closed = True
            # Before closing: the next socket may get the same descriptor.
            self._selector.unregister(self.stream)
            self.stream.close()


class Daemon:
    """Serves one private directory until it is told to end, or its lifetime is over.

    Parameters
    ----------
    directory
        The private directory.
    lock
        The descriptor that holds its lock.
    options
        As for :class:`Service`, ``idle_lifetime_seconds`` and ``unconfirmed_seconds``.
    """

    def __init__(self, directory: str, lock: int, options: dict[str, Any]) -> None:
        self._directory = directory
        self._served = ServedDirectory(directory, lock)
        self._looked_at = time.monotonic()
        self._idle_lifetime = float(options.get("idle_lifetime_seconds", IDLE_LIFETIME_SECONDS))
        self._unconfirmed_lifetime = float(
            options.get("unconfirmed_seconds", UNCONFIRMED_LIFETIME_SECONDS)
        )
        self._service = Service(directory, options, time.monotonic)
        self._selector = selectors.DefaultSelector()
        self._connections: set[ClientConnection] = set()
        self._kernel_files: set[int] = set()
        self._is_terminated = False
        self._has_removed_leftovers = False
        self._last_busy = 0.0

    def run(self) -> None:
        """Serve; at the end neither a process nor a file of the agent is left."""
        self._catch_signals()
        listener = self._listen()
        try:
            while not self._should_end():
                self._run_once()
                self._remove_leftovers_once()
                listener = self._still_found(listener)
        finally:
            listener.close()
            self._service.stop(time.sleep)
            for connection in self._connections:
                if connection.wants_to_write:
                    connection.stream.settimeout(1)
                    connection.write()
            if not self._served.is_taken:
                remove_directory(self._directory)

    def _still_found(self, listener: socket.socket) -> socket.socket:
        """Return the listener that clients find: another one after its socket was removed."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_SECONDS:
            return listener
        self._looked_at = now
        if self._served.has_socket() or not self._served.make_again():
            self._is_terminated = self._is_terminated or self._served.is_taken
            return listener
        self._selector.unregister(listener)
        listener.close()
        return self._listen()

    def _remove_leftovers_once(self) -> None:
        """Remove leftovers once the start is confirmed, so that the start does not wait for it."""
        if not self._has_removed_leftovers and self._service.request_count > REQUESTS_OF_A_START:
            self._has_removed_leftovers = True
            remove_leftovers(self._directory)

    def _listen(self) -> socket.socket:
        path = self._served.socket_path
        if path.exists():
            path.unlink()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        path.chmod(0o600)
        self._served.keep_socket()
        listener.listen(64)
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        return listener

    def _catch_signals(self) -> None:
        """Let a signal wake the loop: a kernel's death is noticed at once, SIGTERM ends it."""
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        # A handler that does nothing, because only signals with a handler write to the pipe.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._terminate)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # What ignores it passes that on: kernels could not be seen to wait for a child any more.
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
        self._selector.register(reader, selectors.EVENT_READ, lambda _: os.read(reader, 512))

    def _terminate(self, *_: object) -> None:
        self._is_terminated = True

    def _should_end(self) -> bool:
        service = self._service
        if self._is_terminated or service.is_stopping:
            # The answer to the request that ends the agent still has to leave.
            return not any(connection.wants_to_write for connection in self._connections)
        now = time.monotonic()
        if service.is_busy:
            self._last_busy = now
        silence = now - service.last_request_at
        if service.request_count <= REQUESTS_OF_A_START:
            return silence > self._unconfirmed_lifetime
        # A parked request is a client that listens.
        if any(not connection.is_answered for connection in self._connections):
            return False
        if service.is_busy:
            return silence > BUSY_LIFETIME_SECONDS
        lifetime = min(self._idle_lifetime, service.queue.lifetime_seconds)
        return now - max(service.last_request_at, self._last_busy) > lifetime

    def _run_once(self) -> None:
        next_time = self._service.next_time()
        pause = LONGEST_SELECT_SECONDS
        if next_time is not None:
            pause = min(pause, max(0.0, next_time - time.monotonic()))
        # The kernel's descriptors have no data: they wake the loop, and tick() reads them.
        for key, _ in self._selector.select(pause):
            if key.data is not None:
                key.data(key.fileobj)
        self._service.tick()
        self._watch_kernel()
        for connection in list(self._connections):
            self._watch(connection)

    def _watch_kernel(self) -> None:
        """Watch the descriptors of the kernel that runs now."""
        files = set(self._service.supervisor.file_descriptors())
        for file in self._kernel_files - files:
            self._unwatch(file)
        for file in files - self._kernel_files:
            self._unwatch(file)  # register() refuses what is watched already
            self._selector.register(file, selectors.EVENT_READ, None)
        self._kernel_files = files

    def _unwatch(self, file: int) -> None:
        try:
            self._selector.unregister(file)
        except (KeyError, ValueError):
            return  # closed already, or never watched

    def _accept(self, listener: socket.socket) -> None:
        try:
            stream, _ = listener.accept()
        except OSError:
            return
        stream.setblocking(False)
        connection = ClientConnection(stream, self._selector)
        self._connections.add(connection)
        self._selector.register(stream, selectors.EVENT_READ, lambda _: self._serve(connection))

    def _serve(self, connection: ClientConnection) -> None:
        if connection.wants_to_write:
            connection.write()
            return
        payload = connection.read()
        if connection.is_closed:
            self._service.drop(connection)
        elif payload is not None and not connection.is_answered:
            self._service.handle(connection, payload)

    def _watch(self, connection: ClientConnection) -> None:
        """Wait for a close while it is parked, and for room while an answer is being sent."""
        if connection.is_closed:
            self._connections.discard(connection)
        elif connection.wants_to_write:
            self._selector.modify(
                connection.stream, selectors.EVENT_WRITE, lambda _: self._serve(connection)
            )


def serve(directory: str, options: dict[str, Any]) -> None:
    """Go into the background and serve, unless another agent serves this directory already."""
    # The parent ends at once, so that the start program can wait for it and leaves no zombie.
    if os.fork():
        os._exit(0)
    os.umask(0o077)
    lock = lock_directory(directory, LOCK_PATIENCE_SECONDS)
    if lock is None:
        os._exit(0)
    # On the descriptors themselves, so that an interpreter that crashes can still be read about.
    log = os.open(f"{directory}/agent.log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.umask(UMASK)
    Daemon(directory, lock, options).run()
