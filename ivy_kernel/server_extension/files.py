"""The sandboxes' files as Jupyter contents: one folder for each sandbox in use."""

from __future__ import annotations

import asyncio
import fnmatch
import mimetypes
import re
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import nbformat
from jupyter_server.services.contents.manager import AsyncContentsManager, copy_pat
from nbformat.sign import NotebookNotary
from tornado.web import HTTPError

from ivy_kernel.errors import ChangedFileError, NoSuchFileError, UsageError
from ivy_kernel.models import Json
from ivy_kernel.routes.files import PART_NAME, FileEntry
from ivy_kernel.server_extension.errors import UnknownSandboxError
from ivy_kernel.server_extension.folder import (
    Folder,
    Listed,
    Transfer,
    Transfers,
    Upload,
    base_model,
    copy_across,
    dated,
    is_text,
    iso_time,
)
from ivy_kernel.server_extension.sandboxes import SandboxRegistry
from ivy_kernel.session.files import SandboxFiles
from ivy_kernel.session.local_files import shown_below
from ivy_kernel.session.transfer import TransferResult

CONTENT_LIMIT_BYTES = 64_000_000
"""A file that is given as a whole, inside JSON, may be so large."""

CLOSE_SECONDS = 3.0
"""The end of the server waits so long for uploads to be cleaned up in the sandboxes."""


