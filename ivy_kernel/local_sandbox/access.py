"""Access control: credentials of a request, the rate limit, and the owners of chats."""

from __future__ import annotations

import hmac
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any

from msgspec import UNSET

from ivy_kernel.local_sandbox.environment import ServerContext
from ivy_kernel.local_sandbox.results import ApiError
from ivy_kernel.local_sandbox.sandbox import Sandbox
from ivy_kernel.local_sandbox.workspace import ChatPaths, read_manifest


class RateLimit:
    """A sliding window of requests per owner, as the setting ``rate_limit`` says."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._requests: dict[str, deque[float]] = {}

    def count(self, owner: str) -> None:
        """Count a request.

        Raises
        ------
        ApiError
            429 when there were too many, with ``Retry-After`` as configured.
        """
        rule, clock = self._context.config.rate_limit, self._context.clock
        if rule is None:
            self._requests.clear()
            return
        now = clock.now()
        window = 60.0 if rule.per_seconds is UNSET else float(rule.per_seconds)
        asked = self._requests.setdefault(owner, deque())
        while asked and asked[0] <= now - window:
            asked.popleft()
        if len(asked) < rule.requests:
            asked.append(now)
            return
        wait = math.ceil(asked[0] + window - now) if asked else math.ceil(window)
        forms = {
            "seconds": str(wait),
            "date": formatdate(clock.http_date_seconds() + wait, usegmt=True),
            "none": "",
        }
        retry_after = forms["seconds" if rule.retry_after is UNSET else rule.retry_after]
        raise ApiError(429, "rate limit exceeded", "RATE_LIMITED", retry_after)


LOCAL_OWNER = "local"
"""The owner whose token the server was started with."""

_NOT_ACCEPTED = "authentication required: the credential is missing or not accepted"


def _unauthorized(error: str = _NOT_ACCEPTED) -> ApiError:
    return ApiError(401, error, "UNAUTHORIZED")


class Credentials:
    """The accepted tokens: the local owner's, and those of the setting ``tokens``."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def _owner(self, given: str) -> str:
        """The owner of a token."""
        owner = ""
        accepted = {**self._context.config.tokens, self._context.token: LOCAL_OWNER}
        # Compared in constant time and with every token: the time tells nothing about a guess.
        for token, name in accepted.items():
            if hmac.compare_digest(token.encode(), given.encode(errors="replace")):
                owner = name
        if not owner:
            raise _unauthorized()
        return owner

    def ivy_owner(self, headers: Mapping[str, str], cookie: str, *, bearer_only: bool) -> str:
        """The owner by ``Authorization``, else ``X-Ivy-Api-Key``, else the ``__session`` cookie.

        Raises
        ------
        ApiError
            401. With ``bearer_only``, as on create, the other forms are not read.
        """
        if "Authorization" in headers:
            return self._owner(_bearer(headers["Authorization"]))
        if bearer_only:
            raise _unauthorized("authentication required: send Authorization: Bearer …")
        if "X-Ivy-Api-Key" in headers:
            return self._owner(headers["X-Ivy-Api-Key"])
        if cookie:
            return self._owner(cookie)
        raise _unauthorized()

    def recoup_owner(self, headers: Mapping[str, str]) -> str:
        """The owner by ``x-api-key`` or ``Authorization``, whichever is there, but not both.

        Raises
        ------
        ApiError
            401.
        """
        if "X-Api-Key" in headers and "Authorization" in headers:
            raise _unauthorized("send x-api-key or Authorization, not both")
        if "X-Api-Key" in headers:
            return self._owner(headers["X-Api-Key"])
        if "Authorization" in headers:
            return self._owner(_bearer(headers["Authorization"]))
        raise _unauthorized()


def _bearer(value: str) -> str:
    scheme, _, token = value.strip().partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise _unauthorized("authentication required: Authorization must be 'Bearer …'")
    return token.strip()


Json = dict[str, Any]

