"""When to poll, how long each poll may wait, and how soon it is to be answered. Pure."""

from __future__ import annotations

from ivy_kernel.errors import NoAnswerError, RateLimitedError

SHORTEST_SECONDS = 0.005
"""What a kernel says at once comes within this. The agent itself waits longer near a cell's end."""

LONGEST_SECONDS = 0.25
DELAY_GROWTH = 1.6
DENSE_SECONDS = 0.04
BURST_ANSWERS = 60.0
ANSWERS_A_SECOND = 4.0


class BatchingDelay:
    """Short for output that comes now and then, longer for output that does not stop.

    Each answer costs a call of a tool: a process in the sandbox, and a part of some rate limit.
    Sparse output is shown at once. Dense output, of which more has come before the last could be
    shown, is collected ever longer; so is sparse output when it goes on and on.
    """

    def __init__(self) -> None:
        self._seconds = SHORTEST_SECONDS
        self._answered_at = float("-inf")
        self._allowance = BURST_ANSWERS

    def submitted(self) -> None:
        """A new cell is under way, about which nothing is known."""
        self._seconds = SHORTEST_SECONDS

    def answered(self, now: float) -> None:
        """An answer has brought output of a cell that goes on."""
        gap_seconds = now - self._answered_at
        self._answered_at = now
        refilled = self._allowance + gap_seconds * ANSWERS_A_SECOND
        self._allowance = max(0.0, min(BURST_ANSWERS, refilled) - 1.0)
        if gap_seconds < DENSE_SECONDS + self._seconds:
            self._seconds = min(LONGEST_SECONDS, self._seconds * DELAY_GROWTH)
        else:
            self._seconds = max(SHORTEST_SECONDS, self._seconds / DELAY_GROWTH)

    @property
    def seconds(self) -> float:
        """How long after the first output the next poll is to be answered."""
        return self._seconds if self._allowance >= 1.0 else LONGEST_SECONDS


SMALLEST_LIMIT_CHARS = 2_048
FIRST_LIMIT_CHARS = 1 << 20
LARGEST_LIMIT_CHARS = 16 << 20
SIZE_GROWTH = 4
FULL = 0.75
"""An answer is full when it takes this share of its limit: there may be more where it came from."""

QUICK_SECONDS = 0.5
SLOW_SECONDS = 3.0
"""On a slow line large answers only keep others, and what the user waits for, from coming."""

FULL_ANSWERS_BEFORE_MORE = 20


