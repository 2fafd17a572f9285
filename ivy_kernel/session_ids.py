"""The session id that a new sandbox gets: generated once per chat, then kept."""

from __future__ import annotations

import fcntl
import json
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
    kept = _read(path).get(chat_id)
    if kept:
        return kept
    made = str(uuid.uuid4())
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Two kernels that start at once must agree, and must not lose each other's chats.
        with path.with_name(f"{path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = _read(path)
            made = known.setdefault(chat_id, made)
            partial = path.with_name(f"{path.name}.new")
            partial.write_text(json.dumps(known, indent=1), "utf-8")
            partial.replace(path)
    except OSError:
        pass
    return made


def _read(path: Path) -> dict[str, str]:
    try:
        loaded = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(loaded, dict):
        return {}
    return {key: value for key, value in loaded.items() if isinstance(value, str) and value}
