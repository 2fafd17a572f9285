"""What a cell leaves behind: heard as long as it lives, by few calls, and by none afterwards."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from far_side import Far, route_to, text_of
from sandbox_server import RunningSandbox, running_sandbox
from waiting import eventually

from ivy_kernel.models import sendable
from ivy_kernel.routes.agent import pacing

pytestmark = pytest.mark.asyncio


@pytest.fixture(scope="module")
def sandbox() -> Iterator[RunningSandbox]:
    """One server for all tests here."""
    with running_sandbox() as server:
        yield server


def is_silent(far: Far) -> bool:
    """Whether no poll is in flight, and none is to come."""
    poller = far.route._connection.poller
    return poller is not None and not poller._polls and poller._timer is None


SPEAKS_LATER = {
    "task": "async def f():\n    await until()\n    print('late')\nt = asyncio.create_task(f())",
    "timer": "def f():\n    if os.path.exists(path): print('late')\n"
    "    else: loop.call_later(0.1, f)\nloop.call_later(0.1, f)",
    "server": "async def f(r, w):\n    print('late')\n    w.close()\n"
    "s = await asyncio.start_unix_server(f, path + '.s')\n"
    "subprocess.Popen([sys.executable, '-c', 'import socket, os, time\\nwhile not '"
    "'os.path.exists(%r): time.sleep(0.1)\\ns = socket.socket(socket.AF_UNIX)\\n'"
    "'s.connect(%r)\\ns.recv(9)' % (path, path + '.s')], start_new_session=True)",
    "process": "p = subprocess.Popen(wait, shell=True)",
    "process of a session": "p = subprocess.Popen(wait, shell=True, start_new_session=True)",
    "fork": "if os.fork() == 0:\n    while not os.path.exists(path): time.sleep(0.1)\n"
    "    print('late', flush=True)\n    os._exit(0)",
    "job": "os.system('(' + wait + ') &')",
    "pool": "import concurrent.futures\npool = concurrent.futures.ThreadPoolExecutor(2)\n"
    "def f():\n    while not os.path.exists(path): time.sleep(0.1)\n    print('late')\n"
    "pool.submit(f)",
}
"""Cells that end before something that they have started prints."""


@pytest.mark.parametrize("way", SPEAKS_LATER)
async def test_whatever_a_cell_leaves_behind_is_heard_while_it_lives(
    sandbox: RunningSandbox, way: str, tmp_path: Path
) -> None:
    """Tasks, timers, servers and processes are waited for; when they have ended, nothing is."""
    # Short waits, so that the last poll soon finds that nothing lives any more.
    async with route_to(sandbox, poll_wait_seconds=1.0) as far:
        path = tmp_path / "ended"
        setup = (
            f"import asyncio, os, subprocess, sys, time\npath = {str(path)!r}\n"
            "wait = f'while ! test -e {path}; do sleep 0.1; done; echo late'\n"
            "loop = asyncio.get_running_loop()\n"
            "async def until():\n    while not os.path.exists(path): await asyncio.sleep(0.1)\n"
        )
        ran = await far.run(setup + SPEAKS_LATER[way])
        assert (ran.fate, ran.text) == ("succeeded", "")
        calls = far.tools.calls
        await eventually(lambda: far.tools.calls > calls + 1, "two polls between cells")
        path.touch()
        await eventually(lambda: text_of(far.background).strip() == "late", "the late output")
        if way == "server":
            await far.run("s.close()")
        await eventually(lambda: is_silent(far), "the end of all polls")


@pytest.mark.parametrize(
    "code",
    [
        "import concurrent.futures as c\n"
        "pool = c.ThreadPoolExecutor(4)\nlist(pool.map(abs, range(9)))",
        "from comm import create_comm\nc = create_comm(target_name='t', data={'a': 1})",
        "import asyncio\nawait asyncio.sleep(0.01)",
        "import asyncio\nawait asyncio.to_thread(print, 1)",
        "from multiprocessing import shared_memory\n"
        "m = shared_memory.SharedMemory(create=True, size=9)\nm.close()\nm.unlink()",
        "!true",
    ],
    ids=["idle pool", "comm", "ended task", "ended work", "resource tracker", "ended command"],
)
async def test_what_lives_without_a_voice_costs_no_calls(
    sandbox: RunningSandbox, code: str
) -> None:
    """Idle workers, widgets and helpers of libraries stay for ever, and are not listened to."""
    async with route_to(sandbox, poll_wait_seconds=1.0) as far:
        await far.run("1")
        await far.run(code)
        await eventually(lambda: is_silent(far), "the end of all polls")
        calls = far.tools.calls
        await asyncio.sleep(1.5)  # there is no condition to wait for: nothing is to happen
        assert far.tools.calls == calls


@pytest.mark.parametrize("kernel", ["ipykernel", "shell"])
async def test_what_a_thread_says_after_a_long_cell_is_shown(
    sandbox: RunningSandbox, kernel: str
) -> None:
    """The question that the kernel is asked during the cell takes none of its output away."""
    async with route_to(sandbox, kernel=kernel) as far:
        ran = await far.run(
            "import threading, time\nthreading.Timer(4, print, ('late',)).start()\ntime.sleep(2.5)"
        )
        assert ran.fate == "succeeded"
        await eventually(lambda: text_of(far.background).strip() == "late", "the late output")


async def test_a_thread_that_goes_on_printing_costs_few_calls(
    sandbox: RunningSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lines are collected, and none is lost; the delays are scaled down for this test."""
    monkeypatch.setattr(pacing, "AGE_PER_DELAY", 1.0)
    async with route_to(sandbox, background_delay_seconds=0.8) as far:
        ran = await far.run(
            "import threading, time\ndef speak():\n    for number in range(150):\n"
            "        print(number, flush=True)\n        time.sleep(0.04)\n"
            "time.sleep(1)\nthread = threading.Thread(target=speak)\nthread.start()"
        )
        started, calls = time.monotonic(), far.tools.calls
        await eventually(lambda: "149\n" in text_of(far.background), "the last line")
        # The slower the machine the more calls there may be, but no more than this.
        assert far.tools.calls - calls <= (time.monotonic() - started) / 0.8 + 5
        said = ran.text + text_of(far.background)
        assert said.split() == [str(number) for number in range(150)]


