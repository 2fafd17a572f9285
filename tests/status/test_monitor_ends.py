"""How a monitor is shared, reached from other threads, and closed."""

from __future__ import annotations

import asyncio
import threading

import pytest
from fake_time import FakeApi, FakeTime

from ivy_kernel.errors import CredentialsError
from ivy_kernel.status.model import StatusReading
from ivy_kernel.status.monitor import Monitor, monitor_for


async def test_a_closed_monitor_is_silent_and_frees_who_waits(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """Closing cancels the request, releases refreshes with what is known, refuses newcomers."""
    api.takes_seconds = 5
    told: list[StatusReading] = []
    monitor.watch(told.append)
    first = asyncio.ensure_future(monitor.refresh())
    await time.advance(1)
    second = asyncio.ensure_future(monitor.refresh())
    await time.settle()
    await monitor.aclose()
    await monitor.aclose()
    for waiting in (first, second):
        assert (await asyncio.wait_for(waiting, 5)).status is None
    await time.advance(100)
    assert (api.in_flight, len(api.asked_at), told) == (0, 1, [])
    with pytest.raises(RuntimeError, match="closed"):
        monitor.watch(told.append)
    with pytest.raises(RuntimeError, match="closed"):
        await monitor.refresh()
    monitor.refresh_soon()
    monitor.accept(api.status())
    assert told == []


async def test_the_plain_methods_may_be_called_from_another_thread(
    monitor: Monitor, api: FakeApi, time: FakeTime
) -> None:
    """A magic that blocks its own thread can watch, refresh, close; callbacks run on the loop."""
    threads: set[int] = set()

    def in_thread() -> None:
        watch = monitor.watch(lambda reading: threads.add(threading.get_ident()))
        monitor.refresh_soon()
        watches.append(watch)

    watches: list[object] = []
    await asyncio.to_thread(in_thread)
    await time.settle()
    assert len(api.asked_at) == 1
    assert threads == {threading.get_ident()}
    await asyncio.to_thread(watches[0].close)  # type: ignore[attr-defined]  # a Watch
    await time.advance(100)
    assert len(api.asked_at) == 1


async def test_all_in_a_process_share_one_monitor_for_a_sandbox(
    api: FakeApi, time: FakeTime
) -> None:
    """The same key gives the same monitor until it is closed; another key gives another."""

    def make() -> Monitor:
        return Monitor(api.fetch, clock=time.clock, sleep=time.sleep)

    one = monitor_for(("https://example.org", "chat-1"), make)
    assert monitor_for(("https://example.org", "chat-1"), make) is one
    other = monitor_for(("https://example.org", "chat-2"), make)
    assert other is not one
    await one.aclose()
    again = monitor_for(("https://example.org", "chat-1"), make)
    assert again is not one
    await again.aclose()
    await other.aclose()


def test_a_monitor_of_a_loop_that_has_ended_is_replaced() -> None:
    """A process that runs one loop after another gets a living monitor each time."""

    async def get() -> Monitor:
        async def fetch() -> object:
            raise CredentialsError("The key is not accepted.", status_code=401)

        return monitor_for("a sandbox", lambda: Monitor(fetch))  # type: ignore[arg-type]  # never answers

    async def get_and_close() -> Monitor:
        monitor = await get()
        await monitor.aclose()
        return monitor

    first = asyncio.run(get())
    assert first.closed
    first.refresh_soon()
    second = asyncio.run(get_and_close())
    assert second is not first
