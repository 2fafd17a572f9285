"""The list of files that are registered for a chat, kept on disk, oldest first."""

from __future__ import annotations

import json
import os
from pathlib import Path


def read_manifest(path: Path) -> list[Json]:
    """The registered files, oldest first."""
    try:
        entries = json.loads(path.read_text())
    except (OSError, ValueError):
        return []
    return entries if isinstance(entries, list) else []


def register(path: Path, entry: Json) -> None:
    """Add a file; one that is there already is replaced and counts as new."""
    entries = [known for known in read_manifest(path) if known.get("path") != entry["path"]]
    passing = path.with_suffix(".part")
    passing.write_text(json.dumps([*entries, entry]))
    os.replace(passing, path)  # noqa: PTH105 - the same call, and it says that it is atomic
