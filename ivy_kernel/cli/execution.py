"""A notebook's execution in the Ivy Sandbox kernel: the file, the cells in order, the signals."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import NoSuchKernel
from jupyter_core.utils import ensure_async
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

from ivy_kernel.cli.app import EXIT_FAILED, EXIT_SIGNAL, IvyCommandApp, print_line
from ivy_kernel.cli.setup import KERNEL_NAME
from ivy_kernel.errors import IvyError, UsageError
from ivy_kernel.kernel.local import runs_locally
from ivy_kernel.models import Json, visible
from ivy_kernel.session.receipts import code_cells, note_reply, seal


# Notebook files -----------------------------------------------------------------------------------
def check_target(target: Path) -> None:
    """Check before a long run that its result can be written.

    Raises
    ------
    UsageError
        When it cannot.
    """
    directory = target.resolve().parent
    if not directory.is_dir():
        raise UsageError(f"--output cannot be {target}: its directory does not exist.")
    if target.is_dir():
        raise UsageError(f"--output cannot be {target}: it is a directory.")
    if not os.access(target if target.exists() else directory, os.W_OK):
        raise UsageError(f"--output cannot be {target}: it may not be written.")


def read_notebook(path: Path) -> Any:
    """Return a notebook in format 4.

    Raises
    ------
    UsageError
        When the file cannot be read as one.
    """
    if not path.exists():
        raise UsageError(f"The notebook {path} cannot be read: there is no such file.")
    import nbformat  # takes seconds on some machines

    try:
        return nbformat.read(path, as_version=4)
    except OSError as exc:
        raise UsageError(f"The notebook {path} cannot be read: {exc.strerror}.") from None
    except Exception as exc:  # nbformat raises many kinds, all meaning the same
        newer = _format_if_newer(path, nbformat.current_nbformat)
        if newer:
            raise UsageError(
                f"{path} is a notebook of format {newer}, which is newer than the formats that "
                f"nbformat {nbformat.__version__} reads (up to {nbformat.current_nbformat}); "
                f"upgrade it: pip install --upgrade nbformat."
            ) from None
        raise UsageError(f"{path} is not a notebook ({type(exc).__name__}).") from None


def _format_if_newer(path: Path, known: int) -> str:
    """Return the format that a file says it has, if it is newer than a known one; else empty."""
    try:
        content = json.loads(path.read_bytes())
        major, minor = content["nbformat"], content.get("nbformat_minor", 0)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return ""
    return f"{major}.{minor}" if isinstance(major, int) and major > known else ""


def check_language(notebook: Any, path: Path) -> None:
    """Check that a notebook may be written over as one of Python.

    Raises
    ------
    UsageError
        When its metadata name another language.
    """
    metadata = notebook.metadata
    for section, key in (("kernelspec", "language"), ("language_info", "name")):
        language = str(metadata.get(section, {}).get(key) or "")
        if language and "python" not in language.lower():
            raise UsageError(
                f"{path} is a notebook of the language {language!r}, and its cells would be run as "
                f"Python, so --inplace does not write over it; leave --inplace out."
            )


def check_local_cells(notebook: Any, path: Path) -> None:
    """Check that no code cell would run on this machine.

    Raises
    ------
    UsageError
        When one would: names it.
    """
    code_cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    local = [str(number) for number, cell in enumerate(code_cells, 1) if runs_locally(cell.source)]
    if local:
        which = f"Cell {local[0]} of {path} is a %%local cell"
        if local[1:]:
            which = f"Cells {', '.join(local)} of {path} are %%local cells"
        raise UsageError(
            f"{which}, to be run on this machine as you and not in the sandbox, so nothing was "
            f"run. If you trust the notebook, add --allow-local."
        )


def write_notebook(notebook: Any, target: Path) -> None:
    """Write a notebook whole or not at all, so that a full disk spoils no earlier one.

    Raises
    ------
    IvyError
        When it cannot be written.
    """
    import nbformat  # takes seconds on some machines

    # A device such as /dev/stdout cannot be replaced by a file, so it is written to as it is.
    whole = not target.exists() or target.is_file()
    path = target.resolve()
    partial = path.with_name(f".{path.name}.{os.getpid()}") if whole else path
    try:
        with partial.open("w", encoding="utf-8") as file:
            nbformat.write(notebook, file)
        if whole:
            if path.exists():
                shutil.copymode(path, partial)
            partial.replace(path)
    except OSError as exc:
        if whole:
            partial.unlink(missing_ok=True)
        raise IvyError(
            f"The executed notebook cannot be written to {target}: {exc.strerror}."
        ) from None


def kernel_arguments(app: IvyCommandApp) -> list[str]:
    """Return our settings among the flags, for the kernel's own command line."""
    return [
        argument
        for argument in app.argv or []
        if argument.startswith("--Ivy.") and not argument.startswith("--Ivy.allow_local")
    ]


