"""Completion over slow lines, beside an inactive Recoup session, and what keeps a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest
from far_side import port_of
from fault_proxy import FaultProxy, Faults
from kernel_driver import Home, KernelDriver, agent_variables, running
from sandbox_server import RunningSandbox, until
from waiting import eventually

from ivy_kernel.models import Cell
from ivy_kernel.session import gate, local_server
from ivy_kernel.session.open import open_session
from ivy_kernel.settings.live import LiveSettings

DELAY_SECONDS = 0.8
"""Each way: an answer takes longer than a completion may hold the channel."""


class SlowLine(FaultProxy):
    """A line that delays each request and each answer by the same time, once it is slow."""

    is_slow = False

    async def _delay(self) -> None:
        await asyncio.sleep(DELAY_SECONDS if self.is_slow else 0.0)


@contextlib.contextmanager
def slow_line(server: RunningSandbox) -> Iterator[SlowLine]:
    """A line to a server, served by a loop in a thread of its own."""
    line = SlowLine(port_of(server), Faults())
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(line.listen(), loop).result(20)
        yield line
        asyncio.run_coroutine_threadsafe(line.stop_listening(), loop).result(20)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()


def test_a_completion_that_is_asked_again_has_the_late_answer(
    server: RunningSandbox, chat_id: str, new_home: Callable[[], Home]
) -> None:
    """Over a slow line the first reply is empty and not late; the user presses Tab again."""
    variables = agent_variables(server, chat_id)
    with slow_line(server) as line:
        variables["IVY_API_URL"] = f"http://127.0.0.1:{line.port}/api"
        with running(KernelDriver(new_home(), variables)) as kernel:
            kernel.run("a_long_name = 1")
            line.is_slow = True
            assert kernel.ask("complete", "a_lon")["matches"] == []
            until(lambda: kernel.ask("complete", "a_lon")["matches"] == ["a_long_name"])
            line.is_slow = False
            kernel.run("a_long_one = 1; del a_long_name")
            until(lambda: kernel.ask("complete", "a_lon")["matches"] == ["a_long_one"])


async def test_an_inactive_recoup_session_is_not_in_the_way(
    server: RunningSandbox, chat_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Recoup says of its session says nothing of whether Ivy's sandbox can be asked."""
    variables = {
        **agent_variables(server, chat_id),
        "RECOUP_API_URL": server.url.removesuffix("/api"),
        "RECOUP_API_KEY": server.token,
        "RECOUP_SESSION_ID": "another session",
        "IVY_RECOUP_SESSION_ID": "another session",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    session = open_session(LiveSettings())
    try:
        assert session.lifecycle.key[2] == "another session"
        cell = Cell("a_long_name = 1", header={"msg_id": "1", "msg_type": "execute_request"})
        assert (await session.execute(cell, lambda _: None)).fate == "succeeded"
        monkeypatch.setattr(gate, "CHECK_AFTER_SECONDS", 0.0)
        question = {"code": "a_lon", "cursor_pos": 5}
        answer = await asyncio.wait_for(session.ask("complete_request", question), 30)
        assert answer is not None
        assert answer["matches"] == ["a_long_name"]
    finally:
        await session.aclose()


@pytest.mark.parametrize("recoup", [False, True], ids=["alone", "with Recoup"])
async def test_an_open_notebook_keeps_the_local_sandbox(
    server: RunningSandbox, monkeypatch: pytest.MonkeyPatch, *, recoup: bool
) -> None:
    """Whatever its idle time is, and also while Recoup's status is shown from elsewhere."""
    monkeypatch.setenv("IVY_LOCAL_IDLE_EXIT_SECONDS", "3")
    if recoup:
        monkeypatch.setenv("RECOUP_API_URL", server.url.removesuffix("/api"))
        monkeypatch.setenv("RECOUP_API_KEY", server.token)
        monkeypatch.setenv("RECOUP_SESSION_ID", "another session")
        monkeypatch.setenv("IVY_RECOUP_SESSION_ID", "another session")
    session = open_session(LiveSettings())
    try:
        assert session.lifecycle.local
        cell = Cell("x = 1", header={"msg_id": "1", "msg_type": "execute_request"})
        assert (await session.execute(cell, lambda _: None)).fate == "succeeded"
        before = local_server.find()
        assert before is not None
        await asyncio.sleep(8)  # twice its idle time, with room: nothing happens, which is the test
        assert local_server.find() == before
    finally:
        await session.aclose()
        with contextlib.suppress(Exception):
            await eventually(lambda: local_server.find() is None, "its idle exit", 20)
        local_server.stop()
