"""Starts real Jupyter servers with the extension, as users do, and reads their event streams.

::

    with running_jupyter(home, {"IVY_API_KEY": "…"}) as server:
        status, headers, body = server.call("GET", "ivy/sandboxes")
        with server.events() as events:
            events.until(lambda sandboxes: sandboxes[0]["status"]["state"] == "active")
"""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from home import PYTHON_PATH, Home
from sandbox_server import REPOSITORY
from waiting import until

Json = dict[str, Any]

START_SECONDS = 40.0
STOP_SECONDS = 20.0
TOKEN = "a-token-of-the-jupyter-server"
MARKED_KEY = "ivy_marked0key0that0must0appear0nowhere"
"""The platform's key, to be searched for where it must not be."""

_OTHERS = ("jupyter_lsp", "jupyter_server_terminals", "jupyterlab", "notebook", "notebook_shim")


class ServerHome(Home):
    """Directories of one server and its kernels, with the extension enabled as shipped.

    Parameters
    ----------
    path
        As for `Home`.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        shutil.copytree(REPOSITORY / "jupyter-config", self.config, dirs_exist_ok=True)
        # Others' extensions take seconds to start and are not what is tested.
        others = {"ServerApp": {"jpserver_extensions": dict.fromkeys(_OTHERS, False)}}
        (self.config / "jupyter_server_config.json").write_text(json.dumps(others))

    def configure(self, settings: Json | str | None) -> None:
        """Write the settings file, as JSON or as it is; ``None`` removes it."""
        if settings is None:
            self.settings_file.unlink(missing_ok=True)
            return
        text = settings if isinstance(settings, str) else json.dumps({"Ivy": settings})
        # In one step: the running server may read the file at any moment.
        partial = self.settings_file.with_suffix(".new")
        partial.write_text(text)
        partial.replace(self.settings_file)

    def environment(self, variables: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment of `Home`, in which this tree's package is found first."""
        return super().environment({"PYTHONPATH": PYTHON_PATH, **(variables or {})})


