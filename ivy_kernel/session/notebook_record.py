"""What this machine keeps of a notebook beside its file: keys, its cells' code, locks and copies.

A file of the user's alone for each notebook, ``<jupyter_data_dir>/ivy/notebooks/<id>.json``, which
outlives kernels, sandboxes and Jupyter servers.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_data_dir

from ivy_kernel.models import Json, visible
from ivy_kernel.session import private_file
from ivy_kernel.session.describe import count_words, size_words

KEY_BYTES = 32

CELLS_KEPT = 2000
CODE_LIMIT_CHARS = 4_000_000
"""Of the code of a notebook's cells, the newest that fit into these two limits are kept."""

FILE_LIMIT_BYTES = 64_000_000
VERSION = 1

ChatKey = tuple[str, ...]
"""Identity of a chat: the API's address, and the chat's id."""


def records_directory() -> Path:
    """Return the directory of all records."""
    return Path(jupyter_data_dir()) / "ivy" / "notebooks"


def notebook_path() -> str:
    """Return the file of the notebook that this kernel works for; empty where it is not known.

    Jupyter servers name it to the kernel (``JPY_SESSION_NAME``) when they start it, and do not say
    when it is renamed. A console has none.
    """
    name = os.environ.get("JPY_SESSION_NAME", "")
    if not name.endswith(".ipynb"):
        return ""
    with suppress(OSError):
        # Older servers name it relative to their own directory; kernels start in the notebook's.
        path = Path(name) if Path(name).is_absolute() else Path.cwd() / Path(name).name
        if path.is_file():
            return str(path.resolve())
    return ""


def notebook_id_of(path: str = "", *, kernel: str = "") -> str:
    """Return the name of a notebook in sandboxes and in our files.

    Parameters
    ----------
    path
        The notebook's file; empty where it is not known.
    kernel
        What names the kernel instead (`Session`'s ``session_key``).
    """
    which = str(Path(path).resolve()) if path else f"kernel {kernel}"
    return hashlib.sha256(f"{platform.node()}\n{which}".encode()).hexdigest()[:20]


@dataclass(frozen=True, slots=True)
class KeptCell:
    """The code of a cell that was run, for running it again.

    Parameters
    ----------
    number
        Its execution count.
    cell_id
        The front end's id of the cell; empty where it gave none.
    code
        What was sent to the sandbox.
    life
        The life of the variables in which it ran.
    """

    number: int
    cell_id: str
    code: str
    life: str = ""


@dataclass(slots=True)
class Life:
    """The time from an empty namespace to the loss of its variables, over several sandboxes.

    Parameters
    ----------
    id
        Random; empty before the first one.
    floor
        Sequence number of the last checkpoint on that disk that is of an earlier life.
    holder
        The kernel that has the variables, as in `Namespace`.
    ended
        The numbers of the cells that have ended, in the order in which they ran.
    before
        The life before it.
    """

    id: str = ""
    floor: int = 0
    holder: str = ""
    ended: list[int] = field(default_factory=list)
    before: str = ""

    def cells_after(self, number: int) -> list[int]:
        """Return the numbers of the cells that ended after the one with this number."""
        if number not in self.ended:
            return list(self.ended)
        last = len(self.ended) - 1 - self.ended[::-1].index(number)
        return self.ended[last + 1 :]

    def end_with(self, number: int) -> None:
        """Forget the cells that ended after the one with this number: they are undone."""
        after = len(self.cells_after(number))
        self.ended = self.ended[: len(self.ended) - after] or [number]


