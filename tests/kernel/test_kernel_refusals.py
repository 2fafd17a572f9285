"""Refusals of platform and network: the cell tells the truth, and runs at most once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate

import pytest
from faulty_gateway import Fault, Gateway, faulty_gateway
from kernel_driver import Home, KernelDriver, StartKernel, kernel_variables, running_kernel
from sandbox_server import RunningSandbox, until


@pytest.fixture(scope="module")
def gateway(server: RunningSandbox) -> Iterator[Gateway]:
    """A gateway between kernel and server."""
    with faulty_gateway(server) as running:
        yield running


@pytest.fixture(scope="module")
def kernel(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KernelDriver]:
    """A kernel behind the gateway, whose sandbox is there."""
    home = Home(tmp_path_factory.mktemp("gateway"))
    with running_kernel(home, kernel_variables(gateway, "behind-a-gateway")) as running:
        assert running.run("runs = 0").reply["status"] == "ok"
        yield running


RUN_ONCE = "runs += 1; print('done')"


def runs_of(kernel: KernelDriver) -> int:
    """How often `RUN_ONCE` has run."""
    return int(kernel.run("runs").result or -1)


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        (Fault("cut"), "NoAnswerError"),
        (Fault("after", 200, "<html>login</html>"), "AnswerError"),
        (Fault("after", 200, ""), "AnswerError"),
    ],
    ids=["connection reset", "web page instead of JSON", "empty body"],
)
def test_a_lost_answer_is_called_unknown_and_never_sent_again(
    kernel: KernelDriver, gateway: Gateway, fault: Fault, name: str
) -> None:
    """The cell ran once, and the words say that it may have run and was not sent again."""
    before = runs_of(kernel)
    gateway.next_tool_calls(fault)
    calls = gateway.tool_calls()
    cell = kernel.run(RUN_ONCE)
    assert gateway.tool_calls() == calls + 1
    assert cell.reply["ename"] == name
    assert "may have run" in cell.reply["evalue"]
    assert "not sent again" in cell.reply["evalue"]
    assert runs_of(kernel) == before + 1


@pytest.mark.parametrize(
    ("status_code", "name"),
    [(502, "SandboxBrokenError"), (504, "ToolTimeoutError"), (500, "UnexpectedStatusError")],
)
def test_a_gateway_error_after_the_cell_ran_is_never_sent_again(
    kernel: KernelDriver, gateway: Gateway, status_code: int, name: str
) -> None:
    """502, 504 and 500 are final: one call, one run, one error that names what to do."""
    before = runs_of(kernel)
    gateway.next_tool_calls(Fault("after", status_code))
    calls = gateway.tool_calls()
    cell = kernel.run(RUN_ONCE)
    assert gateway.tool_calls() == calls + 1
    assert cell.reply["ename"] == name
    assert "Nothing of this cell was run" not in cell.reply["evalue"]
    assert runs_of(kernel) == before + 1


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_429_is_waited_out_as_the_platform_asks(
    kernel: KernelDriver, gateway: Gateway, form: str
) -> None:
    """Retry-After is honoured, in seconds or as a date, and the cell runs once."""
    before = runs_of(kernel)
    wanted = "1" if form == "seconds" else formatdate(time.time() + 2, usegmt=True)
    gateway.next_tool_calls(Fault("instead", 429, "{}", {"Retry-After": wanted}))
    cell = kernel.run(RUN_ONCE)
    assert cell.text() == "done\n"
    assert cell.seconds >= 0.9
    assert runs_of(kernel) == before + 1


def test_a_long_429_is_told_instead_of_waited_for(kernel: KernelDriver, gateway: Gateway) -> None:
    """A wait beyond the limit ends the cell with the time to wait; nothing ran."""
    before = runs_of(kernel)
    gateway.next_tool_calls(Fault("instead", 429, "{}", {"Retry-After": "3600"}))
    cell = kernel.run(RUN_ONCE)
    assert cell.reply["ename"] == "RateLimitedError"
    assert "3600 s" in cell.reply["evalue"]
    assert cell.seconds < 5
    assert runs_of(kernel) == before


def test_503_while_active_is_waited_for_at_a_civil_pace(
    kernel: KernelDriver, gateway: Gateway
) -> None:
    """503 from a sandbox that calls itself active: tried again, but not in a tight loop."""
    before = runs_of(kernel)
    gateway.always = Fault("instead", 503, '{"code": "SANDBOX_NOT_READY"}')
    message_id = kernel.submit(RUN_ONCE)
    calls = gateway.tool_calls()
    time.sleep(1.5)  # the very thing measured: requests in a stretch of time
    asked = gateway.tool_calls() - calls
    gateway.always = None
    assert kernel.finish(message_id).text() == "done\n"
    assert asked <= 10
    assert runs_of(kernel) == before + 1


def test_a_404_of_one_replica_is_no_loss(kernel: KernelDriver, gateway: Gateway) -> None:
    """The status is asked first; the sandbox lives, so the cell says 404 and not "gone"."""
    before = runs_of(kernel)
    gateway.next_tool_calls(Fault("instead", 404, '{"error": "no such sandbox"}'))
    cell = kernel.run(RUN_ONCE)
    assert cell.reply["ename"] == "NotFoundError"
    assert "gone" not in cell.reply["evalue"]
    assert gateway.calls[-1][1].endswith("/status")
    assert runs_of(kernel) == before


def test_another_python_behind_the_same_sandbox_is_noticed(
    start_kernel: StartKernel,
    gateway: Gateway,
    server: RunningSandbox,
    new_chat: Callable[[], str],
) -> None:
    """When something went wrong, the kernel looks which Python answers before it runs a cell."""
    chat = new_chat()
    kernel = start_kernel(variables=kernel_variables(gateway, chat))
    remote = int(kernel.run("import os; x = 5; os.getpid()").result or 0)
    os.kill(remote, signal.SIGKILL)
    server.tool(chat, "sandbox_notebook", {"code": "1"})  # somebody else's cell starts a new one
    gateway.next_tool_calls(Fault("instead", 500))
    assert kernel.run("x").reply["status"] == "error"
    cell = kernel.run("print('ran')")
    assert cell.reply["ename"] == "SandboxLostError"
    assert "another Python process" in cell.reply["evalue"]
    assert cell.text() == ""
    assert kernel.run("print('ran')").text() == "ran\n"


def test_stop_on_error_holds_for_errors_of_ours(kernel: KernelDriver, gateway: Gateway) -> None:
    """Cells behind one that the network failed are aborted, unless the flag is off."""
    before = runs_of(kernel)
    gateway.next_tool_calls(Fault("after", 502))
    first = kernel.submit("import time; time.sleep(1.5)")
    second = kernel.submit(RUN_ONCE)
    assert kernel.finish(first).reply["ename"] == "SandboxBrokenError"
    assert kernel.reply(second)["content"]["status"] == "aborted"
    assert runs_of(kernel) == before
    gateway.next_tool_calls(Fault("after", 504))
    first = kernel.submit("time.sleep(1.5)", stop_on_error=False)
    second = kernel.submit(RUN_ONCE)
    assert kernel.finish(first).reply["ename"] == "ToolTimeoutError"
    assert kernel.finish(second).text() == "done\n"
    assert runs_of(kernel) == before + 1


@pytest.mark.parametrize("stop_on_error", [True, False])
def test_stop_on_error_holds_for_errors_of_cells(kernel: KernelDriver, stop_on_error: bool) -> None:
    """With it, what was sent behind a failing cell is aborted; without it, it runs."""
    before = runs_of(kernel)
    first = kernel.submit("time.sleep(1.5); 1/0", stop_on_error=stop_on_error)
    second = kernel.submit(RUN_ONCE)
    assert kernel.finish(first).reply["ename"] == "ZeroDivisionError"
    assert kernel.reply(second)["content"]["status"] == ("aborted" if stop_on_error else "ok")
    assert runs_of(kernel) == before + (not stop_on_error)


def test_somebody_elses_chat_is_refused_with_the_settings_to_check(
    start_kernel: StartKernel, server: RunningSandbox, changed: Callable[..., None]
) -> None:
    """403 names chat_id and api_key, and the kernel lives on."""
    changed(chats={"theirs": {"owner": "somebody", "campaign": "x"}})
    kernel = start_kernel(chat_id="theirs")
    cell = kernel.run("1")
    assert cell.reply["ename"] == "ForbiddenError"
    for word in ("'theirs'", "chat_id", "api_key"):
        assert word in cell.reply["evalue"]
    assert kernel.ask("kernel_info")["status"] == "ok"


def test_a_wrong_campaign_is_named(start_kernel: StartKernel, server: RunningSandbox) -> None:
    """400 on create names campaign and chat."""
    server.ready("has-a-campaign")
    server.call("POST", "/v1/sandbox/has-a-campaign/terminate")
    kernel = start_kernel(chat_id="has-a-campaign", IVY_CAMPAIGN_ID="another")
    cell = kernel.run("1")
    assert cell.reply["ename"] == "BadRequestError"
    assert "'another'" in cell.reply["evalue"]
    assert "campaign_id" in cell.reply["evalue"]


def test_a_cell_beyond_the_cap_is_told_with_its_budget(
    start_kernel: StartKernel, changed: Callable[..., None]
) -> None:
    """504 after the platform's own cap: the words give the budget; the next cell runs."""
    changed(cap_seconds={"notebook": 3.0})
    kernel = start_kernel(IVY_CELL_TIMEOUT_SECONDS="3")
    kernel.run("import time")
    began = time.monotonic()
    cell = kernel.run("time.sleep(30)")
    assert cell.reply["ename"] == "ToolTimeoutError"
    assert "3 s" in cell.reply["evalue"]
    assert time.monotonic() - began < 20
    assert kernel.run("'next'").result == "'next'"


