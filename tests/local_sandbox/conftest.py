"""A local sandbox server for the tests of this directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from sandbox_server import RunningSandbox, running_sandbox

_numbers = count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[RunningSandbox]:
    """One server with default settings for all tests that change none."""
    with running_sandbox() as running:
        yield running


@pytest.fixture
def new_chat() -> Callable[[], str]:
    """Gives chat ids that are new."""
    return lambda: f"chat-{next(_numbers)}"


@pytest.fixture(scope="session")
def shared_chat(server: RunningSandbox) -> str:
    """One active chat for all tests that leave nothing in it that others could mind."""
    server.ready("shared")
    return "shared"


@pytest.fixture
def changed(server: RunningSandbox) -> Iterator[Callable[..., None]]:
    """Changes settings of the shared server until the end of the test."""
    before = server.control()["config"]
    names: set[str] = set()

    def change(**settings: Any) -> None:
        names.update(settings)
        server.control(settings)

    yield change
    now = server.control()["config"]
    for name in names:
        if isinstance(now[name], dict) and isinstance(before[name], dict):
            # Objects are merged: what was added must be taken away.
            before[name] |= dict.fromkeys(set(now[name]) - set(before[name]))
    server.control({name: before[name] for name in names})


@pytest.fixture
def chat(server: RunningSandbox, new_chat: Callable[[], str]) -> Iterator[str]:
    """A chat whose sandbox is active."""
    chat_id = new_chat()
    server.ready(chat_id)
    yield chat_id
    server.call("POST", f"/v1/sandbox/{chat_id}/terminate")
