"""``jupyter ivy run``: any notebook, every cell in the sandbox."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traitlets import Bool, Unicode

from ivy_kernel.cli.base import DEBUG_FLAG, EXIT_FAILED, IvyCommandApp, plain, print_line
from ivy_kernel.errors import IvyError, UsageError

if TYPE_CHECKING:
    from ivy_kernel.cli.execution import FailedCell

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
        from tqdm import tqdm

        from ivy_kernel.cli.execution import execute_notebook

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


def check_target(target: Path) -> None:
    """See before a long run whether its result can be written.

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


def write_notebook(notebook: Any, target: Path) -> None:
    """Write a notebook whole or not at all, so that a full disk spoils no earlier one.

    Raises
    ------
    IvyError
        When it cannot be written.
    """
    import nbformat  # takes seconds on some machines

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


def read_notebook(path: Path) -> Any:
    """A notebook in format 4.

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


def kernel_arguments(app: IvyCommandApp) -> list[str]:
    """Our settings among the flags, for the kernel's own command line."""
    return [argument for argument in app.argv or [] if argument.startswith("--Ivy.")]


def report(failed: FailedCell | None, target: Path) -> int:
    """Say how a run ended; the exit code."""
    print_line(f"The executed notebook is {target}.", error=True)
    if failed is None:
        return 0
    print_line(
        f"Cell {failed.number} failed: {plain(failed.name)}: {plain(failed.value)}", error=True
    )
    return EXIT_FAILED
