"""Front ends that drop what comes too fast get no more than they take."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from recorded import FrontEnd, other, stream, throttle

from ivy_kernel.session.output import JUPYTER_SERVER_RATE, Rate, wire_bytes


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """A clock of ours for the throttle."""
    fake = FakeClock()
    monkeypatch.setattr("ivy_kernel.session.output.time.monotonic", fake.now)
    monkeypatch.setattr("ivy_kernel.session.output.asyncio.sleep", fake.sleep)
    return fake


async def test_bytes_in_any_window_stay_below_the_limit(tmp_path: Path, clock: FakeClock) -> None:
    """A burst of ten windows' worth arrives whole, spread over time."""
    front_end = FrontEnd()
    rate = Rate(window_seconds=0.1, window_bytes=300_000, window_messages=10_000)
    throttled = throttle(front_end, tmp_path, rate=rate)
    text = "0123456789" * 100_000
    start = clock.seconds
    for at in range(0, len(text), 20_000):
        throttled(stream(text[at : at + 20_000]))
        await asyncio.sleep(0)
    await throttled.finish()
    assert front_end.text() == text
    most_bytes, _ = front_end.worst_window(rate)
    assert 100_000 < most_bytes <= rate.window_bytes
    assert clock.seconds - start > 0.2


@pytest.mark.usefixtures("clock")
async def test_messages_in_any_window_stay_below_the_limit(tmp_path: Path) -> None:
    """Small displays count too, and all arrive in order."""
    front_end = FrontEnd()
    rate = Rate(window_seconds=0.1, window_bytes=10_000_000, window_messages=20)
    throttled = throttle(front_end, tmp_path, rate=rate)
    for number in range(70):
        throttled(other("update_display_data", number=number))
    await throttled.finish()
    assert [m.content["number"] for m in front_end.messages] == list(range(70))
    _, most_messages = front_end.worst_window(rate)
    assert 5 < most_messages <= 20


async def test_a_piece_larger_than_a_whole_window_gets_through(tmp_path: Path) -> None:
    """It waits for an empty window, and not for ever."""
    front_end = FrontEnd()
    rate = Rate(window_seconds=0.05, window_bytes=1_000, window_messages=10)
    throttled = throttle(front_end, tmp_path, rate=rate)
    throttled(stream("small"))
    throttled(stream("x" * 10_000, "stderr"))
    throttled(stream("small"))
    await asyncio.wait_for(throttled.finish(), 5)
    assert front_end.text() == "smallsmall"
    assert front_end.text("stderr") == "x" * 10_000


async def test_idle_starts_the_count_anew(tmp_path: Path) -> None:
    """As the front end does, so the next cell is not held up by the last one."""
    front_end = FrontEnd()
    rate = Rate(window_seconds=60, window_bytes=5_000, window_messages=10)
    throttled = throttle(front_end, tmp_path, rate=rate)
    for _ in range(5):
        throttled(stream("x" * 3_000))
        await asyncio.wait_for(throttled.finish(), 2)
        throttled.idle()
    assert front_end.text() == "x" * 15_000


async def test_without_a_rate_nothing_waits(tmp_path: Path) -> None:
    """Nbclient and its like take everything."""
    front_end = FrontEnd()
    throttled = throttle(front_end, tmp_path)
    start = time.monotonic()
    for _ in range(100):
        throttled(stream("x" * 200_000))
    await throttled.finish()
    assert time.monotonic() - start < 2
    assert len(front_end.text()) == 20_000_000


@pytest.mark.parametrize(
    "text", ["plain", "é🐍", '"\\\n\t', "\x00\x1b[31m", "\u2028", "", "x" * 10_000]
)
def test_the_length_on_the_wire_is_never_estimated_too_small(text: str) -> None:
    """Compared with the JSON that jupyter_client makes."""
    from jupyter_client.session import json_packer

    assert wire_bytes(text) >= len(json_packer(text))


async def test_jupyter_servers_own_limiter_lets_everything_through(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real limiter, on a clock of ours, sees 20 MB of prints and drops none of it.

    The same messages without pacing trip it, so the test can fail.
    """
    channels = pytest.importorskip("jupyter_server.services.kernels.connection.channels")
    from jupyter_client.session import Session

    wire = Session(key=b"")

    class Limiter(channels.ZMQChannelsWebsocketConnection):  # type: ignore[name-defined,misc]
        """The connection of one notebook, of which only the limiter is used."""

        def __init__(self) -> None:
            self.session = wire
            self.dropped = 0

        def write_stderr(self, *_: Any) -> None:
            """The real one tells the user here that output is dropped."""

        def log_dropped(self, message: Any) -> None:
            parts = wire.serialize(wire.msg(message.msg_type, message.content))
            _, frames = wire.feed_identities(parts)
            whole = wire.deserialize(frames, content=False)
            if self._limit_rate("iopub", whole, frames[1:]):
                self.dropped += 1

    monkeypatch.setattr(channels.IOLoop, "current", lambda *_: clock)
    lines = "ATCGNATCGN\n" * 18_000  # 200 kB

    async def dropped(rate: Rate | None) -> int:
        limiter = Limiter()
        throttled = throttle(FrontEnd(), tmp_path, rate=rate)
        throttled._send = limiter.log_dropped
        for _ in range(100):
            throttled(stream(lines))
            await clock.sleep(0.001)
        await throttled.finish()
        return limiter.dropped

    assert await dropped(None) > 0
    clock.seconds += 100
    assert await dropped(JUPYTER_SERVER_RATE) == 0
    assert clock.seconds > 120  # at less than 1 MB/s


class FakeClock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self._real_sleep = asyncio.sleep

    def now(self) -> float:
        """Seconds."""
        return self.seconds

    time = now
    """What tornado's loop calls it."""

    async def sleep(self, seconds: float) -> None:
        """Move on, and let others run."""
        self.seconds += max(0.0, seconds)
        await self._real_sleep(0)
