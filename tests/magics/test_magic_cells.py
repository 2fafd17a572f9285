"""``%%ivy`` in a plain Python kernel: outputs, errors, interrupts and questions as in any cell."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest
from kernel_driver import is_idle
from magic_driver import MagicKernel
from sandbox_server import RunningSandbox, until


def test_streams_and_value_are_native_outputs(kernel: MagicKernel) -> None:
    """What is printed comes as streams, the value as the cell's own numbered result."""
    cell = kernel.ivy("import sys\nprint('out')\nprint('err', file=sys.stderr)\n6 * 7")
    count = next(m for m in cell.messages if m["msg_type"] == "execute_input")
    result = next(m for m in cell.messages if m["msg_type"] == "execute_result")

    assert cell.text() == "out\n"
    assert cell.text("stderr") == "err\n"
    assert cell.result == "42"
    assert result["content"]["execution_count"] == count["content"]["execution_count"]


def test_variables_stay_in_the_sandbox(kernel: MagicKernel) -> None:
    """A variable of one cell is there for the next, and not in this kernel's Python."""
    kernel.ivy("kept = 5")

    assert kernel.ivy("kept + 1").result == "6"
    assert kernel.run("'kept' in globals()").result == "False"


def test_a_bundle_arrives_whole_with_its_metadata(kernel: MagicKernel) -> None:
    """Every MIME type of a display and of a value arrives, unknown ones too, with metadata."""
    code = """
from IPython.display import display
bundle = {'text/plain': 't', 'text/html': '<b>h</b>', 'application/x-own+json': {'a': [1]}}
display(bundle, raw=True, metadata={'text/html': {'isolated': True}})
class Rich:
    def _repr_mimebundle_(self, **_):
        return {**bundle, 'text/latex': '$x$'}, {'text/latex': {'m': 1}}
Rich()
"""
    cell = kernel.ivy(code)
    shown = next(m["content"] for m in cell.messages if m["msg_type"] == "display_data")
    value = next(m["content"] for m in cell.messages if m["msg_type"] == "execute_result")

    assert shown["data"] == {
        "text/plain": "t",
        "text/html": "<b>h</b>",
        "application/x-own+json": {"a": [1]},
    }
    assert shown["metadata"] == {"text/html": {"isolated": True}}
    assert value["data"]["text/latex"] == "$x$"
    assert value["data"]["application/x-own+json"] == {"a": [1]}
    assert value["metadata"] == {"text/latex": {"m": 1}}


def test_displays_are_updated_and_cleared(kernel: MagicKernel) -> None:
    """``update_display`` and ``clear_output`` work as in a native cell."""
    cell = kernel.ivy(
        "from IPython.display import display, clear_output\n"
        "handle = display('one', display_id=True)\nhandle.update('two')\nclear_output(wait=True)"
    )
    kinds = [message["msg_type"] for message in cell.outputs]
    first, second = (m["content"]["transient"]["display_id"] for m in cell.outputs[:2])

    assert kinds == ["display_data", "update_display_data", "clear_output"]
    assert first == second
    assert cell.outputs[2]["content"] == {"wait": True}


def test_an_error_has_the_remote_name_value_and_traceback_once(kernel: MagicKernel) -> None:
    """Error output and error reply name the remote exception, with the remote frames alone."""
    cell = kernel.ivy("def inner():\n    raise LookupError('no such gene')\ninner()")
    text = cell.traceback

    assert cell.reply["ename"] == "LookupError"
    assert cell.reply["evalue"] == "no such gene"
    assert text.count("Traceback") == 1
    assert "inner" in text
    assert "ivy_kernel" not in text
    assert not cell.text("stderr")


def test_code_can_catch_the_error(kernel: MagicKernel) -> None:
    """In a loop of one's own the error is an exception with its facts."""
    cell = kernel.run(
        "try:\n    get_ipython().run_cell_magic('ivy', '', '1/0')\n"
        "except Exception as error:\n    print(error.ename, error.evalue, error.fate)"
    )

    assert cell.text() == "ZeroDivisionError division by zero failed\n"