class ResponseSizeLimit:
    """Begins with what most tools print whole, and grows for as long as that goes well.

    Each call costs a round trip and a process in the sandbox, so that large outputs travel in few
    large answers; how much a tool prints is documented nowhere.
    """

    def __init__(self) -> None:
        self.limit_chars = FIRST_LIMIT_CHARS
        self.may_be_plain = True
        self._printed_chars = LARGEST_LIMIT_CHARS
        self._accepted_chars = LARGEST_LIMIT_CHARS
        self._whole_chars = 0
        self._full_answers = 0

    def accepted(self, size_chars: int, took_seconds: float) -> None:
        """An answer has arrived whole, after this time from when there was something to tell."""
        self._whole_chars = max(self._whole_chars, size_chars)
        if took_seconds > SLOW_SECONDS:
            if self.limit_chars > FIRST_LIMIT_CHARS:
                self.limit_chars = max(FIRST_LIMIT_CHARS, self.limit_chars // 2)
        elif size_chars >= FULL * self.limit_chars:
            self._full_answers += 1
            if self._full_answers % FULL_ANSWERS_BEFORE_MORE == 0:
                self._accepted_chars = min(LARGEST_LIMIT_CHARS, self._accepted_chars * 2)
            if took_seconds < QUICK_SECONDS:
                grown = min(
                    self.limit_chars * SIZE_GROWTH, self._printed_chars, self._accepted_chars
                )
                self.limit_chars = max(self.limit_chars, grown)

    def truncated(self, size_chars: int) -> None:
        """The tool has cut what it printed; so much of it has arrived. That stays so."""
        smaller = min(self.limit_chars // 2, int(size_chars * 0.9))
        if self._whole_chars < self.limit_chars:
            smaller = max(smaller, self._whole_chars)
        else:
            self._whole_chars = 0
        self.limit_chars = self._printed_chars = max(SMALLEST_LIMIT_CHARS, smaller)

    def corrupted(self, size_chars: int, *, was_plain: bool) -> None:
        """The tool has changed what it printed: plain text, or the middle of too long a one."""
        if was_plain:
            self.may_be_plain = False
        else:
            self.truncated(size_chars)

    def failed(self) -> None:
        """A large answer was due, and its call has failed: perhaps something does not bear it."""
        if self.limit_chars > FIRST_LIMIT_CHARS:
            self._accepted_chars = max(FIRST_LIMIT_CHARS, self.limit_chars // 2)
            self.limit_chars = FIRST_LIMIT_CHARS
            self._full_answers = 0


UNPROBED_WAIT_SECONDS = 1.0
"""The longest wait while it is unknown whether calls may overlap, or known that they may not: an
interrupt would have to queue behind it."""

HEDGE_SECONDS = 1.0
IDLE_DELAY_SECONDS = 0.3
RATE_LIMITED_BATCHING_SECONDS = 1.0
RATE_LIMITED_WAIT_SECONDS = 5.0
"""The longest wait while only one poll may be in flight for the sake of a rate limit: if its answer
is lost, nothing else tells of the cell until then."""

RATE_LIMITED_FOR_SECONDS = 60.0
BACKGROUND_FOR_SECONDS = 60.0
FULL_WAITS_BEFORE_LONGER = 10
QUEUEING_THRESHOLD = 2
PROBE_AGAIN_SECONDS = 60.0
CAP_SECONDS = 0.9
"""A call that was ended after less than this has not met the tool's cap."""

CUT_SECONDS = 5.0
"""A connection that broke after less than this was not cut for its silence."""


class PollScheduler:
    """Learns from the answers what this sandbox bears.

    Parameters
    ----------
    wait_seconds
        The longest wait of a poll; below what proxies and tools allow.
    idle_poll_seconds
        How long after the last activity something that can speak (widgets, threads) is listened
        to. 0 never listens between cells.
    may_overlap
        Whether calls may run at the same time; ``None`` until it is found out.
    """

    def __init__(
        self,
        *,
        wait_seconds: float = 25.0,
        idle_poll_seconds: float = 300.0,
        may_overlap: bool | None = None,
    ) -> None:
        self.may_overlap = may_overlap
        self.wait_limit_seconds = wait_seconds
        self._batching_delay = BatchingDelay()
        self._longest_wait_seconds = wait_seconds
        self._idle_poll_seconds = idle_poll_seconds
        self._active_since = 0.0
        self._last_activity = 0.0
        self._last_background = float("-inf")
        self._rate_limited_until = float("-inf")
        self._is_chatting = False
        self._can_speak = False
        self._full_waits = 0
        self._is_known = may_overlap is not None
        self._queueing_signs = 0
        self._probed_at = float("-inf")

    def submitted(self, now: float) -> None:
        """Something new has been handed over."""
        self._active_since = self._last_activity = now
        self._batching_delay.submitted()
        self._is_chatting = False

    def listen(self, now: float) -> None:
        """Something may have been said, or is being said, that nobody has heard."""
        self._can_speak = True
        self._last_activity = now - IDLE_DELAY_SECONDS

    def answered(
        self,
        now: float,
        *,
        has_output: bool,
        was_active: bool,
        is_active: bool,
        can_speak: bool,
    ) -> None:
        """A poll has been answered.

        Parameters
        ----------
        now
            The monotonic clock.
        has_output
            Whether it brought anything.
        was_active, is_active
            Whether something of ours was under way before it, and still is.
        can_speak
            Whether the sandbox has something that may speak without being asked.
        """
        self._can_speak = can_speak
        if was_active:
            self._last_activity = now
        if has_output and not was_active:
            self._last_background = now
        self._is_chatting = has_output and is_active
        if self._is_chatting:
            self._batching_delay.answered(now)

    def waited(self, wait_seconds: float) -> None:
        """A poll has waited its whole time and was answered: dare a longer one some day."""
        if wait_seconds < self.wait_limit_seconds:
            return
        self._full_waits += 1
        if self._full_waits >= FULL_WAITS_BEFORE_LONGER:
            self._full_waits = 0
            longer = self.wait_limit_seconds * 1.3
            self.wait_limit_seconds = min(longer, self._longest_wait_seconds)

    def failed(self, error: Exception, now: float, *, asked: float, lasted: float) -> None:
        """A poll that asked to wait has failed after a time; perhaps the tool's cap ended it."""
        if isinstance(error, RateLimitedError):
            self._rate_limited_until = now + RATE_LIMITED_FOR_SECONDS
        shortest = CUT_SECONDS if isinstance(error, NoAnswerError) else CAP_SECONDS
        if shortest <= lasted < asked:
            self.wait_limit_seconds = max(1.0, min(self.wait_limit_seconds, lasted * 0.7))
            self._full_waits = 0

    def overlap_seen(self) -> None:
        """A call was made while another was under way in the sandbox."""
        self.may_overlap = True

    def queueing_seen(self, now: float) -> None:
        """A call came through only after another had waited its whole time.

        Believed when it is seen twice, because a slow network looks alike, and looked into again
        from time to time.
        """
        self._queueing_signs += 1
        self._probed_at = now
        if self._queueing_signs >= QUEUEING_THRESHOLD:
            self.may_overlap = False

    def wants_probe(self, now: float) -> bool:
        """Whether to find out if calls may overlap."""
        if self._is_known or self.may_overlap:
            return False
        return self.may_overlap is None or now - self._probed_at > PROBE_AGAIN_SECONDS

    def wait_seconds(self, now: float) -> float:
        """How long the next poll may wait."""
        if self.may_overlap and now < self._rate_limited_until:
            return min(RATE_LIMITED_WAIT_SECONDS, self.wait_limit_seconds)
        if self.may_overlap:
            return self.wait_limit_seconds
        return min(UNPROBED_WAIT_SECONDS, self.wait_limit_seconds)

    def batching_delay(self, now: float) -> float:
        """How long after the first output the next poll is to be answered."""
        if now < self._rate_limited_until:
            return RATE_LIMITED_BATCHING_SECONDS
        return self._batching_delay.seconds

    def polls_wanted(self, now: float, *, is_active: bool) -> int:
        """How many polls should be in flight."""
        if not is_active:
            return int(self._listens_while_idle(now) and now >= self.idle_start)
        if not self.may_overlap or now < self._rate_limited_until:
            return 1
        if self._is_chatting:
            return 3
        return 2 if now - self._active_since >= HEDGE_SECONDS else 1

    @property
    def idle_start(self) -> float:
        """When polling between cells begins: not at once, the next cell would only displace it."""
        return self._last_activity + IDLE_DELAY_SECONDS

    def should_listen_later(self, now: float) -> bool:
        """Whether to look again at :attr:`idle_start`."""
        return self._listens_while_idle(now) and now < self.idle_start

    def _listens_while_idle(self, now: float) -> bool:
        if self.may_overlap is False:
            return False
        speaks = self._can_speak or now - self._last_background < BACKGROUND_FOR_SECONDS
        recent = max(self._last_activity, self._last_background)
        return speaks and now - recent < self._idle_poll_seconds
