"""The outputs of a cell: its stdout and stderr, rich representations, and matplotlib figures."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import io
import json
import os
import queue
import select
import socket
import struct
import sys
import termios
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ..background import BACKGROUND_TYPE, RECHECK_SECONDS, BackgroundWork

if TYPE_CHECKING:
    Publish = Callable[[dict[str, Any]], None]


FLUSH_SECONDS = 0.03
FLUSH_CHARS = 1 << 18
SETTLE_SECONDS = 0.5
"""A child process that goes on printing must not keep its cell from ending."""


class TextStream(io.TextIOBase):
    """A ``sys.stdout`` whose text becomes ``stream`` messages, a few dozen a second at most."""

    def __init__(self, name: str, descriptor: int, agent: AgentSocket) -> None:
        self.name = name
        self._descriptor = descriptor
        self._agent = agent
        self._parts: list[str] = []
        self._size_chars = 0
        self._lock = threading.RLock()

    encoding = "utf-8"
    errors = "replace"

    def write(self, text: str) -> int:
        """Buffer some text; it is sent soon."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        with self._lock:
            self._parts.append(text)
            self._size_chars += len(text)
            if self._size_chars > FLUSH_CHARS:
                self.flush()
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:  # type: ignore[override]  # text, not bytes
        """Buffer several pieces of text."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Send what has been written."""
        with self._lock:
            text = "".join(self._parts)
            self._parts.clear()
            self._size_chars = 0
            if text:
                self._agent.publish("stream", {"name": self.name, "text": text})

    def isatty(self) -> bool:
        """Return false: nothing here understands a terminal's control codes."""
        return False

    def writable(self) -> bool:
        """Return true."""
        return True

    def fileno(self) -> int:
        """Return the descriptor for child processes; its text arrives by the pipe."""
        return self._descriptor


class PipeReader:
    """Sends what C code and child processes write to a descriptor as ``stream`` messages."""

    def __init__(self, name: str, descriptor: int, agent: AgentSocket) -> None:
        self._name = name
        self._agent = agent
        self._lock = threading.Lock()
        self._reader, writer = os.pipe()
        os.dup2(writer, descriptor)
        os.close(writer)
        threading.Thread(target=self._read, daemon=True).start()

    def settle(self) -> None:
        """Wait until what has been written so far is sent, so that it precedes the reply."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline:
            # With the lock: an empty pipe means nothing while its text is being sent.
            with self._lock:
                waiting = fcntl.ioctl(self._reader, termios.FIONREAD, b"\0\0\0\0")
                if struct.unpack("i", waiting)[0] == 0:
                    return
            time.sleep(0.001)

    def _read(self) -> None:
        while True:
            # Waits without the lock, and reads with it: see settle().
            select.select([self._reader], [], [])
            with self._lock:
                data = os.read(self._reader, 1 << 16)
                if not data:
                    return
                text = data.decode("utf-8", "replace")
                self._agent.publish("stream", {"name": self._name, "text": text})


class Capture:
    """Both streams, captured for the life of the process."""

    def __init__(self, agent: AgentSocket) -> None:
        self._pipes = [PipeReader("stdout", 1, agent), PipeReader("stderr", 2, agent)]
        self._streams = [TextStream("stdout", 1, agent), TextStream("stderr", 2, agent)]
        sys.stdout, sys.stderr = self._streams
        self._agent = agent
        self._work: BackgroundWork | None = None
        self._told = 0
        self._recheck_at = 0.0
        threading.Thread(target=self._flush_often, daemon=True).start()

    def flush(self) -> None:
        """Send everything that has been written up to now."""
        for stream in self._streams:
            stream.flush()
        for pipe in self._pipes:
            pipe.settle()

    def note_own_threads(self) -> None:
        """Take the threads that there are now for the shell's own. Called once, before cells."""
        self._work = BackgroundWork()

    def tell_background(self) -> None:
        """Tell the agent how many threads may still speak, if that has changed."""
        found = self._work.count() if self._work is not None else 0
        self._recheck_at = time.monotonic() + RECHECK_SECONDS
        if found != self._told:
            self._told = found
            self._agent.publish(BACKGROUND_TYPE, {"count": found})

    def _flush_often(self) -> None:
        while True:
            time.sleep(FLUSH_SECONDS)
            for stream in self._streams:
                with contextlib.suppress(OSError):
                    stream.flush()
            if self._told and time.monotonic() > self._recheck_at:
                with contextlib.suppress(OSError):
                    self.tell_background()


