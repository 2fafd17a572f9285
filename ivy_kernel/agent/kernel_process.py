"""A kernel process: the interface that all kinds share, and the built-in shell's own kind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .background import BACKGROUND_TYPE
from .start import BOOT
from .wire import to_json

if TYPE_CHECKING:
    from collections.abc import Callable

    MessageHandler = Callable[[str, bytes, bytes, bytes, bytes, Sequence[Any]], None]
    """Takes channel, header, parent header, metadata and content (JSON bytes) and the buffers."""


LOG_TAIL_BYTES = 2000
STAT_BYTES = 1024

SILENT_PROGRAMS = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver")
"""In the command lines of processes that libraries start and that print nothing, for ever."""


def archive_path() -> str:
    """Return the archive that this code came in; absolute, as cells run in another directory."""
    return str(Path(sys.argv[0]).resolve())


def _is_silent(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True
    return any(name in command for name in SILENT_PROGRAMS)


PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of processes whose own has ended, as checkpoints of a kernel are.

    The first process of many sandboxes leaves them as zombies, one for each checkpoint.
    """
    try:
        import ctypes  # takes long

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    except Exception:  # no Linux, or no ctypes: they stay what they were
        return


def reap_orphans(own: int) -> None:
    """Let go of adopted processes that have ended; not of the one of this id."""
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    try:
        found = os.waitid(os.P_ALL, 0, options)
        while found is not None and found.si_pid not in (0, own):
            os.waitpid(found.si_pid, os.WNOHANG)
            found = os.waitid(os.P_ALL, 0, options)
    except OSError:  # there is none
        return


def usable_directory(wanted: Sequence[str]) -> str:
    """Return the first of these directories that can be worked in, or else the root.

    The one that an agent was started in may have been removed since, and a home may be closed.
    """
    for directory in wanted:
        try:
            if directory and Path(directory).is_dir() and os.access(directory, os.X_OK):
                return directory
        except OSError:  # a directory above it may not be searched
            continue
    return "/"


