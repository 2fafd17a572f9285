"""``%ivy push``, ``%ivy pull``, ``%%ivy --in`` and ``--out``, in a plain kernel and in ours."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Callable, Iterator

import pytest
from home import Home
from kernel_driver import running
from magic_driver import MagicKernel, magic_variables
from sandbox_server import RunningSandbox

from ivy_kernel.magics.variables import TransferDisplay
from ivy_kernel.models import Message
from ivy_kernel.session.transfer import TransferState


class Sides:
    """A kernel, and how code is run on both sides of it.

    Parameters
    ----------
    kernel
        The kernel.
    """

    def __init__(self, kernel: MagicKernel) -> None:
        self.kernel = kernel

    def here(self, code: str) -> str | None:
        """Run code in this process; return the value's text."""
        cell = self.kernel.run(code if self.kernel.is_plain else f"%%local\n{code}")
        assert cell.reply["status"] == "ok", cell.reply
        return cell.result

    def there(self, code: str) -> str | None:
        """Run code in the sandbox; return the value's text."""
        cell = self.kernel.ivy(code)
        assert cell.reply["status"] == "ok", cell.reply
        return cell.result


@pytest.fixture(scope="module", params=["python3", "ivy-sandbox"])
def sides(
    request: pytest.FixtureRequest,
    server: RunningSandbox,
    new_chat: Callable[[], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Sides]:
    """Both sides of a plain kernel with the magics, and of an Ivy Sandbox kernel."""
    home = Home(tmp_path_factory.mktemp("sides"))
    variables = magic_variables(server, new_chat())
    with running(MagicKernel(home, variables, request.param)) as kernel:
        yield Sides(kernel)


FRAME = """
import pandas as pd
df = pd.DataFrame({'n': [1, 2], 's': ['a', None], 'c': pd.Categorical(['u', 'v'])})
df.index = pd.date_range('2024-01-01', periods=2, tz='Europe/Berlin', name='when')
"""


def test_a_frame_goes_there_and_back(sides: Sides) -> None:
    """It is equal after both ways, and each way is told in one line."""
    sides.here(FRAME)
    pushed = sides.kernel.run("%ivy push df")
    assert "pushed df: DataFrame, 2 rows \u00d7 3 columns" in pushed.text(), pushed.reply
    assert sides.there("df['n'].sum(), str(df.index.tz)") == "(np.int64(3), 'Europe/Berlin')"

    pulled = sides.kernel.run("%ivy pull back=df")
    assert "pulled df as back: DataFrame, 2 rows \u00d7 3 columns" in pulled.text(), pulled.reply
    assert sides.here("pd.testing.assert_frame_equal(back, df)\nback is df") == "False"


def test_a_large_value_goes_as_a_file_that_does_not_stay(sides: Sides) -> None:
    """What is too large for a cell is equal after both ways, and nothing of it is left on disk."""
    sides.here("import numpy as np\nbig = np.random.default_rng(1).normal(size=(300, 500))")
    pushed = sides.kernel.run("%ivy push big")
    assert "pushed big: array, 300" in pushed.text(), pushed.reply
    pulled = sides.kernel.run("%ivy pull copy=big")
    assert "1.2 MB" in pulled.text(), pulled.reply

    assert sides.here("bool((copy == big).all())") == "True"
    looked = sides.there(
        "import os, stat\n"
        "place = os.path.join(get_ipython().starting_dir, '.ivy', 'values')\n"
        "os.listdir(place), oct(stat.S_IMODE(os.stat(place).st_mode))"
    )
    assert looked == "([], '0o700')"


def test_several_names_are_told_one_by_one(sides: Sides) -> None:
    """Those before one that cannot travel are there; the error names it, and those left."""
    sides.there("one, two, three = 1, {'deep': [lambda: 1]}, 3")
    sides.here("three = 'before'")
    cell = sides.kernel.run("%ivy pull one two three")

    assert "pulled one: int" in cell.text()
    assert cell.reply["ename"] == "VariableError"
    for words in ("two['deep'][0] is function", "%ivy get", "Not moved: three"):
        assert words in cell.reply["evalue"]
    assert sides.here("one, three, 'two' in globals()") == "(1, 'before', False)"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("push fine odd", "odd[0] is module, which cannot travel: save it to a file and %ivy put"),
        ("push fine nothing", "no variable nothing here"),
        ("pull nothing", "no variable nothing in the sandbox"),
        ("push 1x", "'1x' cannot be the name"),
        ("pull a=b=c", "'b=c' cannot be the name"),
        ("pull", "NAME"),
    ],
)
def test_what_cannot_be_done_is_an_error_that_changes_nothing(
    sides: Sides, command: str, words: str
) -> None:
    """The error names the variable; of several, none is pushed if one cannot travel."""
    sides.here("import math\nfine, odd = 1, [math]")
    cell = sides.kernel.run(f"%ivy {command}")

    assert cell.reply["ename"] in ("VariableError", "UsageError")
    assert words in cell.reply["evalue"]
    assert sides.there("'fine' in globals()") == "False"