class Events:
    """The events of one open ``ivy/events`` stream.

    Parameters
    ----------
    connection, response
        The open answer.
    """

    def __init__(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> None:
        self.headers = response.headers
        self.lists: list[tuple[float, list[Json]]] = []
        self.comments: list[str] = []
        self.ended = threading.Event()
        self.raw = b""
        self._connection = connection
        self._response = response
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        name = ""
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            while line := self._response.readline():
                self.raw += line
                text = line.decode().rstrip("\r\n")
                if text.startswith(":"):
                    self.comments.append(text)
                elif text.startswith("event: "):
                    name = text.removeprefix("event: ")
                elif text.startswith("data: "):
                    assert name == "sandboxes", text
                    body = json.loads(text.removeprefix("data: "))
                    assert list(body) == ["sandboxes"], body
                    self.lists.append((time.monotonic(), body["sandboxes"]))
        self.ended.set()

    @property
    def sandboxes(self) -> list[Json]:
        """The newest list."""
        return self.lists[-1][1]

    def until(
        self, condition: Callable[[list[Json]], Any], what: str, timeout_seconds: float = 10.0
    ) -> tuple[float, list[Json]]:
        """Wait for a list that meets the condition, or has met it; return it and its time."""

        def look() -> tuple[float, list[Json]] | None:
            return next((item for item in list(self.lists) if condition(item[1])), None)

        found: tuple[float, list[Json]] = until(look, what, timeout_seconds)
        return found

    def close(self) -> None:
        """Close the stream, as a closed tab does."""
        if self._connection.sock is not None:
            with contextlib.suppress(OSError):
                self._connection.sock.shutdown(2)
        self._thread.join(5)
        self._response.close()
        self._connection.close()


@dataclass
class RunningJupyter:
    """A Jupyter server that runs.

    Parameters
    ----------
    url
        Its base URL, with a slash at the end.
    home
        Its directories.
    process
        Its process.
    log
        The file with all that it has logged.
    received
        Every answer that any test got from it, to be searched for keys.
    """

    url: str
    home: ServerHome
    process: subprocess.Popen[bytes]
    log: Path
    received: list[bytes] = field(default_factory=list, repr=False)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float = 30.0,
    ) -> tuple[int, Mapping[str, str], Any]:
        """Send a request; return status, headers and body. ``headers`` replaces the token."""
        data = None if method in ("GET", "HEAD") else json.dumps(body or {}).encode()
        request = urllib.request.Request(self.url + path, data, method=method)
        own = {"Authorization": f"token {TOKEN}"} if headers is None else headers
        for name, value in {"Content-Type": "application/json", **own}.items():
            request.add_header(name, value)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=timeout_seconds) as answer:
                return answer.status, answer.headers, self._decoded(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, self._decoded(error)

    def _decoded(self, answer: Any) -> Any:
        raw = answer.read()
        self.received += [raw, str(answer.headers).encode()]
        try:
            return json.loads(raw) if raw else None
        except ValueError:
            return raw.decode("utf-8", "replace")

    def sandboxes(self) -> list[Json]:
        """The list, which must not be an error."""
        status, _, body = self.call("GET", "ivy/sandboxes")
        assert status == 200, (status, body)
        found: list[Json] = body["sandboxes"]
        return found

    def default(self) -> Json:
        """The default sandbox."""
        return self.sandboxes()[0]

    def act(self, action: str, sandbox_id: str = "") -> Json:
        """Do something with a sandbox (the default one), which must not fail."""
        sandbox_id = sandbox_id or self.default()["id"]
        status, _, body = self.call("POST", f"ivy/sandboxes/{sandbox_id}/{action}")
        assert status == 200, (status, body)
        found: Json = body
        return found

    @contextlib.contextmanager
    def events(self, headers: Mapping[str, str] | None = None) -> Iterator[Events]:
        """An open event stream for the time of the ``with`` block."""
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        own = {"Authorization": f"token {TOKEN}"} if headers is None else headers
        connection.request("GET", f"{parts.path}ivy/events", headers=dict(own))
        response = connection.getresponse()
        assert response.status == 200, response.status
        events = Events(connection, response)
        try:
            yield events
        finally:
            events.close()
            self.received.append(events.raw)

    def stop(self) -> int:
        """End it in order; return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_SECONDS)


@contextlib.contextmanager
def running_jupyter(
    home: ServerHome,
    variables: Mapping[str, str] | None = None,
    *arguments: str,
    program: str = "",
) -> Iterator[RunningJupyter]:
    """A server for the time of the ``with`` block.

    Parameters
    ----------
    home
        Its directories.
    variables
        Further variables of its environment.
    arguments
        Further arguments of its command line.
    program
        Python code that starts it instead of ``python -m jupyter_server``.
    """
    log = home.path / "jupyter.log"
    argv = [
        *(sys.executable, *(("-c", program) if program else ("-m", "jupyter_server"))),
        *("--ServerApp.ip=127.0.0.1", "--ServerApp.port=0", "--ServerApp.open_browser=False"),
        *("--allow-root", "--debug", f"--ServerApp.root_dir={home.work}", *arguments),
    ]
    environment = home.environment({"JUPYTER_TOKEN": TOKEN, **(variables or {})})
    with log.open("ab") as output:
        process = subprocess.Popen(
            argv,
            cwd=home.work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        info = home.runtime / f"jpserver-{process.pid}.json"

        def url() -> str:
            assert process.poll() is None, log.read_text()[-3000:]
            # Until then the file is not there, or not whole, or nobody listens.
            with contextlib.suppress(OSError, ValueError):
                about = json.loads(info.read_text())
                with socket.create_connection(("127.0.0.1", about["port"]), 1):
                    return str(about["url"])
            return ""

        found = until(url, "the Jupyter server started", START_SECONDS)
        server = RunningJupyter(found, home, process, log)
        yield server
        server.stop()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        home.stop_sandbox()
