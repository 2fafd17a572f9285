"""What the sandbox uses of its memory, processors, disk and GPUs, and what its container may use.

Everything is read from files of the kernel's, in well under a millisecond, and nothing here raises:
what cannot be found out is left out. What may hang (a disk behind a network, a GPU's driver) is
read by a thread of its own.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Pair = tuple[float, float]
    """What is used, and the most that may be."""

LOOK_SECONDS = 1.0
"""Memory and processors are looked at that often at most."""

TELL_SECONDS = 2.0
"""Answers tell what is used that often at most."""

RETELL_SECONDS = 10.0
"""What has hardly changed is told again after so long."""

WARNING_PARTS = (0.85, 0.95)
"""A memory as full as this is told at once; again when it was emptier by `REARM_PART`."""

REARM_PART = 0.05
RECENT_SECONDS = 10.0
"""A process that the kernel of the system killed so lately may be the one that has just ended."""

LOOKS_KEPT = 5
NOTEWORTHY_PARTS = {"memory": 0.01, "disk": 0.01, "cpu": 0.1}
"""Changes that are told before `RETELL_SECONDS`, as parts of the limit."""

UNLIMITED_BYTES = 1 << 60
"""Control groups of version 1 write "unlimited" as a number that is larger than this."""

READ_BYTES = 1 << 14
GPUS_LIMIT = 16
NVML_LIBRARY = "libnvidia-ml.so.1"


def read_text(path: str) -> str:
    """Return the beginning of a small file; empty where it cannot be read."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return ""
    try:
        return os.read(file, READ_BYTES).decode("ascii", "replace")
    except OSError:
        return ""
    finally:
        os.close(file)


def read_number(path: str) -> int | None:
    """Return the number in a file; ``None`` where there is none, as for ``max``."""
    text = read_text(path).strip()
    return int(text) if text.isdigit() else None


def read_table(path: str, separator: str | None = None) -> dict[str, int]:
    """Return the numbers in a file with a name and a number on each line."""
    found = {}
    for line in read_text(path).splitlines():
        parts = line.split(separator)
        number = parts[1].split() if len(parts) > 1 else []
        if number and number[0].isdigit():
            found[parts[0]] = int(number[0])
    return found


def _is_directory(path: str) -> bool:
    try:
        return Path(path).is_dir()
    except OSError:  # a directory above it may not be searched
        return False


class ControlGroups:
    """The control groups that this process is in, by controller: its own first, then those above.

    Parameters
    ----------
    proc
        Where the system shows its processes.
    """

    def __init__(self, proc: str) -> None:
        mounts = self._mounts(proc)
        self.memory: list[str] = []
        self.cpu: list[str] = []
        self.accounting: list[str] = []
        self.is_unified = False
        for line in read_text(proc + "/self/cgroup").splitlines():
            _, _, rest = line.partition(":")
            names, _, path = rest.partition(":")
            for name in names.split(","):
                found = self._levels(mounts.get(name), path)
                if name == "memory":
                    self.memory = found
                elif name == "cpu":
                    self.cpu = found
                elif name == "cpuacct":
                    self.accounting = found
        if not (self.memory or self.cpu or self.accounting):
            # Version 2 has one tree, whose name is empty; beside version 1 it has no controllers.
            for line in read_text(proc + "/self/cgroup").splitlines():
                if line.startswith("0::"):
                    found = self._levels(mounts.get(""), line[3:])
                    self.memory = self.cpu = self.accounting = found
                    self.is_unified = bool(found)

    @staticmethod
    def _mounts(proc: str) -> dict[str, tuple[str, str]]:
        """Return controller → what of its tree is mounted, and where."""
        found: dict[str, tuple[str, str]] = {}
        for line in read_text(proc + "/self/mountinfo").splitlines():
            before, _, after = line.partition(" - ")
            place, kind = before.split(), after.split()
            if len(place) < 5 or len(kind) < 3:
                continue
            mounted = (place[3], place[4].replace("\\040", " "))
            if kind[0] == "cgroup2":
                found.setdefault("", mounted)
            elif kind[0] == "cgroup":
                for name in kind[2].split(","):
                    found.setdefault(name, mounted)
        return found

    @staticmethod
    def _levels(mounted: tuple[str, str] | None, path: str) -> list[str]:
        if mounted is None:
            return []
        root, place = mounted
        # A container may see the path on its host, of which only its own part is mounted.
        inside = path[len(root) :] if root != "/" and path.startswith(root) else path
        parts = [part for part in inside.split("/") if part not in ("", "..")]
        levels = []
        while parts:
            levels.append("/".join([place, *parts]))
            parts.pop()
        return [level for level in [*levels, place] if _is_directory(level)]


