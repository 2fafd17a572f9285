"""Waits for conditions, with a deadline; for blocking and for async tests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any


def until(
    condition: Callable[[], Any], what: str = "the condition", timeout_seconds: float = 30.0
) -> Any:
    """Wait until ``condition()`` is true, and return its value.

    Raises
    ------
    AssertionError
        That took longer than ``timeout_seconds``.
    """
    deadline = time.monotonic() + timeout_seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen within {timeout_seconds:g} s"
        time.sleep(0.02)
    return value


async def eventually(
    condition: Callable[[], Any], what: str = "the condition", timeout_seconds: float = 30.0
) -> Any:
    """Do the same as `until`, while the event loop goes on."""
    deadline = time.monotonic() + timeout_seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen within {timeout_seconds:g} s"
        await asyncio.sleep(0.01)
    return value