def test_an_interrupt_stops_the_cell_and_keeps_the_variables(kernel: MagicKernel) -> None:
    """The interrupt reaches the sandbox, quickly; the next cell finds the variables."""
    kernel.ivy("before = 1")
    message_id = kernel.submit("%%ivy\nprint('begun', flush=True)\nimport time; time.sleep(60)")
    earlier = kernel.until(message_id, lambda m: m["msg_type"] == "stream")
    began = time.monotonic()
    kernel.interrupt()
    cell = kernel.finish(message_id, earlier=earlier)

    assert time.monotonic() - began < 5
    assert cell.reply["ename"] == "KeyboardInterrupt"
    assert "time.sleep" in cell.traceback
    assert kernel.ivy("before").result == "1"


@pytest.mark.usefixtures("fresh_chat")
def test_a_second_interrupt_gives_up(kernel: MagicKernel) -> None:
    """A cell that ignores the first interrupt is no longer waited for after the second."""
    code = (
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "print('deaf', flush=True)\ntime.sleep(30)"
    )
    message_id = kernel.submit(f"%%ivy\n{code}")
    earlier = kernel.until(message_id, lambda m: m["msg_type"] == "stream")
    last = time.monotonic() + 10
    while not is_idle(earlier[-1]) and time.monotonic() < last:
        kernel.interrupt()  # one that comes too soon after another is no second one
        # Not again at once: an interrupt while the kernel ends the cell would change its reply.
        with contextlib.suppress(AssertionError):  # nothing came in time
            more = time.monotonic() + 3
            while not is_idle(earlier[-1]):
                earlier.append(kernel.next_message(message_id, more))
    assert is_idle(earlier[-1]), "it is waited for still"
    cell = kernel.finish(message_id, earlier=earlier)

    assert cell.reply["ename"] == "KeyboardInterrupt"
    assert "not known" in cell.reply["evalue"]
    assert kernel.run("1 + 1").result == "2"


def test_idle_interrupts_are_harmless(kernel: MagicKernel) -> None:
    """Interrupts between cells change nothing."""
    kernel.interrupt()

    assert kernel.ivy("1 + 2").result == "3"


def test_input_is_asked_here_and_answered_there(kernel: MagicKernel) -> None:
    """``input()`` in the sandbox asks the user of this notebook."""
    message_id = kernel.submit("%%ivy\nprint('hello', input('who? '))", allow_stdin=True)
    asked = kernel.answer("Ada")
    cell = kernel.finish(message_id)

    assert asked["prompt"] == "who? "
    assert cell.text() == "hello Ada\n"


def test_a_question_can_be_interrupted(kernel: MagicKernel) -> None:
    """An interrupt at the prompt of ``input()`` ends the cell."""
    message_id = kernel.submit("%%ivy\ninput('who? ')", allow_stdin=True)
    kernel.client.get_stdin_msg(timeout=20)
    kernel.interrupt()
    cell = kernel.finish(message_id, timeout_seconds=15)

    assert cell.reply["ename"] == "KeyboardInterrupt"
    assert kernel.ivy("2").result == "2"


def test_where_nobody_can_be_asked_input_says_so(kernel: MagicKernel) -> None:
    """Without stdin, as in batch runs, ``input()`` raises the standard error."""
    assert kernel.ivy("input()").reply["ename"] == "StdinNotImplementedError"


def test_hidden_and_empty_cells_start_no_sandbox(
    kernel: MagicKernel, server: RunningSandbox, fresh_chat: str
) -> None:
    """A comment, and a cell that the user did not run, leave the chat without a sandbox."""
    empty = kernel.ivy("# nothing here\n")
    hidden = kernel.ivy("1", store_history=False)

    assert empty.reply["status"] == "ok"
    assert hidden.reply["ename"] == "NoSandboxError"
    assert server.status(fresh_chat)["status"] == "none"


@pytest.mark.usefixtures("slow_start")
def test_a_runner_of_hidden_cells_may_start_the_sandbox(
    start_kernel: Callable[..., MagicKernel], new_chat: Callable[[], str]
) -> None:
    """With auto_create_hidden a hidden cell starts one, and shows its own outputs alone."""
    kernel = start_kernel(new_chat(), IVY_AUTO_CREATE_HIDDEN="true")
    cell = kernel.ivy("print('mine')", store_history=False)

    assert [message["msg_type"] for message in cell.outputs] == ["stream"]
    assert cell.text() == "mine\n"


