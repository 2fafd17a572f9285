"""After its sandbox has ended a notebook goes on with the variables that it had."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from home import Home
from kernel_driver import CellRun, KernelDriver, StartKernel, agent_variables
from magic_driver import MagicKernel, magic_variables
from sandbox_server import RunningSandbox, until
from thoroughness import further

RESTORE_TYPE = "application/vnd.ivy.restore+json"


@pytest.fixture
def kernel(start_kernel: StartKernel, server: RunningSandbox, chat_id: str) -> KernelDriver:
    """A kernel on the agent route of a chat of its own."""
    return start_kernel(variables=agent_variables(server, chat_id))


@pytest.fixture
def hibernate(
    server: RunningSandbox, changed: Callable[..., None], chat_id: str
) -> Callable[[], None]:
    """Puts the chat's sandbox to sleep: processes end, files stay."""

    def put_to_sleep() -> None:
        changed(hibernate_seconds=0.3, hibernating_seconds=0.0)
        until(lambda: server.status(chat_id)["status"] != "active", "it sleeps")
        changed(hibernate_seconds=None)

    return put_to_sleep


@pytest.fixture
def expire(
    server: RunningSandbox, changed: Callable[..., None], chat_id: str
) -> Callable[[], None]:
    """Ends the chat's sandbox for good: the next one is new."""

    def end() -> None:
        changed(runtime_seconds=0.2, expiry_keeps_snapshot=False)
        until(lambda: server.status(chat_id)["status"] != "active", "it has expired")
        changed(runtime_seconds=None)
        (place,) = server.root.glob(f"{chat_id}*")
        shutil.rmtree(place)  # the local sandbox keeps its files, others do not
        place.mkdir(mode=0o700)

    return end


def record_of(kernel: KernelDriver) -> dict[str, Any]:
    """The one chat's part of the one record that the kernel has written."""
    (file,) = (kernel.home.data / "ivy" / "notebooks").glob("*.json")
    (chat,) = json.loads(file.read_text())["chats"].values()
    return dict(chat)


def copied(kernel: KernelDriver, number: int) -> bool:
    """Whether the checkpoint after a cell has a copy on this machine."""
    files = list((kernel.home.data / "ivy" / "notebooks").glob("*.json"))
    return bool(files) and record_of(kernel).get("copy", {}).get("number") == number


def newest_index(top: Path) -> str:
    """The name of the newest checkpoint's index below a directory."""
    return max(path.name for path in top.glob("**/index-*.json"))


def facts_of(cell: CellRun) -> dict[str, Any]:
    """What the cell's display says of the recovery."""
    (data,) = [data for data in cell.datas("display_data") if RESTORE_TYPE in data]
    return dict(data[RESTORE_TYPE])


def test_after_a_hibernation_the_next_cell_goes_on(
    kernel: KernelDriver, hibernate: Callable[[], None]
) -> None:
    """The sandbox resumes, variables are back from its disk, and one line says so."""
    kernel.run("x = [1, 2]; y = {'same': x}")
    kernel.run("x.append(3)")
    assert "Checkpoint" in kernel.run("%ivy checkpoint").text()
    hibernate()
    cell = kernel.run("x.append(4); y['same'], x is y['same']")
    assert cell.result == "([1, 2, 3, 4], True)"
    told = cell.text("stderr")
    assert "The sandbox had ended; restored 2 variables as they were after cell 2" in told
    assert "from its disk" in told
    assert cell.reply["execution_count"] == 3
    hibernate()  # a life goes on over any number of sandboxes
    assert kernel.run("x").result == "[1, 2, 3, 4]"


def test_an_expired_sandbox_is_replaced_from_the_copy(
    kernel: KernelDriver, expire: Callable[[], None]
) -> None:
    """Its files are gone; the checkpoint comes from this machine, with large values whole."""
    kernel.run("import hashlib; big = bytes(range(256)) * 20_000; x = 5")
    until(lambda: copied(kernel, 1), "the checkpoint has a copy here")
    expire()
    cell = kernel.run("x, hashlib.sha256(big).hexdigest()[:8], len(big)")
    digest = hashlib.sha256(bytes(range(256)) * 20_000).hexdigest()
    assert cell.result == f"(5, '{digest[:8]}', 5120000)"
    assert "from the copy on this machine" in cell.text("stderr")


