"""Requests of the control channel that the kernel in the sandbox answers: debugger and usage."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ivy_kernel.kernel.cells import CellRunner
    from ivy_kernel.models import Json

USAGE_SECONDS = 1.0
DEBUG_SECONDS = 30.0

Handler = Callable[[Any, Any, Any], Awaitable[None]]
"""Takes the stream to answer on, who asks, and the request; as ipykernel's handlers do."""


class ControlRequests:
    """Handlers for ipykernel, which calls them on the control thread.

    Parameters
    ----------
    runner
        Gives the runner, once there is one.
    main_loop
        Gives the loop that the sandbox is spoken to on, once it runs.
    send
        jupyter_client's ``session.send``.
    own_usage
        Answers a ``usage_request`` for this process.
    """

    def __init__(
        self,
        *,
        runner: Callable[[], CellRunner | None],
        main_loop: Callable[[], asyncio.AbstractEventLoop | None],
        send: Callable[..., Any],
        own_usage: Handler,
    ) -> None:
        self._runner = runner
        self._main_loop = main_loop
        self._send = send
        self._own_usage = own_usage
        self._answering: set[asyncio.Future[None]] = set()

    async def debug_request(self, stream: Any, ident: Any, parent: Json) -> None:
        """The debugger of the kernel in the sandbox (message spec, "Debug request")."""
        self._beside(self._debug(stream, ident, parent))

    async def usage_request(self, stream: Any, ident: Any, parent: Json) -> None:
        """Memory and processor of the kernel in the sandbox, or of this process."""
        self._beside(self._usage(stream, ident, parent))

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Answer later, without holding up the channel: a shutdown may be the next message."""
        task = asyncio.ensure_future(work)
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _debug(self, stream: Any, ident: Any, parent: Json) -> None:
        runner = self._runner()
        has_one = runner is not None and "debugger" in runner.features
        content = await self._forwarded(parent, DEBUG_SECONDS) if has_one else None
        if not content:
            from ivy_kernel.kernel.no_debugger import answer_without_debugger

            content = answer_without_debugger(parent["content"])
        self._send(stream, "debug_reply", content, parent, ident)

    async def _usage(self, stream: Any, ident: Any, parent: Json) -> None:
        content = await self._forwarded(parent, USAGE_SECONDS)
        if content is None:
            await self._own_usage(stream, ident, parent)
        else:
            self._send(stream, "usage_reply", content, parent, ident)

    async def _forwarded(self, parent: Json, seconds: float) -> Json | None:
        """The sandbox's answer to a request; ``None`` without one."""
        runner, loop = self._runner(), self._main_loop()
        agent = runner.agent if runner is not None else None
        if agent is None or loop is None:
            return None
        work = asyncio.run_coroutine_threadsafe(
            agent.control(parent["header"], parent["content"]), loop
        )
        with suppress(Exception):
            return await asyncio.wait_for(asyncio.wrap_future(work), seconds)
        return None
