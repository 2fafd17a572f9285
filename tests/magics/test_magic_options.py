"""Each option of ``%%ivy``, and what is said about wrong ones."""

from __future__ import annotations

import shutil

import pytest
from magic_driver import MagicKernel
from sandbox_server import RunningSandbox, until


def test_timeout_stops_the_cell_and_says_so(kernel: MagicKernel) -> None:
    """After ``--timeout`` the cell is interrupted; the error is a TimeoutError that names it."""
    kernel.ivy("kept = 1")
    cell = kernel.ivy("import time; time.sleep(60)", "--timeout 2", timeout_seconds=40)

    assert cell.reply["ename"] == "TimeoutError"
    assert "2 s (--timeout)" in cell.reply["evalue"]
    assert "time.sleep" in cell.traceback
    assert kernel.ivy("kept").result == "1"


def test_a_cell_within_its_timeout_is_left_alone(kernel: MagicKernel) -> None:
    """A quick cell ends as usual, and so does the next one, long after the time."""
    assert kernel.ivy("5", "--timeout 3").result == "5"
    assert kernel.ivy("import time; time.sleep(3.3); 6").result == "6"


@pytest.mark.usefixtures("fresh_chat", "slow_start")
def test_the_start_of_the_sandbox_does_not_count(kernel: MagicKernel) -> None:
    """A sandbox that takes longer to start than the cell may take does not time it out."""
    assert kernel.ivy("7", "--timeout 2").result == "7"


def test_chat_runs_one_cell_elsewhere(kernel: MagicKernel, server: RunningSandbox) -> None:
    """``--chat`` has its own variables, and the cells after it run where they did."""
    kernel.ivy("where = 'own'")
    other = kernel.ivy("where = 'other'\nwhere", "--chat elsewhere")

    assert other.result == "'other'"
    assert kernel.ivy("where").result == "'own'"
    assert kernel.ivy("where", "--chat elsewhere").result == "'other'"
    assert server.status("elsewhere")["status"] == "active"


def test_sh_runs_a_shell_script(kernel: MagicKernel) -> None:
    """``--lang sh`` runs several lines in a shell of the sandbox, and sees its files."""
    kernel.ivy("open('seen.txt', 'w').write('from python')")
    cell = kernel.ivy(
        "for i in 1 2; do echo line $i; done\ncat seen.txt\necho bad >&2", "--lang sh"
    )

    assert cell.text() == "line 1\nline 2\nfrom python"
    assert cell.text("stderr").strip() == "bad"


def test_sh_uses_the_tool_and_not_the_route_exec(
    kernel: MagicKernel, server: RunningSandbox
) -> None:
    """The route documents neither budget nor errors, so that it is never called."""
    before = server.counters()["calls"].get("sandbox_exec", 0)
    assert kernel.ivy("echo here", "--lang sh").text() == "here\n"
    counted = server.counters()

    assert counted["calls"]["sandbox_exec"] == before + 1
    assert not [route for route in counted["requests"] if route.endswith("/exec")]


def test_a_failing_script_fails_the_cell(kernel: MagicKernel) -> None:
    """An exit code other than 0 is an error of the cell."""
    cell = kernel.ivy("echo before\nexit 3", "--lang sh")

    assert cell.text() == "before\n"
    assert cell.reply["status"] == "error"
    assert "3" in cell.reply["evalue"]


@pytest.mark.skipif(shutil.which("Rscript") is None, reason="there is no R on this machine")
def test_r_runs_an_r_script(kernel: MagicKernel) -> None:
    """``--lang r`` runs R in the sandbox; an R error fails the cell."""
    assert kernel.ivy("x <- c(1, 2, 3)\ncat(mean(x), '\\n')", "--lang r").text().strip() == "2"

    failed = kernel.ivy("stop('no reads')", "--lang r")
    assert failed.reply["status"] == "error"
    assert "no reads" in "\n".join(failed.reply["traceback"]) + failed.text("stderr")


def test_an_interrupt_stops_waiting_for_a_script(
    kernel: MagicKernel, server: RunningSandbox
) -> None:
    """The platform cannot stop a script, so the cell ends and says that it may go on."""
    kernel.ivy("1")
    script = "touch begun; until [ -e let-go ]; do sleep 0.1; done"
    message_id = kernel.submit(f"%%ivy --lang sh\n{script}")
    until(lambda: list(server.root.glob("*/begun")), "the script")
    kernel.interrupt()
    cell = kernel.finish(message_id)

    assert cell.reply["ename"] == "KeyboardInterrupt"
    assert "still running" in cell.reply["evalue"]
    # Its end would be a call that other tests count as their own.
    kernel.ivy("open('let-go', 'w').close()")
    until(
        lambda: not any(sandbox["callsInFlight"] for sandbox in server.control()["sandboxes"]),
        "the script's end",
    )


