"""``%ivy`` in a plain kernel: the commands, their questions, and settings that change."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import pytest
from magic_driver import MagicKernel
from sandbox_server import RunningSandbox, until

from ivy_kernel.session.describe import warnings
from ivy_kernel.status.model import SandboxStatus


def test_alone_and_with_help_it_tells_the_commands(kernel: MagicKernel) -> None:
    """``%ivy``, ``%ivy --help`` and ``%ivy help`` are the same; each command has its own help."""
    texts = {kernel.run(code).text() for code in ("%ivy", "%ivy --help", "%ivy help")}

    assert len(texts) == 1
    for name in ("status", "widget", "create", "reconnect", "terminate", "attach", "config"):
        assert f"%ivy {name}" in next(iter(texts))
    assert "--campaign" in kernel.run("%ivy attach --help").text()
    assert "--timeout" in kernel.run("%ivy cell").text()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("%ivy nonsense", "no %ivy nonsense"),
        ("%ivy status now", "now"),
        ("%ivy terminate --now", "--now"),
        ("%ivy attach", "CHAT"),
        ("%ivy attach a b", "b"),
        ("%ivy attach ..", "chat_id"),
        ("%ivy chats CHAT", "--name"),
        ("%ivy chats --name ''", "empty"),
        ("%ivy chats --default nowhere", "'nowhere'"),
        ("%ivy chats --forget a --default b", "one of"),
        ("%ivy 'unclosed", "No closing quotation"),
    ],
)
def test_wrong_use_fails_the_cell(kernel: MagicKernel, code: str, words: str) -> None:
    """A usage error is an error output and an error reply."""
    cell = kernel.run(code)

    assert cell.reply["ename"] in ("UsageError", "SettingError")
    assert words in cell.reply["evalue"]


def test_status_tells_state_and_route(kernel: MagicKernel) -> None:
    """After a cell the sandbox is active, and the route is told."""
    kernel.ivy("1")
    text = kernel.run("%ivy status").text()

    assert "state: active" in text
    assert "route: agent" in text


def test_config_tells_sources_but_no_key(kernel: MagicKernel, server: RunningSandbox) -> None:
    """Each setting has its source, and of a key only that it is set."""
    text = kernel.run("%ivy config").text()

    assert "environment IVY_CHAT_ID" in text
    assert server.token not in text


def test_reconnect_keeps_the_variables(kernel: MagicKernel) -> None:
    """After ``%ivy reconnect`` the same Python answers."""
    kernel.ivy("kept = 9")
    cell = kernel.run("%ivy reconnect")

    assert "state: active" in cell.text()
    assert kernel.ivy("kept").result == "9"


def test_terminate_asks_and_a_no_changes_nothing(
    kernel: MagicKernel, server: RunningSandbox, fresh_chat: str
) -> None:
    """Anything but yes leaves the sandbox; yes ends it, and the next cell starts anew."""
    kernel.ivy("kept = 1")

    message_id = kernel.submit("%ivy terminate", allow_stdin=True)
    asked = kernel.answer("")
    assert "lost" in asked["prompt"]
    assert "Not terminated" in kernel.finish(message_id).text()
    assert kernel.ivy("kept").result == "1"

    message_id = kernel.submit("%ivy terminate", allow_stdin=True)
    kernel.answer("y")
    assert kernel.finish(message_id).reply["status"] == "ok"
    assert server.status(fresh_chat)["status"] != "active"
    assert kernel.ivy("kept").reply["ename"] == "NameError"


def test_terminate_refuses_where_nobody_can_be_asked(
    kernel: MagicKernel, server: RunningSandbox
) -> None:
    """Without stdin it needs ``--yes``, says so, and does nothing."""
    kernel.ivy("1")
    cell = kernel.run("%ivy terminate")

    assert cell.reply["ename"] == "UsageError"
    assert "--yes" in cell.reply["evalue"]
    assert "state: active" in kernel.run("%ivy status").text()


def test_attach_switches_the_cells_that_follow_and_back(
    kernel: MagicKernel, server: RunningSandbox, new_chat: Callable[[], str]
) -> None:
    """Cells run in the attached chat, with its campaign; the own chat's id leads back."""
    own, other = kernel.variables["IVY_CHAT_ID"], new_chat()
    kernel.ivy("where = 'own'")
    attached = kernel.run(f"%ivy attach {other} --campaign c-2 --session s-2")

    assert f"Chat {other}" in attached.text()
    assert server.status(other)["status"] == "none", "attaching starts nothing"
    assert kernel.ivy("'where' in globals()").result == "False"
    assert server.session_status("s-2")["status"] != "no_sandbox"
    kernel.run(f"%ivy attach {own}")
    assert kernel.ivy("where").result == "'own'"


