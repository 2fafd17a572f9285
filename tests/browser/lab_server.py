"""Starts a real JupyterLab with this repository's kernel, panel and server extension."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from home import PYTHON_PATH, Home
from sandbox_server import REPOSITORY
from waiting import until

PREFIX = "/user/ada lovelace/".replace(" ", "%20")
TOKEN = "the-token-of-this-jupyter-server"
START_SECONDS = 60.0
STOP_SECONDS = 30.0


APP_NAMES = {"jupyterlab": "LabApp", "notebook": "JupyterNotebookApp"}
"""Module → application; each of them serves the pages of the other too."""


class RunningLab:
    """A JupyterLab, or Jupyter Notebook, with nothing of the user's own; see `running_lab`."""

    def __init__(self, path: Path, settings: Mapping[str, str], app: str) -> None:
        self.home = home = Home(path)
        self._app = app
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        self.root = home.work
        """Its directory of notebooks."""
        self.log = path / "log"
        """The file that its output goes to."""
        share = path / "share"
        for directory in (share, share / "kernels", share / "labextensions"):
            directory.mkdir(mode=0o700)
        (share / "kernels/ivy-sandbox").symlink_to(REPOSITORY / "kernelspec")
        (share / "labextensions/ivy-kernel").symlink_to(REPOSITORY / "ivy_kernel/labextension")
        user_settings = path / "settings/@jupyterlab/apputils-extension"
        user_settings.mkdir(parents=True)
        (user_settings / "notification.jupyterlab-settings").write_text(
            '{"fetchNews": "false", "checkForUpdates": false}', "utf-8"
        )
        own = {
            "PYTHONPATH": PYTHON_PATH,
            "JUPYTER_CONFIG_PATH": str(REPOSITORY / "jupyter-config"),
            "JUPYTER_PATH": str(share),
        }
        self._environment = home.environment({**own, **settings})

    @property
    def url(self) -> str:
        """Its base URL, with the prefix and a slash at the end."""
        return f"http://127.0.0.1:{self._port}{PREFIX}"

    def start(self) -> None:
        """Start it and wait until it answers; again on the port that it had before."""
        argv = [
            *(sys.executable, "-m", self._app, "--no-browser", "--allow-root"),
            *("--ServerApp.ip=127.0.0.1", "--ServerApp.port_retries=0"),
            f"--ServerApp.port={self._port}",
            *(f"--ServerApp.base_url={PREFIX}", f"--IdentityProvider.token={TOKEN}"),
            f"--ServerApp.root_dir={self.root}",
            "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        ]
        for name in APP_NAMES.values():
            argv += [
                f"--{name}.expose_app_in_browser=True",
                f"--{name}.user_settings_dir={self.home.path / 'settings'}",
                f"--{name}.workspaces_dir={self.home.path / 'workspaces'}",
            ]
        with self.log.open("ab") as output:
            self._process = process = subprocess.Popen(
                argv,
                cwd=self.home.path,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

        def started() -> int | None:
            assert process.poll() is None, self.log.read_text("utf-8")
            port = _port_in(self.home.runtime / f"jpserver-{process.pid}.json")
            return port if port and _is_up(port) else None

        self._port = until(started, "Jupyter is up", START_SECONDS)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it by a signal, and its kernels with it."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request to the server's REST API; return the decoded answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, method=method)
        request.add_header("Authorization", f"token {TOKEN}")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=30) as answer:
            content = answer.read()
        return json.loads(content) if content else None

    def shut_down_kernels(self) -> None:
        """End all kernels, and the sessions with them."""
        for session in self.call("GET", "api/sessions"):
            self.call("DELETE", f"api/sessions/{session['id']}")

    def write_notebook(self, name: str, *sources: str, kernel: str = "ivy-sandbox") -> str:
        """Put a notebook with these cells into the root directory; return its name."""
        cells = [
            {
                "cell_type": "code",
                "id": f"cell-{number}",
                "metadata": {},
                "execution_count": None,
                "outputs": [],
                "source": source,
            }
            for number, source in enumerate(sources)
        ]
        kernelspec = {"name": kernel, "display_name": kernel, "language": "python"}
        document = {
            "cells": cells,
            "metadata": {"kernelspec": kernelspec},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
        (self.root / name).write_text(json.dumps(document), "utf-8")
        return name


def _is_up(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", f"{PREFIX}api", headers={"Authorization": f"token {TOKEN}"})
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def _port_in(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):  # not there yet, or not whole
        return int(json.loads(path.read_text("utf-8"))["port"])
    return None


@contextlib.contextmanager
def running_lab(
    path: Path, settings: Mapping[str, str], app: str = "jupyterlab"
) -> Iterator[RunningLab]:
    """Run a JupyterLab for the time of the ``with`` block, with nothing of the user's own.

    Parameters
    ----------
    path
        An empty directory for all that it writes.
    settings
        Variables of its environment.
    app
        The module that starts it: ``jupyterlab``, or ``notebook``.
    """
    lab = RunningLab(path, settings, app)
    try:
        lab.start()
        yield lab
    finally:
        lab.stop()
        lab.home.stop_sandbox()
