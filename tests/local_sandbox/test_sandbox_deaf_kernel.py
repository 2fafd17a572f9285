"""The notebook tool, with a kernel that does not always notice a request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox_server import RunningSandbox, running_sandbox

DEAF_IPYKERNEL = Path(__file__).parents[1] / "support" / "deaf_ipykernel"


@pytest.fixture(scope="module")
def deaf() -> Iterator[RunningSandbox]:
    """A server whose kernels are deaf while they reply."""
    with running_sandbox({"environment": {"PYTHONPATH": str(DEAF_IPYKERNEL)}}) as running:
        running.ready("c")
        yield running


def test_cells_run_one_after_the_other(deaf: RunningSandbox) -> None:
    """The kernel starts, and each cell is noticed, though it comes while a reply is on its way."""
    for number in range(5):
        result = deaf.tool(
            "c", "sandbox_notebook", code=f"x = globals().get('x', 0) + 1; x, {number}"
        )
        assert f"({number + 1}, {number})" in str(result), result


def test_a_cell_that_is_stopped_is_known_to_have_ended(deaf: RunningSandbox) -> None:
    """What tells the end of the cell is noticed, so that its kernel need not be killed."""
    deaf.tool("c", "sandbox_notebook", code="kept = 'kept'")
    body = {"code": "import time; time.sleep(60)", "timeout": 1.0}
    status, _, _ = deaf.call("POST", "/v1/sandbox/c/tool/sandbox_notebook", body)
    assert status == 504
    assert "kept" in str(deaf.tool("c", "sandbox_notebook", code="kept"))
