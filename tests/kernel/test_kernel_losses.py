"""A sandbox, or its Python, that goes away behind our back is noticed before anything runs."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable

import psutil
import pytest
from kernel_driver import Home, KernelDriver, StartKernel, kernel_variables
from magic_driver import MagicKernel
from sandbox_server import REPOSITORY, RunningSandbox, until
from thoroughness import further
from waiting import all_ended


def test_a_terminated_sandbox_is_noticed_and_said(
    start_kernel: StartKernel, server: RunningSandbox, new_chat: Callable[[], str]
) -> None:
    """The next cell does not run in an empty namespace: it says that the variables are gone."""
    chat = new_chat()
    kernel = start_kernel(chat_id=chat)
    kernel.run("x = 5")
    server.call("POST", f"/v1/sandbox/{chat}/terminate")
    cell = kernel.run("print('ran')")
    assert cell.reply["ename"] == "SandboxLostError"
    for words in ("gone", "variables", "Nothing of this cell was run", "new sandbox"):
        assert words in cell.reply["evalue"]
    assert cell.text() == ""
    again = kernel.run("x")
    assert again.reply["ename"] == "NameError"


def test_an_expired_sandbox_is_noticed_and_said(
    start_kernel: StartKernel,
    server: RunningSandbox,
    changed: Callable[..., None],
    new_chat: Callable[[], str],
) -> None:
    """The end of a sandbox's time is told like any other loss."""
    chat = new_chat()
    kernel = start_kernel(chat_id=chat)
    kernel.run("x = 5")
    changed(runtime_seconds=0.2, expiry_keeps_snapshot=False)
    until(lambda: server.status(chat)["status"] == "none", "the sandbox has expired")
    changed(runtime_seconds=None)
    assert kernel.run("x").reply["ename"] == "SandboxLostError"
    assert kernel.run("'anew'").result == "'anew'"


def test_processes_killed_in_the_sandbox_are_noticed(
    start_kernel: StartKernel, server: RunningSandbox, new_chat: Callable[[], str]
) -> None:
    """The Python of the notebook dies under a cell: the cell fails, and the truth is told."""
    kernel = start_kernel(chat_id=new_chat())
    kernel.run("x = 5")
    cell = kernel.run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert cell.reply["status"] == "error"
    assert "died" in cell.reply["evalue"] or "gone" in cell.reply["evalue"]
    following = kernel.run("x")
    # Either it is refused because another Python answers, or that Python knows no x.
    assert following.reply["ename"] in ("SandboxLostError", "NameError")


def test_a_restart_gives_an_empty_namespace_in_a_new_process(
    start_kernel: StartKernel, new_chat: Callable[[], str]
) -> None:
    """After Restart variables are gone and counting begins anew; the sandbox is the same one."""
    kernel = start_kernel(chat_id=new_chat())
    kernel.run("x = 5; open('kept.txt', 'w').close()")
    before = kernel.pid
    kernel.restart()
    assert kernel.pid != before
    cell = kernel.run("x")
    assert cell.reply["ename"] == "NameError"
    assert cell.reply["execution_count"] == 1
    assert kernel.run("import os; os.path.exists('kept.txt')").result == "True"
    kernel.run("y = 6")
    assert kernel.run("y").result == "6"  # the namespace is emptied once, not for every cell
    assert not list(kernel.home.runtime.glob("ivy-restart-*"))


def test_a_restart_during_a_cell_ends_it(
    start_kernel: StartKernel, server: RunningSandbox, new_chat: Callable[[], str]
) -> None:
    """The running cell is interrupted over there, and the new process can run cells soon."""
    kernel = start_kernel(chat_id=new_chat())
    kernel.run("import time")
    kernel.submit("time.sleep(60)")
    until(lambda: any(s["callsInFlight"] for s in server.control()["sandboxes"]), "it runs")
    began = time.monotonic()
    kernel.restart()
    assert kernel.run("'back'").result == "'back'"
    assert time.monotonic() - began < 45


def test_shutdown_is_quick_and_leaves_nothing(
    start_kernel: StartKernel, server: RunningSandbox, new_chat: Callable[[], str]
) -> None:
    """The process ends by itself, also with a cell under way; the sandbox lives on."""
    chat = new_chat()
    kernel = start_kernel(chat_id=chat)
    kernel.run("import time; x = 5")
    kernel.submit("time.sleep(60)")
    until(lambda: any(s["callsInFlight"] for s in server.control()["sandboxes"]), "it runs")
    pid = kernel.pid
    assert kernel.stop() < 4.8  # it would be killed after five seconds
    assert not psutil.pid_exists(pid)
    assert not [p for p in kernel.home.runtime.iterdir() if "restart" in p.name]
    assert server.status(chat)["status"] == "active"


def test_an_idle_shutdown_is_quick(start_kernel: StartKernel) -> None:
    """Unused, the process ends by itself, before it would be killed."""
    kernel = start_kernel()
    assert kernel.stop() < 4.5


def test_a_kernel_that_starts_anew_finds_the_chats_variables(
    start_kernel: StartKernel, new_home: Callable[[], Home], server: RunningSandbox
) -> None:
    """Another kernel on the same chat shares its Python on the notebook route."""
    variables = kernel_variables(server, "shared-by-two")
    first = start_kernel(home=new_home(), variables=variables)
    second = start_kernel(home=new_home(), variables=variables)
    first.run("shared = 'yes'")
    assert second.run("shared").result == "'yes'"