class KernelProcess:
    """A kernel process and the agent's connection to it. Used by the supervisor alone.

    Parameters
    ----------
    directory
        The agent's private directory.
    working_directory
        Where cells run.
    number
        How many kernels have been started in this agent, this one included.
    on_message
        Called with every message that the kernel sends.
    on_ready
        Called once, when the kernel can take requests, with what is known about it.
    on_probed
        Called when the kernel has answered a :meth:`probe`, with whether a cell runs all the same.
    """

    kind = ""

    def __init__(
        self,
        directory: str,
        working_directory: str,
        number: int,
        on_message: MessageHandler,
        on_ready: Callable[[dict[str, Any]], None],
        on_probed: Callable[[bool], None],
    ) -> None:
        self.directory = directory
        self.working_directory = working_directory
        self.number = number
        self.on_message = on_message
        self.on_ready = on_ready
        self.on_probed = on_probed
        self.process: subprocess.Popen[bytes] | None = None
        self._background_count = 0
        self._spoke_lately = False
        self._log_path = Path(directory) / "kernel.log"

    def start(self) -> None:
        """Start the process and connect to it. Called once."""
        raise NotImplementedError

    def file_descriptors(self) -> list[int]:
        """Return the descriptors that the daemon's loop should watch for reading."""
        raise NotImplementedError

    def send(self, channel: str, parts: Sequence[bytes], buffers: Sequence[bytes]) -> None:
        """Send a message: header, parent header, metadata, content as JSON bytes, and buffers."""
        raise NotImplementedError

    def probe(self) -> None:
        """Ask the kernel something that it answers when it is done with all earlier requests."""
        raise NotImplementedError

    def receive(self, now: float, *, may_read_output: bool = True) -> bool:
        """Hand on what the kernel has sent; return whether there was anything.

        What it publishes stays with it, where that holds it up safely, unless it may be read.
        """
        raise NotImplementedError

    def next_time(self) -> float | None:
        """Return when :meth:`receive` should be called although nothing has come."""
        raise NotImplementedError

    def ask_to_stop(self) -> None:
        """Ask the kernel to end by itself; the supervisor kills it when it takes too long."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the agent's end of the connection."""
        raise NotImplementedError

    def launch(self, arguments: list[str], pass_fds: Sequence[int] = ()) -> None:
        """Start the process in a session of its own, so that a signal reaches its children too."""
        # With this set ipykernel ends itself when its parent, the agent, is gone.
        environment = dict(os.environ, JPY_PARENT_PID=str(os.getpid()))
        adopt_orphans()
        # Else debugpy writes a warning about Python's frozen modules to stderr.
        environment.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
        with self._log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=usable_directory([self.working_directory, os.environ.get("HOME", "")]),
                env=environment,
                pass_fds=pass_fds,
                start_new_session=True,
            )

    def exit_code(self) -> int | None:
        """Return the exit code, negative for a signal, or ``None`` while the process lives."""
        if self.process is None:
            return None
        reap_orphans(self.process.pid)
        return self.process.poll()

    def signal(self, number: int) -> None:
        """Signal the kernel's process group."""
        if self.process is None:
            return
        try:
            os.killpg(self.process.pid, number)
        except OSError:
            return  # it has ended by itself

    def interrupt(self) -> None:
        """Send SIGINT to the process group, as Ctrl-C does in a terminal."""
        self.signal(signal.SIGINT)

    def ignores_interrupts(self) -> bool:
        """Whether an interrupt would be lost at the moment; false where that is unknown.

        It would not be while the process waits in ``system()`` (POSIX) for a child: then it ignores
        SIGINT and SIGQUIT, both, because they are for the child, which is in its process group.
        """
        # ipykernel ignores SIGINT between cells, and for a moment after it has said "busy".
        if self.process is None:
            return False
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return False
        for line in status.splitlines():
            if line.startswith("SigIgn:"):
                ignored = int(line.split()[1], 16)
                waits_for_child = ignored >> (signal.SIGQUIT - 1) & 1
                return bool(ignored >> (signal.SIGINT - 1) & 1) and not waits_for_child
        return False

    def kill(self) -> None:
        """Kill the process group at once, and wait for the process."""
        self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def take_background(self, content: dict[str, Any]) -> None:
        """Take what the kernel tells of its threads, tasks and timers."""
        self._background_count = int(content["count"])

    def count_background(self) -> int:
        """Return how much may still speak: threads, tasks, timers and child processes.

        After the last has ended one is counted once more, for its last words may be on their way.
        """
        found = self._background_count + self._count_processes()
        spoke_lately, self._spoke_lately = self._spoke_lately, found > 0
        return found or int(spoke_lately)

    def _count_processes(self) -> int:
        """Return how many processes live that the kernel has left behind; 0 where unknown.

        Those of its session, which keep it when their parent ends, and all that descend from it.
        """
        if self.process is None:
            return 0
        parents: dict[int, int] = {}
        ours = {self.process.pid}
        # For every cell: pathlib would take three times as long.
        try:
            names = [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - time
        except OSError:
            return 0
        for name in names:
            try:
                file = os.open(f"/proc/{name}/stat", os.O_RDONLY)
            except OSError:
                continue  # it has just ended
            try:
                text = os.read(file, STAT_BYTES)
            except OSError:
                continue
            finally:
                os.close(file)
            state, parent, _, session = text.rsplit(b")", 1)[1].split(None, 4)[:4]
            if state not in (b"Z", b"X"):
                pid = int(name)
                parents[pid] = int(parent)
                if int(session) == self.process.pid:
                    ours.add(pid)
        newest = ours
        while newest:
            newest = {
                pid for pid, parent in parents.items() if parent in newest and pid not in ours
            }
            ours |= newest
        return sum(not _is_silent(pid) for pid in ours - {self.process.pid})

    @staticmethod
    def report_unreadable(error: Exception) -> None:
        """Note a message that cannot be read in the agent's log; it is left out."""
        sys.stderr.write(f"a message of the kernel cannot be read: {error!r}\n")
        sys.stderr.flush()

    def log_tail(self) -> str:
        """Return the end of what the process wrote to its log, for the report of its death."""
        try:
            with self._log_path.open("rb") as log:
                log.seek(0, os.SEEK_END)
                log.seek(max(0, log.tell() - LOG_TAIL_BYTES))
                return log.read().decode("utf-8", "replace")
        except OSError:
            return ""


READ_BYTES = 1 << 18
PROBE_ID = "ivy-agent-probe"


class ShellKernel(KernelProcess):
    """Speaks JSON lines: the same messages, without signatures and buffers."""

    kind = "built-in shell"

    def start(self) -> None:
        """Start the shell from the archive that this code came in."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._socket = ours
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self._last_parent: dict[str, Any] = {}
        with theirs:
            descriptor = theirs.fileno()
            flags = ["-S"] if sys.flags.no_site else []
            program = [*flags, "-c", BOOT, archive_path(), "shell", str(descriptor)]
            self.launch(program, [descriptor])

    def file_descriptors(self) -> list[int]:
        """Return the agent's end of the socket pair."""
        return [self._socket.fileno()]

    def send(self, channel: str, parts: Sequence[bytes], buffers: Sequence[bytes]) -> None:
        """Queue one line; the shell has no use for buffers."""
        header, _, metadata, content = parts
        line = b'{"c":"%s","h":%s,"m":%s,"d":%s}\n'
        line %= (channel.encode(), header, metadata, content)
        self._outgoing += line
        self._push()

    def probe(self) -> None:
        """Send a ``kernel_info_request`` of our own."""
        header = to_json({"msg_id": PROBE_ID, "msg_type": "kernel_info_request"})
        self.send("shell", [header, b"{}", b"{}", b"{}"], [])

    def receive(self, now: float, *, may_read_output: bool = True) -> bool:
        """Hand on the whole lines that have come."""
        self._push()
        got = False
        while True:
            try:
                data = self._socket.recv(READ_BYTES)
            except OSError:
                break
            if not data:
                break
            got = True
            self._incoming += data
        *lines, rest = self._incoming.split(b"\n")
        self._incoming = rest
        for line in lines:
            try:
                self._take(json.loads(line.decode("utf-8")))
            except Exception as error:  # it comes from what cells can forge
                self.report_unreadable(error)
        return got

    def next_time(self) -> float | None:
        """Return 0 while a request waits to be written, else ``None``."""
        return 0.0 if self._outgoing else None

    def ask_to_stop(self) -> None:
        """Close for writing, which the shell reads as the end."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return  # it has ended by itself

    def close(self) -> None:
        """Close the agent's end."""
        self._socket.close()

    def _take(self, message: dict[str, Any]) -> None:
        if "ready" in message:
            self.on_ready(message["ready"])
            return
        is_of_probe = message["p"].get("msg_id") == PROBE_ID
        if is_of_probe and (message["c"] == "shell" or message["h"]["msg_type"] == "status"):
            if message["c"] == "shell":
                self.on_probed(False)
            return
        if is_of_probe:  # a thread speaks, and the kernel gives that to the last request
            message["p"] = self._last_parent
        elif message["p"]:
            self._last_parent = message["p"]
        if message["h"]["msg_type"] == BACKGROUND_TYPE:
            self.take_background(message["d"])
            return
        header, parent = to_json(message["h"]), to_json(message["p"])
        metadata, content = to_json(message.get("m", {})), to_json(message["d"])
        self.on_message(message["c"], header, parent, metadata, content, [])

    def _push(self) -> None:
        try:
            while self._outgoing:
                sent = self._socket.send(self._outgoing[:READ_BYTES])
                del self._outgoing[:sent]
        except OSError:
            return  # full for now, or dead, which the supervisor sees by itself
