"""Ordinary cells: outputs, errors, counts, expressions, and what runs where."""

from __future__ import annotations

import base64
import os

import pytest
from kernel_driver import KernelDriver
from sandbox_server import RunningSandbox


def test_a_value_is_the_cells_result(kernel: KernelDriver) -> None:
    """The last expression becomes an execute_result that carries the front end's own count."""
    cell = kernel.run("x = 41\nprint('hi')\nx + 1")
    results = [m["content"] for m in cell.messages if m["msg_type"] == "execute_result"]
    assert cell.reply["status"] == "ok"
    assert cell.text() == "hi\n"
    assert [content["data"]["text/plain"] for content in results] == ["42"]
    assert results[0]["execution_count"] == cell.reply["execution_count"]


def test_cells_run_in_the_sandbox(kernel: KernelDriver) -> None:
    """A cell runs in another process than the kernel's, and variables stay from cell to cell."""
    kernel.run("import os\nmine = os.getpid()")
    assert kernel.run("mine == os.getpid()").result == "True"
    assert int(kernel.run("mine").result or 0) != kernel.pid


def test_both_streams_arrive_under_their_own_names(kernel: KernelDriver) -> None:
    """Text to stdout and stderr stays apart."""
    cell = kernel.run("import sys\nprint('out')\nprint('err', file=sys.stderr)")
    assert (cell.text("stdout"), cell.text("stderr")) == ("out\n", "err\n")


def test_an_exception_is_an_error_output_and_an_error_reply(kernel: KernelDriver) -> None:
    """Name, value and traceback are the remote's own, the same in output and reply."""
    cell = kernel.run("def inner():\n    return {}['gone']\ninner()")
    assert cell.reply["status"] == "error"
    assert (cell.reply["ename"], cell.reply["evalue"]) == ("KeyError", "'gone'")
    assert "inner()" in cell.traceback
    assert cell.error is not None  # that it equals the reply is checked for each cell


def test_output_before_an_exception_is_kept(kernel: KernelDriver) -> None:
    """What a failing cell printed is shown before its error."""
    cell = kernel.run("print('before')\n1/0")
    assert [m["msg_type"] for m in cell.outputs] == ["stream", "error"]
    assert cell.reply["ename"] == "ZeroDivisionError"


def test_a_syntax_error_is_told_by_the_sandbox(kernel: KernelDriver) -> None:
    """Code that does not parse ends in the remote's SyntaxError."""
    assert kernel.run("def (").reply["ename"] == "SyntaxError"


@pytest.mark.parametrize("raised", ["SystemExit(3)", "KeyboardInterrupt()"])
def test_exits_of_user_code_end_only_the_cell(kernel: KernelDriver, raised: str) -> None:
    """SystemExit and KeyboardInterrupt of a cell are one reply each; the kernel stays."""
    before = kernel.pid
    cell = kernel.run(f"raise {raised}")
    if raised.startswith("Keyboard"):
        assert cell.reply["ename"] == "KeyboardInterrupt"
    assert kernel.no_further_reply()
    assert kernel.run("'alive'").result == "'alive'"
    assert kernel.pid == before


def test_execution_counts_follow_the_front_end(kernel: KernelDriver) -> None:
    """Counts rise by one a cell of the user, and not for hidden or silent ones."""
    first = kernel.run("1").reply["execution_count"]
    kernel.run("2", store_history=False)
    kernel.run("3", silent=True)
    failing = kernel.run("1/0")
    assert failing.reply["execution_count"] == first + 1
    assert kernel.run("4").reply["execution_count"] == first + 2


def test_execute_input_repeats_the_cell(kernel: KernelDriver) -> None:
    """The front end is told the code with the count of its reply."""
    cell = kernel.run("7")
    content = next(m["content"] for m in cell.messages if m["msg_type"] == "execute_input")
    assert content["code"] == "7"
    assert content["execution_count"] == cell.reply["execution_count"]


def test_a_silent_cell_runs_and_shows_nothing(kernel: KernelDriver) -> None:
    """With silent, there is no output and no input message, but the code has run."""
    kernel.run("1")
    cell = kernel.run("print('unheard'); quiet = 5", silent=True)
    assert [m["msg_type"] for m in cell.messages] == ["status", "status"]
    assert kernel.run("quiet").result == "5"


