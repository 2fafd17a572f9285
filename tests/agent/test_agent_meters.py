"""What the agent says of memory, processors and disk, by the files of the system that it finds."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from ivy_kernel.agent import PROTOCOL_VERSION
from ivy_kernel.agent.meters import Meters
from ivy_kernel.agent.service import Connection, Service
from ivy_kernel.routes.agent.calls import pack

GIB = 1 << 30
MEMINFO = f"MemTotal: {32 * GIB >> 10} kB\nMemFree: 1 kB\nMemAvailable: {20 * GIB >> 10} kB\n"
UNLIMITED_V1 = str((1 << 63) - 4096)


def write(path: Path, text: str) -> None:
    """Write a file, and the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


class System:
    """A tree of the files in which a system tells what is used."""

    def __init__(self, place: Path) -> None:
        self.proc = place / "proc"
        self.groups = place / "a cgroup"
        write(self.proc / "meminfo", MEMINFO)
        write(self.proc / "stat", "cpu  100 0 100 5000 0 0 0 0 0 0\ncpu0 1 2 3\n")

    def mount(self, kind: str, name: str = "", root: str = "/") -> Path:
        """Mount a tree of control groups."""
        path = self.groups / name
        path.mkdir(parents=True, exist_ok=True)
        shown = str(path).replace(" ", "\\040")
        line = f"31 23 0:28 {root} {shown} rw,relatime - {kind} {kind} rw,{name}\n"
        with (self.proc / "self" / "mountinfo").open("a") as file:
            file.write(line)
        return path

    def meters(self) -> Meters:
        """Begin to look at it."""
        return Meters(str(self.groups), str(self.proc))


@pytest.fixture
def system(tmp_path: Path) -> System:
    """A machine of 32 GiB, of which 20 are available, without control groups."""
    made = System(tmp_path)
    write(made.proc / "self" / "mountinfo", "")
    return made


def unified(system: System, path: str, root: str = "/") -> Path:
    """Control groups of version 2, with this process in one of them."""
    write(system.proc / "self" / "cgroup", f"0::{path}\n")
    return system.mount("cgroup2", root=root)


def limit(group: Path, maximum: str, current: int, inactive: int = 0) -> None:
    """Write the memory files of version 2."""
    write(group / "memory.max", f"{maximum}\n")
    write(group / "memory.current", f"{current}\n")
    write(group / "memory.stat", f"anon 1\ninactive_file {inactive}\n")


def test_a_machine_without_a_container_tells_its_own_memory(system: System) -> None:
    """In use is what is not available."""
    assert system.meters().memory() == (12 * GIB, 32 * GIB)


def test_a_container_of_version_2(system: System) -> None:
    """Its limit counts; what was read of files and can be given up does not count as used."""
    group = unified(system, "/")
    limit(group, str(16 * GIB), 5 * GIB, inactive=2 * GIB)
    write(group / "cpu.max", "150000 100000\n")
    write(group / "cpu.stat", "usage_usec 2500000\nuser_usec 1\n")
    meters = system.meters()
    assert meters.memory() == (3 * GIB, 16 * GIB)
    assert meters.cores() == min(1.5, len(os.sched_getaffinity(0)))
    assert meters.cpu_seconds() == 2.5


def test_nested_groups_are_told_by_what_fills_first(system: System) -> None:
    """A pod's limit counts beside the container's own."""
    group = unified(system, "/pod/container")
    limit(group / "pod" / "container", str(8 * GIB), GIB)
    limit(group / "pod", str(10 * GIB), 9 * GIB)
    limit(group, "max", 20 * GIB)
    assert system.meters().memory() == (9 * GIB, 10 * GIB)
    limit(group / "pod", "max", 9 * GIB)
    assert system.meters().memory() == (GIB, 8 * GIB)


