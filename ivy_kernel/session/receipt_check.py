"""The check of a receipt: the notebook against its records, these against where it ran.

Whatever differs, and whatever cannot be told, is a `Finding` of its own.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ivy_kernel.models import Json
from ivy_kernel.session.receipts import (
    BESIDE,
    RECORD_VERSION,
    SEAL_VERSION,
    CodeCell,
    as_object,
    as_text,
    canonical,
    code_cells,
    digest,
    digest_of_outputs,
    expected_files,
    line_of,
    seal_of,
    signature_of,
)

SHORT = 12
"""So many digits of a hash are shown."""

Kind = Literal["changed", "unknown", "note"]
"""``changed``: it is not as recorded. ``unknown``: it cannot be checked. ``note``: neither."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check has found.

    Parameters
    ----------
    kind
        What it means.
    subject
        What it is about: ``signature``, ``chain``, ``record``, ``cell text``, ``order``,
        ``outputs``, ``cell``, ``file``, ``version`` or ``receipt``.
    words
        What was found, as a sentence.
    cell
        The cell's place among the code cells, from 1; 0 for none.
    cell_id
        Its id in the notebook.
    name
        The file, the package, or the field of the record.
    recorded, found
        The two values; empty where there is none.
    """

    kind: Kind
    subject: str
    words: str
    cell: int = 0
    cell_id: str = ""
    name: str = ""
    recorded: str = ""
    found: str = ""


@dataclass(frozen=True, slots=True)
class SeenFile:
    """A file as it is now.

    Parameters
    ----------
    sha256
        The hash of its content; empty when it is not known.
    size_bytes
        Its size; ``None`` when there is no such file.
    why
        Why it could not be looked at; empty when it was.
    """

    sha256: str = ""
    size_bytes: int | None = None
    why: str = ""


class FileLooker(Protocol):
    """Where a notebook ran, as far as a check looks at it. Nothing is started or changed there."""

    async def look(self, path: str) -> SeenFile:
        """Return a file as it is now; the path is one of a record."""

    async def record_lines(self, place: str) -> list[str] | None:
        """Return the lines of the record on its disk; ``None`` when it has none.

        The place is the name of the notebook's directory there.
        """

    async def lock(self) -> Json | None:
        """Return which Python and packages it has; ``None`` when that cannot be told."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the place where a notebook ran says now.

    Parameters
    ----------
    files
        The files that the records name.
    lines
        The lines of the record on its disk; ``None`` when it has none.
    lock
        Its Python and packages; ``None`` when that is not known.
    """

    files: Mapping[str, SeenFile] = field(default_factory=dict)
    lines: Sequence[str] | None = None
    lock: Json | None = None


async def look_around(notebook: Json, looker: FileLooker) -> Surroundings:
    """Look at all that the records of a notebook name."""
    files = {path: await looker.look(path) for path in expected_files(notebook)}
    place = as_text(seal_of(notebook).get("place"))
    lines = await looker.record_lines(place) if place else None
    return Surroundings(files, lines, await looker.lock())


def check(
    notebook: Mapping[str, Any], *, key: bytes | None, seen: Surroundings | None = None
) -> list[Finding]:
    """Compare a notebook with its receipt, and the receipt with where the notebook ran.

    Parameters
    ----------
    notebook
        The notebook; it may come from anyone.
    key
        The notebook's key, if it is on this machine.
    seen
        What that place says now; ``None`` when it was not looked at.
    """
    check = _Check(notebook, key, seen)
    check.run()
    return check.findings


class _Check:
    """One check of one notebook."""

    def __init__(
        self, notebook: Mapping[str, Any], key: bytes | None, seen: Surroundings | None
    ) -> None:
        self.findings: list[Finding] = []
        self._notebook = notebook
        self._seal = seal_of(notebook)
        self._key = key
        self._seen = seen
        self._cells = list(code_cells(notebook))
        self._lines = {digest(line): line for line in (seen.lines or ())} if seen else {}

    def run(self) -> None:
        """Do all of it."""
        rows = self._rows()
        if rows is None:
            return
        self._check_signature()
        if self._seal:
            self._check_cells(rows)
        for one in self._cells:
            self._check_cell(one, rows.get(one.key))
        self._check_chain(rows)
        self._check_lock()
        if self._seen is None:
            return
        self._check_lines(self._seen.lines)
        self._check_files(self._seen.files)
        self._check_versions(self._seen.lock)

    def _add(
        self, kind: Kind, subject: str, words: str, one: CodeCell | None = None, **more: str
    ) -> None:
        number, key = (one.number, one.key) if one is not None else (0, "")
        self.findings.append(Finding(kind, subject, words, cell=number, cell_id=key, **more))

    def _changed(
        self, subject: str, what: str, recorded: str, found: str, one: CodeCell | None = None
    ) -> None:
        words = f"{what} is not the recorded one: {_brief(recorded)}, found {_brief(found)}."
        self._add("changed", subject, words, one, recorded=recorded, found=found)

    # -- the seal

    def _rows(self) -> dict[str, tuple[str, str, str]] | None:
        """Return what the seal says of each cell; ``None`` when there is nothing to check."""
        if not self._seal:
            if not any(one.record for one in self._cells):
                words = "No cell has a receipt: the notebook did not run where receipts are made."
                self._add("unknown", "receipt", words)
                return None
            words = (
                "The notebook is not sealed, as after a run in JupyterLab: whether a cell was "
                "added, removed or moved cannot be told; jupyter ivy run seals it."
            )
            self._add("unknown", "receipt", words)
            return {}
        rows = self._seal.get("cells")
        is_known = self._seal.get("v") == SEAL_VERSION and isinstance(rows, list)
        if (
            not is_known
            or not all(
                isinstance(row, list) and len(row) == 4 and all(isinstance(one, str) for one in row)
                for row in rows or ()
            )
            or len({row[0] for row in rows or ()}) != len(rows or ())
        ):
            version = str(self._seal.get("v"))
            words = f"The seal has a form that this version does not know (version {version})."
            self._add("changed", "receipt", words, recorded=str(SEAL_VERSION), found=version)
            return None
        return {row[0]: (row[1], row[2], row[3]) for row in rows or ()}

    def _check_signature(self) -> None:
        if not self._seal:
            return
        signature = as_text(self._seal.get("signature"))
        if not signature:
            self._add("unknown", "signature", "The seal has no signature: its run had no key.")
        elif self._key is None:
            words = (
                "Whether the signature fits cannot be checked here: the notebook's key is on "
                "another machine."
            )
            self._add("unknown", "signature", words)
        elif not hmac.compare_digest(
            signature_of(self._seal, self._key).encode(), signature.encode("utf-8", "replace")
        ):
            # Without the right one, which would make what was forged look true.
            words = "The signature does not fit: the seal was changed after the run."
            self._add("changed", "signature", words, recorded=signature)

    def _check_cells(self, rows: Mapping[str, tuple[str, str, str]]) -> None:
        """Check that no cell was added, removed or moved."""
        here = {one.key: one for one in self._cells}
        for place, key in enumerate(rows, 1):
            if key not in here:
                words = f"Cell {key}, the {_ordinal(place)} of the run, is not in the notebook."
                self._add("changed", "cell", words, name=key, recorded=key)
        for one in self._cells:
            if one.key not in rows:
                words = f"Cell {one.number} ({one.key}) was added after the run."
                self._add("changed", "cell", words, one, found=one.key)
        recorded = [key for key in rows if key in here]
        found = [one.key for one in self._cells if one.key in rows]
        for was, now in zip(recorded, found, strict=True):
            if was != now:
                words = f"Cell {here[now].number} ({now}) stands where cell {was} was run."
                self._add("changed", "order", words, here[now], recorded=was, found=now)
                break

    # -- the cells

    def _check_cell(self, one: CodeCell, row: tuple[str, str, str] | None) -> None:
        record = one.record
        code = row[2] if row else as_text(record.get("code"))
        outputs = row[1] if row else as_text(one.ivy.get("outputs"))
        if code and code != one.code_hash:
            self._changed("cell text", f"The text of cell {one.number}", code, one.code_hash, one)
        found = digest_of_outputs(one.cell)
        if outputs and outputs != found:
            self._changed("outputs", f"The outputs of cell {one.number}", outputs, found, one)
        if not record:
            if row and row[0]:
                words = f"The record of cell {one.number} was removed."
                self._add("changed", "record", words, one, recorded=row[0])
            elif not row and not self._seal:
                words = f"Cell {one.number} has no receipt."
                self._add("unknown", "receipt", words, one)
            return
        self._check_record(one, record, row[0] if row else as_text(record.get("hash")))
        noted = as_text(one.ivy.get("outputs"))
        if row and noted != row[1]:
            self._changed("outputs", f"The digest noted in cell {one.number}", row[1], noted, one)

    def _check_record(self, one: CodeCell, record: Json, recorded: str) -> None:
        """Check that a record is the one whose hash was sealed, and is about this cell."""
        found = digest(line_of(record))
        if recorded == "":
            words = f"Cell {one.number} has a record that the seal does not know."
            self._add("changed", "record", words, one, found=found)
        elif found != recorded:
            fields = self._changed_fields(record, self._lines.get(recorded))
            for name, was, now in fields:
                what = f"The field {name} of the record of cell {one.number}"
                self._changed("record", what, was, now, one)
            if not fields:
                self._changed("record", f"The record of cell {one.number}", recorded, found, one)
        elif record.get("hash") != recorded:
            noted = as_text(record.get("hash"))
            what = f"The hash noted in cell {one.number}"
            self._changed("record", what, recorded, noted, one)
        elif record.get("v") != RECORD_VERSION:
            words = f"The record of cell {one.number} has a form that this version does not know."
            self._add("unknown", "record", words, one, found=str(record.get("v")))
        elif record.get("code") != one.code_hash:
            code = as_text(record.get("code"))
            if not any(f.subject == "cell text" and f.cell == one.number for f in self.findings):
                what = f"The text of cell {one.number}"
                self._changed("cell text", what, code, one.code_hash, one)

    @staticmethod
    def _changed_fields(record: Json, line: str | None = None) -> list[tuple[str, str, str]]:
        """Return which fields differ from the line on the disk, with both values."""
        there = _parsed(line)
        names = sorted({*there, *record} - set(BESIDE)) if there else ()
        return [
            (name, canonical(there.get(name)), canonical(record.get(name)))
            for name in names
            if there.get(name) != record.get(name)
        ]

    def _check_chain(self, rows: Mapping[str, tuple[str, str, str]]) -> None:
        """Check that each record follows the one before it."""
        if not self._seal:
            return
        known = self._seal.get("breaks")
        breaks = set(map(str, known)) if isinstance(known, list) else set()
        by_key = {one.key: one for one in self._cells}
        before, head = "", ""
        for key, (name, _, _) in rows.items():
            one = by_key.get(key)
            if not name or one is None or not one.record:
                before = ""  # what is missing was told
                head = name or head
                continue
            head = digest(line_of(one.record))
            begin = as_text(one.record.get("previous"))
            if before and begin != before:
                if name in breaks:
                    words = f"The record begins anew at cell {one.number}, in another sandbox."
                    self._add("note", "chain", words, one)
                else:
                    what = f"What the record of cell {one.number} follows"
                    self._changed("chain", what, before, begin, one)
            before = head
        sealed = as_text(self._seal.get("head"))
        if head != sealed:
            self._changed("chain", "The end of the record", sealed, head)

    def _check_lock(self) -> None:
        """Check that the packages in the seal are those that the last record names."""
        lock = self._seal.get("packages")
        named = next(
            (as_text(one.record.get("packages")) for one in self._cells[::-1] if one.record), ""
        )
        if not self._seal:
            return
        if not isinstance(lock, dict):
            words = "The versions of the packages are not in the seal."
            self._add("unknown", "version", words)
        elif (found := digest(canonical(lock))) != named:
            self._changed("version", "The list of packages in the seal", named, found)

    # -- where it ran

    def _check_lines(self, lines: Sequence[str] | None) -> None:
        """Compare the records with those on the sandbox's disk."""
        if lines is None:
            words = "The sandbox has no record of this notebook; it may be another one by now."
            self._add("unknown", "record", words)
            return
        before = ""
        for number, line in enumerate(lines, 1):
            previous = as_text(_parsed(line).get("previous"))
            if previous != before:
                what = f"What line {number} of the record in the sandbox follows"
                self._changed("chain", what, previous, before)
            before = digest(line)
        for one in self._cells:
            name = digest(line_of(one.record)) if one.record else ""
            if name and name not in self._lines:
                same = [line for line in lines if _is_of(line, one.record)]
                for field_name, was, now in self._changed_fields(one.record, *same[-1:]):
                    what = f"The field {field_name} of the record of cell {one.number}"
                    self._changed("record", f"{what} in the sandbox", was, now, one)
                if not same:
                    words = f"The record of cell {one.number} is not in the sandbox's."
                    self._add("changed", "record", words, one, recorded=name)

    def _check_files(self, files: Mapping[str, SeenFile]) -> None:
        """Compare the files that the cells used with what they are now."""
        is_another = self._seen is not None and self._seen.lines is None
        for path, expected in expected_files(self._notebook).items():
            now = files.get(path, SeenFile(why="it was not looked at"))
            size = "" if expected.size_bytes is None else f"{expected.size_bytes} bytes"
            was = expected.sha256 or size
            more = {"name": path, "recorded": was, "found": now.sha256}
            if now.why:
                words = f"{expected.words} cannot be checked: {now.why}."
                self._add("unknown", "file", words, expected.cell, **more)
            elif now.size_bytes is None:
                words = f"{expected.words} is not there any more."
                kind: Kind = "unknown" if is_another else "changed"
                self._add(kind, "file", words, expected.cell, **more)
            elif expected.size_bytes is not None and expected.size_bytes != now.size_bytes:
                sizes = f"{expected.size_bytes} bytes, found {now.size_bytes}"
                words = f"{expected.words} has another size than recorded: {sizes}."
                self._add("changed", "file", words, expected.cell, **more)
            elif expected.sha256 and now.sha256 and expected.sha256 != now.sha256:
                hashes = f"{_brief(was)}, found {_brief(now.sha256)}"
                words = f"{expected.words} has another content than recorded: {hashes}."
                self._add("changed", "file", words, expected.cell, **more)
            elif not expected.sha256 or not now.sha256:
                words = f"{expected.words} has the recorded size; its content has no hash."
                self._add("unknown", "file", words, expected.cell, **more)

    def _check_versions(self, now: Json | None) -> None:
        """Compare Python and packages with those of the run."""
        lock = self._seal.get("packages")
        if now is None or not isinstance(lock, dict):
            if isinstance(lock, dict):
                words = "Which packages the sandbox has now cannot be told."
                self._add("unknown", "version", words)
            return
        for name, was, found in changed_versions(lock, now):
            words = f"{name} was {was or 'not installed'}, and is {found or 'not installed'} now."
            self._add("changed", "version", words, name=name, recorded=was, found=found)


