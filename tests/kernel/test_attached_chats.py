"""A chat that was attached stays so through restarts, and is kept apart from the one before."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from kernel_driver import CellRun, KernelDriver, StartKernel
from sandbox_server import until

from ivy_kernel.kernel.restart import RestartMark

WHERE = "import os; os.environ['IVY_SANDBOX_ID']"


def attach(kernel: KernelDriver, chat: str) -> None:
    """Send the cells that follow to another chat."""
    cell = kernel.run(f"%ivy attach {chat} --campaign campaign-of-{chat} --session s-{chat}")
    assert cell.reply["status"] == "ok", cell.reply


@pytest.mark.parametrize("route", ["agent", "notebook"])
@pytest.mark.parametrize("ends", ["in order", "crash"])
def test_a_restart_keeps_the_attached_chat_and_says_so(
    start_kernel: StartKernel, chats: tuple[str, str], route: str, ends: str
) -> None:
    """Cells go on in that chat; the first one says so, once."""
    first, second = chats
    kernel = start_kernel(chat_id=first, IVY_ROUTE=route)
    attach(kernel, second)
    where = kernel.run(WHERE).result
    for _ in range(2):  # the second time no cell has used the chat in between
        if ends == "crash":
            os.kill(kernel.pid, signal.SIGKILL)
            kernel.manager.restart_kernel(now=True)
            kernel.client.wait_for_ready(timeout=30)
        else:
            kernel.restart()
    cell = kernel.run(WHERE)
    assert cell.result == where
    assert cell.text("stderr").count(f"Chat {second} is still attached") == 1
    assert "still attached" not in kernel.run("1").text("stderr")
    attach(kernel, first)
    kernel.restart()
    cell = kernel.run(WHERE)
    assert cell.result not in (None, where)
    assert "attached" not in cell.text("stderr")


def test_another_kernel_of_the_same_file_is_not_attached(tmp_path: Path) -> None:
    """A name such as kernel.json is used again: the chat goes with the kernel, and its key."""
    file = tmp_path / "kernel.json"
    file.write_text(json.dumps({"key": "one"}))
    RestartMark(str(file)).keep_attached({"chat_id": "a chat", "session_id": ""})
    assert RestartMark(str(file)).attached() == {"chat_id": "a chat", "session_id": ""}
    file.write_text(json.dumps({"key": "another"}))
    assert RestartMark(str(file)).attached() == {}


def test_after_a_shutdown_nothing_of_it_is_left(
    start_kernel: StartKernel, chats: tuple[str, str]
) -> None:
    """The kernel's files are removed with it."""
    first, second = chats
    kernel = start_kernel(chat_id=first, IVY_ROUTE="agent")
    attach(kernel, second)
    assert list(kernel.home.runtime.glob("ivy-attached-*"))
    kernel.stop()
    assert not list(kernel.home.runtime.glob("ivy-attached-*"))
    assert not list(kernel.home.runtime.glob("ivy-restart-*"))


OPENS = (
    "from comm import create_comm\n"
    "heard = []\n"
    "one = create_comm(target_name='test')\n"
    "one.on_msg(lambda message: heard.append(message['content']['data']))\n"
    "one.comm_id"
)
LISTENS = (
    "arrived = []\n"
    "handlers = get_ipython().kernel.shell_handlers\n"
    "before = handlers['comm_msg']\n"
    "def listen(stream, ident, message):\n"
    "    arrived.append(message['content']['comm_id'])\n"
    "    return before(stream, ident, message)\n"
    "handlers['comm_msg'] = listen"
)


def send(kernel: KernelDriver, comm_id: str, data: Any) -> None:
    """Send a widget's message as a page does, and wait until the kernel is done with it."""
    message = kernel.client.session.msg("comm_msg", {"comm_id": comm_id, "data": data})
    kernel.client.shell_channel.send(message)
    deadline = time.monotonic() + 30
    while True:
        seen = kernel.client.get_iopub_msg(timeout=max(0.1, deadline - time.monotonic()))
        is_idle = seen["content"].get("execution_state") == "idle"
        if is_idle and seen["parent_header"].get("msg_id") == message["header"]["msg_id"]:
            return


