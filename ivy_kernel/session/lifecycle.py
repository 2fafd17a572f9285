"""The lifecycle of one chat's sandbox: read its status, create it, wait for it, terminate it.

The same code serves the kernel, the magics, the widget, the panel and the command line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from ivy_kernel.api.clients import IvyClient, RecoupClient
from ivy_kernel.api.operations import ApiResponse
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
from ivy_kernel.session.kernel_registry import ResourcesFile, StatusFile
from ivy_kernel.session.start_progress import StartEvidence
from ivy_kernel.status.clock import RequestTiming, monotonic_seconds
from ivy_kernel.status.dialects import (
    join,
    parse_ivy_create,
    parse_ivy_status,
    parse_recoup_status,
)
from ivy_kernel.status.model import CHANGING_STATES, STARTING_STATES, SandboxStatus, State
from ivy_kernel.status.monitor import Monitor, monitor_for
from ivy_kernel.status.polling import DeadlineReader, News

LONGEST_POLL_SECONDS = 1.5
SHORTEST_POLL_SECONDS = 1.0
"""The API asks for a poll "about once per second or two" while a sandbox starts."""
SHORTEST_LOCAL_POLL_SECONDS = 0.2
"""Between two looks at the local sandbox, which starts within a second and belongs to the user."""
DEADLINES_SECONDS = 1.0
"""So long after Ivy's answer Recoup's is waited for, by whoever needs the state above all."""
START_DEADLINES_SECONDS = 0.2
"""Likewise, while a sandbox starts: the next look takes what has come meanwhile."""
PATIENT_DEADLINES_SECONDS = 10.0
"""Likewise, by a user who asked for the status itself."""
_ACCOUNT_WITHOUT_RECOUP = (
    "When it hibernates and expires is not known: Ivy's API does not say. Recoup's does, once "
    "recoup_session_id and recoup_api_key are set."
)

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
        Recoup's client and session, which tell deadlines; ``None`` when the settings name none.
    recoup_is_optional
        Whether that Recoup does not know the session is nothing to be told.
    key_fingerprint
        Returns a value that is equal as long as the same credential is in use; see `Monitor`.
    keep_alive_seconds
        Interval of the requests that keep the local sandbox while a notebook is open.

    Attributes
    ----------
    resources
        What the sandbox uses, as its agent last told some notebook.
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
        recoup_is_optional: bool = False,
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
        self._deadlines = (
            None
            if connect_recoup is None
            else DeadlineReader(self._read_recoup, is_optional=recoup_is_optional)
        )
        self._start = StartEvidence()
        # A session id of our own making names no other sandbox than the chat does.
        self._named_recoup_session_id = "" if recoup_is_optional else recoup_session_id
        self._file = StatusFile(api_url, chat_id, self._named_recoup_session_id)
        self.resources = ResourcesFile(api_url, chat_id)
        self._told: SandboxStatus | None = None
        self._ivy_state: State | None = None
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
        return (self._api_url, self.chat_id, self._named_recoup_session_id)

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
                    key_fingerprint=self._key_fingerprint,
                    news_source=self,
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
        await self._close_recoup()
        if client is not None:
            await client.aclose()

    async def drop_connections(self) -> None:
        """Close the connections but keeps the Ivy client; the next request opens new ones."""
        if self._client is not None:
            await self._client.connection.aclose()
        await self._close_recoup()

    async def _close_recoup(self) -> None:
        recoup, self._recoup = self._recoup, None
        if self._deadlines is not None:
            await self._deadlines.aclose()
            self._deadlines.ask_again()
        if recoup is not None:
            await recoup.aclose()

    # The status ----------------------------------------------------------------------------------
    async def status(
        self, *, retry: bool = True, deadlines_seconds: float = DEADLINES_SECONDS
    ) -> SandboxStatus:
        """Read the status of the sandbox, for a cell or a user.

        Source: ``GET /v1/sandbox/{chatId}/status``, ``GET /api/sandbox/status``.

        Parameters
        ----------
        retry
            Whether to retry on failure; a caller that polls anyway says no.
        deadlines_seconds
            How long after Ivy's answer Recoup's is waited for.
        """
        try:
            status = await self._read(retry, deadlines_seconds)
        except (CredentialsError, NotSentError):
            if not self.local:
                raise
            # Its server has ended, and perhaps another one has its address; `client` starts it.
            await self._settled_local_server()
            await self.aclose()
            status = await self._read(retry, deadlines_seconds)
        return self._share(status)

    async def look(self) -> SandboxStatus:
        """Read the state once, to see whether cells can still run there. Starts nothing.

        Recoup's deadlines are not waited for: its session may be inactive beside a sandbox that
        runs.
        """
        return self._share(await self._read_passively(deadlines_seconds=0.0))

    def _share(self, status: SandboxStatus) -> SandboxStatus:
        """Have all watchers know a status that was read for a cell or a user."""
        self._pass_on(status)
        self._tell_others(status)
        return status

    async def read_status(self) -> SandboxStatus:
        """Read the status once for the monitor.

        Reading starts nothing: without its server, the local sandbox is not there.
        """
        # Not by `_share`: the monitor would take each of its own answers for an action of ours,
        # and would never slow down.
        status = await self._read_passively()
        self._tell_others(status)
        return status

    async def _read_passively(
        self, *, deadlines_seconds: float = DEADLINES_SECONDS
    ) -> SandboxStatus:
        """Return the status; without a local server, the local sandbox is not there.

        A refused connection on this machine means that it has ended.
        """
        if not self.local:
            return await self._read(deadlines_seconds=deadlines_seconds)
        if local_server.find() is None:
            await self.aclose()
            return _no_sandbox()
        try:
            return await self._read(deadlines_seconds=deadlines_seconds)
        except (CredentialsError, NotSentError):
            found = await self._settled_local_server()
            await self.aclose()  # our client may be for a server that was replaced since
            if found is None:
                return _no_sandbox()
            return await self._read(deadlines_seconds=deadlines_seconds)

    async def _settled_local_server(self) -> local_server.LocalServer | None:
        """Return the server that runs; waits for one that has closed its port to end, or be new."""
        before = local_server.find()
        deadline = monotonic_seconds() + LOCAL_END_SECONDS
        while (found := local_server.find()) == before and found is not None:
            if monotonic_seconds() > deadline or local_server.listens(found):
                break
            await asyncio.sleep(SHORTEST_LOCAL_POLL_SECONDS / 4)
        return found

    async def _read(
        self, retry: bool = False, deadlines_seconds: float = DEADLINES_SECONDS
    ) -> SandboxStatus:
        """Ask both APIs at the same time, and join what they say."""
        client = await self.client()
        if self._deadlines is not None:
            self._deadlines.begin()
        answer = await client.status(self.chat_id, retry=retry)
        ivy = parse_ivy_status(answer.body, _timing(answer))
        if self._deadlines is not None:
            if ivy.state != self._ivy_state:  # what Recoup did not know before it may know now
                self._ivy_state = ivy.state
                self._deadlines.ask_again()
                self._deadlines.begin()
            known = await self._deadlines.result(deadlines_seconds)
            ivy = join(ivy, known.status, reason=known.reason, retry_seconds=known.retry_seconds)
        elif not self.local and ivy.state == "active":
            ivy = replace(ivy, unknown=(_ACCOUNT_WITHOUT_RECOUP,))
        # After the answer: a create or terminate of another process while it was under way counts.
        if (news := self.news()) is not None:
            self._pass_on(news.status)
        return self._start.judged(ivy)

    async def _read_recoup(self) -> SandboxStatus:
        if self._recoup is None and self._connect_recoup is not None:
            self._recoup = await self._connect_recoup()
        assert self._recoup is not None  # noqa: S101 - without Recoup there is no reader
        answer = await self._recoup.status(self._recoup_session_id)
        return parse_recoup_status(answer.body, _timing(answer))

    def _tell_others(self, status: SandboxStatus, *, is_own_action: bool = False) -> None:
        """Pass a status on to the user's other processes, if it is news or a start goes on."""
        told, now = self._told, monotonic_seconds()
        if is_own_action or told is None or not status.says_the_same_as(told, now):
            pass
        elif status.state not in STARTING_STATES:
            return
        self._told = status
        self._file.write(status, is_own_action=is_own_action)

    def news(self) -> News | None:
        """Return what another process has told of this sandbox since the last look.

        Called by the monitor, every half second while there is a watcher.
        """
        news = self._file.news()
        if news is not None:
            self._told = news.status
            self._start.heard(news)
            if news.is_action and self._deadlines is not None:
                self._deadlines.ask_again()
        return news

    def refresh_soon(self) -> None:
        """Make the monitor poll as soon as it may, because something may have changed."""
        self._pass_on(None)

    def _pass_on(self, status: SandboxStatus | None, *, is_polled: bool = True) -> None:
        """Hand the monitor a status that did not come by it, or have it ask for one."""
        if self._monitor is None or self._monitor.closed:
            return
        if status is None:
            self._monitor.refresh_soon()
        else:
            self._monitor.accept(status, is_polled=is_polled)

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
        status = parse_ivy_create(answer.body, answer.status_code, _timing(answer))
        self._start.created(status)
        if self._deadlines is not None:
            self._deadlines.ask_again()
        self._pass_on(status, is_polled=False)
        self._tell_others(status, is_own_action=True)
        return status

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
                status = await self.status(deadlines_seconds=START_DEADLINES_SECONDS)
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
                    least = SHORTEST_LOCAL_POLL_SECONDS if self.local else SHORTEST_POLL_SECONDS
                    pause = min(max(eta / 2, least), LONGEST_POLL_SECONDS)
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
        self._start.forget()
        try:
            await client.terminate(self.chat_id)
        except NotFoundError:
            if (await self.status()).state == "active":
                raise  # a 404 for a sandbox that is there: it was not terminated
        finally:
            self._told = None
            self.refresh_soon()
            self._file.write(None, is_own_action=True)


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
