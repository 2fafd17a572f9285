"""The progress display of a cell whose sandbox starts; nothing of it stays in the notebook."""

from __future__ import annotations

import html
import os

from ivy_kernel.models import Message, Sink
from ivy_kernel.status.clock import monotonic_seconds
from ivy_kernel.status.model import SandboxStatus

PHASES = ("compute", "mount", "ready")
BAR_CHARACTERS = 24
DISPLAY_PREFIX = "ivy-start-"
"""The prefix of the display ids of progress displays."""


class StartProgress:
    """Shows a starting sandbox in the output of the cell that waits for it.

    Parameters
    ----------
    name
        The name of the sandbox that the user sees.
    sink
        Takes ``display_data``, ``update_display_data`` and, at the end, ``clear_output``.
    """

    def __init__(self, name: str, sink: Sink) -> None:
        self._name = name
        self._sink = sink
        self._display_id = f"{DISPLAY_PREFIX}{os.urandom(6).hex()}"
        self._shown = False
        self._start = monotonic_seconds()

    def show(self, status: SandboxStatus) -> None:
        """Show the progress of the start."""
        now = monotonic_seconds()
        eta = status.eta_remaining_seconds(now)
        elapsed = now - self._start
        phase = status.phase or status.state
        words = f"{self._name} is starting: {phase}"
        if eta is not None:
            words += f", about {max(1, round(eta))} s left"
        fraction = _fraction(phase, elapsed, eta)
        content = {
            "data": {
                "text/plain": f"{words}\n{_bar(fraction)}",
                "text/html": _html(words, phase, fraction),
            },
            "metadata": {},
            "transient": {"display_id": self._display_id},
        }
        self._sink(Message("update_display_data" if self._shown else "display_data", content))
        self._shown = True

    def clear(self) -> None:
        """Remove the display."""
        if self._shown:
            # clear_output empties all outputs of a cell; the display id lets a sink empty only
            # this one (`blanked`), when the cell has shown something beside it.
            which = {"display_id": self._display_id}
            self._sink(Message("clear_output", {"wait": False}, metadata=which))
            self._shown = False


def blanked(clearing: Message) -> Message:
    """Turn a progress's ``clear_output`` into an update that empties its display only."""
    content = {
        "data": {"text/plain": "", "text/html": ""},
        "metadata": {},
        "transient": {"display_id": clearing.metadata["display_id"]},
    }
    return Message("update_display_data", content)


def is_progress(message: Message) -> bool:
    """Whether a message belongs to the progress display, rather than to the cell itself."""
    is_end = message.msg_type == "clear_output"
    transient = message.metadata if is_end else message.content.get("transient") or {}
    return str(transient.get("display_id", "")).startswith(DISPLAY_PREFIX)


def _fraction(phase: str, elapsed: float, eta: float | None) -> float:
    if phase == "ready":
        return 1.0
    if eta is not None and elapsed + eta > 0:
        return min(elapsed / (elapsed + eta), 0.99)  # 100 % only when it is ready
    return PHASES.index(phase) / len(PHASES) if phase in PHASES else 0.0


def _bar(fraction: float) -> str:
    done = round(fraction * BAR_CHARACTERS)
    return f"[{'#' * done}{'.' * (BAR_CHARACTERS - done)}] {fraction:.0%}"


def _html(words: str, phase: str, fraction: float) -> str:
    steps = " → ".join(
        f"<b>{html.escape(step)}</b>" if step == phase else html.escape(step) for step in PHASES
    )
    return (
        f'<div role="status">{html.escape(words)}<br>'
        f'<progress max="1" value="{fraction:.3f}" style="width:20em"></progress> '
        f"<small>{steps}</small></div>"
    )
