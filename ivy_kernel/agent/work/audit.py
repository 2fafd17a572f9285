"""What Python tells of a running cell: the files it opens, the processes it starts, its network.

One audit hook for the life of a process, which takes a few events and only while a cell runs. It is
told of a file before that is opened, so that what a cell has read is hashed before the same cell
changes it.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from threading import get_ident
from typing import Any, Callable

from .files_used import NOTES_LIMIT, Places, State, Use, coarse_time_ns, state_of

EARLY_BYTES = 8 << 20
"""A file that the cell is about to change is hashed first, up to this size."""

CHUNK_BYTES = 1 << 20


class Hashes:
    """Hashes of files, each computed once for a state of its file."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[State, str]] = {}
        self._bytes_per_second = 3e8
        self._open: dict[str, tuple[State, Any, int]] = {}

    def known(self, path: str, state: State | None) -> str | None:
        """Return the hash of what was in a file in this state, if it was taken."""
        known = self._known.get(path)
        return known[1] if known and known[0] == state else None

    def take(self, path: str, state: State, until: float = 0.0) -> str | None:
        """Return the hash of a file in this state; ``None`` where time runs out.

        Parameters
        ----------
        until
            Monotonic; 0 is no limit. What was read by then is kept for the next call.

        Raises
        ------
        OSError
            The file cannot be read, or it is not in this state any more.
        """
        known = self.known(path, state)
        if known is not None:
            return known
        begun = self._open.pop(path, None)
        digest, offset = hashlib.sha256(), 0
        if begun and begun[0] == state:
            digest, offset = begun[1], begun[2]
        at = time.monotonic()
        first = offset
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            file = os.open(path, flags | getattr(os, "O_NOATIME", 0))
        except PermissionError:  # only the owner may leave the time of reading alone
            file = os.open(path, flags)
        try:
            if offset:
                os.lseek(file, offset, os.SEEK_SET)
            while True:
                data = os.read(file, CHUNK_BYTES)
                if not data:
                    break
                digest.update(data)
                offset += len(data)
                if until and time.monotonic() > until and offset < state[0]:
                    self._open = {path: (state, digest, offset)}
                    return None
        finally:
            os.close(file)
        took = time.monotonic() - at
        if took > 0.005:
            self._bytes_per_second = (offset - first) / took
        if state_of(path) != state:
            raise OSError("it changes")
        found = digest.hexdigest()
        # A file that was changed just now may change once more within one tick of the clock.
        if coarse_time_ns() - max(state[1], state[2]) > 20_000_000:
            if len(self._known) > 4 * NOTES_LIMIT:
                self._known.clear()
            self._known[path] = state, found
        return found

    def fits(self, size_bytes: int, until: float) -> bool:
        """Whether a file of this size is probably hashed by then."""
        return size_bytes / self._bytes_per_second < until - time.monotonic()


_running: list[Audit | None] = [None]
"""The cell that audit events belong to."""


def _hook(event: str, args: tuple[Any, ...]) -> None:
    audit = _running[0]
    if audit is None:
        return
    take = audit.takers.get(event)
    if take is None or audit.busy == get_ident():
        return
    try:
        take(*args)
    except Exception:  # what the hook raises would fail the user's call
        audit.reasons["something that Python told of files could not be read"] = None