def test_a_failing_silent_cell_still_says_so_in_its_reply(kernel: KernelDriver) -> None:
    """With silent, an exception is in the reply alone."""
    cell = kernel.run("1/0", silent=True)
    assert cell.reply["ename"] == "ZeroDivisionError"
    assert cell.outputs == []


def test_user_expressions_are_evaluated_after_the_cell(kernel: KernelDriver) -> None:
    """Each expression has its own value or its own error."""
    cell = kernel.run("y = 6", user_expressions={"good": "y * 7", "bad": "not_there"})
    values = cell.reply["user_expressions"]
    assert values["good"]["status"] == "ok"
    assert values["good"]["data"]["text/plain"] == "42"
    assert values["bad"]["status"] == "error"
    assert values["bad"]["ename"] == "NameError"


def test_rich_displays_keep_every_mime_type_and_metadata(kernel: KernelDriver) -> None:
    """A MIME bundle arrives whole, unknown types and metadata included."""
    cell = kernel.run(
        "from IPython.display import display\n"
        "display({'text/plain': 'p', 'text/html': '<b>h</b>', 'image/svg+xml': '<svg/>',\n"
        "         'application/vnd.lab.test+json': {'a': [1, None]}, 'text/latex': '$x$',\n"
        "         'application/json': {'k': 1}}, raw=True,\n"
        "        metadata={'image/svg+xml': {'width': 5}, 'isolated': True})"
    )
    (message,) = [m for m in cell.outputs if m["msg_type"] == "display_data"]
    assert message["content"]["data"] == {
        "text/plain": "p",
        "text/html": "<b>h</b>",
        "image/svg+xml": "<svg/>",
        "application/vnd.lab.test+json": {"a": [1, None]},
        "text/latex": "$x$",
        "application/json": {"k": 1},
    }
    assert message["content"]["metadata"] == {"image/svg+xml": {"width": 5}, "isolated": True}


def test_a_picture_arrives_with_its_size(kernel: KernelDriver) -> None:
    """A matplotlib-like retina picture keeps its bytes and its width and height."""
    cell = kernel.run(
        "from IPython.display import Image, display\n"
        "import base64\n"
        "png = base64.b64decode('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQ"
        "DwAEhQGAhKmMIQAAAABJRU5ErkJggg==')\n"
        "display(Image(data=png, width=10, height=20))"
    )
    (message,) = [m for m in cell.outputs if m["msg_type"] == "display_data"]
    assert base64.b64decode(message["content"]["data"]["image/png"]).startswith(b"\x89PNG")
    assert message["content"]["metadata"]["image/png"] == {"width": 10, "height": 20}


def test_clear_output_and_display_updates_have_their_effect(kernel: KernelDriver) -> None:
    """What was cleared is gone and an updated display shows its last state."""
    cell = kernel.run(
        "from IPython.display import clear_output, display\n"
        "print('old')\nclear_output()\n"
        "handle = display('first', display_id=True)\nhandle.update('second')\nprint('new')"
    )
    assert cell.text() == "new\n"
    assert cell.datas("display_data")[-1]["text/plain"] == "'second'"


def test_three_megabytes_of_text_arrive_whole(kernel: KernelDriver) -> None:
    """A long print is bounded by default: head, tail, count, and the whole text in a file."""
    cell = kernel.run("for i in range(300_000): print(f'{i:09d}')")
    shown, note = cell.text(), cell.text("stderr")
    assert cell.reply["status"] == "ok"
    assert shown.startswith("000000000\n")
    assert shown.endswith("000299999\n")
    assert 1_900_000 < len(shown) <= 2_000_000
    assert f"{3_000_000 - len(shown):,} bytes" in note
    (kept,) = (kernel.home.data / "ivy" / "outputs").iterdir()
    assert str(kept) in note
    assert kept.read_text() == "".join(f"{i:09d}\n" for i in range(300_000))
    assert kept.stat().st_mode & 0o077 == 0


def test_several_hundred_lines_are_few_messages(kernel: KernelDriver) -> None:
    """Lines are gathered, since a message each would flood the front end."""
    cell = kernel.run("for i in range(500): print(i)")
    assert cell.text() == "".join(f"{i}\n" for i in range(500))
    assert len(cell.outputs) < 20


def test_a_blank_cell_succeeds_without_asking_the_sandbox(
    kernel: KernelDriver, server: RunningSandbox
) -> None:
    """Nothing to run means no call."""
    kernel.run("1")
    before = server.counters()["calls"]
    for code in ("", "   \n\n", "# only a remark\n  # another"):
        assert kernel.run(code).reply["status"] == "ok"
    assert server.counters()["calls"] == before


