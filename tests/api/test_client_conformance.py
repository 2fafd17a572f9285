"""The client and the real local sandbox, which were written apart: every operation, for real."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from api_calls import ivy
from sandbox_server import RunningSandbox, running_sandbox
from waiting import eventually

from ivy_kernel.api.clients import IvyClient, RecoupClient, recoup_credential
from ivy_kernel.api.connection import Connection
from ivy_kernel.errors import (
    BadRequestError,
    CreationFailedError,
    CredentialsError,
    ForbiddenError,
    IvyError,
    NotFoundError,
    NotReadyError,
    RateLimitedError,
    SandboxBrokenError,
    ToolTimeoutError,
)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[RunningSandbox]:
    """One server for all tests here, each of which uses chats of its own."""
    with running_sandbox({"tokens": {"ivy_somebody-elses-key": "somebody"}}) as server:
        yield server


async def reach(client: IvyClient, chat_id: str, state: str) -> None:
    """Read the status until it is this one."""
    for _ in range(1000):
        if (await client.status(chat_id)).body["status"] == state:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{chat_id} did not become {state}")


def recoup(server: RunningSandbox, key: str = "") -> RecoupClient:
    """Recoup's client on the local sandbox."""
    url = server.url.removesuffix("/api")
    return RecoupClient(Connection(url, recoup_credential(lambda: key or server.token)))


async def test_the_whole_life_of_a_sandbox(sandbox: RunningSandbox) -> None:
    """Create, status, tools, manifest, terminate, and create again."""
    chat = "life"
    async with ivy(sandbox.url, key=sandbox.token) as client:
        assert (await client.status(chat)).body["status"] == "none"
        created = await client.create(session_id="s-life", chat_id=chat, campaign_id="c-life")
        assert created.status_code in (200, 202)
        assert created.server_date is not None
        await reach(client, chat, "active")
        result = await client.run_tool(
            chat, "sandbox_python", {"code": "print(6 * 7)"}, timeout_seconds=30
        )
        assert "42" in str(result)
        shown = await client.run_tool(
            chat, "sandbox_exec", {"command": "echo hal$((1))o"}, timeout_seconds=9
        )
        assert "hal1o" in str(shown)
        await client.run_tool(
            chat, "sandbox_write", {"path": "kept.txt", "content": "x"}, timeout_seconds=30
        )
        await client.run_tool(chat, "sandbox_export", {"path": "kept.txt"}, timeout_seconds=30)
        assert "kept.txt" in str(await client.manifest(chat))
        assert (await client.terminate(chat)).status_code == 200
        assert (await client.status(chat)).body["status"] == "none"
        again = await client.create(session_id="s-life", chat_id=chat, campaign_id="c-life")
        assert again.status_code in (200, 202)


async def test_recoups_status(sandbox: RunningSandbox) -> None:
    """By ``x-api-key`` alone, before and after the session's sandbox is there."""
    sandbox.ready("recoup-chat", "recoup session/1", "camp")
    client = recoup(sandbox)
    try:
        body = (await client.status("recoup session/1")).body
        assert body["status"] == "active"
        assert body["lifecycle"]["state"] == "active"
        with pytest.raises(NotFoundError, match="there is no session 'nobody'"):
            await client.status("nobody")
        with pytest.raises(BadRequestError, match="set recoup_session_id"):
            await client.status("")
    finally:
        await client.aclose()


async def test_two_creates_at_once_join(sandbox: RunningSandbox) -> None:
    """200 for one and 202 for the other, or two that are ready: one sandbox."""
    sandbox.control({"provision_seconds": {"compute": 20.0}})
    try:
        async with ivy(sandbox.url, key=sandbox.token) as client:
            answers = await asyncio.gather(
                *(
                    client.create(session_id="s", chat_id="joined", campaign_id="c")
                    for _ in range(3)
                )
            )
            with pytest.raises(NotReadyError) as caught:
                await client.run_tool(
                    "joined", "sandbox_python", {"code": "1"}, timeout_seconds=5, retry=False
                )
    finally:
        sandbox.control({"provision_seconds": {"compute": 0.0}})
        sandbox.call("POST", "/v1/sandbox/joined/terminate")
    assert sorted(each.status_code for each in answers) == [200, 202, 202]
    assert "SANDBOX_NOT_READY" in (caught.value.code, caught.value.detail)


