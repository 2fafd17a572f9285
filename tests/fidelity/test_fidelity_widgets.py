"""Widgets of the sandbox work as if its kernel were here."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import pytest
from kernel_driver import KernelDriver
from packaging.version import Version

Json = dict[str, Any]


def send_comm(
    kernel: KernelDriver, msg_type: str, content: Json, buffers: list[bytes] | None = None
) -> str:
    """Send a comm message as a front end does; its id."""
    client = kernel.client
    message = client.session.msg(msg_type, content, metadata={"version": "1.0.0"})
    client.session.send(client.shell_channel.socket, message, buffers=buffers)
    return str(message["header"]["msg_id"])


def comm(
    kernel: KernelDriver,
    msg_type: str,
    comm_id: str,
    data: Json,
    buffers: list[bytes] | None = None,
    **more: Any,
) -> list[Json]:
    """Send a comm message and return what it caused, up to idle."""
    message_id = send_comm(kernel, msg_type, {"comm_id": comm_id, "data": data, **more}, buffers)
    return kernel.until(
        message_id, lambda m: m["content"].get("execution_state") == "idle", timeout_seconds=20
    )


def model_id(kernel: KernelDriver, code: str) -> str:
    """Make a widget; the id of its model, which is that of its comm."""
    run = kernel.run(code + ".model_id")
    assert run.result is not None, run
    return run.result.strip("'")


@pytest.fixture(scope="module", autouse=True)
def _imported(kernel: KernelDriver) -> None:
    kernel.run("import ipywidgets as w\nfrom IPython.display import display")


def test_a_slider_is_opened_shown_and_moved(kernel: KernelDriver) -> None:
    """A widget's models arrive whole, and a move in the front end changes the remote value."""
    run = kernel.run("slider = w.IntSlider(value=3)\nslider")
    opened = [m["content"] for m in run.messages if m["msg_type"] == "comm_open"]
    assert {one["data"]["state"]["_model_name"] for one in opened} >= {
        "LayoutModel",
        "IntSliderModel",
    }
    (shown,) = run.datas("execute_result") or run.datas("display_data")
    comm_id = shown["application/vnd.jupyter.widget-view+json"]["model_id"]
    assert comm_id in {one["comm_id"] for one in opened}
    comm(kernel, "comm_msg", comm_id, {"method": "update", "state": {"value": 8}})
    assert kernel.run("slider.value").result == "8"


def test_a_change_from_the_sandbox_arrives(kernel: KernelDriver) -> None:
    """A value that code sets is told to the front end, in the cell that sets it."""
    comm_id = model_id(kernel, "bar = w.IntProgress(max=3)\nbar")
    run = kernel.run("for n in range(1, 4):\n    bar.value = n")
    states = [
        m["content"]["data"]["state"]["value"]
        for m in run.messages
        if m["msg_type"] == "comm_msg" and m["content"]["comm_id"] == comm_id
    ]
    assert states == [1, 2, 3]


def test_a_callback_prints_where_it_is_shown(kernel: KernelDriver) -> None:
    """A button's callback runs in the sandbox; what it prints belongs to the click."""
    comm_id = model_id(
        kernel, "button = w.Button()\nbutton.on_click(lambda _: print('clicked'))\nbutton"
    )
    told = comm(kernel, "comm_msg", comm_id, {"method": "custom", "content": {"event": "click"}})
    assert [m["content"]["text"] for m in told if m["msg_type"] == "stream"] == ["clicked\n"]


def test_a_callback_is_heard_before_its_idle(kernel: KernelDriver) -> None:
    """All that a callback says comes before "idle", when front ends stop to listen."""
    comm_id = model_id(
        kernel,
        "chatty, level = w.Button(), w.IntProgress(max=99)\n"
        "def talk(_):\n    level.value += 1\n    print('a')\n    level.value += 1\n    print('b')\n"
        "chatty.on_click(talk)\nchatty",
    )
    click = {"method": "custom", "content": {"event": "click"}}
    for _ in range(20):
        told = comm(kernel, "comm_msg", comm_id, click)
        text = "".join(m["content"]["text"] for m in told if m["msg_type"] == "stream")
        assert text == "a\nb\n"


