"""The session id that a new sandbox gets: generated once per chat, then kept."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path

from jupyter_core.paths import jupyter_data_dir


def session_ids_file() -> Path:
    """The file that keeps the generated ids."""
    return Path(jupyter_data_dir()) / "ivy" / "session-ids.json"


def session_id_for(chat_id: str) -> str:
    """The kept session id of a chat; made now when there is none.

    A file that cannot be read or written costs nothing but that the id is not kept.
    """
    path = session_ids_file()
    known: dict[str, str] = {}
    try:
        loaded = json.loads(path.read_text("utf-8"))
        if isinstance(loaded, dict):
            known = {str(k): v for k, v in loaded.items() if isinstance(v, str)}
    except (OSError, ValueError):
        pass
    if known.get(chat_id):
        return known[chat_id]
    known[chat_id] = str(uuid.uuid4())
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        partial.write_text(json.dumps(known, indent=1), "utf-8")
        partial.replace(path)
    except OSError:
        pass
    return known[chat_id]
