"""``jupyter ivy run`` and ``demo``: a whole notebook, every cell in the sandbox."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import NoSuchKernel
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from traitlets import Bool, Unicode

from ivy_kernel.cli.app import (
    DEBUG_FLAG,
    EXIT_FAILED,
    KERNEL_NAME,
    IvyCommandApp,
    plain,
    print_line,
)
from ivy_kernel.errors import IvyError, UsageError

RUN_ALIASES = {"output": "RunApp.output"}

RUN_FLAGS = {
    **DEBUG_FLAG,
    "inplace": ({"RunApp": {"inplace": True}}, "Write the executed notebook over the original."),
    "no-progress": ({"RunApp": {"progress": False}}, "Show no progress bar."),
}


class RunApp(IvyCommandApp):
    """Run a notebook with the Ivy Sandbox kernel.

    jupyter ivy run NOTEBOOK [--output PATH]

    Exit code 0 when every cell succeeded, 1 when one failed (the notebook is written all the same,
    with the error in it), 2 when nothing could be run.
    """

    name = "jupyter-ivy-run"
    takes_arguments = True
    description = __doc__
    aliases = RUN_ALIASES
    flags = RUN_FLAGS
    output = Unicode("", help="Where to write it. Default: NOTEBOOK with .executed.ipynb.").tag(
        config=True
    )
    inplace = Bool(False, help="Write the executed notebook over the original.").tag(config=True)
    progress = Bool(True, help="Show a progress bar on stderr.").tag(config=True)

    async def run(self) -> int:
        """Run it."""
        if len(self.extra_args) != 1:
            raise UsageError("Give one notebook: jupyter ivy run NOTEBOOK [--output PATH].")
        source = Path(self.extra_args[0])
        target = self._target(source)
        self.live_settings().current()  # a wrong setting is told before anything starts
        notebook = read_notebook(source)
        from tqdm import tqdm  # imported late: a wrong option is told without waiting for it

        code_cells = sum(cell.cell_type == "code" for cell in notebook.cells)
        with tqdm(total=code_cells, unit="cell", disable=not self.progress, file=sys.stderr) as bar:
            failed = await execute_notebook(
                notebook,
                directory=source.resolve().parent,
                kernel_arguments=kernel_arguments(self),
                after_cell=lambda _index: bar.update(),
            )
        write_notebook(notebook, target)
        return report(failed, target)

    def _target(self, source: Path) -> Path:
        if self.inplace and self.output:
            raise UsageError("--inplace and --output cannot both be given.")
        if self.inplace:
            check_target(source)
            return source
        target = Path(self.output) if self.output else source.with_suffix(".executed.ipynb")
        check_target(target)
        return target


DEMO_SETTINGS = ["--Ivy.api_url=local", "--Ivy.chat_id=demo", "--Ivy.campaign_id=demo"]

DEMO_ALIASES = {"output": "DemoApp.output"}


class DemoApp(IvyCommandApp):
    """Run the quickstart notebook, every cell through the embedded local sandbox.

    Needs no account and no network. Prints each cell and its output, and writes the executed
    notebook.
    """

    name = "jupyter-ivy-demo"
    description = __doc__
    aliases = DEMO_ALIASES
    output = Unicode("ivy-quickstart.ipynb", help="Where to write the executed notebook.").tag(
        config=True
    )

    async def run(self) -> int:
        """Run it."""
        source = examples_directory() / "quickstart.ipynb"
        notebook = read_notebook(source)
        target = Path(self.output)
        check_target(target)
        print_line("Running the quickstart notebook in the embedded local sandbox …")
        failed = await execute_notebook(
            notebook,
            directory=Path.cwd(),
            kernel_arguments=DEMO_SETTINGS,
            before_cell=lambda index: print_cell(notebook.cells[index]),
            on_output=lambda _index, message: print_message(message),
        )
        write_notebook(notebook, target)
        code = report(failed, target)
        if not code:
            print_line(f"Open it with:  jupyter lab {target}")
        return code


def examples_directory() -> Path:
    """Return the directory of the example notebooks: in the package, or in the source tree."""
    package = Path(__file__).resolve().parent.parent
    for directory in (package / "examples", package.parent / "examples"):
        if (directory / "quickstart.ipynb").is_file():
            return directory
    raise UsageError("The example notebooks are not there; install the package again.")


def kernel_arguments(app: IvyCommandApp) -> list[str]:
    """Return our settings among the flags, for the kernel's own command line."""
    return [argument for argument in app.argv or [] if argument.startswith("--Ivy.")]


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
        raise UsageError(f"{path} is not a notebook ({type(exc).__name__}).") from None


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
            partial.replace(path)
    except OSError as exc:
        if whole:
            partial.unlink(missing_ok=True)
        raise IvyError(
            f"The executed notebook cannot be written to {target}: {exc.strerror}."
        ) from None


