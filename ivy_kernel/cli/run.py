"""``jupyter ivy run`` and ``demo``: a whole notebook, every cell in the sandbox."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from pathlib import Path

from traitlets import Bool, Unicode

from ivy_kernel.cli.app import (
    DEBUG_FLAG,
    IvyCommandApp,
    packaged_directory,
    print_cell,
    print_line,
    print_message,
)
from ivy_kernel.cli.execution import (
    NotebookRun,
    check_language,
    check_local_cells,
    check_target,
    kernel_arguments,
    read_notebook,
)
from ivy_kernel.cli.setup import jupyter_command
from ivy_kernel.errors import UsageError

RUN_ALIASES = {**IvyCommandApp.aliases, "output": "RunApp.output"}

RUN_FLAGS = {
    **DEBUG_FLAG,
    "inplace": ({"RunApp": {"inplace": True}}, "Write the executed notebook over the original."),
    "allow-local": (
        {"Ivy": {"allow_local": True}},
        "Run the notebook's %%local cells too: on this machine, as you.",
    ),
    "detach": (
        {"RunApp": {"detach": True}},
        "Have the sandbox run it by itself, and return at once; see jupyter ivy runs.",
    ),
    "no-progress": ({"RunApp": {"progress": False}}, "Show no progress bar."),
}


class RunApp(IvyCommandApp):
    """Run a notebook with the Ivy Sandbox kernel.

    jupyter ivy run NOTEBOOK [--output PATH]

    Each finished cell is saved as it comes. A notebook with %%local cells, which run on this
    machine as you, is refused unless you add --allow-local.

    With --detach the sandbox runs it by itself, without this machine: jupyter ivy runs.

    Exit code 0 when every cell succeeded, 1 when one failed (the notebook is written all the same,
    with the error in it), 2 when nothing could be run, 130 after Ctrl-C.
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
    detach = Bool(False, help="Have the sandbox run it by itself, and return at once.").tag(
        config=True
    )
    progress = Bool(True, help="Show a progress bar on stderr.").tag(config=True)

    async def run(self) -> int:
        """Run it."""
        if len(self.extra_args) != 1:
            raise UsageError("Give one notebook: jupyter ivy run NOTEBOOK [--output PATH].")
        source = Path(self.extra_args[0])
        if self.detach:
            from ivy_kernel.cli.runs import detach  # no other run needs it

            if self.inplace or self.output:
                raise UsageError(
                    "--detach writes the executed notebook in the sandbox; leave --inplace and "
                    "--output out, and get it by jupyter ivy runs fetch."
                )
            return await detach(self, source)
        target = self._target(source)
        settings = self.live_settings().current()  # what is wrong is told before anything starts
        notebook = read_notebook(source)
        if self.inplace:
            check_language(notebook, source)
        # Config files and the environment allow it for one's own notebooks; this may be another's.
        allowed = settings.allow_local and settings.sources["allow_local"].kind == "flag"
        if not allowed:
            check_local_cells(notebook, source)
        from tqdm import tqdm  # imported late: a wrong option is told without waiting for it

        run = NotebookRun(notebook, target, directory=source.resolve().parent)
        arguments = [*kernel_arguments(self), f"--Ivy.allow_local={allowed}"]
        code_cells = sum(cell.cell_type == "code" for cell in notebook.cells)
        with tqdm(total=code_cells, unit="cell", disable=not self.progress, file=sys.stderr) as bar:
            run.after_cell = lambda _index: bar.update()
            await run.execute(arguments)
        return run.report()

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

DEMO_ALIASES = {**IvyCommandApp.aliases, "output": "DemoApp.output"}


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
        source = packaged_directory("examples") / "quickstart.ipynb"
        notebook = read_notebook(source)
        target = Path(self.output)
        check_target(target)
        print_line("Running the quickstart notebook in the embedded local sandbox …")
        run = NotebookRun(notebook, target, directory=Path.cwd())
        run.before_cell = lambda index: print_cell(notebook.cells[index])
        run.on_output = print_message
        await run.execute(DEMO_SETTINGS)
        code = run.report()
        if not code and importlib.util.find_spec("jupyterlab") is None:
            python = shlex.quote(sys.executable)
            print_line(f"To open it, install JupyterLab:  {python} -m pip install jupyterlab")
        elif not code:
            print_line(f"Open it with:  {jupyter_command('lab')} {shlex.quote(str(target))}")
        return code
