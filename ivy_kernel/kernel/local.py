"""Splits a cell into what runs in this process and what goes to the sandbox; runs ``%%local``.

The list of what runs here is exact: ``%%local``, ``%%ivy``, leading ``%ivy`` lines, and
``%load_ext ivy_kernel``.
"""

from __future__ import annotations

import ast
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import comm
from IPython.core.inputtransformer2 import TransformerManager

from ivy_kernel.errors import UsageError
from ivy_kernel.models import Json


class LocalShell:
    """An IPython shell in the kernel's own process.

    Parameters
    ----------
    kernel
        The kernel, through whose sockets its outputs are sent.
    """

    def __init__(self, kernel: Any) -> None:
        from ipykernel.zmqshell import ZMQInteractiveShell  # not every kernel has a %%local cell

        # Not with the kernel as parent: `get_ipython()` would lead to its session, and to the key.
        self._kernel = _ShellsKernel(kernel)
        shell = ZMQInteractiveShell.instance(
            config=kernel.config, profile_dir=kernel.profile_dir, kernel=self._kernel
        )
        self._app = kernel.parent
        self._shell = cast("Any", shell)  # its members are declared as their base classes
        self._shell.ask_exit = _end_the_cell  # `exit()` would end this process, the kernel
        self._shell.history_manager.enabled = False  # its file belongs to the user's own IPython
        self._shell.displayhook.session = kernel.wire
        self._shell.displayhook.pub_socket = kernel.iopub_socket
        self._shell.displayhook.topic = kernel._topic("execute_result")
        self._shell.display_pub.session = kernel.wire
        self._shell.display_pub.pub_socket = kernel.iopub_socket
        self._streams = {"stdout": sys.stdout, "stderr": sys.stderr}

    @property
    def namespace(self) -> Json:
        """The variables of its cells."""
        namespace: Json = self._shell.user_ns
        return namespace

    def run(self, code: str, parent: Json, *, count: int, silent: bool) -> Json:
        """Run code here, blocking, and return the content of the reply.

        Ctrl-C and interrupts raise `KeyboardInterrupt` in it, as in any Python notebook.
        """
        self._kernel.request = parent
        self._shell.set_parent(parent)
        self._shell.execution_count = count
        # Without this the event loop would be told of the same signal later, and stop another cell.
        wakeup = signal.set_wakeup_fd(-1)
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with self._folder_on_path():
                result = self._shell.run_cell(code, store_history=True, silent=silent)
        finally:
            signal.signal(signal.SIGINT, before)
            signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
            self._mend_streams()
        error = result.error_before_exec or result.error_in_exec
        if error is None:
            return {"status": "ok", "user_expressions": {}, "payload": []}
        content = {
            "ename": type(error).__name__,
            "evalue": str(error),
            "traceback": self._shell._last_traceback or [],
        }
        return {"status": "error", "user_expressions": {}, "payload": [], **content}

    def _mend_streams(self) -> None:
        """Put our own streams back where the cell has left some that cannot be flushed.

        ipykernel flushes them after each request, and would say nothing more.
        """
        for name, stream in self._streams.items():
            try:
                getattr(sys, name).flush()
            except Exception as error:
                setattr(sys, name, stream)
                sys.stderr.write(
                    f"[sys.{name} could not be flushed after this cell ({type(error).__name__}: "
                    f"{error}); it is the notebook's own again.]\n"
                )

    @contextmanager
    def _folder_on_path(self) -> Iterator[None]:
        """Have imports look in the notebook's folder; only now, see `IvyKernelApp.init_path`."""
        before = "" in sys.path
        self._app.add_folder_to_path()
        try:
            yield
        finally:
            if not before and "" in sys.path:  # whatever else the cell did to the path stays
                sys.path.remove("")


class _ShellsKernel:
    """The kernel, as far as IPython's shell and ipywidgets need it."""

    eventloop = None

    def __init__(self, kernel: Any) -> None:
        self.io_loop = kernel.io_loop
        self.request: Json = {}

    def get_parent(self, channel: str = "shell") -> Json:
        """Return the request of the cell, whose output an output widget catches."""
        return self.request

    @property
    def comm_manager(self) -> Any:
        """The manager of the comms of this process, where ipywidgets 8.0 registers itself."""
        return comm.get_comm_manager()


def _end_the_cell() -> None:
    """Called by IPython for ``exit()`` and ``quit()``."""
    raise SystemExit


