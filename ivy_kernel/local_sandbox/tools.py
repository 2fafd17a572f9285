"""The eleven tools of a sandbox.

The platform documents the names only. These parameters are ours; ``timeout`` goes with all.

================= ============================================ ================================
tool              parameters                                   result
================= ============================================ ================================
sandbox_exec      ``command``                                  a run, see ``results``
sandbox_python    ``code``                                     a run; a fresh process
sandbox_rscript   ``code``                                     a run; a fresh process
sandbox_notebook  ``code``                                     a run; variables stay
sandbox_read      ``path``, ``offset`` = 0, ``limit`` (bytes)  ``content``, ``encoding``
                                                               (``utf-8`` or ``base64``),
                                                               ``size``, ``truncated``
sandbox_files     ``path`` = "", ``recursive`` = false         ``files``, ``truncated``
sandbox_write     ``path``, ``content``, ``encoding``          ``path``, ``bytes_written``
                  = "utf-8", ``append`` = false
sandbox_edit      ``path``, ``old_string``, ``new_string``,    ``path``, ``replacements``
                  ``replace_all`` = false
sandbox_grep      ``pattern`` (regular expression),            ``matches`` (``path``, ``line``,
                  ``path`` = "", ``glob``, ``ignore_case``     ``text``), ``truncated``
                  = false, ``limit`` = 1000
sandbox_glob      ``pattern`` (``**`` allowed), ``path`` = "", ``paths``, ``truncated``
                  ``limit`` = 1000
sandbox_export    ``path``, ``name``                           ``file``: what is registered
================= ============================================ ================================

A file that is not there, or not as needed, is the tool's own result: ``{"success": false,
"error", "code"}`` with status 200. A wrong parameter, or a path out of the chat's directory, is
400. Unknown parameters are ignored. The name of the code field can be configured.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ivy_kernel.local_sandbox import search
from ivy_kernel.local_sandbox.config import Config, ResultCase, ResultNesting, ResultShape, RunGroup
from ivy_kernel.local_sandbox.environment import Clock
from ivy_kernel.local_sandbox.notebook import CellTimeoutError, KernelStartError, NotebookKernel
from ivy_kernel.local_sandbox.processes import ChatProcesses, NotStartedError, ReaperLostError
from ivy_kernel.local_sandbox.results import ApiError, Run, nbformat, process
from ivy_kernel.local_sandbox.script import (
    Language,
    ScriptTimeoutError,
    limited,
    python_of,
    r_is_missing,
    run_command,
    run_script,
)
from ivy_kernel.local_sandbox.workspace import (
    ChatPaths,
    FileError,
    Workspace,
    decoded,
    encoded,
    register,
)

Json = dict[str, Any]

_READ_LIMIT_BYTES = 64 << 20
_LIST_LIMIT = 10_000


@dataclass(frozen=True)
class Toolbox:
    """The parts of one living sandbox that its tools work on.

    Parameters
    ----------
    paths
        The chat's directories.
    processes
        Its processes.
    kernel
        Its persistent kernel.
    clock
        The server's clock.
    """

    paths: ChatPaths
    processes: ChatProcesses
    kernel: NotebookKernel
    clock: Clock

    @property
    def workspace(self) -> Workspace:
        """The chat's files."""
        return Workspace(self.paths.directory)


def _bad(error: str) -> ApiError:
    return ApiError(400, error, "BAD_PARAMETERS")


def _text(body: Json, name: str, default: str | None = None) -> str:
    value = body.get(name, default)
    if not isinstance(value, str):
        raise _bad(f"the parameter {name!r} must be a string")
    return value


