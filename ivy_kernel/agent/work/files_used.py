"""The files that a cell reads and writes: by Python's audit events, and by what the system tells.

Three sources, since none sees everything. Audit events (``audit.py``) tell of every file that
Python opens, before it is opened. Libraries in C open files unseen, and so do other processes:
inotify tells what was opened in the workspace, whoever did it, at no cost to a cell that opens
nothing; where it does not work, the workspace is looked at before and after a cell. And the files
that this process holds open tell of those elsewhere. What none can see is a file outside the
workspace that a library in C opens and closes within one cell.
"""

from __future__ import annotations

import os
import stat
import struct
import sys
import sysconfig
import time
from typing import Any, Dict, NamedTuple, Tuple

ENTRIES_LIMIT = 20_000
"""Of a workspace, so many names are looked at."""

LOOK_SECONDS = 0.05
"""A look at the workspace takes so long at most."""

DIRECTORIES_LIMIT = 4096
"""So many directories are watched; the system's own limit is for all programs of a user."""

NOTES_LIMIT = 2000
"""So many files of a cell are kept; a cell with more has an incomplete record."""

SYSTEM_PLACES = ("/proc", "/sys", "/dev", "/run", "/etc", "/usr", "/lib", "/lib64", "/bin", "/sbin")
CACHES = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "MPLCONFIGDIR")
SKIPPED_NAMES = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages"})

State = Tuple[int, int, int, int]
"""What changes when a file does: size, times of content and inode, and the inode."""

Json = Dict[str, Any]


def state_of(path: str) -> State | None:
    """Return the state of a regular file; ``None`` where there is none."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def coarse_time_ns() -> int:
    """Return the clock of files' times, which ticks every few milliseconds."""
    try:
        return time.clock_gettime_ns(5)  # CLOCK_REALTIME_COARSE; Python has no name for it
    except (AttributeError, OSError):
        return time.time_ns()