def test_a_setting_forbids_to_start_a_sandbox(
    start_kernel: Callable[..., MagicKernel], server: RunningSandbox, new_chat: Callable[[], str]
) -> None:
    """With auto_create off only ``%ivy create`` starts one; then cells run."""
    chat_id = new_chat()
    kernel = start_kernel(chat_id, IVY_AUTO_CREATE="0")
    refused = kernel.ivy("1")
    assert refused.reply["ename"] == "NoSandboxError"
    assert "auto_create" in refused.reply["evalue"]
    assert server.status(chat_id)["status"] == "none"

    assert "active" in kernel.run("%ivy create").text()
    assert kernel.ivy("1").result == "1"


@pytest.mark.usefixtures("fresh_chat", "slow_start")
def test_the_start_is_shown_and_leaves_nothing(kernel: MagicKernel) -> None:
    """Phase and progress are shown while the sandbox starts, and cleared before the cell's own."""
    cell = kernel.ivy("print('mine')")
    kinds = [message["msg_type"] for message in cell.outputs]

    assert kinds[0] == "display_data"
    assert "is starting" in cell.datas("display_data")[0]["text/plain"]
    assert "<progress" in cell.datas("display_data")[0]["text/html"]
    assert kinds[-2:] == ["clear_output", "stream"]


@pytest.mark.usefixtures("fresh_chat", "slow_start")
def test_earlier_output_of_the_cell_survives_the_start(kernel: MagicKernel) -> None:
    """Where code calls the magic, the progress is blanked: clearing would take more."""
    cell = kernel.run("print('mine')\nget_ipython().run_cell_magic('ivy', '', 'print(1)')")
    kinds = [message["msg_type"] for message in cell.outputs]

    assert "clear_output" not in kinds
    assert cell.text() == "mine\n1\n"
    assert cell.datas("update_display_data")[-1] == {"text/plain": "", "text/html": ""}


def test_it_works_inside_a_running_loop_without_entering_it_again(kernel: MagicKernel) -> None:
    """Called from a coroutine, the magic neither needs nor loads nest_asyncio."""
    cell = kernel.run(
        "import asyncio, sys\n"
        "async def main():\n"
        "    await asyncio.sleep(0)\n"
        "    get_ipython().run_cell_magic('ivy', '', 'print(10)')\n"
        "await main()\nprint('nest_asyncio' in sys.modules)"
    )

    assert cell.text() == "10\nFalse\n"


def test_outputs_can_be_captured(kernel: MagicKernel) -> None:
    """``%%capture``-like code gets the outputs, since they go IPython's own ways."""
    cell = kernel.run(
        "from IPython.utils.capture import capture_output\n"
        "with capture_output() as got:\n"
        "    get_ipython().run_cell_magic('ivy', '', 'print(7)\\n8')\n"
        "(got.stdout, [o.data['text/plain'] for o in got.outputs])"
    )

    assert cell.result == "('7\\n', ['8'])"


def test_no_message_holds_the_key(kernel: MagicKernel, server: RunningSandbox) -> None:
    """Nothing that this kernel has sent so far, errors included, holds the key."""
    kernel.run("%ivy config")
    kernel.run("%ivy status")

    assert len(kernel.all_messages) > 50
    assert server.token not in repr(kernel.all_messages)
    assert server.token not in kernel.log.read_text()


def test_background_output_is_shown_under_its_own_cell(kernel: MagicKernel) -> None:
    """A later cell has run meanwhile; ipykernel shows a thread's output in the same place."""
    cell = kernel.ivy(
        "import threading, time\n"
        "def late():\n    time.sleep(3)\n    print('placed', flush=True)\n"
        "threading.Thread(target=late).start()"
    )
    kernel.run("1")
    found: list[str] = []

    def seen() -> bool:
        message = kernel.any_message(time.monotonic() + 30)
        if message["msg_type"] == "stream" and "placed" in message["content"]["text"]:
            found.append(message["parent_header"]["msg_id"])
        return bool(found)

    until(seen, "the late output", 30)
    assert found == [cell.messages[0]["parent_header"]["msg_id"]]


def test_background_output_is_shown(kernel: MagicKernel) -> None:
    """What a thread in the sandbox prints after its cell has ended is shown too."""
    kernel.ivy(
        "import threading, time\n"
        "def late():\n    time.sleep(3)\n    print('late', flush=True)\n"
        "threading.Thread(target=late).start()"
    )

    def seen() -> bool:
        message = kernel.any_message(time.monotonic() + 30)
        return message["msg_type"] == "stream" and "late" in message["content"]["text"]

    until(seen, "the late output", 30)