# Execution ----------------------------------------------------------------------------------------
STARTS = 3
"""Tries to start a kernel that dies before any cell: another program may take its port."""
STOP_SECONDS = 10.0
"""After a signal, the running cell has so long to end before it is given up."""


class NotebookRun:
    """One run of a notebook: every code cell, in order, until one fails or a signal ends it.

    Parameters
    ----------
    notebook
        The notebook; its outputs are replaced in place.
    target
        The file that gets it, after each cell and at the end.
    directory
        The working directory of the kernel's own process.

    Attributes
    ----------
    before_cell, after_cell
        Called with the index of each code cell.
    on_output
        Called with each output message as it comes; not with those that are taken away again.
    failed
        The error of the cell that failed.
    signal_number
        The signal that ended the run; 0 for none.
    stopped_in
        The place of the last cell that began among the code cells, from 1; 0 when none did.
    is_sealed
        Whether the receipt is signed in the end.
    lock
        The sandbox's packages as its last receipts mean them; ``None`` while it has told none.
    """

    def __init__(self, notebook: Any, target: Path, *, directory: Path) -> None:
        self.notebook = notebook
        self.target = target
        self._directory = directory
        self.before_cell: Callable[[int], None] = lambda _: None
        self.after_cell: Callable[[int], None] = lambda _: None
        self.on_output: Callable[[Any], None] = lambda _: None
        self.failed: CellExecutionError | None = None
        self.signal_number = 0
        self.stopped_in = 0
        self.is_sealed = True
        self.lock: Json | None = None
        self._place = ""
        self._is_saved_often = not target.exists() or target.is_file()  # a device gets it once

    async def execute(self, kernel_arguments: list[str]) -> None:
        """Run it, and write it to its file.

        Parameters
        ----------
        kernel_arguments
            More arguments for the kernel's command line.

        Raises
        ------
        UsageError
            When the kernelspec is not installed.
        IvyError
            When the kernel's own process died, or the notebook cannot be written.
        """
        # Also when it was written for another kernel: the executed notebook opens with ours.
        self.notebook.metadata["kernelspec"] = {
            "name": KERNEL_NAME,
            "display_name": "Ivy Sandbox",
            "language": "python",
        }
        # Sockets in a directory of our own: other users do not reach them, and no port is needed.
        with tempfile.TemporaryDirectory(prefix="ivy-run-") as sockets:
            client = _WatchedClient(
                self.notebook,
                kernel_name=KERNEL_NAME,
                timeout=None,  # a cell may run for hours; the settings hold the limits there are
                resources={"metadata": {"path": str(self._directory)}},
                extra_arguments=kernel_arguments,
                on_cell_executed=self._on_reply,
            )
            client.run, client.sockets = self, sockets
            try:
                await self._execute(client)
            finally:
                await client.end_kernel()
        if self.stopped_in or not self.signal_number:
            if self.is_sealed:
                self._seal()
            write_notebook(self.notebook, self.target)

    async def _execute(self, client: _WatchedClient) -> None:
        try:
            await client.async_execute()
        except CellExecutionError as error:
            if not self.signal_number:
                self.failed = error
        except NoSuchKernel:
            raise UsageError(
                f"The kernelspec {KERNEL_NAME} is not installed in this Python's environment; "
                f"install it (jupyter ivy install --sys-prefix), and see `jupyter kernelspec list`."
            ) from None
        except (DeadKernelError, asyncio.CancelledError) as error:
            # nbclient takes the cancellation of a cell for the kernel's death.
            if not self.signal_number:
                if isinstance(error, asyncio.CancelledError):
                    raise
                raise IvyError(
                    f"The kernel's own process died; see the messages above ({error})."
                ) from None
        finally:
            self.stopped_in = client.number

    def _on_reply(self, cell: Any, cell_index: int, execute_reply: Any) -> None:
        """Keep what nbclient leaves out: when the kernel began a cell, and its receipt."""
        if started := execute_reply["metadata"].get("started"):
            cell.metadata["execution"]["shell.execute_reply.started"] = str(started)
        told = note_reply(cell, execute_reply)
        self.lock = told.get("lock", self.lock)
        self._place = str(told.get("notebook") or self._place)

    def _seal(self) -> None:
        """Sign what has run; where no receipts are made, there is nothing to sign."""
        if not any(one.record for one in code_cells(self.notebook)):
            return
        from ivy_kernel.session.notebook_record import NotebookRecord  # only where it is needed

        kept = NotebookRecord(str(self.target))
        owner, key = kept.notebook_id, kept.key
        seal(self.notebook, owner=owner, key=key, lock=self.lock, place=self._place)

    def save(self) -> None:
        """Write the notebook as it is after a cell; a full disk is told, and tried again later."""
        if self._is_saved_often:
            try:
                write_notebook(self.notebook, self.target)
            except IvyError as error:
                print_line(str(error), error=True)

    def report(self) -> int:
        """Print how it ended; return the exit code."""
        if self.signal_number:
            what = "Interrupted" if self.signal_number == signal.SIGINT else "Terminated"
            left = f"in cell {self.stopped_in}; the results so far are in {self.target}."
            if not self.stopped_in:
                left = "before the first cell; nothing was written."
            print_line(f"{what} {left}", error=True)
            return EXIT_SIGNAL + self.signal_number
        print_line(f"The executed notebook is {self.target}.", error=True)
        if self.failed is None:
            return 0
        name, value = visible(self.failed.ename), visible(self.failed.evalue)
        print_line(f"Cell {self.stopped_in} failed: {name}: {value}", error=True)
        return EXIT_FAILED


