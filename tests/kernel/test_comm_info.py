"""A page that is reloaded hears of its widgets, also when the sandbox is slow to list them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from faulty_gateway import Fault, Gateway, faulty_gateway
from kernel_driver import KernelDriver, StartKernel, kernel_variables
from sandbox_server import RunningSandbox, until

from ivy_kernel.kernel.remote_comms import RemoteComms
from ivy_kernel.models import Message
from ivy_kernel.routes.events import (
    AgentLost,
    AgentOpened,
    Event,
    KernelDied,
    KernelReady,
    OutputDropped,
)

NOT_READY = Fault("instead", 503)
BEGAN_SECONDS = 20.0
REPLY_SECONDS = 20.0
OPEN = "import comm; {0} = comm.create_comm(target_name={0!r}); print({0}.comm_id)"

Json = dict[str, Any]


@pytest.fixture(scope="module")
def gateway(server: RunningSandbox) -> Iterator[Gateway]:
    """What stands before the sandbox, and can keep it from answering."""
    with faulty_gateway(server) as running:
        yield running


@pytest.fixture
def kernel(
    server: RunningSandbox,
    gateway: Gateway,
    start_kernel: StartKernel,
    new_chat: Callable[[], str],
) -> Iterator[KernelDriver]:
    """A fresh kernel on the agent route, behind the gateway."""
    chat = new_chat()
    server.ready(chat, f"session-of-{chat}", f"campaign-of-{chat}")
    variables = kernel_variables(server, chat, IVY_ROUTE="agent", IVY_API_URL=gateway.url)
    yield start_kernel(variables=variables)
    gateway.always = None


def comms(kernel: KernelDriver, target_name: str | None = None) -> Json:
    """The open comms, as a front end is told."""
    question = kernel.client.comm_info(target_name)
    return dict(kernel.reply(question, REPLY_SECONDS)["content"]["comms"])


def test_a_sandbox_that_does_not_answer_in_time_has_the_comms_that_were_seen(
    kernel: KernelDriver, gateway: Gateway
) -> None:
    """Those that are open, by the messages that have passed: not "none", and no closed one."""
    kept = kernel.run(OPEN.format("kept")).text().strip()
    closed = kernel.run(OPEN.format("closed") + "; closed.close()").text().strip()
    other = kernel.run(OPEN.format("other")).text().strip()
    assert closed not in comms(kernel)
    gateway.always = NOT_READY
    assert comms(kernel) == {kept: {"target_name": "kept"}, other: {"target_name": "other"}}
    assert comms(kernel, "kept") == {kept: {"target_name": "kept"}}


def test_comms_are_told_beside_a_cell_without_waiting_for_its_end(
    kernel: KernelDriver, server: RunningSandbox
) -> None:
    """A page that is reloaded during a long cell has its widgets at once."""
    comm_id = kernel.run(OPEN.format("t")).text().strip()
    cell = kernel.submit(f"import time; open('{comm_id}', 'w').close(); time.sleep(60)")
    until(lambda: list(server.root.glob(f"*/{comm_id}")), "the cell runs", BEGAN_SECONDS)
    asked = time.monotonic()
    assert comms(kernel) == {comm_id: {"target_name": "t"}}
    assert time.monotonic() - asked < BEGAN_SECONDS
    kernel.interrupt()
    assert kernel.finish(cell, beside=True).reply["ename"] == "KeyboardInterrupt"


def test_a_new_process_lists_the_comms_from_before_its_time(kernel: KernelDriver) -> None:
    """It has not seen them open, so it asks the sandbox, and knows them from then on."""
    comm_id = kernel.run(OPEN.format("t")).text().strip()
    os.kill(kernel.pid, signal.SIGKILL)
    kernel.manager.restart_kernel(now=True)
    kernel.client.wait_for_ready(timeout=30)
    kernel.run("1")
    assert comms(kernel) == {comm_id: {"target_name": "t"}}


def test_a_terminated_sandbox_has_no_comms(kernel: KernelDriver) -> None:
    """They went with it, and nothing is asked that would start another one."""
    kernel.run(OPEN.format("t"))
    kernel.run("%ivy terminate --yes")
    assert comms(kernel) == {}


def opened(comm_id: str) -> Message:
    """A comm that the sandbox opens."""
    return Message("comm_open", {"comm_id": comm_id, "target_name": "t", "data": {}})


def ready(generation: int) -> KernelReady:
    """A kernel that can take cells."""
    return KernelReady("ipykernel", generation, "3.11", "/")


@pytest.mark.parametrize(
    ("events", "left", "is_complete"),
    [
        ([OutputDropped(1, 1)], {"old"}, True),
        ([ready(1)], {"old"}, True),
        ([ready(2)], set(), True),
        ([KernelDied("died", 1, "", is_told=True)], set(), True),
        ([AgentLost("lost")], set(), True),
        ([AgentOpened(is_found=False)], set(), True),
        ([AgentOpened(is_found=True)], {"old"}, False),
        ([AgentOpened(is_found=True), ready(3)], {"old"}, False),
    ],
    ids=["other", "same", "restarted", "died", "lost", "new-agent", "found", "found-ready"],
)
def test_comms_end_with_the_kernel_that_has_them(
    events: list[Event], left: set[str], *, is_complete: bool
) -> None:
    """A new kernel has none; of one that was found again only it knows all."""
    known = RemoteComms()
    for event in (AgentOpened(is_found=False), ready(1)):
        known.on_event(event)
    known.told(opened("old"))
    for event in events:
        known.on_event(event)
    assert set(known.info(None)) == left
    assert known.is_complete is is_complete


def test_what_the_kernel_lists_is_believed_where_not_all_was_seen() -> None:
    """Before that, comms may have opened and closed unseen; after it each one passes here."""
    known = RemoteComms()
    known.on_event(AgentOpened(is_found=True))
    known.told(opened("gone since"))
    known.listed({"earlier": {"target_name": "t"}})
    known.told(opened("later"))
    known.listed({"earlier": {"target_name": "t"}})  # on its way while the other one opened
    assert known.info("t") == {name: {"target_name": "t"} for name in ("earlier", "later")}
    close = {"header": {"msg_type": "comm_close"}, "content": {"comm_id": "earlier"}}
    known.sent(close)
    assert set(known.info("")) == {"later"}
    assert known.info("other") == {}
