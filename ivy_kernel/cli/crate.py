"""A run as a Process Run RO-Crate: the notebook, what it read and wrote, by what, when, by whom.

Source: RO-Crate 1.1, and the profile "Process Run Crate" 0.5 (https://w3id.org/ro/wfrun/process).
Files that are beside the notebook with the recorded hash are copied into the crate; others are
named by their hash (RFC 6920).
"""

from __future__ import annotations

import base64
import getpass
import hashlib
import importlib.util
import mimetypes
import platform
import shutil
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from ivy_kernel.errors import IvyError, UsageError
from ivy_kernel.models import Json
from ivy_kernel.session.receipts import (
    CodeCell,
    ExpectedFile,
    as_object,
    as_text,
    code_cells,
    seal_of,
    used_files,
)

PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
CRATE_VERSION = "1.1"
TERMS = "https://w3id.org/ro/terms/workflow-run/context"
"""Defines the terms that RO-Crate 1.1 does not, of which ``sha256`` is one."""

COPY_LIMIT_BYTES = 256 << 20
_FATES = {"ok": "CompletedActionStatus", "error": "FailedActionStatus"}


def check_crate(notebook: Any, target: Path) -> None:
    """Check before a long run that its crate can be written.

    Raises
    ------
    UsageError
        When it cannot: says why, and the fix.
    """
    if importlib.util.find_spec("rocrate") is None:
        raise UsageError(
            "--crate needs the package rocrate, which is not installed; install it: "
            "pip install 'ivy-kernel[crate]'."
        )
    if not any(one.record for one in code_cells(notebook)):
        raise UsageError(
            "--crate describes a run by its receipt, and no cell of the notebook has one; run it "
            "with jupyter ivy run first."
        )
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"--crate cannot be {target}: it exists and is no empty directory.")
    if not target.resolve().parent.is_dir():
        raise UsageError(f"--crate cannot be {target}: its directory does not exist.")


def write_crate(notebook: Any, path: Path, target: Path) -> None:
    """Write the crate of a notebook's run, whole or not at all.

    Parameters
    ----------
    notebook
        The executed notebook.
    path
        Its file, which becomes a part of the crate.
    target
        A directory that does not exist yet, or is empty.

    Raises
    ------
    IvyError
        When it cannot be written.
    """
    from rocrate.rocrate import ROCrate

    crate: Any = ROCrate(version=CRATE_VERSION)
    crate.metadata.extra_contexts.append(TERMS)
    _Run(crate, notebook, path).describe()
    place = target.resolve()
    try:
        with tempfile.TemporaryDirectory(prefix=f".{place.name}.", dir=place.parent) as made:
            crate.write(Path(made) / "crate")
            if place.exists():
                place.rmdir()
            shutil.move(Path(made) / "crate", place)
    except OSError as error:
        raise IvyError(f"The crate cannot be written to {target}: {error.strerror}.") from None


