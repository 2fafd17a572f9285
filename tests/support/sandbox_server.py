"""Starts real local sandbox servers for tests.

::

    with running_sandbox({"cap_seconds": {"script": 2}}) as server:
        server.ready("my-chat")
        status, headers, body = server.call(
            "POST", "/v1/sandbox/my-chat/tool/sandbox_python", {"code": "print(1)"}
        )
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from waiting import until

REPOSITORY = Path(__file__).resolve().parents[2]
START_SECONDS = 30.0
STOP_SECONDS = 20.0

Json = dict[str, Any]


@dataclass
class RunningSandbox:
    """A local sandbox server that runs.

    Parameters
    ----------
    url
        Its base URL, which ends in ``/api``.
    token
        The token of its owner.
    pid
        The entry process; when it is killed everything goes.
    root
        The directory below which each chat has its own.
    runtime_file
        Its private file with address and token.
    process
        The entry process.
    """

    url: str
    token: str = field(repr=False)
    pid: int
    root: Path
    runtime_file: Path
    process: subprocess.Popen[bytes]

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
        timeout_seconds: float = 60.0,
    ) -> tuple[int, Mapping[str, str], Any]:
        """Send a request; return status, headers and decoded body of the answer.

        ``headers`` replaces the usual ``Authorization``; ``data`` goes instead of ``body`` as is.
        """
        if data is None and method == "POST":
            data = json.dumps({} if body is None else body).encode()
        request = urllib.request.Request(self.url + path, data, method=method)
        own = {"Authorization": f"Bearer {self.token}"} if headers is None else headers
        for name, value in {"Content-Type": "application/json", **own}.items():
            request.add_header(name, value)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=timeout_seconds) as answer:
                return answer.status, answer.headers, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, json.loads(error.read())

    def create(self, chat_id: str, session_id: str = "", campaign_id: str = "") -> Json:
        """Create the sandbox of a chat; return the answer, which must not be an error."""
        ids = {
            "chatId": chat_id,
            "sessionId": session_id or f"session-of-{chat_id}",
            "campaignId": campaign_id or f"campaign-of-{chat_id}",
        }
        status, _, body = self.call("POST", "/v1/sandbox/create", ids)
        assert status in (200, 202), (status, body)
        return body

    def status(self, chat_id: str) -> Json:
        """Ivy's status of a chat."""
        status, _, body = self.call("GET", f"/v1/sandbox/{chat_id}/status")
        assert status == 200, (status, body)
        return body

    def session_status(self, session_id: str) -> Json:
        """Recoup's status of a session."""
        status, _, body = self.call("GET", f"/sandbox/status?sessionId={session_id}")
        assert status == 200, (status, body)
        return body

    def ready(self, chat_id: str, session_id: str = "", campaign_id: str = "") -> None:
        """Create the sandbox of a chat and wait until it is active."""
        self.create(chat_id, session_id, campaign_id)
        until(lambda: self.status(chat_id)["status"] == "active", f"{chat_id} is active", 30)

    def tool(self, chat_id: str, name: str, body: Json | None = None, /, **more: Any) -> Json:
        """Run a tool; return its result, which must not be an error status."""
        status, _, result = self.call(
            "POST", f"/v1/sandbox/{chat_id}/tool/{name}", {**(body or {}), **more}
        )
        assert status == 200, (status, result)
        return result

    def control(self, changes: Json | None = None) -> Json:
        """Change settings; return settings, counters and sandboxes as they are then."""
        method = "GET" if changes is None else "POST"
        status, _, body = self.call(method, "/_control", changes)
        assert status == 200, (status, body)
        return body

    def counters(self) -> Json:
        """The server's counters."""
        return self.control()["counters"]

    def pids(self) -> list[int]:
        """The living processes of all sandboxes."""
        return [pid for sandbox in self.control()["sandboxes"] for pid in sandbox["pids"]]

    def stop(self) -> int:
        """End the server in order; return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


def _first_line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], START_SECONDS)
    return process.stdout.readline() if readable else b""


@contextlib.contextmanager
def running_sandbox(
    config: Json | None = None,
    *,
    root: Path | None = None,
    token: str = "",
    control: bool = True,
    idle_exit_seconds: float = 7200.0,
    environment: Mapping[str, str] | None = None,
    python: str = sys.executable,
    **settings: Any,
) -> Iterator[RunningSandbox]:
    """Run a server for the time of the ``with`` block, on a free port, in a directory of its own.

    Parameters
    ----------
    config
        Settings that differ from the default; provisioning takes no time unless they say so.
    root
        The directory of the chats' files, which is kept; ``None`` for one that is removed.
    token
        Its token; empty for a random one.
    control
        Whether settings can be changed and counters read while it runs.
    idle_exit_seconds
        Its idle time; 0 for no end. The default outlasts every run of the tests, and ends a server
        whose test process was killed.
    environment
        Further variables of the server's environment.
    python
        The interpreter that runs it.
    settings
        More settings, by name.
    """
    blank = {"compute": 0.0, "mount": 0.0}
    merged = {"provision_seconds": blank, "restore_seconds": blank, **(config or {}), **settings}
    # A short path: names of sockets have little room.
    scratch = Path(tempfile.mkdtemp(prefix="ivy-"))
    runtime_file = scratch / "runtime.json"
    variables = {
        # As in use: pytest's own variable changes what ipykernel does with child processes' output.
        **{name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
        "PYTHONPATH": str(REPOSITORY),
        "IVY_LOCAL_SANDBOX_TOKEN": token,
        "IVY_LOCAL_SANDBOX_CONFIG": json.dumps(merged),
        **(environment or {}),
    }
    argv = [
        *(python, "-m", "ivy_kernel.local_sandbox"),
        *("--root", str(root or scratch / "root"), "--runtime-file", str(runtime_file)),
        *("--idle-exit-seconds", str(idle_exit_seconds)),
        *(["--control"] if control else []),
    ]
    process = subprocess.Popen(
        argv, cwd=scratch, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    try:
        line = _first_line(process)
        assert line, f"the local sandbox did not start (exit code {process.poll()})"
        about = json.loads(runtime_file.read_text())
        server = RunningSandbox(
            url=about["url"],
            token=about["token"],
            pid=about["pid"],
            root=(root or scratch / "root").resolve(),
            runtime_file=runtime_file,
            process=process,
        )
        yield server
        server.stop()
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        assert process.stdout is not None
        process.stdout.close()
        shutil.rmtree(scratch, ignore_errors=True)
