"""A sandbox that goes to sleep under a transfer: that is told, and the transfer goes on later."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from sandbox_files import files_of
from sandbox_server import RunningSandbox
from waiting import eventually

from ivy_kernel.errors import NoSandboxError
from ivy_kernel.session import large_files, transfer
from ivy_kernel.session.transfer import ChunkSize, TransferState

SIZE = 300_001


class Stopper:
    """Cancels a transfer when half of it is done, as an interrupt does."""

    def __init__(self) -> None:
        self.task: asyncio.Task[object] | None = None

    def on_progress(self, state: TransferState) -> None:
        """Take a state."""
        if self.task is not None and state.done_bytes > SIZE // 2:
            self.task.cancel()


@pytest.mark.parametrize("direction", ["up", "down"])
async def test_a_transfer_goes_on_after_a_hibernation(
    server: RunningSandbox,
    changed: Callable[..., None],
    chat_id: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    direction: str,
) -> None:
    """Asleep it wakes nothing and says what to do; resumed, it moves only what is missing."""
    monkeypatch.setattr(transfer, "SMALL_BYTES", 4 << 10)
    monkeypatch.setattr(transfer, "PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr(large_files, "SMALLEST_RANGE_BYTES", 16 << 10)
    monkeypatch.setattr(ChunkSize.__init__, "__defaults__", (16 << 10, 4 << 10, 64 << 10))
    server.ready(chat_id, f"session-of-{chat_id}", f"campaign-of-{chat_id}")
    content = os.urandom(SIZE)
    source, there = tmp_path / "source.bin", server.root / chat_id / "file.bin"
    target = there if direction == "up" else tmp_path / "file.bin"
    (source if direction == "up" else there).write_bytes(content)
    files = files_of(server, chat_id)

    def move(stopper: Stopper | None = None) -> asyncio.Task[transfer.TransferResult]:
        if direction == "up":
            return asyncio.ensure_future(files.put(source, "file.bin", progress=stopper))
        return asyncio.ensure_future(files.get("file.bin", target, progress=stopper))

    try:
        stopper = Stopper()
        stopper.task = move(stopper)
        with pytest.raises(asyncio.CancelledError):
            await stopper.task
        assert not target.exists()
        changed(hibernate_seconds=0.2)
        await eventually(lambda: server.status(chat_id)["status"] == "none", "it sleeps")
        with pytest.raises(NoSandboxError, match="%ivy create"):
            await move()
        assert server.status(chat_id)["status"] == "none"
        changed(hibernate_seconds=None)
        server.ready(chat_id, f"session-of-{chat_id}", f"campaign-of-{chat_id}")
        result = await move()
    finally:
        await files.aclose()
    assert target.read_bytes() == content
    assert result.resumed_bytes > SIZE // 4
    assert result.sent_bytes == SIZE - result.resumed_bytes
