"""A local sandbox server for the tests of this directory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sandbox_server import RunningSandbox, running_sandbox

_numbers = count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[RunningSandbox]:
    """One server with default settings for all tests that change none."""
    with running_sandbox() as running:
        yield running


@pytest.fixture
def new_chat() -> Callable[[], str]:
    """Gives chat ids that nobody used yet."""
    return lambda: f"chat-{next(_numbers)}"


@pytest.fixture
def chat(server: RunningSandbox, new_chat: Callable[[], str]) -> Iterator[str]:
    """A chat whose sandbox is active."""
    chat_id = new_chat()
    server.ready(chat_id)
    yield chat_id
    server.call("POST", f"/v1/sandbox/{chat_id}/terminate")
