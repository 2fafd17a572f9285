"""REST about chats and the account: the list, names, the default, and key and ids for saving.

A key comes in by one request and is in no answer. No sandbox is started here.
"""

from __future__ import annotations

import json
from typing import Any

from jupyter_server.auth.decorator import authorized
from tornado import web

from ivy_kernel.errors import UsageError
from ivy_kernel.models import Json
from ivy_kernel.server_extension.sandboxes import IvyHandler
from ivy_kernel.session.chats import (
    ACCOUNT_SETTINGS,
    account_json,
    change_chat,
    forget_chat,
    list_chats,
    save_account,
    save_default,
)
from ivy_kernel.settings.settings import is_secret

BODY_LIMIT_BYTES = 100_000


class ChatsHandler(IvyHandler):
    """``GET /ivy/chats``."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Send the chats that this person has used, last used first."""
        self.answer(self._chats())

    def _chats(self) -> Json:
        settings = self.registry.live.current()
        default_id = settings.used_chat_id
        rows = [chat.to_json(default_id) for chat in list_chats(settings)]
        return {"chats": rows, "default": default_id or None}

    def body(self, **fields: type) -> dict[str, Any]:
        """Return the body: a JSON object with these fields, none of which must be there.

        Not by ``get_json_body``, which logs a body that is no JSON, with the key that is in it.

        Raises
        ------
        UsageError
            When it is anything else; quotes nothing of it.
        """
        names = ", ".join(fields)
        raw = self.request.body
        try:
            found = json.loads(raw) if len(raw) <= BODY_LIMIT_BYTES else None
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise UsageError(f"The body must be a JSON object of at most 100 kB, with: {names}.")
        if not fields.keys() >= found.keys():
            raise UsageError(f"The body has a field that is not known; there are: {names}.")
        given = {name: value for name, value in found.items() if value is not None}
        for name, value in given.items():
            if not isinstance(value, fields[name]):
                kind = {str: "text", bool: "true or false"}[fields[name]]
                raise UsageError(f"The field {name} must be {kind}.")
        return given


class ChatHandler(ChatsHandler):
    """``PUT`` and ``DELETE /ivy/chats/{chat_id}``."""

    _track_activity = True

    @web.authenticated
    @authorized
    async def put(self, chat_id: str) -> None:
        """Name a chat, or note its campaign; a chat that is not known is added. Send the list."""
        given = self.body(name=str, campaign_id=str)
        # Ids that can be none are refused by the settings' own rules.
        ids = {"chat_id": chat_id, "campaign_id": given.get("campaign_id")}
        checked = self.registry.live.beside(**ids).current()
        if "campaign_id" in given:
            given["campaign_id"] = checked.campaign_id
        change_chat(self.registry.live.current(), checked.chat_id, **given)
        self.answer(self._chats())

    @web.authenticated
    @authorized
    async def delete(self, chat_id: str) -> None:
        """Forget a chat; its sandbox stays. Send the list."""
        forget_chat(self.registry.live.current(), chat_id)
        self.answer(self._chats())


class DefaultChatHandler(ChatsHandler):
    """``POST /ivy/chats/{chat_id}/default``."""

    _track_activity = True

    @web.authenticated
    @authorized
    async def post(self, chat_id: str) -> None:
        """Write a chat into the config file; send the list, and what the user has to know."""
        saved = save_default(self.registry.live, chat_id)
        await self.registry.settings_changed()
        self.answer({**self._chats(), "notes": list(saved.notes)})


class AccountHandler(ChatsHandler):
    """``/ivy/account``."""

    _track_activity = True

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Send what is set: ids, and of a key that it is there."""
        self.answer(account_json(self.registry.live.current()))

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Check new values with the platform, save them if they work, and send what is set then.

        An empty key means the present one, so that a form need not know it.
        """
        given = self.body(**dict.fromkeys(ACCOUNT_SETTINGS, str), check=bool)
        check = given.pop("check", True)
        changes = {n: value for n, value in given.items() if value.strip() or not is_secret(n)}
        saved = await save_account(self.registry.live, changes, check=check)
        await self.registry.settings_changed()
        account = account_json(self.registry.live.current())
        self.answer({**account, "checked": saved.checked, "notes": list(saved.notes)})


ROUTES = [
    (r"/ivy/chats", ChatsHandler),
    (r"/ivy/chats/([^/]+)", ChatHandler),
    (r"/ivy/chats/([^/]+)/default", DefaultChatHandler),
    (r"/ivy/account", AccountHandler),
]
