"""Builds the two programs that are the code of a tool call: the start, and the snippet.

Both are flat code without functions or comprehensions, because some runners ``exec`` their code
with separate globals and locals; both print one frame between marks that carry a random id, so
that nothing else in the output can be taken for it.
"""

from __future__ import annotations

import ast
import base64
import functools
import io
import json
import secrets
import tokenize
import zipfile
import zlib
from importlib import resources
from typing import TYPE_CHECKING, Any

from ivy_kernel.agent.start import PACKAGE_NAME, WITHOUT_WORKING_DIRECTORY

if TYPE_CHECKING:
    from importlib.abc import Traversable


# The same source must give the same bytes, whatever the dates of its files; zip begins in 1980.
FIXED_DATE = (1980, 1, 1, 0, 0, 0)

WORK_PACKAGE_NAME = "ivy_work"
"""The name of ``agent/work`` in its archive."""


@functools.cache
def agent_archive() -> bytes:
    """Return the agent as a zip archive from which a Python interpreter can import it."""
    buffer = io.BytesIO()
    # Stored, not deflated: `_packed_archive` compresses it as a whole, which is smaller.
    with zipfile.ZipFile(buffer, "w") as archive:
        _add_package(archive, resources.files("ivy_kernel.agent"), PACKAGE_NAME)
    return buffer.getvalue()


@functools.cache
def work_archive() -> bytes:
    """Return what the kernel's process does beside cells, as a zip archive.

    It travels apart from the agent, once there is a kernel, so that the start program stays small.
    The pickler goes with it, under a name of its own: it is then the same in every sandbox, and
    disturbs none that the user has installed there.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        _add_package(archive, resources.files("ivy_kernel.agent.work"), WORK_PACKAGE_NAME)
        _add_package(archive, resources.files("cloudpickle"), f"{WORK_PACKAGE_NAME}/cloudpickle")
    return buffer.getvalue()


def _add_package(archive: zipfile.ZipFile, package: Traversable, name: str) -> None:
    for entry in sorted(package.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir() and entry.name not in ("__pycache__", "work"):
            _add_package(archive, entry, f"{name}/{entry.name}")
        elif entry.name.endswith(".py"):
            _add(archive, f"{name}/{entry.name}", _without_docstrings(entry.read_text("utf-8")))


def _without_docstrings(source: str) -> str:
    """Return the same program without docstrings and comments, line by line.

    They are a third of the archive, which travels at each start and must fit what runners take.
    Lines keep their numbers, so that tracebacks in the agent's log name the right ones.
    """
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            continue
        if isinstance(node.value.value, str) and node.end_lineno is not None:
            # An empty string, and not nothing: it may be all that a function holds.
            lines[node.lineno - 1] = f"{lines[node.lineno - 1][: node.col_offset]}''"
            lines[node.lineno : node.end_lineno] = [""] * (node.end_lineno - node.lineno)
    return "\n".join([*lines, ""])


def _add(archive: zipfile.ZipFile, name: str, text: str) -> None:
    entry = zipfile.ZipInfo(name, FIXED_DATE)
    entry.compress_type = archive.compression
    archive.writestr(entry, text)


BEGIN = "IVY-BEGIN-"
END = "IVY-END-"
NO_ANSWER = "!0 the agent closed the connection"

SNIPPET = """import _socket as _ivy_s
_ivy_k=_ivy_s.socket(_ivy_s.AF_UNIX,_ivy_s.SOCK_STREAM)
_ivy_k.settimeout({seconds!r})
_ivy_o=[]
try:
    _ivy_k.connect({path!r})
    _ivy_k.sendall({request!r})
    while 1:
        _ivy_b=_ivy_k.recv(1048576)
        if not _ivy_b: break
        _ivy_o.append(_ivy_b)
    _ivy_o=b''.join(_ivy_o).decode() or {no_answer!r}
except OSError as _ivy_e:
    _ivy_o='!%s %s'%(_ivy_e.errno or 0,_ivy_e)
finally:
    _ivy_k.close()
print('\\n{begin}{call_id}\\n'+_ivy_o+'\\n{end}{call_id}',flush=True)
"""
"""Imports ``_socket`` alone: the rest of the library would cost 12 ms with every cell. Prints once,
and only what is whole: some runners keep prints apart, and caps leave half of them behind."""

START = """import sys as _y
_p=_y.path[:]
try:
    exec({without_working_directory!r},{{}})
    import base64 as _b,io as _i,zipfile as _f,zlib as _z
    _a=_z.decompress(_b.b64decode({archive!r}))
    _n={{'__name__':'ivy_start'}}
    exec(compile(_f.ZipFile(_i.BytesIO(_a)).read({member!r}),'ivy_start','exec'),_n)
    _n['main'](_n['json'].loads({parameters!r}),_a)
finally:
    _y.path[:]=_p
"""
"""Puts the import path back: the process may be a notebook tool's, where the user's cells run."""


def new_call_id() -> str:
    """Return a random id for one call's marks."""
    return secrets.token_hex(8)


def snippet(directory: str, request: bytes, *, timeout_seconds: float, call_id: str) -> str:
    """Return the program that hands one request to the agent and prints its response."""
    return SNIPPET.format(
        seconds=timeout_seconds,
        path=f"{directory}/s",
        request=b"%d\n%s" % (len(request), request),
        no_answer=NO_ANSWER,
        begin=BEGIN,
        end=END,
        call_id=call_id,
    )


def start_program(
    *,
    key: str,
    request: bytes,
    call_id: str,
    directories: tuple[str, ...] = (),
    excluded: tuple[str, ...] = (),
    options: dict[str, Any] | None = None,
    environment: dict[str, str] | None = None,
) -> str:
    """Return the program that finds or starts the agent, and prints its place and response.

    Parameters
    ----------
    key
        The private directory's name part: the same key finds the same agent.
    request
        The first request to the agent.
    call_id
        The random id of this call's marks.
    directories
        Where to make the private directory; empty for the standard places.
    excluded
        Places that turned out not to be shared between calls.
    options
        The daemon's options; see ``ivy_kernel.agent.daemon.Daemon``.
    environment
        Set for the agent, its kernel and all cells.
    """
    parameters = {
        "key": key,
        "request": request.decode("ascii"),
        "call_id": call_id,
        "directories": directories,
        "excluded": excluded,
        "options": options or {},
        "environment": environment or {},
    }
    return START.format(
        without_working_directory=WITHOUT_WORKING_DIRECTORY,
        archive=_packed_archive(),
        member=f"{PACKAGE_NAME}/start.py",
        parameters=json.dumps(parameters),
    )


@functools.cache
def _packed_archive() -> bytes:
    return base64.b64encode(zlib.compress(agent_archive(), 9))


def in_private_namespace(program: str) -> str:
    """Wrap a program so that it leaves no names in the namespace of a notebook tool."""
    return f"exec(compile({program!r},'ivy','exec'),{{'__name__':'ivy'}})\n"
