"""The receipt in an executed notebook: what ran, in a chain of hashes that is sealed with a key.

The sandbox writes one record for each cell, and each names the hash of the one before
(`ivy_kernel.agent.work`). They come here with the replies to cells, `note_reply` puts them into the
cells' metadata, and `seal` ends a run with a signature over all of them; `receipt_check` reads
them again.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ivy_kernel.agent.outputs import outputs_digest
from ivy_kernel.models import Json

SEAL_VERSION = 1
RECORD_VERSION = 1

BESIDE = ("hash",)
"""Keys of a record in a notebook that are not part of its line."""


# Text and hashes ----------------------------------------------------------------------------------
def canonical(value: object) -> str:
    """Return the one text of a JSON value that is hashed and signed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def digest(text: str) -> str:
    """Return the SHA-256 of a text, in hex."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def line_of(record: Mapping[str, Any]) -> str:
    """Return a record's line, without what travels beside it."""
    return canonical({key: value for key, value in record.items() if key not in BESIDE})


def signature_of(seal: Mapping[str, Any], key: bytes) -> str:
    """Return the signature of a seal, in hex."""
    signed = canonical({name: value for name, value in seal.items() if name != "signature"})
    return hmac.new(key, signed.encode(), hashlib.sha256).hexdigest()


def digest_of_outputs(cell: Mapping[str, Any]) -> str:
    """Return the digest of a cell's outputs; empty when they are none that a notebook may have."""
    try:
        return outputs_digest(list(cell.get("outputs") or ()))
    except (TypeError, ValueError, AttributeError, KeyError):
        return ""  # what is no output has no digest, so it is found to be another one


def as_text(value: object) -> str:
    """Return a text from outside; empty for anything else."""
    return value if isinstance(value, str) else ""


def as_object(value: object) -> Json:
    """Return a JSON object from outside; empty for anything else."""
    return value if isinstance(value, dict) else {}


def as_objects(value: object) -> list[Json]:
    """Return the objects of a list from outside."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def source_of(cell: Mapping[str, Any]) -> str:
    """Return a cell's text, which a document may hold as a list of lines."""
    source = cell.get("source", "")
    return "".join(map(str, source)) if isinstance(source, list) else str(source)


# Writing ------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class CodeCell:
    """A code cell that holds anything, in its place.

    Parameters
    ----------
    number
        Its place among the code cells, from 1.
    key
        Its id, or its place where the document's format has no ids.
    cell
        The cell.
    """

    number: int
    key: str
    cell: Json

    @property
    def ivy(self) -> Json:
        """What is noted in its metadata."""
        return as_object(as_object(self.cell.get("metadata")).get("ivy"))

    @property
    def record(self) -> Json:
        """The record of its last run; empty when there is none."""
        return as_object(self.ivy.get("receipt"))

    @property
    def code_hash(self) -> str:
        """The hash of its text."""
        return digest(source_of(self.cell))


def code_cells(notebook: Mapping[str, Any]) -> Iterator[CodeCell]:
    """Yield the code cells that hold anything."""
    number, seen = 0, set()
    for cell in notebook.get("cells") or ():
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        number += 1
        if not source_of(cell).strip():
            continue
        key = str(cell.get("id") or f"#{number}")
        if key in seen:  # a document with two cells of one id is none that was sealed
            key = f"{key}#{number}"
        seen.add(key)
        yield CodeCell(number, key, cell)


def note_reply(cell: Json, reply: Mapping[str, Any]) -> Json:
    """Note in a cell's metadata what the reply to its request says of it; return that.

    Parameters
    ----------
    cell
        The cell, as it is in the document.
    reply
        The ``execute_reply`` message.
    """
    told = as_object(as_object(reply.get("metadata")).get("ivy"))
    cell.setdefault("metadata", {}).pop("ivy", None)  # what an earlier run has left
    if told:
        noted: Json = {"run": as_text(as_object(reply.get("parent_header")).get("msg_id"))}
        if isinstance(told.get("receipt"), dict):
            noted["receipt"] = told["receipt"]
        noted["outputs"] = digest_of_outputs(cell)
        cell["metadata"]["ivy"] = noted
    return told


