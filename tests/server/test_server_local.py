"""The embedded local sandbox in the panel: looking never starts it, creating does."""

from __future__ import annotations

from jupyter_server_driver import RunningJupyter
from test_server_actions import state_of


def test_only_create_starts_the_local_sandbox(local_jupyter: RunningJupyter) -> None:
    """Lists, events, reconnect and terminate find no sandbox and start none; create does."""
    server, home = local_jupyter, local_jupyter.home
    with server.events() as events:
        _, sandboxes = events.until(lambda found: state_of(found) == "none", "it is shown")
        sandbox = sandboxes[0]
        assert (sandbox["name"], sandbox["local"]) == ("Local sandbox", True)
        assert sandbox["status"]["stale"] is False
        assert sandbox["can_create"] is True
        assert server.act("reconnect")["status"]["state"] == "none"
        assert server.act("terminate")["status"]["state"] == "none"
        assert server.default()["status"]["state"] == "none"
        assert not home.sandbox_file.exists()

        assert server.act("create")["status"]["state"] == "provisioning"
        assert home.sandbox_file.exists()
        events.until(lambda found: state_of(found) == "active", "it became active")

        home.stop_sandbox()
        assert server.act("reconnect")["status"]["state"] == "none"
        assert not home.sandbox_file.exists()


def test_the_servers_own_flags_name_the_chat(local_jupyter: RunningJupyter) -> None:
    """``--Ivy.chat_id`` of the Jupyter server beats the environment and the default."""
    assert local_jupyter.default()["chat_id"] == "chat-of-a-flag"
