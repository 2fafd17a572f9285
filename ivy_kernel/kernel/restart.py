"""What a kernel process leaves to the next one of the same kernel: restart marks, and its chat.

A restart replaces this process, while the variables live in the sandboxes. The old process has
2.5 s for its shutdown, too little for a network; so it leaves a mark for each chat that it has
used, and the new one acts on it when it uses that chat. The chat that ``%ivy attach`` has chosen is
written down when it is chosen: the next process may follow a crash.
"""

from __future__ import annotations

import hashlib
import json
import platform
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from jupyter_core.paths import jupyter_runtime_dir

from ivy_kernel.session import private_file

Chat = tuple[str, ...]
"""Identity of a chat: the API's address, and the chat's id."""


def session_key_of(connection_file: str) -> str:
    """Return the name of this kernel in a sandbox, which is the same after a restart.

    The file's name alone would not do: ``kernel.json`` is a common one, and two machines may share
    a sandbox.
    """
    path = str(Path(connection_file).absolute())
    return hashlib.sha256(f"{platform.node()}\n{path}".encode()).hexdigest()[:20]


def _key_hash(connection_file: str) -> str:
    """Return a value that stays through restarts, and that no later kernel of that file's name has.

    Each kernel signs its messages with a key of its own.
    """
    try:
        key = json.loads(Path(connection_file).read_text("utf-8")).get("key", "")
    except (OSError, ValueError, AttributeError):
        return ""
    return hashlib.sha256(str(key).encode()).hexdigest()[:20]


class RestartMark:
    """The marks of one kernel, found by the name of its connection file; a file for each chat.

    Parameters
    ----------
    connection_file
        The kernel's connection file; its name outlives restarts.
    """

    def __init__(self, connection_file: str) -> None:
        self._connection_file = connection_file
        self._name = f"ivy-restart-{session_key_of(connection_file)}"
        self._lock = threading.Lock()
        self._is_ending = False

    def set(self, chats: Iterable[Chat]) -> None:
        """Set the marks of a process that ends; may be called on any thread. They stay then."""
        with self._lock:
            self._is_ending = True
            for chat in chats:
                with suppress(OSError):
                    self._path(chat).touch(mode=0o600)

    def is_set(self, chat: Chat) -> bool:
        """Called by the process that begins, when it is about to use a chat."""
        return self._path(chat).exists()

    def remove(self, chat: Chat) -> None:
        """Called when the chat's namespace is known to be empty."""
        # A cell may end just after `set`, on another thread; its mark is for the next process.
        with self._lock, suppress(OSError):
            if not self._is_ending:
                self._path(chat).unlink(missing_ok=True)

    def remove_all(self) -> None:
        """Called when the kernel ends for good."""
        self.keep_attached({})
        with suppress(OSError):
            for path in Path(jupyter_runtime_dir()).glob(f"{self._name}-*"):
                path.unlink(missing_ok=True)

    def keep_attached(self, ids: dict[str, str]) -> None:
        """Keep the chat that ``%ivy attach`` has chosen; empty when the settings' own one is used.

        Without its file, which cannot be written everywhere, the choice ends with the process.
        """
        with suppress(OSError):
            if ids:
                facts = {"ids": ids, "kernel": _key_hash(self._connection_file)}
                private_file.write_json(self._attached_path, facts)
            else:
                self._attached_path.unlink(missing_ok=True)

    def attached(self) -> dict[str, str]:
        """Return the chat that an earlier process of this kernel has attached, with its ids."""
        try:
            facts = private_file.read_json(self._attached_path)
            ids = dict(facts["ids"])
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        is_ours = facts.get("kernel") == _key_hash(self._connection_file)
        are_texts = all(isinstance(value, str) for value in ids.values())
        return ids if is_ours and are_texts and ids.get("chat_id") else {}

    @property
    def _attached_path(self) -> Path:
        return Path(jupyter_runtime_dir()) / f"ivy-attached-{session_key_of(self._connection_file)}"

    def _path(self, chat: Chat) -> Path:
        which = hashlib.sha256("\n".join(chat).encode()).hexdigest()[:16]
        return Path(jupyter_runtime_dir()) / f"{self._name}-{which}"