class Gpus:
    """NVIDIA's GPUs, by their own library, if the sandbox has it. Lives in one thread."""

    def __init__(self) -> None:
        self._library: Any = None
        try:
            import ctypes  # takes some milliseconds, and is needed here alone

            library = ctypes.CDLL(NVML_LIBRARY)
            if library.nvmlInit_v2() == 0:
                self._library = library
        except (ImportError, OSError, AttributeError):
            return

    def read(self) -> list[list[Any]]:
        """Return of each GPU its name, how busy it is in percent, its memory in use and in all."""
        if self._library is None:
            return []
        import ctypes

        class Rates(ctypes.Structure):
            _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]

        class Memory(ctypes.Structure):
            _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]

        library, count = self._library, ctypes.c_uint()
        if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return []
        found: list[list[Any]] = []
        for index in range(min(count.value, GPUS_LIMIT)):
            handle, name = ctypes.c_void_p(), ctypes.create_string_buffer(96)
            rates, memory = Rates(), Memory()
            if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != 0:
                continue
            library.nvmlDeviceGetName(handle, name, 96)
            has_rates = library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates)) == 0
            if library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0:
                words = name.value.decode("utf-8", "replace")
                percent = rates.gpu if has_rates else None
                found.append([words, percent, memory.used, memory.total])
        return found


