"""The start of a sandbox: what shows that it is under way, and the display of any progress."""

from __future__ import annotations

import html
import os
from dataclasses import replace
from datetime import datetime, timedelta

from ivy_kernel.models import Message, Sink
from ivy_kernel.status.clock import monotonic_seconds
from ivy_kernel.status.model import END_STATES, STARTING_STATES, SandboxStatus
from ivy_kernel.status.polling import News

# Whether it is under way --------------------------------------------------------------------------
GRACE_SECONDS = 10.0
"""After a create, an answer that knows nothing of it is not believed for so long."""
_CLOCK_TOLERANCE = timedelta(seconds=2)


class StartEvidence:
    """Evidence that a sandbox is starting, which one answer to the contrary does not outweigh.

    A platform of several servers may answer the first status requests after a create from before
    it: with "none", or with the failure of an earlier start. Such an answer is believed when it
    comes again after some seconds, or when it provably is about this start.
    """

    def __init__(self) -> None:
        self._starting: SandboxStatus | None = None
        self._until_monotonic = float("-inf")
        self._earliest: datetime | None = None
        self._was_seen = False
        self._created: set[datetime] = set()

    def created(self, answer: SandboxStatus) -> None:
        """Note the answer to a create."""
        self.forget()
        if answer.state == "failed":
            return
        # "ready" too: whether it is, the next status tells.
        self._starting = replace(answer, state="provisioning")
        self._until_monotonic = answer.received_monotonic + GRACE_SECONDS
        if answer.server_time is not None:  # at the middle of the request
            length = timedelta(seconds=2 * answer.uncertainty_seconds)
            self._earliest = answer.server_time - length - _CLOCK_TOLERANCE

    def forget(self) -> None:
        """Drop the evidence: it is ready, or was terminated."""
        self._starting = self._earliest = None
        self._was_seen = False
        self._created.clear()

    def heard(self, news: News) -> None:
        """Take what another process, which judges as we do, has learned."""
        status = news.status
        if status is None:
            if news.is_action:  # a terminate: a create tells its status
                self.forget()
        elif status.state in STARTING_STATES:
            self.judged(status)
        elif (
            self._starting is None
            or status.described_monotonic > self._starting.described_monotonic
        ):
            self.forget()

    def judged(self, status: SandboxStatus) -> SandboxStatus:
        """Return a status as it can be believed.

        Parameters
        ----------
        status
            As it was read.
        """
        if status.state in STARTING_STATES:
            self._starting, self._was_seen = status, True
            self._until_monotonic = status.received_monotonic + GRACE_SECONDS
            self._created |= {status.created_at} if status.created_at else set()
            return status
        starting = self._starting
        if (
            starting is None
            or status.state not in END_STATES
            or status.received_monotonic >= self._until_monotonic
            or (status.state == "failed" and self._is_of_this_start(status))
        ):
            if status.state != "hibernating":
                self.forget()
            return status
        eta = starting.eta_remaining_seconds(status.described_monotonic)
        return replace(
            starting,
            eta_seconds=eta,
            received_monotonic=status.received_monotonic,
            described_monotonic=status.described_monotonic,
            server_time=status.server_time,
        )

    def _is_of_this_start(self, failed: SandboxStatus) -> bool:
        if failed.created_at is None:
            return self._was_seen  # nothing dates it; a start that was under way may well fail
        if failed.created_at in self._created:
            return True
        return self._earliest is not None and failed.created_at >= self._earliest


# Its progress -------------------------------------------------------------------------------------

PHASES = ("compute", "mount", "ready")
BAR_CHARACTERS = 24
DISPLAY_PREFIX = "ivy-progress-"
"""The prefix of the display ids of progress displays."""


class ProgressDisplay:
    """A display in the output of a cell, there while something lasts; nothing of it stays.

    Parameters
    ----------
    sink
        Takes ``display_data``, ``update_display_data`` and, at the end, ``clear_output``.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._display_id = f"{DISPLAY_PREFIX}{os.urandom(6).hex()}"
        self._shown = False

    def show(self, words: str, fraction: float | None, *, small_html: str = "") -> None:
        """Show how far it has come.

        Parameters
        ----------
        words
            One line that says it.
        fraction
            The part that is done, 0 to 1; ``None`` where that is not known.
        small_html
            What stands beside the bar, as HTML.
        """
        bar = "" if fraction is None else f"\n{_bar(fraction)}"
        content = {
            "data": {"text/plain": words + bar, "text/html": _html(words, fraction, small_html)},
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


class StartProgress:
    """Shows a starting sandbox in the output of the cell that waits for it.

    Parameters
    ----------
    name
        The name of the sandbox that the user sees.
    sink
        Takes the messages of a `ProgressDisplay`.
    """

    def __init__(self, name: str, sink: Sink) -> None:
        self._name = name
        self._display = ProgressDisplay(sink)
        self._start = monotonic_seconds()

    def show(self, status: SandboxStatus) -> None:
        """Show the progress of the start."""
        now = monotonic_seconds()
        eta = status.eta_remaining_seconds(now)
        elapsed = now - self._start
        phase = status.phase or status.state
        words = f"{self._name} is {status.label(now).lower()}: {phase}"
        if eta is not None:
            words += f", about {max(1, round(eta))} s left"
        steps = " → ".join(
            f"<b>{html.escape(step)}</b>" if step == phase else html.escape(step) for step in PHASES
        )
        self._display.show(words, _fraction(phase, elapsed, eta), small_html=steps)

    def clear(self) -> None:
        """Remove the display."""
        self._display.clear()


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


def _html(words: str, fraction: float | None, small_html: str) -> str:
    value = "" if fraction is None else f' value="{fraction:.3f}"'
    return (
        f'<div role="status">{html.escape(words)}<br>'
        f'<progress max="1"{value} style="width:20em"></progress> '
        f"<small>{small_html}</small></div>"
    )
