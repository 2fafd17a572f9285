"""Networks and gateways at their worst: nothing is lost, nothing runs twice, order is kept."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from far_side import Far, port_of, route_to, waits_for
from fault_proxy import ALL_FAULTS, FaultProxy, Faults
from sandbox_server import RunningSandbox, running_sandbox
from waiting import eventually

from ivy_kernel.errors import NetworkError, SandboxError
from ivy_kernel.routes.events import ReachableAgain, Unreachable

pytestmark = pytest.mark.asyncio(loop_scope="module")

CELLS = int(os.environ.get("IVY_FAULT_CELLS", "60"))
"""1000 for the long run."""

SERIAL_CELLS = max(15, CELLS // 4) if CELLS < 100 else CELLS
OUTAGE_SECONDS = 2.0


@pytest.fixture(scope="module")
def sandbox() -> Iterator[RunningSandbox]:
    """One server for all tests here."""
    with running_sandbox() as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def network(sandbox: RunningSandbox) -> AsyncIterator[FaultProxy]:
    """A network to the server that can be made worse."""
    async with FaultProxy(port_of(sandbox), Faults()).running() as proxy:
        yield proxy


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(sandbox: RunningSandbox, network: FaultProxy) -> AsyncIterator[Far]:
    """One session through that network for all tests that leave it living."""
    async with route_to(sandbox, proxy=network, kernel="shell") as far:
        await far.run("1")
        yield far


@pytest.fixture
def far(shared: Far, network: FaultProxy) -> Iterator[Far]:
    """The shared session, on a network that is whole again after each test."""
    network.counts.clear()
    network.reseed()
    yield shared
    network.faults = Faults()
    network.is_out = False


async def count(far: Far, cells: int, *, network_to_cut: FaultProxy | None = None) -> None:
    """Run numbered cells that leave three kinds of traces, and check each one's own output.

    In the middle of them a network may be cut for two seconds.
    """
    assert (await far.run("seen = []; open('seen.txt', 'w').close()")).fate == "succeeded"
    for number in range(cells):
        running = far.begin(
            f"seen.append({number})\n"
            f"with open('seen.txt', 'a') as file: print({number}, file=file)\n"
            f"print({number})"
        )
        if network_to_cut is not None and number == cells // 2:
            network_to_cut.is_out = True
            await asyncio.sleep(OUTAGE_SECONDS)
            network_to_cut.is_out = False
        ran = await running.end()
        assert (ran.fate, ran.text) == ("succeeded", f"{number}\n")


async def check(far: Far, cells: int) -> None:
    """All numbers are there, once, in order: in the list and in the file."""
    ran = await far.run("(seen, [int(line) for line in open('seen.txt')])")
    assert ran.result.replace("\n", "").replace(" ", "") == str((list(range(cells)),) * 2).replace(
        " ", ""
    )


@pytest.mark.timeout(60 + CELLS)
@pytest.mark.parametrize("has_outage", [False, True], ids=["", "with an outage"])
async def test_every_cell_runs_exactly_once_under_all_faults(
    sandbox: RunningSandbox, *, has_outage: bool
) -> None:
    """A fifth of the answers lost, 5 % of each other fault: no cell is lost or doubled."""
    async with (
        FaultProxy(port_of(sandbox), ALL_FAULTS).running() as proxy,
        route_to(sandbox, proxy=proxy) as far,
    ):
        await all_cells(far, proxy, CELLS, has_outage=has_outage)


@pytest.mark.timeout(60 + 2 * CELLS)
async def test_every_cell_runs_exactly_once_where_calls_are_queued() -> None:
    """The same where the platform runs one call at a time."""
    with running_sandbox(runner="serial") as server:
        async with (
            FaultProxy(port_of(server), ALL_FAULTS, seed=2).running() as proxy,
            route_to(server, proxy=proxy, kernel="shell") as far,
        ):
            await all_cells(far, proxy, SERIAL_CELLS)


async def all_cells(far: Far, proxy: FaultProxy, cells: int, *, has_outage: bool = False) -> None:
    """Run the cells on the bad network, look at their traces on a good one, print the figures."""
    started = time.monotonic()
    await count(far, cells, network_to_cut=proxy if has_outage else None)
    took = time.monotonic() - started
    proxy.faults = Faults()
    await check(far, cells)
    figures = f"{cells} cells: {took:.1f} s, {far.tools.calls} calls, {dict(proxy.counts)}"
    print(figures)  # noqa: T201 - the figures of the long run


@pytest.mark.parametrize(
    "fault", ["lost_answer", "lost_request", "broken_body", "cut_body", "dripped", "doubled"]
)
async def test_each_fault_alone(far: Far, network: FaultProxy, fault: str) -> None:
    """Half of all calls suffer from one fault; every cell runs once."""
    network.faults = Faults(**{fault: 0.5})
    await count_until_met(far, network, fault)


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_each_status_alone(far: Far, network: FaultProxy, status: int) -> None:
    """Half of all calls are answered with one error status; every cell runs once."""
    network.faults = Faults(statuses=((status, 0.5),))
    await count_until_met(far, network, str(status))


async def count_until_met(far: Far, network: FaultProxy, fault: str) -> None:
    """Run a few cells and look at their traces, again until the dice have brought the fault."""
    for _ in range(10):
        await count(far, 4)
        await check(far, 4)
        if network.counts[fault]:
            return
    raise AssertionError(f"{fault} did not come up")


async def test_retry_after_is_honoured(far: Far, network: FaultProxy) -> None:
    """After a 429 nothing is sent before the time that it names."""
    await far.run("1")
    network.faults = Faults(statuses=((429, 1.0),), retry_after_seconds=2)
    running = far.begin("2")
    await eventually(lambda: network.counts["429"], "the refusal")
    network.faults = Faults()
    assert (await running.end()).fate == "succeeded"
    assert far.tools.log[-1][0] - far.tools.log[-2][0] > 0.9


async def test_a_stalled_answer_does_not_hold_a_cell_up(sandbox: RunningSandbox) -> None:
    """When an answer never comes another call fetches it, long before the stalled one times out."""
    async with (
        FaultProxy(port_of(sandbox), Faults()).running() as proxy,
        route_to(sandbox, proxy=proxy, kernel="shell", margin_seconds=60.0) as far,
    ):
        await far.run("1")
        proxy.faults = Faults(stalled=1.0)
        running = far.begin("seen = 'once'\nprint(seen)")
        await eventually(lambda: proxy.counts["stalled"], "the stall")
        proxy.faults = Faults()
        ran = await asyncio.wait_for(running.end(), 25)
        assert (ran.fate, ran.text) == ("succeeded", "once\n")


async def test_an_outage_in_the_middle_of_a_cell(far: Far, network: FaultProxy) -> None:
    """Two seconds without any connection cost neither the cell nor its output."""
    await far.run("1")
    running = far.begin(
        "import time\nfor i in range(30):\n    print(i, flush=True); time.sleep(0.1)"
    )
    await eventually(lambda: running.text, "first output")
    network.is_out = True
    await asyncio.sleep(2.0)
    network.is_out = False
    ran = await running.end()
    assert ran.fate == "succeeded"
    assert ran.text == "".join(f"{i}\n" for i in range(30))


async def test_answers_that_overtake_each_other_are_put_in_order(
    far: Far, network: FaultProxy
) -> None:
    """Several polls in flight with random delays still give the output in order."""
    network.faults = Faults(delayed=0.9, delay_seconds=0.4)
    code = "import time\nfor i in range(150):\n    print(i, flush=True); time.sleep(0.02)"
    ran = await far.run(code)
    assert ran.text == "".join(f"{i}\n" for i in range(150))


async def test_a_cell_after_the_idle_connection_was_closed(far: Far, network: FaultProxy) -> None:
    """A connection that the gateway closed while it was idle costs no cell."""
    network.faults = Faults(close_idle_after_seconds=0.2)
    await far.run("n = 0")
    for _ in range(3):
        await asyncio.sleep(0.4)
        assert (await far.run("n += 1")).fate == "succeeded"
    assert (await far.run("n")).result == "3"


async def test_a_cell_longer_than_the_cap_goes_on_and_can_be_stopped() -> None:
    """A cell outlives the tool's limit many times, shows its progress, stops when asked."""
    with running_sandbox({"cap_seconds": {"script": 1.5}}) as server:
        async with route_to(server, kernel="shell") as far:
            running = far.begin(
                "import time\nfor i in range(1000):\n    print(i, flush=True); time.sleep(0.2)"
            )
            await eventually(lambda: running.text.count("\n") >= 25, "five seconds of progress", 40)
            assert running.text.startswith("0\n1\n2\n3\n")
            await far.route.interrupt_request(running.message_id)
            ran = await asyncio.wait_for(running.end(), 20)
            assert ran.fate == "interrupted"


