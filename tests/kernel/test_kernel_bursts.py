"""Bursts of messages: none is lost, the last state arrives, and an interrupt ends them soon."""

from __future__ import annotations

from collections.abc import Callable

import nbformat
import papermill
import psutil
import pytest
from home import Home
from kernel_driver import KernelDriver, StartKernel, agent_variables
from nbclient import NotebookClient
from sandbox_server import RunningSandbox
from thoroughness import THOROUGH

pytestmark = pytest.mark.timeout(600)

MESSAGES = 20_000 if THOROUGH else 6_000  # ZMQ's own mark, and nbclient's patience, are below
BURST = (
    "from IPython import get_ipython\n"
    "publish = get_ipython().display_pub.publish\n"
    f"for number in range({MESSAGES}): publish({{'text/plain': str(number)}})"
)


@pytest.fixture(scope="module")
def kernel(
    server: RunningSandbox, tmp_path_factory: pytest.TempPathFactory, new_chat: Callable[[], str]
):
    """One kernel on the agent route for the tests that drive it as a front end."""
    from kernel_driver import running

    home = Home(tmp_path_factory.mktemp("bursts") / "home")
    driver = KernelDriver(home, agent_variables(server, new_chat()))
    with running(driver) as kernel:
        kernel.run("1")
        yield kernel


def numbers(outputs: list[dict]) -> list[int]:
    """The numbers that the displays show."""
    return [int(output["data"]["text/plain"]) for output in outputs]


@pytest.mark.thorough
@pytest.mark.parametrize("runner", ["nbclient", "papermill"])
def test_a_burst_arrives_whole_at_a_client_without_a_jupyter_server(
    runner: str,
    server: RunningSandbox,
    new_home: Callable[[], Home],
    chat_id: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 20,000 displays, sent as fast as a kernel can, none is lost."""
    home = new_home()
    for name, value in home.environment(agent_variables(server, chat_id)).items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(BURST)])
    if runner == "nbclient":
        NotebookClient(notebook, kernel_name="ivy-sandbox", timeout=500).execute()
    else:
        source, target = home.work / "in.ipynb", home.work / "out.ipynb"
        nbformat.write(notebook, source)
        papermill.execute_notebook(
            str(source), str(target), kernel_name="ivy-sandbox", progress_bar=False
        )
        notebook = nbformat.read(target, 4)
    assert numbers(notebook.cells[-1].outputs) == list(range(MESSAGES))


def test_a_client_that_reads_late_misses_nothing(kernel: KernelDriver) -> None:
    """One that waits for the reply first, and reads the outputs then, gets all of them."""
    message_id = kernel.submit(BURST)
    reply = kernel.reply(message_id, 300)
    assert reply["content"]["status"] == "ok"
    messages: list[dict] = []
    while not (messages and messages[-1]["content"].get("execution_state") == "idle"):
        message = kernel.client.get_iopub_msg(timeout=30)
        if message["parent_header"].get("msg_id") == message_id:
            messages.append(message)
    shown = [m["content"] for m in messages if m["msg_type"] == "display_data"]
    assert numbers(shown) == list(range(MESSAGES))


def test_superseded_updates_are_left_out_and_the_last_is_shown(kernel: KernelDriver) -> None:
    """Of many updates of one display, and of one widget's state, fewer arrive, with one end."""
    run = kernel.run(
        "import comm\nfrom IPython.display import display\n"
        "handle = display('begin', display_id=True)\n"
        "link = comm.create_comm(target_name='burst')\n"
        "for number in range(10_000):\n"
        "    handle.update(number)\n"
        "    key = 'even' if number % 2 == 0 else 'odd'\n"
        "    link.send({'method': 'update', 'state': {key: number}, 'buffer_paths': []})\n"
        "print('end')",
        timeout_seconds=300,
    )
    updates = [data["text/plain"] for data in run.datas("update_display_data")]
    states = [m["content"]["data"]["state"] for m in run.messages if m["msg_type"] == "comm_msg"]
    together: dict[str, int] = {}
    for state in states:
        together.update(state)
    assert updates[-1] == "9999"
    assert together == {"even": 9998, "odd": 9999}
    assert len(updates) < 10_000
    assert len(states) < 10_000
    assert run.text() == "end\n"


def test_an_endless_loop_of_displays_is_held_up_and_its_interrupt_drops_the_rest(
    server: RunningSandbox, start_kernel: StartKernel, chat_id: str
) -> None:
    """Memory stays bounded on both sides, and after the interrupt little more is shown."""
    variables = agent_variables(server, chat_id) | {"JPY_SESSION_NAME": "n.ipynb"}
    kernel = start_kernel(variables=variables)
    kernel.run("import os, threading, time")
    before = psutil.Process(kernel.pid).memory_info().rss
    sandbox_pid = int(kernel.run("os.getpid()").result or 0)
    message_id = kernel.submit(
        "publish = get_ipython().display_pub.publish\ncount = 0\n"
        "try:\n    while True:\n"
        "        publish({'text/plain': 'x' * 1000}); count += 1\n"
        "finally: print('cleaned up', count)"
    )
    # Jupyter Server's rate lets 900 a second through; the loop makes many times more.
    shown = kernel.until(message_id, count_up_to(8_000), 300)
    grown = psutil.Process(kernel.pid).memory_info().rss - before
    assert grown < 200 << 20
    assert psutil.Process(sandbox_pid).memory_info().rss < 400 << 20
    kernel.send_interrupt()
    run = kernel.finish(message_id, earlier=shown, timeout_seconds=120)
    assert run.reply["status"] == "error"
    displays = len(run.datas("display_data"))
    made = int(run.text().rpartition("cleaned up")[2])
    if made > displays:
        assert "displays and 0 bytes of output are not shown here" in run.text("stderr")
        dropped = run.text("stderr").split("interrupted: ")[1:]
        assert displays + sum(int(one.split()[0].replace(",", "")) for one in dropped) == made
    assert kernel.run("1 + 1").result == "2"


def count_up_to(number: int) -> Callable[[dict], bool]:
    """A condition that is true for the message of this number."""
    seen = iter(range(1, number + 1))
    return lambda _: next(seen) == number