class SlowReader:
    """Reads the disk and the GPUs in a thread, so that one that hangs holds up nothing else.

    Parameters
    ----------
    directory
        Whose disk is meant.
    """

    def __init__(self, directory: str) -> None:
        self.disk: Pair | None = None
        self.gpus: list[list[Any]] = []
        self._directory = directory
        self._gpus: Gpus | None = None
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Begin to read anew, unless the last reading has not ended."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._thread = threading.Thread(target=self._read, name="ivy-meters", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no thread can be started: the limit of processes is reached
            self._thread = None

    def wait(self, seconds: float) -> None:
        """Return when the reading under way has ended, or the time is over."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _read(self) -> None:
        self.disk = disk_of(self._directory)
        try:
            self._gpus = self._gpus or Gpus()
            self.gpus = self._gpus.read()
        except Exception:  # whatever a driver's library may do
            self.gpus = []


def disk_of(directory: str) -> Pair | None:
    """Return how much of a disk is used, and how much could be, with a quota that it has itself."""
    try:
        state = os.statvfs(directory or "/")
    except OSError:
        return None
    # As df counts: what is kept for the administrator can be used by nobody else.
    used = (state.f_blocks - state.f_bfree) * state.f_frsize
    limit = used + state.f_bavail * state.f_frsize
    # Some file systems in the user's space tell no size, or one without end.
    return (used, limit) if 0 < limit < UNLIMITED_BYTES else None


class Meters:
    """Looks at what is used while time goes on, and says what of it is worth telling.

    Parameters
    ----------
    directory
        The working directory, whose disk is meant.
    proc
        Where the system shows its processes.
    """

    def __init__(self, directory: str, proc: str = "/proc") -> None:
        self._proc = proc
        self._groups = ControlGroups(proc)
        self.slow = SlowReader(directory)
        self._looked_at = self._told_at = self._oom_at = float("-inf")
        self._told: dict[str, Any] | None = None
        self._memory: Pair | None = None
        self._cpu: Pair | None = None
        self._cpu_before: Pair | None = None
        self._looks: deque[Pair] = deque(maxlen=LOOKS_KEPT)
        self._oom_kills = self.oom_kills()
        self._level = 0.0
        self._is_urgent = False

    # -- what is used

    def memory(self, pid: int = 0) -> Pair | None:
        """Return the bytes in use and the most that may be, of what will be full first.

        Parameters
        ----------
        pid
            The kernel's process, for which a limit of its address space counts; 0 for none.
        """
        machine = read_table(self._proc + "/meminfo", ":")
        total_bytes = machine.get("MemTotal", 0) * 1024
        found: list[Pair] = []
        for level in self._groups.memory:
            pair = self._memory_of_group(level)
            if pair is not None and pair[1] < (total_bytes or UNLIMITED_BYTES):
                found.append(pair)
        if not found and total_bytes and "MemAvailable" in machine:
            found.append((total_bytes - machine["MemAvailable"] * 1024, total_bytes))
        address_space = self._address_space(pid)
        if address_space is not None and all(address_space[1] < limit for _, limit in found):
            return address_space
        return min(found, key=lambda pair: pair[1] - pair[0]) if found else None

    def _memory_of_group(self, level: str) -> Pair | None:
        if self._groups.is_unified:
            names = ("memory.max", "memory.current", "inactive_file")
        else:
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        limit, used = read_number(f"{level}/{names[0]}"), read_number(f"{level}/{names[1]}")
        if not limit or used is None:
            return None
        # As Kubernetes and Docker count: what was read of files is given up when there is need.
        return max(0, used - read_table(f"{level}/memory.stat").get(names[2], 0)), limit

    def _address_space(self, pid: int) -> Pair | None:
        if not pid:
            return None
        try:
            import resource

            limit = resource.getrlimit(resource.RLIMIT_AS)[0]
            pages = read_text(f"{self._proc}/{pid}/statm").split()
            if limit <= 0 or limit >= UNLIMITED_BYTES or not pages or not pages[0].isdigit():
                return None
            return int(pages[0]) * resource.getpagesize(), limit
        except (ImportError, OSError, ValueError):
            return None

    def cores(self) -> float:
        """Return how many processors may be used; a part of one counts as such."""
        try:
            cores = float(len(os.sched_getaffinity(0)))
        except (AttributeError, OSError):
            cores = float(os.cpu_count() or 1)
        for level in self._groups.cpu:
            limit = self._cpu_limit(level)
            cores = min(cores, limit) if limit else cores
        return cores

    def _cpu_limit(self, level: str) -> float | None:
        if self._groups.is_unified:
            words = read_text(level + "/cpu.max").split()
        else:
            words = [
                read_text(f"{level}/cpu.cfs_{name}_us").strip() for name in ("quota", "period")
            ]
        if len(words) < 2 or not (words[0].isdigit() and words[1].isdigit()) or words[1] == "0":
            return None
        return int(words[0]) / int(words[1])

    def cpu_seconds(self) -> float | None:
        """Return how long all processors together have worked; ``None`` where that is unknown."""
        limited = [level for level in self._groups.cpu if self._cpu_limit(level)]
        # The outermost is the container, or the machine where there is none.
        for level in [*limited[:1], *self._groups.accounting[-1:]]:
            if self._groups.is_unified:
                used = read_table(level + "/cpu.stat").get("usage_usec", 0) / 1e6
            else:
                used = (read_number(level + "/cpuacct.usage") or 0) / 1e9
            if used:
                return used
        words = read_text(self._proc + "/stat").partition("\n")[0].split()
        ticks = [int(word) for word in words[1:9] if word.isdigit()]
        if len(ticks) < 8 or words[0] != "cpu":
            return None
        user, nice, system, _, _, irq, softirq, _ = ticks  # without what was idle, or stolen
        return (user + nice + system + irq + softirq) / float(os.sysconf("SC_CLK_TCK")) or None

    def oom_kills(self) -> int | None:
        """Return how many processes were killed because memory ran out; ``None`` where unknown."""
        name = "memory.events" if self._groups.is_unified else "memory.oom_control"
        for level in self._groups.memory:
            number = read_table(f"{level}/{name}").get("oom_kill")
            if number is not None:
                return number
        return None

    # -- as time goes on

    def look(self, now: float, pid: int = 0) -> bool:
        """Look again if it is time to; return whether memory has just become alarmingly full."""
        if now - self._looked_at < LOOK_SECONDS:
            return False
        passed, self._looked_at = now - self._looked_at, now
        self._memory = self.memory(pid)
        if self._memory is not None:
            self._looks.append(self._memory)
        used, before = self.cpu_seconds(), self._cpu_before
        cores = self.cores()
        self._cpu_before = None if used is None else (used, now)
        if used is not None and before is not None and used >= before[0]:
            percent = min(100 * (used - before[0]) / passed, 100 * cores)
            self._cpu = (percent, cores)
        kills = self.oom_kills()
        if kills is not None and self._oom_kills is not None and kills > self._oom_kills:
            self._oom_at = now
        self._oom_kills = kills
        return self._has_filled()

    def _has_filled(self) -> bool:
        part = self._memory[0] / self._memory[1] if self._memory else 0.0
        level = max([0.0, *(each for each in WARNING_PARTS if part >= each)])
        if level > self._level:
            self._level, self._is_urgent = level, True
            return True
        if part < self._level - REARM_PART:
            self._level = level
        return False

    def forget_told(self) -> None:
        """Tell everything with the next answer: it is another client's."""
        self._told = None
        self._told_at = float("-inf")

    def news(self, now: float, pid: int = 0) -> dict[str, Any] | None:
        """Return what an answer that leaves now should tell; ``None`` for nothing."""
        passed = now - self._told_at
        if passed < TELL_SECONDS and not self._is_urgent:
            return None
        self.look(now, pid)
        disk, gpus = self.slow.disk, self.slow.gpus
        self.slow.begin()  # for the next answer
        found: dict[str, Any] = {}
        if self._memory is not None:
            found["memory"] = [int(value) for value in self._memory]
        if self._cpu is not None:
            found["cpu"] = [round(self._cpu[0], 1), round(self._cpu[1], 2)]
        if disk is not None:
            found["disk"] = [int(value) for value in disk]
        if gpus:
            found["gpus"] = gpus
        is_news = self._is_urgent or passed >= RETELL_SECONDS or self._has_changed(found)
        if not found or not is_news:
            return None
        self._told, self._told_at, self._is_urgent = found, now, False
        return found

    def _has_changed(self, found: dict[str, Any]) -> bool:
        told = self._told or {}
        if set(told) != set(found):
            return True
        for name, part in NOTEWORTHY_PARTS.items():
            if name in found:
                # Of the processor the first is in percent, and the limit in processors.
                limit = found[name][1] * (100 if name == "cpu" else 1)
                if abs(found[name][0] - told[name][0]) >= part * limit:
                    return True
        return False

    def of_death(self, now: float) -> dict[str, Any]:
        """Return what is known of memory when the kernel has just ended.

        ``memory``: the most that was in use in the last seconds, and the limit. ``oom_killed``:
        whether the system has killed a process of the sandbox just now because memory ran out;
        missing where that is unknown.
        """
        found: dict[str, Any] = {}
        if self._looks:
            found["memory"] = [int(value) for value in max(self._looks)]
        kills = self.oom_kills()
        if kills is not None and self._oom_kills is not None:
            rose = kills > self._oom_kills or now - self._oom_at < RECENT_SECONDS
            found["oom_killed"] = rose
        self._oom_kills, self._oom_at = kills, float("-inf")
        self._looks.clear()
        return found