def test_a_failing_callback_shows_its_error(kernel: KernelDriver) -> None:
    """An exception in a callback is shown with the click, and the kernel goes on."""
    comm_id = model_id(kernel, "bad = w.Button()\nbad.on_click(lambda _: 1 / 0)\nbad")
    told = comm(kernel, "comm_msg", comm_id, {"method": "custom", "content": {"event": "click"}})
    texts = str([m["content"] for m in told if m["msg_type"] in ("stream", "error")])
    assert "ZeroDivisionError" in texts
    assert kernel.run("1 + 1").result == "2"


def test_the_output_widget_catches_output(kernel: KernelDriver) -> None:
    """Output within an Output widget goes into its state, by its own messages."""
    comm_id = model_id(kernel, "out = w.Output()\nout")
    run = kernel.run("with out:\n    print('caught')\nprint('not caught')")
    updates = [
        m["content"]["data"].get("state", {})
        for m in run.messages
        if m["msg_type"] == "comm_msg" and m["content"]["comm_id"] == comm_id
    ]
    assert any("msg_id" in state for state in updates)
    assert "not caught\n" in run.text()
    kernel.run("out.append_stdout('appended')")
    assert kernel.run("out.outputs[-1]['text']").result == "'appended'"


def test_interact_calls_back(kernel: KernelDriver) -> None:
    """`interact` shows a control, and moving it runs the function again in the sandbox."""
    kernel.run(
        "calls = []\ndef called(number):\n    calls.append(number)\n"
        "made = w.interactive(called, number=(0, 10))\ndisplay(made)"
    )
    comm_id = model_id(kernel, "made.children[0]")
    comm(kernel, "comm_msg", comm_id, {"method": "update", "state": {"value": 9}})
    assert kernel.run("calls[-1]").result == "9"


def test_binary_buffers_travel_both_ways(kernel: KernelDriver) -> None:
    """Buffers arrive in the sandbox as they were sent, and come back so."""
    kernel.run(
        "heard = []\n"
        "def open_echo(channel, message):\n"
        "    @channel.on_msg\n"
        "    def echo(got):\n"
        "        heard.extend(bytes(one) for one in got['buffers'])\n"
        "        channel.send({'n': len(heard)}, buffers=[one[::-1] for one in heard])\n"
        "get_ipython().kernel.comm_manager.register_target('echo', open_echo)"
    )
    comm(kernel, "comm_open", "echo-1", {}, target_name="echo")
    sent = [bytes(range(256)) * 400, b"\n\0\xff"]
    told = comm(kernel, "comm_msg", "echo-1", {}, buffers=sent)
    (answer,) = [m for m in told if m["msg_type"] == "comm_msg"]
    assert [bytes(one) for one in answer["buffers"]] == [one[::-1] for one in sent]
    assert answer["content"]["data"] == {"n": 2}
    comm(kernel, "comm_close", "echo-1", {})


def test_a_reloaded_page_finds_the_widgets(kernel: KernelDriver) -> None:
    """After a page reload the comms are listed, and give their state when asked."""
    comm_id = model_id(kernel, "again = w.IntSlider(value=5)\nagain")
    listed = kernel.ask("comm_info", target_name="jupyter.widget")["comms"]
    assert listed[comm_id] == {"target_name": "jupyter.widget"}
    told = comm(kernel, "comm_msg", comm_id, {"method": "request_state"})
    states = [m["content"]["data"]["state"] for m in told if m["msg_type"] == "comm_msg"]
    assert states[-1]["value"] == 5
    told = comm(
        kernel,
        "comm_open",
        "control",
        {},
        target_name="jupyter.widget.control",
    )
    told = comm(kernel, "comm_msg", "control", {"method": "request_states"})
    (answer,) = [m for m in told if m["msg_type"] == "comm_msg"]
    assert comm_id in answer["content"]["data"]["states"]


@pytest.mark.skipif(
    Version(version("ipykernel")) < Version("7.4"), reason="ipykernel itself cannot before 7.4"
)
def test_widgets_move_while_a_cell_runs(kernel: KernelDriver) -> None:
    """A move during a running async cell reaches it, as in a local kernel."""
    comm_id = model_id(kernel, "live = w.IntSlider(value=0)\nlive")
    message_id = kernel.submit(
        "import asyncio\nprint('on', flush=True)\n"
        "for _ in range(100):\n"
        "    await asyncio.sleep(0.1)\n"
        "    if live.value:\n        break\n"
        "live.value"
    )
    earlier = kernel.until(message_id, lambda message: message["msg_type"] == "stream")
    send_comm(
        kernel,
        "comm_msg",
        {"comm_id": comm_id, "data": {"method": "update", "state": {"value": 4}}},
    )
    assert kernel.finish(message_id, earlier=earlier, beside=True).result == "4"


