"""Interrupts, restarts and changes at awkward moments: nothing runs twice, vanishes or lies."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from faulty_gateway import Fault, faulty_gateway
from kernel_driver import Home, KernelDriver, StartKernel, kernel_variables
from sandbox_server import RunningSandbox, until

NOT_READY = Fault("instead", 503)
BEGAN_SECONDS = 15.0
CONTROL_SECONDS = 4.0
"""More than an interrupt may keep the control channel, and less than waiting for a sandbox."""


def began(server: RunningSandbox, name: str) -> Callable[[], Any]:
    """Whether a cell in the sandbox has left a file."""
    return lambda: list(server.root.glob(f"*/{name}"))


def send_control(kernel: KernelDriver, msg_type: str) -> str:
    """Send a request on the control channel; its id."""
    message = kernel.client.session.msg(msg_type, {})
    kernel.client.control_channel.send(message)
    return str(message["header"]["msg_id"])


def send_to_widget(kernel: KernelDriver, model_id: str, action: str) -> None:
    """Press a button of the status widget."""
    data = {"method": "custom", "content": {"action": action}}
    message = kernel.client.session.msg("comm_msg", {"comm_id": model_id, "data": data})
    kernel.client.shell_channel.send(message)


def test_a_restart_out_of_a_local_cell_that_does_not_end_empties_the_namespace(
    start_kernel: StartKernel,
) -> None:
    """The process is killed in the end, and still the variables are gone as after any restart."""
    kernel = start_kernel(IVY_ROUTE="agent")
    kernel.run("x = 1")
    kernel.run("%%local\n1")
    path = kernel.home.work / "began"
    kernel.submit(
        f"%%local\nimport time\nopen({str(path)!r}, 'w').close()\nwhile True:\n"
        "    try:\n        time.sleep(1)\n    except KeyboardInterrupt:\n        pass"
    )
    until(path.exists, "the local cell runs", BEGAN_SECONDS)
    kernel.manager.shutdown_wait_time = 2.0  # it will not end by itself
    kernel.restart()
    assert kernel.run("'x' in globals()").result == "False"


def test_a_restart_right_after_an_interrupt_empties_the_namespace(
    start_kernel: StartKernel, server: RunningSandbox, new_chat: Callable[[], str]
) -> None:
    """Also when the sandbox cannot be reached, so that the interrupt takes its time."""
    chat = new_chat()
    with faulty_gateway(server) as gateway:
        variables = kernel_variables(server, chat, IVY_ROUTE="agent", IVY_API_URL=gateway.url)
        kernel = start_kernel(variables=variables)
        kernel.run("x = 1")
        gateway.always = NOT_READY
        refused = gateway.tool_calls()
        kernel.submit("import time; time.sleep(30)")
        until(lambda: gateway.tool_calls() > refused + 1, "the cell was refused")
        send_control(kernel, "interrupt_request")
        kernel.restart()
        gateway.always = None
        assert kernel.run("'x' in globals()").result == "False"


def test_a_kernel_that_ends_for_good_leaves_no_mark(start_kernel: StartKernel) -> None:
    """Restarted, and then shut down without a further cell: nothing stays behind."""
    kernel = start_kernel()
    kernel.run("1")
    kernel.restart()
    assert list(kernel.home.runtime.glob("ivy-restart-*"))
    kernel.stop()
    assert not list(kernel.home.runtime.glob("ivy-restart-*"))


def test_an_interrupt_of_a_local_cell_spares_the_next_cell(start_kernel: StartKernel) -> None:
    """One signal stops one cell, although it is queued behind it already."""
    kernel = start_kernel(IVY_ROUTE="agent")
    kernel.run("import time")
    path = kernel.home.work / "began"
    local = kernel.submit(
        f"%%local\nimport time\ntry:\n    open({str(path)!r}, 'w').close()\n    time.sleep(30)\n"
        "except KeyboardInterrupt:\n    print('caught')"
    )
    following = kernel.submit("time.sleep(0.5); 'spared'")
    until(path.exists, "the local cell runs", BEGAN_SECONDS)
    kernel.interrupt()
    assert kernel.finish(local).text() == "caught\n"
    assert kernel.finish(following).result == "'spared'"


def test_questions_of_the_control_channel_do_not_hold_up_an_interrupt(
    start_kernel: StartKernel, server: RunningSandbox, new_chat: Callable[[], str]
) -> None:
    """While the sandbox cannot be reached, use of memory is told from here, soon."""
    with faulty_gateway(server) as gateway:
        chat = new_chat()
        variables = kernel_variables(server, chat, IVY_ROUTE="agent", IVY_API_URL=gateway.url)
        kernel = start_kernel(variables=variables)
        kernel.run("x = 1")
        gateway.always = NOT_READY
        refused = gateway.tool_calls()
        cell = kernel.submit("import time; time.sleep(30)")
        until(lambda: gateway.tool_calls() > refused + 1, "the cell was refused")
        sent = time.monotonic()
        asked = [send_control(kernel, f"{word}_request") for word in ("usage", "interrupt")]
        replies = [kernel.client.get_control_msg(timeout=CONTROL_SECONDS) for _ in asked]
        assert time.monotonic() - sent < CONTROL_SECONDS
        told = {reply["parent_header"]["msg_id"]: reply["content"] for reply in replies}
        assert told[asked[0]]["kernel_cpu"] >= 0
        assert told[asked[1]]["status"] == "ok"
        kernel.interrupt()  # the second one gives up
        assert kernel.finish(cell).reply["ename"] == "KeyboardInterrupt"


def test_changed_settings_are_for_the_next_cell(
    start_kernel: StartKernel, server: RunningSandbox, new_home: Callable[[], Home]
) -> None:
    """The widget's button looks at them in mid-cell, and the cell goes on to its own end."""
    home = new_home()
    config = home.config / "jupyter_ivy_config.json"
    config.write_text(json.dumps({"Ivy": {"cell_timeout_seconds": 200}}))
    kernel = start_kernel(home=home, IVY_ROUTE="agent")
    shown = kernel.run("%ivy widget").datas("display_data")[-1]
    model_id = shown["application/vnd.jupyter.widget-view+json"]["model_id"]
    name = f"began-{model_id}"
    kernel.run("x = 5")
    cell = kernel.submit(f"import time; open('{name}', 'w').close(); time.sleep(2); 'done'")
    until(began(server, name), "the cell runs", BEGAN_SECONDS)
    config.write_text(json.dumps({"Ivy": {"cell_timeout_seconds": 250}}))
    send_to_widget(kernel, model_id, "reconnect")
    assert kernel.finish(cell, beside=True).result == "'done'"
    assert kernel.run("x").result == "5"