def test_a_kernel_that_died_is_replaced_from_the_disk(kernel: KernelDriver) -> None:
    """The cell that ended it is lost and is not run again; the next one goes on."""
    kernel.run("n = 1; open('count', 'a').write('x')")
    kernel.run("%ivy checkpoint")
    dead = kernel.run("open('count', 'a').write('y'); import os; os._exit(3)")
    assert "The next cell restores the variables" in dead.text("stderr")
    assert dead.reply["ename"] == "SandboxLostError"
    cell = kernel.run("n, open('count').read()")
    assert cell.result == "(1, 'xy')"
    assert "The sandbox's Python had ended; restored 1 variable" in cell.text("stderr")


def test_a_cell_that_needs_what_is_missing_is_not_run(
    kernel: KernelDriver, hibernate: Callable[[], None]
) -> None:
    """It names the variable, the reason and the cell; --rerun makes it, and what came after."""
    kernel.run("open('f.txt', 'w').write('text'); n = 0")
    kernel.run("f = open('f.txt')")
    kernel.run("n += 1")
    told = kernel.run("%ivy checkpoint").text()
    assert "Not in it: f (cell 2)" in told
    hibernate()
    cell = kernel.run("n += 1; text = f.read()")
    assert cell.reply["ename"] == "SandboxLostError"
    assert "It needs f" in cell.reply["evalue"]
    assert "Nothing of this cell was run" in cell.reply["evalue"]
    facts = facts_of(cell)
    assert facts["missing"]["f"]["cell"] == 2
    assert facts["actions"] == ["rerun"]
    named = kernel.run("eval('f')")  # found by no look at the code
    assert named.reply["ename"] == "NameError"
    assert "f (" in named.text("stderr")
    assert "was not restored" in named.text("stderr")
    rerun = kernel.run("%ivy restore --rerun")
    assert rerun.reply["status"] == "ok"
    assert "Cell 2 runs again" in rerun.text("stderr")
    assert kernel.run("n, f.read()").result == "(1, 'text')"


def test_cells_after_the_checkpoint_stop_the_next_one(
    kernel: KernelDriver, expire: Callable[[], None]
) -> None:
    """Variables that are older than the last cell are not gone on with; --rerun runs the rest."""
    kernel.run("n = 1")
    until(lambda: copied(kernel, 1), "the checkpoint has a copy here")
    kernel.run("n += 10")  # the next look is half a minute later
    expire()
    cell = kernel.run("n += 100")
    assert cell.reply["ename"] == "SandboxLostError"
    assert "as they were before cell 2 ran" in cell.reply["evalue"]
    assert kernel.run("%ivy restore --rerun").reply["status"] == "ok"
    assert kernel.run("n").result == "11"


def test_what_an_older_checkpoint_has_brought_back_is_what_the_next_restore_brings(
    kernel: KernelDriver, server: RunningSandbox, chat_id: str, hibernate: Callable[[], None]
) -> None:
    """The cells after it are undone: neither their values nor their names come again."""
    for code in ("n = 1", "%ivy checkpoint", "n = 2; later = 3", "%ivy checkpoint"):
        kernel.run(code)
    (top,) = server.root.glob(f"{chat_id}*")
    before = newest_index(top)
    told = kernel.run("%ivy restore --at 1").text("stderr")
    assert "as they were after cell 1" in told
    assert "Not of that checkpoint, and as before: later." in told
    until(lambda: newest_index(top) > before, "it is the newest checkpoint again")
    hibernate()
    cell = kernel.run("n")
    assert cell.result == "1", cell.reply
    assert "after cell 1" in cell.text("stderr")


@pytest.mark.parametrize(
    ("setting", "words"),
    [({"IVY_CHECKPOINTS": "false"}, ""), ({"IVY_RESTORE": "ask"}, "%ivy restore")],
)
def test_nothing_is_restored_by_itself_for_those_who_do_not_want_it(
    start_kernel: StartKernel,
    server: RunningSandbox,
    chat_id: str,
    hibernate: Callable[[], None],
    setting: dict[str, str],
    words: str,
) -> None:
    """Without checkpoints nothing is sent nor written; asked first, the loss tells the command."""
    kernel = start_kernel(variables=agent_variables(server, chat_id, **setting))
    kernel.run("x = 5")
    is_on = "IVY_RESTORE" in setting
    kept = kernel.run("import os; os.path.isdir('.ivy')").result
    assert kept == str(is_on)
    if is_on:
        kernel.run("%ivy checkpoint")
    else:
        assert "checkpoints: off" in kernel.run("%ivy status").text()
        assert kernel.run("%ivy checkpoint").reply["ename"] == "UsageError"
    hibernate()
    told = kernel.run("x").reply
    assert told["ename"] == "SandboxLostError"
    assert words in told["evalue"]
    if is_on:
        assert kernel.run("%ivy restore").reply["status"] == "ok"
        assert kernel.run("x").result == "5"
    else:
        assert kernel.run("x").reply["ename"] == "NameError"


