"""The server against the platform's own contract, with generated requests."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sandbox_server import REPOSITORY, RunningSandbox, running_sandbox
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from ivy_kernel.local_sandbox.tools import TOOLS

_SHARED = Path(os.environ.get("IVY_SHARED") or REPOSITORY.parent / "shared")
_CONTRACT = _SHARED / "api" / "ivy-sandbox.openapi.yaml"
_RECOUP = _SHARED / "api" / "recoup-sandbox.openapi.yaml"

if not (_CONTRACT.is_file() and _RECOUP.is_file()):
    pytest.skip(
        f"the contracts are not in {_CONTRACT.parent}; set IVY_SHARED to what holds api/",
        allow_module_level=True,
    )

_ivy = schemathesis.openapi.from_path(_CONTRACT)
_documented = _ivy.exclude(
    lambda context: context.operation.definition.raw.get("x-undocumented", False)
)
_undocumented = _ivy.include(
    lambda context: context.operation.definition.raw.get("x-undocumented", False)
)
_recoup = schemathesis.openapi.from_path(_RECOUP)
_tool = _ivy["/v1/sandbox/{chatId}/tool/{toolName}"]["POST"]

_CHECKS = [status_code_conformance, response_schema_conformance, content_type_conformance]
_few = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def contract() -> Iterator[tuple[RunningSandbox, requests.Session]]:
    """A server with an active chat ``c``, and an HTTP session without proxies."""
    settings_of_server = {"sessions": {"a-session": "local"}}
    with running_sandbox(settings_of_server, token="contract-token") as server:
        server.ready("c")
        with requests.Session() as session:
            session.trust_env = False
            yield server, session


def _call(
    case: schemathesis.Case, contract: tuple[RunningSandbox, requests.Session], base_url: str = ""
) -> schemathesis.Response:
    server, session = contract
    headers = {"Authorization": f"Bearer {server.token}"}
    # Generated credentials would be refused: those are tried by tests of their own.
    case.headers = {k: v for k, v in (case.headers or {}).items() if "key" not in k.lower()}
    case.cookies = {}
    return case.call(base_url=base_url or server.url, session=session, headers=headers)


@_documented.parametrize()
@_few
def test_documented_routes_conform(
    case: schemathesis.Case, contract: tuple[RunningSandbox, requests.Session]
) -> None:
    """Every answer has a documented status, and a body as documented for it."""
    response = _call(case, contract)
    case.validate_response(response, checks=_CHECKS)


@_documented.parametrize()
@_few
def test_without_credentials_everything_is_401(
    case: schemathesis.Case, contract: tuple[RunningSandbox, requests.Session]
) -> None:
    """Every request without a token is refused."""
    server, session = contract
    case.headers, case.cookies = {}, {}
    response = case.call(base_url=server.url, session=session, auth=None)
    # Some cases try a method that HTTP does not know, which is refused before anything else.
    assert response.status_code in (401, 405)
    case.validate_response(response, checks=_CHECKS)


@_undocumented.parametrize()
@_few
def test_undocumented_routes_answer_in_json(
    case: schemathesis.Case, contract: tuple[RunningSandbox, requests.Session]
) -> None:
    """Where only a route's name is known, every answer is a JSON object and no 5xx."""
    response = _call(case, contract)
    assert response.status_code < 500
    assert isinstance(json.loads(response.content), dict)


@pytest.mark.parametrize("tool", TOOLS)
def test_every_tool_conforms_for_any_parameters(
    tool: str, contract: tuple[RunningSandbox, requests.Session]
) -> None:
    """Generated parameters, right and wrong, never lead to a status that is not documented."""

    @given(case=_tool.as_strategy(), name=st.sampled_from(_NAMES), value=_values)
    @_few
    def run(case: schemathesis.Case, name: str, value: object) -> None:
        case.path_parameters = {"chatId": "c", "toolName": tool}
        if isinstance(case.body, dict):
            case.body = {**case.body, name: value}
        response = _call(case, contract)
        case.validate_response(response, checks=_CHECKS)
        assert response.status_code in (200, 400, 504)

    run()


_NAMES = ["path", "pattern", "content", "glob", "limit", "offset", "recursive", "old_string"]
_values = st.one_of(
    st.text(max_size=20), st.integers(), st.booleans(), st.none(), st.lists(st.integers())
)


@_recoup.parametrize()
@_few
def test_recoups_route_conforms(
    case: schemathesis.Case, contract: tuple[RunningSandbox, requests.Session]
) -> None:
    """Status and body of every answer are as Recoup documents them."""
    response = _call(case, contract, base_url=contract[0].url.removesuffix("/api"))
    case.validate_response(response, checks=_CHECKS)


@pytest.mark.parametrize("session_id", ["a-session", "session-of-c"])
def test_recoups_status_matches_its_schema(
    contract: tuple[RunningSandbox, requests.Session], session_id: str
) -> None:
    """The state of a session with and without a sandbox is a valid SandboxStatus."""
    operation = _recoup["/api/sandbox/status"]["GET"]
    case = operation.Case(query={"sessionId": session_id})
    response = _call(case, contract, base_url=contract[0].url.removesuffix("/api"))
    assert response.status_code == 200
    case.validate_response(response, checks=_CHECKS)
