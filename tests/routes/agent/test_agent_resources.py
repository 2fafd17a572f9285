"""What the sandbox uses travels in the agent's answers, and explains a kernel's death."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from far_side import BareRunner, Far, kill, route_over, route_to
from sandbox_server import RunningSandbox, running_sandbox
from waiting import eventually

from ivy_kernel.agent.meters import TELL_SECONDS
from ivy_kernel.errors import SandboxLostError
from ivy_kernel.models import Gpu, Message, Meter, Namespace, Resources
from ivy_kernel.routes.agent.failures import Health
from ivy_kernel.routes.agent.frames import NoAgentError, to_resources
from ivy_kernel.routes.agent.requests import RequestTable
from ivy_kernel.routes.events import Event, KernelDied, ResourcesRead, describe_death

GIB = 1 << 30
FULL = Meter(15.9 * GIB, 16 * GIB)
HALF = Meter(8 * GIB, 16 * GIB)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[RunningSandbox]:
    """One server for all tests here."""
    with running_sandbox() as server:
        yield server


async def test_answers_tell_what_is_used_and_cost_no_call(sandbox: RunningSandbox) -> None:
    """Cells bring it in the call that they need anyway, and nothing is asked between them."""
    async with route_to(sandbox, kernel="shell") as far:
        for _ in range(3):  # the first ones find out that calls may overlap
            await far.run("1")
        memory = far.seen(ResourcesRead)[-1].resources.memory
        assert 0 < memory.used < memory.limit
        before = far.tools.calls
        await asyncio.sleep(TELL_SECONDS + 0.1)
        assert far.tools.calls == before
        assert (await far.run("1")).calls == 1
        newest = far.seen(ResourcesRead)[-1].resources
        assert newest.cpu.limit > 0
        assert newest.disk.used <= newest.disk.limit


async def test_a_killed_kernel_is_told_with_its_memory(sandbox: RunningSandbox) -> None:
    """Nothing is claimed that is not known: with room left, the figures alone are told."""
    async with route_to(sandbox, kernel="shell") as far:
        ran = await far.run("import os; os.getpid()")
        await kill(int(ran.result))
        with pytest.raises(SandboxLostError, match=r"was killed.*[\d.]+ of [\d.]+ GB"):
            await far.run("1")


@contextlib.asynccontextmanager
async def container(limit_bytes: int, place: Path) -> AsyncIterator[Far]:
    """A route whose agent and kernel live in a real control group with a limit."""
    group = Path("/sys/fs/cgroup/memory") / f"ivy-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(limit_bytes))
    except OSError:
        pytest.skip("no control group of version 1 can be made here")
    try:
        enter = f"echo $$ > {group}/cgroup.procs && exec {sys.executable} -I -S $0"
        async with route_over(BareRunner("/bin/sh", ["-c", enter], place), place) as far:
            yield far
    finally:
        await eventually(lambda: not (group / "cgroup.procs").read_text(), "all have ended")
        group.rmdir()


async def test_a_kernel_that_runs_out_of_memory_is_told_so(place: Path) -> None:
    """A real container with a limit, and a real end by the system."""
    async with container(300 << 20, place) as far:
        ran = await far.run("held = []\nwhile True: held.append(b'x' * (20 << 20))")
        assert ran.fate == "lost"
        words = str(ran.outcome.reply["evalue"])
        assert "the kernel in the sandbox was killed when memory ran out" in words
        assert "300 MB" in words
        assert (await far.run("1")).result == "1"


class Quiet:
    """Takes what a table of requests reports."""

    is_behind = False

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_background(self, message: Message) -> None:
        """Nothing is shown here."""

    def on_event(self, event: Event) -> None:
        """Keep it."""
        self.events.append(event)


DEATHS: list[tuple[dict[str, Any], str]] = [
    (
        {"memory": [FULL.used, FULL.limit], "oom_killed": True},
        "ran out: 15.9 of 16 GB were in use.",
    ),
    (
        {"memory": [HALF.used, HALF.limit], "oom_killed": True},
        "memory ran out: the limit is 16 GB.",
    ),
    (
        {"memory": [FULL.used, FULL.limit], "oom_killed": False},
        "killed, probably when memory ran out: 15.9 of 16 GB were in use.",
    ),
    ({"memory": [HALF.used, HALF.limit]}, "was killed; memory was at 8 of 16 GB a moment before."),
    ({"oom_killed": True}, "was killed, when memory ran out."),
    ({"memory": ["much", None], "oom_killed": "yes"}, "most often because the memory ran out."),
]


@pytest.mark.parametrize(("told", "words"), DEATHS)
async def test_a_death_says_what_is_known_and_no_more(told: dict[str, Any], words: str) -> None:
    """Certain where the system has counted it, probable where memory was nearly full."""
    quiet = Quiet()
    died = {"event": "died", "generation": 1, "code": -signal.SIGKILL, "lost": [], "words": ""}
    RequestTable(quiet, Namespace()).on_record({"c": "agent", "d": died | told})
    (event,) = quiet.events
    assert isinstance(event, KernelDied)
    assert words in event.sentence


def test_an_end_by_a_memory_error_is_called_so() -> None:
    """A Python that ended by itself has written why."""
    assert "because memory ran out" in describe_death(1, "Traceback …\nMemoryError\n")
    assert "exit code 1" in describe_death(1, "Traceback …\nValueError: MemoryError\n")
    assert "memory" not in describe_death(1, "ValueError: MemoryError")


def test_an_agent_that_is_gone_is_told_with_its_last_memory() -> None:
    """Where the platform has ended the whole sandbox nobody counts: what was heard last is told."""

    class Listener:
        def on_failed_call(self, error: Exception) -> None: ...
        def on_reachable(self, error: Exception | None) -> None: ...
        def on_connection_lost(self, reason: Exception) -> None: ...

    def verdict(memory: Meter) -> str:
        health = Health(Listener(), give_up_seconds=60)
        health.resources = Resources(memory=memory)
        found = [
            health.failed(NoAgentError(111, "refused"), 1.0, may_be_running=True) for _ in range(3)
        ]
        return str(found[-1])

    assert "Memory was at 15.9 of 16 GB when it was last heard of." in verdict(FULL)
    assert re.search(r"\)\.$", verdict(HALF))


ABSURD = [
    None,
    [],
    {},
    {"memory": [1, 0]},
    {"memory": [True, True], "cpu": [-1, 2], "disk": [float("nan"), 1], "gpus": 5},
    {"memory": [1, 1e300], "cpu": "2", "disk": [1, 2, 3], "gpus": [["A", 1, 2], [5, 1, 2, 3]]},
]


@pytest.mark.parametrize("value", ABSURD)
def test_what_makes_no_sense_is_left_out(value: object) -> None:
    """The header comes from the sandbox, and may say anything."""
    assert to_resources(value) is None


def test_what_makes_sense_is_kept_and_names_are_plain() -> None:
    """A GPU's name is shown, so that no terminal may obey it."""
    found = to_resources({"memory": [1, 2], "cpu": None, "gpus": [["A\x1b[31m100", None, 1, 4]]})
    assert found == Resources(memory=Meter(1, 2), gpus=(Gpu("A[31m100", None, Meter(1, 4)),))
