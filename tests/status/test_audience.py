"""Who is told what, without any loop and without any request."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from fake_time import EPOCH, FakeApi, FakeTime

from ivy_kernel.errors import NotSentError
from ivy_kernel.status import Reading
from ivy_kernel.status.watchers import Audience, Watch

UNREAD = Reading()


class Listener:
    """A watch, and what it was told."""

    def __init__(self, audience: Audience) -> None:
        self.told: list[Reading] = []
        self.watch = Watch(self.told.append, audience.remove)
        audience.add(self.watch)


@pytest.fixture
def audience() -> Audience:
    """An audience that has been told nothing."""
    return Audience(UNREAD)


def test_an_audience_is_true_while_somebody_watches(audience: Audience) -> None:
    """Closing the last watch empties it, however often it is closed."""
    assert not audience
    one, two = Listener(audience), Listener(audience)
    one.watch.close()
    one.watch.close()
    assert audience
    two.watch.close()
    assert not audience


def test_what_was_known_before_is_no_news(audience: Audience, time: FakeTime) -> None:
    """Nobody is told that nothing is known."""
    listener = Listener(audience)
    audience.publish(replace(UNREAD), time.now)
    assert listener.told == []


def test_the_same_again_is_no_news_and_a_change_is(
    audience: Audience, api: FakeApi, time: FakeTime
) -> None:
    """A later answer that says the same is not told; an error is, and so is its end."""
    listener = Listener(audience)
    first = Reading(status=api.status())
    time.now += 15
    broken = replace(first, error=NotSentError("No network."))
    again = Reading(status=api.status())
    for reading in (first, Reading(status=api.status()), broken, broken, again):
        audience.publish(reading, time.now)
    assert listener.told == [first, broken, again]


def test_a_state_that_has_changed_by_itself_is_news(
    audience: Audience, api: FakeApi, time: FakeTime
) -> None:
    """The same answer means something else once the deadline that it names is over."""
    api.fields = {"expires_at": EPOCH + timedelta(seconds=time.now + 100)}
    listener = Listener(audience)
    reading = Reading(status=api.status())
    audience.publish(reading, time.now)
    audience.publish(replace(reading), time.now + 99)
    assert len(listener.told) == 1
    audience.publish(replace(reading), time.now + 101)
    assert len(listener.told) == 2


def test_a_watch_is_told_each_reading_once(
    audience: Audience, api: FakeApi, time: FakeTime
) -> None:
    """Who was told as a newcomer is not told again when the same reading is published."""
    listener = Listener(audience)
    reading = Reading(status=api.status())
    listener.watch.tell(reading)
    audience.publish(reading, time.now)
    assert listener.told == [reading]


def test_the_end_closes_every_watch(audience: Audience, api: FakeApi, time: FakeTime) -> None:
    """All are told nothing more."""
    listeners = [Listener(audience) for _ in range(3)]
    audience.end()
    audience.end()
    audience.publish(Reading(status=api.status()), time.now)
    for listener in listeners:
        listener.watch.tell(Reading(status=api.status()))
        assert (listener.watch.closed, listener.told) == (True, [])
    assert not audience
