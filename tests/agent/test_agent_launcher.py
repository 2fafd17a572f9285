"""What the way in which ipykernel is started is good for."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from far_side import BareRunner, route_over

LARGE = "from IPython.display import display; display({'text/plain': 'x' * 300_000}, raw=True)"


async def test_a_large_output_is_no_reason_to_listen_between_cells(place: Path) -> None:
    """The thread that pyzmq uses for it is not taken for one of the user's, which may speak."""
    async with route_over(BareRunner(sys.executable, (), place), place) as far:
        await far.run(LARGE)
        await far.run("1")
        calls = far.tools.calls
        await asyncio.sleep(1.5)  # it would have begun to listen after 0.3 s
        assert far.tools.calls == calls


async def test_what_a_child_process_prints_comes_before_the_end(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever stops listening at the end of a cell, as nbclient does, misses nothing."""
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # under which ipykernel ignores child processes
    async with route_over(BareRunner(sys.executable, (), place), place) as far:
        for number in range(20):
            ran = await far.run(f"import subprocess; subprocess.run(['echo', 'child {number}'])")
            assert ran.text == f"child {number}\n"


async def test_random_numbers_with_a_seed_are_those_of_the_seed(place: Path) -> None:
    """The agent's questions whether the kernel is there draw none; IPython's banner would."""
    asked = "[get_ipython().kernel.kernel_info['banner'] for _ in range(3)]"
    code = f"import random; seeded = random.getstate(); {asked}; random.getstate() == seeded"
    async with route_over(BareRunner(sys.executable, (), place), place) as far:
        assert (await far.run(code)).result == "True"
