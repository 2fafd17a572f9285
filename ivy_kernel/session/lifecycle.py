"""The lifecycle of one chat's sandbox: read its status, create it, wait for it, terminate it.

The same code serves the kernel, the magics, the widget, the panel and the command line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from ivy_kernel.api.clients import IvyClient, RecoupClient
from ivy_kernel.api.connection import ApiResponse
from ivy_kernel.errors import (
    ApiError,
    CredentialsError,
    IvyError,
    MissingSettingError,
    NetworkError,
    NotFoundError,
    NotSentError,
    RateLimitedError,
    SandboxError,
    SandboxFailedError,
)
from ivy_kernel.session import local_server
from ivy_kernel.status.clock import RequestTiming, monotonic_seconds
from ivy_kernel.status.dialects import parse_ivy_create, parse_ivy_status, parse_recoup_status
from ivy_kernel.status.model import CHANGING_STATES, SandboxStatus
from ivy_kernel.status.monitor import Monitor, monitor_for

LONGEST_POLL_SECONDS = 1.5
"""The API asks for a poll "about once per second or two" while a sandbox starts."""
SHORTEST_POLL_SECONDS = 0.2

LOCAL_END_SECONDS = 3.0
"""A local server that has closed its port may clean up for so long before it is gone."""

LOCAL_KEEP_ALIVE_SECONDS = 300.0

Progress = Callable[[SandboxStatus], None]
"""Called with each status while a sandbox starts."""


class Lifecycle:
    """Reads the status of one chat's sandbox, creates it and terminates it.

    Parameters
    ----------
    connect
        Makes the client; awaited when it is first needed, and again after the local sandbox server
        has ended.
    chat_id
        The chat.
    campaign_id, session_id
        The ids that creating needs; empty when unknown.
    start_timeout_seconds
        How long `wait_until_ready` waits.
    local
        Whether it is the local sandbox.
    missing_campaign
        The sentence for a user who creates without a campaign.
    api_url
        The API's address, which with the chat identifies the sandbox; ``local`` for the local
        sandbox.
    connect_recoup, recoup_session_id
        Recoup's client and session, when its status, with deadlines, is shown instead of Ivy's.
    key_fingerprint
        Returns a value that is equal as long as the same credential is in use; see `Monitor`.
    keep_alive_seconds
        Interval of the requests that keep the local sandbox while a notebook is open.
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
        api_url: str = "",
        connect_recoup: Callable[[], Awaitable[RecoupClient]] | None = None,
        recoup_session_id: str = "",
        key_fingerprint: Callable[[], object] | None = None,
        keep_alive_seconds: float = LOCAL_KEEP_ALIVE_SECONDS,
    ) -> None:
        self._connect = connect
        self._client: IvyClient | None = None
        self._connecting = asyncio.Lock()
        self.start_timeout_seconds = start_timeout_seconds
        self.keep_alive_seconds = keep_alive_seconds
        self._missing_campaign = missing_campaign
        self._api_url = api_url
        self._connect_recoup = connect_recoup
        self._recoup_session_id = recoup_session_id
        self._recoup: RecoupClient | None = None
        self._key_fingerprint = key_fingerprint
        self._monitor: Monitor | None = None
        self.chat_id = chat_id
        self.campaign_id = campaign_id
        self.session_id = session_id
        self.local = local

    @property
    def name(self) -> str:
        """The name of this sandbox that the user sees."""
        return "Local sandbox" if self.local else f"Chat {self.chat_id}"

    @property
    def key(self) -> tuple[str, str, str]:
        """Identifies this sandbox in this process; holds no credential."""
        return (self._api_url, self.chat_id, self._recoup_session_id)

    @property
    def registry_fields(self) -> dict[str, str]:
        """The sandbox as `KernelRegistration.register` takes it."""
        return {
            "api_url": self._api_url,
            "chat_id": self.chat_id,
            "campaign_id": self.campaign_id,
        }

    def monitor(self) -> Monitor:
        """Return the one monitor of this sandbox in this process, for any number of watchers.

        To be called on the event loop that the monitor shall live on.
        """
        if self._monitor is None or self._monitor.closed:
            self._monitor = monitor_for(
                self.key,
                lambda: Monitor(
                    self.read_status,
                    dialect="recoup" if self._connect_recoup else "ivy",
                    key_fingerprint=self._key_fingerprint,
                ),
            )
        return self._monitor

    async def client(self) -> IvyClient:
        """Return the platform's client; connects when there is none."""
        async with self._connecting:  # two callers at once must not connect twice
            if self._client is None:
                self._client = await self._connect()
            return self._client

    async def aclose(self) -> None:
        """Close the clients; the next call makes new ones."""
        client, self._client = self._client, None
        recoup, self._recoup = self._recoup, None
        if client is not None:
            await client.aclose()
        if recoup is not None:
            await recoup.aclose()

    async def drop_connections(self) -> None:
        """Close the connections but keeps the Ivy client; the next request opens new ones."""
        if self._client is not None:
            await self._client.connection.aclose()
        recoup, self._recoup = self._recoup, None
        if recoup is not None:
            await recoup.aclose()

    async def status(self, *, retry: bool = True) -> SandboxStatus:
        """Read the status of the sandbox. Source: ``GET /v1/sandbox/{chatId}/status``.

        Parameters
        ----------
        retry
            Whether to retry on failure; a caller that polls anyway says no.
        """
        try:
            return self._share(await self._ivy_status(retry=retry))
        except (CredentialsError, NotSentError):
            if not self.local:
                raise
            # Its server has ended, and perhaps another one has its address; `client` starts it.
            await self._settled_local_server()
            await self.aclose()
            return self._share(await self._ivy_status(retry=retry))

    async def look(self) -> SandboxStatus:
        """Read Ivy's status once, to see whether cells can still run there. Starts nothing.

        Not Recoup's: a Recoup session may be inactive beside an Ivy sandbox that runs.
        """
        read = partial(self._ivy_status, retry=False)
        return self._share(await (self._of_local_server(read) if self.local else read()))

    async def read_status(self) -> SandboxStatus:
        """Read the status once for the monitor: Recoup's where that is set up, else Ivy's.

        Reading starts nothing: without its server, the local sandbox is not there.
        """
        if self.local:
            return await self._of_local_server(self._read_status)
        return await self._read_status()

    async def _of_local_server(self, read: Callable[[], Awaitable[SandboxStatus]]) -> SandboxStatus:
        """Return what is read from the local server; without one, the local sandbox is not there.

        A refused connection on this machine means that it has ended.
        """
        if local_server.find() is None:
            await self.aclose()
            return _no_sandbox()
        try:
            return await read()
        except (CredentialsError, NotSentError):
            found = await self._settled_local_server()
            await self.aclose()  # our client may be for a server that was replaced since
            return _no_sandbox() if found is None else await read()

    async def _settled_local_server(self) -> local_server.LocalServer | None:
        """Return the server that runs; waits for one that has closed its port to end, or be new."""
        before = local_server.find()
        deadline = monotonic_seconds() + LOCAL_END_SECONDS
        while (found := local_server.find()) == before and found is not None:
            if monotonic_seconds() > deadline or local_server.listens(found):
                break
            await asyncio.sleep(SHORTEST_POLL_SECONDS / 4)
        return found

    async def _ivy_status(self, *, retry: bool) -> SandboxStatus:
        answer = await (await self.client()).status(self.chat_id, retry=retry)
        return parse_ivy_status(answer.body, _timing(answer))

    async def _read_status(self) -> SandboxStatus:
        # Not by `_share`: the monitor would take each of its own answers for an action of ours,
        # and would never slow down.
        if self._connect_recoup is None:
            return await self._ivy_status(retry=False)
        if self._recoup is None:
            self._recoup = await self._connect_recoup()
        answer = await self._recoup.status(self._recoup_session_id)
        return parse_recoup_status(answer.body, _timing(answer))

    def _share(self, status: SandboxStatus) -> SandboxStatus:
        """Pass on to the monitor a status that another request has brought."""
        if self._monitor is not None and not self._monitor.closed:
            # Ivy's status has no deadlines: beside Recoup's it would make them come and go.
            if self._connect_recoup is None:
                self._monitor.accept(status)
            else:
                self._monitor.refresh_soon()
        return status

    def refresh_soon(self) -> None:
        """Make the monitor poll as soon as it may, because something may have changed."""
        if self._monitor is not None and not self._monitor.closed:
            self._monitor.refresh_soon()

    async def create(self) -> SandboxStatus:
        """Start the sandbox, or joins a start under way. Source: ``POST /v1/sandbox/create``.

        Raises
        ------
        MissingSettingError
            Without a campaign.
        """
        if not self.campaign_id:
            raise MissingSettingError(self._missing_campaign, setting="campaign_id")
        client = await self.client()
        try:
            answer = await client.create(
                session_id=self.session_id, chat_id=self.chat_id, campaign_id=self.campaign_id
            )
        except IvyError:
            self.refresh_soon()  # it may have been created all the same
            raise
        return self._share(parse_ivy_create(answer.body, answer.status_code, _timing(answer)))

    async def wait_until_ready(self, on_progress: Progress | None = None) -> SandboxStatus:
        """Wait for a sandbox that starts.

        Returns the first status that is neither starting nor otherwise changing: ``active``, or an
        end state that the caller must judge.

        Parameters
        ----------
        on_progress
            Called with each status.

        Raises
        ------
        SandboxFailedError
            When it failed: says why.
        SandboxError
            When it is still starting after ``start_timeout_seconds``.
        """
        deadline = monotonic_seconds() + self.start_timeout_seconds
        while True:
            pause = LONGEST_POLL_SECONDS
            try:
                status = await self.status()
            except (NetworkError, RateLimitedError) as exc:
                # It may well become ready meanwhile; only the time limit ends the wait.
                if monotonic_seconds() > deadline:
                    raise
                asked = exc.retry_after_seconds if isinstance(exc, ApiError) else None
                pause = max(pause, asked or 0.0)
            else:
                if on_progress is not None and status.state in CHANGING_STATES:
                    on_progress(status)
                if status.state == "failed":
                    raise failed_error(self.name, status)
                if status.state not in CHANGING_STATES:
                    return status
                eta = status.eta_remaining_seconds(monotonic_seconds())
                if eta is not None:
                    # Half of the estimate: close to the end the waits get short.
                    pause = min(max(eta / 2, SHORTEST_POLL_SECONDS), LONGEST_POLL_SECONDS)
            if monotonic_seconds() + pause > deadline:
                raise SandboxError(
                    f"{self.name} is still starting after {self.start_timeout_seconds:.0f} s; it "
                    f"goes on starting. Run the cell again in a while, or raise the setting "
                    f"start_timeout_seconds."
                )
            await asyncio.sleep(pause)

    async def terminate(self) -> None:
        """Shut the sandbox down. Source: ``POST /v1/sandbox/{chatId}/terminate``.

        A sandbox that is not there counts as terminated. Processes and variables are lost; asking
        the user first is up to the caller.
        """
        client = await self.client()
        try:
            await client.terminate(self.chat_id)
        except NotFoundError:
            if (await self.status()).state == "active":
                raise  # a 404 for a sandbox that is there: it was not terminated
        finally:
            self.refresh_soon()


def failed_error(name: str, status: SandboxStatus) -> SandboxFailedError:
    """Return the error for a sandbox that failed."""
    reason = (status.error or "the platform gave no reason").rstrip(".")
    return SandboxFailedError(
        f"{name} failed to start: {reason}. Run %ivy create to try again, or look at the chat on "
        f"the platform."
    )


def _no_sandbox() -> SandboxStatus:
    """Return the status of a local sandbox whose server does not run."""
    now = monotonic_seconds()
    return SandboxStatus(
        state="none", dialect="ivy", received_monotonic=now, described_monotonic=now
    )


def _timing(answer: ApiResponse) -> RequestTiming:
    return RequestTiming(answer.sent_monotonic, answer.received_monotonic, answer.server_date)
