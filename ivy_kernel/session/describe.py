"""Describes sandboxes, routes, events and settings in words, for magics and command line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Literal, Protocol

from ivy_kernel.api.operations import one_line
from ivy_kernel.models import Json, visible
from ivy_kernel.routes.events import (
    Arrival,
    Event,
    MemoryLow,
    OutputDropped,
    ReachableAgain,
    Unreachable,
)
from ivy_kernel.session.lifecycle import Lifecycle
from ivy_kernel.settings.settings import Ivy, is_secret, setting_names
from ivy_kernel.status.model import Deadline, SandboxStatus

if TYPE_CHECKING:  # no cell needs what it imports
    from ivy_kernel.routes.files import FileEntry
    from ivy_kernel.session.transfer import TransferResult, TransferState

SOON_SECONDS = 600.0
URGENT_SECONDS = 120.0
"""A deadline this near gets a warning: the first at 10 minutes, the second at 2."""
SOON_PART = 1 / 3
URGENT_PART = 1 / 10
"""But never while more than this part of its whole time is left: a sandbox that hibernates five
minutes after each cell is not "soon" all its life. ``labextension/src/countdown.ts`` has the same
rule; ``labextension/test/urgency.json`` holds both to it."""

Urgency = Literal["calm", "soon", "urgent", "over"]
"""How near a deadline is."""

_DEADLINES: tuple[tuple[Deadline, str], ...] = (
    ("hibernation", "hibernates in"),
    ("expiry", "expires in"),
)


def duration_words(seconds: float | None) -> str:
    """Return a duration in words, for example ``4 min 05 s``."""
    if seconds is None:
        return "unknown"
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    minutes, secs = divmod(rest, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    if minutes:
        return f"{minutes} min {secs:02d} s"
    return f"{secs} s"


def size_words(size_bytes: float) -> str:
    """Return a size in words, for example ``1.2 MB``; a thousand bytes are a kilobyte."""
    size, units = float(size_bytes), ["B", "kB", "MB", "GB", "TB"]
    while size >= 999.5 and len(units) > 1:
        size /= 1000
        del units[0]
    unit = units[0]
    return f"{size:.0f} {unit}" if unit == "B" or size >= 99.95 else f"{size:.1f} {unit}"


def count_words(count: int, noun: str) -> str:
    """Return a number of things, for example ``1 file`` and ``1,200 files``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def transfer_progress(state: TransferState) -> tuple[str, float | None]:
    """Return how far a transfer has come, in words, and the part that is done; for a display.

    Parameters
    ----------
    state
        The transfer.
    """
    total = state.total_bytes
    of = "" if total is None else f" of {size_words(total)}"
    parts = [f"{size_words(state.done_bytes)}{of}"]
    if state.files_total is not None and state.files_total > 1:
        parts.insert(0, f"{state.files_done:,} of {state.files_total:,} files")
    if state.bytes_per_second:
        parts.append(f"{size_words(state.bytes_per_second)}/s")
    if state.seconds_left is not None and state.done_bytes != total:
        parts.append(f"about {duration_words(max(1.0, state.seconds_left))} left")
    if state.resumed_bytes:
        parts.append(f"resumed at {size_words(state.resumed_bytes)}")
    return ", ".join(parts), min(state.done_bytes / total, 1.0) if total else None


def interrupted_words(state: TransferState | None, line: str) -> str:
    """Return what an interrupt has left of a transfer, and how it goes on.

    Parameters
    ----------
    state
        How far it had come; ``None`` where nothing was told yet.
    line
        The command, as it can be typed.
    """
    if state is None or not state.done_bytes:
        return f"Interrupted. What has a final name is whole; this goes on: {line}"
    of = "" if state.total_bytes is None else f" of {size_words(state.total_bytes)}"
    return (
        f"Interrupted at {size_words(state.done_bytes)}{of}. What has arrived is kept beside the "
        f"final name; this goes on from there: {line}"
    )


_SPEED_BYTES = 1_000_000
"""What moves fewer bytes has hardly a speed."""


def transferred(results: Sequence[TransferResult], seconds: float) -> tuple[str, Json]:
    """Return what transfers have done, in words and as ``--json`` prints it.

    Parameters
    ----------
    results
        The transfers of one command.
    seconds
        How long it took.
    """
    sums: Json = {
        name: sum(getattr(one, name) for one in results)
        for name in ("files", "total_bytes", "sent_bytes", "resumed_bytes", "skipped")
    }
    methods = list(dict.fromkeys(one.method for one in results if one.method))
    hashes = {path: value for one in results for path, value in one.sha256.items()}
    left_out = [visible(one) for result in results for one in result.left_out]
    parts = [f"{size_words(sums['total_bytes'])} in {seconds:.1f} s"]
    if sums["sent_bytes"] >= _SPEED_BYTES:
        parts[0] += f" ({size_words(sums['sent_bytes'] / max(seconds, 0.001))}/s)"
    parts += [f"by {' and '.join(methods)}"] if methods else []
    if sums["resumed_bytes"]:
        parts.append(f"resumed at {size_words(sums['resumed_bytes'])}")
    if sums["skipped"]:
        some = f"{sums['skipped']:,} of them equal already"
        is_all = sums["skipped"] == sums["files"]
        parts.append("equal already, nothing moved" if is_all else some)
    if left_out:
        more = f" and {len(left_out) - 3:,} more" if len(left_out) > 3 else ""
        parts.append(f"left out: {', '.join(left_out[:3])}{more}")
    if len(hashes) == 1:
        parts.append(f"SHA-256 {next(iter(hashes.values()))}")
    facts = {"seconds": round(seconds, 3), "methods": methods, "sha256": hashes}
    return "; ".join(parts), {**sums, **facts, "left_out": left_out}