def test_a_chat_is_attached_by_its_name_with_its_campaign(
    kernel: MagicKernel, server: RunningSandbox, new_chat: Callable[[], str]
) -> None:
    """Once named it needs neither id nor campaign again, for ``%%ivy --chat`` either."""
    own, other = kernel.variables["IVY_CHAT_ID"], new_chat()
    server.control({"chats": {other: {"owner": "local", "campaign": "c-named"}}})
    kernel.run(f"%ivy attach {other} --campaign c-named")
    assert "Wheat" in kernel.run("%ivy chats --name 'Wheat genomes'").text()
    kernel.run(f"%ivy attach {own}")
    assert kernel.run("%ivy attach 'wheat GENOMES'").reply["status"] == "ok"
    assert kernel.ivy("named = 5").reply["status"] == "ok", "created with the campaign of before"

    listed = kernel.run("%ivy chats").text().splitlines()
    (row,) = [line for line in listed if line.startswith("Wheat genomes")]
    assert other in row
    assert "c-named" in row
    assert "used by this notebook" in row
    assert [line for line in listed if own in line and "default" in line]
    kernel.run(f"%ivy attach {own}")
    assert kernel.ivy("named", "--chat 'Wheat genomes'").result == "5"
    assert "forgotten" in kernel.run(f"%ivy chats --forget {other}").text()
    assert other not in kernel.run("%ivy chats").text()


def test_an_attach_that_fails_leaves_all_as_it_was(
    kernel: MagicKernel, server: RunningSandbox
) -> None:
    """A chat of somebody else is refused at once, and cells go on where they ran."""
    server.control({"chats": {"theirs": {"owner": "somebody", "campaign": "c"}}})
    kernel.ivy("kept = 2")
    cell = kernel.run("%ivy attach theirs")

    assert cell.reply["ename"] == "ForbiddenError"
    assert kernel.ivy("kept").result == "2"


def test_a_corrected_key_is_used_without_a_restart(
    start_kernel: Callable[..., MagicKernel], server: RunningSandbox
) -> None:
    """A refused key fails the cell and names the setting; ``%env`` corrects it."""
    kernel = start_kernel(IVY_API_KEY="ivy_wrong")
    refused = kernel.ivy("1")
    assert refused.reply["ename"] == "CredentialsError"
    assert "IVY_API_KEY" in refused.reply["evalue"] or "api_key" in refused.reply["evalue"]

    kernel.run(f"import os\nos.environ['IVY_API_KEY'] = {server.token!r}")
    assert kernel.ivy("1").result == "1"


def test_a_missing_setting_is_told_by_the_first_cell(
    start_kernel: Callable[..., MagicKernel],
) -> None:
    """A key without a chat: the extension loads, and the cell says what is missing and the fix."""
    kernel = start_kernel(IVY_CHAT_ID="")
    cell = kernel.ivy("1")

    assert cell.reply["ename"] == "MissingSettingError"
    assert "IVY_CHAT_ID" in cell.reply["evalue"]
    kernel.run("%env IVY_CHAT_ID=given-later")
    kernel.run("%env IVY_CAMPAIGN_ID=campaign-later")
    assert kernel.ivy("1").result == "1"


@pytest.mark.parametrize("route", ["notebook", "agent"])
def test_hibernation_is_noticed_before_the_next_cell_runs(
    start_kernel: Callable[..., MagicKernel],
    server: RunningSandbox,
    new_chat: Callable[[], str],
    route: str,
) -> None:
    """The cell after it is not run, and says that the variables are gone; the next starts anew."""
    chat_id = new_chat()
    kernel = start_kernel(chat_id, IVY_ROUTE=route, IVY_RESTORE="off")
    kernel.ivy("kept = 1")
    server.control({"hibernate_seconds": 0.3, "hibernating_seconds": 0.0})
    try:
        until(lambda: server.status(chat_id)["status"] not in ("active", "hibernating"), "sleep")
    finally:
        server.control({"hibernate_seconds": None})
    cell = kernel.ivy("open('ran.txt', 'w'); 'kept' in globals()")

    assert cell.reply["ename"] == "SandboxLostError", cell.reply["evalue"]
    assert "Nothing of this cell was run" in cell.reply["evalue"]
    assert not list(server.root.rglob("ran.txt"))
    assert kernel.ivy("'kept' in globals()").result == "False"


def test_near_deadlines_are_warned_of_with_what_to_do() -> None:
    """At ten and at two minutes a sentence says what happens, when, and what helps."""
    assert warnings(status(hibernates_in=601, idle=0), 0.0) == []
    soon = warnings(status(hibernates_in=599, idle=1800), 0.0)
    assert len(soon) == 1
    assert "hibernates in 9 min 59 s" in soon[0]
    assert "run any cell" in soon[0]
    assert warnings(status(hibernates_in=290, idle=10), 0.0) == [], "it never lay further away"
    assert len(warnings(status(hibernates_in=99, idle=201), 0.0)) == 1
    expiring = warnings(status(expires_in=90), 0.0)
    assert len(expiring) == 1
    assert "expires in 1 min 30 s" in expiring[0]
    assert "save" in expiring[0]


def status(
    *, hibernates_in: float | None = None, expires_in: float | None = None, idle: float = 0.0
) -> SandboxStatus:
    """The status of an active sandbox at the moment 0."""
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)

    def later(seconds: float | None) -> datetime | None:
        return None if seconds is None else now + timedelta(seconds=seconds)

    return SandboxStatus(
        state="active",
        dialect="recoup",
        received_monotonic=0.0,
        described_monotonic=0.0,
        server_time=now,
        last_activity_at=later(-idle),
        hibernate_at=later(hibernates_in),
        expires_at=later(expires_in),
    )