def _flag(body: Json, name: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise _bad(f"the parameter {name!r} must be true or false")
    return value


def _whole(body: Json, name: str, default: int, maximum: int) -> int:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _bad(f"the parameter {name!r} must be a whole number that is not negative")
    return min(value, maximum)


def time_budget(body: Json, cap_seconds: float) -> float:
    """The seconds that a call may take: what it asks for, up to the cap."""
    value = body.get("timeout")
    if value is None:
        return cap_seconds
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _bad("the parameter 'timeout' must be a number of seconds")
    # Written so that NaN, which is neither above 0 nor below, is refused too.
    if not value > 0 or (isinstance(value, float) and math.isinf(value)):
        raise _bad("the parameter 'timeout' must be a number of seconds above 0")
    return float(min(value, cap_seconds))


def _code(config: Config, tool: str, body: Json) -> str:
    name = config.code_field.get(tool, "command" if tool == "sandbox_exec" else "code")
    code = _text(body, name)
    if config.max_code_chars and len(code) > config.max_code_chars:
        raise ApiError(
            400,
            f"{name!r} has {len(code)} characters; {config.max_code_chars} are allowed",
            "CODE_TOO_LONG",
        )
    return code


def _truncated(config: Config, text: Any) -> Any:
    limit = config.stdout_limit_chars
    if not limit or not isinstance(text, str) or len(text) <= limit:
        return text
    return f"{text[:limit]}\n... [{len(text) - limit} characters truncated]"


def _truncate_outputs(config: Config, run: Run) -> Run:
    for output in run.outputs:
        if "text" in output:
            output["text"] = _truncated(config, output["text"])
    return run


def _timed_out(tool: str, seconds: float, what: str) -> ApiError:
    text = f"{tool} exceeded its time budget of {seconds:g} s: {what}"
    return ApiError(504, text, "TOOL_TIMEOUT")


async def _script(tool: str, language: Language, config: Config, box: Toolbox, body: Json) -> Json:
    code = _code(config, tool, body)
    seconds = time_budget(body, config.cap_seconds["script"])
    if language == "r" and r_is_missing(config):
        # The exit code of a shell that does not find a command.
        text = f"R is not installed here: there is no {config.rscript!r} on the path"
        run = Run([{"output_type": "stream", "name": "stderr", "text": text + "\n"}], 127)
    else:
        try:
            run = await run_script(config, box.paths, box.processes, language, code, seconds)
        except ScriptTimeoutError as error:
            raise _timed_out(tool, seconds, str(error)) from error
    return _result(config, "script", run)


def _result(config: Config, group: RunGroup, run: Run) -> Json:
    shape = config.result_family[group]
    return shaped(_truncate_outputs(config, run), shape, config.result_case, config.result_nesting)


async def _exec(config: Config, box: Toolbox, body: Json) -> Json:
    return await _script("sandbox_exec", "shell", config, box, body)


async def _python(config: Config, box: Toolbox, body: Json) -> Json:
    return await _script("sandbox_python", "python", config, box, body)


async def _rscript(config: Config, box: Toolbox, body: Json) -> Json:
    return await _script("sandbox_rscript", "r", config, box, body)


_LAUNCHER = """import sys
sys.path[:1] = filter(None, sys.path[:1])
from ipykernel.kernelapp import launch_new_instance
launch_new_instance()"""
"""Starts ipykernel. ``-m`` would look among the chat's files for what it imports before that."""


async def _notebook(config: Config, box: Toolbox, body: Json) -> Json:
    code = _code(config, "sandbox_notebook", body)
    seconds = time_budget(body, config.cap_seconds["notebook"])

    def argv(connection_file: str) -> list[str]:
        command = [python_of(config), "-c", _LAUNCHER, "-f", connection_file]
        return limited(config, command)

    try:
        run = await box.kernel.run(
            code,
            argv=argv,
            timeout_seconds=seconds,
            grace_seconds=config.interrupt_grace_seconds,
            output_limit_bytes=config.output_limit_bytes,
        )
    except CellTimeoutError as error:
        raise _timed_out("sandbox_notebook", seconds, str(error)) from error
    except KernelStartError as error:
        return {"success": False, "error": str(error), "code": "KERNEL_FAILED"}
    return _result(config, "notebook", run)


async def _read(config: Config, box: Toolbox, body: Json) -> Json:
    path = _text(body, "path")
    offset = _whole(body, "offset", 0, sys.maxsize)
    limit = _whole(body, "limit", _READ_LIMIT_BYTES, _READ_LIMIT_BYTES)

    def work() -> Json:
        size = box.workspace.about(path)["size"]
        data = box.workspace.read_bytes(path, offset, limit) if offset < size else b""
        content, encoding = decoded(data)
        return {
            "success": True,
            "path": path,
            "content": content,
            "encoding": encoding,
            "size": size,
            "truncated": offset + len(data) < size,
        }

    return await asyncio.to_thread(work)


async def _files(config: Config, box: Toolbox, body: Json) -> Json:
    path, recursive = _text(body, "path", ""), _flag(body, "recursive")

    def work() -> Json:
        files, more = box.workspace.listed(path, recursive=recursive, limit=_LIST_LIMIT)
        return {"success": True, "path": path, "files": files, "truncated": more}

    return await asyncio.to_thread(work)


async def _write(config: Config, box: Toolbox, body: Json) -> Json:
    path, encoding = _text(body, "path"), _text(body, "encoding", "utf-8")
    if encoding not in ("utf-8", "base64"):
        raise _bad("the parameter 'encoding' must be 'utf-8' or 'base64'")
    content, append = encoded(_text(body, "content"), encoding), _flag(body, "append")
    await asyncio.to_thread(box.workspace.write_bytes, path, content, append=append)
    return {"success": True, "path": path, "bytes_written": len(content)}


async def _edit(config: Config, box: Toolbox, body: Json) -> Json:
    path, old, new = _text(body, "path"), _text(body, "old_string"), _text(body, "new_string")
    every = _flag(body, "replace_all")
    if not old:
        raise _bad("the parameter 'old_string' must not be empty")
    before, after = encoded(old, "utf-8"), encoded(new, "utf-8")

    def work() -> Json:
        content = box.workspace.read_bytes(path, 0, _READ_LIMIT_BYTES + 1)
        # One byte more was asked for, to see whether there is more.
        if len(content) > _READ_LIMIT_BYTES:
            raise FileError(f"{path!r} is too large to edit", "FILE_TOO_LARGE")
        count = content.count(before)
        if count == 0:
            raise FileError(f"old_string is not in {path!r}", "NOT_FOUND_IN_FILE")
        if count > 1 and not every:
            raise FileError(
                f"old_string is {count} times in {path!r}: give more of it, or set replace_all",
                "AMBIGUOUS",
            )
        box.workspace.write_bytes(path, content.replace(before, after))
        return {"success": True, "path": path, "replacements": count}

    return await asyncio.to_thread(work)


async def _search(kind: str, config: Config, box: Toolbox, body: Json) -> Json:
    path = _text(body, "path", "")
    names = box.workspace.parts(path)
    with box.workspace.opened(path):
        pass  # only to refuse symbolic links on the way
    query = {
        "kind": kind,
        "pattern": _text(body, "pattern"),
        "path": "/".join(names),
        "glob": _text(body, "glob", ""),
        "ignore_case": _flag(body, "ignore_case"),
        "limit": _whole(body, "limit", 1000, _LIST_LIMIT),
    }
    seconds = time_budget(body, config.cap_seconds["files"])
    # In a process of its own, for a regular expression can take for ever; isolated (-I), so that no
    # file of the chat is imported, and without site (-S), which it does not need.
    argv = [sys.executable, "-I", "-S", str(Path(search.__file__)), json.dumps(query)]
    try:
        finished = await run_command(config, box.paths, box.processes, argv, seconds)
    except NotStartedError:
        raise _bad("the pattern is too long") from None
    if finished.timed_out:
        raise _timed_out(f"sandbox_{kind}", seconds, "it was killed")
    if finished.exit_code:
        said = finished.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise FileError(f"the search failed: {said}", "SEARCH_FAILED")
    result: Json = json.loads(finished.stdout)
    return result


async def _grep(config: Config, box: Toolbox, body: Json) -> Json:
    return await _search("grep", config, box, body)


async def _glob(config: Config, box: Toolbox, body: Json) -> Json:
    return await _search("glob", config, box, body)


async def _export(config: Config, box: Toolbox, body: Json) -> Json:
    path = _text(body, "path")

    def work() -> Json:
        about = box.workspace.about(path)
        entry = {
            **about,
            "name": _text(body, "name", about["name"]),
            "source": "export",
            "createdAt": box.clock.iso(),
        }
        register(box.paths.manifest, entry)
        return {"success": True, "file": entry}

    return await asyncio.to_thread(work)


Tool = Callable[[Config, Toolbox, Json], Awaitable[Json]]

TOOLS: dict[str, Tool] = {
    "sandbox_exec": _exec,
    "sandbox_python": _python,
    "sandbox_rscript": _rscript,
    "sandbox_notebook": _notebook,
    "sandbox_read": _read,
    "sandbox_files": _files,
    "sandbox_write": _write,
    "sandbox_edit": _edit,
    "sandbox_grep": _grep,
    "sandbox_glob": _glob,
    "sandbox_export": _export,
}


async def run_tool(name: str, config: Config, box: Toolbox, body: Json) -> Json:
    """Run a tool.

    Raises
    ------
    ApiError
        400 for wrong parameters, 502 when the sandbox ended meanwhile, 504 when time was up.
    """
    time_budget(body, 1.0)  # every tool refuses a wrong timeout, those too that need none
    try:
        return await TOOLS[name](config, box, body)
    except FileError as error:
        return {"success": False, "error": str(error), "code": error.code}
    except ReaperLostError:
        raise ApiError(
            502, "the sandbox ended while the tool was running", "SANDBOX_ENDED"
        ) from None


_USUAL_SHAPES: dict[str, Callable[[Run], Json]] = {"process": process, "nbformat": nbformat}


def shaped(
    run: Run, shape: ResultShape, case: ResultCase = "snake", nesting: ResultNesting = ""
) -> Json:
    """A run as the tool's answer, in the given shape, spelling and nesting."""
    if shape in _USUAL_SHAPES and case == "snake" and not nesting:
        return _USUAL_SHAPES[shape](run)
    # Only now: a server whose settings ask for nothing unusual loads no simulation.
    from ivy_kernel.local_sandbox.simulation import platforms

    return platforms.shaped(run, shape, case, nesting)
