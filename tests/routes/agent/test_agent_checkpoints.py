"""Checkpoints through the agent: in a real ipykernel and in the built-in shell."""

from __future__ import annotations

import asyncio
import base64
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from far_side import BareRunner, Far, route_over

from ivy_kernel.errors import WorkError
from ivy_kernel.routes.agent.programs import work_archive

pytestmark = pytest.mark.asyncio

CONFIGURE: dict[str, Any] = {
    "do": "configure",
    "archive": base64.b64encode(work_archive()).decode("ascii"),
    "key": "ab" * 32,
    "chat": "chat",
    "notebook": "notebook",
    "directory": ".ivy/notebook",
    "checkpoints": True,
    "receipts": False,
    "space_bytes": 1 << 28,
}
CELLS = (
    "import random; random.seed(1)\n"
    "class Pair:\n    def __init__(self): self.items = []\npair = Pair()",
    "items = pair.items; random.random()\ndef total(): return sum(items)",
    "items.append(5); total()",
    "f = open('/dev/null')",
)
CHECK = "pair.items.append(2); (total(), type(pair) is Pair, random.random())"


@pytest.fixture
def place() -> Iterator[Path]:
    """A working directory with a short path."""
    path = Path(tempfile.mkdtemp(prefix="ivy-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


async def checkpointed(far: Far, first: int) -> dict[str, Any]:
    """Run cells until the reply of one tells of a checkpoint; return its summary."""
    for count in range(100):
        ran = await far.run("pass", execution_count=first + count)
        found = ran.outcome.metadata["ivy"]
        if found.get("checkpoint", {}).get("number", 0) >= first - 1:
            return dict(found["checkpoint"])
        await asyncio.sleep(0.05)
    raise AssertionError("no reply told of a checkpoint")


@pytest.mark.parametrize("kernel", ["ipykernel", "shell"])
async def test_variables_outlive_their_kernel(kernel: str, place: Path) -> None:
    """After each cell a checkpoint is written; a new kernel goes on as the old one would have."""
    async with route_over(BareRunner(sys.executable, (), place), place, kernel=kernel) as far:
        await far.run("1")
        with pytest.raises(WorkError, match="not configured"):
            await far.route.work({"do": "index"})
        assert (await far.route.work(CONFIGURE))["index"] is None
        for count, cell in enumerate(CELLS, 2):
            ran = await far.run(cell, execution_count=count)
            assert ran.fate == "succeeded"
        summary = await checkpointed(far, 6)
        assert summary["missing"]["f"]["cell"] == 5
        expected = await far.run(CHECK)
        assert expected.result.startswith("(7, True, 0.")
        names = await far.run("sorted(n for n in globals() if 'ivy' in n.lower())")
        assert names.result == ("[]" if kernel == "ipykernel" else "['__ivy__']")
    async with route_over(BareRunner(sys.executable, (), place), place, kernel=kernel) as far:
        await far.run("pass")
        configured = await far.route.work(CONFIGURE)
        assert configured["index"]["sequence"] >= summary["sequence"]
        reply = await far.route.work({"do": "restore", "at": summary["number"]})
        assert set(reply["missing"]) == {"f"}
        restored = await far.run(CHECK, execution_count=reply["number"] + 1)
        assert restored.result == expected.result
        assert restored.text == ""  # nothing of IPython's history, whose numbers begin anew
        numbers = [
            m.content["execution_count"]
            for m in restored.messages
            if m.msg_type == "execute_result"
        ]
        assert numbers == [reply["number"] + 1]
        with pytest.raises(WorkError, match="no work called 'nothing'"):
            await far.route.work({"do": "nothing"})


async def test_what_is_asked_of_a_kernel_beside_cells_draws_no_random_number(place: Path) -> None:
    """IPython's banner, which the answer to each of the agent's pings has, would draw one."""
    async with route_over(BareRunner(sys.executable, (), place), place) as far:
        await far.run("import random; random.seed(7); before = random.getstate()")
        asked = "for _ in range(3): assert get_ipython().kernel.kernel_info['banner']"
        assert (await far.run(asked)).fate == "succeeded"
        assert (await far.run("random.getstate() == before")).result == "True"
