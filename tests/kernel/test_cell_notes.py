"""What a cell is told beside its own output stays in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import comm
import pytest
from kernel_driver import kernel_variables
from sandbox_server import RunningSandbox

from ivy_kernel.errors import NoAnswerError
from ivy_kernel.kernel.cells import CellRunner
from ivy_kernel.models import Cell, Message, Outcome
from ivy_kernel.routes.events import Unreachable

SHOWN_SECONDS = 20.0


class Host:
    """A kernel process that keeps the messages."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.shown = asyncio.Event()
        self.is_full = False

    async def settle(self) -> None:
        """Its front end has read all."""

    def publish(self, message: Message) -> None:
        """Keep a message."""
        self.messages.append(message)
        if message.msg_type == "display_data":
            self.shown.set()

    async def ask_user(self, prompt: str, *, is_secret: bool) -> str:
        """Nobody is asked here."""
        raise AssertionError

    def run_local(self, code: str, cell: Cell) -> Outcome:
        """There is no ``%%local`` here."""
        raise AssertionError


@pytest.mark.parametrize("silent", [False, True])
async def test_a_note_survives_the_end_of_a_starts_progress(
    server: RunningSandbox,
    new_chat: Callable[[], str],
    changed: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    *,
    silent: bool,
) -> None:
    """It counts as the cell's own, so the progress is blanked instead of all being cleared."""
    monkeypatch.setattr(comm, "create_comm", comm.create_comm)  # the runner puts its own there
    monkeypatch.setattr(comm, "get_comm_manager", comm.get_comm_manager)
    for name, value in kernel_variables(server, new_chat()).items():
        monkeypatch.setenv(name, value)
    changed(provision_seconds={"compute": 2.5, "mount": 0.0})
    host = Host()
    messages = host.messages
    runner = CellRunner(host, flags=None, connection_file="kernel-notes.json")
    running = asyncio.ensure_future(
        runner.execute(Cell("%ivy create", silent=silent, header={"msg_id": "1"}))
    )
    try:
        if not silent:
            await asyncio.wait_for(host.shown.wait(), SHOWN_SECONDS)
        await asyncio.sleep(0)
        # As the agent route tells it, when calls for a widget fail just then.
        runner._on_event(Unreachable(NoAnswerError("No whole answer came.")))
        assert (await asyncio.wait_for(running, SHOWN_SECONDS)).fate == "succeeded"
    finally:
        running.cancel()
        await runner.shutdown(restart=True)
    kinds = [message.msg_type for message in messages]
    if silent:
        assert kinds == []
        return
    assert "clear_output" not in kinds
    note = next(m for m in messages if m.content.get("name") == "stderr")
    assert "cannot be reached" in note.content["text"]
    assert messages[-2].content["data"]["text/plain"] == ""  # of the progress nothing stays
