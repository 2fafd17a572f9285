"""Settings that are missing, wrong or changed: the endpoint goes on, and says what to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from jupyter_server_driver import Json, RunningJupyter
from sandbox_server import RunningSandbox, until
from test_server_actions import state_of
from test_server_routes import check_error


def settled(server: RunningJupyter, condition: Callable[[Json], bool], what: str) -> Json:
    """The default sandbox once it meets the condition."""
    found: Json = until(lambda: next(filter(condition, [server.default()]), None), what)
    return found


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"chat_id": "chat", "route": "tunnel"}, "route"),
        ({"chat_id": "chat", "cell_timeout_seconds": "long"}, "cell_timeout_seconds"),
        ({"chat_id": "chat", "chat": "no-such-setting"}, "Ivy.chat"),
        ({"chat_id": "chat", "api_url": "http://example.org"}, "https://"),
        ("{ not json", "jupyter_ivy_config.json"),
    ],
)
def test_a_wrong_setting_is_told_and_breaks_nothing(
    jupyter: RunningJupyter, settings: Json | str, named: str
) -> None:
    """The default sandbox stays, names the setting, and cannot be created meanwhile."""
    jupyter.home.configure(settings)
    sandbox = settled(jupyter, lambda one: one["missing"] is not None, "the fault was told")
    assert named in sandbox["missing"]
    assert sandbox["default"] is True
    assert sandbox["can_create"] is False
    assert sandbox["can_terminate"] is False
    status, _, body = jupyter.call("POST", f"ivy/sandboxes/{sandbox['id']}/create")
    assert status == 409
    assert named in check_error(body, "SettingError")
    jupyter.act("reconnect", sandbox["id"])
    jupyter.home.configure({"chat_id": "chat", "campaign_id": "campaign"})
    mended = settled(jupyter, lambda one: one["missing"] is None, "the correction was noticed")
    assert mended["name"] == "Chat chat"


def test_a_missing_chat_is_told_and_then_noticed(jupyter: RunningJupyter, chat_id: str) -> None:
    """Without a chat the state is none, with the reason; a correction is seen without a restart."""
    jupyter.home.configure(None)
    with jupyter.events() as events:
        _, sandboxes = events.until(lambda found: found[0]["missing"], "the gap was told")
        assert "chat_id" in sandboxes[0]["missing"]
        assert "IVY_CHAT_ID" in sandboxes[0]["missing"]
        assert sandboxes[0]["status"]["state"] == "none"
        assert sandboxes[0]["can_create"] is False
        jupyter.home.configure({"chat_id": chat_id, "campaign_id": "campaign"})
        events.until(
            lambda found: found[0]["chat_id"] == chat_id and state_of(found) == "none",
            "the correction was noticed",
            20.0,
        )


def test_a_chat_without_campaign_can_be_used_but_not_created(
    jupyter: RunningJupyter, platform: RunningSandbox
) -> None:
    """The campaign is asked for only where it is needed: when there is no sandbox."""
    jupyter.home.configure({"chat_id": "chat-without-campaign"})
    sandbox = settled(jupyter, lambda one: one["chat_id"] == "chat-without-campaign", "it is shown")
    assert "campaign_id" in sandbox["missing"]
    assert sandbox["can_create"] is False
    assert sandbox["can_terminate"] is True
    status, _, body = jupyter.call("POST", f"ivy/sandboxes/{sandbox['id']}/create")
    assert status == 409
    assert "campaign_id" in check_error(body, "MissingSettingError")
    platform.ready("chat-without-campaign")
    sandbox = jupyter.act("reconnect", sandbox["id"])
    assert sandbox["status"]["state"] == "active"
    assert sandbox["missing"] is None


def test_a_refused_key_is_told_without_signing_the_browser_out(
    jupyter: RunningJupyter, chat_id: str
) -> None:
    """A key that the platform does not accept shows as the reason why the status is stale."""
    jupyter.home.configure(
        {"chat_id": chat_id, "campaign_id": "campaign", "api_key": "ivy_wrong0key0of0a0test"}
    )
    sandbox = settled(jupyter, lambda one: one["status"]["stale"], "the refusal was told")
    assert "api_key" in sandbox["status"]["stale_reason"]
    status, _, body = jupyter.call("POST", f"ivy/sandboxes/{sandbox['id']}/create")
    assert status == 502
    check_error(body, "CredentialsError")
    jupyter.home.configure({"chat_id": chat_id, "campaign_id": "campaign"})
    settled(jupyter, lambda one: not one["status"]["stale"], "the right key was tried")