class NotebookRecord:
    """The record of one notebook. Reading never raises: what cannot be read counts as not kept.

    Changes are merged into the file under a lock, since other processes of the user may write it
    too. Where nothing can be written, all of it lives as long as this process.

    Parameters
    ----------
    path
        The notebook's file; empty where it is not known.
    kernel
        What names the kernel instead; not used where the path is known.

    Attributes
    ----------
    notebook_id
        The notebook's name in sandboxes and in our files.
    path
        As given, absolute.
    """

    def __init__(self, path: str = "", *, kernel: str = "") -> None:
        self.path = str(Path(path).resolve()) if path else ""
        self.notebook_id = notebook_id_of(path, kernel=kernel)
        self._lock = threading.RLock()
        self._content: Json = {}
        with self._lock:
            self._content = self._read()

    @classmethod
    def from_content(cls, content: Json) -> NotebookRecord:
        """Return a record that was read already."""
        record = cls.__new__(cls)
        record.path, record.notebook_id = str(content["path"]), str(content["notebook"])
        record._lock, record._content = threading.RLock(), content
        return record

    @property
    def file(self) -> Path:
        """The record's file."""
        return records_directory() / f"{self.notebook_id}.json"

    @property
    def key(self) -> bytes:
        """The notebook's own key, for what is signed on this machine. It is never sent anywhere.

        Generated when it is first asked for.
        """
        return self._key_in(lambda content: content)

    @property
    def session_key(self) -> str:
        """What names the notebook's kernel in sandboxes, as `Session` takes it; empty for none."""
        return str(self._content.get("session_key", ""))

    def keep_session_key(self, session_key: str) -> None:
        """Keep what names the notebook's kernel in sandboxes; empty to forget it."""
        self.change(lambda content: content.update(session_key=session_key))

    def chat(self, chat: ChatKey) -> ChatRecord:
        """Return what is kept of the notebook in the sandbox of one chat.

        Parameters
        ----------
        chat
            The API's address and the chat's id (``Lifecycle.key[:2]``).
        """
        return ChatRecord(self, chat)

    @property
    def content(self) -> Json:
        """All of it, as it was last read or written. Holds keys: never show it."""
        return self._content

    def reload(self) -> None:
        """Read the file again, which another process may have written."""
        with self._lock:
            self._content = self._read() or self._content

    def change(self, edit: Callable[[Json], object]) -> None:
        """Change the record, here and in its file; may be called on any thread.

        Parameters
        ----------
        edit
            Changes the content that it is given in place. Called once.
        """
        with self._lock, private_file.locked(self.file, is_optional=True):
            content = self._read() or self._content
            edit(content)
            content.update(version=VERSION, notebook=self.notebook_id, path=self.path)
            self._content = content
            with suppress(OSError):  # it is kept in this process
                private_file.write_json(self.file, content)

    def _read(self) -> Json:
        try:
            content = private_file.read_json(self.file, limit_bytes=FILE_LIMIT_BYTES)
        except (OSError, ValueError, RecursionError):
            return {}
        is_ours = isinstance(content, dict) and content.get("version") == VERSION
        return content if is_ours else {}

    def _key_in(self, section: Callable[[Json], Json]) -> bytes:
        """Return the key of a section; generates and keeps one where there is none."""

        def ensure(content: Json) -> None:
            if not _key(section(content)):
                section(content)["key"] = secrets.token_hex(KEY_BYTES)

        if not _key(section(self._content)):
            self.change(ensure)
        return _key(section(self._content))


def _key(section: Json) -> bytes:
    """Return the key of a section; empty where there is none that can be used."""
    try:
        key = bytes.fromhex(section["key"])
    except (KeyError, TypeError, ValueError):
        return b""
    return key if len(key) == KEY_BYTES else b""