class Places:
    """Which paths count: those of the workspace, and others that are no part of the installation.

    Parameters
    ----------
    workspace
        The kernel's working directory.
    own
        Directories and files of ours.
    """

    def __init__(self, workspace: str, own: tuple[str, ...] = ()) -> None:
        self.workspace = os.path.realpath(workspace)
        home = os.path.expanduser("~")
        caches = [os.environ.get(name, "") for name in CACHES]
        library = sysconfig.get_paths()
        left_out = [
            *SYSTEM_PLACES,
            *(sys.prefix, sys.base_prefix, sys.exec_prefix),
            *(library[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
            *(path for path in sys.path if path.endswith(("-packages", ".zip"))),
            *(os.path.join(home, name) for name in (".cache", ".config", ".local", ".ipython")),
            *caches,
            *own,
        ]
        # A place inside another one decides for what is in it: a workspace in /usr counts, and an
        # environment in the workspace does not.
        places = {place.rstrip("/"): False for place in left_out if place.startswith("/")}
        places.update({os.path.realpath(p): False for p in list(places) if p})
        places.pop("", None)
        places[self.workspace.rstrip("/")] = True
        self._below = self.workspace.rstrip("/") + "/"
        self._places = sorted(places.items(), key=lambda item: -len(item[0]))
        self._known: dict[str, bool] = {}

    def counts(self, path: str) -> bool:
        """Whether a file at this absolute path is one of the user's."""
        directory, _, name = path.rpartition("/")
        known = self._known.get(directory)
        if known is None:
            if len(self._known) > ENTRIES_LIMIT:
                self._known.clear()
            known = self._known[directory] = self._directory_counts(directory + "/")
        if not known or name.endswith(".pyc"):
            return False
        # Elsewhere such files are settings of programs, and hold keys: .netrc, .condarc.
        return name[:1] != "." or path.startswith(self._below)

    def _directory_counts(self, directory: str) -> bool:
        below = directory
        for place, does in self._places:
            if directory.startswith(place + "/"):
                if not does:
                    return False
                below = directory[len(place) :]
                break
        return not any(
            name.startswith(".") or name in SKIPPED_NAMES for name in below.split("/") if name
        )

    def enters(self, path: str) -> bool:
        """Whether a directory is looked into."""
        return self._directory_counts(path + "/")

    def name(self, path: str) -> str:
        """Return how a record writes a path: below the workspace, relative to it."""
        if path.startswith(self._below):
            path = path[len(self._below) :]
        return os.fsencode(path).decode("utf-8", "backslashreplace")


class Use:
    """What one cell did with one file.

    Parameters
    ----------
    before
        The state when it was first touched; ``None`` where it was not there or is not known.
    """

    __slots__ = ("before", "digest", "how", "is_read", "is_written", "read_state")

    def __init__(self, before: State | None) -> None:
        self.before = before
        self.is_read = False
        self.is_written = False
        self.how = ""
        """How it is known, where Python did not tell of it."""
        self.read_state: State | None = None
        self.digest: str | None = None
        """Of the content that was read, taken before the cell changed it."""


class Watch:
    """What is opened, made and removed in a tree of directories, as inotify tells it.

    Raises
    ------
    OSError
        The system has no inotify, or it does not tell.
    """

    OPEN, CLOSE_WRITE, MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x20, 0x8, 0x40, 0x80, 0x100, 0x200
    OVERFLOW, IGNORED, IS_DIRECTORY = 0x4000, 0x8000, 0x40000000
    MASK = OPEN | CLOSE_WRITE | MOVED_FROM | MOVED_TO | CREATE | DELETE | 0x01000000  # ONLYDIR

    def __init__(self, places: Places) -> None:
        # Where a sandbox's Python has no ctypes, the workspace is looked at instead.
        try:
            import ctypes
        except ImportError as missing:
            raise OSError(str(missing)) from missing
        if not sys.platform.startswith("linux"):
            raise OSError("no inotify")
        self._libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(self._libc, "inotify_init1"):
            raise OSError("no inotify")
        self._places = places
        self._directories: dict[int, str] = {}
        self.incomplete = ""
        self._file = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        try:
            self._add_tree(places.workspace)
            os.listdir(places.workspace)
            if not self._events():
                raise OSError("inotify is silent")
        except BaseException:
            os.close(self._file)
            raise

    def _add_tree(self, root: str) -> list[str]:
        """Watch a directory and those in it; return the files that are there."""
        until = time.monotonic() + LOOK_SECONDS
        files: list[str] = []
        waiting = [root]
        entries = 0
        while waiting:
            path = waiting.pop()
            watched = self._libc.inotify_add_watch(self._file, os.fsencode(path), self.MASK)
            if watched < 0:
                if path == self._places.workspace:
                    raise OSError("inotify_add_watch")
                if os.path.isdir(path):
                    self.incomplete = "not every directory of the workspace can be watched"
                continue
            self._directories[watched] = path
            try:
                with os.scandir(path) as found:
                    for entry in found:
                        entries += 1
                        if not entry.is_dir(follow_symlinks=False):
                            files.append(entry.path)
                        elif self._places.enters(entry.path):
                            waiting.append(entry.path)
            except OSError:
                continue
            many = entries > ENTRIES_LIMIT or len(self._directories) > DIRECTORIES_LIMIT
            if waiting and (many or time.monotonic() > until):
                self.incomplete = "the workspace is too large to be watched as a whole"
                break
        return files

    def _events(self) -> list[tuple[int, int, str]]:
        found: list[tuple[int, int, str]] = []
        while True:
            try:
                data = os.read(self._file, 1 << 18)
            except BlockingIOError:
                return found
            at = 0
            while at < len(data):
                watched, mask, _, length = struct.unpack_from("iIII", data, at)
                name = os.fsdecode(data[at + 16 : at + 16 + length].rstrip(b"\0"))
                found.append((watched, mask, name))
                at += 16 + length

    def begin(self) -> None:
        """Forget what happened between cells, but for directories that came."""
        self.take({})

    def take(self, uses: dict[str, Use]) -> str:
        """Add what has happened since; return why that may not be all, or nothing."""
        incomplete = ""
        for watched, mask, name in self._events():
            directory = self._directories.get(watched)
            if mask & self.OVERFLOW:
                self._directories.clear()
                self._add_tree(self._places.workspace)
                incomplete = "more files were opened in the workspace than can be followed"
            elif mask & self.IGNORED:
                self._directories.pop(watched, None)
            elif directory is None or not name:
                continue
            elif mask & self.IS_DIRECTORY:
                path = directory + "/" + name
                if mask & (self.CREATE | self.MOVED_TO) and self._places.enters(path):
                    for file in self._add_tree(path):
                        self._note(uses, file, self.CREATE)
            else:
                self._note(uses, directory + "/" + name, mask)
        return incomplete or self.incomplete

    def _note(self, uses: dict[str, Use], path: str, mask: int) -> None:
        if not self._places.counts(path):
            return
        use = uses.get(path)
        if use is None:
            if len(uses) > NOTES_LIMIT:
                return
            use = uses[path] = Use(None)
            use.how = "unseen"
            # What is new was not there before; of anything else that is not known.
            if not mask & (self.CREATE | self.MOVED_TO):
                use.before = (-1, -1, -1, -1)
        if mask & self.OPEN:
            if use.how and not use.is_written:
                use.is_read = True
        else:
            use.is_written = True


class Look:
    """What changed in a tree of directories, by a look before and after: where inotify is not."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._before: dict[str, tuple[State, int]] = {}
        self.incomplete = "files that only a library in C reads are not known"

    def _look(self) -> tuple[dict[str, tuple[State, int]], bool]:
        until = time.monotonic() + LOOK_SECONDS
        found: dict[str, tuple[State, int]] = {}
        waiting = [self._places.workspace]
        entries = 0
        while waiting:
            try:
                with os.scandir(waiting.pop()) as listed:
                    for entry in listed:
                        entries += 1
                        if entry.is_dir(follow_symlinks=False):
                            if self._places.enters(entry.path):
                                waiting.append(entry.path)
                            continue
                        if entry.is_file() and not entry.name.endswith(".pyc"):
                            s = entry.stat()
                            state = (s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino)
                            found[entry.path] = state, s.st_atime_ns
                        if entries % 256 == 0 and time.monotonic() > until:
                            return found, False
            except OSError:
                continue
            if entries > ENTRIES_LIMIT:
                return found, False
        return found, True

    def begin(self) -> None:
        """Look before a cell."""
        self._before, _ = self._look()

    def take(self, uses: dict[str, Use]) -> str:
        """Add what has changed; return why that may not be all."""
        after, is_whole = self._look()
        if is_whole:
            for path in set(self._before) - set(after):
                self._use(uses, path, self._before[path][0]).is_written = True
        for path, (state, read_at) in after.items():
            before = self._before.get(path)
            if before is None and (is_whole or state[1] > coarse_time_ns()):
                self._use(uses, path, None).is_written = True
            elif before is not None and before[0] != state:
                self._use(uses, path, before[0]).is_written = True
            elif before is not None and before[1] != read_at and path not in uses:
                use = self._use(uses, path, state)
                use.is_read = True
        return self.incomplete if is_whole else "the workspace is too large to be looked at"

    @staticmethod
    def _use(uses: dict[str, Use], path: str, before: State | None) -> Use:
        use = uses.get(path)
        if use is None:
            use = uses[path] = Use(before)
            use.how = "unseen"
        return use


class Opened(NamedTuple):
    """A file that this process holds open."""

    path: str
    can_read: bool
    can_write: bool


def open_files(places: Places, own: frozenset[str]) -> dict[str, Opened]:
    """Return the user's files that this process holds open, by path."""
    found: dict[str, Opened] = {}
    try:
        numbers = os.listdir("/proc/self/fd")
    except OSError:
        return found
    for number in numbers:
        try:
            path = os.readlink("/proc/self/fd/" + number)
            if path[:1] != "/" or path in own or int(number) < 3 or not places.counts(path):
                continue
            with open("/proc/self/fdinfo/" + number, encoding="ascii") as file:
                flags = int(file.read().partition("flags:")[2].split()[0], 8)
        except (OSError, ValueError, IndexError):
            continue
        mode = flags & os.O_ACCMODE
        known = found.get(path, Opened(path, False, False))
        can_read, can_write = mode != os.O_WRONLY, mode != os.O_RDONLY
        found[path] = Opened(path, known.can_read or can_read, known.can_write or can_write)
    return found
