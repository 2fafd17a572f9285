"""REST about outputs that a page has missed: each cell's, as the kernels' journals have them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, cast

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import authorized
from jupyter_server.serverapp import ServerApp
from jupyter_server.services.contents.fileio import FileManagerMixin
from tornado import web

from ivy_kernel.errors import UsageError
from ivy_kernel.models import Json
from ivy_kernel.server_extension.errors import UnknownKernelError
from ivy_kernel.server_extension.sandboxes import IvyHandler
from ivy_kernel.session.journal_reader import (
    JournalReader,
    journal_directory,
    journal_file,
    notebook_of,
)
from ivy_kernel.status.clock import monotonic_seconds

SAVED_MARGIN = timedelta(seconds=2)
"""What a cell said so shortly before its document was saved may have come too late for it."""
UNUSED_SECONDS = 120.0
"""A reader that nobody has asked for so long lets go of the outputs that it holds."""
EARLIER_AT_MOST = 8
"""Journals of earlier kernels that are looked at for one notebook, newest first."""


def local_path(path: str) -> str:
    """Return the path of a document below the server's root, without JupyterLab's drive."""
    # The drive of documents that are edited together; its files are the server's own.
    return path.removeprefix("RTC:").strip("/")


def moment(text: str) -> datetime:
    """Return a moment that a journal's reader gives as text."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))  # as Python 3.10 reads it


class Journals:
    """The journals of a server's kernels, and of earlier kernels of the same notebooks.

    Parameters
    ----------
    server
        The server.
    """

    def __init__(self, server: ServerApp) -> None:
        self._server = server
        self._readers: dict[str, tuple[JournalReader, float]] = {}

    async def cells(self, kernel_id: str, since: int) -> tuple[dict[str, Json], int]:
        """Return the cells of a kernel that have changed, as `JournalReader.cells` does."""
        for unused, (_, asked) in list(self._readers.items()):
            if monotonic_seconds() - asked > UNUSED_SECONDS:
                del self._readers[unused]
        reader, _ = self._readers.get(kernel_id, (None, 0.0))
        reader = reader or JournalReader(journal_file(kernel_id))
        self._readers[kernel_id] = (reader, monotonic_seconds())
        return await asyncio.to_thread(reader.cells, since)

    def has_kernel(self, kernel_id: str) -> bool:
        """Whether it is a kernel of this server."""
        return kernel_id in self._server.kernel_manager

    async def notebooks(self, kernel_id: str) -> list[str]:
        """Return the paths of the notebooks of a kernel, as the sessions have them."""
        sessions = await self._server.session_manager.list_sessions()
        return sorted(
            session["path"]
            for session in sessions
            if session["type"] == "notebook" and session["kernel"]["id"] == kernel_id
        )

    async def earlier(self, kernel_id: str, path: str) -> dict[str, Json]:
        """Return what earlier kernels of a notebook have left that its document does not have.

        Parameters
        ----------
        kernel_id
            The present kernel, which is left out.
        path
            The notebook.
        """
        contents: Any = self._server.contents_manager  # its methods are not annotated
        names = {local_path(path)}
        if isinstance(contents, FileManagerMixin):
            files: Any = contents
            names.add(str(Path(files._get_os_path(local_path(path)))))
        try:
            model = await ensure_async(contents.get(local_path(path), content=False))
        except web.HTTPError:  # not there, or on a drive of its own
            return {}
        saved = cast("datetime", model["last_modified"]).astimezone(timezone.utc) - SAVED_MARGIN
        return await asyncio.to_thread(_earlier, journal_file(kernel_id), names, saved)


def _earlier(own: Path, names: set[str], saved: datetime) -> dict[str, Json]:
    """Return the cells of other journals of a notebook that were not saved since. In a thread."""
    found = []
    for path in journal_directory().glob("*.jsonl"):
        try:
            changed = path.stat().st_mtime
        except OSError:
            continue  # removed at this moment
        if path != own and changed >= saved.timestamp() and notebook_of(path) in names:
            found.append((changed, path))
    readers = [JournalReader(path) for _, path in sorted(found)[-EARLIER_AT_MOST:]]
    unsaved = (
        {cell: run for cell, run in reader.cells()[0].items() if moment(run["changed"]) >= saved}
        for reader in readers
    )
    return newest(unsaved)


def newest(journals: Iterable[dict[str, Json]]) -> dict[str, Json]:
    """Return each cell's newest run of several journals."""
    found: dict[str, Json] = {}
    for cells in journals:
        for cell, run in cells.items():
            if cell not in found or found[cell]["started"] <= run["started"]:
                found[cell] = run
    return found


JOURNALS = "ivy_output_journals"
"""The key of the journals in the settings of the web application."""


class OutputsHandler(IvyHandler):
    """``GET /ivy/outputs?kernel_id=K&path=P&since=N``."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Send the cells that have changed, with their outputs.

        ``kernel_id`` is a kernel of this server. With ``path``, its notebook, and without
        ``since``, the cells of earlier kernels of that notebook come too, where its document was
        not saved since they spoke.
        """
        # They are what the document would hold, so who may not read that gets none of them.
        user = self.current_user
        if not await ensure_async(self.authorizer.is_authorized(self, user, "read", "contents")):
            raise web.HTTPError(403)
        journals = cast("Journals", self.settings[JOURNALS])
        kernel_id = self.get_query_argument("kernel_id", "")
        path = self.get_query_argument("path", "")
        since = _offset(self.get_query_argument("since", "") or "0")
        if not kernel_id:
            raise UsageError("A request for outputs needs a kernel_id: a kernel of this server.")
        if not journals.has_kernel(kernel_id):
            raise UnknownKernelError
        if path and path not in await journals.notebooks(kernel_id):
            raise UsageError(
                f"{path} is no notebook of the kernel {kernel_id}: give the path of its session, "
                f"or none."
            )
        cells, offset = await journals.cells(kernel_id, since)
        if path and not since:
            cells = newest([await journals.earlier(kernel_id, path), cells])
        # At least 1, so that the earlier kernels are looked at once.
        self.answer({"offset": max(1, offset), "cells": cells})


def _offset(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        raise UsageError(
            f"since={text[:40]!r} is no offset: give the number that an earlier answer had, or 0."
        )
    return int(text)


ROUTES = [(r"/ivy/outputs", OutputsHandler)]