class _WatchedClient(NotebookClient):
    """Runs the cells: reports each, ends at a signal, starts a kernel again that dies at once."""

    run: NotebookRun
    sockets: str
    number = 0
    """The place of the running cell among the code cells, from 1."""
    _executing: asyncio.Task[Any] | None = None
    _interrupting: asyncio.Future[None] | None = None

    def create_kernel_manager(self) -> Any:
        manager = super().create_kernel_manager()
        manager.transport, manager.ip = "ipc", f"{self.sockets}/k"
        return manager

    async def async_start_new_kernel(self, **keywords: Any) -> None:
        # nbclient has set handlers of its own by now, which end the kernel under the cell.
        self._executing = asyncio.current_task()
        loop = asyncio.get_running_loop()
        with contextlib.suppress(RuntimeError):  # outside of the main thread there are no signals
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self._on_signal, number)
        # Older debuggers, which ipykernel imports, warn of a Python that has frozen modules.
        quiet = {**os.environ, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
        await super().async_start_new_kernel(**{"env": quiet, **keywords})

    async def end_kernel(self) -> None:
        """End the kernel's process, if a signal has left it there. Called at the end of a run."""
        if self.km is not None and self.km.has_kernel:
            await self._async_cleanup_kernel()
        atexit.unregister(self._cleanup_kernel)

    def _on_signal(self, number: int) -> None:
        """Interrupt the running cell and end after it; a second signal waits no longer."""
        is_second, self.run.signal_number = bool(self.run.signal_number), number
        if is_second or not self.number:
            self._give_up()
        else:
            self._interrupting = asyncio.ensure_future(self._interrupt())

    async def _interrupt(self) -> None:
        asyncio.get_running_loop().call_later(STOP_SECONDS, self._give_up)
        with contextlib.suppress(Exception):  # a kernel that cannot be interrupted is given up
            await ensure_async(self.km.interrupt_kernel())  # type: ignore[union-attr]

    def _give_up(self) -> None:
        if self._executing is not None:
            self._executing.cancel()
            self._executing = None  # once: the kernel's end must not be broken off too

    async def async_start_new_kernel_client(self) -> Any:
        for _ in range(STARTS - 1):
            with contextlib.suppress(RuntimeError):  # it died; nothing has run yet
                return await super().async_start_new_kernel_client()
            self.km = self.create_kernel_manager()
            await self.async_start_new_kernel()
        try:
            return await super().async_start_new_kernel_client()
        except RuntimeError as error:
            atexit.unregister(self._cleanup_kernel)  # which would fail: it has been cleaned up
            raise DeadKernelError(f"{error}, {STARTS} times") from None

    async def async_execute_cell(
        self, cell: Any, cell_index: int, *arguments: Any, **keywords: Any
    ) -> Any:
        if cell.cell_type != "code":
            return await super().async_execute_cell(cell, cell_index, *arguments, **keywords)
        if self.run.signal_number:
            raise asyncio.CancelledError
        self.number += 1
        self.run.before_cell(cell_index)
        try:
            return await super().async_execute_cell(cell, cell_index, *arguments, **keywords)
        finally:
            self.run.save()
            self.run.after_cell(cell_index)

    def output(self, outs: list[Any], msg: Any, display_id: str | None, cell_index: int) -> Any:
        result = super().output(outs, msg, display_id, cell_index)
        if not msg["content"].get("transient"):
            self.run.on_output(msg)
        return result