def test_local_and_remote_widgets_side_by_side(kernel: KernelDriver) -> None:
    """Widgets of `%%local` cells and of the sandbox are both listed, and each gets its own."""
    there = model_id(kernel, "theirs = w.IntSlider()\ntheirs")
    run = kernel.run("%%local\nimport ipywidgets\nours = ipywidgets.IntSlider()\nours")
    kinds = [message["msg_type"] for message in run.messages]
    assert kinds.index("comm_open") < kinds.index("execute_result"), "shown before it is there"
    here = kernel.run("%%local\nours.model_id").result.strip("'")
    listed = kernel.ask("comm_info")["comms"]
    assert {there, here} <= set(listed)
    comm(kernel, "comm_msg", here, {"method": "update", "state": {"value": 11}})
    comm(kernel, "comm_msg", there, {"method": "update", "state": {"value": 22}})
    assert kernel.run("%%local\nours.value").result == "11"
    assert kernel.run("theirs.value").result == "22"


def test_the_status_panel_beside_remote_widgets(kernel: KernelDriver) -> None:
    """`%ivy widget` lives in this process, and its comm is listed beside the sandbox's."""
    pytest.importorskip("anywidget")
    there = model_id(kernel, "beside = w.IntSlider()\nbeside")
    run = kernel.run("%ivy widget")
    assert run.reply["status"] == "ok", run.reply
    (shown,) = run.datas("display_data")
    here = shown["application/vnd.jupyter.widget-view+json"]["model_id"]
    assert {there, here} <= set(kernel.ask("comm_info")["comms"])
    told = comm(kernel, "comm_msg", here, {"method": "request_state"})
    (answer,) = [m for m in told if m["msg_type"] == "comm_msg"]
    assert answer["content"]["data"]["method"] == "update"


def test_a_restart_forgets_the_widgets(kernel: KernelDriver) -> None:
    """After a restart no comm is listed, and a message of an old widget harms nothing."""
    comm_id = model_id(kernel, "old = w.IntSlider()\nold")
    kernel.restart()
    kernel.run("1")
    assert kernel.ask("comm_info")["comms"] == {}
    comm(kernel, "comm_msg", comm_id, {"method": "update", "state": {"value": 1}})
    assert kernel.run("'old' in globals()").result == "False"


def slow_comm(kernel: KernelDriver, comm_id: str) -> None:
    """Open a comm whose messages take the sandbox half a second each."""
    kernel.run(
        "import time\n"
        "def open_slow(comm, _):\n"
        "    comm.on_msg(lambda message: time.sleep(0.5))\n"
        "get_ipython().kernel.comm_manager.register_target('slow', open_slow)"
    )
    comm(kernel, "comm_open", comm_id, {}, target_name="slow")


def test_a_callback_that_outlives_its_cell_leaves_the_next_one_its_end(
    kernel: KernelDriver,
) -> None:
    """Sent during one cell and done during another, it changes whose messages are whose in none."""
    slow_comm(kernel, "slow-1")
    first = kernel.submit("time.sleep(0.3)\n'first'")
    begun = kernel.until(first, lambda message: message["msg_type"] == "execute_input")
    send_comm(kernel, "comm_msg", {"comm_id": "slow-1", "data": {}})
    second = kernel.submit("time.sleep(0.3)\n'second'")
    assert kernel.finish(first, earlier=begun, beside=True).result == "'first'"
    assert kernel.finish(second, beside=True, timeout_seconds=15).result == "'second'"


def test_callbacks_before_a_cell_leave_it_its_end(kernel: KernelDriver) -> None:
    """Several that are done one after the other, while a cell waits for its turn behind them."""
    slow_comm(kernel, "slow-2")
    for _ in range(3):
        send_comm(kernel, "comm_msg", {"comm_id": "slow-2", "data": {}})
    cell = kernel.submit("'after'")
    assert kernel.finish(cell, beside=True, timeout_seconds=15).result == "'after'"
