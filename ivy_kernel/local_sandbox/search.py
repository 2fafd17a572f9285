"""Grep and glob in a directory, as a process of their own.

A pattern can take for ever, and a process can be killed. Run as a script with one argument, the
query as JSON: ``kind`` (``grep`` or ``glob``), ``pattern``, ``path``, ``limit``, ``glob`` and
``ignore_case``. It prints the tool's result as JSON. Standard library only; symbolic
links are not followed.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Json = dict[str, Any]

_MAX_LINE_CHARS = 2000
_BINARY_PROBE_BYTES = 8192


def files_below(top: str) -> Iterator[str]:
    """Paths of all regular files below ``top``, relative to the working directory, sorted."""
    if Path(top).is_file():
        yield top
        return
    for directory, names, files in os.walk(top, followlinks=False):
        names.sort()
        for name in sorted(files):
            path = os.path.normpath(Path(directory) / name)
            if Path(path).is_file() and not Path(path).is_symlink():
                yield path


# PurePath matches no ``**`` before Python 3.13, and with fnmatch a star crosses directories.
def matches_glob(path: str, pattern: str) -> bool:
    """Tell whether a path matches a pattern in which ``**`` stands for any directories."""
    return re.fullmatch(_glob_expression(pattern), path, re.DOTALL) is not None


_GLOB_TOKEN = re.compile(r"\*\*/|\*\*|\*|\?|\[(!?)([^]]+)\]|.", re.DOTALL)


def _glob_expression(pattern: str) -> str:
    def translated(piece: re.Match[str]) -> str:
        text = piece.group()
        if piece.group(2):
            inside = piece.group(2).replace("\\", r"\\").replace("^", r"\^").replace("[", r"\[")
            return f"[{'^/' if piece.group(1) else ''}{inside}]"
        return _GLOB_EXPRESSIONS.get(text) or re.escape(text)

    return _GLOB_TOKEN.sub(translated, pattern)


_GLOB_EXPRESSIONS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def grep(query: Json) -> Json:
    """Lines that match a regular expression."""
    flags = re.IGNORECASE if query["ignore_case"] else 0
    try:
        expression = re.compile(query["pattern"], flags)
        matches_glob("", query["glob"])  # only to find a wrong pattern now
    except re.error as error:
        return _failed(f"a pattern cannot be used: {error}")
    matches: list[Json] = []
    for path in files_below(query["path"] or "."):
        if query["glob"] and not _fits(path, query["glob"]):
            continue
        for number, line in _lines(path):
            if expression.search(line):
                if len(matches) >= query["limit"]:
                    return {"success": True, "matches": matches, "truncated": True}
                matches.append({"path": path, "line": number, "text": line[:_MAX_LINE_CHARS]})
    return {"success": True, "matches": matches, "truncated": False}


def _fits(path: str, pattern: str) -> bool:
    return matches_glob(path, pattern) or (
        "/" not in pattern and fnmatch.fnmatchcase(Path(path).name, pattern)
    )


def _lines(path: str) -> Iterator[tuple[int, str]]:
    try:
        with Path(path).open("rb") as file:
            # A zero byte near the beginning is how git and grep recognise binary files, too.
            if b"\0" in file.read(_BINARY_PROBE_BYTES):
                return
            file.seek(0)
            for number, line in enumerate(file, 1):
                yield number, line.decode(errors="replace").rstrip("\r\n")
    except OSError:
        return  # it was removed meanwhile, or may not be read


def glob(query: Json) -> Json:
    """Paths that match a pattern."""
    top = query["path"]
    try:
        matches_glob("", query["pattern"])
    except re.error as error:
        return _failed(f"the pattern cannot be used: {error}")
    paths: list[str] = []
    for path in files_below(top or "."):
        below = os.path.relpath(path, top) if top else path
        if matches_glob(below, query["pattern"]):
            if len(paths) >= query["limit"]:
                return {"success": True, "paths": paths, "truncated": True}
            paths.append(path)
    return {"success": True, "paths": paths, "truncated": False}


def _failed(error: str) -> Json:
    return {"success": False, "error": error, "code": "BAD_PATTERN"}


def main() -> None:
    """Run the query in the first argument."""
    query = json.loads(sys.argv[1])
    result = grep(query) if query["kind"] == "grep" else glob(query)
    print(json.dumps(result))  # noqa: T201 - the result of this script


if __name__ == "__main__":
    main()
