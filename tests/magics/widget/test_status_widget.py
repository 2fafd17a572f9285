"""The status widget in both kernels, as a front end sees it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from sandbox_server import RunningSandbox, until
from widget_driver import VIEW, WidgetKernel, state_is

StartKernel = Callable[..., WidgetKernel]
Shared = Callable[[str], WidgetKernel]

both = pytest.mark.parametrize("kernel_name", ["python3", "ivy-sandbox"])

TRAITS = {
    *("status", "name", "local", "busy_action", "action_error", "missing"),
    *("can_create", "can_terminate"),
}


def in_cell(kernel: WidgetKernel, code: str) -> str:
    """The code as a cell that runs in the sandbox."""
    return f"%%ivy\n{code}" if kernel.is_plain else code


def test_it_shows_the_sandbox_and_follows_it_while_a_cell_runs(
    kernel: WidgetKernel, server: RunningSandbox, chat_id: str
) -> None:
    """First none; then the cell that starts the sandbox makes it active before the cell ends."""
    model_id, _ = kernel.show_widget()
    model = kernel.wait_for(model_id, state_is("none"))
    assert model["name"] == f"Chat {chat_id}"
    assert (model["can_create"], model["can_terminate"], model["local"]) == (True, True, False)
    assert model["missing"] == model["action_error"] == model["busy_action"] == ""
    assert set(model) >= TRAITS
    assert server.status(chat_id)["status"] == "none", "a widget starts nothing"

    message_id = kernel.submit(in_cell(kernel, "import time; time.sleep(20)"))
    kernel.wait_for(model_id, state_is("active"), 18)
    kernel.interrupt()
    assert kernel.reply(message_id, 20)["content"]["ename"] == "KeyboardInterrupt"


def test_the_buttons_act_on_the_sandbox(
    kernel: WidgetKernel, server: RunningSandbox, chat_id: str
) -> None:
    """Create starts it, reconnect looks again, terminate ends it; each is busy meanwhile."""
    model_id, _ = kernel.show_widget()
    kernel.press(model_id, "create")
    kernel.wait_for(model_id, lambda model: model["busy_action"] == "create")
    kernel.wait_for(model_id, state_is("active"))
    kernel.wait_for(model_id, lambda model: model["busy_action"] == "")
    assert kernel.run(in_cell(kernel, "kept = 1")).reply["status"] == "ok"

    kernel.press(model_id, "reconnect")
    kernel.wait_for(model_id, lambda model: model["busy_action"] == "reconnect")
    kernel.wait_for(model_id, lambda model: model["busy_action"] == "")
    assert kernel.run(in_cell(kernel, "kept")).result == "1"

    kernel.press(model_id, "terminate")
    kernel.wait_for(model_id, state_is("none", "archived"))
    kernel.wait_for(model_id, lambda model: model["busy_action"] == "")
    assert server.status(chat_id)["status"] != "active"
    assert kernel.run(in_cell(kernel, "'kept' in globals()")).result == "False"


def test_the_buttons_work_while_a_cell_runs_in_the_ivy_kernel(
    shared_kernels: Shared, server: RunningSandbox
) -> None:
    """A button is handled beside the running cell, not after it."""
    kernel = shared_kernels("ivy-sandbox")
    model_id, _ = kernel.show_widget()
    message_id = kernel.submit("print('begun', flush=True)\nimport time; time.sleep(20)")
    kernel.until(message_id, lambda m: m["msg_type"] == "stream")
    kernel.press(model_id, "reconnect")
    kernel.wait_for(model_id, lambda model: model["busy_action"] == "reconnect", 10)
    kernel.wait_for(model_id, lambda model: model["busy_action"] == "", 10)
    kernel.interrupt()
    assert kernel.reply(message_id, 20)["content"]["ename"] == "KeyboardInterrupt"


def test_by_a_subshell_the_buttons_work_while_a_plain_kernel_is_busy(
    shared_kernels: Shared,
) -> None:
    """A front end that uses subshells need not wait for the running cell."""
    kernel = shared_kernels("python3")
    model_id, _ = kernel.show_widget()
    subshell_id = kernel.new_subshell()
    message_id = kernel.submit("print('begun', flush=True)\nimport time; time.sleep(20)")
    kernel.until(message_id, lambda m: m["msg_type"] == "stream")
    kernel.press(model_id, "reconnect", subshell_id)
    kernel.wait_for(model_id, lambda model: model["busy_action"] == "reconnect", 10)
    kernel.wait_for(model_id, lambda model: model["busy_action"] == "", 10)
    kernel.interrupt()
    assert kernel.reply(message_id, 20)["content"]["ename"] == "KeyboardInterrupt"


def test_an_error_of_a_button_is_shown_and_forgotten(
    start_kernel: StartKernel, server: RunningSandbox
) -> None:
    """A refused create says why; the next action takes the words away."""
    kernel = start_kernel("python3", IVY_CAMPAIGN_ID="")
    model_id, _ = kernel.show_widget()
    assert kernel.wait_for(model_id, state_is("none"))["can_create"] is False
    kernel.press(model_id, "create")
    kernel.wait_for(model_id, lambda model: "campaign_id" in model["action_error"])
    kernel.press(model_id, "reconnect")
    kernel.wait_for(model_id, lambda model: model["action_error"] == "")


def test_closing_it_stops_the_requests(
    start_kernel: StartKernel, quiet_server: RunningSandbox
) -> None:
    """While it is there the status is asked for; once it is closed, no more."""
    kernel = start_kernel("python3", at=quiet_server)
    kernel.run("import ivy_kernel\nwidget = ivy_kernel.StatusWidget()\nwidget")
    begun = requests(quiet_server)
    until(lambda: requests(quiet_server) >= begun + 2, "requests while it is watched", 15)
    kernel.run("widget.close()")
    after = requests(quiet_server)
    time.sleep(4)  # more than two of its intervals: that nothing comes cannot be waited for
    assert requests(quiet_server) <= after + 1


def requests(server: RunningSandbox) -> int:
    """How many status requests the server has had."""
    return int(server.counters()["requests"].get("GET /v1/sandbox/{chatId}/status", 0))


def test_fifty_widgets_ask_once_an_interval(
    start_kernel: StartKernel, quiet_server: RunningSandbox
) -> None:
    """All widgets of a kernel share one poller: fifty cost no more than one."""
    kernel = start_kernel("python3", at=quiet_server)
    kernel.run("import ivy_kernel\nmade = [ivy_kernel.StatusWidget() for _ in range(50)]")
    before, began = requests(quiet_server), time.monotonic()
    until(lambda: requests(quiet_server) >= before + 4, "four more requests", 20)
    took = time.monotonic() - began
    watching = [model for model in kernel.models.values() if "status" in model]

    assert len(watching) == 50
    assert took > 3 * 1.4, "four requests take three intervals of 1.5 s"


@pytest.mark.parametrize("skew_ms", [0, 3_600_000, -3_600_000])
def test_countdowns_follow_the_servers_clock(
    start_kernel: StartKernel, server: RunningSandbox, chat_id: str, skew_ms: int
) -> None:
    """With clocks an hour apart both countdowns are within a second of the server's own."""
    session_id = f"s-{chat_id}"
    server.control({"skew_ms": skew_ms, "hibernate_seconds": 90, "runtime_seconds": 500})
    try:
        server.ready(chat_id, session_id)
        kernel = start_kernel(
            "python3",
            IVY_SESSION_ID=session_id,
            RECOUP_SESSION_ID=session_id,
            RECOUP_API_URL=server.url.removesuffix("/api"),
            RECOUP_API_KEY=server.token,
        )
        model_id, _ = kernel.show_widget()
        shown = kernel.wait_for(model_id, state_is("active"))["status"]
        truth = server.session_status(session_id)
        _, data = kernel.show_widget()  # the first may have been shown before anything was known
        life = truth["lifecycle"]
        since = truth["lifecycle"]["serverTime"]
    finally:
        server.control({"skew_ms": 0, "hibernate_seconds": None, "runtime_seconds": None})

    # What the server says now is later than what was shown, by the time between.
    assert -1000 < shown["hibernates_in_ms"] - (life["hibernateAfter"] - since) < 4000
    assert -1000 < shown["expires_in_ms"] - (life["sandboxExpiresAt"] - since) < 4000
    assert shown["hibernates_in_ms"] <= 90_000
    assert shown["dialect"] == "ivy+recoup"
    assert shown["uptime_ms"] is not None
    assert "hibernates in: 1 min" in data["text/plain"]