async def test_a_silent_cell_longer_than_the_cap_succeeds(tmp_path: Path) -> None:
    """Without output the polls learn the cap, and the cell's end still arrives."""
    with running_sandbox({"cap_seconds": {"script": 1.5}}) as server:
        async with route_to(server, kernel="shell") as far:
            await far.run("1")
            running = far.begin(waits_for(tmp_path / "go-on") + "'end'")
            await eventually(
                lambda: far.route.describe()["wait_limit_seconds"] < 25, "a shorter wait", 55
            )
            assert not running.task.done()
            (tmp_path / "go-on").touch()
            assert (await running.end()).result == "'end'"


async def test_an_outage_is_told_and_its_end_too(
    sandbox: RunningSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the agent cannot be reached one event says so; another says when it is over."""
    monkeypatch.setattr("ivy_kernel.routes.agent.failures.UNREACHABLE_AFTER_SECONDS", 0.5)
    async with (
        FaultProxy(port_of(sandbox), Faults()).running() as proxy,
        route_to(sandbox, proxy=proxy, kernel="shell") as far,
    ):
        await far.run("1")
        proxy.is_out = True
        running = far.begin("2")
        await eventually(lambda: far.seen(Unreachable), "the event")
        proxy.is_out = False
        assert (await running.end()).result == "2"
        assert len(far.seen(Unreachable)) == len(far.seen(ReachableAgain)) == 1


async def test_giving_up_calls_the_outcome_unknown(far: Far, network: FaultProxy) -> None:
    """A cell that was running when the network went is unknown when the user gives up.

    It is stopped all the same when the network is back.
    """
    await far.run("1")
    running = far.begin(
        "import time\nprint('on', flush=True)\n"
        "try:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    was_stopped = True"
    )
    await eventually(lambda: running.text, "first output")
    network.is_out = True
    said = await far.route.interrupt_request(running.message_id, deadline_seconds=0.3)
    assert said == "unreachable"
    far.route.give_up(running.message_id)
    ran = await running.end()
    network.is_out = False
    assert (await asyncio.wait_for(far.run("was_stopped"), 20)).result == "True"
    assert ran.fate == "unknown"
    assert ran.messages[-1].msg_type == "error"
    assert ran.messages[-1].content["evalue"] == ran.outcome.reply["evalue"]


async def test_when_nothing_can_be_reached_at_all_the_error_says_so(
    sandbox: RunningSandbox,
) -> None:
    """A cell that never got through raises, after the time that was set, and has not run."""
    async with (
        FaultProxy(port_of(sandbox), Faults()).running() as proxy,
        route_to(sandbox, proxy=proxy, kernel="shell", open_limit_seconds=0.5) as far,
    ):
        proxy.is_out = True
        with pytest.raises(SandboxError, match=r"Nothing of this cell was run\.$") as raised:
            await far.run("1")
        assert isinstance(raised.value.__cause__, NetworkError)
        proxy.is_out = False
