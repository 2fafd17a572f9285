"""The embedded local sandbox in the panel: looking never starts it, creating does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from jupyter_server_driver import MARKED_KEY, Json, RunningJupyter
from sandbox_server import RunningSandbox, until
from test_server_actions import state_of
from test_server_routes import check_error


@pytest.fixture
def configure(local_jupyter: RunningJupyter) -> Iterator[Callable[[Json | str], None]]:
    """Changes the settings file of the server without a key, until the test's end."""
    yield local_jupyter.home.configure
    local_jupyter.home.configure(None)
    until(lambda: local_jupyter.default()["account"] is False, "the settings were read again")


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


@pytest.mark.parametrize(
    "settings",
    [
        {"api_key": MARKED_KEY},
        {"api_key": MARKED_KEY, "api_url": "local"},
        {"recoup_api_key": MARKED_KEY},
        {"route": "tunnel"},
        "{ not json",
    ],
    ids=["key", "key beside local", "recoup key", "wrong setting", "unreadable"],
)
def test_only_who_surely_has_no_account_is_told_so(
    local_jupyter: RunningJupyter, configure: Callable[[Json | str], None], settings: Json | str
) -> None:
    """A key of either platform counts as an account, and so do settings that cannot be read."""
    assert local_jupyter.default()["account"] is False
    configure(settings)
    until(lambda: local_jupyter.default()["account"], "the account was noticed")


def test_a_key_that_came_meanwhile_takes_the_offer_back(
    local_jupyter: RunningJupyter,
    configure: Callable[[Json | str], None],
    platform: RunningSandbox,
) -> None:
    """Who clicks the offer of a page that is behind starts nothing, neither here nor there."""
    offered = local_jupyter.default()
    assert (offered["local"], offered["account"]) == (True, False)
    configure({"api_key": MARKED_KEY, "api_url": platform.url, "campaign_id": "campaign"})
    status, _, body = local_jupyter.call("POST", f"ivy/sandboxes/{offered['id']}/create")
    assert status == 404
    check_error(body, "UnknownSandboxError")
    meant = local_jupyter.default()
    assert (meant["local"], meant["account"]) == (False, True)
    assert platform.status(meant["chat_id"])["status"] == "none"
    assert not local_jupyter.home.sandbox_file.exists()


def test_two_clicks_start_one_local_sandbox(local_jupyter: RunningJupyter) -> None:
    """Whoever asks while it starts, in whichever tab, gets the same one."""
    sandbox_id = local_jupyter.default()["id"]
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda _: local_jupyter.act("create", sandbox_id), range(3)))
    assert {answer["id"] for answer in answers} == {sandbox_id}
    assert {answer["status"]["state"] for answer in answers} <= {"provisioning", "active"}
    with local_jupyter.events() as events:
        events.until(lambda found: state_of(found) == "active", "it became active")
