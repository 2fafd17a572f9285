"""Writes what cells have said into their notebook's document while no page is open for it."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import Iterable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timezone
from logging import Logger
from typing import Any

import nbformat
from jupyter_core.utils import ensure_async
from jupyter_server.serverapp import ServerApp
from tornado import web

from ivy_kernel.agent.outputs import outputs_digest
from ivy_kernel.models import Json
from ivy_kernel.server_extension.outputs import SAVED_MARGIN, Journals, local_path, moment
from ivy_kernel.session.journal_reader import journal_file
from ivy_kernel.status.clock import monotonic_seconds

LOOK_SECONDS = 2.0
"""The interval of looks at the kernels, and how long no page must have been connected."""
RUNNING_SECONDS = 10.0
"""What a running cell has said so far is written once in so long a time."""
OPENING_SECONDS = 10.0
"""A document that was read is left alone for so long: a page that opens it connects soon."""
END_SECONDS = 10.0
"""The most that the end of the server waits for documents."""
ATTEMPTS = 5
"""How often a document is read again that somebody else changes at the same time."""
LONGEST_PAUSE_SECONDS = 60.0

_is_our_read: ContextVar[bool] = ContextVar("_is_our_read", default=False)


@dataclass
class _Document:
    """What is known of one notebook without a page.

    Parameters
    ----------
    done
        Cell → the offset in the journal up to which the document has it, or is not to have it.
    path
        Where it is, if it was renamed while no page was there to tell its session.
    written_seconds
        When it was last written.
    retry_seconds
        Until then it is left alone, after a fault.
    """

    done: dict[str, int] = field(default_factory=dict)
    path: str = ""
    is_known: bool = False
    written_seconds: float = float("-inf")
    retry_seconds: float = float("-inf")
    pause_seconds: float = LOOK_SECONDS
    fault: str = ""


@dataclass
class _Unwatched:
    """A kernel to which no page is connected.

    Parameters
    ----------
    since_seconds
        Since when.
    stamp
        The journal's inode and size when all of it was written.
    """

    since_seconds: float
    stamp: tuple[int, int] | None = None
    documents: dict[str, _Document] = field(default_factory=dict)


class DocumentWriter:
    """Writes outputs into documents for which no page is open.

    Parameters
    ----------
    server
        The server.
    journals
        The journals of its kernels.
    log
        Gets what fails, once.
    """

    def __init__(self, server: ServerApp, journals: Journals, log: Logger) -> None:
        self._server = server
        self._contents: Any = server.contents_manager  # its methods are not annotated
        self._kernels: Any = server.kernel_manager
        self._journals = journals
        self._log = log
        self._unwatched: dict[str, _Unwatched] = {}
        self._read_seconds: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look; called in the server's loop."""
        with suppress(AttributeError, KeyError):  # a manager of contents that tells no events
            self._contents.event_logger.add_listener(
                schema_id=self._contents.event_schema_id, listener=self._note_event
            )
        self._task = asyncio.ensure_future(self._run())

    async def aclose(self) -> None:
        """Write what no page has taken, and end. The kernels must still be there."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._look(is_ending=True), END_SECONDS)

    async def _run(self) -> None:
        fault = ""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self._look()
            except Exception as exc:
                # Others' managers may raise anything; the same is not logged every two seconds.
                if repr(exc) != fault:
                    fault = repr(exc)
                    self._log.exception("Outputs that wait could not be written.")

    async def _note_event(self, **event: Any) -> None:
        """Called when somebody has used a document through the server."""
        # By names that are jupyter_events' own: a call that fails would fail the request.
        data: Json = event.get("data") or {}
        action, path = data.get("action"), str(data.get("path", "")).strip("/")
        if action == "rename":
            await self._note_rename(str(data.get("source_path", "")).strip("/"), path)
        elif action == "get" and self._unwatched and not _is_our_read.get():
            self._read_seconds[path] = monotonic_seconds()

    async def _note_rename(self, source: str, path: str) -> None:
        """Note a new name, of a document or of a directory above it, that no page tells."""
        for kernel_id, kernel in list(self._unwatched.items()):
            for session_path in await self._journals.notebooks(kernel_id):
                document = kernel.documents.setdefault(session_path, _Document())
                now = document.path or local_path(session_path)
                if now == source or now.startswith(f"{source}/"):
                    document.path = path + now[len(source) :]

    # Which documents ----------------------------------------------------------------------------
    def _connections(self, kernel_id: str) -> int:
        """Return how many pages are connected to a kernel; one, if it is gone or elsewhere."""
        try:
            model = self._kernels.kernel_model(kernel_id)
        except (web.HTTPError, KeyError):
            return 1
        if inspect.isawaitable(model):  # of a gateway, whose kernels keep no journal here
            model.close()  # type: ignore[attr-defined]  # it is a coroutine
            return 1
        return int(model.get("connections", 1))

    async def _look(self, *, is_ending: bool = False) -> None:
        now = monotonic_seconds()
        kernel_ids = list(self._kernels.list_kernel_ids())
        for kernel_id in kernel_ids:
            if self._connections(kernel_id):
                self._unwatched.pop(kernel_id, None)
                continue
            kernel = self._unwatched.setdefault(kernel_id, _Unwatched(now))
            # A page that is loaded again is away for a moment; timers may be a little early.
            if now - kernel.since_seconds < LOOK_SECONDS * 0.9 and not is_ending:
                continue
            stamp = _stamp(kernel_id)
            if stamp is None or stamp == kernel.stamp:
                continue
            if await self._write_kernel(kernel_id, kernel, is_ending=is_ending):
                kernel.stamp = stamp
        for kernel_id in self._unwatched.keys() - set(kernel_ids):
            del self._unwatched[kernel_id]
        if not self._unwatched:
            self._read_seconds.clear()

    async def _write_kernel(self, kernel_id: str, kernel: _Unwatched, *, is_ending: bool) -> bool:
        """Write what a kernel's notebooks have missed; return whether nothing is left to do."""
        paths = await self._journals.notebooks(kernel_id)
        if not paths:
            return False
        cells, _ = await self._journals.cells(kernel_id, 0)
        is_done = True
        for path in paths:
            document = kernel.documents.setdefault(path, _Document())
            is_done &= await self._write_document(
                kernel_id, path, document, cells, is_ending=is_ending
            )
        return is_done

    async def _write_document(
        self,
        kernel_id: str,
        session_path: str,
        document: _Document,
        cells: dict[str, Json],
        *,
        is_ending: bool,
    ) -> bool:
        now = monotonic_seconds()
        if now < document.retry_seconds and not is_ending:
            return False
        path = document.path or local_path(session_path)
        shared = await self._shared_document(path)
        # A shared document's server reads the file each second: that is no page which opens it.
        is_opening = now - self._read_seconds.get(path, float("-inf")) < OPENING_SECONDS
        if is_opening and shared is None and not is_ending:
            return False
        try:
            if not document.is_known:
                await self._note_saved(path, document, cells)
            due, is_all = _due(cells, document, now, is_ending=is_ending)
            if due and await self._write(kernel_id, path, shared, due):
                document.written_seconds = monotonic_seconds()
                document.done |= {cell: run["offset"] for cell, run in due.items()}
            elif due:
                return False
            document.fault, document.pause_seconds = "", LOOK_SECONDS
        except Exception as exc:
            # Not there (deleted, or on another drive), not writable, or what else a manager of
            # contents may raise: it must not keep the other documents waiting.
            document.pause_seconds = min(2 * document.pause_seconds, LONGEST_PAUSE_SECONDS)
            document.retry_seconds = now + document.pause_seconds
            if str(exc) != document.fault:
                document.fault = str(exc)
                self._log.info("Outputs of %r wait: %s", path, exc)
            return False
        return is_all

    async def _note_saved(self, path: str, document: _Document, cells: dict[str, Json]) -> None:
        """Leave what was there when the document was last saved, by a page, to the document."""
        # Once, when no page is there any more: whoever else changes it later has not seen them.
        model = await self._read(path, content=False)
        saved: datetime = model["last_modified"].astimezone(timezone.utc)
        for cell, run in cells.items():
            if moment(run["changed"]) < saved - SAVED_MARGIN:
                document.done[cell] = run["offset"]
        document.is_known = True

    # Writing ------------------------------------------------------------------------------------
    async def _read(self, path: str, *, content: bool) -> Json:
        """Return a notebook's model, with a hash where the manager of contents makes one."""
        options: dict[str, Any] = {"content": content, "type": "notebook"}
        if "require_hash" in inspect.signature(self._contents.get).parameters:
            options["require_hash"] = True
        token = _is_our_read.set(True)
        try:
            model: Json = await ensure_async(self._contents.get(path, **options))
        finally:
            _is_our_read.reset(token)
        return model

    async def _write(self, kernel_id: str, path: str, shared: Any, due: dict[str, Json]) -> bool:
        """Write cells into a document; ``False`` when that has to wait."""
        if shared is not None:
            _fill_shared(shared, due)
            return True
        for _ in range(ATTEMPTS):
            model = await self._read(path, content=True)
            notebook = model["content"]
            if not _fill(notebook["cells"], due):
                return True
            # What somebody else has written meanwhile is read first, and kept.
            if _version(await self._read(path, content=False)) != _version(model):
                continue
            if self._connections(kernel_id):
                return False  # a page has come, and writes itself
            new = {"type": "notebook", "format": "json", "content": notebook}
            token = _is_our_read.set(True)
            try:
                await ensure_async(self._contents.save(new, path))
            finally:
                _is_our_read.reset(token)
            return True
        return False

    async def _shared_document(self, path: str) -> Any:
        """Return the document that jupyter-collaboration has open; ``None`` without one."""
        apps = self._server.extension_manager.extension_apps.get("jupyter_server_ydoc", ())
        for extension in apps:
            untyped: Any = extension
            with suppress(Exception):  # it is switched off, or ends at this moment
                return await untyped.get_document(
                    path=path, content_type="notebook", file_format="json", copy=False
                )
        return None