def test_a_restart_begins_with_nothing_and_restores_when_asked(kernel: KernelDriver) -> None:
    """What the user has thrown away comes back by the command alone."""
    kernel.run("x = 5")
    kernel.run("%ivy checkpoint")
    kernel.restart()
    assert "Restored 1 variable" in kernel.run("%ivy restore --at 1").text("stderr")
    assert kernel.run("x").result == "5"
    kernel.restart()
    cell = kernel.run("x")
    assert cell.reply["ename"] == "NameError"
    assert "restored" not in cell.text("stderr")


def test_hidden_cells_never_restore(kernel: KernelDriver, hibernate: Callable[[], None]) -> None:
    """Front ends send them by themselves; the user's next cell does it."""
    kernel.run("x = 5")
    kernel.run("%ivy checkpoint")
    hibernate()
    assert kernel.run("x", store_history=False).reply["ename"] == "SandboxLostError"
    assert kernel.run("x").result == "5"


def test_a_sandbox_that_the_user_has_terminated_is_not_restored_by_itself(
    kernel: KernelDriver,
) -> None:
    """The command says how its variables come back; the next cell begins with nothing."""
    kernel.run("x = 5")
    until(lambda: copied(kernel, 1), "the checkpoint has a copy here")
    assert "%ivy restore" in kernel.run("%ivy terminate --yes").text()
    assert kernel.run("%ivy restore").reply["status"] == "ok"
    assert kernel.run("x").result == "5"
    kernel.run("%ivy terminate --yes")
    cell = kernel.run("x")
    assert cell.reply["ename"] == "NameError"
    assert "restored" not in cell.text("stderr")


def test_a_tampered_copy_is_refused_and_told(
    kernel: KernelDriver, expire: Callable[[], None]
) -> None:
    """Nothing of it is sent: the loss is told, and that the checkpoint was changed."""
    kernel.run("x = 5")
    until(lambda: copied(kernel, 1), "the checkpoint has a copy here")
    (index,) = (kernel.home.data / "ivy" / "checkpoints").rglob("index-*.json")
    index.write_text(index.read_text().replace("number", "nomber"))
    expire()
    cell = kernel.run("x")
    assert cell.reply["ename"] == "SandboxLostError"
    assert "not as it was written" in cell.reply["evalue"]
    assert kernel.run("x").reply["ename"] == "NameError"


def test_setup_cells_run_first(
    start_kernel: StartKernel,
    server: RunningSandbox,
    chat_id: str,
    hibernate: Callable[[], None],
    tmp_path: Path,
) -> None:
    """The cells that the saved notebook tags, before variables come back."""
    source = "print('set up'); import os; os.environ['SET_UP'] = 'yes'"
    cell = {"cell_type": "code", "source": source, "metadata": {"tags": ["ivy-setup"]}}
    notebook = tmp_path / "tagged.ipynb"
    notebook.write_text(json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4}))
    variables = agent_variables(server, chat_id, JPY_SESSION_NAME=str(notebook))
    kernel = start_kernel(variables=variables)
    kernel.run("x = 5")
    kernel.run("%ivy checkpoint")
    hibernate()
    again = kernel.run("import os; x, os.environ.get('SET_UP')")
    assert again.result == "(5, 'yes')"
    assert again.text() == "set up\n"


def test_cells_of_a_plain_kernel_go_on_too(
    server: RunningSandbox,
    new_home: Callable[[], Home],
    run_kernel: Callable[[KernelDriver], KernelDriver],
    chat_id: str,
    hibernate: Callable[[], None],
) -> None:
    """``%%ivy`` keeps variables as the Ivy Sandbox kernel does."""
    server.ready(chat_id)
    kernel = run_kernel(MagicKernel(new_home(), magic_variables(server, chat_id)))
    kernel.run("%%ivy\nx = 5")
    assert "after cell" in kernel.run("%ivy checkpoint").text()
    hibernate()
    cell = kernel.run("%%ivy\nprint(x + 1)")
    assert cell.text() == "6\n"
    assert "restored 1 variable" in cell.text("stderr")