def entry_facts(entry: FileEntry) -> Json:
    """Return an entry of the sandbox's files as ``--json`` prints it."""
    modified = _local_time(entry)
    return {
        "path": entry.path,
        "kind": entry.kind,
        "size_bytes": entry.size_bytes,
        "modified": None if modified is None else modified.isoformat(),
        "is_writable": entry.is_writable,
    }


def _local_time(entry: FileEntry) -> datetime | None:
    if entry.modified_seconds is None:
        return None
    try:
        return datetime.fromtimestamp(entry.modified_seconds).astimezone()
    except (ValueError, OverflowError, OSError):  # a file may claim any time
        return None


def entry_line(entry: FileEntry, start: str, *, is_long: bool) -> str:
    """Return an entry as a line of a listing.

    Parameters
    ----------
    entry
        The entry.
    start
        The part of its path that is left out.
    is_long
        Whether size and time stand before it.
    """
    mark = {"directory": "/", "link": "@", "other": "?"}.get(entry.kind, "")
    name = visible(entry.path.removeprefix(start)) + mark
    if not is_long:
        return name
    modified = _local_time(entry)
    size = size_words(entry.size_bytes) if entry.kind == "file" else "-"
    time = "-" if modified is None else f"{modified:%Y-%m-%d %H:%M}"
    return f"{size:>9}  {time:>16}  {name}{'' if entry.is_writable else '  (read-only)'}"


def status_lines(lifecycle: Lifecycle, status: SandboxStatus, now: float) -> list[str]:
    """Describe a sandbox, a line for each fact."""
    state = status.effective_state(now)
    lines = [f"sandbox: {lifecycle.name}", f"state: {state_words(status, now)}"]
    if status.hint(now):
        lines.append(f"that means: {status.hint(now)}")
    # Elsewhere the phase would be that of a launch long over.
    if status.phase and state in ("provisioning", "restoring"):
        lines.append(f"phase: {one_line(status.phase)}")
    eta = status.eta_remaining_seconds(now)
    if eta is not None:
        lines.append(f"ready in: about {duration_words(eta)}")
    uptime = status.uptime_seconds(now)
    if uptime is not None:
        lines.append(f"up for: {duration_words(uptime)}")
    lines += deadline_words(status, now, separator=": ")
    lines += resource_lines(lifecycle, status, now)
    lines += warnings(status, now)
    if status.error:
        lines.append(f"error: {one_line(status.error)}")
    lines += [f"unknown: {sentence}" for sentence in status.unknown]
    return lines


def deadline_words(status: SandboxStatus, now: float, *, separator: str = " ") -> list[str]:
    """Return each countdown of a sandbox that is up, for example ``hibernates in 4 min 05 s``."""
    if status.effective_state(now) != "active":
        return []
    known = [(words, status.remaining_seconds(name, now)) for name, words in _DEADLINES]
    return [
        f"{words}{separator}{duration_words(left)}" for words, left in known if left is not None
    ]


FRESH_SECONDS = 60.0
"""What is said of memory and processors is called old after so long."""


def resource_lines(lifecycle: Lifecycle, status: SandboxStatus, now: float) -> list[str]:
    """Describe what a sandbox uses, in a line; none where no agent has told it."""
    known = lifecycle.resources.read(status, now)
    if known is None:
        return []
    resources, age_seconds = known
    age = f" ({duration_words(age_seconds)} ago)" if age_seconds > FRESH_SECONDS else ""
    return [one_line(f"uses: {resources.words}{age}")]


def state_words(status: SandboxStatus, now: float) -> str:
    """Return the state as a word inside a sentence; widget and panel write it with a capital."""
    label = status.label(now)
    return one_line(label[:1].lower() + label[1:])


def route_lines(facts: Json) -> list[str]:
    """Describe the route to the sandbox, from `Session.describe`; ``doctor`` tells more."""
    launched = f", {facts['launch_method']}" if facts.get("launch_method") else ""
    lines = [f"route: {facts.get('route', 'none yet')}{launched}"]
    where = [
        f"Python {facts['python_version']}" if facts.get("python_version") else "",
        f"Python {facts['python']}" if facts.get("python") else "",
        str(facts.get("kernel_kind") or ""),
    ]
    known = [word for word in where if word]
    if known:
        lines.append(f"runs: {', '.join(known)}")
    if facts.get("variables_persist") is False:
        lines.append("variables: lost after each cell")
    lines += [f"tried: {reason}" for reason in facts.get("reasons", ())]
    lines += [f"refused: {reason}" for reason in facts.get("refused", ())]
    return [one_line(line) for line in lines]  # the sandbox has its say in them