# Execution ----------------------------------------------------------------------------------------
STARTS = 3
"""Tries to start a kernel that dies before any cell: another program may take its port."""


@dataclass(frozen=True, slots=True)
class FailedCell:
    """The cell that ended a run.

    Parameters
    ----------
    number
        Its place among the code cells, from 1.
    name, value
        Of the exception.
    """

    number: int
    name: str
    value: str


async def execute_notebook(
    notebook: Any,
    *,
    directory: Path,
    kernel_arguments: list[str],
    before_cell: Callable[[int], None] | None = None,
    after_cell: Callable[[int], None] | None = None,
    on_output: Callable[[int, Any], None] | None = None,
) -> FailedCell | None:
    """Run every code cell, in order, until one fails.

    Parameters
    ----------
    notebook
        The notebook; its outputs are replaced in place.
    directory
        The working directory of the kernel's own process.
    kernel_arguments
        More arguments for the kernel's command line.
    before_cell, after_cell
        Called with the index of each code cell.
    on_output
        Called with each output message as it comes; not with those that are taken away again.

    Returns
    -------
    FailedCell | None
        The cell that failed; ``None`` when all succeeded.

    Raises
    ------
    UsageError
        When the kernelspec is not installed.
    IvyError
        When the kernel's own process died.
    """
    # Also when it was written for another kernel: the executed notebook opens with ours.
    notebook.metadata["kernelspec"] = {
        "name": KERNEL_NAME,
        "display_name": "Ivy Sandbox",
        "language": "python",
    }
    client = _WatchedClient(
        notebook,
        kernel_name=KERNEL_NAME,
        timeout=None,  # a cell may run for hours; the settings hold the limits that there are
        resources={"metadata": {"path": str(directory)}},
        extra_arguments=kernel_arguments,
        on_cell_start=lambda cell, cell_index: (
            before_cell(cell_index) if before_cell and cell.cell_type == "code" else None
        ),
        on_cell_complete=lambda cell, cell_index: (
            after_cell(cell_index) if after_cell and cell.cell_type == "code" else None
        ),
    )
    client.on_output = on_output
    try:
        await client.async_execute()
    except CellExecutionError as error:
        return FailedCell(_number_of_failed(notebook), error.ename, error.evalue)
    except NoSuchKernel:
        raise UsageError(
            f"The kernelspec {KERNEL_NAME} is not installed in this Python's environment; install "
            f"the package again (pip install ivy-kernel), and see `jupyter kernelspec list`."
        ) from None
    except DeadKernelError as error:
        raise IvyError(
            f"The kernel's own process died; see the messages above ({error})."
        ) from None
    return None


class _WatchedClient(NotebookClient):
    """Passes outputs on as they come, and starts a kernel again that dies before any cell."""

    on_output: Callable[[int, Any], None] | None = None

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

    def output(self, outs: list[Any], msg: Any, display_id: str | None, cell_index: int) -> Any:
        result = super().output(outs, msg, display_id, cell_index)
        if self.on_output is not None and not msg["content"].get("transient"):
            self.on_output(cell_index, msg)
        return result


def _number_of_failed(notebook: Any) -> int:
    # nbclient's error does not say which cell it was.
    code_cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for number, cell in enumerate(code_cells, 1):
        if any(output.output_type == "error" for output in cell.outputs):
            return number
    return len(code_cells)


# What the terminal shows --------------------------------------------------------------------------
def print_cell(cell: Any) -> None:
    """Print a cell's source, as a terminal session shows it."""
    width = min(shutil.get_terminal_size().columns, 100)
    print_line("─" * width)
    for line in cell.source.splitlines():
        print_line(f"  │ {line}")


def print_message(message: Any) -> None:
    """Print an output as text."""
    content = message["content"]
    if message["msg_type"] == "stream":
        # Raw: the escapes are the notebook's own colours, as in any terminal.
        print_line(content["text"].rstrip("\n"), raw=True)
    elif message["msg_type"] == "error":
        print_line("\n".join(content["traceback"]), raw=True)
    elif "data" in content:
        data = content["data"]
        for mimetype, value in data.items():
            if mimetype.startswith("image/"):
                print_line(f"[{mimetype}, {len(value) * 3 // 4:,} bytes: see the notebook]")
                return
        print_line(str(data.get("text/plain", f"[{', '.join(data)}: see the notebook]")))


def report(failed: FailedCell | None, target: Path) -> int:
    """Print how a run ended; return the exit code."""
    print_line(f"The executed notebook is {target}.", error=True)
    if failed is None:
        return 0
    print_line(
        f"Cell {failed.number} failed: {plain(failed.name)}: {plain(failed.value)}", error=True
    )
    return EXIT_FAILED
