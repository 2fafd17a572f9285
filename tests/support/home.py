"""Jupyter directories for the processes of a test, and the environment that points to them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from sandbox_server import REPOSITORY
from waiting import until

NO_IRI_GRAMMAR = Path(__file__).parent / "no_iri_grammar"
"""On ``PYTHONPATH``, it makes imports of jsonschema quick; see the file in it."""

PYTHON_PATH = os.pathsep.join(map(str, (REPOSITORY, NO_IRI_GRAMMAR)))
"""A ``PYTHONPATH`` on which this tree's package is found first, also where another is installed."""

_NOT_INHERITED = ("IVY_", "RECOUP_", "JPY_", "JUPYTER_")


class Home:
    """Jupyter and IPython directories of its own for one or more processes.

    Parameters
    ----------
    path
        The directory above them, which is empty or does not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config"
        self.data = path / "data"
        self.runtime = path / "runtime"
        self.work = path / "work"
        for directory in (self.config, self.data, self.runtime, path / "ipython", self.work):
            directory.mkdir(mode=0o700, parents=True)

    @property
    def settings_file(self) -> Path:
        """Where settings of Ivy are read from, if the file exists."""
        return self.config / "jupyter_ivy_config.json"

    @property
    def sandbox_file(self) -> Path:
        """The runtime file of the embedded local sandbox; there only while one runs."""
        return self.runtime / "ivy-local-sandbox.json"

    def environment(self, variables: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return this process's environment with our directories and no other Ivy variables."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(_NOT_INHERITED)}
        return {
            **inherited,
            "JUPYTER_CONFIG_DIR": str(self.config),
            "JUPYTER_DATA_DIR": str(self.data),
            "JUPYTER_RUNTIME_DIR": str(self.runtime),
            "IPYTHONDIR": str(self.path / "ipython"),
            **(variables or {}),
        }

    def stop_sandbox(self) -> None:
        """End the embedded local sandbox, if one runs."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            pid = json.loads(self.sandbox_file.read_text())["pid"]
            os.kill(pid, signal.SIGTERM)
            until(lambda: not self.sandbox_file.exists(), "the local sandbox ended")
