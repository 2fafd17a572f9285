"""Starts a real JupyterLab with this repository's kernel, panel and server extension."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandbox_server import until

REPOSITORY = Path(__file__).resolve().parents[2]
PREFIX = "/user/ada lovelace/".replace(" ", "%20")
TOKEN = "the-token-of-this-jupyter-server"
START_SECONDS = 60.0
STOP_SECONDS = 30.0


@dataclass
class RunningLab:
    """A JupyterLab that runs.

    Parameters
    ----------
    url
        Its base URL, with the prefix and a slash at the end.
    root
        Its directory of notebooks.
    log
        The file that its output goes to.
    config_file
        Where settings of ours can be put while it runs.
    process
        Its process.
    """

    url: str
    root: Path
    log: Path
    config_file: Path
    process: subprocess.Popen[bytes] = field(repr=False)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request to the server's REST; the decoded answer."""
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
        """Put a notebook with these cells into the root directory; its name."""
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


def _port_of(runtime: Path) -> int | None:
    for path in runtime.glob("jpserver-*.json"):
        with contextlib.suppress(ValueError):
            return int(json.loads(path.read_text("utf-8"))["port"])
    return None


@contextlib.contextmanager
def running_lab(
    home: Path, settings: Mapping[str, str], app: str = "jupyterlab"
) -> Iterator[RunningLab]:
    """A JupyterLab for the time of the ``with`` block, with nothing of the user's own.

    Parameters
    ----------
    home
        An empty directory for all that it writes.
    settings
        Variables of its environment.
    app
        The module that starts it: ``jupyterlab``, or ``notebook``.
    """
    directories = {
        name: home / name for name in ("config", "data", "runtime", "ipython", "root", "share")
    }
    for directory in directories.values():
        directory.mkdir(mode=0o700)
    share = directories["share"]
    (share / "kernels").mkdir()
    (share / "labextensions").mkdir()
    (share / "kernels/ivy-sandbox").symlink_to(REPOSITORY / "kernelspec")
    (share / "labextensions/ivy-kernel").symlink_to(REPOSITORY / "ivy_kernel/labextension")
    user_settings = home / "settings/@jupyterlab/apputils-extension"
    user_settings.mkdir(parents=True)
    (user_settings / "notification.jupyterlab-settings").write_text(
        '{"fetchNews": "false", "checkForUpdates": false}', "utf-8"
    )
    environment = {
        **{
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("IVY_", "RECOUP_", "JPY_"))
        },
        "PYTHONPATH": str(REPOSITORY),
        "JUPYTER_CONFIG_DIR": str(directories["config"]),
        "JUPYTER_CONFIG_PATH": str(REPOSITORY / "jupyter-config"),
        "JUPYTER_DATA_DIR": str(directories["data"]),
        "JUPYTER_RUNTIME_DIR": str(directories["runtime"]),
        "JUPYTER_PATH": str(share),
        "IPYTHONDIR": str(directories["ipython"]),
        **settings,
    }
    name = {"jupyterlab": "LabApp", "notebook": "JupyterNotebookApp"}[app]
    argv = [
        *(sys.executable, "-m", app, "--no-browser", "--allow-root"),
        *("--ServerApp.ip=127.0.0.1", "--ServerApp.port=0"),
        *(f"--ServerApp.base_url={PREFIX}", f"--IdentityProvider.token={TOKEN}"),
        f"--ServerApp.root_dir={directories['root']}",
        f"--{name}.expose_app_in_browser=True",
        f"--{name}.user_settings_dir={home / 'settings'}",
        f"--{name}.workspaces_dir={home / 'workspaces'}",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
    log = home / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv,
            cwd=home,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:

        def started() -> int | None:
            assert process.poll() is None, log.read_text("utf-8")
            port = _port_of(directories["runtime"])
            return port if port and _is_up(port) else None

        port = until(started, "JupyterLab is up", START_SECONDS)
        yield RunningLab(
            url=f"http://127.0.0.1:{port}{PREFIX}",
            root=directories["root"],
            log=log,
            config_file=directories["config"] / "jupyter_ivy_config.json",
            process=process,
        )
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
