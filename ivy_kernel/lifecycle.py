"""The lifecycle of one chat's sandbox: look at it, create it, wait for it, terminate it.

The same code serves the kernel, the magics, the widget, the panel and the command line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ivy_kernel.client import Answer, IvyClient
from ivy_kernel.errors import (
    ApiError,
    MissingSettingError,
    NetworkError,
    NotFoundError,
    NotSentError,
    RateLimitedError,
    SandboxError,
    SandboxFailedError,
)
from ivy_kernel.status import (
    CHANGING_STATES,
    Exchange,
    SandboxStatus,
    monotonic_seconds,
    parse_ivy_create,
    parse_ivy_status,
)

LONGEST_POLL_SECONDS = 1.5
SHORTEST_POLL_SECONDS = 0.2

Progress = Callable[[SandboxStatus], None]
"""Told each status while a sandbox starts."""


class Lifecycle:
    """Our hold on the life of one chat's sandbox.

    Parameters
    ----------
    connect
        Makes the client; awaited when it is first needed, and again after the embedded local
        sandbox has gone away.
    chat_id
        The chat.
    campaign_id, session_id
        What creating needs; empty when unknown.
    start_timeout_seconds
        How long `wait_until_ready` waits.
    local
        Whether it is the embedded local sandbox.
    missing_campaign
        The sentence for a user who creates without a campaign.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[IvyClient]],
        *,
        chat_id: str,
        campaign_id: str,
        session_id: str,
        start_timeout_seconds: float = 900.0,
        local: bool = False,
        missing_campaign: str = "The setting campaign_id has no value.",
    ) -> None:
        self._connect = connect
        self._client: IvyClient | None = None
        self._start_timeout_seconds = start_timeout_seconds
        self._missing_campaign = missing_campaign
        self.chat_id = chat_id
        self.campaign_id = campaign_id
        self.session_id = session_id
        self.local = local

    @property
    def name(self) -> str:
        """What the user calls this sandbox."""
        return "Local sandbox" if self.local else f"Chat {self.chat_id}"

    async def client(self) -> IvyClient:
        """The platform's client."""
        if self._client is None:
            self._client = await self._connect()
        return self._client

    async def aclose(self) -> None:
        """Close the connections; the next call opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def status(self) -> SandboxStatus:
        """Look at the sandbox. Source: ``GET /v1/sandbox/{chatId}/status``."""
        try:
            answer = await (await self.client()).status(self.chat_id)
        except NotSentError:
            if not self.local:
                raise
            # The embedded server ended when it had been idle for long; it is started again.
            await self.aclose()
            answer = await (await self.client()).status(self.chat_id)
        return parse_ivy_status(answer.body, _exchange(answer))

    async def create(self) -> SandboxStatus:
        """Start the sandbox, or join a start under way. Source: ``POST /v1/sandbox/create``.

        Raises
        ------
        MissingSettingError
            Without a campaign.
        """
        if not self.campaign_id:
            raise MissingSettingError(self._missing_campaign, setting="campaign_id")
        client = await self.client()
        answer = await client.create(
            session_id=self.session_id, chat_id=self.chat_id, campaign_id=self.campaign_id
        )
        return parse_ivy_create(answer.body, answer.status_code, _exchange(answer))

    async def wait_until_ready(self, on_progress: Progress | None = None) -> SandboxStatus:
        """Wait for a sandbox that starts.

        Returns the first status that is neither starting nor otherwise changing: ``active``, or an
        end state that the caller must judge.

        Parameters
        ----------
        on_progress
            Told each status.

        Raises
        ------
        SandboxFailedError
            When it failed: says why.
        SandboxError
            When it is still starting after ``start_timeout_seconds``.
        """
        deadline = monotonic_seconds() + self._start_timeout_seconds
        while True:
            pause = LONGEST_POLL_SECONDS
            try:
                status = await self.status()
            except (NetworkError, RateLimitedError) as exc:
                # It may well become ready meanwhile; only the time limit ends the waiting.
                if monotonic_seconds() > deadline:
                    raise
                asked = exc.retry_after_seconds if isinstance(exc, ApiError) else None
                pause = max(pause, asked or 0.0)
            else:
                if on_progress is not None:
                    on_progress(status)
                if status.state == "failed":
                    raise failed_error(self.name, status)
                if status.state not in CHANGING_STATES:
                    return status
                eta = status.eta_remaining_seconds(monotonic_seconds())
                if eta is not None:
                    pause = min(max(eta / 2, SHORTEST_POLL_SECONDS), LONGEST_POLL_SECONDS)
            if monotonic_seconds() + pause > deadline:
                raise SandboxError(
                    f"{self.name} is still starting after {self._start_timeout_seconds:.0f} s; it "
                    f"goes on starting. Run the cell again in a while, or raise the setting "
                    f"start_timeout_seconds."
                )
            await asyncio.sleep(pause)

    async def terminate(self) -> None:
        """Shut the sandbox down. Source: ``POST /v1/sandbox/{chatId}/terminate``.

        A sandbox that is not there counts as terminated. Processes and variables are lost; asking
        the user first is the caller's business.
        """
        client = await self.client()
        try:
            await client.terminate(self.chat_id)
        except NotFoundError:
            if (await self.status()).state == "active":
                raise


def failed_error(name: str, status: SandboxStatus) -> SandboxFailedError:
    """The error for a sandbox that failed."""
    reason = (status.error or "the platform gave no reason").rstrip(".")
    return SandboxFailedError(
        f"{name} failed to start: {reason}. Run %ivy create to try again, or look at the chat on "
        f"the platform."
    )


def _exchange(answer: Answer) -> Exchange:
    return Exchange(answer.sent_monotonic, answer.received_monotonic, answer.server_date)
