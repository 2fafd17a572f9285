"""The file that tells where the server is and which token it takes; for its user's eyes only."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from pathlib import Path
from typing import Any


def write_runtime_file(path: Path, content: dict[str, Any]) -> None:
    """Write it with mode 0600, whole or not at all."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    passing = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    descriptor = os.open(passing, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(content, file)
    passing.replace(path)


def remove_runtime_file(path: Path, pid: int) -> None:
    """Remove it, unless another server has written it meanwhile."""
    with contextlib.suppress(OSError, ValueError):
        if json.loads(path.read_text()).get("pid") == pid:
            path.unlink()