def test_the_number_of_calls_does_not_grow(
    start_kernel: StartKernel, server: RunningSandbox, new_chat: Callable[[], str]
) -> None:
    """A warm cell is one call, as without; the first one's call, being long, goes in fragments."""
    first, warm = {}, {}
    for setting in ("true", "false"):
        more = {"IVY_CHECKPOINTS": setting, "IVY_CHECKPOINT_COPY_BYTES": "0"}
        kernel = start_kernel(variables=agent_variables(server, new_chat(), **more))
        counts = []
        for code in ("x = [1]", *["x.append(2)"] * 6):
            before = sum(server.counters()["calls"].values())
            kernel.run(code)
            counts.append(sum(server.counters()["calls"].values()) - before)
        first[setting], warm[setting] = counts[0], min(counts[1:])
    assert warm == {"true": 1, "false": 1}
    assert first["true"] - first["false"] <= 3, first


def test_opening_a_notebook_starts_nothing(
    kernel: KernelDriver, expire: Callable[[], None], server: RunningSandbox, chat_id: str
) -> None:
    """Code help and the status, after a loss, leave the sandbox as it is."""
    kernel.run("x = 5")
    until(lambda: copied(kernel, 1), "the checkpoint has a copy here")
    expire()
    assert "after cell 1" in kernel.run("%ivy status").text()
    kernel.client.complete("x.", 2)
    assert server.status(chat_id)["status"] != "active"


def test_no_key_is_shown_or_logged(kernel: KernelDriver) -> None:
    """Neither in what cells show nor in the kernel's log; the record has it, for its user alone."""
    kernel.run("x = 5")
    texts = [kernel.run(line).text() for line in ("%ivy status", "%ivy checkpoint", "%ivy config")]
    until(lambda: copied(kernel, 1), "the record is written")
    key = record_of(kernel)["key"]
    assert len(key) == 64
    assert key not in "".join(texts) + kernel.log.read_text()


# Whole notebooks ----------------------------------------------------------------------------------
def notebook_cells(count: int) -> list[str]:
    """Cells that build on each other: shared objects, functions, classes, random numbers."""
    first = [
        "import random; random.seed(7)\nrows = []; seen = {'rows': rows}",
        "class Row:\n    def __init__(self, n):\n        self.n = n\n    def twice(self):\n"
        "        return 2 * self.n",
        "def add(n):\n    rows.append(Row(n))\n    return len(rows)",
        "total = 0",
    ]
    cycle = [
        "add(random.randrange(100))",
        "total += rows[-1].twice(); total",
        "print(seen['rows'] is rows, len(rows), [row.n for row in rows])",
        "table = {row.n: row for row in rows}; last = table[rows[-1].n]; last is rows[-1]",
        "1 / 0 if len(rows) % 3 == 2 else random.random()",
        "import math; root = math.sqrt(total); round(root, 6)",
    ]
    return (first + cycle * count)[:count]


def without_notes(cell: CellRun) -> dict[str, Any]:
    """What a cell has shown, without the line about a recovery."""
    shown = {**cell.shown(), "count": cell.reply["execution_count"]}
    shown["stderr"] = re.sub(r"\[The sandbox.* had ended; restored .*\]\n", "", shown["stderr"])
    return shown


@pytest.mark.parametrize(
    ("count", "losses"),
    [(12, {7: "expire"}), further(40, {9: "hibernate", 20: "expire", 31: "hibernate"})],
)
def test_a_notebook_over_several_sandboxes_ends_as_an_undisturbed_one(
    start_kernel: StartKernel,
    server: RunningSandbox,
    chat_id: str,
    new_chat: Callable[[], str],
    changed: Callable[..., None],
    hibernate: Callable[[], None],
    expire: Callable[[], None],
    count: int,
    losses: dict[int, str],
) -> None:
    """Every cell shows the same and has the same number; with an end near each one is kept."""
    cells = notebook_cells(count)
    undisturbed = start_kernel(variables=agent_variables(server, new_chat()))
    expected = [without_notes(undisturbed.run(code)) for code in cells]
    recoup = {
        "RECOUP_API_KEY": server.token,
        "RECOUP_API_URL": server.url.removesuffix("/api"),
        "RECOUP_SESSION_ID": f"session-of-{chat_id}",
    }
    kernel = start_kernel(variables=agent_variables(server, chat_id, **recoup))
    changed(hibernate_seconds=100.0)  # near, so that each cell's checkpoint is brought at once
    found = []
    for number, code in enumerate(cells, 1):
        found.append(without_notes(kernel.run(code)))
        if number in losses:
            until(partial(copied, kernel, number), f"the state after cell {number} is here")
            {"hibernate": hibernate, "expire": expire}[losses[number]]()
            changed(hibernate_seconds=100.0)
    assert found == expected