def test_a_widgets_message_reaches_its_own_chat_only(
    start_kernel: StartKernel, chats: tuple[str, str]
) -> None:
    """A page still shows the widget of the first chat: its messages are not for the second."""
    first, second = chats
    kernel = start_kernel(chat_id=first, IVY_ROUTE="agent")
    comm_id = str(kernel.run(OPENS).result).strip("'")
    attach(kernel, second)
    kernel.run(LISTENS)
    send(kernel, comm_id, {"n": 1})
    assert kernel.run("arrived").result == "[]"
    own_id = str(kernel.run(OPENS).result).strip("'")
    send(kernel, own_id, {"n": 2})
    assert kernel.run("heard, arrived").result == f"([{{'n': 2}}], ['{own_id}'])"
    attach(kernel, first)
    kernel.run("1")
    send(kernel, comm_id, {"n": 3})
    assert kernel.run("heard").result == "[{'n': 3}]"
    send(kernel, own_id, {"n": 4})
    assert kernel.run("heard").result == "[{'n': 3}]"
    attach(kernel, second)
    assert kernel.run("arrived").result == f"['{own_id}']"


def shown_since(kernel: KernelDriver, seconds: float = 2.0) -> list[str]:
    """The text and values that are published without a cell of ours, within a time."""
    texts = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            message = kernel.client.get_iopub_msg(timeout=0.2)
        except Exception:
            continue
        texts.append(str(message["content"].get("text") or message["content"].get("data") or ""))
    return [text for text in texts if text]


@pytest.mark.parametrize("change", ["setting", "attach"])
def test_what_was_shown_is_not_shown_again(
    start_kernel: StartKernel, chats: tuple[str, str], change: str
) -> None:
    """Another session on the same kernel goes on where the one before had stopped to read."""
    first, second = chats
    kernel = start_kernel(chat_id=first, IVY_ROUTE="agent")
    kernel.run("x = 1")
    last = kernel.run("print('shown once'); 'a value'")
    assert last.text() == "shown once\n"
    everything: list[str] = []
    if change == "setting":
        kernel.home.settings_file.write_text(json.dumps({"Ivy": {"start_timeout_seconds": 800.0}}))
    else:
        attach(kernel, second)
        kernel.run("1")
        attach(kernel, first)
    cell: CellRun = run_and_keep(kernel, "x", everything)
    everything += shown_since(kernel)
    assert cell.result == "1"
    assert not [text for text in everything if "shown once" in text or "a value" in text]


def run_and_keep(kernel: KernelDriver, code: str, texts: list[str]) -> CellRun:
    """Run a cell, and keep the text of all messages, of other parents too."""
    message_id = kernel.submit(code)
    messages: list[dict[str, Any]] = []
    deadline = time.monotonic() + 40
    while True:
        message = kernel.client.get_iopub_msg(timeout=max(0.1, deadline - time.monotonic()))
        content = message["content"]
        texts.append(str(content.get("text") or content.get("data") or ""))
        if message["parent_header"].get("msg_id") == message_id:
            messages.append(message)
            if content.get("execution_state") == "idle":
                return kernel.finish(message_id, earlier=messages)


def test_output_that_came_while_another_chat_was_attached_is_shown(
    start_kernel: StartKernel, chats: tuple[str, str]
) -> None:
    """A thread went on in the first chat: what it said meanwhile is neither lost nor doubled."""
    first, second = chats
    kernel = start_kernel(chat_id=first, IVY_ROUTE="agent")
    kernel.run(
        "import threading, os\n"
        "def speak():\n"
        "    while not os.path.exists('go'): pass\n"
        "    print('while away', flush=True); open('said', 'w').close()\n"
        "threading.Thread(target=speak, daemon=True).start()"
    )
    attach(kernel, second)
    kernel.run("1")
    kernel.run(f"import time\n{_go(first)}")
    everything: list[str] = []
    attach(kernel, first)
    run_and_keep(kernel, "1", everything)
    until(lambda: everything.extend(shown_since(kernel, 0.3)) or "while away\n" in everything)
    everything += shown_since(kernel)
    assert everything.count("while away\n") == 1


def _go(chat: str) -> str:
    """Code in another chat's sandbox that lets the thread speak; the sandboxes share a machine."""
    return (
        "import glob, os\n"
        f"here = os.path.dirname(os.getcwd())\n"
        f"other = [d for d in glob.glob(here + '/*') if {chat!r} in d][0]\n"
        "open(other + '/go', 'w').close()\n"
        "until = time.monotonic() + 20\n"
        "while not os.path.exists(other + '/said') and time.monotonic() < until: time.sleep(0.05)"
    )
