"""Which sandbox settings and kernels mean, and when a key must not be used for it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from jupyter_core.paths import jupyter_config_dir
from traitlets.config import Config

from ivy_kernel.server_extension.targets import UNSET_ID, TargetResolver
from ivy_kernel.session.kernel_registry import KernelEntry

URL = "https://api.example/api"


def entry_of(api_url: str, chat_id: str = "chat-of-a-kernel") -> KernelEntry:
    """A kernel's entry."""
    return KernelEntry("a-kernel", 1, "kernel", api_url, chat_id, "campaign-of-a-kernel")


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> TargetResolver:
    """A server whose settings name an API, a key for it, and a chat."""
    monkeypatch.setenv("IVY_API_KEY", "ivy_key")
    monkeypatch.setenv("IVY_API_URL", URL)
    monkeypatch.setenv("IVY_CHAT_ID", "own-chat")
    monkeypatch.setenv("IVY_SESSION_ID", "own-session")
    monkeypatch.setenv("RECOUP_SESSION_ID", "own-recoup-session")
    return TargetResolver(Config())


def test_a_kernel_in_the_same_chat_means_the_default_sandbox(platform: TargetResolver) -> None:
    """Both have one id, so that they are shown as one."""
    default = platform.default_target(UNSET_ID)
    assert platform.kernel_target(entry_of(URL, "own-chat")).sandbox_id == default.sandbox_id


def test_a_kernel_in_another_chat_means_another_sandbox(platform: TargetResolver) -> None:
    """It has its own chat and campaign, and neither session of the settings' own chat."""
    default = platform.default_target(UNSET_ID)
    target = platform.kernel_target(entry_of(URL))
    assert target.sandbox_id != default.sandbox_id
    assert target.lifecycle is not None
    assert target.lifecycle.chat_id == "chat-of-a-kernel"
    assert target.lifecycle.campaign_id == "campaign-of-a-kernel"
    assert target.lifecycle.session_id != "own-session"
    assert target.lifecycle.key == (URL, "chat-of-a-kernel", "")
    assert default.lifecycle is not None
    assert default.lifecycle.session_id == "own-session"
    assert default.lifecycle.key == (URL, "own-chat", "own-recoup-session")


def test_a_kernel_in_the_local_sandbox_is_found_beside_the_platform(
    platform: TargetResolver,
) -> None:
    """A kernel whose own settings say local is shown as local, whatever the server's say."""
    target = platform.kernel_target(entry_of("local"))
    assert target.lifecycle is not None
    assert target.lifecycle.local
    assert target.local


def test_our_key_is_not_sent_to_an_address_that_a_kernel_names(platform: TargetResolver) -> None:
    """Such a sandbox is listed with the reason why nothing is known of it."""
    target = platform.kernel_target(entry_of("https://elsewhere.example/api"))
    assert target.lifecycle is None
    assert target.missing is not None
    assert "https://elsewhere.example/api" in target.missing
    assert URL in target.missing


def test_a_flag_of_the_server_is_called_the_reason_where_it_is(
    platform: TargetResolver,
) -> None:
    """What is put into a file would not count against a flag, so the flag has to go."""
    flagged = TargetResolver(Config({"Ivy": {"api_url": "https://flagged.example/api"}}))
    missing = flagged.kernel_target(entry_of(URL)).missing
    assert missing is not None
    assert "Start the Jupyter server without the flag" in missing
    assert "flag" not in (platform.kernel_target(entry_of("https://x.example")).missing or "")


@pytest.mark.parametrize(
    ("settings", "chat_before", "shown"),
    [
        ({"api_url": "https://new.example/api", "chat_id": "new-chat"}, "own-chat", "new-chat"),
        ({"api_url": "https://new.example/api"}, "own-chat", "own-chat"),
        ({"api_url": "local"}, "own-chat", "own-chat"),
        ({"api_url": "https://new.example/api", "chat_id": "new"}, "attached", "attached"),
    ],
)
def test_after_a_change_of_the_address_a_kernel_is_where_its_next_cell_goes(
    platform: TargetResolver, settings: dict[str, str], chat_before: str, shown: str
) -> None:
    """It reads the same file before its next cell; so there is no card of what cannot be seen."""
    platform.settings_fingerprint()
    file = Path(jupyter_config_dir()) / "jupyter_ivy_config.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"Ivy": settings}), "utf-8")
    platform.settings_fingerprint()
    entry = platform.next_entry(entry_of(URL, chat_before))
    assert (entry.api_url, entry.chat_id) == (settings["api_url"], shown)
    assert platform.kernel_target(entry).missing is None
    is_default = chat_before == "own-chat"
    default_id = platform.default_target(UNSET_ID).sandbox_id
    assert (platform.kernel_target(entry).sandbox_id == default_id) == is_default
    file.unlink()
    platform.settings_fingerprint()
    # And back: the file no longer names an address, but the one before is known.
    back = platform.next_entry(replace(entry, api_url="https://new.example/api"))
    if settings["api_url"] != "local":
        assert back.api_url == URL


def test_a_kernel_with_an_address_of_its_own_is_not_moved(platform: TargetResolver) -> None:
    """Our environment tells nothing of an address that we never named ourselves."""
    platform.settings_fingerprint()
    entry = entry_of("https://elsewhere.example/api")
    assert platform.next_entry(entry) == entry
    assert platform.next_entry(entry_of("local")) == entry_of("local")


def test_a_kernel_on_the_platform_needs_a_key_here_too() -> None:
    """A server without a key takes no kernel on the platform for a local one."""
    target = TargetResolver(Config()).kernel_target(entry_of("https://ivybiosciences.com/api"))
    assert target.lifecycle is None
    assert not target.local
    assert target.missing is not None


def test_ids_are_the_same_in_every_process() -> None:
    """A front end may keep them over a restart of the server."""
    first, second = TargetResolver(Config()), TargetResolver(Config())
    assert first.default_target(UNSET_ID).sandbox_id == second.default_target(UNSET_ID).sandbox_id
    assert first.kernel_target(entry_of("local", "é\udc80")).sandbox_id.isalnum()
