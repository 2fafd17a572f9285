"""``%ivy`` and ``%%local``: the exact list of what runs here, and how it fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kernel_driver import KernelDriver, StartKernel, agent_variables
from sandbox_server import RunningSandbox, until

from ivy_kernel.kernel.local import split_cell


def test_local_cells_run_in_the_kernels_own_process(kernel: KernelDriver) -> None:
    """``%%local`` has its own variables, its outputs and its own pid, which is the kernel's."""
    cell = kernel.run("%%local\nimport os\nhere = 5\nprint('printed')\nos.getpid()")
    assert cell.result == str(kernel.pid)
    assert cell.text() == "printed\n"
    assert kernel.run("%%local\nhere").result == "5"
    assert kernel.run("'here' in globals()").result == "False"


def test_a_local_error_fails_the_cell(kernel: KernelDriver) -> None:
    """An exception of a ``%%local`` cell is an error output and an error reply."""
    cell = kernel.run("%%local\n1/0")
    assert cell.reply["ename"] == "ZeroDivisionError"
    assert "ZeroDivisionError" in "\n".join(cell.reply["traceback"])


@pytest.mark.parametrize("code", ["%%local\nraise SystemExit(3)", "%%local\nexit()"])
def test_exits_of_local_cells_do_not_end_the_kernel(kernel: KernelDriver, code: str) -> None:
    """SystemExit in this very process ends the cell, not the kernel."""
    before = kernel.pid
    kernel.run(code)
    assert kernel.no_further_reply()
    assert kernel.run("%%local\n1").result == "1"
    assert kernel.pid == before


def test_the_kernels_key_is_not_in_the_way_of_the_sandbox(
    kernel: KernelDriver, server: RunningSandbox
) -> None:
    """The key is in the kernel's environment, and not in the sandbox's."""
    cell = kernel.run(
        "import os\n[name for name in os.environ if 'KEY' in name or 'IVY_API' in name]"
    )
    assert cell.result == "[]"


def test_local_cells_find_no_key(kernel: KernelDriver, server: RunningSandbox) -> None:
    """Neither in their environment, nor in that of programs, nor by way of the shell's kernel."""
    code = (
        "import os, subprocess\n"
        "shown = str(dict(os.environ)) + subprocess.getoutput('env')\n"
        "kernel = get_ipython().kernel\n"
        "shown += str(vars(kernel)) + str([hasattr(kernel, 'runner'), get_ipython().parent])\n"
        "print(shown)"
    )
    text = kernel.run(f"%%local\n{code}").text()
    assert "[False, None]" in text
    assert server.token not in text
    assert "API_KEY" not in text
    assert kernel.run("6 * 7").result == "42"


def test_an_output_widget_of_a_local_cell_names_its_request(kernel: KernelDriver) -> None:
    """It knows the cell's request, by which a front end catches what is printed in it."""
    cell = kernel.run("%%local\nimport ipywidgets\nwith ipywidgets.Output():\n    print('in')")
    states = [
        message["content"]["data"].get("state", {})
        for message in cell.messages
        if message["msg_type"] == "comm_msg"
    ]
    ids = [state["msg_id"] for state in states if "msg_id" in state]
    assert ids == [cell.messages[0]["parent_header"]["msg_id"], ""]


def test_local_cells_can_be_turned_off(start_kernel: StartKernel) -> None:
    """The refusal names the setting and its source; nothing runs, and other cells do."""
    kernel = start_kernel(IVY_ALLOW_LOCAL="false")
    cell = kernel.run("%%local\nprint('ran')")
    assert cell.reply["ename"] == "UsageError"
    assert "allow_local is false (set by environment IVY_ALLOW_LOCAL)" in cell.reply["evalue"]
    assert "ran" not in cell.text().splitlines()
    assert kernel.run("1 + 1").result == "2"


@pytest.mark.parametrize("planted", ["%%local\nprint('here')", "\n\n  %%local\nprint('here')"])
def test_a_cell_that_the_sandbox_proposes_is_marked_if_it_would_run_here(
    start_kernel: StartKernel, server: RunningSandbox, new_chat: Callable[[], str], planted: str
) -> None:
    """As it is proposed it runs nowhere; other proposals stay as they are."""
    variables = agent_variables(server, new_chat())
    kernel = start_kernel(variables=variables)
    for text, is_marked in ((planted, True), ("%ivy terminate --yes", True), ("x = 1", False)):
        cell = kernel.run(f"get_ipython().set_next_input({text!r})")
        (proposal,) = cell.reply["payload"]
        assert proposal["source"] == "set_next_input"
        assert proposal["text"].endswith(text)
        assert proposal["text"].startswith("# The sandbox has put this cell here.") is is_marked
        # With the comment it is a cell for the sandbox, where there is no such magic.
        assert text != planted or split_cell(proposal["text"]).local_code is None


