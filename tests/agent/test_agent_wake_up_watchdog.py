"""A kernel that does not notice a request is woken."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from far_side import BareRunner, route_over

from ivy_kernel.agent.ipython_kernel import FIRST_WAKE_UP_SECONDS, WakeUpWatchdog

DEAF_IPYKERNEL = Path(__file__).parents[1] / "support" / "deaf_ipykernel"


def parent(message_id: str) -> bytes:
    """The header of a request, as a message names it."""
    return b'{"msg_id":"%s","msg_type":"x"}' % message_id.encode()


def test_a_request_that_was_heard_wakes_nobody() -> None:
    """What the kernel says to a request says that the earlier ones were noticed, too."""
    watchdog = WakeUpWatchdog()
    assert watchdog.next_time() is None
    watchdog.sent("a", 10.0)
    watchdog.sent("b", 10.1)
    assert watchdog.next_time() == 10.1 + FIRST_WAKE_UP_SECONDS
    watchdog.heard(parent("b"), 10.2)
    assert watchdog.next_time() is None
    assert not watchdog.is_due(100.0)


def test_ids_that_begin_alike_are_different() -> None:
    """What is said to the tenth request tells that the first was noticed, and the tenth, too."""
    watchdog = WakeUpWatchdog()
    for number in range(1, 12):
        watchdog.sent(f"ping-{number}", 0.0)
    watchdog.heard(parent("ping-10"), 1.0)
    assert watchdog.next_time() is not None
    watchdog.heard(parent("ping-11"), 1.0)
    assert watchdog.next_time() is None


def test_what_comes_later_is_waited_for_anew() -> None:
    """A long cell before it is no silence: the time counts from what was heard last."""
    watchdog = WakeUpWatchdog()
    watchdog.sent("a", 10.0)
    watchdog.sent("b", 10.0)
    watchdog.heard(parent("a"), 11.0)
    assert not watchdog.is_due(11.0)
    assert watchdog.is_due(11.0 + FIRST_WAKE_UP_SECONDS)
    watchdog.heard(parent("of another front end"), 12.0)
    assert watchdog.next_time() is not None


def test_waking_becomes_rare_and_ends() -> None:
    """Behind a cell of an hour it is tried some times, at growing distances, and no more."""
    watchdog = WakeUpWatchdog()
    watchdog.sent("a", 0.0)
    woken = []
    now = 0.0
    while (then := watchdog.next_time()) is not None:
        assert not watchdog.is_due(then - 0.001)
        assert watchdog.is_due(then)
        woken.append(then - now)
        now = then
    assert woken == sorted(woken)
    assert 5 <= len(woken) <= 10
    assert 20 <= now <= 60


@pytest.mark.timeout(240)
async def test_cells_run_in_a_kernel_that_does_not_notice_them(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of a row of cells runs once; without waking, the first would hang."""
    monkeypatch.setenv("PYTHONPATH", str(DEAF_IPYKERNEL))
    async with route_over(BareRunner(sys.executable, (), place), place) as far:
        for number in range(4):
            first = far.begin(f"ran = globals().get('ran', []) + [{number}]")
            second = far.begin("ran += 'b'")  # may come while the reply to the first is sent
            assert (await first.end()).fate == "succeeded"
            assert (await second.end()).fate == "succeeded"
        assert (await far.run("ran")).result == "[0, 'b', 1, 'b', 2, 'b', 3, 'b']"