# Cells that the sandbox proposes -----------------------------------------------------------------
PROPOSED = (
    "# The sandbox has put this cell here. Below is a line that would run on your machine, not in "
    "the sandbox;\n# delete this comment if that is what you want.\n"
)


def marked_proposals(payload: Sequence[Json]) -> list[Json]:
    """Return a reply's payload with a comment before each proposed cell that would run here.

    A front end inserts the text of ``set_next_input`` as the next cell. With the comment before it,
    a ``%%local`` is no cell magic any more.
    """
    return [
        {**one, "text": PROPOSED + str(one["text"])} if _proposes_local(one) else one
        for one in payload
    ]


def _proposes_local(one: Json) -> bool:
    if not isinstance(one, dict) or one.get("source") != "set_next_input":
        return False
    text = str(one.get("text", ""))
    try:
        return runs_locally(text) or bool(split_cell(text).commands)
    except UsageError:  # nothing of it would run
        return False


def runs_locally(code: str) -> bool:
    """Return whether a cell begins with ``%%local``."""
    words = code.split(maxsplit=1)
    return bool(words) and words[0] == "%%local"


# Splitting a cell -------------------------------------------------------------------------------
MISPLACED = (
    "%ivy runs here, the rest of a cell in the sandbox, so %ivy lines must come first in a cell "
    "or stand alone in one. Nothing of this cell was run."
)


@dataclass(frozen=True, slots=True)
class CellParts:
    """The parts of a cell, by where they run.

    Parameters
    ----------
    commands
        The arguments of its ``%ivy`` lines, in order.
    local_code
        The body of a ``%%local`` cell; ``None`` for other cells.
    sandbox_code
        The code for the sandbox; empty when there is none. Line numbers are as in the cell.
    options
        The rest of the ``%%ivy`` line; ``None`` for other cells.
    """

    commands: tuple[str, ...] = ()
    local_code: str | None = None
    sandbox_code: str = ""
    options: str | None = None


def split_cell(code: str) -> CellParts:
    """Split a cell by where its parts run.

    Raises
    ------
    UsageError
        For a ``%ivy`` line after other code, and for options that ``%%local`` does not have.
    """
    lines = code.split("\n")
    first = next((index for index, line in enumerate(lines) if line.strip()), len(lines))
    head = lines[first].strip() if first < len(lines) else ""
    words = head.split()
    if runs_locally(code):
        if len(words) > 1:
            raise UsageError(f"%%local takes no options, but got {' '.join(words[1:])!r}.")
        # Empty lines in place of ours keep the line numbers of tracebacks, here and below.
        blank = [""] * (first + 1)
        return CellParts(local_code="\n".join(blank + lines[first + 1 :]))
    if words and words[0] == "%%ivy":
        body = [""] * (first + 1) + lines[first + 1 :]
        return CellParts(options=head[len("%%ivy") :].strip(), sandbox_code="\n".join(body))
    commands = []
    for index, line in enumerate(lines):
        text = line.strip()
        if text and not text.startswith("#"):
            arguments = _ivy_arguments(text)
            if arguments is None:
                break
            commands.append(arguments)
            lines[index] = ""
    rest = "\n".join(lines)
    if _has_ivy_line(rest):
        raise UsageError(MISPLACED)
    return CellParts(commands=tuple(commands), sandbox_code=rest if rest.strip() else "")


def _ivy_arguments(line: str) -> str | None:
    """Return the arguments of a ``%ivy`` line, or what stands for it; ``None`` for other lines."""
    if line == "%ivy" or line.startswith(("%ivy ", "%ivy\t")):
        return line[len("%ivy") :].strip()
    if line.split() == ["%load_ext", "ivy_kernel"] or line.split() == ["%reload_ext", "ivy_kernel"]:
        return "loaded"
    return None


def _has_ivy_line(code: str) -> bool:
    """Whether a statement of the cell is a ``%ivy`` line; text in strings does not count."""
    # Most cells end here; parsing is for the few that name it. Cell magics have other languages.
    if "%ivy" not in code or code.lstrip().startswith("%%"):
        return False
    try:
        body = ast.parse(TransformerManager().transform_cell(code)).body
    except (SyntaxError, ValueError, RecursionError):
        return False  # the sandbox says what is wrong with it
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "run_line_magic"
        and bool(node.args)
        and isinstance(node.args[0], ast.Constant)
        and node.args[0].value == "ivy"
        for statement in body
        for node in ast.walk(statement)
    )