def test_a_tool_gets_the_cell_as_its_parameters(kernel: MagicKernel) -> None:
    """``--tool`` runs any tool with a JSON object, and shows the decoded result."""
    cell = kernel.ivy('{"code": "print(40 + 2)"}', "--tool sandbox_python")

    assert cell.text() == "42\n"


def test_an_unknown_tool_fails_the_cell(kernel: MagicKernel) -> None:
    """The platform's refusal is the cell's error, and names the tool."""
    cell = kernel.ivy("{}", "--tool sandbox_nonsense")

    assert cell.reply["ename"] == "BadRequestError"
    assert "sandbox_nonsense" in cell.reply["evalue"]


def test_a_field_of_another_name_is_found(
    kernel: MagicKernel, server: RunningSandbox, fresh_chat: str
) -> None:
    """Where the shell tool wants its command in another field, a probe finds that field."""
    server.control({"code_field": {"sandbox_exec": "script"}})
    try:
        cell = kernel.ivy("echo found", "--lang sh")
        assert cell.text() == "found\n", cell.reply
        assert kernel.ivy("echo again", "--lang sh").text() == "again\n"
    finally:
        server.control({"code_field": {"sandbox_exec": None}})


@pytest.mark.parametrize(
    ("code", "options", "kept"),
    [
        ("{'a': [1, 2.5, None, True]}", "", "{'a': [1, 2.5, None, True]}"),
        ("'text'", "", "'text'"),
        ("range(3)", "", "'range(0, 3)'"),
        ("print('{\"k\": 3}')", "", "{'k': 3}"),
        ("print('plain words')", "", "'plain words\\n'"),
        ("print('shown'); 5", "", "5"),
        ("list(range(2000))", "", None),
        ("echo '[1, 2]'", "--lang sh", "[1, 2]"),
        ("# nothing", "", "''"),
    ],
)
def test_out_keeps_what_the_cell_gives(
    kernel: MagicKernel, code: str, options: str, kept: str | None
) -> None:
    """Plain data as data, other values as their text, else what was printed, decoded if JSON."""
    assert kernel.ivy(code, f"--out got {options}").reply["status"] == "ok"

    if kept is None:  # IPython writes out a thousand elements, so the text is all there is
        assert kernel.run("type(got).__name__, got[-4:]").result == "('str', '...]')"
    else:
        assert kernel.run("got").result == kept


def test_out_is_left_alone_by_a_cell_that_fails(kernel: MagicKernel) -> None:
    """The variable keeps its earlier value."""
    kernel.run("got = 'earlier'")
    kernel.ivy("print('{}')\n1/0", "--out got")

    assert kernel.run("got").result == "'earlier'"


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ("--nonsense", "1", "--nonsense"),
        ("status", "1", "status"),
        ("--timeout", "1", "--timeout"),
        ("--timeout soon", "1", "'soon' must be a number"),
        ("--timeout 0", "1", "above 0"),
        ("--timeout nan", "1", "above 0"),
        ("--lang perl", "1", "perl"),
        ("--out 1x", "1", "'1x' cannot be the name"),
        ("--out class", "1", "'class' cannot be the name"),
        ("--chat ''", "1", "id of a chat"),
        ("--chat ..", "1", "chat_id"),
        ("--tool a/b", "{}", "'a/b' cannot be the name of a tool"),
        ("--tool sandbox_exec --lang sh", "{}", "exclude each other"),
        ("--tool sandbox_exec", "[1]", "JSON array"),
        ("--tool sandbox_exec", "{'a': 1}", "JSON object"),
        ("--out 'x", "1", "No closing quotation"),
        ("--ti 5", "1", "--ti"),
    ],
)
def test_wrong_use_fails_the_cell_and_runs_nothing(
    kernel: MagicKernel, server: RunningSandbox, options: str, code: str, words: str
) -> None:
    """A usage error is an error of the cell, says what is wrong, and asks nobody."""
    before = server.counters()["calls"]
    cell = kernel.ivy(code, options)

    assert cell.reply["ename"] in ("UsageError", "SettingError")
    assert words in cell.reply["evalue"]
    assert len(cell.reply["traceback"]) == 1
    assert server.counters()["calls"] == before


def test_help_is_printed(kernel: MagicKernel) -> None:
    """``%%ivy --help`` tells every option and what ``--out`` keeps, and runs nothing."""
    text = kernel.ivy("1/0", "--help").text()

    for option in ("--timeout", "--chat", "--lang", "--out", "--tool"):
        assert option in text
    assert "decoded if that is JSON" in text
