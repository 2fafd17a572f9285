"""The field that a tool takes its code in is found in the tool's own language, or not at all."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest
from sandbox_server import Json, RunningSandbox, running_sandbox

from ivy_kernel.api.auth import Credential
from ivy_kernel.api.clients import IvyClient
from ivy_kernel.api.connection import Connection
from ivy_kernel.errors import BadRequestError, NoAnswerError, RouteError
from ivy_kernel.models import Cell, Message
from ivy_kernel.routes.one_call import NamedTool
from ivy_kernel.routes.tools import TOOLS, Language, SandboxTools, strings_in

CHAT_ID = "probes"
TOOL_SECONDS = 20.0
FIELDS = {
    "sandbox_python": "code",
    "sandbox_notebook": "code",
    "sandbox_rscript": "code",
    "sandbox_exec": "command",
}
"""As the settings say."""

HELLO = {
    "sandbox_python": "print('hel' + 'lo')",
    "sandbox_notebook": "print('hel' + 'lo')",
    "sandbox_rscript": "cat(paste0('hel', 'lo'))",
    "sandbox_exec": "echo hel''lo",
}

needs_r = pytest.mark.skipif(shutil.which("Rscript") is None, reason="there is no R here")
every_tool = pytest.mark.parametrize(
    "tool",
    [pytest.param(tool, marks=needs_r if tool == "sandbox_rscript" else ()) for tool in HELLO],
)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningSandbox]:
    """A server with one chat."""
    with running_sandbox() as running:
        running.ready(CHAT_ID)
        yield running


@pytest.fixture
def configured(server: RunningSandbox) -> Iterator[Any]:
    """Changes the server's configuration until the end of the test."""
    undone: Json = {"code_field": dict.fromkeys(HELLO), "max_code_chars": 0}

    def configure(**changes: Any) -> None:
        server.control(changes)

    yield configure
    server.control(undone)


class Watched:
    """The tools of a real sandbox, and every call that goes to them."""

    def __init__(self, client: IvyClient) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.fails_after_the_first: Exception | None = None
        self._client = client
        self.run_tool = client.run_tool
        client.run_tool = self._run_tool  # type: ignore[method-assign]  # the test listens

    async def _run_tool(
        self, chat_id: str, tool: str, parameters: Mapping[str, Any], **options: Any
    ) -> Any:
        self.calls.append((tool, dict(parameters)))
        if len(self.calls) > 1 and self.fails_after_the_first is not None:
            raise self.fails_after_the_first
        return await self.run_tool(chat_id, tool, parameters, **options)

    def tools(self, fields: dict[str, str] | None = None) -> SandboxTools:
        """Tools that have found nothing yet."""
        return SandboxTools(self._get_client, CHAT_ID, dict(FIELDS) if fields is None else fields)

    async def _get_client(self) -> IvyClient:
        return self._client

    @property
    def fields_tried(self) -> list[str]:
        """The field of each call, in order."""
        return [name for _, parameters in self.calls for name in parameters]


@pytest.fixture
async def watched(server: RunningSandbox) -> AsyncIterator[Watched]:
    """The client of the server, listened to."""
    client = IvyClient(Connection(server.url, Credential(lambda: server.token)), retry_seconds=0)
    yield Watched(client)
    await client.aclose()


@every_tool
async def test_the_field_of_every_tool_is_found(
    watched: Watched, configured: Any, tool: str
) -> None:
    """The code arrives after all, and the next call is one."""
    configured(code_field={tool: "script"})
    tools = watched.tools()
    for _ in range(2):
        result = await tools.run(tool, HELLO[tool], TOOL_SECONDS)
        assert any("hello" in text for text in strings_in(result))
    assert watched.fields_tried[-3:] == ["script"] * 3  # the probe, the code, the code again
    assert tools.found_fields == {tool: "script"}


@every_tool
async def test_a_tool_is_sent_nothing_but_its_own_language(
    watched: Watched, configured: Any, tool: str
) -> None:
    """No shell and no R is given Python to run, whichever field it goes into."""
    configured(code_field={tool: "input"})
    await watched.tools().run(tool, HELLO[tool], TOOL_SECONDS)
    begins = {"sandbox_rscript": "cat(", "sandbox_exec": "echo "}.get(tool, "import os")
    probes = [code for _, parameters in watched.calls for code in parameters.values()][1:-1]
    assert len(probes) > 1
    assert all(code.startswith(begins) for code in probes)


