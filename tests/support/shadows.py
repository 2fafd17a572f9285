"""Files that carry the names of importable modules, and note it when one is imported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection
from importlib.metadata import packages_distributions
from pathlib import Path

TRACE = """\
import posix
descriptor = posix.open({noted!r}, posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND, 0o600)
posix.write(descriptor, b"{name}\\n")
posix.close(descriptor)
raise ImportError("the file of the user's folder was imported: {name}")
"""


class Shadows:
    """One file for each module that this interpreter can import, in a folder.

    Parameters
    ----------
    folder
        Where the files are written.
    noted
        The file, elsewhere, in which the names of those are collected that were imported.
    spare
        Modules that get none.
    """

    def __init__(self, folder: Path, noted: Path, spare: Collection[str] = ()) -> None:
        self._noted = noted
        names = {*sys.stdlib_module_names, *packages_distributions(), "ivy_kernel"} - {*spare}
        for name in sorted(names):
            if name.isidentifier() and not name.startswith("__editable__"):
                text = TRACE.format(noted=str(noted), name=name)
                (folder / f"{name}.py").write_text(text)

    @staticmethod
    def of_python_itself() -> set[str]:
        """Modules that each interpreter imports before any code of ours."""
        code = "import sys; print(*sys.modules)"
        listed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        return {name.partition(".")[0] for name in listed.stdout.decode().split()}

    @property
    def imported(self) -> list[str]:
        """The names of the files that were imported, in order."""
        return self._noted.read_text().split() if self._noted.exists() else []
