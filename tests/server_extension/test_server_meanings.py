"""Which sandbox settings and kernels mean, and when a key must not be used for it."""

from __future__ import annotations

import pytest
from traitlets.config import Config

from ivy_kernel.server_extension.targets import UNSET_ID, Meanings
from ivy_kernel.session.kernel_registry import Use

URL = "https://api.example/api"


def use_of(api_url: str, chat_id: str = "chat-of-a-kernel") -> Use:
    """A kernel's use."""
    return Use("a-kernel", 1, "kernel", api_url, chat_id, "campaign-of-a-kernel")


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Meanings:
    """A server whose settings name an API, a key for it, and a chat."""
    monkeypatch.setenv("IVY_API_KEY", "ivy_key")
    monkeypatch.setenv("IVY_API_URL", URL)
    monkeypatch.setenv("IVY_CHAT_ID", "own-chat")
    monkeypatch.setenv("IVY_SESSION_ID", "own-session")
    monkeypatch.setenv("RECOUP_SESSION_ID", "own-recoup-session")
    return Meanings(Config())


def test_a_kernel_in_the_same_chat_means_the_default_sandbox(platform: Meanings) -> None:
    """Both have one id, so that they are shown as one."""
    default = platform.of_settings(UNSET_ID)
    assert platform.of_use(use_of(URL, "own-chat")).sandbox_id == default.sandbox_id


def test_a_kernel_in_another_chat_means_another_sandbox(platform: Meanings) -> None:
    """It has its own chat and campaign, and neither session of the settings' own chat."""
    default = platform.of_settings(UNSET_ID)
    meaning = platform.of_use(use_of(URL))
    assert meaning.sandbox_id != default.sandbox_id
    assert meaning.lifecycle is not None
    assert meaning.lifecycle.chat_id == "chat-of-a-kernel"
    assert meaning.lifecycle.campaign_id == "campaign-of-a-kernel"
    assert meaning.lifecycle.session_id != "own-session"
    assert meaning.lifecycle.key == (URL, "chat-of-a-kernel", "")
    assert default.lifecycle is not None
    assert default.lifecycle.session_id == "own-session"
    assert default.lifecycle.key == (URL, "own-chat", "own-recoup-session")


def test_a_kernel_in_the_local_sandbox_is_found_beside_the_platform(platform: Meanings) -> None:
    """A kernel whose own settings say local is shown as local, whatever the server's say."""
    meaning = platform.of_use(use_of("local"))
    assert meaning.lifecycle is not None
    assert meaning.lifecycle.local
    assert meaning.local


def test_our_key_is_not_sent_to_an_address_that_a_kernel_names(platform: Meanings) -> None:
    """Such a sandbox is listed with the reason why nothing is known of it."""
    meaning = platform.of_use(use_of("https://elsewhere.example/api"))
    assert meaning.lifecycle is None
    assert meaning.missing is not None
    assert "https://elsewhere.example/api" in meaning.missing
    assert URL in meaning.missing


def test_a_kernel_on_the_platform_needs_a_key_here_too() -> None:
    """A server without a key takes no kernel on the platform for a local one."""
    meaning = Meanings(Config()).of_use(use_of("https://ivybiosciences.com/api"))
    assert meaning.lifecycle is None
    assert not meaning.local
    assert meaning.missing is not None


def test_ids_are_the_same_in_every_process() -> None:
    """A front end may keep them over a restart of the server."""
    first, second = Meanings(Config()), Meanings(Config())
    assert first.of_settings(UNSET_ID).sandbox_id == second.of_settings(UNSET_ID).sandbox_id
    assert first.of_use(use_of("local", "é\udc80")).sandbox_id.isalnum()
