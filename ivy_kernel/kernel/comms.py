"""The front end's way to the comms of the sandbox and of this process.

Source: message spec, "Custom messages".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ivy_kernel.errors import IvyError, NoSandboxError
from ivy_kernel.kernel.current_session import CurrentSession
from ivy_kernel.kernel.local_comms import LocalComms
from ivy_kernel.models import Json
from ivy_kernel.routes.agent_cells import AgentCells

INFO_SECONDS = 5.0
"""How long the sandbox may take to list its comms where they are known here too."""
INFO_UNSURE_SECONDS = 25.0
"""The same where they are not: a cell would not be quicker there, and widgets would be lost."""


class Comms:
    """Hands a front end's comm messages to where the comm is, and knows which there are.

    Parameters
    ----------
    local
        The comms of this process.
    current
        The session, whose sandbox has the others.
    is_busy
        Whether a cell is under way.
    flush
        Returns when all that the sandbox has said so far is shown.
    """

    def __init__(
        self,
        local: LocalComms,
        current: CurrentSession,
        *,
        is_busy: Callable[[], bool],
        flush: Callable[[], Awaitable[None]],
    ) -> None:
        self._local = local
        self._current = current
        self._is_busy = is_busy
        self._flush = flush

    def take_here(self, request: Json) -> bool:
        """Handle a message, if it is for a comm of this process."""
        return self._local.take(request)

    async def send(self, request: Json) -> None:
        """Hand a message over; returns when the sandbox's kernel is done with it.

        Raises
        ------
        IvyError
            When it did not reach the sandbox.
        """
        agent = self._agent
        if agent is None:
            return
        self._current.comms.sent(request)
        buffers = tuple(bytes(buffer) for buffer in request.get("buffers", ()))
        await agent.send_comm(
            request["header"], request["content"], request.get("metadata", {}), buffers
        )
        await self._flush()

    @property
    def _agent(self) -> AgentCells | None:
        session = self._current.session
        return session.agent if session is not None else None

    @property
    def must_ask(self) -> bool:
        """Whether only the sandbox knows all its comms, so that it must be idle to tell."""
        return self._agent is not None and not self._current.comms.is_complete

    async def info(self, content: Json) -> Json:
        """The open comms, by id (message spec, "Comm info").

        Parameters
        ----------
        content
            Of the request.
        """
        target_name = content.get("target_name")
        there = await self._info_there(content, target_name)
        return {**there, **self._local.info(target_name)}

    async def _info_there(self, content: Json, target_name: str | None) -> Json:
        session, comms = self._current.session, self._current.comms
        if session is None or session.agent is None:
            return {}
        answer = None
        try:
            if not self._is_busy():
                question = session.ask("comm_info_request", content)
                seconds = INFO_SECONDS if comms.is_complete else INFO_UNSURE_SECONDS
                answer = await asyncio.wait_for(question, seconds)
        except NoSandboxError:
            return {}  # a page that is told of widgets asks for their state, which would wake it
        except (asyncio.TimeoutError, IvyError):
            pass  # it is slow, or out of reach for the moment
        if answer is None:
            return comms.info(target_name)
        found: Json = answer.get("comms", {})
        if not target_name:
            comms.listed(found)
        return found
