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
from ivy_kernel.local_sandbox.place import Place
from ivy_kernel.local_sandbox.processes import ChatProcesses, Finished, NotStartedError
from ivy_kernel.local_sandbox.simulation import runners
from ivy_kernel.local_sandbox.simulation.result_shapes import Run

Json = dict[str, Any]

Language = Literal["python", "r", "shell"]

_SUFFIXES = {"python": ".py", "r": ".R", "shell": ".sh"}
_PICTURES = (".png", ".jpg", ".jpeg", ".svg")
_MOST_PICTURES = 20
_COMMAND_NOT_FOUND = 127
_CANNOT_EXECUTE = 126


class ScriptTimeoutError(Exception):
    """The script's time was up, and it was killed."""


def python_of(config: Config) -> str:
    """The interpreter of the sandbox."""
    return config.python or sys.executable


def limited(config: Config, argv: list[str]) -> list[str]:
    """The command under the memory limit, if there is one."""
    if not config.memory_limit_bytes:
        return argv
    kilobytes = max(1, config.memory_limit_bytes >> 10)
    return ["/bin/sh", "-c", f'ulimit -v {kilobytes} && exec "$@"', "sh", *argv]


def kept_directories(config: Config, place: Place) -> list[Path]:
    """What must stay visible for a runner that replaces ``/tmp``."""
    prefixes = {Path(sys.prefix), Path(sys.base_prefix), Path(python_of(config)).parent.parent}
    return [place.state, *sorted(prefixes)]


async def run_command(
    config: Config,
    place: Place,
    processes: ChatProcesses,
    argv: list[str],
    timeout_seconds: float,
    language: Language = "shell",
) -> Finished:
    """Run a command as the configured runner does."""
    # A sandbox with a new /tmp per call has no lasting runtime directory either.
    environment: dict[str, str | None] = {}
    if config.runner == "fresh_tmp":
        environment["XDG_RUNTIME_DIR"] = None
    if language == "python":
        # The script itself lies elsewhere, so that it is not among the chat's files.
        environment["PYTHONPATH"] = str(place.directory)
    return await processes.run(
        runners.wrapped(
            config.runner,
            limited(config, argv),
            place.directory,
            kept_directories(config, place),
            place.stage,
        ),
        place.directory,
        timeout_seconds=timeout_seconds,
        output_limit_bytes=config.output_limit_bytes,
        kill_descendants=config.runner == "kill_descendants",
        environment=environment,
    )


async def run_script(
    config: Config,
    place: Place,
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
    with _command(config, place, language, code) as argv:
        try:
            finished = await run_command(config, place, processes, argv, timeout_seconds, language)
        except NotStartedError as error:
            return _not_started(error)
    if finished.timed_out:
        raise ScriptTimeoutError("it was killed, with all that it had started and still held")
    outputs = [
        {"output_type": "stream", "name": name, "text": text.decode(errors="replace")}
        for name, text in (("stdout", finished.stdout), ("stderr", finished.stderr))
        if text
    ]
    family = config.result_family["script"]
    pictures = _new_pictures(place.directory, began) if family in ("artifacts", "images") else []
    return Run(outputs, finished.exit_code, pictures=pictures)


def r_is_missing(config: Config) -> bool:
    """Whether there is no Rscript."""
    return shutil.which(config.rscript) is None


@contextlib.contextmanager
def _command(config: Config, place: Place, language: Language, code: str) -> Iterator[list[str]]:
    if language == "shell":
        shell = shutil.which("bash") or "/bin/sh"
        # A command that is too long for an argument is read from a file.
        if len(code) < 1 << 16:
            yield [shell, "-c", code]
            return
        program = [shell]
    elif language == "python":
        if config.runner == "python_dash_c":
            yield [python_of(config), "-c", code]
            return
        program = [python_of(config)]
    else:
        program = [config.rscript, "--no-save", "--no-restore"]
    file = _written(place.calls, _SUFFIXES[language], code.encode(errors="replace"))
    try:
        yield [*program, str(file)]
    finally:
        file.unlink(missing_ok=True)


def _written(directory: Path, suffix: str, content: bytes) -> Path:
    """A file with a call's code; elsewhere when the disk is full, so that it can be freed."""
    for place in (directory, Path(tempfile.gettempdir())):
        descriptor, name = tempfile.mkstemp(suffix=suffix, dir=place)
        with os.fdopen(descriptor, "wb") as file, contextlib.suppress(OSError):
            file.write(content)
            file.flush()
            return Path(name)
        Path(name).unlink(missing_ok=True)
    raise OSError(errno.ENOSPC, "No space left for the code of a call")


def _not_started(error: NotStartedError) -> Run:
    missing = isinstance(error.__cause__, FileNotFoundError) or "No such file" in str(error)
    exit_code = _COMMAND_NOT_FOUND if missing else _CANNOT_EXECUTE
    text = f"{error}\n"
    return Run([{"output_type": "stream", "name": "stderr", "text": text}], exit_code)


def _new_pictures(directory: Path, since: float) -> list[Json]:
    """Pictures at the top of the chat's directory that were written since then."""
    pictures: list[Json] = []
    for path in sorted(directory.iterdir()):
        if path.suffix.lower() not in _PICTURES or path.is_symlink() or not path.is_file():
            continue
        if path.stat().st_mtime >= since - 0.05 and len(pictures) < _MOST_PICTURES:
            mime = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            data = path.read_bytes()
            text = data.decode() if mime == "image/svg+xml" else base64.b64encode(data).decode()
            pictures.append({"mimeType": mime, "data": text, "path": path.name})
    return pictures