# -- whose chats ------------------------------------------------------------------------------
_MAX_ID_CHARS = 256
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
    """Registry of all chats and sessions: the owner, campaign and sandbox of each."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._chats: dict[str, _Chat] = {}
        self._sessions: dict[str, _Session] = {}

    @property
    def sandboxes(self) -> list[Sandbox]:
        """The sandboxes of all chats."""
        return [chat.sandbox for chat in self._chats.values()]

    def _owner_of(self, chat_id: str) -> str | None:
        # The settings speak for chats that were not created yet.
        if chat_id in self._chats:
            return self._chats[chat_id].owner
        return self._context.config.chats.get(chat_id, {}).get("owner")

    def _campaign_of(self, chat_id: str) -> str | None:
        if chat_id in self._chats:
            return self._chats[chat_id].campaign
        return self._context.config.chats.get(chat_id, {}).get("campaign")

    def admit(self, chat_id: str, owner: str) -> None:
        """Refuse a chat that belongs to another owner; one without an owner is open to all.

        Raises
        ------
        ApiError
            403 for another owner's chat.
        """
        if self._owner_of(chat_id) not in (None, owner):
            raise ApiError(403, "you do not own this chat", "FORBIDDEN")

    def sandbox(self, chat_id: str) -> Sandbox | None:
        """The sandbox of a chat, ``None`` when it never had one."""
        chat = self._chats.get(chat_id)
        return chat.sandbox if chat else None

    def sandbox_for_tools(self, chat_id: str) -> Sandbox:
        """The sandbox of a chat, for a tool.

        Raises
        ------
        ApiError
            404 when it never had one.
        """
        sandbox = self.sandbox(chat_id)
        if sandbox is None:
            text = "this chat has no running sandbox; create it first"
            raise ApiError(404, text, "SANDBOX_NOT_FOUND")
        return sandbox

    async def create(self, owner: str, body: Json, tunnel_url: str) -> tuple[int, Json]:
        """Create or resume the sandbox of a chat: HTTP status and answer.

        Raises
        ------
        ApiError
            400 for missing or wrong ids, 403 for another owner's chat or session, 500 and 503 as
            configured.
        """
        session_id, chat_id, campaign_id = (_id(body, name) for name in _IDS)
        self.admit(chat_id, owner)
        if self._campaign_of(chat_id) not in (None, campaign_id):
            text = f"campaignId {campaign_id!r} is not the campaign of this chat"
            raise ApiError(400, text, "CAMPAIGN_MISMATCH")
        if self._session_owner(session_id) not in (None, owner):
            raise ApiError(403, "you do not own this session", "FORBIDDEN")
        # Up to here and in the simulated errors nothing is registered: a refused create leaves no
        # trace.
        error = self._context.config.create_error
        if error == 500:
            text = "the sandbox started but its session could not be stored securely"
            raise ApiError(500, text, "CREATION_FAILED")
        if error == 503:
            text = "the sandbox could not be created for the moment; retry shortly"
            raise ApiError(503, text, "CREATION_UNAVAILABLE", "1")
        chat = self._chats.get(chat_id)
        if chat is None:
            sandbox = self._sandbox(chat_id)
            chat = self._chats[chat_id] = _Chat(owner, campaign_id, sandbox)
        self._sessions[session_id] = _Session(owner, chat.sandbox)
        return await chat.sandbox.create(tunnel_url)

    def _sandbox(self, chat_id: str) -> Sandbox:
        return Sandbox(ChatPaths.of(self._context.root, chat_id), self._context)

    def manifest(self, chat_id: str) -> Json:
        """The files that are registered for a chat, oldest first."""
        return {"files": read_manifest(ChatPaths.of(self._context.root, chat_id).manifest)}

    def _session_owner(self, session_id: str) -> str | None:
        if session_id in self._sessions:
            return self._sessions[session_id].owner
        return self._context.config.sessions.get(session_id)

    def session_status(self, session_id: str, owner: str) -> Json:
        """Recoup's status of a session's sandbox.

        Raises
        ------
        ApiError
            404 when there is no such session, 403 when it is another owner's.
        """
        known = self._session_owner(session_id)
        if known is None:
            raise ApiError(404, "there is no session with this sessionId", "SESSION_NOT_FOUND")
        if known != owner:
            raise ApiError(403, "you do not own this session", "FORBIDDEN")
        session = self._sessions.get(session_id)
        if session is None:
            # The settings name the session, but it never had a sandbox.
            return self._sandbox("").recoup_status()
        return session.sandbox.recoup_status()


def _id(body: Json, name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ApiError(400, f"{name} is missing, or is not a string", "MISSING_ID")
    if len(value) > _MAX_ID_CHARS:
        raise ApiError(400, f"{name} is longer than {_MAX_ID_CHARS} characters", "BAD_ID")
    return value