@pytest.mark.parametrize("kernel", ["ipykernel", "shell"])
async def test_text_that_utf8_cannot_carry_is_shown_with_replacements(
    sandbox: RunningSandbox, kernel: str
) -> None:
    """Printed, displayed, returned or raised: never an internal traceback, and nothing is lost."""
    async with route_to(sandbox, kernel=kernel) as far:
        printed = await far.run("print('a\\udcffb', 'c\\ud800d')")
        assert printed.fate == "succeeded"
        assert printed.text.count("\n") == 1
        assert re.fullmatch("a.b c.d\n", sendable(printed.text))
        shown = await far.run("'e\\ud800f'")
        assert shown.fate == "succeeded"
        assert "Traceback" not in shown.text
        raised = await far.run("raise ValueError('g\\ud800h')")
        assert (raised.fate, raised.outcome.reply["ename"]) == ("failed", "ValueError")
        assert re.fullmatch("g.h", sendable(raised.outcome.reply["evalue"]))
        displayed = await far.run(
            "class Odd:\n    def _repr_html_(self): return 'i\\ud800j'\n"
            "from IPython.display import display\ndisplay(Odd())"
            if kernel == "ipykernel"
            else "class Odd:\n    def _repr_html_(self): return 'i\\ud800j'\ndisplay(Odd())"
        )
        assert displayed.fate == "succeeded"
        (data,) = [m.content["data"] for m in displayed.messages if m.msg_type == "display_data"]
        assert re.fullmatch("i.j", sendable(data["text/html"]))
        assert (await far.run("1 + 1")).result == "2"