class _Run:
    """The entities of one run.

    Parameters
    ----------
    crate
        The crate that gets them.
    notebook, path
        The executed notebook, and its file.
    """

    def __init__(self, crate: Any, notebook: Any, path: Path) -> None:
        self._crate = crate
        self._path = path
        self._beside = path.resolve().parent
        said = as_object(notebook.get("metadata")).get("license")
        self._license = as_text(said) or "The notebook states none"
        self._lock = as_object(seal_of(notebook).get("packages"))
        self._cells = [one for one in code_cells(notebook) if one.record]
        self._files: dict[tuple[str, str], Any] = {}
        self._inputs, self._outputs = used_files(notebook)

    def describe(self) -> None:
        """Add all of it to the crate."""
        root = self._crate.root_dataset
        root["name"] = f"The run of {self._path.name}"
        root["description"] = (
            f"The notebook {self._path.name}, as it was executed in a sandbox of Ivy, with the "
            f"files that its cells read and wrote."
        )
        root["license"] = self._add("#license", "CreativeWork", name=self._license)
        root["conformsTo"] = self._add(
            PROFILE, "CreativeWork", name="Process Run Crate", version=PROFILE.rpartition("/")[2]
        )
        data = self._path.read_bytes()
        notebook = self._crate.add_file(
            str(self._path),
            self._path.name,
            properties={
                "name": self._path.name,
                "encodingFormat": "application/x-ipynb+json",
                "contentSize": str(len(data)),
                "sha256": hashlib.sha256(data).hexdigest(),
            },
        )
        root["mainEntity"] = notebook
        action = self._action()
        action["instrument"] = self._python()
        action["agent"] = root["author"] = self._add("#agent", "Person", name=getpass.getuser())
        inputs = [self._file(one) for one in self._inputs]
        if inputs:
            action["object"] = inputs
        action["result"] = [notebook, *(self._file(one) for one in self._outputs)]
        root["mentions"] = action

    def _add(self, identifier: str, kind: str, **properties: Any) -> Any:
        from rocrate.model.contextentity import ContextEntity

        entity = ContextEntity(self._crate, identifier, properties={"@type": kind, **properties})
        return self._crate.add(entity)

    def _action(self) -> Any:
        first, last = self._cells[0].record, self._cells[-1].record
        ends = [one.number for one in self._cells if one.record.get("fate") != "ok"]
        reasons = dict.fromkeys(filter(None, (_reason(one) for one in self._cells)))
        words = f"{len(self._cells)} cells were run."
        if reasons:
            words += f" Its inputs may be incomplete: {'; '.join(reasons)}."
        more: Json = {}
        if ends:
            more["error"] = f"Cell {ends[0]} failed."
        head = as_text(last.get("hash"))
        return self._add(
            f"#run-{head[:12]}",
            "CreateAction",
            name=f"Run of {self._path.name}",
            description=words,
            startTime=_time(first.get("started")),
            endTime=_time(last.get("ended")),
            actionStatus=f"http://schema.org/{_FATES['error' if ends else 'ok']}",
            **more,
        )

    def _python(self) -> Any:
        version = as_text(self._cells[-1].record.get("python"))
        packages = []
        for name, found in sorted(as_object(self._lock.get("pip")).items()):
            address = f"https://pypi.org/project/{quote(str(name))}/{quote(str(found))}/"
            more = {"name": str(name), "url": address, "softwareVersion": str(found)}
            packages.append(self._add(address, "SoftwareApplication", **more))
        for section, home in (("conda", "https://anaconda.org/search?q="), ("r", _CRAN)):
            for name, found in sorted(as_object(self._lock.get(section)).items()):
                address = f"{home}{quote(str(name))}"
                more = {"name": str(name), "url": address, "softwareVersion": str(found)}
                packages.append(self._add(f"{address}#{quote(str(found))}", _SOFTWARE, **more))
        needs: Json = {"softwareRequirements": packages} if packages else {}
        return self._add(
            f"https://www.python.org/downloads/release/python-{version.replace('.', '')}/",
            _SOFTWARE,
            name="Python",
            url="https://www.python.org/",
            softwareVersion=version or platform.python_version(),
            **needs,
        )

    def _file(self, used: ExpectedFile) -> Any:
        """Return the entity of a file: in the crate where it is at hand, else by its hash."""
        known = self._files.get((used.path, used.sha256))
        if known is not None:
            return known
        kind = mimetypes.guess_type(used.path)[0] or "application/octet-stream"
        properties: Json = {"name": used.path, "encodingFormat": kind}
        if used.size_bytes is not None:
            properties["contentSize"] = str(used.size_bytes)
        if used.sha256:
            properties["sha256"] = used.sha256
        local = self._beside_notebook(used)
        if local is not None:
            place = f"files/{used.sha256[:12]}/{used.path}"
            made = self._crate.add_file(str(local), place, properties=properties)
        else:
            made = self._crate.add_file(_name_of(used), fetch_remote=False, properties=properties)
        self._files[used.path, used.sha256] = made
        return made

    def _beside_notebook(self, used: ExpectedFile) -> Path | None:
        """Return the file of this machine that is the recorded one; ``None`` if there is none."""
        parts = PurePosixPath(used.path).parts
        if not used.sha256 or not parts or used.path.startswith("/") or ".." in parts:
            return None
        try:
            path = self._beside.joinpath(*parts).resolve()
            is_inside = path.is_relative_to(self._beside) and path.is_file()
            if not is_inside or not 0 <= path.stat().st_size <= COPY_LIMIT_BYTES:
                return None
            found = hashlib.sha256(path.read_bytes()).hexdigest()
        except (OSError, ValueError):
            return None
        return path if found == used.sha256 else None


_SOFTWARE = "SoftwareApplication"
_CRAN = "https://cran.r-project.org/package="


def _name_of(used: ExpectedFile) -> str:
    """Return the name of a file that is not in the crate: its hash, and what it was called."""
    called = quote(used.path, safe="")
    if not used.sha256:
        return f"urn:ivy:file:{called}"
    raw = base64.urlsafe_b64encode(bytes.fromhex(used.sha256)).decode("ascii").rstrip("=")
    return f"ni:///sha-256;{raw}?name={called}"


def _reason(one: CodeCell) -> str:
    return as_text(one.record.get("incomplete"))


def _time(value: object) -> str:
    """Return a time as the profile has it: with an offset, not with ``Z``."""
    text = as_text(value)
    return f"{text[:-1]}+00:00" if text.endswith("Z") else text
