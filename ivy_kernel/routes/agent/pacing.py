"""The route's options; when to poll, how long a poll may wait, how large a response may be.

Pure: no clock, no input or output. Nothing of this is documented by the platform, so that all of it
is learned from how earlier polls went.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ivy_kernel.errors import NoAnswerError, RateLimitedError
from ivy_kernel.routes.agent.calls import LAUNCH_METHODS, LaunchMethod

# -- how long output is collected

SHORTEST_SECONDS = 0.005
"""Messages sent together come within this. The agent itself waits longer near a cell's end."""

LONGEST_SECONDS = 0.25
DELAY_GROWTH = 1.6
DENSE_SECONDS = 0.04

# A token bucket: so many responses at once, then so many a second while output goes on.
BURST_RESPONSES = 60.0
RESPONSES_PER_SECOND = 4.0


class BatchingDelay:
    """Computes how long output is collected before a poll is answered: a debounce that adapts.

    Each response costs a call of a tool: a process in the sandbox, and a part of some rate limit.
    Sparse output is shown at once. Dense output, of which more has come before the last could be
    shown, is collected ever longer; so is sparse output when it goes on and on.
    """

    def __init__(self) -> None:
        self._seconds = SHORTEST_SECONDS
        self._answered_at = float("-inf")
        self._allowance = BURST_RESPONSES

    def submitted(self) -> None:
        """Begin anew: of a new cell nothing is known yet."""
        self._seconds = SHORTEST_SECONDS

    def answered(self, now: float) -> None:
        """Note a response with output of a cell that goes on."""
        gap_seconds = now - self._answered_at
        self._answered_at = now
        refilled = self._allowance + gap_seconds * RESPONSES_PER_SECOND
        self._allowance = max(0.0, min(BURST_RESPONSES, refilled) - 1.0)
        if gap_seconds < DENSE_SECONDS + self._seconds:
            self._seconds = min(LONGEST_SECONDS, self._seconds * DELAY_GROWTH)
        else:
            self._seconds = max(SHORTEST_SECONDS, self._seconds / DELAY_GROWTH)

    @property
    def seconds(self) -> float:
        """The delay from the first output to the next poll's response."""
        return self._seconds if self._allowance >= 1.0 else LONGEST_SECONDS


# -- how large a response may be

SMALLEST_LIMIT_CHARS = 2_048
FIRST_LIMIT_CHARS = 1 << 20
LARGEST_LIMIT_CHARS = 16 << 20
SIZE_GROWTH = 4
FULL_SHARE = 0.75
"""A response is full when it takes this share of its limit: more of the log may follow."""

QUICK_SECONDS = 0.5
SLOW_SECONDS = 3.0
"""On a slow line large responses only delay others, and what the user waits for."""

FULL_RESPONSES_BEFORE_GROWTH = 20


