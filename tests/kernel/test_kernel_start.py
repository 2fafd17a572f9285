"""Starting costs nothing and asks nobody, and nothing but a user's own cell starts a sandbox."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import psutil
import pytest
from kernel_driver import Home, KernelDriver, StartKernel, kernel_variables
from sandbox_server import RunningSandbox, until

CREATE = "POST /v1/sandbox/create"

NOWHERE = {
    "IVY_API_URL": "http://127.0.0.1:9/api",
    "IVY_API_KEY": "ivy_nobody",
    "IVY_CHAT_ID": "c",
    "IVY_CAMPAIGN_ID": "c",
}


def creates(server: RunningSandbox) -> int:
    """How many create requests the server has had."""
    return int(server.counters()["requests"].get(CREATE, 0))


def requests(server: RunningSandbox) -> dict[str, int]:
    """Its requests, but for those of the tests."""
    counted = server.counters()["requests"]
    return {route: number for route, number in counted.items() if "_control" not in route}


def test_kernel_info_needs_no_network(start_kernel: StartKernel) -> None:
    """With no server reachable the kernel starts, and says what it is."""
    kernel = start_kernel(variables=NOWHERE)
    info = kernel.ask("kernel_info")
    assert info["language_info"]["name"] == "python"
    assert info["implementation"] == "ivy-sandbox"
    assert info["supported_features"] == []
    assert "debugger" not in str(info["supported_features"])


def test_an_unreachable_platform_is_told_in_the_cell(start_kernel: StartKernel) -> None:
    """The first cell names the address and says what to check; the kernel lives on."""
    kernel = start_kernel(variables={**NOWHERE, "IVY_CONNECT_TIMEOUT_SECONDS": "1"})
    cell = kernel.run("1", timeout_seconds=60)
    assert cell.reply["ename"] == "NotSentError"
    assert "127.0.0.1:9" in cell.reply["evalue"]
    assert "api_url" in cell.reply["evalue"]
    assert kernel.ask("kernel_info")["status"] == "ok"


def test_a_broken_config_file_is_told_in_the_cell(
    start_kernel: StartKernel, new_home: Callable[[], Home], server: RunningSandbox
) -> None:
    """The kernel starts, the cell names the file, and the corrected file works at once."""
    home = new_home()
    file = home.config / "jupyter_ivy_config.json"
    file.write_text('{"Ivy": {"chat_id": ')
    kernel = start_kernel(home=home)
    cell = kernel.run("1")
    assert cell.reply["ename"] == "SettingError"
    assert str(file) in cell.reply["evalue"]
    file.write_text('{"Ivy": {"output_limit_bytes": 1000}}')
    assert kernel.run("1").result == "1"
    assert "not shown" in kernel.run("print('x' * 5000)").text("stderr")


def test_a_key_without_a_chat_is_explained(
    start_kernel: StartKernel, new_home: Callable[[], Home], server: RunningSandbox
) -> None:
    """The cell says what is missing, where it was sought, and the fix, which needs no restart."""
    home = new_home()
    variables = {"IVY_API_URL": server.url, "IVY_API_KEY": server.token, "IVY_ROUTE": "notebook"}
    kernel = start_kernel(home=home, variables=variables)
    before = requests(server)
    cell = kernel.run("1")
    assert cell.reply["ename"] == "MissingSettingError"
    for words in ("chat_id", "IVY_CHAT_ID", "jupyter_ivy_config.json", "no restart"):
        assert words in cell.reply["evalue"]
    assert requests(server) == before
    settings = {"chat_id": "explained", "campaign_id": "k"}
    (home.config / "jupyter_ivy_config.json").write_text(json.dumps({"Ivy": settings}))
    assert kernel.run("1").result == "1"


def test_a_corrected_key_works_without_a_restart(
    start_kernel: StartKernel,
    new_home: Callable[[], Home],
    new_chat: Callable[[], str],
    server: RunningSandbox,
) -> None:
    """A refused key names its setting; the file's new key is used for the next cell."""
    home = new_home()
    file = home.config / "jupyter_ivy_config.json"
    file.write_text(json.dumps({"Ivy": {"api_key": "ivy_wrong_key"}}))
    variables = kernel_variables(server, new_chat())
    kernel = start_kernel(home=home, variables=variables)
    cell = kernel.run("1")
    assert cell.reply["ename"] == "CredentialsError"
    assert "api_key" in cell.reply["evalue"]
    assert "IVY_API_KEY" in cell.reply["evalue"]
    assert "ivy_wrong_key" not in json.dumps(cell.messages, default=str)
    file.write_text(json.dumps({"Ivy": {"api_key": server.token}}))
    assert kernel.run("x = 5\nx").result == "5"
    # In mid-run: the key is spoilt and mended again, and the variables are still there.
    file.write_text(json.dumps({"Ivy": {"api_key": "ivy_spoilt"}}))
    assert kernel.run("x").reply["ename"] == "CredentialsError"
    file.write_text(json.dumps({"Ivy": {"api_key": server.token}}))
    assert kernel.run("x").result == "5"


