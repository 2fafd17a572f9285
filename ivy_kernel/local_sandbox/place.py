"""Where the files of a chat are: its own directory, and the state that its code does not see."""

from __future__ import annotations

import hashlib
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

# Upper case is left out: "A" and "a" are one name on some file systems. "~" is left out, so that
# no chat can take the name that is made for another.
_PLAIN = re.compile(r"[a-z0-9_][a-z0-9_.-]{0,47}")


def safe_name(chat_id: str) -> str:
    """A file name for a chat id: itself if it is plain, else a part of it and a digest."""
    if _PLAIN.fullmatch(chat_id):
        return chat_id
    readable = re.sub(r"[^a-z0-9]+", "-", chat_id.lower())[:24].strip("-") or "chat"
    digest = hashlib.sha256(chat_id.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{readable}~{digest[:12]}"


@dataclass(frozen=True)
class Place:
    """The directories of one chat.

    Parameters
    ----------
    directory
        Where its code runs, and all that its tools see.
    state
        What belongs to the sandbox but is not shown as the chat's files.
    """

    directory: Path
    state: Path

    @classmethod
    def of(cls, root: Path, chat_id: str) -> Place:
        """The place of a chat below the server's root directory."""
        name = safe_name(chat_id)
        return cls(root / name, root / ".state" / name)

    @property
    def home(self) -> Path:
        """The home directory of its processes."""
        return self.state / "home"

    @property
    def runtime(self) -> Path:
        """For sockets; emptied when the sandbox stops."""
        return self.state / "run"

    @property
    def calls(self) -> Path:
        """The code of calls in flight."""
        return self.state / "calls"

    @property
    def stage(self) -> Path:
        """A mount point for runners that replace ``/tmp``."""
        return self.state / "stage"

    @property
    def manifest(self) -> Path:
        """The list of registered files."""
        return self.state / "manifest.json"

    @property
    def shared_cache(self) -> Path:
        """What all chats can use, and none needs."""
        return self.directory.parent / ".cache"

    def make(self) -> None:
        """Make all directories, readable by the user alone."""
        for path in (
            self.directory,
            self.home,
            self.runtime,
            self.calls,
            self.stage,
            self.shared_cache,
        ):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def clear(self) -> None:
        """Remove what was for running processes only; files stay."""
        for path in (self.runtime, self.calls):
            shutil.rmtree(path, ignore_errors=True)
