"""What asks: `input()`, completion, inspection, the pager, history, and the debugger."""

from __future__ import annotations

import re
import time
from typing import Any

from kernel_driver import KernelDriver, StartKernel
from sandbox_server import until

COLOUR = re.compile("\x1b\\[[0-9;]*m")


def question(kernel: KernelDriver) -> dict[str, Any]:
    """The content of the next question to the user."""
    return dict(kernel.client.get_stdin_msg(timeout=20)["content"])


def test_input_and_getpass_are_answered(kernel: KernelDriver) -> None:
    """Prompts and secrecy arrive at the user, the answers in the cell, one after the other."""
    message_id = kernel.submit(
        "import getpass\nfirst = input('name? ')\nsecond = getpass.getpass('word? ')\n"
        "print(first, len(second))",
        allow_stdin=True,
    )
    assert question(kernel) == {"prompt": "name? ", "password": False}
    kernel.client.input("Ada")
    assert question(kernel) == {"prompt": "word? ", "password": True}
    kernel.client.input("secret")
    run = kernel.finish(message_id)
    assert run.text() == "Ada 6\n"
    assert "secret" not in str([message["content"] for message in run.messages])


def test_interrupt_during_input(kernel: KernelDriver) -> None:
    """An interrupted question ends its cell, and the next question gets its own answer."""
    message_id = kernel.submit("input('first? ')", allow_stdin=True)
    question(kernel)
    kernel.interrupt()
    run = kernel.finish(message_id, timeout_seconds=20)
    assert run.error["ename"] == "KeyboardInterrupt"
    kernel.client.input("too late")
    message_id = kernel.submit("input('second? ')", allow_stdin=True)
    assert question(kernel)["prompt"] == "second? "
    kernel.client.input("in time")
    assert kernel.finish(message_id).result == "'in time'"


def test_input_where_nobody_can_answer(kernel: KernelDriver) -> None:
    """Without stdin `input()` raises the usual error instead of waiting."""
    run = kernel.run("input('who? ')", allow_stdin=False)
    assert run.error["ename"] == "StdinNotImplementedError"


def test_completion_and_inspection_know_the_variables(kernel: KernelDriver) -> None:
    """Names and documentation come from the sandbox's namespace."""
    kernel.run("a_long_name = 1\ndef documented(x):\n    'What it does.'")
    # The very first one loads a library there, and each is given up after a second.
    until(
        lambda: kernel.ask("complete", "a_lon")["matches"] == ["a_long_name"],
        "a completion",
        30,
    )
    found = until(lambda: found_by_inspection(kernel), "an inspection", 30)
    assert "What it does." in found
    detailed = until(lambda: found_by_inspection(kernel, detail_level=1), "a detailed one", 30)
    assert "def documented" in COLOUR.sub("", detailed)


def found_by_inspection(kernel: KernelDriver, **options: int) -> str:
    """What an inspection of ``documented`` shows; nothing when it was given up."""
    reply = kernel.ask("inspect", "documented", **options)
    return str(reply["data"]["text/plain"]) if reply["found"] else ""


def test_completion_beside_a_running_cell(kernel: KernelDriver) -> None:
    """Behind a running cell completion answers within a second, if only with nothing."""
    message_id = kernel.submit("import time\nprint('on', flush=True)\ntime.sleep(3)")
    earlier = kernel.until(message_id, lambda message: message["msg_type"] == "stream")
    began = time.monotonic()
    assert kernel.ask("complete", "a_lon")["status"] == "ok"
    assert time.monotonic() - began < 1.5
    kernel.finish(message_id, earlier=earlier, beside=True)


def test_pager_and_history(kernel: KernelDriver) -> None:
    """`name?` is a pager payload, and the inputs are in the history."""
    run = kernel.run("zip?")
    (payload,) = run.reply["payload"]
    assert payload["source"] == "page"
    assert "zip" in payload["data"]["text/plain"]
    kernel.run("remembered = 'this input'")
    found = kernel.ask("history", hist_access_type="tail", n=1)["history"]
    assert found[-1][2] == "remembered = 'this input'"
    assert "remembered = 'this input'" in kernel.run("%history -l 3").text()


class Debugger:
    """A front end's side of the debugger."""

    def __init__(self, kernel: KernelDriver) -> None:
        self._kernel = kernel
        self._number = 0

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a request of the Debug Adapter Protocol; the reply."""
        client, self._number = self._kernel.client, self._number + 1
        content = {
            "type": "request",
            "seq": self._number,
            "command": command,
            "arguments": arguments,
        }
        message = client.session.msg("debug_request", content)
        client.control_channel.send(message)
        while True:
            reply = client.get_control_msg(timeout=20)
            if reply["parent_header"]["msg_id"] == message["header"]["msg_id"]:
                return dict(reply["content"])

    def event(self, name: str) -> dict[str, Any]:
        """The next event of a kind."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            message = self._kernel.client.get_iopub_msg(timeout=20)
            if message["msg_type"] == "debug_event" and message["content"]["event"] == name:
                return dict(message["content"])
        raise AssertionError(f"no event {name!r}")


def test_the_debugger_stops_shows_and_goes_on(start_kernel: StartKernel) -> None:
    """Breakpoint, stack, variables and continue, on the sandbox's own debugger."""
    kernel = start_kernel()
    kernel.run("1")
    info = kernel.ask("kernel_info")
    assert "debugger" in info["supported_features"]
    debugger = Debugger(kernel)
    begun = debugger.ask(
        "initialize",
        clientID="test",
        adapterID="",
        pathFormat="path",
        linesStartAt1=True,
        columnsStartAt1=True,
        supportsVariableType=True,
    )
    assert begun["success"], begun
    assert debugger.ask("attach")["success"]
    code = "def double(number):\n    result = number * 2\n    return result\n\nprint(double(21))"
    dumped = debugger.ask("dumpCell", code=code)
    source = {"path": dumped["body"]["sourcePath"]}
    points = debugger.ask(
        "setBreakpoints", source=source, breakpoints=[{"line": 3}], sourceModified=False
    )
    assert points["body"]["breakpoints"][0]["verified"], points
    assert debugger.ask("configurationDone")["success"]
    assert debugger.ask("debugInfo")["body"]["isStarted"] is True
    message_id = kernel.submit(code)
    thread = debugger.event("stopped")["body"]["threadId"]
    frames = debugger.ask("stackTrace", threadId=thread)["body"]["stackFrames"]
    assert frames[0]["name"] == "double"
    assert frames[0]["line"] == 3
    scopes = debugger.ask("scopes", frameId=frames[0]["id"])["body"]["scopes"]
    reference = next(one for one in scopes if one["name"] == "Locals")["variablesReference"]
    variables = debugger.ask("variables", variablesReference=reference)["body"]["variables"]
    assert {one["name"]: one["value"] for one in variables}["result"] == "42"
    assert debugger.ask("continue", threadId=thread)["success"]
    reply = kernel.reply(message_id, 20)
    assert reply["content"]["status"] == "ok"
    assert debugger.ask("disconnect", restart=False, terminateDebuggee=False)["success"]
    assert debugger.ask("debugInfo")["body"]["isStarted"] is False


def test_the_debugger_before_the_first_cell(start_kernel: StartKernel) -> None:
    """Before the sandbox's kernel is there the debugger is "not started", and refuses the rest."""
    debugger = Debugger(start_kernel())
    about = debugger.ask("debugInfo")
    assert about["success"]
    assert about["body"]["isStarted"] is False
    assert about["body"]["breakpoints"] == []
    refused = debugger.ask("initialize")
    assert refused["success"] is False
    assert "Run a cell first" in refused["message"]