async def test_a_probe_without_an_answer_leaves_the_code_refused(
    watched: Watched, configured: Any
) -> None:
    """The code has provably not run, however its probe ended; and nobody is told otherwise."""
    configured(code_field={"sandbox_python": "script"})
    watched.fails_after_the_first = NoAnswerError("the network went")
    with pytest.raises(BadRequestError) as refusal:
        await watched.tools().run("sandbox_python", "print(1)", TOOL_SECONDS)
    assert refusal.value.__cause__ is watched.fails_after_the_first
    assert len(watched.calls) == 2


@pytest.mark.parametrize("tool", ["sandbox_read", "sandbox_nonsense"])
async def test_a_tool_of_no_known_language_is_not_probed(watched: Watched, tool: str) -> None:
    """Its refusal is the answer: who knows what it would do with a snippet."""
    with pytest.raises(BadRequestError):
        await watched.tools().run(tool, "print(1)", TOOL_SECONDS)
    assert watched.calls == [(tool, {"code": "print(1)"})]


@every_tool
async def test_a_refusal_for_another_reason_stays_what_it_is(
    watched: Watched, configured: Any, tool: str
) -> None:
    """Code that is too long is refused as that; when the field is known, nothing is probed."""
    configured(max_code_chars=1000)
    tools = watched.tools()
    too_long = HELLO[tool] + "\n" * 1000
    with pytest.raises(BadRequestError, match="1000 are allowed"):
        await tools.run(tool, too_long, TOOL_SECONDS)
    assert watched.fields_tried == [FIELDS[tool]] * 3  # the code, the probe, the code
    with pytest.raises(BadRequestError, match="1000 are allowed"):
        await tools.run(tool, too_long, TOOL_SECONDS)
    assert len(watched.calls) == 4


@pytest.mark.parametrize("tool", ["sandbox_python", "sandbox_exec"])
async def test_a_field_that_nobody_knows_is_told_with_all_that_were_tried(
    watched: Watched, configured: Any, tool: str
) -> None:
    """The error names the fields and the setting; its cause is what the tool said of the code."""
    configured(code_field={tool: "program_text"})
    with pytest.raises(RouteError, match="code_field") as raised:
        await watched.tools().run(tool, HELLO[tool], TOOL_SECONDS)
    for name in TOOLS[tool].language.fields:
        assert f"{name}: " in str(raised.value)
    assert isinstance(raised.value.__cause__, BadRequestError)
    assert len(watched.calls) == 1 + len(TOOLS[tool].language.fields)


async def test_the_user_is_told_what_a_named_tool_said_itself(
    watched: Watched, configured: Any
) -> None:
    """Where no field is found for a shell command, its own refusal is the error."""
    configured(code_field={"sandbox_exec": "program_text"})
    tool = NamedTool("sandbox_exec", timeout_seconds=TOOL_SECONDS)
    with pytest.raises(BadRequestError, match="program_text"):
        await tool.execute(watched.tools(), Cell("echo 1", header={}), lambda _: None)


async def test_a_found_field_serves_the_tools_that_are_made_later(
    watched: Watched, configured: Any
) -> None:
    """Each named tool comes with tools of its own; the session's fields are shared."""
    configured(code_field={"sandbox_exec": "cmd"})
    shared = dict(FIELDS)
    shown: list[Message] = []
    for _ in range(2):
        tool = NamedTool("sandbox_exec", timeout_seconds=TOOL_SECONDS)
        cell = Cell(HELLO["sandbox_exec"], header={})
        await tool.execute(watched.tools(shared), cell, shown.append)
    assert [message.content["text"] for message in shown] == ["hello\n"] * 2
    assert watched.fields_tried[-2:] == ["cmd", "cmd"]
    assert watched.fields_tried.count("cmd") == 3  # the probe, and each command once


every_language = pytest.mark.parametrize(
    "language", dict.fromkeys(tool.language for tool in TOOLS.values())
)


@every_language
def test_a_snippet_that_is_only_repeated_is_no_answer(language: Language) -> None:
    """A tool that quotes what it does not understand has not run it."""
    snippet = language.snippet("0123abcd")
    repeated = {"error": [f"cannot read: {snippet}", {"input": snippet}]}
    assert language.find_answer(repeated, "0123abcd") is None


@every_language
def test_an_answer_with_another_nonce_is_none(language: Language) -> None:
    """What an earlier probe printed does not count."""
    printed = {"outputs": [{"text": "IVY-PROBE-aa:identity:12:345:3.12.1:\n"}]}
    assert language.find_answer(printed, "aa") is not None
    assert language.find_answer(printed, "bb") is None
