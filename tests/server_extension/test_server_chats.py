"""Chats by name, and the account: what the panel's picker and form send and get."""

from __future__ import annotations

import json
import stat
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from jupyter_server_driver import MARKED_KEY, TOKEN, Json, RunningJupyter
from sandbox_server import RunningSandbox, until
from test_server_browser import Browser
from test_server_routes import check_error

WRONG = "ivy_wrong0key0that0is0refused"
OTHER = "ivy_another0marked0key0for0the0form"


@pytest.fixture
def fresh(jupyter: RunningJupyter) -> Iterator[RunningJupyter]:
    """The shared server, with an empty list of chats."""
    file = jupyter.home.data / "ivy" / "chats.json"
    file.unlink(missing_ok=True)
    yield jupyter
    file.unlink(missing_ok=True)


def platform_status(platform: RunningSandbox) -> str:
    """The status of the form's chat, as its owner sees it."""
    headers = {"Authorization": f"Bearer {OTHER}"}
    body = platform.call("GET", "/v1/sandbox/form-chat/status", headers=headers)[2]
    return str(body["status"])


def rows(body: Any) -> dict[str, Json]:
    """The listed chats by their ids."""
    assert sorted(body) == ["chats", "default"]
    return {row["chat_id"]: row for row in body["chats"]}


def test_chats_are_listed_named_and_forgotten(fresh: RunningJupyter, chat_id: str) -> None:
    """The settings' own chat is listed first; any id may be named, also one that needs quoting."""
    status, headers, body = fresh.call("GET", "ivy/chats")
    assert status == 200
    assert headers["Cache-Control"] == "no-store"
    assert body == {
        "chats": [
            {
                "chat_id": chat_id,
                "name": "",
                "campaign_id": f"campaign-of-{chat_id}",
                "last_used": None,
                "is_default": True,
                "is_local": False,
            }
        ],
        "default": chat_id,
    }
    odd = "team/é ?#1"
    path = f"ivy/chats/{quote(odd, safe='')}"
    status, _, body = fresh.call("PUT", path, {"name": "Odd", "campaign_id": "c-odd"})
    assert status == 200
    assert (rows(body)[odd]["name"], rows(body)[odd]["campaign_id"]) == ("Odd", "c-odd")
    status, _, body = fresh.call("PUT", f"ivy/chats/{chat_id}", {"name": "odd"})
    assert status == 400
    assert "'Odd'" in check_error(body, "UsageError")
    status, _, body = fresh.call("DELETE", path)
    assert status == 200
    assert list(rows(body)) == [chat_id]
    status, _, body = fresh.call("DELETE", path)
    assert status == 400
    check_error(body, "UsageError")


def test_a_default_is_written_and_used_at_once(fresh: RunningJupyter, chat_id: str) -> None:
    """The config file names the chat with its campaign; the panel's default sandbox is its own."""
    fresh.call("PUT", "ivy/chats/next-chat", {"campaign_id": "c-next"})
    status, _, body = fresh.call("POST", "ivy/chats/next-chat/default")
    assert status == 200
    assert body["default"] == "next-chat"
    assert body["notes"] == [
        f"{fresh.home.settings_file} was readable by others; now it is yours alone (mode 0600)."
    ]
    saved = json.loads(fresh.home.settings_file.read_text())["Ivy"]
    assert saved == {"chat_id": "next-chat", "campaign_id": "c-next"}
    assert fresh.default()["chat_id"] == "next-chat"
    # The chat before has kept its campaign, and gets it back.
    fresh.call("POST", f"ivy/chats/{chat_id}/default")
    saved = json.loads(fresh.home.settings_file.read_text())["Ivy"]
    assert saved == {"chat_id": chat_id, "campaign_id": f"campaign-of-{chat_id}"}
    status, _, body = fresh.call("POST", "ivy/chats/never-heard-of/default")
    assert status == 400
    assert "never-heard-of" in check_error(body, "UsageError")


def test_the_account_tells_ids_and_of_keys_that_they_are_there(
    fresh: RunningJupyter, platform: RunningSandbox, chat_id: str
) -> None:
    """Source and address are told, and no part of a key."""
    status, headers, body = fresh.call("GET", "ivy/account")
    assert status == 200
    assert headers["Cache-Control"] == "no-store"
    assert body == {
        "has_key": True,
        "key_source": "environment IVY_API_KEY",
        "chat_id": chat_id,
        "campaign_id": f"campaign-of-{chat_id}",
        "api_url": platform.url,
        "config_file": str(fresh.home.settings_file),
        "has_recoup_key": False,
        "recoup_session_id": "",
    }