def test_a_page_that_is_reloaded_beside_a_cell_hears_of_its_widgets(
    start_kernel: StartKernel, server: RunningSandbox
) -> None:
    """The comms of the sandbox are listed, though it is at work when they are asked for."""
    kernel = start_kernel(IVY_ROUTE="agent")
    opened = kernel.run("import comm; c = comm.create_comm(target_name='t'); print(c.comm_id)")
    comm_id = opened.text().strip()
    kernel.submit(f"import time; open('{comm_id}', 'w').close(); time.sleep(1)")
    until(began(server, comm_id), "the cell runs", BEGAN_SECONDS)
    question = kernel.client.comm_info()
    comms = kernel.reply(question)["content"]["comms"]  # the cell's own reply may come before
    assert comms == {comm_id: {"target_name": "t"}}


def test_a_start_leaves_what_the_cell_has_shown(
    start_kernel: StartKernel, changed: Callable[..., None]
) -> None:
    """Its progress goes away without the outputs beside it."""
    changed(provision_seconds={"compute": 2.5, "mount": 0.0})
    kernel = start_kernel()
    cell = kernel.run("%ivy config\n%ivy create")
    assert "clear_output" not in [message["msg_type"] for message in cell.outputs]
    assert "chat_id" in cell.text()
    assert "is starting" in cell.datas("display_data")[0]["text/plain"]
    assert cell.datas("update_display_data")[-1]["text/plain"] == ""
    again = kernel.run("%ivy config\n%ivy create")  # it is there already, so nothing flashes
    assert {message["msg_type"] for message in again.outputs} == {"stream"}


def test_two_kernels_whose_connection_files_have_one_name_do_not_meet(
    server: RunningSandbox, new_home: Callable[[], Home], new_chat: Callable[[], str]
) -> None:
    """On one chat each keeps variables of its own, and none takes the other's over."""
    variables = kernel_variables(server, new_chat(), IVY_ROUTE="agent")
    first, second = (KernelDriver(new_home(), variables) for _ in range(2))
    try:
        for kernel in (first, second):
            kernel.manager.connection_file = str(kernel.home.runtime / "kernel.json")
            kernel.start()
        assert first.run("x = 'mine'").reply["status"] == "ok"
        assert second.run("'x' in globals()").result == "False"
        assert first.run("x").result == "'mine'"
    finally:
        first.kill()
        second.kill()
