"""Executes a notebook through the kernel with nbclient."""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import NoSuchKernel
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

from ivy_kernel.cli.base import KERNEL_NAME
from ivy_kernel.errors import IvyError, UsageError

STARTS = 3


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


class _WatchedClient(NotebookClient):
    """Shows outputs as they come, and starts the kernel again when it dies before any cell."""

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
        Told the index of each code cell.
    on_output
        Told each output message as it comes; not the ones that are taken away again.

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
    notebook.metadata["kernelspec"] = {
        "name": KERNEL_NAME,
        "display_name": "Ivy Sandbox",
        "language": "python",
    }
    client = _WatchedClient(
        notebook,
        kernel_name=KERNEL_NAME,
        timeout=None,
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


def _number_of_failed(notebook: Any) -> int:
    code_cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for number, cell in enumerate(code_cells, 1):
        if any(output.output_type == "error" for output in cell.outputs):
            return number
    return len(code_cells)