async def test_odd_chat_ids_mean_the_same_chat_on_both_sides(sandbox: RunningSandbox) -> None:
    """What is quoted here is unquoted there, for every route."""
    for chat in ("a b", "é-🐍", "a+b&c=d", "50%25"):
        async with ivy(sandbox.url, key=sandbox.token) as client:
            await client.create(session_id=f"s {chat}", chat_id=chat, campaign_id="c")
            await reach(client, chat, "active")
            await client.terminate(chat)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("", CredentialsError),
        ("ivy_wrong-key-000", CredentialsError),
        ("ivy_somebody-elses-key", ForbiddenError),
    ],
)
async def test_wrong_credentials_are_refused_on_every_route(
    key: str, expected: type[IvyError], sandbox: RunningSandbox
) -> None:
    """401 without or with a wrong key, 403 with somebody else's, on all routes of both APIs."""
    sandbox.ready("owned", "owned-session", "owned-campaign")
    ids = {"session_id": "owned-session", "chat_id": "owned", "campaign_id": "owned-campaign"}
    async with ivy(sandbox.url, key=key) as client:
        calls = [
            client.create(**ids),
            client.status("owned"),
            client.run_tool("owned", "sandbox_python", {"code": "1"}, timeout_seconds=5),
            client.manifest("owned"),
            client.terminate("owned"),
        ]
        for call in calls:
            with pytest.raises(expected):
                await call
    if key:
        other = recoup(sandbox, key)
        try:
            with pytest.raises(expected):
                await other.status("owned-session")
        finally:
            await other.aclose()
    assert sandbox.status("owned")["status"] == "active"


async def test_refused_parameters_are_told(sandbox: RunningSandbox) -> None:
    """400 for an unknown tool and a wrong campaign."""
    sandbox.ready("refused", campaign_id="right")
    async with ivy(sandbox.url, key=sandbox.token) as client:
        with pytest.raises(BadRequestError, match="run sandbox_nothing"):
            await client.run_tool("refused", "sandbox_nothing", {}, timeout_seconds=5)
        with pytest.raises(BadRequestError, match="campaign 'wrong'"):
            await client.create(session_id="s", chat_id="refused", campaign_id="wrong")


async def test_a_tool_beyond_its_budget_is_a_tool_timeout(sandbox: RunningSandbox) -> None:
    """504: the sentence names the budget that was asked for."""
    sandbox.ready("slow")
    async with ivy(sandbox.url, key=sandbox.token) as client:
        with pytest.raises(ToolTimeoutError, match=r"budget of 0\.5 s"):
            await client.run_tool(
                "slow",
                "sandbox_python",
                {"code": "import time; time.sleep(30)"},
                timeout_seconds=0.5,
            )


@pytest.mark.parametrize(("status", "expected"), [(500, CreationFailedError), (503, NotReadyError)])
async def test_a_create_that_fails_is_told(
    status: int, expected: type[IvyError], sandbox: RunningSandbox
) -> None:
    """500 and 503, each as its own error."""
    sandbox.control({"create_error": status})
    try:
        async with ivy(sandbox.url, key=sandbox.token) as client:
            with pytest.raises(expected):
                await client.create(session_id="s", chat_id=f"fails-{status}", campaign_id="c")
    finally:
        sandbox.control({"create_error": 0})


async def test_a_sandbox_that_failed_to_start_is_broken(sandbox: RunningSandbox) -> None:
    """502: the status says failed, and a tool says that it will not recover."""
    sandbox.control({"provision_fails_in": "mount"})
    try:
        async with ivy(sandbox.url, key=sandbox.token) as client:
            await client.create(session_id="s", chat_id="broken", campaign_id="c")
            await reach(client, "broken", "failed")
            with pytest.raises(SandboxBrokenError, match="%ivy terminate"):
                await client.run_tool("broken", "sandbox_python", {"code": "1"}, timeout_seconds=5)
    finally:
        sandbox.control({"provision_fails_in": ""})


@pytest.mark.parametrize("form", ["seconds", "date"])
async def test_a_rate_limit_is_kept_within(form: str) -> None:
    """The server's limit is met by waiting as long as it asks: all calls end well."""
    rule = {"requests": 3, "per_seconds": 1.0, "retry_after": form}
    with running_sandbox({"rate_limit": rule}) as server:
        async with ivy(server.url, key=server.token, retry_seconds=20) as client:
            for _ in range(5):
                assert (await client.status("limited")).body["status"] == "none"
        async with ivy(server.url, key=server.token) as client:
            answers = await asyncio.gather(
                *(client.status("limited") for _ in range(5)), return_exceptions=True
            )
        refusals = [each for each in answers if isinstance(each, RateLimitedError)]
        assert refusals
        assert all(each.retry_after_seconds is not None for each in refusals)


async def test_a_tool_that_runs_on_is_not_run_again_when_the_caller_goes(
    sandbox: RunningSandbox,
) -> None:
    """A cancelled call leaves one run behind, never two."""
    sandbox.ready("once")
    code = "open('runs', 'a').write('x')\nimport time; time.sleep(0.2)"
    async with ivy(sandbox.url, key=sandbox.token, retry_seconds=20) as client:
        call = asyncio.ensure_future(
            client.run_tool("once", "sandbox_notebook", {"code": code}, timeout_seconds=20)
        )
        runs = sandbox.root

        def written() -> list[str]:
            return [path.read_text() for path in runs.rglob("runs")]

        await eventually(lambda: any(written()), "the cell's start", 30)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await client.run_tool("once", "sandbox_python", {"code": "1"}, timeout_seconds=20)
    await eventually(lambda: written() == ["x"], "exactly one run", 5)
