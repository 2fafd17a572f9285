"""The data that the layers share: cells, messages, outcomes, namespaces, and resources."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ivy_kernel.errors import SandboxLostError

Json = dict[str, Any]
"""A decoded JSON object."""

Fate = Literal["succeeded", "failed", "interrupted", "lost", "unknown"]
"""The one truth in which a cell ends.

``succeeded`` and ``failed``: it ran to its end, or raised. ``interrupted``: the user stopped it.
``lost``: the sandbox or its Python went away under it. ``unknown``: it was sent and no answer came.
"""

Channel = Literal["shell", "iopub", "stdin", "control"]


def visible(text: object, keep: str = "") -> str:
    """Return text from outside without characters that a terminal or a notebook would act on.

    Parameters
    ----------
    text
        The text.
    keep
        Characters that stay as they are, such as line ends.
    """
    return "".join(
        one if one.isprintable() or one in keep else f"\\x{ord(one):02x}" for one in str(text)
    )


@dataclass(frozen=True, slots=True)
class Cell:
    """One ``execute_request`` (Jupyter message spec, "Execute").

    Parameters
    ----------
    code
        The cell's source.
    execution_count
        The number that the front end shows for this cell.
    silent
        Run as quietly as possible: nothing is shown.
    store_history
        Whether the cell counts as the user's own; hidden cells of front ends do not.
    user_expressions
        Name to expression, evaluated after the cell.
    allow_stdin
        Whether the front end can answer ``input()``.
    header
        The header of the request, which becomes the parent of all that the cell shows.
    cell_id
        The id of the cell in its notebook document; empty where the front end does not say.
    """

    code: str
    execution_count: int = 0
    silent: bool = False
    store_history: bool = True
    user_expressions: dict[str, str] = field(default_factory=dict)
    allow_stdin: bool = False
    header: Json = field(default_factory=dict)
    cell_id: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether it holds nothing to run: blank, or comments alone."""
        lines = (line.strip() for line in self.code.splitlines())
        return all(not line or line.startswith("#") for line in lines)


@dataclass(frozen=True, slots=True)
class Message:
    """One Jupyter message from the sandbox, on its way to the front end.

    Parameters
    ----------
    msg_type
        For example ``stream``, ``display_data``, ``execute_result``, ``error``.
    content
        The message's content, as in the message spec.
    metadata
        The message's own metadata (not a display's).
    buffers
        Binary buffers, as widgets use them.
    channel
        The channel that it belongs to.
    header
        The remote header; ``None`` when we make the message ourselves.
    parent_header
        The remote parent header; ``None`` for the cell that is running.
    """

    msg_type: str
    content: Json
    metadata: Json = field(default_factory=dict)
    buffers: tuple[bytes, ...] = ()
    channel: Channel = "iopub"
    header: Json | None = None
    parent_header: Json | None = None

    @property
    def parent_id(self) -> str:
        """The id of the request that it belongs to; empty for the cell that is running."""
        return str((self.parent_header or {}).get("msg_id", ""))

    @property
    def size(self) -> int:
        """About the number of bytes that it holds."""
        data = self.content.get("data")
        values = data.values() if isinstance(data, dict) else ()
        text = len(str(self.content.get("text", "")))
        text += sum(len(value) for value in values if isinstance(value, str))
        return text + sum(map(len, self.buffers))

    @property
    def updated(self) -> tuple[str, str, str] | None:
        """What it updates, so that a later update of the same supersedes it; ``None``: nothing."""
        data = self.content.get("data")
        if self.msg_type == "update_display_data":
            display = (self.content.get("transient") or {}).get("display_id")
            return ("display", str(display), self.parent_id) if display else None
        if self.msg_type != "comm_msg" or not isinstance(data, dict):
            return None
        is_update = data.get("method") == "update" and isinstance(data.get("state"), dict)
        # A state with binary parts names them by their place, which merging would move.
        if is_update and not (self.buffers or data.get("buffer_paths")):
            return "comm", str(self.content.get("comm_id")), self.parent_id
        return None

    def superseding(self, earlier: Message) -> Message:
        """Return the one update that has the effect of an earlier one of the same and this."""
        if self.msg_type == "update_display_data":
            return self
        data = self.content["data"]
        state = {**earlier.content["data"]["state"], **data["state"]}
        return replace(self, content={**self.content, "data": {**data, "state": state}})