def _stamp(kernel_id: str) -> tuple[int, int] | None:
    """Return what changes with a kernel's journal; ``None`` without one."""
    try:
        status = journal_file(kernel_id).stat()
    except OSError:
        return None
    return status.st_ino, status.st_size


def _version(model: Json) -> tuple[object, object]:
    return model["last_modified"], model.get("hash")


def _due(
    cells: dict[str, Json], document: _Document, now: float, *, is_ending: bool
) -> tuple[dict[str, Json], bool]:
    """Return the cells that the document is to get now, and whether these are all."""
    missing = {
        cell: run for cell, run in cells.items() if run["offset"] > document.done.get(cell, 0)
    }
    with_running = is_ending or now - document.written_seconds >= RUNNING_SECONDS
    due = {cell: run for cell, run in missing.items() if with_running or not run["is_running"]}
    return due, len(due) == len(missing)


def _digest(source: str) -> str:
    return hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()


def _joined(source: Any) -> str:
    return source if isinstance(source, str) else "".join(source)


def _fill(cells: Iterable[Any], due: dict[str, Json]) -> bool:
    """Put outputs into the cells that said them; return whether that changed anything.

    A cell is found by its id, and left alone when its source is not the one that ran.
    """
    changed = False
    code_cells = [cell for cell in cells if cell["cell_type"] == "code"]
    digests = [_digest(_joined(cell["source"])) for cell in code_cells]
    for cell, digest in zip(code_cells, digests, strict=True):
        if "id" in cell:
            run = due.get(cell["id"])
        elif digests.count(digest) == 1:
            # Before nbformat 4.5 the id is the page's own; then the source must be the only one.
            run = next((run for run in due.values() if run["code"] == digest), None)
        else:
            run = None
        if run is not None and run["code"] == digest:
            changed |= _fill_cell(cell, run)
    return changed


def _fill_cell(cell: Any, run: Json) -> bool:
    outputs = run["outputs"]
    number = None if run["is_running"] else run["number"]
    receipt = (run["metadata"].get("ivy") or {}).get("receipt")
    known = dict(cell["metadata"].get("ivy") or {})
    is_same = cell.get("outputs") == outputs and cell.get("execution_count") == number
    if is_same and (receipt is None or known.get("receipt") == receipt):
        return False
    for name in ("run", "receipt", "outputs"):  # those of an earlier run
        known.pop(name, None)
    if not run["is_running"] and run["fate"] != "unknown":
        known["run"] = run["run"]  # a page believes that it has all of a run that is named here
    if receipt is not None:
        known |= {"receipt": receipt, "outputs": outputs_digest(outputs)}
    cell["outputs"] = [nbformat.from_dict(output) for output in outputs]
    cell["execution_count"] = number
    # Trusted as in a page: the person has run this very source.
    cell["metadata"] |= {"ivy": known, "trusted": True}
    return True


def _fill_shared(document: Any, due: dict[str, Json]) -> None:
    """Put outputs into a document that is edited together."""
    for index in range(document.cell_number):
        cell = document.get_cell(index)
        if _fill([cell], due):
            document.set_cell(index, cell)