def test_a_refused_key_is_stale_until_it_is_corrected(
    start_kernel: StartKernel, server: RunningSandbox
) -> None:
    """The widget says why it knows nothing, without the key, and recovers without a restart."""
    kernel = start_kernel("python3", IVY_API_KEY="ivy_wrong")
    model_id, _ = kernel.show_widget()
    model = kernel.wait_for(model_id, lambda m: (m.get("status") or {}).get("stale"))
    assert "key" in model["status"]["stale_reason"]

    kernel.run(f"import os\nos.environ['IVY_API_KEY'] = {server.token!r}")
    kernel.wait_for(model_id, state_is("none"))
    assert kernel.models[model_id]["status"]["stale"] is False


@both
def test_missing_settings_are_told_and_read_again(
    start_kernel: StartKernel, server: RunningSandbox, kernel_name: str
) -> None:
    """Without a chat it says what is missing; once that is set, reconnect finds the sandbox."""
    kernel = start_kernel(kernel_name, IVY_CHAT_ID="")
    model_id, data = kernel.show_widget()
    model = kernel.wait_for(model_id, lambda m: "IVY_CHAT_ID" in m.get("missing", ""))
    assert (model["can_create"], model["can_terminate"]) == (False, False)
    assert "IVY_CHAT_ID" in data["text/plain"]

    setting = kernel.home.config / "jupyter_ivy_config.json"
    setting.write_text(json.dumps({"Ivy": {"chat_id": "given-later"}}))
    kernel.press(model_id, "reconnect")
    kernel.wait_for(model_id, state_is("none"))
    assert kernel.models[model_id]["missing"] == ""
    assert kernel.models[model_id]["name"] == "Chat given-later"