Sink = Callable[[Message], None]
"""Takes the messages of a cell in order; called on the event loop, must not block."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a cell: its fate and the reply that says the same.

    Parameters
    ----------
    fate
        The one truth about it.
    reply
        The content of the ``execute_reply``: ``status``, ``user_expressions``, ``payload``, and
        for an error ``ename``, ``evalue`` and ``traceback``.
    was_refused
        Whether it ended in an error of ours before it was sent, so that nothing of it was run, and
        no variables were lost.
    metadata
        What the reply says beside its content: under ``ivy`` the cell's receipt and checkpoint.
    """

    fate: Fate
    reply: Json
    was_refused: bool = False
    metadata: Json = field(default_factory=dict)


def sendable(value: Any) -> Any:
    """Return a JSON value with valid Unicode only: surrogate pairs joined, lone halves replaced.

    Python allows them in strings, but no message can carry them: UTF-8 has no form for them.
    """
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return value
    if isinstance(value, dict):
        return {sendable(key): sendable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [sendable(item) for item in value]
    return value


class Namespace:
    """The variables of one notebook in the sandbox of one chat: which Python has them, their loss.

    It is the one place that knows. Connections, routes and sessions end and others follow, as when
    a setting changes; this stays for as long as the notebook's process, so that a loss is told
    once, whoever noticed it, and never forgotten.

    Attributes
    ----------
    holder
        The Python that the last cell may have run in, as its route names it; empty while there is
        none, and after a loss was told.
    log_position
        The nonce of the last agent, and the offset up to which its log was shown.
    """

    def __init__(self) -> None:
        self.holder = ""
        self.log_position: tuple[str, int] = ("", 0)
        self._loss: SandboxLostError | None = None

    def lose(self, loss: SandboxLostError) -> None:
        """Keep a loss until a cell tells it; the first reason stays."""
        self._loss = self._loss or loss

    @property
    def loss(self) -> SandboxLostError | None:
        """The loss that no cell has told yet."""
        return self._loss

    def take_loss(self) -> SandboxLostError | None:
        """Return the loss that no cell has told yet, for the cell that tells it."""
        loss = self._loss
        if loss is not None:
            self.forget()
        return loss

    def forget(self) -> None:
        """Note that there are no variables, and that the user knows it."""
        self.holder, self._loss = "", None


# What the sandbox uses ----------------------------------------------------------------------------
NEARLY_FULL = 0.85
"""A memory that is full to this part may have been the reason for a loss."""

_UNITS = (("TB", 1 << 40), ("GB", 1 << 30), ("MB", 1 << 20))
"""As JupyterLab counts the sizes of files: 1 GB is 1024 MB."""


@dataclass(frozen=True, slots=True)
class Meter:
    """What is used of something, and the most that may be.

    Parameters
    ----------
    used, limit
        Bytes; of processors, percent of one and the number of them.
    """

    used: float
    limit: float

    @property
    def part(self) -> float:
        """How full it is, from 0 to about 1."""
        return self.used / self.limit

    @property
    def words(self) -> str:
        """Bytes in words, for example ``15.9 of 16 GB``."""
        unit, size = next((one for one in _UNITS if self.limit >= one[1]), _UNITS[-1])
        return f"{_short(self.used / size)} of {_short(self.limit / size)} {unit}"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}".removesuffix(".0")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of a sandbox.

    Parameters
    ----------
    name
        Its maker's name.
    used_percent
        How busy it is; ``None`` where it does not say.
    memory
        Its own memory.
    """

    name: str
    used_percent: float | None
    memory: Meter


@dataclass(frozen=True, slots=True)
class Resources:
    """What a sandbox uses, as its agent has seen it; ``None`` for what is not known.

    Parameters
    ----------
    memory
        Of the container, without what it can give up.
    cpu
        Percent of one processor, and the number of processors.
    disk
        Of the disk of the working directory.
    gpus
        Its GPUs.
    """

    memory: Meter | None = None
    cpu: Meter | None = None
    disk: Meter | None = None
    gpus: tuple[Gpu, ...] = ()

    @property
    def words(self) -> str:
        """One line, for example ``memory 3.1 of 16 GB, CPU 140 % of 4 cores, disk 12 of 50 GB``."""
        found = []
        if self.memory is not None:
            found.append(f"memory {self.memory.words}")
        if self.cpu is not None:
            cores = "core" if self.cpu.limit == 1 else "cores"
            found.append(f"CPU {self.cpu.used:.0f} % of {_short(self.cpu.limit)} {cores}")
        if self.disk is not None:
            found.append(f"disk {self.disk.words}")
        for gpu in self.gpus:
            busy = "" if gpu.used_percent is None else f" {gpu.used_percent:.0f} %,"
            found.append(f"{gpu.name}{busy} {gpu.memory.words}")
        return ", ".join(found)

    @property
    def last_words(self) -> str:
        """What a loss says of them: a sentence if memory was nearly full, with a blank before."""
        if self.memory is None or self.memory.part < NEARLY_FULL:
            return ""
        return f" Memory was at {self.memory.words} when it was last heard of."

    def to_json(self) -> Json:
        """Return them as the panel receives them."""
        cpu = self.cpu
        return {
            "memory": _bytes_json(self.memory),
            "cpu": None if cpu is None else {"used_percent": cpu.used, "cores": cpu.limit},
            "disk": _bytes_json(self.disk),
            "gpus": [
                {
                    "name": gpu.name,
                    "used_percent": gpu.used_percent,
                    "memory_used_bytes": gpu.memory.used,
                    "memory_limit_bytes": gpu.memory.limit,
                }
                for gpu in self.gpus
            ],
        }


def _bytes_json(meter: Meter | None) -> Json | None:
    return None if meter is None else {"used_bytes": meter.used, "limit_bytes": meter.limit}


# What a kernel says of its work beside cells ------------------------------------------------------
_KINDS: dict[str, type] = {
    **dict.fromkeys(("sequence", "number", "total_bytes"), int),
    **dict.fromkeys(("file", "directory", "python"), str),
    **dict.fromkeys(("names", "missing", "pip", "conda", "r", "changed"), dict),
    **dict.fromkeys(("objects", "restored", "others", "refused", "history"), list),
}
_LARGEST = 1 << 62


def sound_work(content: Json) -> Json:
    """Return what a kernel says of checkpoints and packages, without what makes no sense.

    Any code in its process may have made the answer.
    """
    found = dict(content)
    for name, kind in _KINDS.items():
        value = found.get(name)
        is_large = isinstance(value, int) and not 0 <= value < _LARGEST
        if name in found and (type(value) is not kind or is_large):
            del found[name]
    at = found.get("at", 0)
    if not (isinstance(at, int | float) and 0 <= at < _LARGEST):
        del found["at"]
    for name in {"missing", "names"} & found.keys():
        found[name] = {
            key: {**about, "cell": cell if type(cell := about.get("cell")) is int else 0}
            for key, about in found[name].items()
            if isinstance(about, dict)
        }
    if "changed" in found:
        pairs = found["changed"].items()
        found["changed"] = {k: v for k, v in pairs if isinstance(v, list) and len(v) == 2}
    for name in {"restored", "others"} & found.keys():
        found[name] = [text for text in found[name] if isinstance(text, str)]
    if "objects" in found:
        found["objects"] = [
            row
            for row in found["objects"]
            if isinstance(row, list) and [type(each) for each in row] == [str, int] and row[1] >= 0
        ]
    return found
