"""The sessions of one notebook's magics, when settings change at an awkward moment."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable

import pytest
from magic_driver import magic_variables
from sandbox_server import RunningSandbox, until

from ivy_kernel.magics.ivy_magics import MagicSessions
from ivy_kernel.models import Cell, Message

BEGAN_SECONDS = 20.0
END_SECONDS = 20.0


def numbered(code: str) -> Cell:
    """A cell with a header of its own."""
    return Cell(code, header={"msg_id": os.urandom(8).hex(), "msg_type": "execute_request"})


@pytest.fixture
async def sessions(
    server: RunningSandbox, new_chat: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[MagicSessions]:
    """The magics' sessions in a process whose settings name a chat with a sandbox."""
    chat = new_chat()
    server.ready(chat, f"session-of-{chat}", f"campaign-of-{chat}")
    variables = magic_variables(server, chat, IVY_SESSION_ID=f"session-of-{chat}")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    opened = MagicSessions(kernel_id="", on_background=lambda _: None)
    yield opened
    await opened.aclose()


async def test_a_second_cell_joins_the_session_of_one_that_is_running(
    sessions: MagicSessions, server: RunningSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings that have changed meanwhile do not end the first one; both run, in their order."""
    session = sessions.session()
    messages: list[Message] = []
    assert (await session.execute(numbered("order = []"), messages.append)).fate == "succeeded"
    began = f"began-{session.lifecycle.chat_id}"
    code = f"import time; open('{began}', 'w').close(); time.sleep(1.5); order.append('first')"
    first = asyncio.ensure_future(session.execute(numbered(code), messages.append))
    await asyncio.to_thread(
        until, lambda: list(server.root.glob(f"*/{began}")), "the cell runs", BEGAN_SECONDS
    )
    monkeypatch.setenv("IVY_CELL_TIMEOUT_SECONDS", "200")
    joined = sessions.session()
    assert joined is session
    second = joined.execute(numbered("order.append('second')"), messages.append)
    outcomes = await asyncio.wait_for(asyncio.gather(first, second), END_SECONDS)
    assert [outcome.fate for outcome in outcomes] == ["succeeded", "succeeded"]
    following = sessions.session()
    assert following is not session  # the changed settings hold from now on
    assert (await following.execute(numbered("print(order)"), messages.append)).fate == "succeeded"
    texts = [message.content["text"] for message in messages if message.msg_type == "stream"]
    assert "".join(texts) == "['first', 'second']\n"
