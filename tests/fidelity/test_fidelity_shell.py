"""A sandbox without ipykernel: the agent's built-in shell does what notebooks need most."""

from __future__ import annotations

import signal
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernel_driver import Home, KernelDriver, agent_variables, running_kernel
from sandbox_server import running_sandbox, until


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KernelDriver]:
    """A kernel whose sandbox has a Python with the standard library alone."""
    bare: Path = tmp_path_factory.mktemp("bare") / "venv"
    venv.create(bare, symlinks=True, with_pip=False)
    home = Home(tmp_path_factory.mktemp("shell"))
    with (
        running_sandbox(config={"python": str(bare / "bin/python")}) as server,
        running_kernel(home, agent_variables(server, "shell")) as kernel,
    ):
        yield kernel


def test_it_is_the_built_in_shell(shell: KernelDriver) -> None:
    """There is no ipykernel in this sandbox, and the status says what runs instead."""
    assert shell.run("import ipykernel").error["ename"] == "ModuleNotFoundError"
    assert "built-in shell" in shell.run("%ivy status").text()


def test_results_streams_and_errors(shell: KernelDriver) -> None:
    """Values, prints and exceptions are shown as usual, and variables stay."""
    shell.run("a = 20")
    run = shell.run("import sys\nprint('out')\nprint('err', file=sys.stderr)\na + 1")
    assert (run.result, run.text(), run.text("stderr")) == ("21", "out\n", "err\n")
    failed = shell.run("def f():\n    return 1 / 0\nf()")
    assert failed.error["ename"] == "ZeroDivisionError"
    assert "return 1 / 0" in "\n".join(failed.error["traceback"])
    assert shell.run("a").result == "20"
    assert shell.run("x = ").error["ename"] == "SyntaxError"


def test_rich_output(shell: KernelDriver) -> None:
    """Objects that can show themselves do so, without IPython."""
    run = shell.run("class Bold:\n    def _repr_html_(self):\n        return '<b>bold</b>'\nBold()")
    (data,) = run.datas("execute_result")
    assert data["text/html"] == "<b>bold</b>"


def test_output_comes_while_the_cell_runs_and_interrupt_stops_it(shell: KernelDriver) -> None:
    """Prints stream, an interrupt ends the cell, and the next one runs."""
    message_id = shell.submit("import time\nprint('on')\ntime.sleep(60)")
    earlier = shell.until(message_id, lambda message: message["msg_type"] == "stream")
    shell.interrupt()
    run = shell.finish(message_id, earlier=earlier, timeout_seconds=20)
    assert run.error["ename"] == "KeyboardInterrupt"
    assert shell.run("1 + 1").result == "2"


def test_input_and_getpass(shell: KernelDriver) -> None:
    """Questions reach the user; where nobody can answer the usual error is raised."""
    message_id = shell.submit(
        "import getpass\nprint(input('name? '), len(getpass.getpass('word? ')))", allow_stdin=True
    )
    assert shell.client.get_stdin_msg(timeout=20)["content"]["prompt"] == "name? "
    shell.client.input("Ada")
    assert shell.client.get_stdin_msg(timeout=20)["content"]["password"] is True
    shell.client.input("secret")
    assert shell.finish(message_id).text() == "Ada 6\n"
    assert shell.run("input()").error["ename"] == "StdinNotImplementedError"


def test_commands_await_and_subprocesses(shell: KernelDriver) -> None:
    """`!cmd`, top-level await and child processes work."""
    assert "from a shell" in shell.run("!echo from a shell").text()
    assert shell.run("import asyncio\nawait asyncio.sleep(0.01, 'awaited')").result == "'awaited'"
    run = shell.run("import subprocess\n_ = subprocess.run(['echo', 'inherited'])")
    assert run.text() == "inherited\n"


def test_completion_and_inspection(shell: KernelDriver) -> None:
    """Names and documentation come from the namespace."""
    shell.run("a_long_name = 1\ndef documented(x):\n    'What it does.'")
    # Each is given up after a second, which a busy machine may need.
    until(lambda: shell.ask("complete", "a_lon")["matches"] == ["a_long_name"], "a completion", 30)
    until(
        lambda: "What it does." in str(shell.ask("inspect", "documented")["data"]),
        "an inspection",
        30,
    )


def test_no_debugger_is_offered(shell: KernelDriver) -> None:
    """Without debugpy there is no debugger, and who asks for one is answered at once."""
    assert "debugger" not in shell.ask("kernel_info")["supported_features"]
    client = shell.client
    content = {"type": "request", "seq": 1, "command": "initialize", "arguments": {}}
    client.control_channel.send(client.session.msg("debug_request", content))
    assert client.get_control_msg(timeout=20)["content"]["success"] is False


def test_user_expressions_and_restart(shell: KernelDriver) -> None:
    """User expressions are answered; a restart gives an empty namespace."""
    run = shell.run("before = 6", user_expressions={"half": "before / 2"})
    assert run.reply["user_expressions"]["half"]["data"]["text/plain"] == "3.0"
    shell.restart()
    assert shell.run("'before' in globals()").result == "False"


def test_a_killed_shell_is_told(shell: KernelDriver) -> None:
    """When its Python is killed the cell says so, and the next one runs in a new one."""
    run = shell.run(f"import os\nos.kill(os.getpid(), {int(signal.SIGKILL)})")
    assert run.reply["status"] == "error"
    assert "gone" in run.error["evalue"]
    assert shell.run("'os' in globals()").result == "False"
