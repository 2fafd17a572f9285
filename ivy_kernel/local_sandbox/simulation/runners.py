"""How hostile a tool runner is: the ways in which platforms run a call.

================== =========================================================================
runner             what it does
================== =========================================================================
normal             a process per call; daemons that it starts survive, until the sandbox ends
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

RUNNERS = (
    "normal",
    "kill_descendants",
    "fresh_tmp",
    "pid_namespace",
    "serial",
    "python_dash_c",
)

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


def unavailable(runner: str) -> str:
    """Why ``runner`` cannot be used on this machine; empty when it can."""
    if runner == "kill_descendants" and sys.platform != "linux":
        return "the runner kill_descendants needs Linux"
    if runner in _NAMESPACE_FLAGS and not _unshare(runner):
        return f"the runner {runner} needs Linux namespaces, which this machine does not allow"
    return ""


def wrapped(
    runner: str, argv: list[str], directory: Path, keep: list[Path], stage: Path
) -> list[str]:
    """The command that runs ``argv`` as ``runner`` does.

    Parameters
    ----------
    runner
        One of `RUNNERS`.
    argv
        The command to run.
    directory
        Where it runs.
    keep
        Directories that must stay visible when ``/tmp`` is replaced.
    stage
        An empty directory outside of the chat's, on which the new ``/tmp`` is put together.
    """
    if runner == "pid_namespace":
        return [*_unshare(runner), *argv]
    if runner != "fresh_tmp":
        return argv
    tmp = Path("/tmp").resolve()  # noqa: S108 - this is the very directory that is replaced
    lines = ["set -e", f"mount -t tmpfs -o mode=1777 none {shlex.quote(str(stage))}"]
    for path in [directory, *keep]:
        kept = path.resolve()
        if kept.is_relative_to(tmp):
            target = shlex.quote(str(stage / kept.relative_to(tmp)))
            lines += [f"mkdir -p {target}", f"mount --bind {shlex.quote(str(kept))} {target}"]
    lines += [f"mount --rbind {shlex.quote(str(stage))} {tmp}", 'cd "$0"', 'exec "$@"']
    return [*_unshare(runner), "/bin/sh", "-c", "\n".join(lines), str(directory), *argv]