def test_status_tells_state_and_route(kernel: KernelDriver) -> None:
    """``%ivy status`` after a cell: active, and how cells reach the sandbox."""
    kernel.run("1")
    text = kernel.run("%ivy status").text()
    assert "state: active" in text
    assert "route: notebook" in text


def test_config_tells_value_and_source_but_no_key(
    kernel: KernelDriver, server: RunningSandbox
) -> None:
    """``%ivy config`` names each setting's source, and says of a key only that it is set."""
    text = kernel.run("%ivy config").text()
    lines = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert "environment IVY_CHAT_ID" in lines["chat_id"]
    assert lines["api_key"].split()[1:] == ["set", "environment", "IVY_API_KEY"]
    assert server.token not in text


def test_chats_lists_the_chat_of_this_notebook(kernel: KernelDriver) -> None:
    """A chat is in the list once a cell has used it, with its campaign and the time."""
    kernel.run("1")
    (row,) = [line for line in kernel.run("%ivy chats").text().splitlines() if "default" in line]
    assert kernel.variables["IVY_CHAT_ID"] in row
    assert kernel.variables["IVY_CAMPAIGN_ID"] in row
    assert "used by this notebook" in row
    assert "never" not in row


def test_help_names_every_command(kernel: KernelDriver) -> None:
    """``%ivy`` alone and ``%ivy help`` list what there is."""
    for code in ("%ivy", "%ivy help"):
        text = kernel.run(code).text()
        for name in ("status", "create", "terminate", "config"):
            assert f"%ivy {name}" in text


@pytest.mark.parametrize(
    "code",
    [
        "%ivy nonsense",
        "%ivy status now",
        "%ivy terminate --now",
        "%ivy 'unclosed",
        "%%local fast\n1",
        "x = 1\n%ivy status",
        "if True:\n    %ivy status",
        "y = %ivy status",
    ],
)
def test_wrong_use_raises_and_runs_nothing(
    kernel: KernelDriver, server: RunningSandbox, code: str
) -> None:
    """A usage error is an error reply, so that a batch run fails; nothing is sent."""
    before = server.counters()["calls"]
    cell = kernel.run(code)
    assert cell.reply["ename"] == "UsageError", cell.reply
    assert server.counters()["calls"] == before


def test_commands_first_then_code_in_one_cell(kernel: KernelDriver) -> None:
    """Leading ``%ivy`` lines run here, the rest in the sandbox with its line numbers unchanged."""
    cell = kernel.run("# first\n%ivy status\n\nz = 8\n1/0")
    assert "state: active" in cell.text()
    assert cell.reply["ename"] == "ZeroDivisionError"
    assert "5" in "\n".join(cell.reply["traceback"])
    assert kernel.run("z").result == "8"


def test_load_ext_is_understood(kernel: KernelDriver) -> None:
    """A notebook written for a plain Python kernel loads the extension: harmless here."""
    cell = kernel.run("%load_ext ivy_kernel")
    assert cell.reply["status"] == "ok"
    assert "built in" in cell.text()


def test_terminate_asks_first(
    start_kernel: StartKernel, server: RunningSandbox, new_chat: Callable[[], str]
) -> None:
    """Without an answer nothing happens: no says no, nobody there is an error; --yes does it."""
    chat = new_chat()
    kernel = start_kernel(chat_id=chat)
    kernel.run("x = 1")
    refused = kernel.run("%ivy terminate")
    assert refused.reply["ename"] == "UsageError"
    assert "--yes" in refused.reply["evalue"]
    message_id = kernel.submit("%ivy terminate", allow_stdin=True)
    question = kernel.client.get_stdin_msg(timeout=30)
    assert "Terminate" in question["content"]["prompt"]
    kernel.client.input("n")
    assert "Not terminated" in kernel.finish(message_id).text()
    assert server.status(chat)["status"] == "active"
    message_id = kernel.submit("%ivy terminate", allow_stdin=True)
    kernel.client.get_stdin_msg(timeout=30)
    kernel.interrupt()
    assert kernel.finish(message_id).reply["ename"] == "KeyboardInterrupt"
    assert server.status(chat)["status"] == "active"
    cell = kernel.run("%ivy terminate --yes")
    assert "terminated" in cell.text()
    assert server.status(chat)["status"] == "none"
    until(lambda: not server.control()["sandboxes"][-1]["pids"], "its processes are gone")
    # The user wished it, so the next cell starts anew without a complaint.
    assert kernel.run("'x' in globals()").result == "False"


def test_create_shows_progress_and_its_end(
    start_kernel: StartKernel, changed: Callable[..., None]
) -> None:
    """``%ivy create`` waits until the sandbox is ready, and the bar is gone then."""
    changed(provision_seconds={"compute": 1.5, "mount": 1.0})
    kernel = start_kernel()
    cell = kernel.run("%ivy create")
    kinds = [m["msg_type"] for m in cell.outputs]
    assert kinds.index("display_data") < kinds.index("clear_output") < kinds.index("stream")
    assert "is active" in cell.text()