def test_an_account_is_saved_when_the_platform_accepts_it(
    fresh: RunningJupyter, platform: RunningSandbox, chat_id: str
) -> None:
    """The new key is used at once; a refused one is told, is not saved, and disturbs nothing."""
    theirs = {"owner": "somebody", "campaign": "form-campaign"}
    platform.control({"tokens": {OTHER: "somebody"}, "chats": {"form-chat": theirs}})
    before = fresh.home.settings_file.read_bytes()
    status, _, body = fresh.call("POST", "ivy/account", {"api_key": WRONG, "chat_id": "form-chat"})
    assert status == 502
    assert "HTTP 401" in check_error(body, "CredentialsError")
    assert fresh.home.settings_file.read_bytes() == before
    assert fresh.default()["chat_id"] == chat_id
    assert fresh.default()["status"]["stale"] is False

    given = {"api_key": OTHER, "chat_id": "form-chat", "campaign_id": "form-campaign"}
    status, _, body = fresh.call("POST", "ivy/account", given)
    assert status == 200, body
    assert (body["has_key"], body["chat_id"], body["campaign_id"]) == (
        *(True, "form-chat", "form-campaign"),
    )
    assert body["key_source"] == f"config file {fresh.home.settings_file}"
    assert "accepts the key" in body["checked"]
    assert any("IVY_API_KEY" in note for note in body["notes"])
    assert json.loads(fresh.home.settings_file.read_text())["Ivy"] == given
    assert stat.S_IMODE(fresh.home.settings_file.stat().st_mode) == 0o600
    assert fresh.default()["chat_id"] == "form-chat"
    fresh.act("create")  # which the key of the environment may not
    until(lambda: platform_status(platform) == "active", "the new key has created the sandbox")
    # An empty key is the one that is there; the form does not know it.
    status, _, body = fresh.call("POST", "ivy/account", {"api_key": "", "campaign_id": "c-2"})
    assert status == 200
    saved = json.loads(fresh.home.settings_file.read_text())["Ivy"]
    assert saved == {**given, "campaign_id": "c-2"}


@pytest.mark.parametrize(
    ("body", "status", "kind", "words"),
    [
        ([OTHER], 400, "UsageError", "JSON object"),
        ({OTHER: "x"}, 400, "UsageError", "not known"),
        ({"api_key": 5}, 400, "UsageError", "api_key"),
        ({"api_key": OTHER, "check": "no"}, 400, "UsageError", "check"),
        ({"api_key": f"{OTHER}\n{OTHER}"}, 409, "SettingError", "api_key"),
        ({"api_key": OTHER, "chat_id": OTHER}, 409, "SettingError", "chat_id"),
        ({"api_key": OTHER, "chat_id": ""}, 409, "MissingSettingError", "chat_id"),
        ({"api_key": OTHER, "chat_id": "x" * 200_000}, 400, "UsageError", "100 kB"),
    ],
)
def test_a_body_that_cannot_be_used_is_refused_without_being_quoted(
    fresh: RunningJupyter, body: Any, status: int, kind: str, words: str
) -> None:
    """The answer says which field is wrong, and nothing is saved."""
    before = fresh.home.settings_file.read_bytes()
    got, _, answer = fresh.call("POST", "ivy/account", body)
    assert got == status, answer
    assert words in check_error(answer, kind)
    assert fresh.home.settings_file.read_bytes() == before


def test_a_key_that_was_sent_is_found_nowhere_but_in_the_config_file(
    fresh: RunningJupyter, platform: RunningSandbox
) -> None:
    """No answer, log line at DEBUG or other file holds it, also after requests that fail."""
    platform.control({"tokens": {OTHER: "somebody"}})
    keys = [OTHER.encode(), WRONG.encode()]
    fresh.call("POST", "ivy/account", {"api_key": WRONG, "chat_id": "c"})
    fresh.call("POST", "ivy/account", {"api_key": OTHER, "chat_id": OTHER})
    request = urllib.request.Request(
        f"{fresh.url}ivy/account",
        b'{"api_key": "' + keys[0] + b'", broken',
        {"Authorization": f"token {TOKEN}", "Content-Type": "application/json"},
        method="POST",
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30)
    with caught.value as refused:
        assert refused.code == 400
        fresh.received.append(refused.read())
    status, _, body = fresh.call("POST", "ivy/account", {"api_key": OTHER, "chat_id": "c-saved"})
    assert status == 200, body
    fresh.call("GET", "ivy/account")
    fresh.sandboxes()
    log = fresh.log.read_bytes()
    assert b"POST /ivy/account" in log
    for key in (*keys, MARKED_KEY.encode()):
        assert not [raw for raw in fresh.received if key in raw]
        assert key not in log
        files = [path for path in fresh.home.path.rglob("*") if path.is_file()]
        holding = [path for path in files if key in path.read_bytes()]
        assert holding == ([fresh.home.settings_file] if key == keys[0] else [])


def test_a_signed_in_browser_needs_its_xsrf_token_to_save(local_jupyter: RunningJupyter) -> None:
    """By cookie alone no page of others can change the account, a name or the default."""
    browser = Browser(local_jupyter)
    assert browser.send("GET", "ivy/account")[0] == 200
    for method, path in (
        *(("POST", "ivy/account"), ("PUT", "ivy/chats/c"), ("DELETE", "ivy/chats/c")),
        ("POST", "ivy/chats/c/default"),
    ):
        status, body = browser.send(method, path)
        assert status == 403
        check_error(body, "Forbidden")
    assert not local_jupyter.home.settings_file.exists()
    status, raw = browser.send("POST", "ivy/account", **{"X-XSRFToken": browser.xsrf})
    assert status == 200
    assert json.loads(raw)["has_key"] is False
