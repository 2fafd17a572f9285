"""The built-in shell: what a notebook user expects of a kernel, without ipykernel."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from far_side import BareRunner, Far, route_over
from waiting import eventually

from ivy_kernel.agent.shell.execution import to_python

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def far() -> AsyncIterator[Far]:
    """One shell for all tests here."""
    place = Path(tempfile.mkdtemp(prefix="ivy-"))
    runner = BareRunner(sys.executable, (), place)
    async with route_over(runner, place, kernel="shell") as far:
        yield far
    shutil.rmtree(place, ignore_errors=True)


@pytest.mark.parametrize(
    ("code", "text", "result"),
    [
        ("print('a'); 1 + 1", "a\n", "2"),
        ("x = 3", "", ""),
        ("7;", "", ""),
        ("None", "", ""),
        ("import sys; print('e', file=sys.stderr)", "e\n", ""),
        ("import os; os.write(1, b'raw\\n');", "raw\n", ""),
        ("!echo from a child", "from a child\n", ""),
        ("y = 4\n!echo {y + 1} $y $HOME_NOT_THERE", "5 4\n", ""),
        ("lines = !printf 'a\\nb'\nlines", "", "['a', 'b']"),
        ("for i in range(2):\n    !echo $i", "0\n1\n", ""),
        ("%matplotlib inline\n5", "", "5"),
        ("%%bash\necho body", "body\n", ""),
        ("%pwd", "", None),
        ("import asyncio\nawait asyncio.sleep(0, 'done')", "", "'done'"),
        ("async def f():\n    return 6\nr = await f()\nr", "", "6"),
        (
            "text = '''\n!not a command\n%nor a magic'''\ntext",
            "",
            "'\\n!not a command\\n%nor a magic'",
        ),
        ("z = (10\n    % 4)\n!echo {z}", "2\n", ""),
        ("_ = 5\n_", "", "5"),
        ("__name__", "", "'__main__'"),
    ],
    ids=lambda value: str(value)[:24],
)
async def test_a_cell(far: Far, code: str, text: str, result: str | None) -> None:
    """Streams, results, commands, magics and top-level await."""
    ran = await far.run(code)
    assert ran.fate == "succeeded", ran.outcome
    assert ran.text == text
    if result is not None:
        assert ran.result == result


async def test_rich_objects_show_all_their_forms(far: Far) -> None:
    """Every representation is in the bundle; one that raises is left out."""
    code = (
        "class Rich:\n"
        "    def _repr_html_(self): return '<b>h</b>'\n"
        "    def _repr_png_(self): return b'\\x89PNG', {'width': 10}\n"
        "    def _repr_svg_(self): raise ValueError\n"
        "    def __repr__(self): return 'rich'\n"
        "Rich()"
    )
    ran = await far.run(code)
    content = ran.messages[-1].content
    assert content["data"] == {
        "text/html": "<b>h</b>",
        "image/png": "iVBORw==",
        "text/plain": "rich",
    }
    assert content["metadata"] == {"image/png": {"width": 10}}


async def test_display_update_and_clear(far: Far) -> None:
    """The small display API sends what IPython's would."""
    ran = await far.run(
        "h = display('one', display_id=True)\nh.update('two')\nclear_output(wait=True)\n"
        "display({'text/html': '<i>'}, raw=True, metadata={'a': 1})"
    )
    first, second, third, fourth = ran.messages
    assert [m.msg_type for m in ran.messages] == [
        "display_data",
        "update_display_data",
        "clear_output",
        "display_data",
    ]
    assert first.content["transient"] == second.content["transient"] != {}
    assert third.content == {"wait": True}
    assert fourth.content["data"] == {"text/html": "<i>"}
    assert fourth.content["metadata"] == {"a": 1}


async def test_figures_are_shown(far: Far) -> None:
    """Figures become pictures at the end of the cell, and plt.show() does not warn."""
    pytest.importorskip("matplotlib")
    ran = await far.run(
        "import matplotlib.pyplot as plt\nl = plt.plot([1, 2])\nplt.show()\nl = plt.plot([3])"
    )
    shown = [m.content["data"] for m in ran.messages if m.msg_type == "display_data"]
    assert len(shown) == 2
    assert all(data["image/png"].startswith("iVBORw0KGgo") for data in shown)
    assert "with 1 Axes" in shown[0]["text/plain"]
    assert "UserWarning" not in ran.text


async def test_a_traceback_begins_in_the_cell(far: Far) -> None:
    """Tracebacks show the user's lines and none of the shell's."""
    ran = await far.run("def f():\n    return 1 / 0\n\nf()")
    text = "\n".join(ran.outcome.reply["traceback"])
    assert ran.outcome.reply["ename"] == "ZeroDivisionError"
    assert "return 1 / 0" in text
    assert "line 4" in text
    assert "execution.py" not in text
    assert ran.messages[-1].content["traceback"] == ran.outcome.reply["traceback"]


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("if", "SyntaxError"),
        ("raise SystemExit(2)", "SystemExit"),
        ("class E(Exception):\n    def __str__(self): raise ValueError\nraise E", "E"),
        ("%no_such_magic", "UsageError"),
        ("%%no_such_magic\nx", "UsageError"),
        ("%%bash\nexit 3", "CalledProcessError"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ],
)
async def test_every_error_is_a_reply(far: Far, code: str, name: str) -> None:
    """Whatever a cell raises, the shell replies and goes on."""
    ran = await far.run(code)
    assert (ran.fate, ran.outcome.reply["ename"]) == ("failed", name)
    assert ran.messages[-1].msg_type == "error"
    assert (await far.run("1")).result == "1"


