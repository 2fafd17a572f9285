"""What the tests of the agent share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def place() -> Iterator[Path]:
    """An empty directory with a short path, as sockets need it."""
    path = Path(tempfile.mkdtemp(prefix="ivy-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)