def test_hidden_cells_never_start_a_sandbox(
    start_kernel: StartKernel, server: RunningSandbox
) -> None:
    """What front ends run by themselves fails politely, without a create and without a count."""
    kernel = start_kernel()
    before = creates(server)
    hidden = kernel.run("import ipywidgets as _VSCODE_ipywidgets", store_history=False)
    assert hidden.reply["ename"] == "NoSandboxError"
    assert "Nothing was run" in hidden.reply["evalue"]
    assert kernel.run("import os; os.chdir('/')", silent=True).reply["status"] == "error"
    assert creates(server) == before
    assert kernel.run("1").reply["execution_count"] == 1
    assert creates(server) == before + 1


@pytest.mark.parametrize(
    "act",
    [
        lambda kernel: kernel.run(""),
        lambda kernel: kernel.run("# a comment\n\n   # another"),
        lambda kernel: kernel.ask("complete", "impo", 4),
        lambda kernel: kernel.ask("inspect", "print", 5),
        lambda kernel: kernel.ask("is_complete", "1"),
        lambda kernel: kernel.ask("history", hist_access_type="tail", n=5),
        lambda kernel: kernel.ask("comm_info"),
        lambda kernel: kernel.run("%ivy config"),
        lambda kernel: kernel.run("%ivy help"),
        lambda kernel: kernel.run("%%local\n1"),
        lambda kernel: kernel.interrupt(),
    ],
    ids=[
        *("blank", "comments", "complete", "inspect", "is_complete", "history", "comm_info"),
        *("config", "help", "local", "interrupt"),
    ],
)
def test_nothing_else_asks_the_platform(
    unused_kernel: KernelDriver, server: RunningSandbox, act: Callable[[KernelDriver], object]
) -> None:
    """No request of any kind leaves the kernel."""
    before = requests(server)
    act(unused_kernel)
    assert requests(server) == before


@pytest.fixture(scope="module")
def unused_kernel(server: RunningSandbox, tmp_path_factory: pytest.TempPathFactory) -> KernelDriver:
    """A kernel that never needed its sandbox."""
    from kernel_driver import running_kernel

    home = Home(tmp_path_factory.mktemp("unused"))
    with running_kernel(home, kernel_variables(server, "never-created")) as kernel:
        yield kernel


def test_status_asks_but_does_not_create(
    unused_kernel: KernelDriver, server: RunningSandbox
) -> None:
    """``%ivy status`` says that there is none."""
    before = creates(server)
    cell = unused_kernel.run("%ivy status")
    assert "state: not started" in cell.text()
    assert "Chat never-created" in cell.text()
    assert creates(server) == before


def test_without_auto_create_only_the_command_creates(
    start_kernel: StartKernel, server: RunningSandbox
) -> None:
    """The cell names the setting and the command; %ivy create starts it."""
    kernel = start_kernel(IVY_AUTO_CREATE="false")
    before = creates(server)
    cell = kernel.run("1")
    assert cell.reply["ename"] == "NoSandboxError"
    assert "auto_create" in cell.reply["evalue"]
    assert "%ivy create" in cell.reply["evalue"]
    assert creates(server) == before
    assert kernel.run("%ivy create").reply["status"] == "ok"
    assert kernel.run("1").result == "1"
    assert creates(server) == before + 1


def test_without_any_setting_the_local_sandbox_is_used_and_named(
    start_kernel: StartKernel, new_home: Callable[[], Home]
) -> None:
    """No account is needed; what shows the sandbox says "local"; it is found, not started twice."""
    home = new_home()
    kernel = start_kernel(home=home, variables={})
    cell = kernel.run("6 * 7", timeout_seconds=60)
    assert cell.result == "42"
    assert "Local sandbox" in kernel.run("%ivy status").text()
    assert "local sandbox" in kernel.run("%ivy config").text()
    file = home.runtime / "ivy-local-sandbox.json"
    pid = json.loads(file.read_text())["pid"]
    try:
        other = start_kernel(home=home, variables={})
        assert other.run("1").result == "1"
        assert json.loads(file.read_text())["pid"] == pid
    finally:
        os.kill(pid, 15)
        until(lambda: not file.exists(), "the local sandbox has ended")


def test_the_first_answer_comes_quickly(start_kernel: StartKernel) -> None:
    """Starting, and kernel_info, cost the kernel well under three seconds of computing."""
    kernel = start_kernel(variables=NOWHERE)
    spent = psutil.Process(kernel.pid).cpu_times()  # on a busy machine the clock tells less
    assert spent.user + spent.system < 3.0