def test_a_saved_notebook_keeps_readable_words(
    kernel: WidgetKernel, server: RunningSandbox, chat_id: str
) -> None:
    """Beside the live view there is text and HTML that says what was known, and when."""
    server.ready(chat_id)
    model_id, _ = kernel.show_widget()
    kernel.wait_for(model_id, state_is("active"))
    _, data = kernel.show_widget()  # the first may have been shown before anything was known

    assert VIEW in data
    assert "state: active" in data["text/plain"]
    assert "as it was when this cell ran" in data["text/plain"]
    assert "<li>state: active</li>" in data["text/html"]


def test_no_key_is_in_any_message(kernel: WidgetKernel, server: RunningSandbox) -> None:
    """Neither the widget's state nor anything else that is sent holds the key."""
    model_id, _ = kernel.show_widget()
    kernel.press(model_id, "create")
    kernel.wait_for(model_id, state_is("active"))
    kernel.press(model_id, "nonsense")
    # The buttons are still under way when the cell comes, which is told again that it is busy.
    kernel.finish(kernel.submit(in_cell(kernel, "1")), beside=True)

    assert kernel.models
    assert server.token not in repr(kernel.all_messages)


def test_the_ivy_kernel_lists_its_own_comms(shared_kernels: Shared) -> None:
    """A page that is loaded again finds the widget by ``comm_info``, and can ask for its state."""
    kernel = shared_kernels("ivy-sandbox")
    model_id, _ = kernel.show_widget()
    comms = kernel.ask("comm_info", "jupyter.widget")["comms"]
    assert comms[model_id] == {"target_name": "jupyter.widget"}

    kernel.models[model_id] = {}
    content = {"comm_id": model_id, "data": {"method": "request_state"}}
    kernel.client.shell_channel.send(kernel.client.session.msg("comm_msg", content))
    model = kernel.wait_for(model_id, lambda m: m.get("name"))
    assert model["_esm"]


def test_remote_and_local_widgets_live_side_by_side(shared_kernels: Shared) -> None:
    """Widgets of the sandbox work beside ours, told apart by their ids."""
    kernel = shared_kernels("ivy-sandbox")
    model_id, _ = kernel.show_widget()
    cell = kernel.run("import ipywidgets\nslider = ipywidgets.IntSlider(value=3)\nslider")
    remote_id = cell.datas("execute_result")[-1][VIEW]["model_id"]
    content = {
        "comm_id": remote_id,
        "data": {"method": "update", "state": {"value": 8}, "buffer_paths": []},
    }
    kernel.client.shell_channel.send(kernel.client.session.msg("comm_msg", content))
    # The move is still under way when the cell comes, which is told again that it is busy.
    assert kernel.finish(kernel.submit("slider.value"), beside=True).result == "8"

    comms = kernel.ask("comm_info", "jupyter.widget")["comms"]
    assert {model_id, remote_id} <= set(comms)


def test_without_its_packages_it_says_what_to_install() -> None:
    """Where anywidget is missing, the rest works and the widget names what it needs."""
    code = (
        "import sys; sys.modules['anywidget'] = None\n"
        "import ivy_kernel, ivy_kernel.magics\n"
        "try: ivy_kernel.StatusWidget\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )

    assert done.stdout.startswith("UsageError")
    assert "pip install anywidget" in done.stdout


def test_without_a_notebook_it_says_what_to_do() -> None:
    """Outside of IPython there is no session that it could show."""
    import ivy_kernel
    from ivy_kernel.errors import UsageError

    with pytest.raises(UsageError, match="%ivy widget"):
        ivy_kernel.StatusWidget()