def test_a_sandbox_that_fails_to_start_says_why(
    start_kernel: StartKernel, changed: Callable[..., None]
) -> None:
    """The platform's errorMessage is the cell's error; the next cell tries again."""
    changed(
        provision_fails_in="compute",
        provision_error="out of disks & <b>memory</b>",
        provision_seconds={"compute": 0.3, "mount": 0.1},
    )
    kernel = start_kernel()
    cell = kernel.run("1")
    assert cell.reply["ename"] == "SandboxFailedError"
    assert "out of disks & <b>memory</b>" in cell.reply["evalue"]
    changed(provision_fails_in="")
    assert kernel.run("'second try'").result == "'second try'"


def test_a_start_that_takes_longer_than_allowed_is_no_failure_of_the_kernel(
    start_kernel: StartKernel, changed: Callable[..., None]
) -> None:
    """The cell names the setting; the sandbox goes on starting, and a later cell uses it."""
    changed(provision_seconds={"compute": 2.5, "mount": 0.0})
    kernel = start_kernel(IVY_START_TIMEOUT_SECONDS="1")
    cell = kernel.run("1")
    assert cell.reply["status"] == "error"
    assert "start_timeout_seconds" in cell.reply["evalue"]
    assert [m["msg_type"] for m in cell.outputs][-2:] == ["clear_output", "error"]
    until(lambda: kernel.run("'ready'").result == "'ready'", "the sandbox is ready", 20)


@pytest.mark.parametrize("status_code", [500, 503])
def test_a_refused_create_is_told(
    start_kernel: StartKernel,
    server: RunningSandbox,
    changed: Callable[..., None],
    status_code: int,
) -> None:
    """500 is final; 503 is tried again until the platform can."""
    changed(create_error=status_code)
    kernel = start_kernel()
    if status_code == 500:
        assert kernel.run("1").reply["ename"] == "CreationFailedError"
        changed(create_error=0)
        assert kernel.run("1").result == "1"
        return
    refused = server.counters()["statuses"].get("503", 0)
    message_id = kernel.submit("1")
    until(lambda: server.counters()["statuses"].get("503", 0) > refused, "a first refusal")
    changed(create_error=0)
    assert kernel.finish(message_id).result == "1"