def seal(
    notebook: Json, *, owner: str, key: bytes | None, lock: Json | None = None, place: str = ""
) -> Json | None:
    """End a run: note what ran in which order in the notebook's metadata, and sign it.

    Parameters
    ----------
    notebook
        The executed notebook; changed in place.
    owner
        The notebook's id in our own records, by which its key is found.
    key
        Its key; without one the seal has no signature.
    lock
        The Python and packages of the last cell, as its record names them by their hash.
    place
        The name of its directory in the sandbox, which has the record too; empty if not known.

    Returns
    -------
    Json
        The seal; ``None`` when no cell has a record, and nothing was sealed.
    """
    rows: list[list[str]] = []
    breaks: list[str] = []
    head, last = "", {}
    for one in code_cells(notebook):
        found = digest_of_outputs(one.cell)
        if one.ivy:  # a later cell may have updated what this one displays
            one.cell["metadata"]["ivy"]["outputs"] = found
        record = one.record
        name = digest(line_of(record)) if record else ""
        if record:
            if head and record.get("previous") != head:
                breaks.append(name)
            head, last = name, record
        rows.append([one.key, name, found, one.code_hash])
    metadata = notebook.setdefault("metadata", {})
    ours = {key: value for key, value in as_object(metadata.get("ivy")).items() if key != "receipt"}
    if not head:
        metadata.pop("ivy", None)
        if ours:
            metadata["ivy"] = ours
        return None
    if lock is not None and digest(canonical(lock)) != last.get("packages"):
        lock = None  # it is that of another moment
    made: Json = {
        "v": SEAL_VERSION,
        "notebook": owner,
        "place": place,
        "chat": as_text(as_object(last.get("sandbox")).get("chat")),
        "head": head,
        "packages": lock,
        "cells": rows,
    }
    if breaks:
        made["breaks"] = breaks
    if key is not None:
        made["signature"] = signature_of(made, key)
    metadata["ivy"] = {**ours, "receipt": made}
    return made


# Files --------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ExpectedFile:
    """A file as it has to be after the run.

    Parameters
    ----------
    path
        Its name in the records.
    sha256
        Its hash; empty where the record has none.
    size_bytes
        Its size; ``None`` where the record has none.
    cell
        The cell that used it last.
    is_input
        Whether that cell read it and did not write it.
    """

    path: str
    sha256: str
    size_bytes: int | None
    cell: CodeCell
    is_input: bool

    @property
    def is_known(self) -> bool:
        """Whether the record says what it was; else it was removed, or is not known."""
        return bool(self.sha256) or self.size_bytes is not None

    @property
    def words(self) -> str:
        """What it is, to begin a sentence with."""
        what, done = ("input", "read") if self.is_input else ("file", "written")
        return f"The {what} {self.path}, {done} by cell {self.cell.number},"


def expected_files(notebook: Mapping[str, Any]) -> dict[str, ExpectedFile]:
    """Return each file of the records as its last use left it."""
    found: dict[str, ExpectedFile] = {}
    for one in _all_uses(notebook):
        if one.is_known:
            found[one.path] = one
        elif not one.is_input:
            found.pop(one.path, None)  # it was removed
    return found


def used_files(notebook: Mapping[str, Any]) -> tuple[list[ExpectedFile], list[ExpectedFile]]:
    """Return the inputs of a run, as they were first read, and what it left behind.

    What a cell read after another had written it is no input of the run.
    """
    inputs: dict[str, ExpectedFile] = {}
    written: set[str] = set()
    for one in _all_uses(notebook):
        if not one.is_input:
            written.add(one.path)
        elif one.path not in written and one.is_known:
            inputs.setdefault(one.path, one)
    left = expected_files(notebook)
    return list(inputs.values()), [left[path] for path in sorted(written) if path in left]


def _all_uses(notebook: Mapping[str, Any]) -> Iterator[ExpectedFile]:
    """Yield every use of a file, in the order of the cells."""
    cells = [one for one in code_cells(notebook) if one.record]
    # A file that was too large for a reply has its hash in the record of a later cell.
    late = {
        (one.get("of"), one.get("path")): as_text(one.get("sha256"))
        for cell in cells
        for one in as_objects(cell.record.get("late"))
        if is_name(one.get("of")) and is_name(one.get("path"))
    }
    for one in cells:
        for use, is_input in _uses(one.record):
            path, size = use["path"], use.get("bytes")
            own = as_text(one.record.get("hash"))
            sha256 = as_text(use.get("sha256")) or late.get((own, path), "")
            size = size if isinstance(size, int) else None
            yield ExpectedFile(path, sha256, size, one, is_input)


def _uses(record: Mapping[str, Any]) -> Iterator[tuple[Json, bool]]:
    """Yield the files that a cell read, then those that it wrote, and whether it is the former."""
    for direction in ("reads", "writes"):
        for use in as_objects(record.get(direction)):
            if is_name(use.get("path")):
                yield use, direction == "reads"


def is_name(value: object) -> bool:
    """Whether a value from outside can be a name."""
    return isinstance(value, str) and bool(value)


def seal_of(notebook: Mapping[str, Any]) -> Json:
    """Return the seal of a notebook; empty when it has none."""
    ivy = as_object(as_object(notebook.get("metadata")).get("ivy"))
    return as_object(ivy.get("receipt"))


def owner_of(notebook: Mapping[str, Any]) -> str:
    """Return the id by which a sealed notebook's key is found; empty when it is not sealed."""
    return as_text(seal_of(notebook).get("notebook"))


def chat_of(notebook: Mapping[str, Any]) -> str:
    """Return the chat whose sandbox a sealed notebook ran in; empty when it is not sealed."""
    return as_text(seal_of(notebook).get("chat"))
