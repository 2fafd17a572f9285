"""The one table of tools: every row is complete, and everything reads it."""

from __future__ import annotations

import pytest
from api_calls import CHAT, ivy
from scripted_server import ScriptedServer, json_answer

from ivy_kernel.api.clients import IvyClient
from ivy_kernel.local_sandbox.tools import TOOLS as LOCAL_TOOLS
from ivy_kernel.magics.options import LANGUAGES
from ivy_kernel.routes.tools import CAP_SECONDS, TOOLS, SandboxTools, Tool
from ivy_kernel.session.open import code_fields
from ivy_kernel.settings.settings import Ivy, load_settings, setting_names

every_row = pytest.mark.parametrize("tool", TOOLS.values(), ids=list(TOOLS))


@every_row
def test_every_tool_has_a_setting_for_its_code_field(tool: Tool) -> None:
    """The setting is there, and its default is a field that the probe would try."""
    assert tool.field_setting in setting_names()
    assert Ivy.class_traits()[tool.field_setting].default_value in tool.language.fields
    assert tool.name in Ivy.class_traits()[tool.field_setting].help


def test_every_setting_of_a_code_field_belongs_to_one_tool() -> None:
    """No setting is left without a tool, and no two tools share one."""
    fields = [name for name in setting_names() if name.endswith("_field")]
    assert sorted(tool.field_setting for tool in TOOLS.values()) == sorted(fields)


def test_the_session_gets_the_field_of_every_tool() -> None:
    """What a setting says is what the tool of its row is called with."""
    wanted = {tool.field_setting: f"field_of_{tool.name}" for tool in TOOLS.values()}
    settings = load_settings(arguments=wanted, environ={}, config_path=[])
    assert code_fields(settings) == {name: f"field_of_{name}" for name in TOOLS}


@every_row
def test_every_tool_has_a_cap(tool: Tool) -> None:
    """No cap is above the platform's own."""
    assert 0 < tool.cap_seconds <= CAP_SECONDS


@every_row
def test_every_tool_has_a_probe(tool: Tool) -> None:
    """The snippet and its answer are of one call: both hold its nonce."""
    assert "{nonce}" in tool.language.snippet_format
    assert "{nonce}" in tool.language.answer_format


@every_row
def test_the_local_sandbox_has_every_tool(tool: Tool) -> None:
    """So each one can be tried without an account."""
    assert tool.name in LOCAL_TOOLS


def test_every_word_of_a_language_chooses_one_tool() -> None:
    """No two tools share a word, and Python's own is left to the cells."""
    words = [tool.lang for tool in TOOLS.values() if tool.lang]
    assert len(words) == len(set(words))
    assert {
        "python": "",
        **{tool.lang: tool.name for tool in TOOLS.values() if tool.lang},
    } == LANGUAGES


@pytest.mark.parametrize(
    ("tool", "wanted_seconds", "sent_seconds"),
    [
        ("sandbox_notebook", 900, 300),
        ("sandbox_notebook", 30, 30),
        ("sandbox_python", 900, 120),
        ("sandbox_exec", 900, 120),
        ("sandbox_rscript", 121, 120),
        ("sandbox_python", 0.5, 0.5),
        ("sandbox_read", 900, 300),
    ],
)
async def test_a_tool_gets_its_budget_and_its_own_fields(
    tool: str, wanted_seconds: float, sent_seconds: float
) -> None:
    """``timeout`` is cut to the documented caps; all other fields go as they are."""
    async with ScriptedServer(json_answer({})) as server, ivy(server.url) as client:

        async def connected() -> IvyClient:
            return client

        tools = SandboxTools(connected, CHAT, {})
        await tools.call(tool, {"a": [1, None]}, wanted_seconds)
    assert server.requests[0].method == "POST"
    assert server.requests[0].json == {"a": [1, None], "timeout": sent_seconds}