# -- matplotlib figures


BACKEND = f"module://{__package__}.figure_backend"
"""The value of ``MPLBACKEND``: the backend is a module that matplotlib imports by this name."""

_publishers: list[Publish] = []
"""The shell's publisher, once there is one: kept here, because matplotlib imports ``show``."""


def show(*_: Any, **__: Any) -> None:
    """Publish every open figure and close it, as ``plt.show()`` in a notebook does."""
    # Looked up, not imported: without a figure there is no reason to load matplotlib.
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None or not _publishers:
        return
    for number in pyplot.get_fignums():
        figure = pyplot.figure(number)
        picture = io.BytesIO()
        figure.savefig(picture, format="png", bbox_inches="tight")
        size = "x".join(str(int(x * figure.dpi)) for x in figure.get_size_inches())
        plain = f"<Figure size {size} with {len(figure.axes)} Axes>"
        _publishers[-1]({"image/png": picture.getvalue(), "text/plain": plain})
    pyplot.close("all")


def show_through(publish: Publish) -> None:
    """Publish figures with this function from now on. Called by the shell once."""
    _publishers.append(publish)


# -- rich representations

REPR_METHODS = (
    ("text/html", "_repr_html_"),
    ("text/markdown", "_repr_markdown_"),
    ("image/svg+xml", "_repr_svg_"),
    ("image/png", "_repr_png_"),
    ("image/jpeg", "_repr_jpeg_"),
    ("text/latex", "_repr_latex_"),
    ("application/json", "_repr_json_"),
    ("application/javascript", "_repr_javascript_"),
    ("application/pdf", "_repr_pdf_"),
)


def encoded(value: Any) -> Any:
    """Return bytes as base64 text, as messages want them; anything else as it is."""
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else value


