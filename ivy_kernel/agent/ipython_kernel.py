"""A real ipykernel, spoken to with pyzmq alone over sockets in the private directory."""

from __future__ import annotations

import hmac
import importlib
import importlib.util
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .background import BACKGROUND_TYPE
from .kernel_process import KernelProcess, archive_path
from .start import WITHOUT_WORKING_DIRECTORY
from .wire import to_json

# -- requests that ipykernel overlooks

FIRST_WAKE_UP_SECONDS = 0.3
LAST_WAKE_UP_SECONDS = 20.0
"""Longer pauses are not tried: what has waited so long waits behind a cell, and is not lost."""


class WakeUpWatchdog:
    """Notices requests that the kernel says nothing to, and tells when to wake it.

    ipykernel 7.0 to 7.3 may leave a request in its shell socket until a client connects to that
    (https://github.com/ipython/ipykernel/issues/1554). Kernels take requests in order, so that a
    message about one tells that the earlier ones were noticed, too.
    """

    def __init__(self) -> None:
        self._ids: list[bytes] = []
        self._pause = 0.0
        self._next = 0.0

    def sent(self, message_id: str, now: float) -> None:
        """Watch a request that was sent now."""
        # With its quotes, so that "ping-1" is not found in "ping-10".
        self._ids.append(b'"%s"' % message_id.encode())
        self._pause = FIRST_WAKE_UP_SECONDS
        self._next = now + self._pause

    def heard(self, parent: bytes, now: float) -> None:
        """Stop watching the request in this parent header (its JSON), and those before it."""
        for index, message_id in enumerate(self._ids):
            if message_id in parent:
                del self._ids[: index + 1]
                self._pause = FIRST_WAKE_UP_SECONDS
                self._next = now + self._pause
                return

    def is_due(self, now: float) -> bool:
        """Whether the kernel is to be woken now; each time it is, the next pause is longer.

        A request that waits behind a long cell looks the same, so it is given up after some times.
        """
        if not self._ids or now < self._next:
            return False
        self._pause *= 2
        self._next = now + self._pause
        if self._pause > LAST_WAKE_UP_SECONDS:
            self._ids.clear()
        return True

    def next_time(self) -> float | None:
        """Return when to look again; ``None`` when no request is watched."""
        return self._next if self._ids else None


# -- the kernel

CHANNELS = ("shell", "iopub", "stdin", "control")
PING_PREFIX = "ivy-agent-"
FIRST_PING_SECONDS = 0.15
"""No ipykernel is up sooner. Pings that come too early wait in the socket and are answered."""
PING_EVERY_SECONDS = 0.1
MESSAGES_AT_ONCE = 500
"""From one channel, before the others have their turn: a flood of output hides no reply."""

OUTPUT_WAITING = 1000
"""So many published messages may wait here to be read."""

LAUNCHER = """
import sys
import zmq
from ipykernel import iostream, kernelapp
try:
    import ctypes
    ctypes.CDLL(None).prctl(1, 9)
except Exception:
    pass
iostream.OutStream.flush_interval = 0.03
try:
    import fcntl, struct, termios, threading, time
    flush = iostream.OutStream.flush
    def flush_children(self):
        pipe = getattr(self, "_fid", None)
        if pipe is not None and threading.current_thread() is threading.main_thread():
            for _ in range(50):
                waiting = fcntl.ioctl(pipe, termios.FIONREAD, bytes(4))
                if not struct.unpack("i", waiting)[0]:
                    break
                time.sleep(0.001)
        flush(self)
    iostream.OutStream.flush = flush_children
except Exception:
    pass
try:
    import functools
    from ipykernel.ipkernel import IPythonKernel as Kernel
    execute, info = Kernel.do_execute, Kernel.kernel_info
    streams = {}
    def mend(name):
        try:
            getattr(sys, name).flush()
        except Exception as error:
            setattr(sys, name, streams[name])
            sys.stderr.write(
                "[sys.%s could not be flushed after this cell (%s: %s), which ipykernel must do; "
                "it is the notebook's own again.]\\n" % (name, type(error).__name__, error))
    @functools.wraps(execute)
    async def do_execute(self, *arguments, **options):
        if not streams:
            streams.update(stderr=sys.stderr, stdout=sys.stdout)
        self.ivy_runs = True
        try:
            return await execute(self, *arguments, **options)
        finally:
            self.ivy_runs = False
            for name in streams:
                mend(name)
    Kernel.ivy_runs = False
    Kernel.do_execute = do_execute
    Kernel.kernel_info = property(lambda self: dict(info.fget(self), ivy_runs=self.ivy_runs))
except Exception:
    pass
try:
    from zmq.utils.garbage import gc
    gc.start()
except Exception:
    pass
class App(kernelapp.IPKernelApp):
    def init_iopub(self, context):
        super().init_iopub(context)
        self.iopub_thread.socket.setsockopt(zmq.XPUB_NODROP, 1)
    def init_kernel(self):
        super().init_kernel()
        try:
            sys.path.append(ARCHIVE)
            from ivy_agent.background import pack_any_text, watch
            sys.path.remove(ARCHIVE)
            watch(self.kernel)
            pack_any_text(self.session)
        except Exception as error:
            print("background work is not watched:", repr(error), file=sys.stderr)
        try:
            sys.path.append(ARCHIVE)
            from ivy_agent.extension import attach
            sys.path.remove(ARCHIVE)
            attach(self.kernel)
        except Exception as error:
            print("there is no work beside cells:", repr(error), file=sys.stderr)
App.launch_instance()
"""
"""Starts ipykernel so that it dies with the agent (``PR_SET_PDEATHSIG``), shows prints after 30 ms
rather than 200, and waits instead of dropping a message when a thousand are waiting. What a child
process has written is taken before a flush, so that it does not come after the cell's end. The
thread that pyzmq needs for large messages is there from the beginning; else it would count as one
of the user's, which might print at any time. IPython puts the working directory on the path again,
once all this has been imported.

After each cell ipykernel flushes ``sys.stdout`` and ``sys.stderr``. Where a cell has put something
there that cannot be flushed, such as a closed file, it would neither reply nor say "idle": so the
kernel's own streams are put back. The answer to a ping says whether a cell runs, because some cells
(jupyter_ui_poll's) take requests while they wait."""


