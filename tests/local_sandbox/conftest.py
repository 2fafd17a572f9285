"""Chats whose sandboxes the tests of the local sandbox server use."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from sandbox_server import RunningSandbox, running_sandbox


@pytest.fixture(scope="session")
def server() -> Iterator[RunningSandbox]:
    """One server with default settings for all tests of this directory that change none."""
    with running_sandbox() as running:
        yield running


@pytest.fixture(scope="session")
def shared_chat(server: RunningSandbox) -> str:
    """One active chat for all tests that leave nothing in it that others could mind."""
    server.ready("shared")
    return "shared"


@pytest.fixture
def chat(server: RunningSandbox, new_chat: Callable[[], str]) -> Iterator[str]:
    """A chat whose sandbox is active."""
    chat_id = new_chat()
    server.ready(chat_id)
    yield chat_id
    server.call("POST", f"/v1/sandbox/{chat_id}/terminate")
