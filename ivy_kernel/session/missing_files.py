"""Files beside the notebook that a cell missed in the sandbox: which one, and how it gets there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from ivy_kernel.api.operations import one_line
from ivy_kernel.models import Json

NO_SUCH_FILE = "No such file or directory"
"""How programs say that a file is missing (``strerror`` of ``ENOENT``)."""
_QUOTED = re.compile(r"'([^'\n]+)'|\"([^\"\n]+)\"|\u2018([^\u2019\n]+)\u2019")
_UNQUOTED = re.compile(rf"([^:\n]+): {NO_SUCH_FILE}|^(\S+) not found\.$", re.MULTILINE)
_FILE_ERRORS = frozenset({"FileNotFoundError", "OSError", "IOError", "Exception"})
"""Names of the exceptions that name a missing file; IPython's ``%run`` raises a bare one."""
_LONGEST_TEXT = 10_000


def missing_file_hint(
    reply: Json, complaints: Sequence[str], directory: Path, *, is_local: bool
) -> str | None:
    """Return a sentence about a file that a cell missed in the sandbox, and that is here.

    Only the names in what the cell said are looked up, and only in the notebook's directory.

    Parameters
    ----------
    reply
        The content of the cell's reply.
    complaints
        Texts that it printed, those with `NO_SUCH_FILE`.
    directory
        The directory of the notebook.
    is_local
        Whether the sandbox is the local one, which can read this machine's files.
    """
    kind, text = str(reply.get("ename", "")), str(reply.get("evalue", ""))[:_LONGEST_TEXT]
    if kind in ("ModuleNotFoundError", "ImportError"):
        for name in list(_names_in(text))[:1]:
            stem = name.replace(".", "/")
            for found in (f"{stem}.py", stem):
                if _is_beside(directory, found):
                    return _file_hint(found, directory, is_local=is_local, is_module=True)
        return None
    texts = [text] if kind in _FILE_ERRORS else []
    lines = "\n".join(complaints)[:_LONGEST_TEXT].splitlines()
    for one in [*texts, *(line for line in lines if NO_SUCH_FILE in line)]:
        for name in _names_in(one):
            if _is_beside(directory, name):
                return _file_hint(name, directory, is_local=is_local, is_module=False)
    return None


def _names_in(text: str) -> Iterator[str]:
    """Yield what may be names of files in an error message."""
    for pattern in (_QUOTED, _UNQUOTED):
        for match in pattern.finditer(text):
            yield next(group for group in match.groups() if group).strip()


def _is_beside(directory: Path, name: str) -> bool:
    """Return whether a name, as it stands, is a file below a directory; never looks elsewhere."""
    path = Path(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
        return False
    try:
        return (directory / path).exists()
    except OSError:  # too long for a name, for example
        return False


def _file_hint(name: str, directory: Path, *, is_local: bool, is_module: bool) -> str:
    shown = one_line(name)
    beside = f"{shown} is on this machine, beside the notebook"
    command = put_command(name, is_directory=(directory / name).is_dir())
    fix = f"{command} copies it there" if command else "%ivy put copies files there"
    if not is_local:
        return f"{beside}; the sandbox has files of its own: {fix}."
    other = f"its full path on this machine is {one_line(str(directory / name))}"
    if is_module:
        other = (
            f"import sys; sys.path.append({one_line(str(directory))!r}) makes it importable here"
        )
    return (
        f"{beside}; the local sandbox works in another directory of this machine: {fix}, and "
        f"{other}."
    )


def put_command(name: str, *, is_directory: bool) -> str:
    """Return the command that copies what is beside the notebook to the same place in the sandbox.

    Parameters
    ----------
    name
        Its path, relative to the notebook's directory.
    is_directory
        Whether it is a directory.

    Returns
    -------
    str
        Empty for a name that nobody can type.
    """
    if not name.isprintable():
        return ""
    place = Path(name)
    words = ["-r"] if is_directory else []
    words.append(f"./{place}" if name.startswith("-") else str(place))
    words += [f"{place.parent}/"] if place.parent != Path() else []
    return f"%ivy put {shlex.join(words)}"