def _type_of(header: bytes) -> str:
    return str(json.loads(header.decode("utf-8")).get("msg_type"))


def is_importable() -> bool:
    """Whether this interpreter has what a real ipykernel needs."""
    try:
        return all(importlib.util.find_spec(name) for name in ("ipykernel", "zmq"))
    except (ImportError, ValueError):
        return False


class IPythonKernel(KernelProcess):
    """Speaks Jupyter's wire protocol (message spec, "The wire protocol")."""

    kind = "ipykernel"

    def start(self) -> None:
        """Start the process and connect to its four channels."""
        self._zmq: Any = importlib.import_module("zmq")
        self._key = os.urandom(16).hex().encode()
        self._sockets: dict[str, Any] = {}
        self._watchdog = WakeUpWatchdog()
        self._waker: Any = None
        self._pings = 0
        self._probe_id = b"none"
        self._last_parent = b"{}"
        self._is_ready = False
        self._is_heard = False
        self._info: dict[str, Any] = {}
        prefix = f"{self.directory}/k{self.number}"
        self._shell_address = f"ipc://{prefix}-{CHANNELS.index('shell') + 1}"
        program = f"{WITHOUT_WORKING_DIRECTORY}ARCHIVE = {archive_path()!r}\n{LAUNCHER}"
        self.launch(["-c", program, "-f", self._write_connection_file(prefix)])
        self._context = self._zmq.Context()
        # One identity for all channels: ipykernel asks for input on stdin, addressed to the client
        # whose request came on shell.
        identity = os.urandom(8).hex().encode()
        for port, channel in enumerate(CHANNELS, 1):
            self._sockets[channel] = self._connect(channel, f"ipc://{prefix}-{port}", identity)
        self._next_ping = time.monotonic() + FIRST_PING_SECONDS

    def file_descriptors(self) -> list[int]:
        """Return the edge-triggered descriptors of the four sockets."""
        return [socket.getsockopt(self._zmq.FD) for socket in self._sockets.values()]

    def send(self, channel: str, parts: Sequence[bytes], buffers: Sequence[bytes]) -> None:
        """Sign and send a message."""
        signature = hmac.new(self._key, digestmod="sha256")
        for part in parts:
            signature.update(part)
        head = [b"<IDS|MSG>", signature.hexdigest().encode()]
        self._sockets[channel].send_multipart([*head, *parts, *buffers])
        if channel == "shell":
            self._watchdog.sent(json.loads(parts[0].decode("utf-8"))["msg_id"], time.monotonic())

    def receive(self, now: float, *, may_read_output: bool = True) -> bool:
        """Hand on what has come; while the kernel starts, ask whether it is there."""
        if not self._is_ready and now >= self._next_ping:
            self._ping(now)
        if self._watchdog.is_due(now):
            self._wake()
        got = False
        # Output before replies: a reply may end its cell, and the output should be in the log then.
        for channel in ("iopub", "stdin", "shell", "control"):
            if channel == "iopub" and not may_read_output:
                continue
            for _ in range(MESSAGES_AT_ONCE):
                try:
                    frames = self._sockets[channel].recv_multipart(self._zmq.NOBLOCK)
                except self._zmq.Again:
                    break
                got = True
                try:
                    self._take(channel, frames)
                except Exception as error:  # it comes from what cells can forge
                    self.report_unreadable(error)
        return got

    def next_time(self) -> float | None:
        """Return the time of the next ping, or when the kernel should have said something."""
        times = [self._watchdog.next_time(), None if self._is_ready else self._next_ping]
        return min((time for time in times if time is not None), default=None)

    def ask_to_stop(self) -> None:
        """Send a ``shutdown_request`` on the control channel."""
        parts = [to_json(self._header("shutdown_request")), b"{}", b"{}", b'{"restart":false}']
        self.send("control", parts, [])

    def close(self) -> None:
        """Close the sockets without lingering."""
        for socket in self._sockets.values():
            socket.close(0)
        self._sockets.clear()
        if self._waker is not None:
            self._waker.close(0)
        self._context.term()

    def _write_connection_file(self, prefix: str) -> str:
        connection: dict[str, Any] = {
            "transport": "ipc",
            "ip": prefix,
            "key": self._key.decode(),
            "signature_scheme": "hmac-sha256",
            "hb_port": len(CHANNELS) + 1,
        }
        for port, channel in enumerate(CHANNELS, 1):
            connection[channel + "_port"] = port
        path = Path(prefix + ".json")
        path.touch(0o600)
        path.write_bytes(to_json(connection))
        return str(path)

    def _connect(self, channel: str, address: str, identity: bytes) -> Any:
        zmq = self._zmq
        socket = self._context.socket(zmq.SUB if channel == "iopub" else zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        # Milliseconds: the kernel binds its sockets only once it is up.
        socket.setsockopt(zmq.RECONNECT_IVL, 10)
        # Requests never wait. What is not read of the output holds up the kernel, which drops none.
        socket.setsockopt(zmq.RCVHWM, OUTPUT_WAITING if channel == "iopub" else 0)
        socket.setsockopt(zmq.SNDHWM, 0)
        if channel == "iopub":
            socket.setsockopt(zmq.SUBSCRIBE, b"")
        else:
            socket.setsockopt(zmq.IDENTITY, identity)
        socket.connect(address)
        return socket

    @property
    def _last_ping_id(self) -> bytes:
        return b"%s%d" % (PING_PREFIX.encode(), self._pings)

    def _header(self, msg_type: str) -> dict[str, Any]:
        self._pings += 1
        return {
            "msg_id": self._last_ping_id.decode(),
            "msg_type": msg_type,
            "username": "ivy",
            "session": "ivy-agent",
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "version": "5.3",
        }

    def _ping(self, now: float) -> None:
        self._next_ping = now + PING_EVERY_SECONDS
        header = to_json(self._header("kernel_info_request"))
        self.send("shell", [header, b"{}", b"{}", b"{}"], [])

    def probe(self) -> None:
        """Send a ping: it is answered after all earlier requests."""
        self._ping(time.monotonic())
        self._probe_id = self._last_ping_id

    def _wake(self) -> None:
        """Connect to the shell socket once more, which makes ipykernel read what has come."""
        if self._waker is not None:
            self._waker.close(0)
        self._waker = self._context.socket(self._zmq.DEALER)
        self._waker.setsockopt(self._zmq.LINGER, 0)
        self._waker.connect(self._shell_address)

    def _take(self, channel: str, frames: list[bytes]) -> None:
        start = frames.index(b"<IDS|MSG>")
        header, parent, metadata, content = frames[start + 2 : start + 6]
        if channel in ("shell", "iopub"):
            self._watchdog.heard(parent, time.monotonic())
        is_of_ping = PING_PREFIX.encode() in parent
        if is_of_ping and (channel in ("shell", "control") or _type_of(header) == "status"):
            self._take_answer_to_ping(channel, parent, content)
            return
        if is_of_ping:
            # ipykernel gives what a thread says to the request that it took last.
            parent = self._last_parent
        elif channel == "iopub" and b'"msg_id"' in parent:
            self._last_parent = parent
        if BACKGROUND_TYPE.encode() in header:
            self.take_background(json.loads(content.decode("utf-8")))
        # The welcome tells a new subscriber that it is subscribed; it belongs to no request.
        elif b"iopub_welcome" not in header:
            self.on_message(channel, header, parent, metadata, content, frames[start + 6 :])

    def _take_answer_to_ping(self, channel: str, parent: bytes, content: bytes) -> None:
        """Report that the kernel is ready once it replies, and what it publishes arrives."""
        if channel == "shell":
            self._info = json.loads(content.decode("utf-8"))
            if b'"%s"' % self._probe_id in parent:
                self.on_probed(bool(self._info.get("ivy_runs")))
        elif channel == "iopub":
            self._is_heard = True
        if self._info and self._is_heard and not self._is_ready:
            self._is_ready = True
            self.on_ready(self._info)
