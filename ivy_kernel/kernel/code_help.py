"""Help while code is written: whether it is complete, how it could go on, what a name means."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from IPython.core.inputtransformer2 import TransformerManager

if TYPE_CHECKING:
    from ivy_kernel.models import Json

Ask = Callable[[str, "Json"], Awaitable["Json | None"]]
"""Asks the sandbox, if it is there and idle, for a second at most; ``None`` without an answer."""


class CodeHelp:
    """Answers a front end's questions about code, always at once or nearly so.

    Parameters
    ----------
    ask
        Asks the sandbox a question of the given type and content.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._transformer = TransformerManager()

    def is_complete(self, code: str) -> Json:
        """Answered here (message spec, "Code completeness")."""
        status, indent = self._transformer.check_complete(code)
        reply: Json = {"status": status}
        if status == "incomplete":
            reply["indent"] = " " * (indent or 0)
        return reply

    async def complete(self, code: str, cursor_pos: int) -> Json:
        """Answered by the sandbox, else empty (message spec, "Completion")."""
        nothing = {
            "status": "ok",
            "matches": [],
            "cursor_start": cursor_pos,
            "cursor_end": cursor_pos,
            "metadata": {},
        }
        content = {"code": code, "cursor_pos": cursor_pos}
        return await self._ask("complete_request", content) or nothing

    async def inspect(self, code: str, cursor_pos: int, detail_level: int) -> Json:
        """Answered by the sandbox, else empty (message spec, "Introspection")."""
        nothing = {"status": "ok", "found": False, "data": {}, "metadata": {}}
        content = {"code": code, "cursor_pos": cursor_pos, "detail_level": detail_level}
        return await self._ask("inspect_request", content) or nothing
