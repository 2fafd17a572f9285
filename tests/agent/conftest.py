"""What the tests of the agent share."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest


@pytest.fixture
def place() -> Iterator[Path]:
    """An empty directory with a short path, as sockets need it."""
    path = Path(tempfile.mkdtemp(prefix="ivy-"))
    yield path
    for process in _processes_of(path):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    shutil.rmtree(path, ignore_errors=True)


def _processes_of(path: Path) -> list[psutil.Process]:
    """Agents that a test has left there, and their kernels."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(str(path) in word for word in process.info["cmdline"] or ())
    ]
