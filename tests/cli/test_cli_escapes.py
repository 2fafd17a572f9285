"""Text from the platform or a sandbox cannot command the user's terminal, nor forge lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from nbclient.exceptions import CellExecutionError
from sandbox_server import RunningSandbox

from ivy_kernel.cli.app import print_line
from ivy_kernel.cli.execution import NotebookRun
from ivy_kernel.cli.sandbox import status_line
from ivy_kernel.errors import ForbiddenError
from ivy_kernel.session.describe import status_lines
from ivy_kernel.session.lifecycle import Lifecycle
from ivy_kernel.status.clock import monotonic_seconds
from ivy_kernel.status.model import SandboxStatus, StatusReading

EVIL = "\x1b]0;pwned\x07\x1b[2Jtree\x9b1m\n\tforged\r.nwk"
"""Sets a title, clears the screen, and begins a line of its own; the last two by C1 and CR."""


def is_harmless(text: str) -> bool:
    """Whether a terminal shows text as it is, but for the ends of its lines and tabs."""
    return all(character.isprintable() or character in "\n\t" for character in text)


def test_a_files_name_is_shown_and_not_obeyed(ivy, server: RunningSandbox, chat: str) -> None:
    """It takes one row, in which control characters are spelled; JSON has the name itself."""
    server.ready(chat, f"session-of-{chat}", f"campaign-of-{chat}")
    server.tool(chat, "sandbox_write", {"path": EVIL, "content": "(a,b);"})
    server.tool(chat, "sandbox_export", {"path": EVIL})
    answer = ivy("files")
    assert answer.returncode == 0, answer
    assert is_harmless(answer.stdout)
    (row,) = answer.stdout.splitlines()
    assert row.startswith(r"\x1b]0;pwned\x07\x1b[2Jtree\x9b1m\x0a\x09forged\x0d.nwk" + "\t")
    assert json.loads(ivy("files", "--json").stdout)[0]["path"] == EVIL


def test_a_failing_cells_exception_is_shown_and_not_obeyed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The sentence about it is one line."""
    run = NotebookRun(None, Path("done.ipynb"), directory=Path())
    run.failed, run.stopped_in = CellExecutionError("", EVIL, EVIL), 2
    assert run.report() == 1
    shown = capsys.readouterr().err
    assert is_harmless(shown)
    assert len(shown.splitlines()) == 2
    assert r"Cell 2 failed: \x1b]0;pwned" in shown


@pytest.mark.parametrize("state", ["unknown", "provisioning", "failed"])
def test_the_words_of_a_status_are_shown_and_not_obeyed(state: str) -> None:
    """State, phase and error of the platform forge no line, watched or asked for once."""
    now = monotonic_seconds()
    status = SandboxStatus(
        state=state,  # type: ignore[arg-type]  # one of the three above
        dialect="ivy",
        received_monotonic=now,
        described_monotonic=now,
        raw_state=EVIL,
        phase=EVIL,
        error=EVIL,
    )
    line = status_line("Chat c", StatusReading(status=status), now)
    assert line.isprintable()
    assert "tree" in line

    async def connect() -> None:
        raise AssertionError("nothing is asked here")

    lifecycle = Lifecycle(connect, chat_id="c", campaign_id="", session_id="")
    lines = status_lines(lifecycle, status, now)
    assert all(line.isprintable() for line in lines)
    assert any("tree" in line for line in lines)


def test_an_errors_words_are_shown_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever a command prints has its control characters spelled, other than in outputs."""
    print_line(str(ForbiddenError(EVIL, status_code=403)), error=True)
    shown = capsys.readouterr()
    assert is_harmless(shown.err)
    assert "\\x1b]0;pwned" in shown.err
    print_line("\x1b[31mred\x1b[0m", raw=True)
    assert capsys.readouterr().out == "\x1b[31mred\x1b[0m\n"