def urgency(status: SandboxStatus, deadline: Deadline, now: float) -> Urgency:
    """Return how near a deadline is, measured by the whole time that there is until it.

    Without such a deadline, or without a clock to see it by, it is ``calm``.
    """
    left = status.remaining_seconds(deadline, now)
    if left is None:
        return "calm"
    if left == 0:
        return "over"
    # A hibernation is set by the last activity, an expiry by the start.
    is_hibernation = deadline == "hibernation"
    passed = status.idle_seconds(now) if is_hibernation else status.uptime_seconds(now)
    whole = math.inf if passed is None else passed + left
    if left <= min(URGENT_SECONDS, whole * URGENT_PART):
        return "urgent"
    return "soon" if left <= min(SOON_SECONDS, whole * SOON_PART) else "calm"


def warnings(status: SandboxStatus, now: float) -> list[str]:
    """Return a sentence for each near deadline: what happens, when, and what to do."""
    if status.effective_state(now) != "active":
        return []
    sentences = []
    for deadline, _ in _DEADLINES:
        left = status.remaining_seconds(deadline, now)
        if left is None or urgency(status, deadline, now) == "calm":
            continue
        if deadline == "hibernation":
            awake = "; run any cell to keep it awake" if status.keeps_awake(now) else ""
            sentences.append(
                f"warning: the sandbox hibernates in {duration_words(left)}, and its variables are "
                f"lost then (files stay){awake}."
            )
        else:
            sentences.append(
                f"warning: the sandbox expires in {duration_words(left)}, and its variables are "
                f"lost then; save what you need to files."
            )
    return sentences


_FATE: dict[Arrival, str] = {
    "arrived": (
        "What was sent has arrived: it goes on as long as the sandbox does, and its output is "
        "fetched when it can be; interrupt twice to give up."
    ),
    "not arrived": (
        "Nothing of this cell was run: it is sent when the sandbox can be reached; interrupt to "
        "take it back."
    ),
    "unknown": (
        "Whether this cell has arrived there is not known; it runs once at most. Interrupt twice "
        "to give up."
    ),
    "no cell": "It is tried again.",
}


def event_sentence(event: Event) -> str | None:
    """Return what a running cell shows for an event of the agent route; ``None``: nothing."""
    if isinstance(event, OutputDropped):
        return (
            f"{event.message_count} messages of output ({event.size_bytes:,} bytes) were dropped "
            f"in the sandbox, because they could not be fetched in time."
        )
    if isinstance(event, MemoryLow):
        percent = 100 * event.memory.part
        return (
            f"The sandbox's memory is {percent:.0f} % full: {event.memory.words} are in use. When "
            f"it is full, the sandbox's Python is killed and the variables are lost: "
            f"interrupt the cell, or save what you need."
        )
    if isinstance(event, Unreachable):
        return f"The sandbox cannot be reached at the moment ({event.error}) {_FATE[event.cell]}"
    if isinstance(event, ReachableAgain):
        return "The sandbox can be reached again."
    return None


class ListedChat(Protocol):
    """A chat in the list of chats."""

    @property
    def chat_id(self) -> str:
        """Its id."""

    @property
    def name(self) -> str:
        """The name that the user gave it."""

    @property
    def campaign_id(self) -> str:
        """Its campaign."""

    @property
    def last_used(self) -> datetime | None:
        """When it was used last."""


def chats_table(chats: Sequence[ListedChat], default_id: str, present_id: str = "") -> str:
    """List chats: name, id, campaign, last use in local time, and what each is.

    Parameters
    ----------
    chats
        The chats, in the order of the rows.
    default_id
        The chat of the settings.
    present_id
        The chat that the notebook's cells use; empty for no notebook.
    """
    if not chats:
        return "No chat was used yet.\n"
    rows: list[tuple[str, ...]] = [("name", "chat", "campaign", "last used", "")]
    for chat in chats:
        used = (
            "never" if chat.last_used is None else f"{chat.last_used.astimezone():%Y-%m-%d %H:%M}"
        )
        what = [
            *(["used by this notebook"] if chat.chat_id == present_id else []),
            *(["default"] if chat.chat_id == default_id else []),
        ]
        row = (chat.name or "-", chat.chat_id, chat.campaign_id or "-", used, ", ".join(what))
        rows.append(tuple(one_line(cell) for cell in row))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = ["  ".join(f"{cell:<{widths[i]}}" for i, cell in enumerate(row)) for row in rows]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def settings_table(settings: Ivy) -> str:
    """List every setting: name, value and source. Keys are shown as set or not set only."""
    rows = []
    for name in setting_names():
        value = getattr(settings, name)
        shown = ("set" if value else "not set") if is_secret(name) else str(value) or "not set"
        rows.append((name, shown, str(settings.sources[name])))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    where = "local sandbox" if settings.is_local else settings.api_url
    lines = [f"{name:<{widths[0]}}  {value:<{widths[1]}}  {source}" for name, value, source in rows]
    return "\n".join([f"cells run in: {where}", *lines]) + "\n"