@pytest.mark.parametrize("mounted", ["/docker/abc", "/"], ids=["its own part", "everything"])
def test_a_container_of_version_1(system: System, mounted: str) -> None:
    """With the path on its host, of which only its own part may be mounted."""
    lines = "".join(f"{i}:{name}:/docker/abc\n" for i, name in enumerate(("memory", "cpu,cpuacct")))
    write(system.proc / "self" / "cgroup", f"{lines}9:name=systemd:/\n0::/\n")
    system.mount("cgroup2", "unified")
    found = {name: system.mount("cgroup", name, mounted) for name in ("memory", "cpu,cpuacct")}
    inside = "docker/abc" if mounted == "/" else ""
    memory, cpu = (group / inside for group in found.values())
    write(memory / "memory.limit_in_bytes", f"{4 * GIB}\n")
    write(memory / "memory.usage_in_bytes", f"{2 * GIB}\n")
    write(memory / "memory.stat", f"cache 7\ninactive_file 5\ntotal_inactive_file {GIB}\n")
    write(memory / "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    write(cpu / "cpu.cfs_quota_us", "50000\n")
    write(cpu / "cpu.cfs_period_us", "100000\n")
    write(cpu / "cpuacct.usage", "4500000000\n")
    meters = system.meters()
    assert meters.memory() == (GIB, 4 * GIB)
    assert meters.cores() == 0.5
    assert meters.cpu_seconds() == 4.5
    assert meters.oom_kills() == 3


def test_groups_without_a_limit_are_the_machine(system: System) -> None:
    """Both ways of writing "unlimited", and a limit above what the machine has."""
    group = unified(system, "/user")
    for maximum in ("max", UNLIMITED_V1, str(64 * GIB)):
        limit(group / "user", maximum, GIB)
        assert system.meters().memory() == (12 * GIB, 32 * GIB), maximum


GARBAGE = {
    "memory.max": "16 GiB",
    "memory.current": "-1",
    "memory.stat": "inactive_file\ninactive_file x\n\n",
    "cpu.max": "fast 0",
    "cpu.stat": "usage_usec many",
    "memory.events": "oom_kill -\n",
}


def test_garbage_and_missing_files_are_no_errors(system: System, tmp_path: Path) -> None:
    """What cannot be read is left out; nothing is raised, and nothing false is told."""
    group = unified(system, "/")
    for name, text in GARBAGE.items():
        write(group / name, text)
    for name in ("meminfo", "stat"):
        write(system.proc / name, "\0\xff no table\n:::\n")
    meters = system.meters()
    assert meters.memory() is None
    assert meters.cpu_seconds() is None
    assert meters.oom_kills() is None
    assert meters.news(1.0) is None
    nowhere = Meters(str(tmp_path / "gone"), str(tmp_path / "nowhere"))
    nowhere.slow.begin()
    nowhere.slow.wait(5)
    assert nowhere.news(1.0) is None
    assert nowhere.of_death(2.0) == {}


def test_what_has_hardly_changed_is_told_every_ten_seconds(system: System) -> None:
    """Between that only what has changed, every two seconds at most; all of it to a new client."""
    group = unified(system, "/")
    limit(group, str(16 * GIB), 3 * GIB)
    write(group / "cpu.stat", "usage_usec 1000000\n")
    meters = system.meters()
    first = meters.news(100.0)
    assert first == {"memory": [3 * GIB, 16 * GIB]}
    limit(group, str(16 * GIB), 4 * GIB)
    assert meters.news(101.9) is None
    meters.slow.wait(5)
    write(group / "cpu.stat", "usage_usec 4000000\n")
    told = meters.news(102.0)
    assert told is not None
    assert told["memory"][0] == 4 * GIB
    assert told["cpu"] == [min(150.0, 100.0 * meters.cores()), meters.cores()]
    assert told["disk"][0] <= told["disk"][1]
    write(group / "cpu.stat", "usage_usec 7100000\n")
    assert meters.news(104.1) is None
    meters.forget_told()
    assert meters.news(104.2) is not None
    write(group / "cpu.stat", "usage_usec 20200000\n")
    assert meters.news(113.0) is None
    assert meters.news(114.3) is not None


def test_a_memory_that_fills_is_told_at_once_and_once(system: System) -> None:
    """At 85 and at 95 percent; again only after it was clearly emptier."""
    group = unified(system, "/")

    def filled(percent: int, now: float) -> bool:
        limit(group, str(100 * GIB // 4), percent * GIB // 4)
        return meters.look(now)

    meters = system.meters()
    seen = [80, 86, 90, 84, 86, 96, 94, 79, 86]
    urgent = [filled(percent, 10.0 * number) for number, percent in enumerate(seen)]
    assert urgent == [False, True, False, False, False, True, False, False, True]
    assert meters.news(10.0 * len(seen) - 9.9) is not None


class Kept(Connection):
    """Keeps the answers."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def answer(self, frame: bytes) -> bool:
        """Take one."""
        self.frames.append(frame)
        return True


def test_a_memory_that_fills_answers_a_poll_that_waits(
    system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cell prints nothing, so that no answer would leave for long; nothing else is told so."""
    group = unified(system, "/")
    limit(group, str(16 * GIB), 8 * GIB)
    now, client = [100.0], Kept()
    service = Service(str(tmp_path), {}, lambda: now[0])
    service._meters = system.meters()
    monkeypatch.setattr(service.supervisor, "run", lambda *_, **__: None)
    service.handle(client, pack({"v": PROTOCOL_VERSION, "attach": "client"}))
    service._requests.add("cell", "execute_request", now[0], channel="shell")
    request = {"v": PROTOCOL_VERSION, "nonce": service.nonce, "session": 1, "submit": []}
    service.handle(client, pack(request | {"poll": {"since": 0, "wait": 25}}))
    answered = len(client.frames)
    for used_gib, frames in ((8, 0), (13, 0), (14, 1), (15, 1)):
        now[0] += 1.5
        limit(group, str(16 * GIB), used_gib * GIB)
        service.tick()
        assert len(client.frames) == answered + frames


@pytest.mark.parametrize(
    ("kills", "oom_killed"), [("oom_kill 1", False), ("oom_kill 2", True), ("", None)]
)
def test_a_death_is_told_with_what_is_known(
    system: System, kills: str, oom_killed: bool | None
) -> None:
    """The most that was in use in the last seconds, and whether the system has killed for it."""
    group = unified(system, "/")
    write(group / "memory.events", "max 9\noom 4\noom_kill 1\n" if kills else "")
    limit(group, str(16 * GIB), 15 * GIB)
    meters = system.meters()
    meters.look(1.0)
    limit(group, str(16 * GIB), 2 * GIB)  # freed while the process ends
    write(group / "memory.events", f"max 9\noom 4\n{kills}\n")
    meters.look(2.0)
    told = meters.of_death(3.0)
    assert told["memory"] == [15 * GIB, 16 * GIB]
    assert told.get("oom_killed") is oom_killed
    assert meters.of_death(4.0).get("oom_killed") is (None if oom_killed is None else False)


LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
from ivy_kernel.agent.meters import Meters
used, limit = Meters("/").memory(os.getpid())
print(limit == 3 << 30, 0 < used < 3 << 30, Meters("/").memory()[1] > 3 << 30)
"""


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="there is no /proc here")
def test_a_real_limit_of_the_address_space_counts() -> None:
    """Where it is lower than the container's, what the kernel's process has of it is told."""
    if resource.getrlimit(resource.RLIMIT_AS)[1] != resource.RLIM_INFINITY:
        pytest.skip("the address space is limited already")
    done = subprocess.run(
        [sys.executable, "-c", LIMITED], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "True", "True"]


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="there is no /proc here")
def test_this_machine_tells_what_it_uses() -> None:
    """Whatever control groups it has: memory, the work of its processors, and the disk."""
    meters = Meters(str(Path.cwd()))
    meters.slow.begin()
    before = meters.memory()
    assert before is not None
    assert 0 < before[0] < before[1]
    meters.look(0.0)
    sum(range(3_000_000))
    meters.slow.wait(10)
    told = meters.news(2.0)
    assert told is not None
    assert {"memory", "cpu", "disk"} <= set(told)
    assert told["cpu"][0] > 0


def test_a_memory_of_a_child_group_that_this_machine_can_make() -> None:
    """A real control group with a limit is seen as the container."""
    group = Path("/sys/fs/cgroup/memory" if Path("/sys/fs/cgroup/memory").is_dir() else "")
    child = group / f"ivy-test-{os.getpid()}"
    try:
        child.mkdir()
    except OSError:
        pytest.skip("no control group of version 1 can be made here")
    try:
        (child / "memory.limit_in_bytes").write_text(str(GIB))
        script = (
            f"import os\nopen({str(child / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
            "from ivy_kernel.agent.meters import Meters\nmeters = Meters('/')\n"
            "held = b'x' * (200 << 20)\nprint(*meters.memory(), meters.oom_kills())"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        )
        used, maximum, kills = map(int, done.stdout.split())
        assert maximum == GIB
        assert 200 << 20 < used < 400 << 20
        assert kills == 0
    finally:
        child.rmdir()
