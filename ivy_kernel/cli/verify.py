"""``jupyter ivy verify``: an executed notebook against its receipt, and its outputs run again."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import re
import sys
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from traitlets import Bool, Float, Unicode

from ivy_kernel.cli.app import EXIT_FAILED, EXIT_SIGNAL, JSON_FLAG, IvyCommandApp, print_line
from ivy_kernel.cli.comparison import TOLERANCE, OutputVerdict, compare_cell
from ivy_kernel.cli.execution import (
    NotebookRun,
    check_local_cells,
    kernel_arguments,
    read_notebook,
)
from ivy_kernel.errors import (
    IvyError,
    NoSandboxError,
    NoSuchFileError,
    RefusedPathError,
    SettingError,
    UsageError,
)
from ivy_kernel.models import Json
from ivy_kernel.routes.agent.programs import new_call_id
from ivy_kernel.routes.file_access import ProgramFiles
from ivy_kernel.routes.files import file_parts
from ivy_kernel.routes.tools import PYTHON_TOOL, SandboxTools, strings_in
from ivy_kernel.session import private_file
from ivy_kernel.session.lifecycle import Lifecycle
from ivy_kernel.session.notebook_record import records_directory
from ivy_kernel.session.open import code_fields, open_lifecycle
from ivy_kernel.session.receipt_check import (
    Finding,
    SeenFile,
    Surroundings,
    changed_versions,
    check,
    look_around,
)
from ivy_kernel.session.receipts import chat_of, code_cells, owner_of, seal_of
from ivy_kernel.settings.live import LiveSettings

EXIT_UNKNOWN = 2
"""Exit code: nothing differs, and not all of it can be checked."""
RECORD_LIMIT_BYTES = 64 << 20
EMPTY_SHA256 = hashlib.sha256().hexdigest()
PACKAGES_SECONDS = 60.0

_PACKAGES_PROGRAM = """\
import base64, json, sys, types, zlib
_ivy_m = [types.ModuleType('_ivy_p'), types.ModuleType('_ivy_p.requests')]
_ivy_m[0].__path__, _ivy_m[1].Part = [], object
sys.modules.update((one.__name__, one) for one in _ivy_m)
_ivy_n = {{'__name__': '_ivy_p.packages', '__package__': '_ivy_p'}}
exec(zlib.decompress(base64.b64decode('''{source}''')).decode(), _ivy_n)
_ivy_l = json.dumps(_ivy_n['Packages']('/dev/null').lock())
_ivy_l = base64.b64encode(zlib.compress(_ivy_l.encode())).decode()
_ivy_l = [_ivy_l[i:i + 4000] for i in range(0, len(_ivy_l), 4000)]
print('IVY-' 'LOCK-{nonce}:', *_ivy_l, ':', sep='\\n')
for _ivy_m in _ivy_m:
    del sys.modules[_ivy_m.__name__]
del _ivy_m, _ivy_n, _ivy_l
"""
"""Tells the packages as the receipt's own module does, without what it extends in its kernel.

