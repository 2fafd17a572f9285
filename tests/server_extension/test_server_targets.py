"""Which sandbox settings and kernels mean, and when a key must not be used for it."""

from __future__ import annotations

import pytest
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
