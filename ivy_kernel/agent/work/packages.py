"""The packages of a sandbox: a lock of exact versions, what changed since it began, an install.

The lock is read from what installers leave on the disk, without starting one: the metadata of
Python distributions on ``sys.path``, ``conda-meta``, and the ``DESCRIPTION`` files of R's
libraries. A directory is read again when its time has changed; otherwise a look costs a few
microseconds. The first lock is kept in the state directory, so that what changed since is known
after a restart of the kernel and after a hibernation.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import hashlib
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any, Dict, Iterable, Optional, Tuple

from .requests import Part

if TYPE_CHECKING:
    from .requests import Context, Request

Json = Dict[str, Any]
Found = Tuple[str, str, Optional[str]]
"""Name, version, and where it is from if that is not an index."""

LOG_BYTES = 16 << 10
"""Of what installers say, so much is kept, the end of it."""

INSTALL_SECONDS = 900.0
HEADER_BYTES = 1 << 16
RECENT_NS = 50_000_000
"""A directory that was changed so shortly before a look may change within the same tick."""

CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@|(?<=/t/)[^/\s]+(?=/)|\?[^\s#]*")
SPECIFIER = re.compile(r"[A-Za-z0-9][\w.-]*=[\w.!+=-]+$")  # nothing that looks like an option
R_SCRIPT = """
args <- commandArgs(TRUE); name <- args[1]; version <- args[2]
repos <- getOption("repos"); repos[repos == "@CRAN@"] <- "https://cloud.r-project.org"
options(repos = repos)
if (requireNamespace("remotes", quietly = TRUE)) {
  remotes::install_version(name, version, upgrade = "never")
} else {
  there <- available.packages()
  if (name %in% rownames(there) && there[name, "Version"] == version) install.packages(name) else {
    place <- sprintf("%s/src/contrib/Archive/%s/%s_%s.tar.gz", repos[1], name, name, version)
    install.packages(place, repos = NULL, type = "source")
  }
}
"""


def normal_name(name: str) -> str:
    """Return a distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def lock_digest(lock: Json) -> str:
    """Return the SHA-256 that stands for a lock in a record."""
    text = json.dumps(lock, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def without_credentials(text: str) -> str:
    """Return an address or an installer's output without user names, keys and queries."""
    return CREDENTIALS.sub("", text)


def _headers(path: str, *wanted: str) -> list[str]:
    """Return values of headers of a metadata file; empty where there are none."""
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read(HEADER_BYTES)
    found = dict.fromkeys(wanted, "")
    for line in text.splitlines():
        name, separator, value = line.partition(":")
        if not line.strip() and any(found.values()):
            break
        if separator and name in found and not found[name]:
            found[name] = value.strip()
    return [found[name] for name in wanted]


class Shelf:
    """A directory of packages, read again only when it has changed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.found: list[Found] = []
        self._state: tuple[int, int] | None = None
        self._is_settled = False
        self._known: dict[str, tuple[tuple[int, int], list[Found]]] = {}

    def look(self) -> bool:
        """Read the directory where it has changed; return whether it was read."""
        state = self._state_of(self.path)
        if state == self._state and self._is_settled:
            return False
        self._is_settled = state is None or time.time_ns() - state[0] > RECENT_NS
        self._state = state
        known, self._known = self._known, {}
        try:
            names = sorted(os.listdir(self.path)) if state else []
        except OSError:
            names = []
        for name in names:
            if not self.is_package(name):
                continue
            path = os.path.join(self.path, name)
            entry_state = self._state_of(path)
            if entry_state is None:
                continue
            before = known.get(name)
            if before is None or before[0] != entry_state:
                try:
                    before = entry_state, list(self.read(path))
                except (OSError, ValueError):
                    continue  # half of an installation; its end changes the directory again
            self._known[name] = before
        self.found = [found for _, each in self._known.values() for found in each]
        return True

    @staticmethod
    def _state_of(path: str) -> tuple[int, int] | None:
        try:
            found = os.stat(path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino

    def is_package(self, name: str) -> bool:
        """Whether an entry of this name describes a package."""
        raise NotImplementedError

    def read(self, path: str) -> Iterable[Found]:
        """Return the package that an entry describes."""
        raise NotImplementedError


class PythonShelf(Shelf):
    """A directory on ``sys.path``."""

    def is_package(self, name: str) -> bool:
        """Whether it is the metadata of a distribution."""
        return name.endswith((".dist-info", ".egg-info"))

    def read(self, path: str) -> Iterable[Found]:
        """Read name and version, and PEP 610's ``direct_url.json``."""
        for metadata in (path + "/METADATA", path + "/PKG-INFO", path):
            if os.path.isfile(metadata):
                name, version = _headers(metadata, "Name", "Version")
                break
        else:
            return
        direct = None
        if os.path.isfile(path + "/direct_url.json"):
            with open(path + "/direct_url.json", encoding="utf-8") as file:
                direct = _direct(json.load(file))
        if name and version:
            yield normal_name(name), version, direct


def _direct(said: Json) -> str | None:
    """Return how pip is told of a package that no index has."""
    url = without_credentials(str(said.get("url", "")))
    below = said.get("subdirectory")
    fragment = f"#subdirectory={below}" if below else ""
    if "vcs_info" in said:
        vcs = said["vcs_info"]
        return "{}+{}@{}{}".format(vcs.get("vcs", "git"), url, vcs.get("commit_id", ""), fragment)
    if said.get("dir_info", {}).get("editable"):
        return f"-e {url}{fragment}"
    archive = said.get("archive_info", {})
    hashes = archive.get("hashes") or dict([str(archive.get("hash", "=")).split("=", 1)])
    if hashes.get("sha256") and not fragment:
        fragment = "#sha256={}".format(hashes["sha256"])
    return url + fragment if url else None


class CondaShelf(Shelf):
    """The ``conda-meta`` of an environment."""

    def is_package(self, name: str) -> bool:
        """Whether it is the record of a package."""
        return name.endswith(".json") and name.count("-") >= 2

    def read(self, path: str) -> Iterable[Found]:
        """Read name, version and build from the name: the files hold megabytes."""
        name, version, build = os.path.basename(path)[: -len(".json")].rsplit("-", 2)
        yield name, f"{version}={build}", None


class RShelf(Shelf):
    """A library of R."""

    def is_package(self, name: str) -> bool:
        """Whether a directory may be a package."""
        return name[:1].isalpha()

    def read(self, path: str) -> Iterable[Found]:
        """Read its ``DESCRIPTION``; what belongs to R has R's version."""
        name, version, priority = _headers(path + "/DESCRIPTION", "Package", "Version", "Priority")
        if name == "base":
            yield "R", version, None
        elif name and version and priority != "base":
            yield name, version, None


def r_libraries() -> list[str]:
    """Return where R looks for packages, in its order, without starting it."""
    found: list[str] = []
    for variable in ("R_LIBS", "R_LIBS_USER", "R_LIBS_SITE"):
        found += os.environ.get(variable, "").split(":")
    found += sorted(glob.glob(os.path.expanduser("~/R/*-library/*")), reverse=True)
    found += ["/usr/local/lib/R/site-library", "/usr/local/lib/R/library"]
    found += ["/usr/lib/R/site-library", "/usr/lib/R/library", sys.prefix + "/lib/R/library"]
    if os.environ.get("R_HOME"):
        found.append(os.environ["R_HOME"] + "/library")
    places = [os.path.expanduser(path) for path in found if path and "%" not in path]
    return list(dict.fromkeys(place for place in places if os.path.isdir(place)))


class Packages(Part):
    """What is installed, what changed, and how it is installed again.

    Parameters
    ----------
    directory
        The state directory; it keeps the first lock.
    python
        The interpreter whose packages these are, for a test.
    path
        Where its packages are; ``None`` is ``sys.path``.
    """

    def __init__(
        self, directory: str, python: str = sys.executable, path: list[str] | None = None
    ) -> None:
        self._python = python
        self._path = path
        self._here = os.getcwd()
        self._shelves: dict[str, Shelf] = {}
        self._r_places = r_libraries()
        self._r_looked = time.monotonic()
        self._lock: Json = {}
        self._digest = ""
        self._file = os.path.join(directory, "packages.json")
        self._first = self._read_first()

    def _read_first(self) -> Json:
        # Where there is none yet, or it is damaged, what changed is counted from now.
        with contextlib.suppress(OSError, ValueError), open(self._file, encoding="utf-8") as file:
            first = json.load(file)
            if isinstance(first, dict) and isinstance(first.get("lock"), dict):
                return first
        first = {"at": time.time(), "lock": self.lock()}
        part = f"{self._file}.{os.getpid()}"
        # With a full disk it is known for as long as this kernel lives.
        with contextlib.suppress(OSError):
            with open(part, "w", encoding="utf-8") as file:
                json.dump(first, file)
            os.replace(part, self._file)
        return first

    def _look(self) -> None:
        """Read what has changed since the last look."""
        if time.monotonic() - self._r_looked > 5.0:
            self._r_places, self._r_looked = r_libraries(), time.monotonic()
        path = sys.path if self._path is None else self._path
        # The working directory is on the path, and changes with every file that a cell writes.
        wanted: dict[str, type[Shelf]] = {p: PythonShelf for p in path if p != self._here}
        wanted.pop("", None)
        if self._path is None:
            wanted[os.path.join(sys.prefix, "conda-meta")] = CondaShelf
        wanted.update(dict.fromkeys(self._r_places, RShelf))
        shelves = self._shelves
        self._shelves = {p: shelves.get(p) or kind(p) for p, kind in wanted.items()}
        is_new = list(shelves) != list(self._shelves)
        for shelf in self._shelves.values():
            is_new = shelf.look() or is_new
        if not is_new and self._lock:
            return
        lock: Json = {"python": sys.version.split()[0]}
        lock.update(pip={}, direct={}, conda={}, r={})
        for shelf in self._shelves.values():
            kind = {PythonShelf: "pip", CondaShelf: "conda"}.get(type(shelf), "r")
            for name, version, direct in shelf.found:
                if name not in lock[kind]:  # the first on the path is the one that is imported
                    lock[kind][name] = version
                    if direct:
                        lock["direct"][name] = direct
        if lock != self._lock:
            self._lock, self._digest = lock, lock_digest(lock)

    def lock(self) -> Json:
        """Return the exact versions of everything that is installed."""
        self._look()
        return self._lock

    def digest(self) -> str:
        """Return the SHA-256 of the lock, as records name it."""
        self._look()
        return self._digest

    def changed(self) -> dict[str, list[str | None]]:
        """Return what was installed, removed or replaced since the sandbox began.

        Names of conda and R have ``conda:`` and ``r:`` before them.
        """
        lock, first = self.lock(), self._first["lock"]
        found: dict[str, list[str | None]] = {}
        for kind, prefix in (("pip", ""), ("conda", "conda:"), ("r", "r:")):
            before, after = first.get(kind, {}), lock[kind]
            for name in sorted(set(before) | set(after)):
                if before.get(name) != after.get(name):
                    found[prefix + name] = [before.get(name), after.get(name)]
        return found

    def requests(self) -> dict[str, Request]:
        """Return what answers ``packages`` and ``install``."""
        return {"packages": lambda _: self.describe(), "install": self._install}

    def _install(self, content: Json) -> Json:
        lock = content.get("lock")
        if not isinstance(lock, dict):
            raise TypeError(f"{lock!r:.80} is no lock: send what the request `packages` returned")
        return self.install(lock, float(content.get("timeout_seconds", INSTALL_SECONDS)))

    def describe(self) -> Json:
        """Return the lock, what changed, and since when (Unix)."""
        return dict(self.lock(), changed=self.changed(), since=self._first["at"])

    def install(self, lock: Json, timeout_seconds: float = INSTALL_SECONDS) -> Json:
        """Install what a lock has and this sandbox has not.

        Returns
        -------
        dict
            ``packages``: for each that was not there a dict of ``tool``, ``name``, ``version``,
            ``fate`` (``installed`` or ``failed``) and ``why``; ``present``: how many were there;
            ``log``: the end of what the tools said.
        """
        direct = lock.get("direct")
        direct = direct if isinstance(direct, dict) else {}
        work = Installation(self._python, time.monotonic() + timeout_seconds)
        present = 0
        # Conda comes first: what it installs, Python sees too, and pip need not bring again.
        for kind in ("conda", "r", "pip"):
            here = self.lock()
            wanted = {}
            asked = lock.get(kind)
            for name, version in sorted(asked.items() if isinstance(asked, dict) else ()):
                if here[kind].get(name) == version and (
                    kind != "pip" or here["direct"].get(name) == direct.get(name)
                ):
                    present += 1
                elif SPECIFIER.match(f"{name}={version}"):
                    wanted[name] = version
                else:
                    work.tell(kind, str(name), str(version), "it is no name and version")
            if wanted:
                getattr(work, kind)(wanted, direct)
        importlib.invalidate_caches()
        here = self.lock()
        for told in work.told:
            # What counts is what is there now, not what a tool says.
            kind = told["tool"]
            is_there = here[kind].get(told["name"]) == told["version"]
            told["fate"] = "installed" if is_there else "failed"
            if is_there:
                told["why"] = ""
            elif not told["why"]:
                told["why"] = f"{kind} left it as it was"
        return {"packages": work.told, "present": present, "log": work.log}


@functools.lru_cache(maxsize=1)
def open_packages(directory: str) -> Packages:
    """Return the packages of this process, which every part shares."""
    return Packages(directory)


def open_part(context: Context) -> Part:
    """Return the part that knows the packages."""
    return open_packages(context.directory)


class Installation:
    """One run of the tools that install, with what they say.

    Parameters
    ----------
    python
        The interpreter to install for.
    deadline
        Monotonic; tools that run until then are ended.
    """

    def __init__(self, python: str, deadline: float) -> None:
        self._python = python
        self._deadline = deadline
        self.log = ""
        self.told: list[Json] = []

    def tell(self, tool: str, name: str, version: str, why: str) -> None:
        """Note a package that is not there."""
        self.told.append({"tool": tool, "name": name, "version": version, "fate": "", "why": why})

    def _run(self, command: list[str]) -> str:
        """Run a tool; return why it failed in one line, or nothing."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            return "there was no time left"
        with tempfile.TemporaryFile() as output:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as refused:
                return f"{command[0]} cannot be started: {refused.strerror}"
            with contextlib.suppress(subprocess.TimeoutExpired):
                try:
                    process.wait(left)
                finally:  # an interrupt ends the tool too, and what it has started
                    is_late = process.poll() is None
                    if is_late:
                        os.killpg(process.pid, signal.SIGKILL)
                    code = process.wait()
            size = output.seek(0, os.SEEK_END)
            output.seek(max(0, size - LOG_BYTES))
            said = without_credentials(output.read().decode("utf-8", "replace")).strip()
        self.log = f"{self.log}\n{said}".strip()[-LOG_BYTES:]
        if code == 0:
            return ""
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        errors = [line for line in lines if line.lower().startswith(("error", "could not"))]
        reason = (errors or lines or ["it said nothing"])[-1][:300]
        return f"it took too long: {reason}" if is_late else reason

    def pip(self, wanted: dict[str, str], direct: Json) -> None:
        """Install Python distributions: all at once, and where that fails one by one."""
        asked: dict[str, list[str]] = {}
        for name, version in wanted.items():
            given = str(direct.get(name) or "")
            place = re.sub(r"^-e |#.*", "", given)
            if place.startswith("file://") and not os.path.exists(place[len("file://") :]):
                self.tell("pip", name, version, f"it was installed from {place}, which is not here")
            elif given.startswith("-e "):
                asked[name] = ["-e", given[3:]]
            else:
                asked[name] = [f"{name} @ {given}" if given else f"{name}=={version}"]
        # A lock has every version: nothing is to be resolved, and nothing else to be changed.
        options = ["--no-deps", "--disable-pip-version-check", "--no-input", "--progress-bar=off"]
        tool = [self._python, "-m", "pip", "install", *options]
        found = shutil.which("uv")
        if found and self._run([self._python, "-m", "pip", "--version"]):
            tool = [found, "pip", "install", "--python", self._python, "--no-deps"]
        words = [word for each in asked.values() for word in each]
        why = self._run([*tool, *words]) if words else ""
        for name, words in asked.items():
            one = self._run([*tool, *words]) if why and len(asked) > 1 else why
            self.tell("pip", name, wanted[name], one)

    def conda(self, wanted: dict[str, str], _direct: Json) -> None:
        """Install conda's packages, by whichever of its tools is there."""
        places = os.path.join(sys.prefix, "bin") + os.pathsep + os.environ.get("PATH", "")
        for name in ("mamba", "conda", "micromamba"):
            tool = os.environ.get("CONDA_EXE") if name == "conda" else None
            tool = tool or shutil.which(name, path=places)
            if tool and os.path.isdir(sys.prefix + "/conda-meta"):
                specs = (f"{spec}={version}" for spec, version in wanted.items())
                why = self._run([tool, "install", "--yes", "--prefix", sys.prefix, *specs])
                break
        else:
            why = "there is no conda here"
        for name, version in wanted.items():
            self.tell("conda", name, version, why)

    def r(self, wanted: dict[str, str], _direct: Json) -> None:
        """Install R's packages one by one, from CRAN or its archive."""
        tool = shutil.which("Rscript")
        for name, version in wanted.items():
            why = "R itself has another version here" if tool else "there is no R here"
            if tool and name != "R":
                why = self._run([tool, "-e", R_SCRIPT, name, version])
            self.tell("r", name, version, why)
