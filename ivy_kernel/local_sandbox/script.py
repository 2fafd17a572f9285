"""Code in a fresh process per call: ``sandbox_python``, ``sandbox_rscript``, ``sandbox_exec``."""

from __future__ import annotations

import base64
import contextlib
import errno
import mimetypes
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from ivy_kernel.local_sandbox.config import Config
from ivy_kernel.local_sandbox.environment import Runner
from ivy_kernel.local_sandbox.processes import ChatProcesses, FinishedProcess, NotStartedError
from ivy_kernel.local_sandbox.results import Run
from ivy_kernel.local_sandbox.workspace import ChatPaths

Json = dict[str, Any]

Language = Literal["python", "r", "shell"]

_SUFFIXES = {"python": ".py", "r": ".R", "shell": ".sh"}
_PICTURES = (".png", ".jpg", ".jpeg", ".svg")
_MAX_PICTURES = 20
# Linux allows 128 KiB, and a character may take more than a byte.
_LONGEST_ARGUMENT_CHARS = 1 << 15
# A shell's exit codes for a command that it cannot start.
_COMMAND_NOT_FOUND = 127
_CANNOT_EXECUTE = 126


class ScriptTimeoutError(Exception):
    """The script's time was up, and it was killed."""


_USUAL_RUNNER = Runner()


def runner_of(config: Config) -> Runner:
    """The runner that the settings ask for."""
    if config.runner == "normal":
        return _USUAL_RUNNER
    # Only now: a server whose settings ask for nothing unusual loads no simulation.
    from ivy_kernel.local_sandbox.simulation.platforms import RUNNERS

    return RUNNERS[config.runner]


def python_of(config: Config) -> str:
    """The interpreter of the sandbox."""
    return config.python or sys.executable


def limited(config: Config, argv: list[str]) -> list[str]:
    """The command under the memory limit, if there is one."""
    if not config.memory_limit_bytes:
        return argv
    # By the shell and not by a preexec_fn, which would have to run in the process reaper.
    kilobytes = max(1, config.memory_limit_bytes >> 10)
    return ["/bin/sh", "-c", f'ulimit -v {kilobytes} && exec "$@"', "sh", *argv]


async def run_command(
    config: Config,
    paths: ChatPaths,
    processes: ChatProcesses,
    argv: list[str],
    timeout_seconds: float,
    language: Language = "shell",
) -> FinishedProcess:
    """Run a command as the configured runner does."""
    runner = runner_of(config)
    environment: dict[str, str | None] = {}
    if not runner.has_runtime_directory:
        environment["XDG_RUNTIME_DIR"] = None
    if language == "python":
        # The script lies outside of the chat's files, but imports from among them.
        environment["PYTHONPATH"] = str(paths.directory)
    return await processes.run(
        runner.command(limited(config, argv), paths, python_of(config)),
        paths.directory,
        timeout_seconds=timeout_seconds,
        output_limit_bytes=config.output_limit_bytes,
        kill_descendants=runner.kills_descendants,
        environment=environment,
    )


async def run_script(
    config: Config,
    paths: ChatPaths,
    processes: ChatProcesses,
    language: Language,
    code: str,
    timeout_seconds: float,
) -> Run:
    """Run code in a new process, to its end.

    Raises
    ------
    ScriptTimeoutError
        Its time was up.
    """
    began = time.time()
    with _command(config, paths, language, code) as argv:
        try:
            finished = await run_command(config, paths, processes, argv, timeout_seconds, language)
        except NotStartedError as error:
            return _not_started(error)
    if finished.timed_out:
        raise ScriptTimeoutError("it was killed, with all that it had started and still held")
    outputs = [
        {"output_type": "stream", "name": name, "text": text.decode(errors="replace")}
        for name, text in (("stdout", finished.stdout), ("stderr", finished.stderr))
        if text
    ]
    shape = config.result_family["script"]
    # Reading the pictures costs time, and only these shapes show them.
    pictures = _new_pictures(paths.directory, began) if shape in ("artifacts", "images") else []
    return Run(outputs, finished.exit_code, pictures=pictures)


def r_is_missing(config: Config) -> bool:
    """True when there is no Rscript."""
    return shutil.which(config.rscript) is None


@contextlib.contextmanager
def _command(
    config: Config, paths: ChatPaths, language: Language, code: str
) -> Iterator[list[str]]:
    if language == "shell":
        shell = shutil.which("bash") or "/bin/sh"
        # Linux refuses an argument above 128 KiB: a longer command is read from a file.
        if len(code) < _LONGEST_ARGUMENT_CHARS:
            yield [shell, "-c", code]
            return
        program = [shell]
    elif language == "python":
        if runner_of(config).code_as_argument:
            yield [python_of(config), "-c", code]
            return
        program = [python_of(config)]
    else:
        program = [config.rscript, "--no-save", "--no-restore"]
    try:
        file = _written(paths.calls, _SUFFIXES[language], code.encode(errors="replace"))
    except OSError:
        # No disk has room. What is short needs no file: it may be what makes room.
        if language == "r" or len(code) > _LONGEST_ARGUMENT_CHARS:
            raise
        yield [*program, "-c", code]
        return
    try:
        yield [*program, str(file)]
    finally:
        file.unlink(missing_ok=True)


def _written(directory: Path, suffix: str, content: bytes) -> Path:
    """Write a call's code to a file and return its path.

    A full disk is no obstacle, if the system's temporary directory, or the one in memory, is on
    another: the call may be the one that frees it.

    Raises
    ------
    OSError
        None has room.
    """
    # Not tempfile.gettempdir(), which writes a file of its own to find out.
    elsewhere = (os.environ.get("TMPDIR", "/tmp"), "/dev/shm")  # noqa: S108 - made by mkstemp
    for parent in (directory, *map(Path, elsewhere)):
        try:
            descriptor, name = tempfile.mkstemp(suffix=suffix, dir=parent)
        except OSError:
            continue
        with os.fdopen(descriptor, "wb") as file, contextlib.suppress(OSError):
            file.write(content)
            file.flush()
            return Path(name)
        Path(name).unlink(missing_ok=True)
    raise OSError(errno.ENOSPC, "No space left for the code of a call")


def _not_started(error: NotStartedError) -> Run:
    """Answer as a shell does when a command cannot be started."""
    missing = error.errno == errno.ENOENT
    exit_code = _COMMAND_NOT_FOUND if missing else _CANNOT_EXECUTE
    text = f"{error}\n"
    return Run([{"output_type": "stream", "name": "stderr", "text": text}], exit_code)


def _new_pictures(directory: Path, since: float) -> list[Json]:
    """Pictures at the top of the chat's directory that were written since then."""
    pictures: list[Json] = []
    for path in sorted(directory.iterdir()):
        if path.suffix.lower() not in _PICTURES or path.is_symlink() or not path.is_file():
            continue
        # File systems round times, so that a new file may look a little older.
        if path.stat().st_mtime >= since - 0.05 and len(pictures) < _MAX_PICTURES:
            mime = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            data = path.read_bytes()
            text = data.decode() if mime == "image/svg+xml" else base64.b64encode(data).decode()
            pictures.append({"mimeType": mime, "data": text, "path": path.name})
    return pictures