async def test_input_and_getpass(far: Far) -> None:
    """Both ask the front end; without one that can be asked they say so."""
    running = far.begin(
        "a = input('a? ')\nimport getpass\nb = getpass.getpass('b? ')\na + b", allow_stdin=True
    )
    for number, prompt in enumerate(["a? ", "b? "]):
        asked = await eventually(
            lambda n=number: [m for m in running.messages if m.msg_type == "input_request"][n:],
            "the question",
        )
        assert asked[0].content == {"prompt": prompt, "password": number == 1}
        await far.route.answer_input(prompt[0].upper(), request=asked[0])
    assert (await running.end()).result == "'AB'"
    ran = await far.run("input()", allow_stdin=False)
    assert ran.outcome.reply["ename"] == "StdinNotImplementedError"


async def test_completion_inspection_history_and_completeness(far: Far) -> None:
    """Requests beside cells are answered."""

    async def ask(msg_type: str, **content: object) -> dict[str, object]:
        reply = await far.route.request(msg_type, dict(content), timeout_seconds=10)
        return reply.content

    await far.run("def some_function(argument):\n    'What it does.'\nsome_function")
    done = await ask("complete_request", code="some_func", cursor_pos=9)
    assert done["matches"] == ["some_function"]
    attributes = await ask(
        "complete_request", code="x = 'a'.up + some_function.__na", cursor_pos=31
    )
    assert attributes["matches"] == ["some_function.__name__"]
    looked = await ask("inspect_request", code="some_function(", cursor_pos=14, detail_level=0)
    assert "What it does." in looked["data"]["text/plain"]
    assert "some_function(argument)" in looked["data"]["text/plain"]
    assert (await ask("inspect_request", code="nothing_here", cursor_pos=3))["found"] is False
    past = await ask("history_request", hist_access_type="tail", n=1, output=False, raw=True)
    assert "What it does." in past["history"][0][2]
    for code, status in [
        ("x = 1", "complete"),
        ("for i in x:", "incomplete"),
        ("x = = 1", "invalid"),
    ]:
        assert (await ask("is_complete_request", code=code))["status"] == status
    assert (await ask("comm_info_request"))["comms"] == {}
    assert (await ask("kernel_info_request"))["implementation"] == "ivy-shell"
    assert (await ask("debug_request"))["status"] == "error"


async def test_silent_cells_show_nothing_and_do_not_count(far: Far) -> None:
    """A silent cell leaves the execution count and the output alone."""
    before = (await far.run("0")).outcome.reply["execution_count"]
    ran = await far.run("quiet = 1\nquiet", silent=True, store_history=False)
    assert ran.messages == []
    assert (await far.run("quiet")).outcome.reply["execution_count"] == before + 1


async def test_user_expressions(far: Far) -> None:
    """Each expression has its own value or its own error."""
    ran = await far.run("v = 2", user_expressions={"good": "v * 2", "bad": "nope"})
    answers = ran.outcome.reply["user_expressions"]
    assert answers["good"]["data"]["text/plain"] == "4"
    assert answers["bad"]["ename"] == "NameError"


async def test_an_interrupt_reaches_a_child_and_an_await(far: Far) -> None:
    """Commands and top-level await stop as plain code does."""
    for code in (
        "print('on', flush=True)\n!sleep 60",
        "print('on', flush=True)\nawait asyncio.sleep(60)",
    ):
        running = far.begin("import asyncio\n" + code)
        await eventually(lambda r=running: r.text, "first output")
        await far.route.interrupt_request(running.message_id)
        assert (await asyncio.wait_for(running.end(), 20)).fate == "interrupted"
    assert (await far.run("await asyncio.sleep(0, 1)")).result == "1"


async def test_output_of_children_precedes_the_end_of_the_cell(far: Far) -> None:
    """What a child process wrote is in the cell that ran it."""
    for number in range(5):
        ran = await far.run(f"import subprocess\nsubprocess.call(['echo', '{number}']);")
        assert ran.text == f"{number}\n"


@pytest.mark.parametrize(
    ("cell", "python"),
    [
        ("a = 1", "a = 1"),
        ("a = b % c", "a = b % c"),
        ("a != b", "a != b"),
        ("x = !ls", "x = __ivy__.capture('ls')"),
        ("%time f(x)", "__ivy__.line('time', 'f(x)')"),
        ("  !ls -l", "  __ivy__.system('ls -l')"),
        ("len?", "__ivy__.describe('len', 1)"),
        ("??os.path", "__ivy__.describe('os.path', 2)"),
        ("%%time\nx\ny", "__ivy__.cell('time', '', 'x\\ny')"),
        ("f(\n%a\n)", "f(\n%a\n)"),
    ],
)
async def test_what_is_not_python_becomes_python(cell: str, python: str) -> None:
    """Magics, commands and questions are translated; Python is left as it is."""
    assert to_python(cell) == python
