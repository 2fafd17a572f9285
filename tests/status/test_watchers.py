"""Which watcher is told what, without any loop and without any request."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from fake_time import EPOCH, FakeApi, FakeTime

from ivy_kernel.errors import NotSentError
from ivy_kernel.status.model import StatusReading
from ivy_kernel.status.polling import Watch, Watchers

UNREAD = StatusReading()


class Listener:
    """A watch, and what it was told."""

    def __init__(self, watchers: Watchers) -> None:
        self.told: list[StatusReading] = []
        self.watch = Watch(self.told.append, watchers.remove)
        watchers.add(self.watch)


@pytest.fixture
def watchers() -> Watchers:
    """Watchers that have been told nothing."""
    return Watchers(UNREAD)


def test_watchers_are_true_while_one_of_them_watches(watchers: Watchers) -> None:
    """Closing the last watch empties it, however often it is closed."""
    assert not watchers
    one, two = Listener(watchers), Listener(watchers)
    one.watch.close()
    one.watch.close()
    assert watchers
    two.watch.close()
    assert not watchers


def test_what_was_known_before_is_no_news(watchers: Watchers, time: FakeTime) -> None:
    """Nobody is told that nothing is known."""
    listener = Listener(watchers)
    watchers.publish(replace(UNREAD), time.now)
    assert listener.told == []


def test_the_same_again_is_no_news_and_a_change_is(
    watchers: Watchers, api: FakeApi, time: FakeTime
) -> None:
    """A later answer that says the same is not told; an error is, and so is its end."""
    listener = Listener(watchers)
    first = StatusReading(status=api.status())
    time.now += 15
    broken = replace(first, error=NotSentError("No network."))
    again = StatusReading(status=api.status())
    for reading in (first, StatusReading(status=api.status()), broken, broken, again):
        watchers.publish(reading, time.now)
    assert listener.told == [first, broken, again]


def test_a_state_that_has_changed_by_itself_is_news(
    watchers: Watchers, api: FakeApi, time: FakeTime
) -> None:
    """The same answer means something else once the deadline that it names is over."""
    api.fields = {"expires_at": EPOCH + timedelta(seconds=time.now + 100)}
    listener = Listener(watchers)
    reading = StatusReading(status=api.status())
    watchers.publish(reading, time.now)
    watchers.publish(replace(reading), time.now + 99)
    assert len(listener.told) == 1
    watchers.publish(replace(reading), time.now + 101)
    assert len(listener.told) == 2


def test_a_watch_is_told_each_reading_once(
    watchers: Watchers, api: FakeApi, time: FakeTime
) -> None:
    """Who was told as a newcomer is not told again when the same reading is published."""
    listener = Listener(watchers)
    reading = StatusReading(status=api.status())
    listener.watch.notify(reading)
    watchers.publish(reading, time.now)
    assert listener.told == [reading]


def test_the_end_closes_every_watch(watchers: Watchers, api: FakeApi, time: FakeTime) -> None:
    """All are told nothing more."""
    listeners = [Listener(watchers) for _ in range(3)]
    watchers.end()
    watchers.end()
    watchers.publish(StatusReading(status=api.status()), time.now)
    for listener in listeners:
        listener.watch.notify(StatusReading(status=api.status()))
        assert (listener.watch.closed, listener.told) == (True, [])
    assert not watchers
