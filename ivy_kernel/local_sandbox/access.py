"""Owners, campaigns and sessions of chats, and the sandbox of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ivy_kernel.local_sandbox.errors import Refusal
from ivy_kernel.local_sandbox.host import Host
from ivy_kernel.local_sandbox.place import Place
from ivy_kernel.local_sandbox.sandbox import Sandbox
from ivy_kernel.local_sandbox.workspace import read_manifest

Json = dict[str, Any]

_LONGEST_ID = 256
_IDS = ("sessionId", "chatId", "campaignId")


@dataclass
class _Chat:
    owner: str
    campaign: str
    sandbox: Sandbox


@dataclass
class _Session:
    owner: str
    sandbox: Sandbox


class Chats:
    """All chats that the server knows.

    Parameters
    ----------
    host
        The surroundings.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._root = host.root
        self._config = host.config
        self._chats: dict[str, _Chat] = {}
        self._sessions: dict[str, _Session] = {}

    @property
    def sandboxes(self) -> list[Sandbox]:
        """The sandboxes of all chats."""
        return [chat.sandbox for chat in self._chats.values()]

    def _owner_of(self, chat_id: str) -> str | None:
        if chat_id in self._chats:
            return self._chats[chat_id].owner
        return self._config().chats.get(chat_id, {}).get("owner")

    def _campaign_of(self, chat_id: str) -> str | None:
        if chat_id in self._chats:
            return self._chats[chat_id].campaign
        return self._config().chats.get(chat_id, {}).get("campaign")

    def admit(self, chat_id: str, owner: str) -> None:
        """Let only the owner of a chat in.

        Raises
        ------
        Refusal
            403 for a chat that is somebody else's.
        """
        if self._owner_of(chat_id) not in (None, owner):
            raise Refusal(403, "you do not own this chat", "FORBIDDEN")

    def sandbox(self, chat_id: str) -> Sandbox | None:
        """The sandbox of a chat, ``None`` when it never had one."""
        chat = self._chats.get(chat_id)
        return chat.sandbox if chat else None

    def sandbox_for_tools(self, chat_id: str) -> Sandbox:
        """The sandbox of a chat, for a tool.

        Raises
        ------
        Refusal
            404 when it never had one.
        """
        sandbox = self.sandbox(chat_id)
        if sandbox is None:
            text = "this chat has no running sandbox; create it first"
            raise Refusal(404, text, "SANDBOX_NOT_FOUND")
        return sandbox

    async def create(self, owner: str, body: Json, tunnel_url: str) -> tuple[int, Json]:
        """Create or resume the sandbox of a chat: HTTP status and answer.

        Raises
        ------
        Refusal
            400 for missing or wrong ids, 403 for another's chat or session, 500 and 503 as
            configured.
        """
        session_id, chat_id, campaign_id = (_id(body, name) for name in _IDS)
        self.admit(chat_id, owner)
        if self._campaign_of(chat_id) not in (None, campaign_id):
            text = f"campaignId {campaign_id!r} is not the campaign of this chat"
            raise Refusal(400, text, "CAMPAIGN_MISMATCH")
        if self._session_owner(session_id) not in (None, owner):
            raise Refusal(403, "you do not own this session", "FORBIDDEN")
        error = self._config().create_error
        if error == 500:
            text = "the sandbox started but its session could not be stored securely"
            raise Refusal(500, text, "CREATION_FAILED")
        if error == 503:
            text = "the sandbox could not be created for the moment; retry shortly"
            raise Refusal(503, text, "CREATION_UNAVAILABLE", "1")
        chat = self._chats.get(chat_id)
        if chat is None:
            sandbox = self._sandbox(chat_id)
            chat = self._chats[chat_id] = _Chat(owner, campaign_id, sandbox)
        self._sessions[session_id] = _Session(owner, chat.sandbox)
        return await chat.sandbox.create(tunnel_url)

    def _sandbox(self, chat_id: str) -> Sandbox:
        return Sandbox(Place.of(self._root, chat_id), self._host)

    def manifest(self, chat_id: str) -> Json:
        """The files that are registered for a chat, oldest first."""
        return {"files": read_manifest(Place.of(self._root, chat_id).manifest)}

    def _session_owner(self, session_id: str) -> str | None:
        if session_id in self._sessions:
            return self._sessions[session_id].owner
        return self._config().sessions.get(session_id)

    def session_status(self, session_id: str, owner: str) -> Json:
        """Recoup's status of a session's sandbox.

        Raises
        ------
        Refusal
            404 when there is no such session, 403 when it is another's.
        """
        known = self._session_owner(session_id)
        if known is None:
            raise Refusal(404, "there is no session with this sessionId", "SESSION_NOT_FOUND")
        if known != owner:
            raise Refusal(403, "you do not own this session", "FORBIDDEN")
        session = self._sessions.get(session_id)
        if session is None:
            return self._sandbox("").recoup_status()
        return session.sandbox.recoup_status()


def _id(body: Json, name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value.strip():
        raise Refusal(400, f"{name} is missing, or is not a string", "MISSING_ID")
    if len(value) > _LONGEST_ID:
        raise Refusal(400, f"{name} is longer than {_LONGEST_ID} characters", "BAD_ID")
    return value
