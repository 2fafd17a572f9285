"""Runners that are hostile to what a call starts, as those of some platforms are.

================== =========================================================================
runner             what it does
================== =========================================================================
kill_descendants   when a call ends, everything that it started is killed
fresh_tmp          each call in its own mount namespace, with an empty ``/tmp`` (Linux)
pid_namespace      each call in its own process namespace, which ends with it (Linux)
serial             one call at a time per chat, of all tools
python_dash_c      code is handed over as ``python -c``, so that a call has the system's limit
================== =========================================================================
"""

from __future__ import annotations

import functools
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from ivy_kernel.local_sandbox.script import Runner
from ivy_kernel.local_sandbox.workspace import ChatPaths

_NAMESPACE_FLAGS = {
    "fresh_tmp": ("--mount",),
    "pid_namespace": ("--pid", "--fork", "--mount-proc", "--kill-child"),
}


@functools.cache
def _unshare(runner: str) -> tuple[str, ...]:
    """The ``unshare`` command that this machine allows for ``runner``; empty when none."""
    program = shutil.which("unshare")
    if program is None:
        return ()
    # root needs no user namespace; others become root in one, where the machine allows that.
    for extra in ((), ("--map-root-user",)):
        command = (program, *extra, *_NAMESPACE_FLAGS[runner])
        inner = "mount -t tmpfs none /tmp" if runner == "fresh_tmp" else "true"
        tried = subprocess.run(
            [*command, "/bin/sh", "-c", inner],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=10,
            check=False,
        )
        if tried.returncode == 0:
            return command
    return ()


class _KillDescendants(Runner):
    kills_descendants = True

    def unavailable(self) -> str:
        return "" if sys.platform == "linux" else "the runner kill_descendants needs Linux"


class _Namespace(Runner):
    def __init__(self, name: str) -> None:
        self._name = name

    def unavailable(self) -> str:
        if _unshare(self._name):
            return ""
        return f"the runner {self._name} needs Linux namespaces, which this machine does not allow"

    def command(self, argv: list[str], paths: ChatPaths, python: str) -> list[str]:
        return [*_unshare(self._name), *argv]


class _FreshTmp(_Namespace):
    # A sandbox with a new /tmp per call has no lasting runtime directory either.
    has_runtime_directory = False

    def command(self, argv: list[str], paths: ChatPaths, python: str) -> list[str]:
        tmp = Path("/tmp").resolve()  # noqa: S108 - this is the very directory that is replaced
        # The new /tmp is put together elsewhere first: what lies in the old one and must stay
        # visible can be bound into the new one only while the old one is still there.
        stage = paths.stage
        lines = ["set -e", f"mount -t tmpfs -o mode=1777 none {shlex.quote(str(stage))}"]
        prefixes = {Path(sys.prefix), Path(sys.base_prefix), Path(python).parent.parent}
        for path in [paths.directory, paths.state, *sorted(prefixes)]:
            kept = path.resolve()
            if kept.is_relative_to(tmp):
                target = shlex.quote(str(stage / kept.relative_to(tmp)))
                lines += [f"mkdir -p {target}", f"mount --bind {shlex.quote(str(kept))} {target}"]
        lines += [f"mount --rbind {shlex.quote(str(stage))} {tmp}", 'cd "$0"', 'exec "$@"']
        script = "\n".join(lines)
        return [*_unshare(self._name), "/bin/sh", "-c", script, str(paths.directory), *argv]


class _Serial(Runner):
    one_call_at_a_time = True


class _PythonDashC(Runner):
    code_as_argument = True


RUNNERS: dict[str, Runner] = {
    "normal": Runner(),
    "kill_descendants": _KillDescendants(),
    "fresh_tmp": _FreshTmp("fresh_tmp"),
    "pid_namespace": _Namespace("pid_namespace"),
    "serial": _Serial(),
    "python_dash_c": _PythonDashC(),
}


def unavailable(runner: str) -> str:
    """The reason why ``runner`` cannot be used on this machine; empty when it can."""
    return RUNNERS[runner].unavailable()