def mime_bundle(value: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return an object's MIME bundle and metadata, from the methods that IPython also calls.

    A representation that raises is left out; the plain text stays.
    """
    data: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    # A class has the methods of its instances, and cannot be represented by them.
    if not isinstance(value, type):
        bundle = _call(getattr(value, "_repr_mimebundle_", None), include=None, exclude=None)
        if bundle is not None:
            data, metadata = _with_metadata(bundle, data, metadata)
        for mime_type, name in REPR_METHODS:
            if mime_type in data:
                continue
            representation = _call(getattr(value, name, None))
            if isinstance(representation, tuple):
                representation, metadata[mime_type] = representation
            if representation is not None:
                data[mime_type] = representation
    if "text/plain" not in data:
        data["text/plain"] = _plain(value)
    return {mime_type: encoded(item) for mime_type, item in data.items()}, metadata


def _with_metadata(
    bundle: Any, data: dict[str, Any], metadata: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    if isinstance(bundle, tuple):
        return dict(bundle[0]), dict(bundle[1])
    return (dict(bundle), metadata) if isinstance(bundle, dict) else (data, metadata)


def _call(method: Callable[..., Any] | None, **arguments: Any) -> Any:
    if not callable(method):
        return None
    try:
        return method(**arguments)
    except Exception:  # a user's broken method costs one representation, no more
        return None


def _plain(value: Any) -> str:
    try:
        return repr(value)
    except Exception as error:  # as above
        return f"<{type(value).__name__}: repr() raised {type(error).__name__}>"


# -- display()


class DisplayHandle:
    """The handle that ``display(…, display_id=True)`` returns."""

    def __init__(self, display: Display, display_id: str) -> None:
        self._display = display
        self.display_id = display_id

    def display(self, value: Any) -> None:
        """Show an object once more under this id."""
        self._display.display(value, display_id=self.display_id)

    def update(self, value: Any) -> None:
        """Replace what is shown under this id."""
        self._display.update_display(value, display_id=self.display_id)


class Display:
    """The functions that a cell finds as ``display``, ``update_display`` and ``clear_output``."""

    def __init__(self, agent: AgentSocket, flush: Callable[[], None]) -> None:
        self._agent = agent
        self._flush = flush

    def display(
        self,
        *values: Any,
        display_id: str | bool | None = None,
        raw: bool = False,
        metadata: dict[str, Any] | None = None,
        update: bool = False,
    ) -> DisplayHandle | None:
        """Show objects; ``raw`` means that they are MIME bundles already."""
        identity = uuid.uuid4().hex if display_id is True else display_id or None
        for value in values:
            data, found = (value, {}) if raw else mime_bundle(value)
            content: dict[str, Any] = {"data": data, "metadata": metadata or found}
            content["transient"] = {"display_id": identity} if identity else {}
            self._flush()
            self._agent.publish("update_display_data" if update else "display_data", content)
        return DisplayHandle(self, str(identity)) if identity else None

    def update_display(self, value: Any, *, display_id: str, **options: Any) -> None:
        """Replace what is shown under an id."""
        self.display(value, display_id=display_id, update=True, **options)

    def clear_output(self, wait: bool = False) -> None:
        """Clear the cell's output, at once or when the next output comes."""
        self._flush()
        self._agent.publish("clear_output", {"wait": bool(wait)})


# The agent's socket -------------------------------------------------------------------------------
READ_BYTES = 1 << 16
POLL_SECONDS = 0.1


class AgentSocket:
    """Sends Jupyter messages to the agent and receives requests from it.

    Parameters
    ----------
    descriptor
        The socket that the agent has handed over.
    """

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._lock = threading.RLock()
        self._requests: queue.Queue[dict[str, Any]] = queue.Queue()
        self._inputs: queue.Queue[dict[str, Any]] = queue.Queue()
        self.parent: dict[str, Any] = {}

    def start(self) -> None:
        """Begin to read. When the agent ends, this process ends too, whatever it is doing."""
        # In a thread, so that the end of the socket is noticed while a cell runs.
        threading.Thread(target=self._read, daemon=True).start()

    def announce(self, info: dict[str, Any]) -> None:
        """Tell the agent that the shell is ready for requests."""
        self._write({"ready": info})

    def send(
        self,
        channel: str,
        msg_type: str,
        content: dict[str, Any],
        metadata: dict[str, Any] | None = None,
    ) -> None:
        """Send a message whose parent is the current request."""
        header = {
            "msg_id": uuid.uuid4().hex,
            "msg_type": msg_type,
            "username": "ivy",
            "session": "ivy-shell",
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "version": "5.3",
        }
        message = {"c": channel, "h": header, "p": self.parent, "d": content}
        if metadata:
            message["m"] = metadata
        self._write(message)

    def publish(self, msg_type: str, content: dict[str, Any]) -> None:
        """Send a message on the iopub channel."""
        self.send("iopub", msg_type, content)

    def next_request(self, timeout_seconds: float | None = None) -> dict[str, Any] | None:
        """Wait for the next request, or return ``None``; an interrupt can break the wait."""
        # With a time-out: a get() without one is not broken by a signal on every platform.
        while True:
            with contextlib.suppress(queue.Empty):
                return self._requests.get(
                    timeout=60 if timeout_seconds is None else timeout_seconds
                )
            if timeout_seconds is not None:
                return None

    def ask(self, prompt: str, *, is_password: bool) -> str:
        """Return what the user types (message spec, "Messages on the stdin channel")."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._inputs.get_nowait()  # an answer that came too late for an earlier question
        self.send("stdin", "input_request", {"prompt": prompt, "password": is_password})
        while True:
            with contextlib.suppress(queue.Empty):
                return str(self._inputs.get(timeout=POLL_SECONDS)["d"].get("value", ""))

    def _write(self, message: dict[str, Any]) -> None:
        line = json.dumps(message, separators=(",", ":"), default=str).encode("ascii") + b"\n"
        with self._lock:
            self._socket.sendall(line)

    def _read(self) -> None:
        incoming = bytearray()
        while True:
            data = self._socket.recv(READ_BYTES)
            if not data:
                os._exit(0)
            incoming += data
            *lines, incoming = incoming.split(b"\n")
            for line in lines:
                message = json.loads(line.decode("utf-8"))
                (self._inputs if message["c"] == "stdin" else self._requests).put(message)