class Audit:
    """What Python tells of one cell: files, processes, the network.

    Parameters
    ----------
    places
        Which files count.
    hashes
        Takes the hash of a file that the cell has read and is about to change.
    """

    _is_hooked = False

    def __init__(self, places: Places, hashes: Hashes) -> None:
        self._places = places
        self._hashes = hashes
        self.uses: dict[str, Use] = {}
        self.reasons: dict[str, None] = {}
        """Why inputs may be incomplete, in order."""
        self.busy = 0
        self._names: dict[Any, str] = {}
        self.takers: dict[str, Callable[..., None]] = {
            "open": self._opens,
            "os.rename": self._renames,
            "os.remove": self._changes,
            "os.truncate": lambda path, _length: self._changes(path),
            "os.link": lambda _from, to, *_: self._changes(to),
            "sqlite3.connect": self._connects_sqlite,
            "subprocess.Popen": lambda program, args, *_: self._starts(program, args),
            "os.system": lambda command: self._starts("sh", ["sh", "-c", command]),
            "os.posix_spawn": lambda program, args, *_: self._starts(program, args),
            "pty.spawn": lambda args: self._starts(args[0], args),
            "os.fork": lambda: self._starts("", []),
            "os.forkpty": lambda: self._starts("", []),
            "socket.getaddrinfo": self._looks_up,
            "socket.connect": lambda _socket, address: self._connects(address),
            "socket.sendto": lambda _socket, address: self._connects(address),
        }

    def begin(self) -> None:
        """Take what Python tells from now on."""
        if not Audit._is_hooked:
            sys.addaudithook(_hook)  # it cannot be taken away again, so there is one for all cells
            Audit._is_hooked = True
        _running[0] = self

    @staticmethod
    def end() -> None:
        """Take no more."""
        _running[0] = None

    def _full(self, path: Any, directory: int = -1) -> str:
        """Return the absolute path of a user's file; empty for anything else."""
        if type(path) is int:
            return ""
        path = os.fsdecode(os.fspath(path))
        if path[:1] != "/":
            at = os.getcwd() if directory < 0 else os.readlink(f"/proc/self/fd/{directory}")
            path = at.rstrip("/") + "/" + path
        if "/." in path or "//" in path:
            path = os.path.normpath(path)
        return path if self._places.counts(path) else ""

    def _use(self, path: str) -> Use:
        use = self.uses.get(path)
        if use is None:
            use = Use(state_of(path))
            if len(self.uses) < NOTES_LIMIT:
                self.uses[path] = use
            else:
                self.reasons[f"more than {NOTES_LIMIT} files were opened"] = None
        return use

    def _opens(self, path: Any, _mode: Any, flags: Any) -> None:
        access = flags & os.O_ACCMODE
        if access == os.O_RDONLY and isinstance(path, str) and path.endswith(".pyc"):
            # A module that comes from its cache: what matters is its source.
            directory, _, name = path.rpartition("/__pycache__/")
            path = "{}/{}.py".format(directory, name.partition(".")[0]) if directory else path
        full = self._full(path)
        if not full:
            return
        use = self._use(full)
        reads = access != os.O_WRONLY and not flags & os.O_TRUNC
        if reads and not use.is_read and not use.is_written:
            use.is_read = use.before is not None
            use.read_state = use.before
        if access != os.O_RDONLY:
            self._is_about_to_change(full, use)

    def _is_about_to_change(self, path: str, use: Use) -> None:
        if use.is_read and not use.is_written and use.digest is None:
            state = use.read_state
            use.digest = self._hashes.known(path, state)
            if use.digest is None and state is not None and state[0] <= EARLY_BYTES:
                self.busy = get_ident()
                try:
                    use.digest = self._hashes.take(path, state)
                except OSError:
                    use.digest = None  # the record says that it was changed during the cell
                finally:
                    self.busy = 0
        use.is_written = True

    def _changes(self, path: Any, directory: int = -1) -> None:
        full = self._full(path, directory)
        if full:
            self._is_about_to_change(full, self._use(full))

    def _renames(self, path: Any, to: Any, directory: int = -1, to_directory: int = -1) -> None:
        self._changes(path, directory)
        self._changes(to, to_directory)

    def _connects_sqlite(self, database: Any) -> None:
        text = os.fsdecode(os.fspath(database))
        if text.startswith("file:"):
            text = text[5:].partition("?")[0]
        if text and text != ":memory:":
            self._opens(text, None, os.O_RDWR)

    def _starts(self, program: Any, args: Any) -> None:
        words = [os.fsdecode(arg) for arg in ([args] if isinstance(args, (str, bytes)) else args)]
        name = os.fsdecode(program or (words[0] if words else ""))
        if os.path.basename(name) in ("sh", "bash", "dash", "zsh", "ksh") and len(words) > 2:
            # The first word of a command line that sets no variable; arguments may hold keys.
            line = [word for word in words[2].split() if "=" not in word]
            name = line[0] if line else name
        name = "".join(c for c in os.path.basename(name) if c.isalnum() or c in "._+-")[:40]
        self.reasons["started a process" + (f" ({name})" if name else "")] = None

    def _looks_up(self, host: Any, port: Any, *_: Any) -> None:
        if host:
            self._names[str(port)] = os.fsdecode(host)

    def _connects(self, address: Any) -> None:
        if not isinstance(address, tuple):
            self.reasons["connected to a local socket"] = None
            return
        host, port = address[:2]
        host = self._names.get(str(port), os.fsdecode(host))
        shown = "".join(c for c in host if c.isalnum() or c in ".:-_%")[:255]
        self.reasons[f"connected to {shown}:{port}"] = None