class DriveContents(AsyncContentsManager):
    """Jupyter's contents API over the files of the sandboxes in use; it wakes none of them.

    Parameters
    ----------
    registry
        The sandboxes in use.
    server_notary
        Returns the server's notary, which knows the notebooks that the user trusts.
    """

    def __init__(
        self, registry: SandboxRegistry, server_notary: Callable[[], NotebookNotary]
    ) -> None:
        # Without the server's configuration: its hooks are for local files.
        super().__init__(allow_hidden=True)
        self._registry = registry
        self._server_notary = server_notary
        self._uploads: dict[tuple[Folder, str], Upload] = {}
        self.transfers = Transfers()

    def _notary_default(self) -> NotebookNotary:
        """Called by traitlets when the notary is first needed."""
        return self._server_notary()

    def emit(self, data: Mapping[str, Any]) -> None:
        """Called after each action: Jupyter's contents events are about local files alone."""

    async def aclose(self) -> None:
        """Break off what is under way."""
        await self.transfers.aclose()
        uploads, self._uploads = list(self._uploads.values()), {}
        with suppress(asyncio.TimeoutError):
            abandoned = asyncio.gather(*(upload.abandon() for upload in uploads))
            await asyncio.wait_for(abandoned, CLOSE_SECONDS)

    # Addresses ----------------------------------------------------------------------------------
    async def find(self, path: str) -> tuple[Folder, str]:
        """Return the folder of the sandbox, and the path in it.

        Raises
        ------
        UnknownSandboxError
            When no sandbox in use has this folder.
        """
        name, _, rest = path.strip("/").partition("/")
        folders = await self._registry.folders()
        found = folders.get(name)
        if found is None:  # the chat's id as it is, where the folder's name is another
            found = next((each for each in folders.values() if each[1].chat_id == name), None)
        if found is None:
            raise UnknownSandboxError
        entry = found[1]
        await entry.update(is_poll=True)
        return entry.folder, rest

    async def _find_in(self, path: str) -> tuple[Folder, str]:
        """Return the same for a path that must be below the folder of a sandbox."""
        if "/" not in path.strip("/"):
            raise UsageError(
                f"{path.strip('/') or 'The drive'} is no file: create and terminate sandboxes in "
                "the panel, and name files below the folder of one."
            )
        return await self.find(path)

    # Reading ------------------------------------------------------------------------------------
    async def is_hidden(self, path: str) -> bool:
        """Called where hidden files are not allowed: here they are, and front ends hide them."""
        return False

    async def _entry(self, path: str) -> FileEntry | None:
        """Return the entry of a path, the folder of a sandbox included; ``None`` without one."""
        folder, rest = await self.find(path)
        try:
            return await folder.used().stat(rest)
        except NoSuchFileError:
            return None

    async def dir_exists(self, path: str) -> bool:
        """Whether there is such a directory."""
        if not path.strip("/"):
            return True
        folder, rest = await self.find(path)
        if folder.knows(rest):
            return True
        entry = await self._entry(path)
        return entry is not None and entry.kind == "directory"

    async def file_exists(self, path: str) -> bool:
        """Whether there is such a file."""
        if "/" not in path.strip("/"):
            return False
        folder, rest = await self.find(path)
        if folder.knows(rest):
            return False
        entry = await self._entry(path)
        return entry is not None and entry.kind != "directory"

    async def exists(self, path: str) -> bool:
        """Whether there is anything."""
        return await self._entry(path) is not None

    async def get(
        self,
        path: str,
        content: bool = True,
        type: str | None = None,  # noqa: A002 - likewise
        format: str | None = None,  # noqa: A002 - likewise
        require_hash: bool = False,
    ) -> Json:
        """Return the model of a file or directory.

        Raises
        ------
        NoSandboxError
            When the sandbox is not active.
        NoSuchFileError
            When there is nothing.
        """
        path = path.strip("/")
        if not path:
            return await self._root_model()
        folder, rest = await self.find(path)
        entry: FileEntry | None = None
        if not folder.knows(rest) and (type != "directory" or not content):
            entry = await folder.used().stat(rest)
        if entry is None or entry.kind == "directory":
            if type not in (None, "directory"):
                raise HTTPError(400, f"{path} is a directory, not a {type}.", reason="bad type")
            if require_hash:
                raise UsageError(f"{path} is a directory, which has no hash.")
            if content:
                return self._listing_model(path, folder, await folder.list(rest))
            return dated(self._model(path, entry or await folder.used().stat(rest), folder, rest))
        if type == "directory":
            raise HTTPError(400, f"{path} is not a directory.", reason="bad type")
        model = self._model(path, entry, folder, rest)
        if type is not None:
            model["type"] = type
        data = await self._read(folder, rest, entry) if content else None
        if data is not None:
            self._fill(model, data, format)
        if require_hash:
            model["hash"] = await folder.hash(entry, data)
            model["hash_algorithm"] = "sha256"
        return dated(model)

    async def forget(self, path: str) -> None:
        """Called when a user reloads: what comes next is asked anew."""
        if path.strip("/"):
            (await self.find(path))[0].changed()

    async def open_file(self, path: str) -> tuple[FileEntry, AsyncGenerator[bytes, None]]:
        """Return a file's entry, and its content in parts."""
        folder, rest = await self._find_in(path)
        entry = await folder.used().stat(rest)
        if entry.kind != "file":
            raise UsageError(f"{rest} is no file that can be downloaded.")
        return entry, self._parts(folder.used(), entry)

    async def _parts(self, files: SandboxFiles, entry: FileEntry) -> AsyncGenerator[bytes, None]:
        """Yield a file's content, exactly as much as the entry says."""
        left_bytes = entry.size_bytes
        async for data in files.stream(entry.path):
            left_bytes -= len(data)
            if left_bytes < 0:
                break
            yield data
        if left_bytes:
            raise ChangedFileError(f"{entry.path} was changed while it was read; read it again.")

    async def _root_model(self) -> Json:
        folders = await self._registry.folders()
        await asyncio.gather(*(entry.update(is_poll=True) for _, entry in folders.values()))
        children = []
        for name, (sandbox_id, entry) in folders.items():
            sandbox = self._registry.sandbox_json(sandbox_id)
            status = sandbox["status"]
            facts = {key: sandbox[key] for key in ("id", "chat_id", "name", "local", "default")}
            facts.update({key: status[key] for key in ("state", "label", "hint")})
            facts["message"] = entry.without_files()
            child = base_model(name, "directory", is_writable=facts["message"] is None)
            children.append({**child, "ivy": facts})
        root = base_model("", "directory", is_writable=False)
        return dated({**root, "content": children, "format": "json"})

    def _listing_model(self, path: str, folder: Folder, listed: Listed) -> Json:
        _, _, rest = path.partition("/")
        if listed.models is None or listed.models[0] is not folder.known_facts:
            # Kept: for 10,000 files it takes a quarter of a second, and pages ask every few.
            listed.models = folder.known_facts, *self._children(path, folder, listed)
        _, children, unlisted = listed.models
        model = self._model(path, listed.directory, folder, rest)
        model["ivy"] = {
            **(model.get("ivy") or {}),
            "state": "active",
            "is_truncated": listed.is_truncated,
            "unlisted": unlisted,
            "age_seconds": round(listed.age_seconds, 1),
        }
        return dated({**model, "content": children, "format": "json"})

    def _children(self, path: str, folder: Folder, listed: Listed) -> tuple[list[Json], int]:
        """Return the models of what is in a directory, and how many have none."""
        is_hidden = re.compile("|".join(map(fnmatch.translate, self.hide_globs)) or "(?!)").match
        children = []
        unlisted = 0
        for entry in listed.entries:
            # A FIFO would block whoever opens it; a name that is no text has no address.
            if entry.kind == "other" or not is_text(entry.name):
                unlisted += 1
            # The parts of transfers under way, and what Jupyter hides everywhere.
            elif not (PART_NAME.fullmatch(entry.name) or is_hidden(entry.name)):
                children.append(self._model(f"{path}/{entry.name}", entry, folder, entry.path))
        return children, unlisted

    def _model(self, path: str, entry: FileEntry, folder: Folder, rest: str) -> Json:
        kind = "directory" if entry.kind == "directory" else "file"
        if kind == "file" and path.endswith(".ipynb"):
            kind = "notebook"
        model = base_model(path, kind, is_writable=entry.is_writable)
        model["last_modified"] = model["created"] = iso_time(entry.modified_seconds)
        if kind != "directory":
            model["size"] = entry.size_bytes
            model["mimetype"] = mimetypes.guess_type(path)[0]
        if entry.kind == "link":  # shown, not followed: it may lead anywhere
            model.update(writable=False, ivy={"kind": "link", "origin": None, "created": None})
        if (facts := folder.facts(rest)) is not None:
            model["ivy"] = {key: facts[key] for key in ("kind", "origin", "created")}
            model["created"] = facts["created"] or model["created"]
        return model

    async def _read(self, folder: Folder, rest: str, entry: FileEntry) -> bytes:
        size_bytes = entry.size_bytes
        if size_bytes <= CONTENT_LIMIT_BYTES:
            # It may have grown meanwhile.
            data = await folder.used().read(rest, limit_bytes=CONTENT_LIMIT_BYTES + 1)
            size_bytes = len(data)
            if size_bytes <= CONTENT_LIMIT_BYTES:
                return data
        raise UsageError(
            f"{rest} has {size_bytes / 1e6:,.0f} MB, and a page shows files of up to "
            f"{CONTENT_LIMIT_BYTES / 1e6:.0f} MB: choose Download in its menu, or read a part of "
            "it in a cell."
        )

    def _fill(self, model: Json, data: bytes, format: str | None) -> None:  # noqa: A002 - Jupyter's
        """Put the content into a model."""
        if model["type"] == "notebook":
            fault: dict[str, Any] = {}
            try:
                notebook = nbformat.reads(
                    data.decode(), as_version=4, capture_validation_error=fault
                )
            except Exception as exc:
                raise UsageError(
                    f"{model['path']} is no notebook that can be read "
                    f"({type(exc).__name__}); open it with the editor to see what it is."
                ) from exc
            self.mark_trusted_cells(notebook, model["path"])  # type: ignore[no-untyped-call]  # not annotated there
            model.update(content=notebook, format="json", mimetype=None)
            self.validate_notebook_model(model, fault)  # type: ignore[no-untyped-call]  # not annotated there
            return
        try:
            if format != "base64":
                model.update(content=data.decode(), format="text")
        except UnicodeDecodeError as exc:
            if format == "text":
                raise HTTPError(
                    400, f"{model['path']} is not UTF-8 encoded.", reason="bad format"
                ) from exc
        if model["format"] is None:
            model.update(content=b64encode(data).decode(), format="base64")
        if model["mimetype"] is None:
            is_text = model["format"] == "text"
            model["mimetype"] = "text/plain" if is_text else "application/octet-stream"

    # Writing ------------------------------------------------------------------------------------
    async def save(self, model: Json, path: str = "") -> Json:
        """Save a file, or one chunk of it, in the place of what is there; or make a directory."""
        return await self._save(model, path, overwrite=True)

    async def new(self, model: Json | None = None, path: str = "") -> Json:
        """Make what `new_untitled` has found a free name for."""
        return await self._save({} if model is None else model, path, overwrite=False)

    async def _save(self, model: Json, path: str, *, overwrite: bool) -> Json:
        folder, rest = await self._find_in(path)
        path = path.strip("/")
        model.setdefault("type", "notebook" if path.endswith(".ipynb") else "file")
        if model["type"] == "directory":
            entry = await folder.changed().make_directory(rest)
            return dated(self._model(path, entry, folder, rest))
        if "content" not in model:
            empty = nbformat.v4.new_notebook() if model["type"] == "notebook" else ""
            model.update(content=empty, format="text")
        data = self._encoded(model, path)
        if model.get("chunk") is not None:
            return await self._save_chunk(folder, path, rest, model, data)
        entry = await folder.changed().write(rest, data, overwrite=overwrite)
        folder.changed()  # a listing made meanwhile is from before
        saved = self._model(path, entry, folder, rest)
        await folder.hash(entry, data)
        if model.get("message"):
            saved["message"] = model["message"]
        return dated(saved)

    def _encoded(self, model: Json, path: str) -> bytes:
        """Return the bytes that a model stands for."""
        content, kind = model["content"], model.get("type")
        if kind == "notebook":
            fault: dict[str, Any] = {}
            if not isinstance(content, dict):
                raise HTTPError(400, f"The content of {path} is no notebook.")
            notebook = nbformat.from_dict(content)
            self.check_and_sign(notebook, path)  # type: ignore[no-untyped-call]  # not annotated there
            text: str = nbformat.writes(
                notebook, version=nbformat.NO_CONVERT, capture_validation_error=fault
            )
            self.validate_notebook_model(model, fault)  # type: ignore[no-untyped-call]  # not annotated there
            return (text if text.endswith("\n") else text + "\n").encode()
        if kind != "file":
            raise HTTPError(400, f"{path} cannot be saved as {kind!r}.")
        try:
            if model.get("format") == "text":
                return str(content).encode()
            if model.get("format") == "base64":
                return b64decode("".join(str(content).split()), validate=True)
        except ValueError as exc:
            raise HTTPError(400, f"The content of {path} is not {model['format']}.") from exc
        raise HTTPError(400, "Must specify format of file contents as 'text' or 'base64'.")

    async def _save_chunk(
        self, folder: Folder, path: str, rest: str, model: Json, data: bytes
    ) -> Json:
        """Take one chunk of an upload: 1, 2, …, and -1 for the last one."""
        chunk, key = model["chunk"], (folder, rest)
        files = folder.used()
        upload = self._uploads.pop(key, None)
        if chunk == 1:
            if upload is not None:  # the same file once more, from its beginning
                await upload.abandon()
            upload = Upload(folder, await files.open_upload(rest, None))
        elif upload is None:
            raise UsageError(f"The upload of {path} was broken off; upload the file again.")
        try:
            self._uploads[key] = upload
            await upload.take(chunk, data)
            entry = await upload.finish() if chunk == -1 else None
        except BaseException:
            self._uploads.pop(key, None)
            await upload.abandon()
            raise
        if entry is None:
            upload.expire_later(lambda: self._uploads.pop(key, None))
            arriving = base_model(path, "file", is_writable=True)
            return dated({**arriving, "size": upload.size_bytes})
        self._uploads.pop(key, None)
        folder.changed()
        return dated(self._model(path, entry, folder, rest))

    async def send(
        self, local: Path, to: str, *, overwrite: bool, with_hidden: bool
    ) -> TransferResult:
        """Copy a local file or directory into a directory of a sandbox.

        Parameters
        ----------
        local, to
            What is copied, and the directory that it goes to, as a path of the drive.
        overwrite
            Whether files that differ are replaced.
        with_hidden
            Whether what is hidden in a directory goes with it.
        """
        folder, rest = await self.find(to)

        async def put(transfer: Transfer) -> TransferResult:
            files, is_directory = folder.changed(), local.is_dir()
            target, only = f"{rest or '.'}/", None
            if is_directory and not with_hidden:
                target = "/".join(filter(None, (rest, local.name)))
                only, directories = await asyncio.to_thread(shown_below, local)
                for directory in directories:
                    await files.make_directory(f"{target}/{directory}")
            return await files.put(
                local,
                target,
                overwrite=overwrite,
                recursive=is_directory,
                progress=transfer,
                only=only,
            )

        result: TransferResult = await self.transfers.run(local.name, to, put)
        folder.changed()
        return result

    async def delete(self, path: str) -> None:
        """Remove a file, or a directory with all that is in it."""
        folder, rest = await self._find_in(path)
        await folder.changed().remove(rest, recursive=True)
        folder.changed()

    async def update(self, model: Json, path: str) -> Json:
        """Rename or move within one sandbox."""
        folder, rest = await self._find_in(path)
        new_path = str(model.get("path") or path).strip("/")
        new_folder, new_rest = await self._find_in(new_path)
        if new_folder is not folder:
            raise UsageError(
                f"{rest} is in another sandbox than {new_path}: copy it there, and delete it then."
            )
        if rest == new_rest:
            return await self.get(path, content=False)
        entry = await folder.changed().rename(rest, new_rest)
        folder.changed()
        return dated(self._model(new_path, entry, folder, new_rest))

    async def increment_filename(self, filename: str, path: str = "", insert: str = "") -> str:
        """Return a name that is not in a directory, from one listing of it."""
        folder, rest = await self.find(path)
        listed = await folder.list(rest, fresh=True)
        if listed.is_truncated:
            free: str = await super().increment_filename(filename, path, insert)  # type: ignore[no-untyped-call]  # not annotated there
            return free
        taken = {entry.path.rpartition("/")[2] for entry in listed.entries}
        stem, dot, extension = filename.rpartition(".")
        if extension != "ipynb":
            stem, dot, extension = filename.partition(".")
        name, count = filename, 0
        while name in taken:
            count += 1
            name = f"{stem}{insert}{count}{dot}{extension}"
        return name

    async def copy(self, from_path: str, to_path: str | None = None) -> Json:
        """Copy a file within a sandbox, or from one to another."""
        source, source_rest = await self._find_in(from_path)
        from_path = from_path.strip("/")
        parent, _, name = from_path.rpartition("/")
        to_path = parent if to_path is None else to_path.strip("/")
        if await self.dir_exists(to_path):
            name = await self.increment_filename(copy_pat.sub(".", name), to_path, insert="-Copy")
            to_path = f"{to_path}/{name}"
        target, target_rest = await self._find_in(to_path)
        if target is source:
            entry = await target.changed().copy(source_rest, target_rest)
        else:
            entry = await copy_across(source.used(), source_rest, target.changed(), target_rest)
        target.changed()
        return dated(self._model(to_path, entry, target, target_rest))