def test_two_kernels_on_two_chats_do_not_meet(start_kernel: StartKernel) -> None:
    """Each has its own sandbox, and its cells do not wait for the other's."""
    first, second = start_kernel(), start_kernel()
    first.run("mine = 1; import time")
    assert second.run("'mine' in globals()").result == "False"
    message_id = first.submit("time.sleep(20)")
    began = time.monotonic()
    assert second.run("2").result == "2"
    assert time.monotonic() - began < 10
    first.interrupt()
    assert first.finish(message_id).reply["ename"] == "KeyboardInterrupt"


def test_the_progress_of_a_start_is_taken_away(
    start_kernel: StartKernel, changed: Callable[..., None]
) -> None:
    """Phase and time left are shown while the sandbox starts, and cleared before the output."""
    changed(provision_seconds={"compute": 2.0, "mount": 2.0})
    kernel = start_kernel()
    cell = kernel.run("print('hello')")
    shown = [
        message["content"]["data"]["text/plain"]
        for message in cell.outputs
        if message["msg_type"] in ("display_data", "update_display_data")
    ]
    assert any("compute" in text for text in shown)
    assert all("%" in text and "is starting" in text for text in shown)
    kinds = [message["msg_type"] for message in cell.outputs]
    cleared = kinds.index("clear_output")
    assert set(kinds[:cleared]) == {"display_data", "update_display_data"}
    assert "display_data" not in kinds[cleared:]
    assert cell.text() == "hello\n"


def test_two_starts_at_once_share_one_sandbox(
    start_kernel: StartKernel,
    server: RunningSandbox,
    changed: Callable[..., None],
    new_chat: Callable[[], str],
) -> None:
    """Two kernels that need the same chat's sandbox both wait for the one."""
    changed(provision_seconds={"compute": 1.0, "mount": 0.2})
    chat = new_chat()
    first, second = start_kernel(chat_id=chat), start_kernel(chat_id=chat)
    ids = [kernel.submit("import os; os.environ['IVY_SANDBOX_ID']") for kernel in (first, second)]
    cells = [kernel.finish(each) for kernel, each in zip((first, second), ids, strict=True)]
    assert cells[0].result == cells[1].result is not None


def end_locally(kernel: KernelDriver, ends: str) -> None:
    """End the embedded local sandbox, as its idle exit does or by force."""
    supervisor = psutil.Process(json.loads(kernel.home.sandbox_file.read_text())["pid"])
    family = [supervisor, *supervisor.children(recursive=True)]
    if ends == "sigterm":
        supervisor.terminate()
    else:
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    until(lambda: all_ended(family), "the end of the local sandbox", 20)


def ask_meanwhile(kernel: KernelDriver, noticed_by: str) -> None:
    """Let something else than a cell meet the end first."""
    if noticed_by == "completion":
        kernel.ask("complete", "x", 1)
    elif noticed_by == "status":
        kernel.run("%ivy status")
    elif noticed_by == "widget":
        message = kernel.client.session.msg("comm_msg", {"comm_id": "1", "data": {}})
        kernel.client.shell_channel.send(message)


def told_once(kernel: KernelDriver, magic: str = "", *, beside: bool = False) -> None:
    """The next cell says that the sandbox is gone, alone, and the one after it runs anew."""
    began = kernel.submit(f"{magic}open('ran.txt', 'w').close()")
    cell = kernel.finish(began, beside=beside)  # a widget's message may be answered meanwhile
    assert cell.error is not None, cell.shown()
    assert cell.error["ename"] == "SandboxLostError", cell.error
    for words in ("is gone", "Nothing of this cell was run", "new sandbox"):
        assert words in cell.error["evalue"]
    assert cell.text() == cell.text("stderr") == ""
    again = kernel.run(f"{magic}import os; print('x' in globals(), os.path.exists('ran.txt'))")
    assert again.reply["status"] == "ok", again.error
    assert again.text() == "False False\n"


@pytest.mark.parametrize(
    ("route", "ends", "noticed_by"),
    [
        ("agent", "sigkill", "widget"),
        ("notebook", "sigterm", "cell"),
        further("agent", "sigkill", "completion"),
        further("agent", "sigterm", "status"),
        further("script", "sigterm", "cell"),
    ],
)
def test_the_end_of_the_local_sandbox_is_told_in_the_kernel(
    run_kernel: Callable[[KernelDriver], KernelDriver],
    new_home: Callable[[], Home],
    route: str,
    ends: str,
    noticed_by: str,
) -> None:
    """As in tests/session/test_told_losses.py, with all that a kernel adds."""
    kernel = run_kernel(KernelDriver(new_home(), {"IVY_ROUTE": route}))
    try:
        assert kernel.run("x = 5").reply["status"] == "ok"
        end_locally(kernel, ends)
        ask_meanwhile(kernel, noticed_by)
        told_once(kernel, beside=noticed_by == "widget")
    finally:
        kernel.home.stop_sandbox()


@pytest.mark.parametrize(
    ("route", "ends", "noticed_by"),
    [
        ("agent", "sigkill", "cell"),
        further("notebook", "sigterm", "status"),
    ],
)
def test_the_end_of_the_local_sandbox_is_told_by_the_magic(
    run_kernel: Callable[..., MagicKernel],
    new_home: Callable[[], Home],
    route: str,
    ends: str,
    noticed_by: str,
) -> None:
    """``%%ivy`` in a plain Python kernel tells it just so."""
    variables = {"IVY_ROUTE": route, "PYTHONPATH": str(REPOSITORY)}
    kernel = run_kernel(MagicKernel(new_home(), variables))
    try:
        assert kernel.run("%%ivy\nx = 5").reply["status"] == "ok"
        end_locally(kernel, ends)
        ask_meanwhile(kernel, noticed_by)
        told_once(kernel, "%%ivy\n")
    finally:
        kernel.home.stop_sandbox()