def test_hidden_cells_leave_no_trace(sides: Sides) -> None:
    """No name, no history and no count of the sandbox tells that a variable was moved."""
    names = "sorted(name for name in globals() if name.strip('_i0123456789'))"
    count = "get_ipython().execution_count, len(In)"
    sides.here("moved = [1]")
    sides.there("moved = None")
    names_before, before = sides.there(names), ast.literal_eval(sides.there(count) or "")
    sides.kernel.run("%ivy push moved")
    sides.kernel.run("%ivy pull moved")

    assert ast.literal_eval(sides.there(count) or "") == tuple(number + 1 for number in before)
    assert sides.there(names) == names_before


def test_a_cell_takes_and_gives_variables(sides: Sides) -> None:
    """``--in`` sets variables before the cell; ``--out`` brings what it assigns, of any type."""
    sides.here("import numpy as np\nfirst, second = np.arange(3), 10")
    cell = sides.kernel.ivy(
        "print('shown')\ntotal = a * second\nother = {total.sum()}",
        "--in a=first --in second --out total --out mine=other",
    )

    assert cell.reply["status"] == "ok", cell.reply
    assert cell.text() == "shown\n"
    assert sides.here("total.tolist(), mine") == "([0, 10, 20], {np.int64(30)})"


@pytest.mark.parametrize(
    ("code", "kept"),
    [
        ("got = (1, {2})", "(1, {2})"),
        ("for got in [b'x']: pass", "b'x'"),
        ("def f():\n    got = 1\n'value'", "'value'"),
        ("print('[1, 2]')", "[1, 2]"),
        ("got = 5\n{'a': [got]}", "5"),
    ],
)
def test_out_is_the_variable_else_the_value_else_the_text(
    sides: Sides, code: str, kept: str
) -> None:
    """A cell that assigns the name gives that variable, another one its last value or its text."""
    assert sides.kernel.ivy(code, "--out got").reply["status"] == "ok"
    assert sides.here("got") == kept


def test_a_cell_is_not_run_without_its_variables(sides: Sides) -> None:
    """An ``--in`` that cannot travel ends the cell before it is sent."""
    cell = sides.kernel.ivy("ran = 1", "--in missing")

    assert "no variable missing here" in cell.reply["evalue"]
    assert sides.there("'ran' in globals()") == "False"


@pytest.mark.parametrize("code", ["%ivy pull slow", "%%ivy --out slow\nslow = 1"])
def test_an_interrupt_ends_a_move(sides: Sides, code: str) -> None:
    """A hidden cell that takes long is stopped, and the next move works."""
    sides.there("slow = 1")
    sides.kernel.run("%ivy pull slow")
    sides.there(
        "import sys, time\n"
        "codec = next(m for n, m in sys.modules.items() if n.endswith('.frame_codec'))\n"
        "def describe(value):\n"
        "    print('begun', file=sys.stderr, flush=True)\n"
        "    time.sleep(100)\n"
        "before, codec.describe = codec.describe, describe"
    )
    message_id = sides.kernel.submit(code)
    earlier = sides.kernel.until(
        message_id, lambda one: "begun" in str(one["content"].get("text", ""))
    )
    sides.kernel.interrupt()
    cell = sides.kernel.finish(message_id, earlier=earlier)
    assert cell.reply["ename"] == "KeyboardInterrupt"

    sides.there("codec.describe = before\ndel codec")
    assert "pulled slow" in sides.kernel.run("%ivy pull slow").text()


def test_a_new_sandbox_gets_the_codec_again_and_pull_starts_none(
    sides: Sides, server: RunningSandbox
) -> None:
    """``pull`` never starts a sandbox, ``push`` does as a cell does; the codec is sent again."""
    sides.here("again = [1]")
    sides.kernel.run("%ivy push again")
    sides.kernel.run("%ivy terminate --yes")
    cell = sides.kernel.run("%ivy pull again")
    assert cell.reply["ename"] == "NoSandboxError"
    assert "neither %ivy pull nor" in cell.reply["evalue"]

    assert "pushed again" in sides.kernel.run("%ivy push again").text()
    assert sides.there("again") == "[1]"


@pytest.mark.parametrize("route", ["notebook", "script"])
def test_the_other_routes(start_kernel: Callable[..., MagicKernel], route: str) -> None:
    """The notebook tool keeps variables, so they move; where scripts are all, an error says so."""
    kernel = start_kernel(kernel_name="ivy-sandbox", IVY_ROUTE=route)
    kernel.run("%%local\nsmall, large = {'a': 1}, b'x' * 300_000")
    cell = kernel.run("%ivy push small large\n%ivy pull a=small b=large")
    if route == "script":
        assert "variables do not persist" in cell.reply["evalue"]
        return
    assert cell.reply["status"] == "ok", cell.reply
    assert kernel.run("%%local\na == small and b == large").result == "True"


async def test_progress_is_shown_from_whatever_thread_it_is_told() -> None:
    """Small files are written in a thread, which has no event loop to show anything by."""
    shown: list[Message] = []

    def sink(message: Message) -> None:
        asyncio.get_running_loop()  # as the throttle of a cell needs it
        shown.append(message)

    progress = TransferDisplay(sink, "pulling x")
    state = TransferState("x", "down", 1, 2, 0, 1, None, 0, 0, "a way")
    await asyncio.to_thread(progress.on_progress, state)
    await asyncio.sleep(0)
    assert "pulling x: 1 B of 2 B" in shown[0].content["data"]["text/plain"]
    progress.clear()
    progress.on_progress(state)
    await asyncio.sleep(0)
    assert [message.msg_type for message in shown] == ["display_data", "clear_output"]
