"""The agent's source as one archive, the same bytes for the same source."""

from __future__ import annotations

import functools
import io
import zipfile
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Traversable

PACKAGE_NAME = "ivy_agent"
"""What the agent's package is called on the far side, where ``ivy_kernel`` may be installed too."""

ENTRY = f"""import sys
from {PACKAGE_NAME}.__main__ import main
main(sys.argv[1:])
"""

FIXED_DATE = (1980, 1, 1, 0, 0, 0)


@functools.cache
def agent_archive() -> bytes:
    """The zip archive that a Python interpreter can run; it compresses better as a whole."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        _add(archive, "__main__.py", ENTRY)
        _add_package(archive, resources.files("ivy_kernel.agent"), PACKAGE_NAME)
    return buffer.getvalue()


def _add_package(archive: zipfile.ZipFile, package: Traversable, name: str) -> None:
    for entry in sorted(package.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir() and entry.name != "__pycache__":
            _add_package(archive, entry, f"{name}/{entry.name}")
        elif entry.name.endswith(".py"):
            _add(archive, f"{name}/{entry.name}", entry.read_text(encoding="utf-8"))


def _add(archive: zipfile.ZipFile, name: str, text: str) -> None:
    archive.writestr(zipfile.ZipInfo(name, FIXED_DATE), text)
