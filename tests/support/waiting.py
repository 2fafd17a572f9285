"""Waits for conditions, with a deadline; for blocking and for async tests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any

import psutil


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


def all_ended(processes: Iterable[psutil.Process]) -> bool:
    """Whether these processes have ended, reaped by their parents or not."""
    return not any(map(_lives, processes))


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
