"""The event stream: who pays for it, and how it begins and ends."""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Callable

import httpx
from jupyter_server_driver import TOKEN, RunningJupyter, ServerHome, running_jupyter
from sandbox_server import RunningSandbox, until
from test_server_actions import state_of

COUNT_SECONDS = 4.5


def looks_at(platform: RunningSandbox) -> int:
    """How often the platform was asked for a status."""
    requests: dict[str, int] = platform.counters()["requests"]
    return sum(number for route, number in requests.items() if route.endswith("/status"))


def test_the_stream_says_how_it_wants_to_be_treated(jupyter: RunningJupyter) -> None:
    """Its headers keep caches and buffering proxies away, and the first event has all sandboxes."""
    with jupyter.events() as events:
        assert events.headers["Content-Type"] == "text/event-stream"
        assert events.headers["Cache-Control"] == "no-cache"
        assert events.headers["X-Accel-Buffering"] == "no"
        _, sandboxes = events.until(bool, "the first list came")
        listed = jupyter.default()
        for name in set(listed) - {"status"}:
            assert sandboxes[0][name] == listed[name]


def test_many_tabs_cost_one_request_per_interval(
    jupyter: RunningJupyter, platform: RunningSandbox, changed: Callable[..., None]
) -> None:
    """Ten listeners and as many polls of the list cause no more requests than one listener."""
    changed(provision_seconds={"compute": 60.0, "mount": 60.0})
    jupyter.act("create")
    with contextlib.ExitStack() as stack:
        tabs = [stack.enter_context(jupyter.events()) for _ in range(10)]
        for tab in tabs:
            tab.until(lambda found: state_of(found) == "provisioning", "the start was seen")
        began = time.monotonic()
        before = looks_at(platform)
        deadline = began + COUNT_SECONDS
        until(
            lambda: [jupyter.sandboxes() for _ in tabs] and time.monotonic() > deadline,
            "the time has passed",
            COUNT_SECONDS + 10,
        )
        asked = looks_at(platform) - before
        elapsed_seconds = time.monotonic() - began
        # The shortest interval, while a sandbox starts, is 1.5 s.
        assert 2 <= asked <= elapsed_seconds / 1.5 + 1
        jupyter.act("terminate")
        for tab in tabs:
            until(lambda tab=tab: state_of(tab.sandboxes) != "provisioning", "all were told", 20)


def test_without_listeners_nothing_is_asked(
    jupyter: RunningJupyter, platform: RunningSandbox, changed: Callable[..., None]
) -> None:
    """Soon after the last tab has gone the platform is left in peace, even while it starts one."""
    changed(provision_seconds={"compute": 60.0, "mount": 60.0})
    jupyter.act("create")
    with jupyter.events() as events:
        events.until(lambda found: state_of(found) == "provisioning", "the start was seen")
    quiet_since, asked = time.monotonic(), looks_at(platform)

    def is_quiet() -> bool:
        nonlocal quiet_since, asked
        if looks_at(platform) != asked:
            quiet_since, asked = time.monotonic(), looks_at(platform)
        return time.monotonic() - quiet_since > 3.0  # twice the interval

    until(is_quiet, "nothing was asked", 30)


def test_a_compressed_stream_is_not_held_back(jupyter: RunningJupyter) -> None:
    """A client that accepts gzip, as browsers do, gets the first event as soon as any other."""
    headers = {"Authorization": f"token {TOKEN}", "Accept-Encoding": "gzip"}
    began = time.monotonic()
    with (
        httpx.Client(trust_env=False, timeout=20) as client,
        client.stream("GET", f"{jupyter.url}ivy/events", headers=headers) as answer,
    ):
        raw = b""
        decoder = zlib.decompressobj(wbits=31)
        is_packed = answer.headers.get("content-encoding") == "gzip"
        for chunk in answer.iter_raw():
            raw += decoder.decompress(chunk) if is_packed else chunk
            if b"event: sandboxes" in raw and raw.endswith(b"\n\n"):
                break
        # What is held back comes with the first heartbeat, after 15 s.
        assert time.monotonic() - began < 10.0


def test_silence_is_filled_with_heartbeats(local_jupyter: RunningJupyter) -> None:
    """Between events come comments, so that no proxy takes the connection for dead."""
    with local_jupyter.events() as events:
        events.until(bool, "the first list came")
        until(lambda: events.comments.count(": alive") >= 3, "heartbeats came", 20)
        assert len(events.lists) == 1


def test_a_server_that_ends_closes_its_streams(server_home: ServerHome) -> None:
    """Open streams neither hold the end of the server up, nor leave a complaint in its log."""
    with running_jupyter(server_home) as server, server.events() as events:
        events.until(bool, "the first list came")
        began = time.monotonic()
        assert server.stop() == 0
        # A stream that is not told to end looks up at its next heartbeat, after 15 s.
        assert time.monotonic() - began < 10.0
        assert events.ended.wait(20.0)
        log = server.log.read_text()
        for sign in ("Traceback", "was never", "Task was destroyed", "never retrieved"):
            assert sign not in log
