"""The server against the platform's own contract, with generated requests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from sandbox_server import REPOSITORY, RunningSandbox, running_sandbox
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

_SHARED = Path(os.environ.get("IVY_SHARED") or REPOSITORY.parent / "shared")
_CONTRACT = _SHARED / "api" / "ivy-sandbox.openapi.yaml"

if not _CONTRACT.is_file():
    pytest.skip(
        f"the contract is not at {_CONTRACT}; set IVY_SHARED to the directory that holds api/",
        allow_module_level=True,
    )
