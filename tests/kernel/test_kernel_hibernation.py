"""A cell whose sandbox sleeps, with Recoup's status beside Ivy's, in both forms of its server."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kernel_driver import StartKernel
from sandbox_server import RunningSandbox, until

BOTH_SERVERS = pytest.mark.parametrize("recoup_server", ["current", "older"])


def recoup_variables(server: RunningSandbox, chat_id: str) -> dict[str, str]:
    """The settings that name Recoup's session of a chat."""
    return {
        "RECOUP_API_KEY": server.token,
        "RECOUP_API_URL": server.url.removesuffix("/api"),
        "RECOUP_SESSION_ID": f"session-of-{chat_id}",
    }


def state_of(server: RunningSandbox, chat_id: str) -> str:
    """What the lifecycle of a chat's session is called."""
    return str(server.session_status(f"session-of-{chat_id}")["lifecycle"]["state"])


@BOTH_SERVERS
def test_a_sandbox_that_sleeps_is_told_in_the_words_of_its_status(
    start_kernel: StartKernel,
    server: RunningSandbox,
    changed: Callable[..., None],
    chat_id: str,
    recoup_server: str,
) -> None:
    """The cell names the state and what its next run does, and that run does it."""
    changed(recoup_server=recoup_server, hibernating_seconds=0.0)
    kernel = start_kernel(chat_id=chat_id, **recoup_variables(server, chat_id))
    kernel.run("open('kept.txt', 'w').write('kept'); x = 5")
    changed(hibernate_seconds=0.3)
    until(lambda: state_of(server, chat_id) == "hibernated", "it sleeps")
    changed(hibernate_seconds=None)
    told = kernel.run("x").reply["evalue"]
    assert "its state is now 'hibernated'" in told
    assert "Run it again to resume it, with its files" in told
    told = kernel.run("%ivy status").text()
    assert "state: hibernated" in told
    assert "the next cell resumes it, with its files" in told
    assert kernel.run("open('kept.txt').read()").result == "'kept'"


@BOTH_SERVERS
def test_a_sandbox_on_its_way_to_sleep_is_waited_for(
    start_kernel: StartKernel,
    server: RunningSandbox,
    changed: Callable[..., None],
    chat_id: str,
    recoup_server: str,
) -> None:
    """Who has no variables in it loses nothing: the cell waits, resumes it and runs."""
    changed(recoup_server=recoup_server, hibernating_seconds=3.0)
    server.ready(chat_id)
    kernel = start_kernel(chat_id=chat_id, **recoup_variables(server, chat_id))
    changed(hibernate_seconds=0.3)
    until(lambda: state_of(server, chat_id) == "hibernating", "it falls asleep")
    changed(hibernate_seconds=None)
    assert kernel.run("1 + 1").result == "2"


def test_a_cell_during_it_is_told_of_the_loss(
    start_kernel: StartKernel,
    server: RunningSandbox,
    changed: Callable[..., None],
    chat_id: str,
) -> None:
    """Its variables are as good as gone, and nothing of the cell runs."""
    kernel = start_kernel(chat_id=chat_id, **recoup_variables(server, chat_id))
    kernel.run("x = 5")
    changed(hibernate_seconds=0.3, hibernating_seconds=10.0)
    until(lambda: state_of(server, chat_id) == "hibernating", "it falls asleep")
    reply = kernel.run("x").reply
    changed(hibernate_seconds=None, hibernating_seconds=0.0)
    assert reply["ename"] == "SandboxLostError"
    assert "Nothing of this cell was run" in reply["evalue"]
