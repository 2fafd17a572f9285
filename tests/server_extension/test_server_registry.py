"""The registry in this process, before a platform that accepts requests and may never answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping

import pytest
from traitlets.config import Config

from ivy_kernel.errors import RateLimitedError
from ivy_kernel.server_extension import sandbox
from ivy_kernel.server_extension.errors import UnknownSandboxError
from ivy_kernel.server_extension.sandboxes import SandboxRegistry
from ivy_kernel.server_extension.targets import UNSET_ID, AttachedKernel

BODY = b'{"status": "active", "phase": "ready"}'
LIMITED = (
    b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 600\r\nContent-Length: 0\r\n"
    b"Connection: close\r\n\r\n"
)


class FakePlatform:
    """Answers each look with an active sandbox, or never; each action with 429."""

    def __init__(self) -> None:
        self.answers = True
        self.asked = 0
        self.creates = 0
        self.asked_again = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._begin, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/api"

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await reader.readuntil(b"\r\n\r\n")
            if request.startswith(b"POST"):
                self.creates += 1
                writer.write(LIMITED)
                await writer.drain()
                return
            self.asked += 1
            if self.asked > 1:
                self.asked_again.set()
            if self.answers:
                head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
                writer.write(head + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY)
                await writer.drain()
            else:
                await reader.read()  # until they hang up
        finally:
            writer.close()

    async def stop(self) -> None:
        """Hang up."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._server.close()
        await self._server.wait_closed()


@pytest.fixture
async def platform() -> AsyncIterator[FakePlatform]:
    """The platform."""
    fake = FakePlatform()
    await fake.start()
    yield fake
    await fake.stop()


async def no_kernels() -> Mapping[str, AttachedKernel]:
    """A server without kernels."""
    return {}


@pytest.fixture
async def registry(
    platform: FakePlatform, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[SandboxRegistry]:
    """A registry whose settings name a chat on the platform; its patience is short."""
    monkeypatch.setenv("IVY_API_URL", platform.url)
    monkeypatch.setenv("IVY_API_KEY", "ivy_key_of_a_test")
    monkeypatch.setenv("IVY_CHAT_ID", "a-chat")
    monkeypatch.setenv("IVY_CAMPAIGN_ID", "a-campaign")
    monkeypatch.setattr(sandbox, "FIRST_READING_SECONDS", 0.3)
    made = SandboxRegistry(Config(), no_kernels, logging.getLogger("test"))
    yield made
    await made.aclose()


async def test_a_platform_that_never_answers_holds_nobody_up(
    registry: SandboxRegistry, platform: FakePlatform
) -> None:
    """The list comes in time, and says that nothing is known yet."""
    platform.answers = False
    began = time.monotonic()
    await registry.update()
    assert time.monotonic() - began < 2.0
    status = registry.to_json()["sandboxes"][0]["status"]
    assert (status["state"], status["stale"], status["age_ms"]) == ("unknown", True, None)


async def test_reconnect_frees_a_request_that_hangs(
    registry: SandboxRegistry, platform: FakePlatform
) -> None:
    """A connection that has died without a word is dropped, and the platform is asked anew."""
    platform.answers = False
    await registry.update()
    assert platform.asked == 1
    platform.answers = True
    sandbox_id = registry.to_json()["sandboxes"][0]["id"]
    await asyncio.wait_for(registry.act(sandbox_id, "reconnect"), 5)
    status = registry.sandbox_json(sandbox_id)["status"]
    assert (status["state"], status["stale"]) == ("active", False)


async def test_who_is_told_to_wait_waits_with_everything(
    registry: SandboxRegistry, platform: FakePlatform
) -> None:
    """After a create was answered by 429 with Retry-After, the status is left alone as well."""
    await registry.update()
    sandbox_id = registry.to_json()["sandboxes"][0]["id"]
    with pytest.raises(RateLimitedError) as caught:
        await asyncio.wait_for(registry.act(sandbox_id, "create"), 10)
    assert caught.value.retry_after_seconds == 600
    asked = platform.asked
    await asyncio.wait_for(registry.act(sandbox_id, "reconnect"), 5)
    assert platform.asked == asked


async def test_the_same_action_at_the_same_time_is_one(
    registry: SandboxRegistry, platform: FakePlatform
) -> None:
    """Five tabs that create at once cause one request, and each is told how it ended."""
    await registry.update()
    sandbox_id = registry.to_json()["sandboxes"][0]["id"]
    acts = [registry.act(sandbox_id, "create") for _ in range(5)]
    outcomes = await asyncio.wait_for(asyncio.gather(*acts, return_exceptions=True), 10)
    assert [type(outcome) for outcome in outcomes] == [RateLimitedError] * 5
    assert platform.creates == 1
    with pytest.raises(RateLimitedError):  # a later one is another
        await asyncio.wait_for(registry.act(sandbox_id, "create"), 10)
    assert platform.creates == 2


async def test_an_active_sandbox_is_not_asked_as_often_as_one_that_starts(
    registry: SandboxRegistry, platform: FakePlatform
) -> None:
    """The monitor does not take its own answers for news that call for haste."""
    with registry.listen():
        await registry.update()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(platform.asked_again.wait(), 2.5)


async def test_who_comes_back_after_a_while_gets_a_new_status(
    registry: SandboxRegistry, platform: FakePlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that is loaded again does not show what was true when it was left."""
    monkeypatch.setattr("ivy_kernel.server_extension.sandboxes.LINGER_SECONDS", 0.0)
    monkeypatch.setattr("ivy_kernel.server_extension.sandboxes.SCAN_SECONDS", 0.05)
    monkeypatch.setattr(sandbox, "FIRST_READING_SECONDS", 5.0)
    with registry.listen():
        await registry.update()
    assert platform.asked == 1
    assert registry._task is not None
    await asyncio.wait([registry._task], timeout=5)  # until nobody watches any more
    with registry.listen():
        await registry.update()
        assert platform.asked == 2
        await registry.update()
        assert platform.asked == 2


async def test_a_closed_registry_ends_its_listeners_and_forgets_all(
    registry: SandboxRegistry,
) -> None:
    """Who listens is told that it is over, now and later."""
    with registry.listen() as listener:
        await registry.update()
        await registry.aclose()
        assert listener.ended
    with registry.listen() as listener:
        assert listener.ended
    with pytest.raises(UnknownSandboxError):
        registry.sandbox_json(UNSET_ID)
    await registry.aclose()  # harmless


async def test_a_fault_in_looking_up_kernels_is_logged_once(
    registry: SandboxRegistry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The registry looks again and again, but does not fill the log with the same complaint."""
    monkeypatch.setattr("ivy_kernel.server_extension.sandboxes.SCAN_SECONDS", 0.01)
    looks: list[None] = []
    looked_often = asyncio.Event()

    def broken() -> object:
        looks.append(None)
        if len(looks) > 4:
            looked_often.set()
        raise ValueError("a fault")

    monkeypatch.setattr(registry._resolver, "settings_fingerprint", broken)
    with registry.listen():
        await asyncio.wait_for(looked_often.wait(), 5)
    assert caplog.text.count("could not be found out") == 1


async def test_a_person_who_asks_gets_a_new_status(
    registry: SandboxRegistry, platform: FakePlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fresh look asks the platform again although the known status would still do."""
    monkeypatch.setattr(sandbox, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(sandbox, "FIRST_READING_SECONDS", 5.0)
    with registry.listen():
        await registry.update()
        await registry.update()
        assert platform.asked == 1
        await registry.update(fresh=True)
        assert platform.asked == 2