The word in the answer is not in the program.
"""

VERIFY_FLAGS = {
    **JSON_FLAG,
    "no-rerun": (
        {"VerifyApp": {"rerun": False}},
        "Check the record alone: no cell is run, no sandbox is started.",
    ),
    "allow-local": (
        {"Ivy": {"allow_local": True}},
        "Run the notebook's %%local cells too: on this machine, as you.",
    ),
}


class VerifyApp(IvyCommandApp):
    """Check an executed notebook: its receipt, and its outputs by running it again.

    jupyter ivy verify NOTEBOOK [--no-rerun] [--tolerance 1e-9] [--crate DIR]

    The receipt: no cell, output or record was changed since the run, and the sandbox still has the
    same record, files and packages. The outputs: the notebook's cells are run again, as by jupyter
    ivy run, into a temporary copy; each output is exact, within tolerance, different, or cannot be
    checked. Cells write the files that they write.

    Exit code 0 when all is as recorded, 1 when something differs, 2 when nothing differs but not
    all can be checked (or the command is wrong), 130 after Ctrl-C.
    """

    name = "jupyter-ivy-verify"
    takes_arguments = True
    description = __doc__
    aliases = {  # noqa: RUF012 - the way that traitlets applications are declared
        **IvyCommandApp.aliases,
        "tolerance": "VerifyApp.tolerance",
        "crate": "VerifyApp.crate",
    }
    flags = VERIFY_FLAGS
    rerun = Bool(True, help="Whether to run the notebook again.").tag(config=True)
    tolerance = Float(
        TOLERANCE, min=0.0, help="Relative difference of two numbers that counts as none."
    ).tag(config=True)
    crate = Unicode("", help="Write a Process Run RO-Crate into this new directory.").tag(
        config=True
    )

    async def run(self) -> int:
        """Check it."""
        if len(self.extra_args) != 1:
            raise UsageError("Give one notebook: jupyter ivy verify NOTEBOOK [--no-rerun].")
        path = Path(self.extra_args[0])
        live = self.live_settings()
        settings = live.current()
        notebook = read_notebook(path)
        allowed = settings.allow_local and settings.sources["allow_local"].kind == "flag"
        if self.rerun and not allowed:
            check_local_cells(notebook, path)
        if self.crate:
            from ivy_kernel.cli.crate import check_crate

            check_crate(notebook, Path(self.crate))
        findings = await check_record(notebook, live)
        verdicts: list[OutputVerdict] = []
        if self.rerun:
            arguments = [*kernel_arguments(self), f"--Ivy.allow_local={allowed}"]
            again = _Again(notebook, path)
            await again.run(arguments)
            if again.signal_number:
                return EXIT_SIGNAL + again.signal_number
            findings = again.versions(findings)
            verdicts = list(again.verdicts(self.tolerance))
        if self.crate:
            from ivy_kernel.cli.crate import write_crate

            write_crate(notebook, path, Path(self.crate))
        code = exit_code(findings, verdicts)
        if self.as_json:
            self.print_json(
                {
                    "notebook": str(path),
                    "result": ("as recorded", "different", "cannot be checked")[code],
                    "record": [asdict(one) for one in findings],
                    "outputs": [asdict(one) for one in verdicts],
                    "crate": self.crate or None,
                }
            )
        else:
            self._print(path, findings, verdicts)
        return code

    def _print(self, path: Path, findings: list[Finding], verdicts: list[OutputVerdict]) -> None:
        words = {"changed": "different", "unknown": "cannot be checked", "note": "note"}
        if not findings:
            print_line("The record is intact: cells, outputs, files and packages are as recorded.")
        for one in findings:
            print_line(f"{words[one.kind]:18}{one.subject:12}{_line(one.words)}")
        if verdicts:
            print_line(f"\n{'cell':>5} {'output':>6}  {'':18}what")
        for verdict in verdicts:
            what = f"{verdict.kind}: {verdict.why}" if verdict.why else verdict.kind
            print_line(
                f"{verdict.cell:>5} {verdict.output or '':>6}  {verdict.verdict:18}{_line(what)}"
            )
        counts = {
            kind: sum(verdict.verdict == kind for verdict in verdicts)
            for kind in ("exact", "within tolerance", "different", "cannot be checked")
        }
        changed = sum(one.kind == "changed" for one in findings)
        unknown = sum(one.kind == "unknown" for one in findings)
        ends = f"{path}: the record has {changed} differences, {unknown} points not checked"
        if self.rerun:
            ends += "; outputs: " + ", ".join(f"{n} {kind}" for kind, n in counts.items())
        print_line(f"\n{ends}.")
        if self.crate:
            print_line(f"The crate is {self.crate}.")


def _line(text: str) -> str:
    """Return text from outside on one line."""
    return " ".join(text.split())


def exit_code(findings: list[Finding], verdicts: list[OutputVerdict]) -> int:
    """Return 1 when something differs, 2 when something cannot be checked, else 0."""
    kinds = {one.kind for one in findings}
    given = {one.verdict for one in verdicts}
    if "changed" in kinds or "different" in given:
        return EXIT_FAILED
    return EXIT_UNKNOWN if "unknown" in kinds or "cannot be checked" in given else 0


# The record ---------------------------------------------------------------------------------------
async def check_record(notebook: Any, live: LiveSettings) -> list[Finding]:
    """Check the record of a notebook, and look into its sandbox if that is active."""
    key = kept_key(owner_of(notebook))
    why = ""
    seen: Surroundings | None = None
    if seal_of(notebook):
        try:
            lifecycle = open_lifecycle(live)
        except SettingError as error:
            why = str(error)
        else:
            try:
                seen = await look_into(lifecycle, notebook, live)
            except IvyError as error:
                why = str(error)
            finally:
                await lifecycle.aclose()
    findings = check(notebook, key=key, seen=seen)
    if why:
        words = f"Files, packages and the sandbox's own record were not looked at: {why}"
        findings.append(Finding("unknown", "sandbox", words))
    return findings


def kept_key(owner: str) -> bytes | None:
    """Return the key of a notebook by its id, if it is on this machine."""
    if not re.fullmatch(r"[0-9a-f]{8,64}", owner):  # it comes from the notebook, and names a file
        return None
    try:
        content = private_file.read_json(records_directory() / f"{owner}.json")
        return bytes.fromhex(content["key"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


async def look_into(lifecycle: Lifecycle, notebook: Any, live: LiveSettings) -> Surroundings:
    """Look at what the sandbox has; starts and wakes none.

    Raises
    ------
    NoSandboxError
        When it is not active, or the notebook ran in another chat's.
    IvyError
        When it cannot be looked at.
    """
    chat = chat_of(notebook)
    if chat and chat != lifecycle.chat_id:
        raise NoSandboxError(
            f"the notebook ran in the chat {chat!r}, and the settings name {lifecycle.chat_id!r}; "
            f"add --Ivy.chat_id={chat}."
        )
    status = await lifecycle.look()
    if status.state != "active":
        raise NoSandboxError(f"{lifecycle.name} is not active ({status.state}).")
    tools = SandboxTools(lifecycle.client, lifecycle.chat_id, code_fields(live.current()))
    looker = SandboxLooker(tools)
    await looker.open()
    return await look_around(notebook, looker)


class SandboxLooker:
    """An active sandbox, as far as a check looks at it; see `FileLooker`.

    Parameters
    ----------
    tools
        Its tools.
    """

    def __init__(self, tools: SandboxTools) -> None:
        self._tools = tools
        self._access = ProgramFiles(tools)
        self._root = ""

    async def open(self) -> None:
        """Find the root of its files.

        Raises
        ------
        IvyError
            When there is no way to them.
        """
        self._root = await self._access.root()

    async def look(self, path: str) -> SeenFile:
        """See `FileLooker.look`; the whole file is hashed there."""
        try:
            parts = file_parts(path, self._root)
            entry = await self._access.entry(parts)
            if entry.kind != "file":
                return SeenFile(why=f"it is a {entry.kind} now")
            size = entry.size_bytes
            hashes, version = await self._access.hashes(parts, 0, size, max(size, 1))
        except NoSuchFileError:
            return SeenFile()
        except RefusedPathError:
            return SeenFile(why="it is outside of the sandbox's working directory")
        except IvyError as error:
            return SeenFile(why=str(error).rstrip("."))

        return SeenFile(hashes[0].hex() if hashes else EMPTY_SHA256, version.size_bytes)

    async def record_lines(self, place: str) -> list[str] | None:
        """See `FileLooker.record_lines`."""
        if not re.fullmatch(r"[\w-]+", place):
            return None
        parts = (".ivy", place, "receipts", f"{place}.jsonl")
        data = b""
        try:
            size = (await self._access.entry(parts)).size_bytes
            while len(data) < min(size, RECORD_LIMIT_BYTES):
                piece = await self._access.read(parts, len(data), 1 << 20)
                if not piece.data:
                    break
                data += piece.data
        except IvyError:
            return None
        return data.decode("utf-8", "replace").splitlines()

    async def lock(self) -> Json | None:
        """See `FileLooker.lock`."""
        source = resources.files("ivy_kernel.agent.work").joinpath("packages.py").read_bytes()
        packed = base64.b64encode(zlib.compress(source, 9)).decode("ascii")
        lines = "\n".join(packed[at : at + 4000] for at in range(0, len(packed), 4000))
        nonce = new_call_id()
        code = _PACKAGES_PROGRAM.format(source=lines, nonce=nonce)
        try:
            result = await self._tools.run(PYTHON_TOOL, code, PACKAGES_SECONDS, retry=False)
        except IvyError:
            return None
        pattern = re.compile(rf"IVY-LOCK-{nonce}:([\w+/=\s]*):")
        for text in strings_in(result):
            if match := pattern.search(text):
                try:
                    lock = json.loads(zlib.decompress(base64.b64decode(match[1])))
                except (ValueError, zlib.error, RecursionError):
                    return None
                return lock if isinstance(lock, dict) else None
        return None


# The outputs --------------------------------------------------------------------------------------
class _Again:
    """The other run of a notebook, into a temporary copy.

    Parameters
    ----------
    notebook
        The notebook as it was recorded; it stays as it is.
    path
        Its file; cells that run here find the files beside it.
    """

    def __init__(self, notebook: Any, path: Path) -> None:
        self._recorded = notebook
        self._directory = path.resolve().parent
        self._copy = copy.deepcopy(notebook)
        self._why_not = ""
        self._ended_in = 0
        self._lock: Json | None = None
        self.signal_number = 0

    async def run(self, arguments: list[str]) -> None:
        """Run it; an error of ours is kept, for it says nothing of the outputs."""
        from tqdm import tqdm  # imported late, as in `RunApp`

        with tempfile.TemporaryDirectory(prefix="ivy-verify-") as place:
            run = NotebookRun(self._copy, Path(place) / "again.ipynb", directory=self._directory)
            run.is_sealed = False
            total = sum(cell.cell_type == "code" for cell in self._copy.cells)
            with tqdm(total=total, unit="cell", file=sys.stderr) as bar:
                run.after_cell = lambda _index: bar.update()
                try:
                    await run.execute(arguments)
                except UsageError:
                    raise
                except IvyError as error:
                    self._why_not = f"it could not be run again: {error}"
        self._ended_in = run.stopped_in
        self._lock = run.lock
        self.signal_number = run.signal_number

    def versions(self, findings: list[Finding]) -> list[Finding]:
        """Return the findings with what the packages of this run are, where that was not known."""
        sealed = seal_of(self._recorded).get("packages")
        is_open = [one for one in findings if one.subject == "version" and one.kind == "unknown"]
        if not isinstance(sealed, dict) or self._lock is None:
            return findings
        kept = [one for one in findings if one not in is_open]
        known = {one.name for one in kept if one.subject == "version"}
        for name, was, found in changed_versions(sealed, self._lock):
            if name not in known:
                words = f"{name} was {was or 'not installed'}, and {found or 'not installed'} now."
                kept.append(
                    Finding("changed", "version", words, name=name, recorded=was, found=found)
                )
        return kept

    def verdicts(self, tolerance: float) -> Iterator[OutputVerdict]:
        """Yield a verdict on each recorded output, and on each that is new."""
        again = {one.number: one.cell for one in code_cells(self._copy)}
        for one in code_cells(self._recorded):
            why_not = self._why_not
            if not why_not and self._ended_in and one.number > self._ended_in:
                why_not = f"cell {self._ended_in} failed in the run now, and this was not run"
            yield from compare_cell(
                one, again.get(one.number), tolerance=tolerance, why_not=why_not
            )