def test_a_short_cell_is_one_request(kernel: KernelDriver, server: RunningSandbox) -> None:
    """No further requests go with a cell."""
    kernel.run("1")
    before = server.counters()["requests"]
    kernel.run("2")
    after = server.counters()["requests"]
    tool = "POST /v1/sandbox/{chatId}/tool/{toolName}"
    assert after[tool] - before[tool] == 1
    assert {k: v for k, v in after.items() if "_control" not in k and k != tool} == {
        k: v for k, v in before.items() if "_control" not in k and k != tool
    }


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("x = !echo one; echo two\nlist(x)", "['one', 'two']"),
        ("import asyncio\nawait asyncio.sleep(0.01, 'awaited')", "'awaited'"),
        ("%pwd", None),
        ("print('%ivy is only text here')", None),
        ("a = '''\n%ivy status\n'''\nlen(a)", "13"),
    ],
)
def test_notebook_syntax_runs_in_the_sandbox(
    kernel: KernelDriver, server: RunningSandbox, code: str, expected: str | None
) -> None:
    """IPython's syntax works as in any notebook, over there."""
    before = server.counters()["calls"]["sandbox_notebook"] if _called(server) else 0
    cell = kernel.run(code)
    assert cell.reply["status"] == "ok", cell.reply
    if expected is not None:
        assert cell.result == expected
    assert server.counters()["calls"]["sandbox_notebook"] > before


def _called(server: RunningSandbox) -> bool:
    return "sandbox_notebook" in server.counters()["calls"]


def test_shell_commands_run_in_the_sandbox(kernel: KernelDriver) -> None:
    """``!cmd`` sees the sandbox's directory, not the kernel's."""
    cell = kernel.run("!pwd && echo from-shell")
    assert "from-shell" in cell.text()
    assert str(kernel.home.work) not in cell.text()


def test_timing_and_bash_cells_run_in_the_sandbox(kernel: KernelDriver) -> None:
    """``%%time`` and ``%%bash`` are the sandbox's cell magics."""
    assert "Wall time" in kernel.run("%%time\nsum(range(10))").text()
    assert kernel.run("%%bash\necho in-$((40 + 2))").text() == "in-42\n"


def test_pip_is_the_sandboxs(kernel: KernelDriver) -> None:
    """``%pip --version`` speaks of the Python in the sandbox."""
    assert "python 3." in kernel.run("%pip --version").text()


def test_an_unknown_magic_is_the_sandboxs_error(kernel: KernelDriver) -> None:
    """It neither runs here nor passes: the cell fails."""
    for code in ("%ivyy status", "%%no_such_cell_magic\nleaked = 1"):
        cell = kernel.run(code)
        text = cell.text("stderr") + str(cell.error)
        assert "not found" in text
    assert kernel.run("'leaked' in globals()").result == "False"


def test_question_marks_show_help(kernel: KernelDriver) -> None:
    """``?name`` brings the documentation of the sandbox's object, as a page, as ipykernel does."""
    kernel.run("def documented():\n    'Says what it does.'")
    for code in ("?documented", "documented?", "x = 1\ndocumented??", "%pinfo documented"):
        cell = kernel.run(code)
        (page,) = cell.reply["payload"]
        assert page["source"] == "page"
        assert "Says what it does." in page["data"]["text/plain"]
        assert cell.outputs == []


def test_magic_text_inside_cell_magics_is_left_alone(kernel: KernelDriver) -> None:
    """What stands in another cell magic's body is its own business."""
    assert kernel.run("%%bash\necho '%ivy status'").text() == "%ivy status\n"


def test_code_in_other_alphabets_survives(kernel: KernelDriver) -> None:
    """Text beyond ASCII, and line ends, come through in both directions."""
    cell = kernel.run("größe = 'naïve 🧬 \\u2028 \\x00'\nprint(größe)\ngröße")
    assert cell.text() == "naïve 🧬 \u2028 \x00\n"
    assert os.linesep in cell.text()


def test_the_same_cell_twice_runs_twice(kernel: KernelDriver) -> None:
    """Each request is one run, no more and no less."""
    kernel.run("runs = []")
    for _ in range(3):
        kernel.run("runs.append(1)")
    assert kernel.run("len(runs)").result == "3"