class ResponseSizeLimit:
    """Limits how much a response may hold: grows from what most tools print whole, while it works.

    Each call costs a round trip and a process in the sandbox, so that large outputs travel in few
    large responses; how much a tool prints is documented nowhere.
    """

    def __init__(self) -> None:
        self.limit_chars = FIRST_LIMIT_CHARS
        self.may_be_plain = True
        # Two bounds: what the tool prints whole, which never changes, and what the line to it has
        # delivered lately, which recovers.
        self._printable_chars = LARGEST_LIMIT_CHARS
        self._deliverable_chars = LARGEST_LIMIT_CHARS
        self._largest_whole_chars = 0
        self._full_responses = 0

    def accepted(self, size_chars: int, took_seconds: float) -> None:
        """Note a response that has arrived whole, and how long it was on its way."""
        self._largest_whole_chars = max(self._largest_whole_chars, size_chars)
        if took_seconds > SLOW_SECONDS:
            if self.limit_chars > FIRST_LIMIT_CHARS:
                self.limit_chars = max(FIRST_LIMIT_CHARS, self.limit_chars // 2)
        elif size_chars >= FULL_SHARE * self.limit_chars:
            self._full_responses += 1
            if self._full_responses % FULL_RESPONSES_BEFORE_GROWTH == 0:
                self._deliverable_chars = min(LARGEST_LIMIT_CHARS, self._deliverable_chars * 2)
            if took_seconds < QUICK_SECONDS:
                grown = min(
                    self.limit_chars * SIZE_GROWTH, self._printable_chars, self._deliverable_chars
                )
                self.limit_chars = max(self.limit_chars, grown)

    def truncated(self, size_chars: int) -> None:
        """Note that the tool has cut its output to this length; its limit does not change."""
        smaller = min(self.limit_chars // 2, int(size_chars * 0.9))
        # Not below what has arrived whole already, unless that was as large as what was now cut.
        if self._largest_whole_chars < self.limit_chars:
            smaller = max(smaller, self._largest_whole_chars)
        else:
            self._largest_whole_chars = 0
        self.limit_chars = self._printable_chars = max(SMALLEST_LIMIT_CHARS, smaller)

    def corrupted(self, size_chars: int, *, was_plain: bool) -> None:
        """Note that the tool has changed its output: plain text, or the middle of a long one."""
        if was_plain:
            self.may_be_plain = False
        else:
            self.truncated(size_chars)

    def failed(self) -> None:
        """Note that a call failed when a large response was due: it may have been too large."""
        if self.limit_chars > FIRST_LIMIT_CHARS:
            self._deliverable_chars = max(FIRST_LIMIT_CHARS, self.limit_chars // 2)
            self.limit_chars = FIRST_LIMIT_CHARS
            self._full_responses = 0


# -- when to poll, and how long a poll waits

UNPROBED_WAIT_SECONDS = 1.0
"""The longest wait while it is unknown whether calls may overlap, or known that they may not: an
interrupt would have to queue behind it."""

HEDGE_SECONDS = 1.0
"""The age of a cell from which a second, hedged poll is kept in flight: when one response is lost,
the other still brings the output."""

IDLE_DELAY_SECONDS = 0.3
AGE_PER_DELAY = 20.0
"""Between cells output is collected for this part of the time since the user's last request: a
user who has just run a cell watches, one who has not for minutes is not there or can wait."""

SHORTEST_PAUSE_SECONDS = 1.0
"""Where calls are queued, between polls that do not wait: the next cell queues behind them."""

RATE_LIMITED_BATCHING_SECONDS = 1.0
RATE_LIMITED_WAIT_SECONDS = 5.0
"""The longest wait while a rate limit allows only one poll in flight: if its response is lost, only
the next poll brings the cell's output."""

RATE_LIMITED_FOR_SECONDS = 60.0
FULL_WAITS_BEFORE_LONGER = 10
QUEUEING_SIGNS_NEEDED = 2
PROBE_AGAIN_SECONDS = 60.0
CAP_SECONDS = 0.9
"""A call that failed sooner has not met the tool's time limit."""

CUT_SECONDS = 5.0
"""A connection that broke sooner was not cut by a proxy for being idle."""


class PollScheduler:
    """Decides when to poll and how long a poll may wait, by what it has learned of the sandbox.

    Parameters
    ----------
    options
        Give ``poll_wait_seconds`` and ``background_delay_seconds``.
    may_overlap
        Whether calls may run at the same time; ``None`` until it is found out.
    """

    def __init__(
        self,
        options: AgentOptions,
        *,
        may_overlap: bool | None = None,
    ) -> None:
        self.may_overlap = may_overlap
        self.wait_limit_seconds = options.poll_wait_seconds
        self._batching_delay = BatchingDelay()
        self._longest_wait_seconds = options.poll_wait_seconds
        self._background_delay_seconds = options.background_delay_seconds
        self._active_since = 0.0
        self._last_activity = 0.0
        self._last_idle_poll = float("-inf")
        self._rate_limited_until = float("-inf")
        self._is_streaming = False
        self._may_send_background = False
        self._full_waits = 0
        self._is_known = may_overlap is not None
        self._queueing_signs = 0
        self._probed_at = float("-inf")

    def submitted(self, now: float) -> None:
        """Note that a request has been submitted."""
        self._active_since = self._last_activity = now
        self._batching_delay.submitted()
        self._is_streaming = False

    def expect_background(self, now: float) -> None:
        """Begin to poll at once: there may be messages that belong to no request of ours."""
        self._may_send_background = True
        self._last_activity = now - IDLE_DELAY_SECONDS

    def answered(
        self,
        now: float,
        *,
        has_output: bool,
        was_active: bool,
        is_active: bool,
        may_send_background: bool,
    ) -> None:
        """Learn from a poll that has been answered.

        Parameters
        ----------
        now
            The monotonic clock.
        has_output
            Whether it brought a part of the log.
        was_active, is_active
            Whether a request of ours was in flight before it, and still is.
        may_send_background
            Whether anything lives in the sandbox's kernel that may send messages at any time.
        """
        self._may_send_background = may_send_background
        if was_active:
            self._last_activity = now
        self._is_streaming = has_output and is_active
        if self._is_streaming:
            self._batching_delay.answered(now)

    def waited(self, poll_wait_seconds: float) -> None:
        """Note a poll that was answered after its whole wait; after some of them, wait longer."""
        if poll_wait_seconds < self.wait_limit_seconds:
            return
        self._full_waits += 1
        if self._full_waits >= FULL_WAITS_BEFORE_LONGER:
            self._full_waits = 0
            longer = self.wait_limit_seconds * 1.3
            self.wait_limit_seconds = min(longer, self._longest_wait_seconds)

    def failed(self, error: Exception, now: float, *, asked: float, lasted: float) -> None:
        """Note a failed poll; one that had lasted for a while may have met a time limit."""
        if isinstance(error, RateLimitedError):
            self._rate_limited_until = now + RATE_LIMITED_FOR_SECONDS
        shortest = CUT_SECONDS if isinstance(error, NoAnswerError) else CAP_SECONDS
        # A call that ended before its wait was over met the tool's, or a proxy's, limit: wait less.
        if shortest <= lasted < asked:
            self.wait_limit_seconds = max(1.0, min(self.wait_limit_seconds, lasted * 0.7))
            self._full_waits = 0

    def overlap_seen(self) -> None:
        """Note that a call got through while another was parked in the sandbox."""
        self.may_overlap = True

    def queueing_seen(self, now: float) -> None:
        """Note that a call got through only after another had waited its whole time.

        Counts when it is seen twice, because a slow network looks alike; it is probed again from
        time to time.
        """
        self._queueing_signs += 1
        self._probed_at = now
        if self._queueing_signs >= QUEUEING_SIGNS_NEEDED:
            self.may_overlap = False

    def wants_probe(self, now: float) -> bool:
        """Decide whether to find out if calls may overlap."""
        if self._is_known or self.may_overlap:
            return False
        return self.may_overlap is None or now - self._probed_at > PROBE_AGAIN_SECONDS

    def poll_wait_seconds(self, now: float, *, is_active: bool = True) -> float:
        """Return how long the next poll may wait."""
        if self.may_overlap is False and not is_active:
            return 0.0
        if self.may_overlap and now < self._rate_limited_until:
            return min(RATE_LIMITED_WAIT_SECONDS, self.wait_limit_seconds)
        if self.may_overlap:
            return self.wait_limit_seconds
        return min(UNPROBED_WAIT_SECONDS, self.wait_limit_seconds)

    def batching_delay(self, now: float, *, is_active: bool = True) -> float:
        """Return the delay from the first output to the next poll's response."""
        delay = self._batching_delay.seconds if is_active else self._background_delay(now)
        if now < self._rate_limited_until:
            return max(delay, RATE_LIMITED_BATCHING_SECONDS)
        return delay

    def _background_delay(self, now: float) -> float:
        age = now - self._last_activity
        return max(SHORTEST_SECONDS, min(age / AGE_PER_DELAY, self._background_delay_seconds))

    def idle_poll_sent(self, now: float) -> None:
        """Note that a poll was sent while nothing of ours was under way."""
        self._last_idle_poll = now

    def polls_wanted(self, now: float, *, is_active: bool) -> int:
        """Return how many polls should be in flight."""
        if not is_active:
            return int(self._may_send_background and now >= self.idle_start(now))
        if not self.may_overlap or now < self._rate_limited_until:
            return 1
        # While one response is on its way another poll is parked already, so that the next output
        # need not wait for a round trip; the third is the hedge.
        if self._is_streaming:
            return 3
        return 2 if now - self._active_since >= HEDGE_SECONDS else 1

    def idle_start(self, now: float) -> float:
        """Return the time from which on there is a poll between cells.

        Not at once: the next cell of a "run all" comes sooner, and would find a poll in its way.
        """
        start = self._last_activity + IDLE_DELAY_SECONDS
        if self.may_overlap is False:
            # The next cell, or an interrupt, would queue behind a poll that waits.
            pause = max(self._background_delay(now), SHORTEST_PAUSE_SECONDS)
            start = max(start, self._last_idle_poll + pause)
        return start

    def should_poll_later(self, now: float) -> bool:
        """Decide whether a poll is due at :meth:`idle_start`."""
        return self._may_send_background and now < self.idle_start(now)


# The options of the agent route -------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class AgentOptions:
    """The agent route's options; the defaults are what the product uses.

    Parameters
    ----------
    launch_methods
        The ways to start and reach an agent, best first.
    directories
        Where to make the agent's private directory; empty for the standard places.
    kernel
        ``auto``, ``ipykernel`` or ``shell`` (the built-in one).
    environment
        Set for the agent, its kernel and all cells.
    poll_wait_seconds
        The longest time that a long poll waits for output; below what proxies and tools allow.
    background_delay_seconds
        The longest time that output between cells is collected before it is fetched; it grows to
        that with the time since the user's last request.
    idle_lifetime_seconds
        After so long without contact the agent ends itself, and the variables with it.
    log_limit_bytes
        How much output is kept in the sandbox while no poll fetches it.
    notebook
        The name of the notebook under which its outputs are kept on the sandbox's disk; empty for
        in memory alone.
    open_limit_seconds
        How long calls may fail while the agent is looked for.
    give_up_seconds
        How long calls may fail before the outcome of what is running is called unknown.
    """

    launch_methods: tuple[LaunchMethod, ...] = LAUNCH_METHODS
    directories: tuple[str, ...] = ()
    kernel: str = "auto"
    environment: Mapping[str, str] = field(default_factory=dict)
    poll_wait_seconds: float = 25.0
    background_delay_seconds: float = 10.0
    idle_lifetime_seconds: float = 45 * 60.0
    log_limit_bytes: int = 64 << 20
    notebook: str = ""
    open_limit_seconds: float = 90.0
    give_up_seconds: float = 900.0
