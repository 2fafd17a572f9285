"""A monitor under a clock that only tests move."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from fake_time import FakeApi, FakeTime

from ivy_kernel.status.monitor import Monitor


@pytest.fixture
def time() -> FakeTime:
    """The clock."""
    return FakeTime()


@pytest.fixture
def api(time: FakeTime) -> FakeApi:
    """The API that the monitor polls."""
    return FakeApi(time)


@pytest.fixture
async def monitor(time: FakeTime, api: FakeApi) -> AsyncIterator[Monitor]:
    """A monitor with the normal intervals and no luck in its jitter."""
    made = Monitor(api.fetch, clock=time.clock, sleep=time.sleep, random=lambda: 1.0)
    yield made
    await made.aclose()