def changed_versions(lock: Json, now: Json) -> list[tuple[str, str, str]]:
    """Return what two locks differ in: the name, and both versions; empty for none."""
    found = []
    if lock.get("python") != now.get("python"):
        found.append(("Python", str(lock.get("python", "")), str(now.get("python", ""))))
    for section in ("pip", "conda", "r"):
        was, there = as_object(lock.get(section)), as_object(now.get(section))
        found += [
            (name, str(was.get(name, "")), str(there.get(name, "")))
            for name in sorted({*was, *there})
            if was.get(name) != there.get(name)
        ]
    return found


def _parsed(line: str | None) -> Json:
    try:
        return as_object(json.loads(line or "{}"))
    except (ValueError, RecursionError):
        return {}


def _is_of(line: str, record: Json) -> bool:
    """Whether a line of the disk is about the run of a record."""
    there = _parsed(line)
    return bool(there) and there.get("number") == record.get("number")


def _brief(value: str) -> str:
    is_hash = len(value) == 64 and all(one in "0123456789abcdef" for one in value)
    return f"{value[:SHORT]}…" if is_hash else value[:200] or "none"


def _ordinal(number: int) -> str:
    endings = {1: "st", 2: "nd", 3: "rd"}
    is_teen = number % 100 in (11, 12, 13)
    return f"{number}{'th' if is_teen else endings.get(number % 10, 'th')}"