class ChatRecord:
    """What is kept of a notebook in the sandbox of one chat.

    Parameters
    ----------
    record
        The notebook's record.
    chat
        The chat.
    """

    def __init__(self, record: NotebookRecord, chat: ChatKey) -> None:
        self.record = record
        self.chat = chat
        self._name = "\n".join(chat)

    def _section(self, content: Json) -> Json:
        chats = content.setdefault("chats", {})
        section: Json = chats.setdefault(self._name, {})
        return section

    def _get(self, name: str, default: Any) -> Any:
        value = self.record.content.get("chats", {}).get(self._name, {}).get(name)
        return value if isinstance(value, type(default)) else default

    def keep(self, **values: object) -> None:
        """Keep values of this chat; each replaces the one of its name."""
        self.record.change(lambda content: self._section(content).update(values))

    @property
    def key(self) -> bytes:
        """The key of the notebook's checkpoints and receipts in this chat.

        It is sent to this chat's sandbox alone, and never shown or logged. Generated when it is
        first asked for.
        """
        return self.record._key_in(self._section)

    @property
    def lock(self) -> Json:
        """The packages of the sandbox, as it told them last (``{"do": "packages"}``)."""
        found: Json = self._get("lock", {})
        return found

    @property
    def copy(self) -> Json:
        """The checkpoint whose copy is on this machine: its summary; empty for none."""
        found: Json = self._get("copy", {})
        return found

    @property
    def summary(self) -> Json:
        """The newest checkpoint that the sandbox told of: its summary; empty for none."""
        found: Json = self._get("summary", {})
        return found

    def words(self, newest: Json | None = None) -> str:
        """Return the newest checkpoint in words; ``newest``: as the sandbox told it last."""
        summary = newest or self.summary
        if not summary:
            return "none yet"
        names = own_names(summary.get("names") or ())
        size = float(summary.get("total_bytes") or 0)
        parts = [f"after cell {summary.get('number')}", count_words(len(names), "variable")]
        parts.append(size_words(size))
        copy = self.copy
        if copy.get("sequence") == summary.get("sequence"):
            left_out = copy.get("left_out") or []
            without = f" without {', '.join(map(visible, left_out))}" if left_out else ""
            parts.append(f"with a copy on this machine{without}")
        elif copy:
            parts.append(f"copy on this machine: after cell {copy.get('number')}")
        return ", ".join(parts)

    # -- cells

    @property
    def life(self) -> Life:
        """The life of the variables that are there, or were last."""
        try:
            return Life(**self._get("life", {}))
        except TypeError:  # another version has written it
            return Life()

    def cells_of(self, life: str) -> dict[int, KeptCell]:
        """Return the cells that ran in one life of the variables, by their number."""
        return {cell.number: cell for cell in self.cells if cell.life == life}

    @property
    def cells(self) -> list[KeptCell]:
        """The cells that were run, in the order in which they ran last."""
        found = []
        for row in self._get("cells", []):
            with suppress(TypeError, ValueError):
                number, *texts = row
                found.append(KeptCell(int(number), *map(str, texts)))
        return found

    def add_cells(
        self, cells: list[KeptCell], *, life: Json | None = None, summary: Json | None = None
    ) -> None:
        """Keep the code of cells that have run; the oldest beyond the limits are dropped.

        Parameters
        ----------
        cells
            The cells; one with a number and life that is kept already takes its place.
        life
            The fields of the present `Life`; ``None`` for no change.
        summary
            The newest checkpoint; ``None`` or empty for no change.
        """

        def edit(content: Json) -> None:
            section = self._section(content)
            kept = section.get("cells")
            new = {(cell.number, cell.life) for cell in cells}
            rows = [row for row in kept or [] if (row[0], row[-1]) not in new]
            rows += [[cell.number, cell.cell_id, cell.code, cell.life] for cell in cells]
            chars, first = 0, len(rows)
            for index in range(len(rows) - 1, -1, -1):
                chars += len(rows[index][2])
                if len(rows) - index > CELLS_KEPT or chars > CODE_LIMIT_CHARS:
                    break
                first = index
            section["cells"] = rows[first:]
            section["used"] = time.time()
            if life is not None:
                section["life"] = life
            if summary:
                section["summary"] = summary

        self.record.change(edit)


_NOT_OWN = re.compile(r"__\w+__|_+|_i+|_i?\d+|_[io]h|_dh")


def own_names(names: Iterable[str]) -> list[str]:
    """Return the names that are the user's; IPython's inputs and results come back untold."""
    return [name for name in map(str, names) if not _NOT_OWN.fullmatch(name)]


def checkpoint_line(chat: ChatKey) -> list[str]:
    """Return a line about the newest checkpoint in a chat, of whichever notebook; none for none.

    Called by ``jupyter ivy status``, which has no notebook of its own.
    """
    found: list[str] = []
    newest = 0.0
    with suppress(OSError):
        for file in records_directory().glob("*.json"):
            with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
                content = private_file.read_json(file, limit_bytes=FILE_LIMIT_BYTES)
                record = NotebookRecord.from_content(content)
                kept = record.chat(chat)
                at = float(kept.summary.get("at") or 0)
                if at > newest:
                    name = Path(record.path).name or "a notebook without a file"
                    newest, found = at, [f"checkpoint: {visible(name)} {kept.words()}"]
    return found
