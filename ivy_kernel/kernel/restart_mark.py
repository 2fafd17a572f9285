"""Tells the kernel process after a restart that its first cell must find an empty namespace.

A restart replaces this process, while the variables live in the sandbox. The old process has
2.5 s for its shutdown, too little for a network; so it leaves a mark, and the new one acts on it.
"""

from __future__ import annotations

import hashlib
import platform
from contextlib import suppress
from pathlib import Path

from jupyter_core.paths import jupyter_runtime_dir


def session_key_of(connection_file: str) -> str:
    """What names this kernel in a sandbox, the same after a restart.

    The file's name alone would not do: ``kernel.json`` is a common one, and two machines may share
    a sandbox.
    """
    path = str(Path(connection_file).absolute())
    return hashlib.sha256(f"{platform.node()}\n{path}".encode()).hexdigest()[:20]


class RestartMark:
    """The mark of one kernel, found by the name of its connection file.

    Parameters
    ----------
    connection_file
        The kernel's connection file; its name outlives restarts.
    """

    def __init__(self, connection_file: str) -> None:
        name = f"ivy-restart-{session_key_of(connection_file)}"
        self._path = Path(jupyter_runtime_dir()) / name

    def leave(self) -> None:
        """Called by the process that ends."""
        with suppress(OSError):
            self._path.touch(mode=0o600)

    def is_there(self) -> bool:
        """Called by the process that begins."""
        return self._path.exists()

    def remove(self) -> None:
        """Called when the namespace is known to be empty, or the kernel ends for good."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
